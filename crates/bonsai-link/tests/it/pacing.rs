//! Connections of a process that runs.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_link::Paced;

/// Sends on two connections as fast as it goes; a third stays silent.
const SENDER: &str = "
import socket, sys, threading
port = int(sys.argv[1])
silent = socket.create_connection(('127.0.0.1', port))
def send():
    s = socket.create_connection(('127.0.0.1', port))
    while True: s.sendall(b'x' * 65536)
for _ in range(2): threading.Thread(target=send, daemon=True).start()
threading.Event().wait()
";

struct Sender(Child);

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_that_runs_sends_no_more_than_its_rate_and_is_let_go() {
    const RATE: u64 = 5_000_000;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let child = Command::new("python3")
        .args(["-c", SENDER, &port.to_string()])
        .stdin(Stdio::null())
        .spawn();
    let sender = Sender(child.expect("python3"));
    let count = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().expect("a connection");
            let count = &count;
            scope.spawn(move || {
                let mut buffer = [0; 65536];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    count.fetch_add(length as u64, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        let moved = || count.load(std::sync::atomic::Ordering::Relaxed);
        let mut paced = Paced::new(sender.0.id()).expect("a process");
        let mut active = 0;
        for _ in 0..20 {
            active = paced.turn(RATE).expect("a turn").active;
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(active, 2, "two of three connections move");
        let (start, before) = (Instant::now(), moved());
        while start.elapsed() < Duration::from_secs(2) {
            let turn = paced.turn(RATE).expect("a turn");
            assert_eq!(turn.connections, 3);
            std::thread::sleep(Duration::from_millis(50));
        }
        let (bytes, took) = (moved() - before, start.elapsed().as_secs_f64());
        let rate = bytes as f64 / took;
        // What was in the queues before is 200 ms at most.
        assert!(rate < RATE as f64 * 1.1, "{rate} B/s");
        assert!(rate > RATE as f64 * 0.5, "{rate} B/s");
        drop(paced);
        let (start, before) = (Instant::now(), moved());
        while moved() - before < 10 * RATE && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let rate = (moved() - before) as f64 / start.elapsed().as_secs_f64();
        assert!(rate > 4.0 * RATE as f64, "{rate} B/s when it is let go");
        drop(sender);
    });
}

#[test]
fn a_process_that_is_not_there_is_said() {
    let error = Paced::new(4_194_304).expect_err("beyond the last");
    assert_eq!(error.to_string(), "there is no process 4194304");
    let error = Paced::new(0).expect_err("none");
    assert_eq!(error.to_string(), "0 is no process ID");
}
