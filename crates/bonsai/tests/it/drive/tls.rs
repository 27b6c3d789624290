//! TLS, with clients that nobody here wrote.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::server::{Drive, image};
use crate::support::{PATIENCE, Place, skip};

/// A certificate for this machine's own name, its key, and a folder as libnbd wants it; `None`, and the reason in the log, where
/// there can be none.
pub(crate) fn certificate(test: &str, place: &Place) -> Option<[String; 3]> {
    let folder = place.path().join("pki");
    std::fs::create_dir(&folder).expect("a folder");
    let [cert, key] = ["ca-cert.pem", "key.pem"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args([
            "-keyout".as_ref(),
            key.as_os_str(),
            "-out".as_ref(),
            cert.as_os_str(),
        ])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        skip(test, "openssl is not installed");
        return None;
    }
    Some([&cert, &key, &folder].map(|path| path.display().to_string()))
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

#[test]
fn nbdinfo_and_nbdcopy_go_through_tls_and_nobody_without_it() {
    let test = "nbdinfo_and_nbdcopy_go_through_tls_and_nobody_without_it";
    let place = Place::bare();
    let Some([cert, key, folder]) = certificate(test, &place) else {
        return;
    };
    if !has("nbdinfo") || !has("nbdcopy") {
        return skip(test, "nbdinfo and nbdcopy are not installed (libnbd-bin)");
    }
    const SIZE: u64 = 8 << 20;
    let path = image(&place, "a.raw", SIZE);
    let args = [
        "--listen",
        ":0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        &path,
    ];
    let drive = Drive::start(&place, &args);
    let port = drive.uris[0].split(':').nth(2).expect("a port");
    let port = port.split('/').next().expect("a port");
    assert_eq!(drive.uris[0], format!("nbds://127.0.0.1:{port}/a"));
    let uri = format!("nbds://localhost:{port}/a?tls-certificates={folder}");
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().expect(program);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), output.stdout, text)
    };
    let (fine, info, words) = run("nbdinfo", &["--json", &uri]);
    if !fine && words.contains("TLS is not supported") {
        return skip(test, "this libnbd has no TLS");
    }
    let info = String::from_utf8_lossy(&info).into_owned();
    assert!(fine && info.contains("\"TLS\": true"), "{info}{words}");
    let [from, to] = ["from", "to"].map(|name| place.path().join(name));
    let bytes: Vec<u8> = (0..SIZE)
        .map(|at| (at / 4096 % 251).to_le_bytes()[0] ^ at.to_le_bytes()[0])
        .collect();
    std::fs::write(&from, &bytes).expect("written");
    let (fine, _, words) = run("nbdcopy", &["--flush", &from.display().to_string(), &uri]);
    assert!(fine, "{words}");
    let (fine, _, words) = run("nbdcopy", &[&uri, &to.display().to_string()]);
    assert!(fine, "{words}");
    assert!(
        std::fs::read(&to).expect("a copy") == bytes,
        "it came back as another"
    );
    // Neither without TLS, nor with another name than that of the certificate.
    let (fine, _, words) = run("nbdinfo", &[&format!("nbd://localhost:{port}/a")]);
    assert!(!fine, "{words}");
    let other = Place::bare();
    let Some([_, _, strange]) = certificate(test, &other) else {
        return;
    };
    let uri = format!("nbds://localhost:{port}/a?tls-certificates={strange}");
    assert!(!run("nbdinfo", &[&uri]).0, "a client believed a stranger");
    assert_eq!(drive.end("TERM").code, Some(0));
}

const GREEDY: &str = r#"
import socket, ssl, struct, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
assert s.recv(18)[:8] == b"NBDMAGIC"
s.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 5, 0))
assert struct.unpack(">QIII", s.recv(20))[2] == 1
context = ssl.create_default_context(cafile=sys.argv[2])
t = context.wrap_socket(s, server_hostname="localhost")
try:
    for _ in range(500):
        t.sendall(b"IHAVEOPT" + struct.pack(">II", 3, 0))
except OSError:
    pass
print("asked", flush=True)
sys.stdin.read()
"#;

#[test]
fn who_asks_for_much_over_tls_and_reads_nothing_is_left() {
    let test = "who_asks_for_much_over_tls_and_reads_nothing_is_left";
    let place = Place::bare();
    let Some([cert, key, _]) = certificate(test, &place) else {
        return;
    };
    // Names so long that a list of them does not fit into what the system holds.
    let images: Vec<String> = (0..40)
        .map(|number| image(&place, &format!("{number:0200}"), 512))
        .collect();
    let mut args = vec!["--listen", ":0", "--tls-cert", &cert, "--tls-key", &key];
    args.extend(images.iter().map(String::as_str));
    let drive = Drive::start(&place, &args);
    let before = drive.holds_at_rest();
    let port = drive.uris[0].split(':').nth(2).expect("a port");
    let port = port.split('/').next().expect("a port");
    let Ok(mut client) = Command::new("python3")
        .args(["-c", GREEDY, port])
        .arg(Path::new(&cert))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
    else {
        return skip(test, "python3 is not installed");
    };
    // Ten seconds for each time that it takes a part, and five for what is left.
    let end = Instant::now() + 3 * PATIENCE;
    let until = |right: &dyn Fn([usize; 2]) -> bool| {
        while !right(drive.holds()) {
            assert!(
                Instant::now() < end,
                "{:?}, {before:?} before",
                drive.holds()
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    until(&|now| now[1] > before[1]);
    until(&|now| now == before);
    drop(client.stdin.take());
    assert!(client.wait().expect("ended").success());
}

/// An authority, and a client's certificate that it has signed, in a folder as libnbd wants it beside the server's authority.
fn client_certificate(test: &str, place: &Place, server: &str, name: &str) -> Option<[String; 2]> {
    let folder = place.path().join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let at = |file: &str| folder.join(file).display().to_string();
    std::fs::copy(server, at("ca-cert.pem")).expect("copied");
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    let authority = format!(
        "req -x509 {curve} -days 2 -subj /CN=authority -keyout {} -out {}",
        at("authority-key.pem"),
        at("authority.pem")
    );
    let request = format!(
        "req {curve} -subj /CN=client -keyout {} -out {}",
        at("client-key.pem"),
        at("request.pem")
    );
    std::fs::write(
        at("v3"),
        "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n",
    )
    .expect("written");
    let signed = format!(
        "x509 -req -in {} -CA {} -CAkey {} -CAcreateserial -days 2 -extfile {} -out {}",
        at("request.pem"),
        at("authority.pem"),
        at("authority-key.pem"),
        at("v3"),
        at("client-cert.pem")
    );
    for words in [authority, request, signed] {
        let done = Command::new("openssl").args(words.split(' ')).output();
        if !done.is_ok_and(|done| done.status.success()) {
            skip(test, "openssl is not installed");
            return None;
        }
    }
    Some([at("authority.pem"), folder.display().to_string()])
}

#[test]
fn clients_need_a_certificate_where_one_is_asked_for() {
    let test = "clients_need_a_certificate_where_one_is_asked_for";
    let place = Place::bare();
    let Some([cert, key, plain]) = certificate(test, &place) else {
        return;
    };
    let made = ["right", "wrong"].map(|name| client_certificate(test, &place, &cert, name));
    let [Some([authority, right]), Some([_, wrong])] = made else {
        return;
    };
    if !has("nbdinfo") {
        return skip(test, "nbdinfo is not installed (libnbd-bin)");
    }
    let path = image(&place, "a.raw", 1 << 20);
    let socket = place.path().join("s.sock").display().to_string();
    let args = [
        "--listen",
        ":0",
        "--socket",
        &socket,
        "--tls-unix",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &authority,
        &path,
    ];
    let drive = Drive::start(&place, &args);
    assert_eq!(drive.uris[0], format!("nbds+unix:///a?socket={socket}"));
    let port = drive.uris[1].split(':').nth(2).expect("a port");
    let port = port.split('/').next().expect("a port");
    let info = |uri: &str| {
        let info = Command::new("nbdinfo").args(["--json", uri]).output();
        let info = info.expect("nbdinfo");
        let words = String::from_utf8_lossy(&info.stderr).into_owned();
        (info.status.success(), words)
    };
    let tcp = |folder: &str| {
        info(&format!(
            "nbds://localhost:{port}/a?tls-certificates={folder}"
        ))
    };
    let (fine, words) = tcp(&right);
    if !fine && words.contains("TLS is not supported") {
        return skip(test, "this libnbd has no TLS");
    }
    assert!(fine, "{words}");
    for folder in [&plain, &wrong] {
        assert!(
            !tcp(folder).0,
            "a client without a right certificate was let in"
        );
    }
    // Over the Unix socket likewise, and not without TLS.
    assert!(!info(&format!("nbd+unix:///a?socket={socket}")).0);
    let unix = |folder: &str| {
        info(&format!(
            "nbds+unix://localhost/a?socket={socket}&tls-certificates={folder}&tls-verify-peer=false"
        ))
    };
    assert!(!unix(&plain).0);
    let (fine, words) = unix(&right);
    assert!(fine, "{words}");
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn files_of_certificates_and_keys_have_their_sentences() {
    let test = "files_of_certificates_and_keys_have_their_sentences";
    let place = Place::bare();
    let Some([cert, key, folder]) = certificate(test, &place) else {
        return;
    };
    let other = Place::bare();
    let Some([_, strange, _]) = certificate(test, &other) else {
        return;
    };
    let path = image(&place, "a.raw", 1 << 20);
    let pipe = place.path().join("pipe").display().to_string();
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let locked = place.path().join("locked.pem").display().to_string();
    let made = Command::new("openssl")
        .args([
            "pkey", "-aes256", "-passout", "pass:x", "-in", &key, "-out", &locked,
        ])
        .output();
    assert!(made.expect("openssl").status.success());
    for (cert, key, authority, words) in [
        (&cert, &cert, None, "has a certificate and no private key"),
        (&key, &key, None, "has no certificate in PEM"),
        (
            &cert,
            &strange,
            None,
            "is not the key of the certificate in",
        ),
        (&cert, &locked, None, "the key is encrypted"),
        (&pipe, &key, None, "pipe: is no regular file"),
        (&cert, &pipe, None, "pipe: is no regular file"),
        (&cert, &key, Some(&pipe), "pipe: is no regular file"),
        (&cert, &key, Some(&key), "has no certificate in PEM"),
        (&folder, &key, None, "pki: is no regular file"),
    ] {
        let mut args = vec!["--listen", ":0", "--tls-cert", cert, "--tls-key", key];
        if let Some(authority) = authority {
            args.extend(["--tls-client-ca", authority.as_str()]);
        }
        args.push(&path);
        let sentence = super::refused::refused(&place, &args);
        assert!(sentence.contains(words), "{args:?}: {sentence}");
    }
    // Over a Unix socket alone, certificates would do nothing.
    let args = ["--tls-cert", &cert, "--tls-key", &key, &path];
    let sentence = super::refused::refused(&place, &args);
    assert!(sentence.contains("--tls-unix has TLS there"), "{sentence}");
    // A link is what the operator has named; a key that all can read is named.
    let link = place.path().join("link.pem").display().to_string();
    std::os::unix::fs::symlink(&key, &link).expect("a link");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&key, open).expect("opened");
    let args = [
        "--listen",
        ":0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &link,
        &path,
    ];
    let drive = Drive::start(&place, &args);
    let said = drive.end("TERM").err;
    assert!(
        said.contains("link.pem: every user of this machine can read this key"),
        "{said}"
    );
}
