//! A flood of datagrams from a tenant that nobody trusts, beside one that is guaranteed something.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bonsai_link::namespace;

use crate::links::machine::{Machine, run, spawned};

/// Datagrams of the protected tenant, and what each carries: with their heads 4.2 Mbit/s.
const DATAGRAMS: u32 = 1_000;
const PAYLOAD: usize = 1_000;
const EVERY: Duration = Duration::from_millis(2);

/// A tenant, or the outside: `name` is the port of the bridge, and this is behind it.
fn connect(machine: &Machine, namespace: &OwnedFd, name: &str, address: &str) {
    // A namespace is named to `ip` by a process in it.
    let mut inside = spawned(namespace, Command::new("sleep").arg("20"));
    let pid = inside.id();
    machine.host(&format!(
        "ip link add {name} type veth peer name eth7 netns {pid}"
    ));
    machine.host(&format!("ip link set {name} master br0 up"));
    run(namespace, &format!("ip addr add {address}/24 dev eth7"));
    run(namespace, "ip link set eth7 up");
    inside.kill().expect("ended");
    inside.wait().expect("ended");
}

fn udp(namespace: &OwnedFd, address: &str) -> UdpSocket {
    let socket = namespace::inside(namespace.as_fd(), || UdpSocket::bind(address));
    let socket = socket.expect("entered").expect("bound");
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("set");
    socket
}

/// Waits until something comes from one to the other: a bridge learns first who is where.
fn greet(from: &UdpSocket, to: &UdpSocket) {
    let target = to.local_addr().expect("an address");
    let came = (0..60).any(|_| {
        let _ = from.send_to(b"hello", target);
        to.recv(&mut [0; 64]).is_ok()
    });
    assert!(came, "{target} is not reached");
    while to.recv(&mut [0; 64]).is_ok() {}
}

/// Sends what is numbered beside the flood: how many of them came, and how many the flood was.
fn beside_a_flood(protected: [&UdpSocket; 2], flood: [&UdpSocket; 2]) -> (u32, u64) {
    let (stop, flooded) = (AtomicBool::new(false), AtomicU64::new(0));
    let sent = AtomicBool::new(false);
    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            let target = flood[1].local_addr().expect("an address");
            while !stop.load(Ordering::Relaxed) {
                // What does not fit is lost.
                let _ = flood[0].send_to(&[0; 1_400], target);
                flooded.fetch_add(1, Ordering::Relaxed);
            }
        });
        let receiver = scope.spawn(|| {
            let mut seen = vec![false; DATAGRAMS as usize];
            let mut datagram = [0; 2_048];
            loop {
                // All that waits is read after the last was sent, however late.
                let last = sent.load(Ordering::Acquire);
                let came = protected[1].recv(&mut datagram);
                match (came, datagram.first_chunk::<4>()) {
                    (Ok(PAYLOAD), Some(number)) => {
                        seen[u32::from_le_bytes(*number) as usize] = true;
                    }
                    (Err(_), _) if last => break,
                    _ => {}
                }
            }
            seen.iter().filter(|seen| **seen).count()
        });
        while flooded.load(Ordering::Relaxed) < 10_000 {
            std::thread::sleep(EVERY);
        }
        let target = protected[1].local_addr().expect("an address");
        let mut datagram = [0; PAYLOAD];
        for number in 0..DATAGRAMS {
            datagram[..4].copy_from_slice(&number.to_le_bytes());
            protected[0].send_to(&datagram, target).expect("sent");
            // What was late is not made up for: nobody is guaranteed more than its rate at once.
            std::thread::sleep(EVERY);
        }
        sent.store(true, Ordering::Release);
        let received = receiver.join().expect("received");
        stop.store(true, Ordering::Relaxed);
        received
    });
    let received = u32::try_from(received).expect("no more than were sent");
    (received, flooded.into_inner())
}

#[test]
fn a_flood_of_datagrams_takes_nothing_from_a_guaranteed_tenant() {
    let test = "a_flood_of_datagrams_takes_nothing_from_a_guaranteed_tenant";
    let Some(machine) = Machine::new(test, "") else {
        return;
    };
    machine.host("ip link add br0 type bridge");
    machine.host("ip link set br0 up");
    let [noisy, outside] = [(), ()].map(|()| namespace::make().expect("a namespace"));
    connect(&machine, &machine.guest, "quiet", "10.9.0.1");
    connect(&machine, &noisy, "noisy", "10.9.0.2");
    connect(&machine, &outside, "line", "10.9.0.9");
    let protected = [
        &udp(&machine.guest, "10.9.0.1:0"),
        &udp(&outside, "10.9.0.9:7001"),
    ];
    let flood = [&udp(&noisy, "10.9.0.2:0"), &udp(&outside, "10.9.0.9:7002")];
    greet(protected[0], protected[1]);
    greet(flood[0], flood[1]);
    let works = |line: &str| {
        let args: Vec<&str> = line.split_whitespace().collect();
        let said = machine.say(&args);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
    };

    // Both in one queue of an uplink: the flood leaves little of the other.
    works("link set line tx=20Mbit/s");
    let (received, flooded) = beside_a_flood(protected, flood);
    eprintln!("{test}: {received} of {DATAGRAMS} beside {flooded} without a guarantee");
    assert!(received < DATAGRAMS, "the flood is none");

    works("link set quiet guarantee=6Mbit/s uplink=line");
    works("link set noisy weight=1 uplink=line");
    let (received, flooded) = beside_a_flood(protected, flood);
    eprintln!("{test}: {received} of {DATAGRAMS} beside {flooded} with one");
    assert_eq!(received, DATAGRAMS, "beside {flooded} of the flood");

    // Limited at its own interface, too, so that it does not even reach the uplink.
    works("link set noisy rx=2Mbit/s");
    let (received, flooded) = beside_a_flood(protected, flood);
    assert_eq!(received, DATAGRAMS, "beside {flooded} of the flood");
    assert!(
        machine.link("noisy").drops > 0,
        "{flooded} and none dropped"
    );
}
