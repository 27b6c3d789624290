//! A limit is reached, and never exceeded, whatever sends: each congestion control of the kernel, from the host itself,
//! through it, and by what an interface receives.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bonsai_link::{Terms, Wanted};
use rustix::net::sockopt::set_tcp_congestion;

use crate::room::{Room, connect, listen, skip};

const MBIT: u64 = 125_000;
/// Payload that a limit lets through in a second is sent. What is measured in the script `scripts/link-senders.sh` takes
/// longer; here a limit of which less than a twelfth is reached is found, and one that is exceeded.
const SECONDS: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(12);

#[derive(Clone, Copy, Debug)]
enum Way {
    /// The host sends it.
    Local,
    /// A guest sends it to another one, and the way out to that is limited.
    Forwarded,
    /// A guest sends it, and what comes in of it is limited.
    Received,
}

#[test]
fn each_congestion_control_reaches_a_limit_and_never_exceeds_it() {
    let name = "each_congestion_control_reaches_a_limit";
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let known = known.unwrap_or_default();
    let mut controls = Vec::new();
    for control in ["bbr", "cubic", "reno"] {
        match known.split_whitespace().any(|one| one == control) {
            true => controls.push(control),
            false => skip(name, &format!("this kernel has no {control}")),
        }
    }
    // Each in a room of its own: they do not share a limit.
    std::thread::scope(|scope| {
        for way in [Way::Local, Way::Forwarded, Way::Received] {
            let controls = &controls;
            scope.spawn(move || reaches(name, way, controls));
        }
    });
}

fn reaches(name: &str, way: Way, controls: &[&str]) {
    let Some(room) = Room::new(name, 2) else {
        return;
    };
    room.host("ip addr add 10.9.0.200/24 dev br0");
    let (from, to, address): (&OwnedFd, &OwnedFd, &str) = match way {
        Way::Local => (&room.host, &room.guests[0], "10.9.0.1"),
        Way::Forwarded => (&room.guests[1], &room.guests[0], "10.9.0.1"),
        Way::Received => (&room.guests[0], &room.guests[1], "10.9.0.2"),
    };
    let mut site = room.site();
    for mbit in [2, 10, 20] {
        let rate = mbit * MBIT;
        let limit = Some(rate);
        let terms = match way {
            Way::Local | Way::Forwarded => Terms {
                tx: limit,
                ..Terms::default()
            },
            Way::Received => Terms {
                rx: limit,
                ..Terms::default()
            },
        };
        let wants = Wanted {
            links: [(room.index("v1"), terms)].into(),
            ..Wanted::default()
        };
        site.apply(&wants, &[]).expect("applied");
        for control in controls {
            let what = format!("{way:?}, {control}, {mbit} Mbit/s");
            let (bytes, took) = send(from, to, address, control, rate * SECONDS, &what);
            // What it may be ahead, a packet on credit, and what ends the connection before.
            let ahead = rate / 100 + 2 * 1514 + (rate / 200).max(3_044);
            let most = (rate as f64).mul_add(took.as_secs_f64(), ahead as f64);
            assert!(
                bytes as f64 <= most,
                "{what}: {bytes} B in {took:?}, {most:.0} allowed"
            );
        }
    }
}

/// Sends so many bytes of payload: how many came, and the time from before the first to after the last.
fn send(
    from: &OwnedFd,
    to: &OwnedFd,
    address: &str,
    control: &str,
    bytes: u64,
    what: &str,
) -> (u64, Duration) {
    let listener = listen(to, address);
    let mut out = connect(from, listener.local_addr().expect("an address"));
    set_tcp_congestion(&out, control).expect(control);
    let (mut into, _) = listener.accept().expect("accepted");
    into.set_read_timeout(Some(Duration::from_secs(1)))
        .expect("set");
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver says what is wrong.
            let _ = out.write_all(&vec![0; usize::try_from(bytes).expect("a number")]);
        });
        let mut buffer = vec![0; 1 << 16];
        let mut came = 0;
        while came < bytes {
            came += into.read(&mut buffer).unwrap_or(0) as u64;
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: {came} of {bytes} B in {PATIENCE:?}"
            );
        }
        (came, start.elapsed())
    })
}
