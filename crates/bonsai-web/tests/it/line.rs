//! A line to a server that gets worse and better.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A line to a server, as fast as it is told to be, all connections together; until it is cut.
pub(crate) struct Line {
    pub(crate) at: SocketAddr,
    bytes_per_s: Arc<AtomicU64>,
    is_cut: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Line {
    pub(crate) fn to(server: SocketAddr, kbps: f64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        listener.set_nonblocking(true).expect("set");
        let mut line = Self {
            at: listener.local_addr().expect("an address"),
            bytes_per_s: Arc::default(),
            is_cut: Arc::default(),
            thread: None,
        };
        line.set(kbps);
        let (rate, is_cut) = (Arc::clone(&line.bytes_per_s), Arc::clone(&line.is_cut));
        let carry = move || {
            let mut ways = Vec::new();
            let busy = Arc::new(Mutex::new(()));
            while !is_cut.load(Ordering::Relaxed) {
                let Ok((near, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                near.set_nonblocking(false).expect("set");
                let far = TcpStream::connect(server).expect("a connection");
                let both = |from: &TcpStream, to: &TcpStream| {
                    (
                        from.try_clone().expect("a copy"),
                        to.try_clone().expect("a copy"),
                    )
                };
                let (up, down) = (both(&near, &far), both(&far, &near));
                let none = Arc::new(AtomicU64::new(u64::MAX));
                let (all, cut) = (Arc::clone(&busy), Arc::clone(&is_cut));
                let slow = Arc::clone(&rate);
                ways.push((near, far));
                let free = Arc::clone(&cut);
                std::thread::spawn(move || carry(up, &none, &Mutex::default(), &free));
                std::thread::spawn(move || carry(down, &slow, &all, &cut));
            }
            for (near, far) in ways {
                let _ = near.shutdown(Shutdown::Both);
                let _ = far.shutdown(Shutdown::Both);
            }
        };
        line.thread = Some(std::thread::spawn(carry));
        line
    }

    pub(crate) fn set(&self, kbps: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "of a test"
        )]
        let bytes = (kbps * 125.0) as u64;
        self.bytes_per_s.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn cut(&mut self) {
        self.is_cut.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Carries what comes, no faster than it may, and one piece of all connections at a time.
pub(crate) fn carry(
    (mut from, mut to): (TcpStream, TcpStream),
    rate: &AtomicU64,
    all: &Mutex<()>,
    is_cut: &AtomicBool,
) {
    let mut piece = [0; 2048];
    while !is_cut.load(Ordering::Relaxed) {
        let Ok(count @ 1..) = from.read(&mut piece) else {
            break;
        };
        let turn = all.lock();
        let nanos = (count as u64).saturating_mul(1_000_000_000) / rate.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_nanos(nanos));
        drop(turn);
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
