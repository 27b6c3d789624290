//! What service managers and monitoring want: sockets that are passed on, readiness, a PID file, metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Command;
use std::time::{Duration, Instant};

use super::refused::refused;
use super::server::{Drive, image};
use crate::nbd::{Client, FLUSH};
use crate::support::{PATIENCE, Place};

const SIZE: u64 = 1 << 20;

/// `bonsai ARGS` with a socket as descriptor 3, as `sd_listen_fds(3)` says: the shell has the number of the process that it
/// becomes.
fn activated(place: &Place, socket: i32, pid: &str, args: &[&str]) -> Command {
    let bonsai = place.bonsai(args);
    let script =
        format!("exec 3<&{socket}; export LISTEN_FDS=${{COUNT-1}} LISTEN_PID={pid}; exec \"$@\"");
    let mut command = Command::new("bash");
    command
        .args(["-c", &script, "bash"])
        .arg(bonsai.get_program());
    command
        .args(bonsai.get_args())
        .stdin(std::process::Stdio::null());
    for (name, value) in bonsai.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// What a child gets as well.
fn inherited(socket: &impl std::os::fd::AsFd) -> i32 {
    let fd = socket.as_fd();
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).expect("inherited");
    fd.as_raw_fd()
}

#[test]
fn a_socket_that_was_passed_on_is_served_and_stays() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let at = place.path().join("passed.sock");
    let listener = UnixListener::bind(&at).expect("a socket");
    let socket = inherited(&listener);
    let args = ["drive", "serve", &path];
    for _ in 0..2 {
        // It waits until there is somebody who serves it.
        let waiting = std::thread::spawn({
            let at = at.clone();
            move || Client::new(&at, "a").read(0, 512)
        });
        let drive = Drive::of(activated(&place, socket, "$$", &args), &[&path]);
        assert_eq!(
            drive.uris,
            [format!("nbd+unix:///a?socket={}", at.display())]
        );
        assert_eq!(waiting.join().expect("a client"), Ok(vec![0; 512]));
        assert_eq!(drive.end("TERM").code, Some(0));
        assert!(at.exists(), "it is the service manager's");
    }
    // Those of another process are none of its.
    let drive = Drive::of(activated(&place, socket, "1", &args), &[&path]);
    assert_ne!(drive.socket, at);
    assert_eq!(drive.end("TERM").code, Some(0));
    // What is no listening stream socket is no place for clients.
    let [datagram, connected] = ["d.sock", "c.sock"].map(|name| place.path().join(name));
    let datagram = UnixDatagram::bind(&datagram).expect("a socket");
    let _listener = UnixListener::bind(&connected).expect("a socket");
    let connected = std::os::unix::net::UnixStream::connect(&connected).expect("connected");
    for (socket, words) in [
        (inherited(&datagram), "no stream socket"),
        (inherited(&connected), "does not listen"),
    ] {
        let said = activated(&place, socket, "$$", &args)
            .output()
            .expect("bonsai");
        let words_said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{words_said}");
        assert!(
            words_said.contains(words) && words_said.lines().count() == 1,
            "{words_said}"
        );
    }
    let said = activated(&place, socket, "$$", &args)
        .env("COUNT", "abc")
        .output()
        .expect("bonsai");
    let words_said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(2), "{words_said}");
    assert!(words_said.contains("\"abc\" is no number"), "{words_said}");
}

#[test]
fn readiness_and_the_end_are_told_and_the_pid_file_goes() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let [notify, pid_file] = ["notify.sock", "drive.pid"].map(|name| place.path().join(name));
    let told = UnixDatagram::bind(&notify).expect("a socket");
    told.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let hear = || {
        let mut bytes = [0; 256];
        let length = told.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let pid_name = pid_file.display().to_string();
    let mut command = place.bonsai(&["drive", "serve", "--pid-file", &pid_name, &path]);
    command.env("NOTIFY_SOCKET", &notify);
    let drive = Drive::of(command, &[&path]);
    let words = hear();
    assert!(
        words.contains("READY=1") && words.contains("STATUS=serving 1 export"),
        "{words}"
    );
    let number = std::fs::read_to_string(&pid_file).expect("a file");
    assert_eq!(number, format!("{}\n", drive.pid()));
    assert_eq!(drive.end("TERM").code, Some(0));
    assert!(hear().contains("STOPPING=1"));
    assert!(!pid_file.exists());
    // What is no file stays what it is, and nothing is served.
    let target = place.path().join("target");
    std::fs::write(&target, b"old").expect("written");
    std::os::unix::fs::symlink(&target, &pid_file).expect("a link");
    let sentence = refused(&place, &["--pid-file", &pid_name, &path]);
    assert!(sentence.contains("no regular file"), "{sentence}");
    assert_eq!(std::fs::read(&target).expect("a file"), b"old");
    assert!(refused(&place, &["--pid-file", "/dev/null", &path]).contains("no regular file"));
}

#[test]
fn the_pid_file_of_a_server_that_runs_stays() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let other = image(&place, "b.raw", SIZE);
    let pid_file = place.path().join("drive.pid");
    let pid_name = pid_file.display().to_string();
    let command = place.bonsai(&["drive", "serve", "--pid-file", &pid_name, &path]);
    let drive = Drive::of(command, &[&path]);
    let number = || std::fs::read_to_string(&pid_file).unwrap_or_default();
    let end = Instant::now() + PATIENCE;
    while number().is_empty() {
        assert!(Instant::now() < end, "it writes its number");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sentence = refused(&place, &["--pid-file", &pid_name, &other]);
    let expected = format!("is that of process {}, which is running", drive.pid());
    assert!(sentence.contains(&expected), "{sentence}");
    assert_eq!(number(), format!("{}\n", drive.pid()));
    // What is no PID file stays, also an image.
    let notes = place.path().join("notes.txt");
    std::fs::write(&notes, "12 monkeys\n").expect("written");
    let notes = notes.display().to_string();
    for name in [&notes, &other] {
        let before = std::fs::read(name).expect("a file");
        let sentence = refused(&place, &["--pid-file", name, &other]);
        assert!(
            sentence.contains("holds no number of a process"),
            "{sentence}"
        );
        assert_eq!(std::fs::read(name).expect("it is there"), before);
    }
    // That of a server that was killed is taken over.
    drive.end("KILL");
    assert!(pid_file.exists());
    let command = place.bonsai(&["drive", "serve", "--pid-file", &pid_name, &other]);
    let next = Drive::of(command, &[&other]);
    while number() != format!("{}\n", next.pid()) {
        assert!(Instant::now() < end, "it takes the name: {}", number());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(next.end("TERM").code, Some(0));
    assert!(!pid_file.exists());
}

fn http(port: &str, request: &str) -> String {
    http_accepting(port, request, "*/*")
}

fn http_accepting(port: &str, request: &str, accept: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connected");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    let request = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    text
}

#[test]
fn metrics_are_those_of_the_exports() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let other = image(&place, "b \"1\".raw", SIZE);
    let drive = Drive::start(&place, &["--metrics", ":0", &path, &other]);
    let mut client = Client::new(&drive.socket, "a");
    for at in 0..3 {
        assert_eq!(client.write(at * 4096, &[1; 4096], false), 0);
    }
    assert!(client.read(0, 8192).is_ok());
    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
    assert_eq!(client.read(SIZE, 1), Err(22));
    let port = drive.heard("metrics are at http://127.0.0.1:");
    let port = port.split('/').next().expect("a port");
    let plain = http(port, "GET /metrics");
    assert!(plain.contains("text/plain; version=0.0.4"), "{plain}");
    assert!(
        plain.contains("# TYPE bonsai_block_requests_total counter"),
        "{plain}"
    );
    let text = http_accepting(port, "GET /metrics", "application/openmetrics-text");
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("application/openmetrics-text"),
        "{text}"
    );
    for line in [
        "bonsai_block_requests_total{export=\"a\",operation=\"write\"} 3",
        "bonsai_block_requests_total{export=\"a\",operation=\"read\"} 1",
        "bonsai_block_requests_total{export=\"a\",operation=\"flush\"} 1",
        "bonsai_block_request_bytes_total{export=\"a\",operation=\"write\"} 12288",
        "bonsai_block_request_bytes_total{export=\"a\",operation=\"read\"} 8192",
        "bonsai_block_request_errors_total{export=\"a\",reason=\"invalid\"} 1",
        "bonsai_block_request_errors_total{export=\"a\",reason=\"failed\"} 0",
        "bonsai_block_connections{export=\"a\"} 1",
        "bonsai_block_size_bytes{export=\"a\"} 1048576",
        "bonsai_block_redirected_bytes_total{export=\"a\"} 0",
        "bonsai_block_map_limit_bytes 268435456",
        "bonsai_block_connections{export=\"b \\\"1\\\"\"} 0",
        "bonsai_build_info{version=",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert!(http(port, "GET /").starts_with("HTTP/1.1 404"));
    assert!(http(port, "POST /metrics").starts_with("HTTP/1.1 405"));
    // Who says nothing, or half of it, holds up neither clients nor others who ask.
    let silent: Vec<TcpStream> = (0..40)
        .map(|number| {
            let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connected");
            let half = &b"GET /metrics HTTP/1.1\r\nHost:"[..number % 28];
            (&stream).write_all(half).expect("written");
            stream
        })
        .collect();
    assert!(http(port, "HEAD /metrics").starts_with("HTTP/1.1 200"));
    assert!(client.read(0, 4096).is_ok());
    // The last of them are still there: they were not waited for.
    let last = silent.last().expect("40");
    last.set_nonblocking(true).expect("set");
    let end = (&*last).read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(std::io::ErrorKind::WouldBlock));
    drop(silent);
    assert_eq!(drive.end("TERM").code, Some(0));
    let sentence = refused(&place, &["--metrics", "here", &path]);
    assert!(
        sentence.contains("--metrics here: is no address"),
        "{sentence}"
    );
}

#[test]
fn the_unit_serves_a_file_of_exports_on_its_socket() {
    let place = Place::bare();
    let path = image(&place, "disk.raw", SIZE);
    let missing = place.path().join("missing.raw");
    let exports = place.path().join("exports.toml");
    let text = format!(
        "[[export]]\nname = \"gone\"\npath = {missing:?}\n[[export]]\nname = \"web\"\npath = {path:?}\n"
    );
    std::fs::write(&exports, text).expect("written");
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/systemd/bonsai-block.service"
    );
    let unit = std::fs::read_to_string(unit).expect("the unit");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/env bonsai "));
    let exports = exports.display().to_string();
    let line = line
        .expect("a command")
        .replace("/etc/bonsai/exports.toml", &exports);
    let args: Vec<&str> = line.split(' ').collect();
    let at = place.path().join("unit.sock");
    let listener = UnixListener::bind(&at).expect("a socket");
    let command = activated(&place, inherited(&listener), "$$", &args);
    let drive = Drive::of(command, &[&path]);
    assert_eq!(
        drive.uris,
        [format!("nbd+unix:///web?socket={}", at.display())]
    );
    assert_eq!(Client::new(&at, "web").write(0, &[1; 512], true), 0);
    let said = drive.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.err.contains("missing.raw: cannot be opened"),
        "{said:?}"
    );
}
