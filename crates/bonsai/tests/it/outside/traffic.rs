//! Datagrams from one network namespace to another, counted where they arrive.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use bonsai_link::namespace;

use crate::links::machine::{run, spawned};

/// Bytes of a datagram.
const PAYLOAD: usize = 1200;

/// What is around it at layer 2: Ethernet, IPv4, UDP.
const HEAD: u64 = 14 + 20 + 8;

/// Gives an interface an address, and puts it up.
pub(super) fn addresses(namespace: &OwnedFd, interface: &str, address: &str) {
    run(namespace, &format!("ip addr add {address} dev {interface}"));
    run(namespace, &format!("ip link set {interface} up"));
}

/// Makes a pair with one end in each of two namespaces.
pub(super) fn pair(here: &OwnedFd, there: &OwnedFd, name: &str, other: &str) {
    // A namespace is named to `ip` by a process in it.
    let mut inside = std::process::Command::new("sleep");
    let mut inside = spawned(there, inside.arg("20"));
    let id = inside.id();
    run(
        here,
        &format!("ip link add {name} type veth peer name {other} netns {id}"),
    );
    inside.kill().expect("ended");
    inside.wait().expect("ended");
}

/// Lets a namespace pass on what is for others.
pub(super) fn forward(namespace: &OwnedFd) {
    let write = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
    let written = namespace::inside(namespace.as_fd(), write);
    written.expect("entered").expect("written");
}

fn bound(namespace: &OwnedFd, address: &str) -> UdpSocket {
    let socket = namespace::inside(namespace.as_fd(), || UdpSocket::bind(address));
    socket.expect("entered").expect("bound")
}

/// A sender that never waits for anybody, and who counts what arrives.
pub(super) struct Flow {
    arrived: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Flow {
    /// Counts what arrives at an address in `there`.
    pub(super) fn arriving(there: &OwnedFd, address: &str) -> Self {
        let receiver = bound(there, address);
        let patience = Duration::from_millis(50);
        receiver.set_read_timeout(Some(patience)).expect("set");
        let mut flow = Self {
            arrived: Arc::default(),
            ends: Arc::default(),
            threads: Vec::new(),
        };
        let (arrived, ends) = (Arc::clone(&flow.arrived), Arc::clone(&flow.ends));
        flow.threads.push(spawn(move || {
            let mut datagram = [0; 2048];
            while !ends.load(Ordering::Relaxed) {
                if let Ok(length) = receiver.recv(&mut datagram) {
                    arrived.fetch_add(length as u64 + HEAD, Ordering::Relaxed);
                }
            }
        }));
        flow
    }

    /// Sends `rate` bytes per second of layer 2 to an address in `there`.
    pub(super) fn start(here: &OwnedFd, there: &OwnedFd, address: &str, rate: f64) -> Self {
        let mut flow = Self::arriving(there, address);
        let sender = bound(here, "0.0.0.0:0");
        sender.connect(address).expect("connected");
        let ends = Arc::clone(&flow.ends);
        flow.threads.push(spawn(move || {
            let pause = Duration::from_secs_f64((PAYLOAD as f64 + HEAD as f64) / rate);
            let mut due = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                // What a queue has no room for is dropped there.
                let _ = sender.send(&[0; PAYLOAD]);
                let now = Instant::now();
                due = (due + pause).max(now.checked_sub(Duration::from_millis(20)).unwrap_or(now));
                // A nap that is shorter than the clock's steps is none.
                if due > now + Duration::from_millis(1) {
                    sleep(due - now);
                }
            }
        }));
        flow
    }

    /// Bytes of layer 2 that arrived.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
