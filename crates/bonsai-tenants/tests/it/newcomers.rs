//! Groups of processes that come and go while their limits are kept.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bonsai_api::{Link, LinkState};
use bonsai_cgroup::Unified;
use bonsai_link::{Handle, Site, namespace};
use bonsai_tenants::{Keeper, Round, Wish, look_since, wishes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

use crate::support::skip;

const MBIT: u64 = 125_000;
/// The class of what is in no class of its own.
const OTHERS: Handle = Handle::of(0xb05a, 2);

/// A machine whose uplink `out` leads to an outside, and a part of the hierarchy of version 2. Both
/// go with it.
struct Place {
    host: OwnedFd,
    outside: OwnedFd,
    unified: Unified,
    /// The path of the part.
    slice: String,
    run: TempDir,
}

impl Place {
    fn new(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            skip(test, "making network namespaces needs root");
            return None;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            skip(test, "iproute2 is not installed");
            return None;
        }
        let unified = match Unified::find() {
            Ok(unified) => unified,
            Err(error) => {
                skip(test, &error.to_string());
                return None;
            }
        };
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let slice = format!("/bonsai-test.{pid}.{next}");
        if let Err(error) = fs::create_dir(unified.folder(&slice)) {
            skip(test, &format!("no control group can be made: {error}"));
            return None;
        }
        let make = || namespace::make().expect("a namespace");
        let place = Self {
            host: make(),
            outside: make(),
            unified,
            slice,
            run: TempDir::new().expect("a folder"),
        };
        let mut inside = Command::new("sleep");
        let inside = Ends(place.start(&place.outside, inside.arg("20")));
        let other = inside.0.id();
        place.ip(
            &place.host,
            &format!("link add out type veth peer name eth0 netns {other}"),
        );
        for (of, device, address) in [(&place.host, "out", 1), (&place.outside, "eth0", 100)] {
            place.ip(of, &format!("addr add 10.9.0.{address}/24 dev {device}"));
            place.ip(of, &format!("link set {device} up"));
        }
        Some(place)
    }

    fn ip(&self, namespace: &OwnedFd, line: &str) {
        let output = namespace::inside(namespace.as_fd(), || {
            Command::new("ip").args(line.split(' ')).output()
        });
        let output = output.expect("entered").expect("ip");
        assert!(output.status.success(), "ip {line}: {output:?}");
    }

    fn start(&self, namespace: &OwnedFd, command: &mut Command) -> Child {
        let child = namespace::inside(namespace.as_fd(), || command.spawn());
        child.expect("entered").expect("started")
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.unified.folder(&format!("{}/{name}", self.slice))
    }

    fn make(&self, name: &str) {
        fs::create_dir(self.folder(name)).expect("made");
    }

    /// Ends what is in a group, and removes it.
    fn remove(&self, name: &str) {
        let folder = self.folder(name);
        let _ = fs::write(folder.join("cgroup.kill"), "1");
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&folder).is_err() && folder.exists() {
            assert!(Instant::now() < end, "{} stays", folder.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts a shell in a group that sends datagrams to the outside without end.
    fn flood(&self, name: &str, port: u16) -> Ends {
        let script = format!(
            "echo 0 > \"$0/cgroup.procs\"; exec 3> /dev/udp/10.9.0.100/{port}; \
             while :; do printf %01400d 0 >&3; done"
        );
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).arg(self.folder(name));
        Ends(self.start(&self.host, shell.stderr(Stdio::null())))
    }

    /// A socket outside, to which something has come already.
    fn receiver(&self, port: u16) -> UdpSocket {
        let bound = |namespace: &OwnedFd, address: String| {
            let socket = namespace::inside(namespace.as_fd(), || UdpSocket::bind(address));
            socket.expect("entered").expect("bound")
        };
        let socket = bound(&self.outside, format!("10.9.0.100:{port}"));
        let from = bound(&self.host, "10.9.0.1:0".into());
        let wait = Duration::from_millis(20);
        socket.set_read_timeout(Some(wait)).expect("set");
        let target = socket.local_addr().expect("an address");
        let mut buffer = [0; 2048];
        let came = (0..1000).any(|_| {
            let _ = from.send_to(b"hello", target);
            socket.recv(&mut buffer).is_ok()
        });
        assert!(came, "{target} is not reached in 20 s");
        while socket.recv(&mut buffer).is_ok() {}
        socket
    }

    /// What has left by `out` in a class, bytes at layer 2.
    fn sent(&self, class: Handle) -> u64 {
        let mut site = Site::open(Some(self.host.as_fd())).expect("a site");
        let links = site.links().expect("links");
        let out = bonsai_link::named(&links, "out").expect("out").index;
        let mut bytes = 0;
        site.classes(out, |of| {
            if let Some(of) = of.filter(|of| of.handle == class) {
                bytes = of.counters.bytes;
            }
        })
        .expect("classes");
        bytes
    }

    /// What is wanted of `out`, and of groups of the part.
    fn wishes(&self, groups: &[(&str, serde_json::Value)]) -> BTreeMap<String, Wish> {
        let mut links = serde_json::json!({"out": {"tx": "400Mbit/s"}});
        for (name, link) in groups {
            let mut link = link.clone();
            link["uplink"] = "out".into();
            links[format!("cgroup:{}/{name}", self.slice)] = link;
        }
        let links: BTreeMap<String, Link> = serde_json::from_value(links).expect("the form");
        wishes(&links).expect("fine")
    }

    /// A round on the machine.
    fn round(&self, keeper: &mut Keeper, wishes: &BTreeMap<String, Wish>) -> Round {
        let round = namespace::inside(self.host.as_fd(), || keeper.round(wishes, Instant::now()));
        let round = round.expect("entered").expect("a round");
        assert_eq!(round.problems, [""; 0]);
        round
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.run.path().to_owned())
    }

    fn state(&self, round: &Round, name: &str) -> LinkState {
        round.granted[&format!("cgroup:{}/{name}", self.slice)].state
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let folder = self.unified.folder(&self.slice);
        let _ = fs::write(folder.join("cgroup.kill"), "1");
        for _ in 0..200 {
            let mut find = Command::new("find");
            find.arg(&folder)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
            let _ = find.stderr(Stdio::null()).status();
            if !folder.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Ends what was started, also where a test fails.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Enters newcomers until it is told to end.
fn keep(keeper: &mut Keeper, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let ears = keeper.ears().expect("groups are limited");
        let timeout = Timespec::try_from(Duration::from_millis(50)).ok();
        let _ = poll(&mut [PollFd::new(&ears, PollFlags::IN)], timeout.as_ref());
        keeper.newcomers();
    }
}

/// Bytes at layer 2 that come to a socket until `end`, and how long that took.
fn came(socket: &UdpSocket, end: Instant) -> (u64, f64) {
    let start = Instant::now();
    let mut buffer = [0; 2048];
    let mut bytes = 0;
    while Instant::now() < end {
        if let Ok(length) = socket.recv(&mut buffer) {
            // Ethernet, IPv4, UDP.
            bytes += length as u64 + 14 + 20 + 8;
        }
    }
    (bytes, start.elapsed().as_secs_f64())
}

#[test]
fn a_service_that_restarts_without_end_never_sends_without_its_limit() {
    let Some(place) = Place::new("a_service_that_restarts_without_end") else {
        return;
    };
    const LIMIT: u64 = 4 * MBIT;
    let wishes = place.wishes(&[("db", serde_json::json!({"tx": "4Mbit/s"}))]);
    let mut keeper = place.keeper();
    let round = place.round(&mut keeper, &wishes);
    assert_eq!(place.state(&round, "db"), LinkState::Waiting);
    let socket = place.receiver(9001);
    let before = place.sent(OTHERS);
    let end = Instant::now() + Duration::from_secs(3);
    let ends = AtomicBool::new(false);
    let (restarts, (bytes, seconds)) = std::thread::scope(|scope| {
        let kept = scope.spawn(|| keep(&mut keeper, &ends));
        let counted = scope.spawn(|| came(&socket, end));
        let mut restarts = 0_u64;
        while Instant::now() + Duration::from_millis(100) < end {
            place.make("db");
            let sender = place.flood("db", 9001);
            std::thread::sleep(Duration::from_millis(restarts % 5 * 10));
            drop(sender);
            place.remove("db");
            restarts += 1;
        }
        let counted = counted.join().expect("counted");
        ends.store(true, Ordering::Relaxed);
        kept.join().expect("kept");
        (restarts, counted)
    });
    let escaped = place.sent(OTHERS) - before;
    assert!(escaped < 1000, "{escaped} B in {restarts} restarts escaped");
    // Who borrows is ahead by a packet that is not cut yet.
    let most = LIMIT as f64 * (seconds + 0.002) + 65_564.0 + 2.0 * 1514.0;
    assert!(
        (bytes as f64) <= most,
        "{bytes} B in {seconds} s and {restarts} restarts, {most} allowed"
    );
    assert!(
        restarts > 20 && bytes as f64 > 0.3 * most,
        "{restarts}, {bytes} B"
    );
}

#[test]
fn a_neighbour_of_a_limited_service_is_held_for_a_moment_only() {
    let Some(place) = Place::new("a_neighbour_of_a_limited_service") else {
        return;
    };
    let wishes = place.wishes(&[("db", serde_json::json!({"tx": "1Mbit/s"}))]);
    let mut keeper = place.keeper();
    place.round(&mut keeper, &wishes);
    let socket = place.receiver(9001);
    let ends = AtomicBool::new(false);
    let (bytes, seconds) = std::thread::scope(|scope| {
        let kept = scope.spawn(|| keep(&mut keeper, &ends));
        place.make("other");
        let _sender = place.flood("other", 9001);
        let counted = came(&socket, Instant::now() + Duration::from_secs(1));
        ends.store(true, Ordering::Relaxed);
        kept.join().expect("kept");
        counted
    });
    assert_eq!(place.round(&mut keeper, &wishes).steps, 0, "all is known");
    // What its class would have let through, several times.
    let held = (MBIT as f64).mul_add(seconds, 70_000.0);
    assert!(bytes as f64 > 3.0 * held, "{bytes} B in {seconds} s");
}

#[test]
fn a_slice_that_is_made_anew_is_listened_to_at_once() {
    let Some(place) = Place::new("a_slice_that_is_made_anew") else {
        return;
    };
    let wishes = place.wishes(&[("a/b/db", serde_json::json!({"tx": "4Mbit/s"}))]);
    let mut keeper = place.keeper();
    let round = place.round(&mut keeper, &wishes);
    assert_eq!(place.state(&round, "a/b/db"), LinkState::Waiting);
    let socket = place.receiver(9001);
    let before = place.sent(OTHERS);
    let class = round.granted[&format!("cgroup:{}/a/b/db", place.slice)].class;
    let (_, _, class) = class.expect("it has a class");
    let ends = AtomicBool::new(false);
    let mut neighbour = 0;
    std::thread::scope(|scope| {
        let kept = scope.spawn(|| keep(&mut keeper, &ends));
        for _ in 0..10 {
            for name in ["a", "a/b", "a/b/db"] {
                place.make(name);
            }
            let sender = place.flood("a/b/db", 9001);
            std::thread::sleep(Duration::from_millis(30));
            drop(sender);
            for name in ["a/b/db", "a/b", "a"] {
                place.remove(name);
            }
        }
        // And whoever else comes there is let go.
        for name in ["a", "a/x"] {
            place.make(name);
        }
        let escaped = place.sent(OTHERS) - before;
        assert!(escaped < 1000, "{escaped} B escaped");
        assert!(place.sent(class) > 10_000, "nothing was tried");
        let sender = place.flood("a/x", 9001);
        neighbour += came(&socket, Instant::now() + Duration::from_millis(500)).0;
        drop(sender);
        ends.store(true, Ordering::Relaxed);
        kept.join().expect("kept");
    });
    assert!(neighbour > 1_000_000, "{neighbour} B of a neighbour");
    assert_eq!(place.round(&mut keeper, &wishes).steps, 0, "all is known");
}

#[test]
fn whoever_comes_after_a_crash_takes_over_and_gives_back_what_was_there() {
    let Some(place) = Place::new("whoever_comes_after_a_crash") else {
        return;
    };
    let trace = || {
        let output = namespace::inside(place.host.as_fd(), || {
            Command::new("tc").args(["qdisc", "show"]).output()
        });
        output.expect("entered").expect("tc").stdout
    };
    let before = trace();
    place.make("db");
    place.make("web");
    let wishes = place.wishes(&[
        (
            "db",
            serde_json::json!({"guarantee": "10Mbit/s", "tx": "50Mbit/s"}),
        ),
        (
            "web",
            serde_json::json!({"ceiling": "5Mbit/s", "weight": 3}),
        ),
        ("late", serde_json::json!({"tx": "6Mbit/s"})),
    ]);
    let mut first = place.keeper();
    let round = place.round(&mut first, &wishes);
    assert!(round.steps > 0);
    assert_eq!(place.state(&round, "db"), LinkState::InForce);
    assert_eq!(place.state(&round, "late"), LinkState::Waiting);
    let classes = |round: &Round| {
        let granted = round.granted.iter();
        let classes = granted.map(|(name, one)| (name.clone(), one.class));
        classes.collect::<BTreeMap<_, _>>()
    };
    let had = classes(&round);
    assert_eq!(place.round(&mut first, &wishes).steps, 0, "nothing to do");
    drop(first);
    // Nobody is there while one comes and one restarts.
    place.make("late");
    place.remove("web");
    place.make("web");

    let mut second = place.keeper();
    let round = place.round(&mut second, &wishes);
    assert_eq!(place.state(&round, "late"), LinkState::InForce);
    assert_eq!(classes(&round), had, "classes stay");
    assert_eq!(
        (round.repairs, place.round(&mut second, &wishes).steps),
        (0, 0)
    );
    let links = namespace::inside(place.host.as_fd(), || {
        look_since(place.run.path(), None).expect("seen").0.links
    });
    let links = links.expect("entered");
    let group = |name: &str| {
        let target = format!("cgroup:{}/{name}", place.slice);
        let found = links
            .iter()
            .find(|link| link.target.as_deref() == Some(&target));
        found.expect("it is listed")
    };
    let share = group("db").share.as_ref().expect("a share");
    assert_eq!(
        (share.uplink.as_str(), share.ceiling),
        ("out", Some(50 * MBIT))
    );
    assert_eq!(group("db").tx_limit, Some(50 * MBIT));
    assert_eq!(group("late").state, LinkState::InForce);
    assert_eq!(
        (group("web").problem.as_deref(), group("web").up),
        (None, true)
    );

    // One is given up, then all.
    let some = place.wishes(&[("db", serde_json::json!({"tx": "50Mbit/s"}))]);
    let round = place.round(&mut second, &some);
    assert!(round.steps > 0 && round.granted.len() == 2);
    place.round(&mut second, &BTreeMap::new());
    assert_eq!(trace(), before);
    assert!(second.ears().is_none());
}

#[test]
fn what_somebody_undoes_is_put_right_and_slips_are_said() {
    let Some(place) = Place::new("what_somebody_undoes") else {
        return;
    };
    place.make("db");
    let mut wishes = place.wishes(&[("db", serde_json::json!({"tx": "5Mbit/s"}))]);
    let mut keeper = place.keeper();
    place.round(&mut keeper, &wishes);
    place.round(&mut keeper, &wishes);
    for line in [
        "filter del dev out egress",
        "class change dev out classid b05a:fffe parent b05a:1 htb rate 1mbit ceil 2mbit",
        "qdisc del dev out clsact",
        "qdisc del dev out root",
    ] {
        let output = namespace::inside(place.host.as_fd(), || {
            Command::new("tc").args(line.split(' ')).output()
        });
        assert!(
            output.expect("entered").expect("tc").status.success(),
            "{line}"
        );
        let round = place.round(&mut keeper, &wishes);
        assert!(round.repairs == 1 && round.steps > 0, "{line}: {round:?}");
        assert_eq!(place.state(&round, "db"), LinkState::InForce);
        let round = place.round(&mut keeper, &wishes);
        assert_eq!(round.steps, 0, "{line}");
    }
    // Two names of one group, and a unit where there is no systemd.
    let link: Link = serde_json::from_value(serde_json::json!({"tx": "1Mbit/s", "uplink": "out"}))
        .expect("the form");
    let twice = format!("cgroup:/sys/fs/cgroup/../..{}", place.slice);
    Wish::read(&twice, &link).expect_err("no path");
    let mount = place.unified.folder("");
    let twice = format!(
        "cgroup:{}{}/db",
        mount.display().to_string().trim_end_matches('/'),
        place.slice
    );
    wishes.insert(twice.clone(), Wish::read(&twice, &link).expect("a path"));
    let round = place.round(&mut keeper, &wishes);
    let states: Vec<LinkState> = round.granted.values().map(|one| one.state).collect();
    assert!(states.contains(&LinkState::Problem), "{round:?}");
    let why = round.granted.values().find_map(|one| one.why.as_ref());
    assert!(
        why.is_some_and(|why| why.contains("the same group as")),
        "{why:?}"
    );
}
