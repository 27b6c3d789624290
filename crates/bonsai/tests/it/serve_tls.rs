//! `bonsai serve --tls-cert`: players as they are installed, handshakes that do not end, and certificates that are renewed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::clients::{gstreamer, play};
use crate::drive::tls::certificate;
use crate::serve_http::{Server, clip};
use crate::support::{Place, skip};

const PATIENCE: Duration = Duration::from_secs(60);

/// Half handshakes of one program; the server takes 512 at a time.
const HALF: &str = r#"
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
host, port = sys.argv[1].rsplit(":", 1)
half = []
for number in range(600):
    half.append(socket.create_connection((host, int(port)), 60))
    half[-1].sendall(b"\x16\x03"[:number % 3])
print("begun", flush=True)
sys.stdin.readline()
for one in half:
    one.settimeout(60)
    try:
        while one.recv(100):
            pass
    except ConnectionResetError:
        pass
print("ended", flush=True)
"#;

/// A server with TLS of a clip of `seconds`: the server, the addresses of RTSP and HTTP, and the files of its certificate.
struct Secured {
    server: Server,
    rtsp: String,
    http: String,
    cert: String,
    key: String,
}

impl Secured {
    fn start(test: &str, place: &Place, seconds: u64) -> Option<Self> {
        let clip = clip(test, place, seconds)?;
        let [cert, key, _] = certificate(test, place)?;
        let folder = clip.parent().and_then(Path::to_str).expect("UTF-8");
        let mut args = vec![folder, "--rtsp", ":0", "--http", ":0", "--verbose"];
        args.extend(["--tls-cert", &cert, "--tls-key", &key]);
        let (server, at) = Server::start(place, &args, 2);
        let of = |scheme: &str| {
            let mut at = at.iter();
            let at = at.find_map(|at| at.strip_prefix(scheme)).expect(scheme);
            at.trim_end_matches('/').to_owned()
        };
        Some(Self {
            server,
            rtsp: of("rtsps://"),
            http: of("https://"),
            cert,
            key,
        })
    }

    fn rtsp(&self) -> SocketAddr {
        self.rtsp.parse().expect("an address")
    }
}

/// Pictures that ffmpeg gets of an address, or what it says.
fn pictures(test: &str, url: &str) -> Result<usize, String> {
    let words = "-map 0:v -c copy -f framemd5 -";
    let args = [
        &["-v", "error", "-i", url],
        &words.split(' ').collect::<Vec<_>>()[..],
    ]
    .concat();
    let (is_well, said) = play(test, "ffmpeg", &args).expect("it made the clip");
    match is_well {
        true => Ok(said.lines().filter(|line| line.starts_with("0,")).count()),
        false => Err(said),
    }
}

/// Answer that curl gets with that certificate as its authority.
fn fetched(cert: &str, url: &str) -> Option<Vec<u8>> {
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "30", "--cacert", cert, url]);
    let got = command.output().ok()?;
    got.status.success().then_some(got.stdout)
}

#[test]
fn players_watch_and_fetch_over_tls() {
    const TEST: &str = "players_watch_and_fetch_over_tls";
    let place = Place::bare();
    let Some(secured) = Secured::start(TEST, &place, 2) else {
        return;
    };
    let url = format!("rtsps://{}/clip.mp4", secured.rtsp);
    assert_eq!(pictures(TEST, &url), Ok(50));
    // TLS of GLib is a package of its own.
    match Path::new("/usr/lib/x86_64-linux-gnu/gio/modules/libgiognutls.so").exists() {
        true => gstreamer(TEST, &url, &["tls-validation-flags=0"]),
        false => skip(TEST, "GStreamer has no TLS (glib-networking)"),
    }
    // Packets leave it encrypted or not at all.
    let asked = place.path().join("asked");
    fs::write(
        &asked,
        "SETUP rtsps://localhost/clip.mp4/track1 RTSP/1.0\r\nCSeq: 1\r\n\
         Transport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n",
    )
    .expect("written");
    let mut client = Command::new("timeout");
    client.args([
        "60",
        "openssl",
        "s_client",
        "-quiet",
        "-connect",
        &secured.rtsp,
    ]);
    let mut client = client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it made the certificate");
    let request = fs::read(&asked).expect("written");
    let mut to = client.stdin.take().expect("piped");
    to.write_all(&request).expect("asked");
    let mut answer = [0; 12];
    let from = client.stdout.as_mut().expect("piped");
    from.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"RTSP/1.0 461");
    drop(to);
    let _ = client.kill();
    let _ = client.wait();
    let url = format!("https://{}/clip.mp4", secured.http);
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !has_curl {
        return skip(TEST, "curl is not installed");
    }
    let film = fs::read(place.path().join("clips/clip.mp4")).expect("a film");
    assert!(
        fetched(&secured.cert, &url) == Some(film),
        "it came as another"
    );
    // A renewed certificate; before that, one without its key.
    let other = Place::bare();
    let Some([cert, key, _]) = certificate(TEST, &other) else {
        return;
    };
    let replace = |from: &str, to: &str| {
        let new = format!("{to}.new");
        fs::copy(from, &new).expect("copied");
        fs::rename(new, to).expect("in its place");
    };
    let kept = place.path().join("kept.pem").display().to_string();
    fs::copy(&secured.cert, &kept).expect("copied");
    replace(&cert, &secured.cert);
    std::thread::sleep(Duration::from_millis(2500));
    assert!(fetched(&kept, &url).is_some(), "the one before stays");
    replace(&key, &secured.key);
    let end = Instant::now() + PATIENCE;
    while fetched(&cert, &url).is_none() {
        assert!(Instant::now() < end, "never read again");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fetched(&kept, &url), None);
    let url = format!("rtsps://{}/clip.mp4", secured.rtsp);
    assert_eq!(pictures(TEST, &url), Ok(50));
    let said = secured.server.end("INT");
    assert_eq!(said.code, Some(0), "{said:?}");
    let words = "is not the key of the certificate in";
    assert!(
        said.err.contains(words) && said.err.contains("read again"),
        "{}",
        said.err
    );
}

#[test]
fn half_handshakes_keep_nobody_out_and_end() {
    const TEST: &str = "half_handshakes_keep_nobody_out_and_end";
    let place = Place::bare();
    let Some(secured) = Secured::start(TEST, &place, 1) else {
        return;
    };
    let mut half = Vec::new();
    for at in [&secured.rtsp, &secured.http] {
        let mut command = Command::new("python3");
        let child = command
            .args(["-c", HALF, at])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            return skip(TEST, "python3 is not installed");
        };
        let mut begun = [0; 6];
        let out = child.stdout.as_mut().expect("piped");
        out.read_exact(&mut begun).expect("it begins");
        half.push(child);
    }
    let url = format!("rtsps://{}/clip.mp4", secured.rtsp);
    assert_eq!(pictures(TEST, &url), Ok(25));
    let url = format!("https://{}/clip.mp4", secured.http);
    if Command::new("curl").arg("--version").output().is_ok() {
        assert!(fetched(&secured.cert, &url).is_some());
    }
    // All of them are ended by the server.
    for child in half {
        let said = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.status.success() && text.contains("ended"), "{text}");
    }
    let said = secured.server.end("INT");
    for words in ["TLS handshake takes too long", "makes room for others"] {
        let told = said.err.contains(words) || said.err.contains("more like these");
        assert!(told, "{words}: {}", said.err);
    }
}

#[test]
fn requests_without_tls_are_answered_in_words() {
    const TEST: &str = "requests_without_tls_are_answered_in_words";
    let place = Place::bare();
    let Some(secured) = Secured::start(TEST, &place, 1) else {
        return;
    };
    let ask = |at: SocketAddr, request: &str| {
        let mut stream = TcpStream::connect(at).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        said
    };
    let said = ask(secured.rtsp(), "OPTIONS * RTSP/1.0\r\nCSeq: 7\r\n\r\n");
    assert!(
        said.starts_with("RTSP/1.0 400 This port speaks TLS"),
        "{said}"
    );
    assert!(said.contains("\r\nCSeq: 7\r\n"), "{said}");
    let http = secured.http.parse().expect("an address");
    let said = ask(http, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(
        said.contains("this port speaks TLS: ask for https://"),
        "{said}"
    );
    // One handshake is told of after the other: with this one, all before it have been.
    let url = format!("rtsps://{}/clip.mp4", secured.rtsp);
    assert_eq!(pictures(TEST, &url), Ok(25));
    let said = secured.server.end("INT").err;
    for words in ["this port has rtsps alone", "this port has https alone"] {
        assert!(said.contains(words), "{said}");
    }
    // Bytes that begin as a handshake and are none.
    let other = Place::bare();
    let Some(secured) = Secured::start(TEST, &other, 1) else {
        return;
    };
    ask(secured.rtsp(), "\x16\x03\x01\0\x05hello");
    let url = format!("rtsps://{}/clip.mp4", secured.rtsp);
    assert_eq!(pictures(TEST, &url), Ok(25));
    let said = secured.server.end("INT").err;
    assert!(said.contains("its TLS handshake fails"), "{said}");
}

#[test]
fn certificates_that_are_wrong_are_refused_in_a_sentence() {
    const TEST: &str = "certificates_that_are_wrong_are_refused_in_a_sentence";
    let place = Place::bare();
    let folder = place.path().join("clips");
    fs::create_dir(&folder).expect("made");
    let folder = folder.to_str().expect("UTF-8");
    let Some([cert, key, pki]) = certificate(TEST, &place) else {
        return;
    };
    let other = Place::bare();
    let Some([_, strange, _]) = certificate(TEST, &other) else {
        return;
    };
    let none = place.path().join("none.pem").display().to_string();
    for (cert, key, words) in [
        (&none, &key, "none.pem: cannot be read: No such file"),
        (&pki, &key, "pki: is no regular file"),
        (&key, &key, "has no certificate in PEM"),
        (&cert, &cert, "has a certificate and no private key"),
        (&cert, &strange, "is not the key of the certificate in"),
    ] {
        let args = [
            "serve",
            folder,
            "--rtsp",
            ":0",
            "--tls-cert",
            cert,
            "--tls-key",
            key,
        ];
        let said = place.say(&args);
        assert_eq!(said.code, Some(2), "{said:?}");
        let is_said = said.err.contains(words) && said.err.lines().count() == 1;
        assert!(is_said, "{words}: {said:?}");
    }
    let said = place.say(&["serve", folder, "--tls-cert", &cert]);
    assert!(
        said.code == Some(2) && said.err.contains("--tls-key"),
        "{said:?}"
    );
}
