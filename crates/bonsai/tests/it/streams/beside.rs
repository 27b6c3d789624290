//! Both ways of `bonsai serve` under one limit.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Served, film, number, tracks, watch};
use crate::support::Place;

/// Takes the film over HTTP, again and again, until it is to stop; bytes of it.
fn downloads(at: SocketAddr, stop: &AtomicBool) -> u64 {
    let mut came = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(at) else {
            continue;
        };
        let request = format!("GET /film.mp4 HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("a limit");
        let mut buffer = vec![0; 64 << 10];
        while !stop.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(bytes) => came += bytes as u64,
                // It waits for its turn.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
    came
}

/// Ends what waits for it, also where a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn files_take_what_streams_leave_of_one_limit() {
    const TEST: &str = "files_take_what_streams_leave_of_one_limit";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rate) = film(TEST, folder.path(), 10) else {
        return;
    };
    let limits = [format!("send={}B/s:burst=20ms", rate * 8)];
    // Nothing is left out: that streams cannot have what they need is seen by how late they are.
    let options = ["--http", ":0", "--behind", "wait"];
    let began = Instant::now();
    let served = Served::within(&place, folder.path(), &limits, &options);
    let at = served.http.expect("an address");
    let stop = AtomicBool::new(false);
    let (viewers, bytes) = std::thread::scope(|scope| {
        let greedy = [0; 4].map(|_| scope.spawn(|| downloads(at, &stop)));
        let ends = Ends(&stop);
        let viewers = watch(&place, &served.url, "4", &["--for", "8s"]);
        drop(ends);
        let bytes = greedy.map(|of| of.join().expect("ended"));
        (viewers, bytes.iter().sum::<u64>())
    });
    let most = began.elapsed().as_secs_f64() * rate as f64 * 8.0;
    served.end();
    assert!(bytes > 0 && (bytes as f64) < most, "{bytes} of {most}");
    assert_eq!(viewers.len(), 4);
    for viewer in &viewers {
        assert_eq!(viewer["failure"], Value::Null, "{viewer:#}");
        for track in tracks(viewer) {
            assert_eq!(track["stream"]["lost"], 0, "{track:#}");
            // Beside downloads that take as much as they can, half of the film would not have come.
            let lag_s = number(&track["stream"]["lag_max_ns"]) / 1e9;
            assert!(lag_s < 4.0, "{track:#}");
        }
    }
}
