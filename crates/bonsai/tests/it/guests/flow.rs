//! A connection that a guest makes, and all that goes through it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bonsai_link::namespace;
use rustix::net::sockopt;

/// Bytes that may wait in a socket, of which the kernel takes twice as many: acknowledgements wait behind
/// what the guest sends, for a third of a second at 2 Mbit/s.
const BUFFER: usize = 256 << 10;

/// Bytes of a flow that may be counted late, in the sockets of both ends.
pub(super) const UNCOUNTED: f64 = 4.0 * BUFFER as f64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the guest.
    Up,
    /// To the guest.
    Down,
}

#[derive(Debug, Default)]
struct State {
    bytes: AtomicU64,
    ended: OnceLock<String>,
    stop: AtomicBool,
}

/// One connection, the first that is made, read or written as fast as it goes.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

/// The two connections of a guest.
#[derive(Debug)]
pub(super) struct Flows {
    pub(super) up: Flow,
    pub(super) down: Flow,
}

impl Flows {
    pub(super) fn move_both_ways(&self) -> bool {
        self.up.bytes() > 0 && self.down.bytes() > 0
    }

    /// They are the connections that were made at first.
    pub(super) fn have_survived(&self) -> bool {
        self.ends() == [None; 2]
    }

    /// How what the guest sends and what it receives came to an end.
    pub(super) fn ends(&self) -> [Option<&str>; 2] {
        [&self.up, &self.down].map(|flow| flow.state.ended.get().map(String::as_str))
    }
}

impl Flow {
    /// Listens in a namespace; port 0 is one that is free.
    pub(super) fn new(namespace: &OwnedFd, address: (&str, u16), way: Way) -> Self {
        let bound = namespace::inside(namespace.as_fd(), || TcpListener::bind(address));
        let listener = bound.expect("entered").expect("bound");
        // What is accepted has them, too.
        sockopt::set_socket_recv_buffer_size(&listener, BUFFER).expect("set");
        sockopt::set_socket_send_buffer_size(&listener, BUFFER).expect("set");
        listener.set_nonblocking(true).expect("set");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(State::default());
        let of_thread = state.clone();
        let thread = std::thread::spawn(move || {
            if let Some(stream) = accepted(&listener, &of_thread) {
                let end = run(stream, way, &of_thread);
                let _ = of_thread.ended.set(end);
            }
        });
        Self {
            address,
            state,
            thread: Some(thread),
        }
    }

    /// What has gone through it, bytes of payload.
    pub(super) fn bytes(&self) -> u64 {
        self.state.bytes.load(Ordering::Acquire)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accepted(listener: &TcpListener, state: &State) -> Option<TcpStream> {
    while !state.stop.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    }
    None
}

/// Moves what goes until the connection ends; says how it did.
fn run(mut stream: TcpStream, way: Way, state: &State) -> String {
    let often = Some(Duration::from_millis(100));
    stream.set_nonblocking(false).expect("set");
    stream.set_read_timeout(often).expect("set");
    stream.set_write_timeout(often).expect("set");
    let mut piece = vec![0; 16 << 10];
    while !state.stop.load(Ordering::Acquire) {
        let moved = match way {
            Way::Up => stream.read(&mut piece),
            Way::Down => stream.write(&piece),
        };
        match moved {
            Ok(0) => return "the guest has closed it".into(),
            Ok(bytes) => {
                state.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
            }
            // With a time limit, calls on a socket are interrupted by a stop of the process, too (signal(7)).
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return error.to_string(),
        }
    }
    "it was ended here".into()
}
