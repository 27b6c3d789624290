//! Real servers in event loops, under a limit per stream: while one greedy connection is
//! held back, the others are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Port};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{PYTHON, bonsai, installed};
use crate::probe::PATIENCE;

/// What a stream may send: little, so that whoever waits for the greedy one waits long.
const RATE: u64 = 400_000;
const LIMIT: [&str; 2] = ["--limit", "send/stream=400kB/s"];

/// Its burst: the default of 20 ms.
const BURST: u64 = 8_000;

const POLITE: usize = 40;
const ROUNDS: usize = 10;
const SMALL: usize = 1000;
const BIG: usize = 8 << 20;

/// How a server is asked.
#[derive(Clone, Copy)]
enum Protocol {
    Http(&'static str, &'static str),
    Redis,
}

impl Protocol {
    fn question(self, is_greedy: bool) -> String {
        match self {
            Self::Http(small, big) => {
                let path = if is_greedy { big } else { small };
                format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n")
            }
            Self::Redis if is_greedy => "*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n".to_owned(),
            Self::Redis => "*2\r\n$3\r\nGET\r\n$5\r\nsmall\r\n".to_owned(),
        }
    }

    /// Where the head of an answer ends.
    const fn end(self) -> &'static [u8] {
        match self {
            Self::Http(..) => b"\r\n\r\n",
            Self::Redis => b"\r\n",
        }
    }

    /// Bytes behind the value.
    const fn behind(self) -> usize {
        match self {
            Self::Http(..) => 0,
            Self::Redis => 2,
        }
    }
}

struct Server {
    child: Child,
    name: String,
    port: Port,
}

impl Drop for Server {
    fn drop(&mut self) {
        // `bonsai run` passes it on, and waits for the end.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn start(
    bonsai: &Bonsai,
    options: &[&str],
    program: &Path,
    args: impl FnOnce(u16) -> Vec<String>,
) -> Server {
    let port = Port::free();
    let (name, mut command) = bonsai.run(options, program, &args(port.number()));
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::null()).spawn().expect("it starts");
    let server = Server { child, name, port };
    let began = Instant::now();
    while TcpStream::connect(server.port.address()).is_err() {
        assert!(
            began.elapsed() < PATIENCE,
            "no server at {port:?}",
            port = server.port
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    server
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let patience = Some(PATIENCE);
    stream.set_read_timeout(patience).expect("a time limit");
    stream
}

/// Asks once and reads the answer, whose value is of `x` alone.
fn ask(stream: &mut TcpStream, protocol: Protocol, len: usize) {
    let question = protocol.question(false);
    stream
        .write_all(question.as_bytes())
        .expect("it can be asked");
    let mut head = Vec::new();
    while !head.ends_with(protocol.end()) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let mut value = vec![0; len + protocol.behind()];
    stream.read_exact(&mut value).expect("an answer");
    assert!(value[..len].iter().all(|byte| *byte == b'x'));
}

/// While a greedy connection takes what it gets, all others are answered. Whoever is held up by other load may try it again.
fn serves_others(server: &Server, protocol: Protocol) {
    // A server that stood still would make each of them wait for a piece: 10 ms.
    let stalled = Duration::from_millis(10) * u32::try_from(POLITE * ROUNDS).expect("few");
    let times: Vec<Duration> = std::iter::repeat_with(|| time_of_others(server, protocol))
        .take(3)
        .take_while(|took| *took >= stalled)
        .collect();
    assert!(times.len() < 3, "the others took {times:?}");
}

/// How long others wait in all while a greedy connection is held back.
fn time_of_others(server: &Server, protocol: Protocol) -> Duration {
    let (taken, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let greedy = scope.spawn(|| {
            let mut stream = connect(server.port.number());
            let question = protocol.question(true);
            stream
                .write_all(question.as_bytes())
                .expect("it can be asked");
            let from = Instant::now();
            let mut buffer = vec![0; 1 << 16];
            while !over.load(Ordering::Relaxed) {
                let got = stream.read(&mut buffer).expect("bytes");
                assert!(got > 0, "the server ended the greedy connection");
                taken.fetch_add(got as u64, Ordering::Relaxed);
            }
            from.elapsed()
        });
        let ends = Ends(&over);
        // From here on it is held back.
        while taken.load(Ordering::Relaxed) < 4 * BURST {
            assert!(!greedy.is_finished(), "the greedy connection ended");
            std::thread::sleep(Duration::from_millis(2));
        }
        let began = Instant::now();
        let mut others: Vec<TcpStream> =
            (0..POLITE).map(|_| connect(server.port.number())).collect();
        for _ in 0..ROUNDS {
            for stream in &mut others {
                ask(stream, protocol, SMALL);
            }
        }
        let took = began.elapsed();
        drop(ends);
        let greedy_time = greedy.join().expect("no complaint of the greedy one");
        let taken = taken.load(Ordering::Relaxed);
        assert!(taken < BIG as u64, "it was held back until the end");
        #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
        let most = (RATE as f64 * greedy_time.as_secs_f64()) * 1.02 + 2.0 * BURST as f64 + 16384.0;
        #[expect(clippy::cast_precision_loss, reason = "amounts are small")]
        let got = taken as f64;
        assert!(got <= most, "{got} bytes in {greedy_time:?}");
        took
    })
}

fn script(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("bench").join(name).display().to_string()
}

#[test]
fn asyncio_serves_others_beside_a_greedy_connection() {
    let test = "asyncio_serves_others_beside_a_greedy_connection";
    let Some(python) = installed(test, PYTHON) else {
        return;
    };
    let args = |port: u16| vec![script("loop.py"), port.to_string()];
    let server = start(&bonsai(), &LIMIT, &python, args);
    serves_others(&server, Protocol::Http("1000", "8388608"));
}

#[test]
fn node_serves_others_beside_a_greedy_connection() {
    let test = "node_serves_others_beside_a_greedy_connection";
    let Some(node) = installed(test, "/usr/bin/node") else {
        return;
    };
    let args = |port: u16| vec![script("loop.js"), port.to_string()];
    let server = start(&bonsai(), &LIMIT, &node, args);
    serves_others(&server, Protocol::Http("1000", "8388608"));
}

#[test]
fn nginx_serves_others_beside_a_greedy_connection() {
    nginx(
        "nginx_serves_others_beside_a_greedy_connection",
        &bonsai(),
        &LIMIT,
        |_| (),
    );
}

/// What the connection's limit lets go, the group has still to let go.
#[test]
fn nginx_in_a_group_serves_others_beside_a_greedy_connection() {
    let bonsai = bonsai();
    let said = |args: &[&str]| bonsai.command(args).status().expect("it ends").success();
    let create = ["group", "create", "nginx", "--limit", "send=4MB/s"];
    assert!(said(&create));
    let options = [&LIMIT[..], &["--group", "nginx"]].concat();
    nginx(
        "nginx_in_a_group_serves_others_beside_a_greedy_connection",
        &bonsai,
        &options,
        |_| (),
    );
    assert!(said(&["group", "remove", "nginx"]));
}

/// Ends what goes on until then, also where the test fails before.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same of one that runs already, before, within and after.
#[test]
fn nginx_joins_a_group_and_leaves_it_while_it_serves() {
    let bonsai = bonsai();
    let said = |args: &[&str]| bonsai.command(args).status().expect("it ends").success();
    let create = ["group", "create", "nginx-live", "--limit", "send=4MB/s"];
    assert!(said(&create));
    nginx(
        "nginx_joins_a_group_and_leaves_it_while_it_serves",
        &bonsai,
        &LIMIT,
        |server| {
            let protocol = Protocol::Http("small", "big");
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                // Held by the group and by its own limit when the service leaves.
                scope.spawn(|| {
                    let mut stream = connect(server.port.number());
                    while !over.load(Ordering::Relaxed) {
                        ask(&mut stream, protocol, SMALL);
                    }
                });
                let _ends = Ends(&over);
                for _ in 0..3 {
                    assert!(said(&["group", "join", "nginx-live", &server.name]));
                    serves_others(server, protocol);
                    assert!(said(&["group", "leave", &server.name]));
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        },
    );
    assert!(said(&["group", "remove", "nginx-live"]));
}

/// Shows what a server has complained of, where a test fails.
struct Complaints(PathBuf);

impl Drop for Complaints {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = std::fs::read_to_string(&self.0).unwrap_or_default();
            eprintln!("{}: {said}", self.0.display());
        }
    }
}

fn nginx(test: &str, bonsai: &Bonsai, options: &[&str], meanwhile: impl FnOnce(&Server)) {
    let Some(nginx) = installed(test, "/usr/sbin/nginx") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().display().to_string();
    std::fs::write(folder.path().join("small"), vec![b'x'; SMALL]).expect("room");
    std::fs::write(folder.path().join("big"), vec![b'x'; BIG]).expect("room");
    let root = rustix::process::geteuid().is_root();
    let args = |port: u16| {
        let user = if root { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {own}/{name};"))
            .collect();
        // Two workers, which share the listening socket.
        let text = format!(
            "daemon off; {user} worker_processes 2; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}\n\
             server {{ listen 127.0.0.1:{port}; root {own}; }} }}\n"
        );
        let path = folder.path().join("nginx.conf");
        std::fs::write(&path, text).expect("room");
        vec!["-c".to_owned(), path.display().to_string()]
    };
    let _complaints = Complaints(folder.path().join("error.log"));
    let server = start(bonsai, options, &nginx, args);
    meanwhile(&server);
    serves_others(&server, Protocol::Http("small", "big"));
}

#[test]
fn redis_serves_others_beside_a_greedy_connection() {
    let test = "redis_serves_others_beside_a_greedy_connection";
    let Some(redis) = installed(test, "/usr/bin/redis-server") else {
        return;
    };
    let args = |port: u16| {
        let port = port.to_string();
        let words = ["--port", &port, "--bind", "127.0.0.1", "--save", ""];
        let words = words.iter().chain(&["--appendonly", "no"]);
        words.map(|word| (*word).to_owned()).collect()
    };
    let server = start(&bonsai(), &LIMIT, &redis, args);
    let mut stream = connect(server.port.number());
    for (key, len) in [("small", SMALL), ("big", BIG)] {
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len());
        let command = [head.as_bytes(), &vec![b'x'; len], b"\r\n"].concat();
        stream.write_all(&command).expect("it takes it");
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"+OK\r\n");
    }
    serves_others(&server, Protocol::Redis);
}
