//! Groups of processes have a class of their uplink, and no way past it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bonsai_link::{Above, Group, Handle, Share, Terms, Wanted, groups, namespace};

use crate::room::{Room, greet, skip, udp};

const MBIT: u64 = 125_000;
/// Ethernet, IPv4, UDP.
const HEADS: u64 = 14 + 20 + 8;

/// A part of the hierarchy of version 2 for a test. It is removed at the end, and what is in it ended.
struct Slice {
    mount: PathBuf,
    path: String,
}

impl Slice {
    fn new(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
        let mount = mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let place = before.split(' ').nth(4)?;
            after.starts_with("cgroup2 ").then(|| PathBuf::from(place))
        });
        let Some(mount) = mount else {
            skip(test, "no hierarchy of version 2 is mounted");
            return None;
        };
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let slice = Self {
            mount,
            path: format!("/bonsai-test.{pid}.{next}"),
        };
        if let Err(error) = fs::create_dir(slice.folder("")) {
            skip(test, &format!("no control group can be made: {error}"));
            return None;
        }
        Some(slice)
    }

    fn path(&self, name: &str) -> String {
        groups::join(&self.path, name)
    }

    fn folder(&self, name: &str) -> PathBuf {
        let path = match name {
            "" => self.path.clone(),
            name => self.path(name),
        };
        self.mount.join(path.trim_start_matches('/'))
    }

    fn make(&self, name: &str) -> u64 {
        fs::create_dir(self.folder(name)).expect("made");
        id(&self.folder(name))
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

    /// What there is of groups above those that are limited.
    fn look(&self, wanted: &mut Wanted) {
        let paths: Vec<String> = wanted.above().into_iter().map(str::to_owned).collect();
        wanted.tree.clear();
        for path in paths {
            let folder = self.mount.join(path.trim_start_matches('/'));
            let entries = fs::read_dir(&folder).expect("it is there").flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir()));
            let child = |entry: fs::DirEntry| {
                let name = entry.file_name().into_string().expect("text");
                Some((name, fs::metadata(entry.path()).ok()?.ino()))
            };
            let above = Above {
                id: id(&folder),
                children: folders.filter_map(child).collect(),
            };
            wanted.tree.insert(path, above);
        }
    }

    /// Starts a shell in a group that sends datagrams to the outside without end.
    fn flood(&self, room: &Room, name: &str, port: u16) -> Child {
        let script = format!(
            "echo 0 > \"$0/cgroup.procs\"; exec 3> /dev/udp/10.9.0.100/{port}; \
             while :; do printf %01400d 0 >&3; done"
        );
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).arg(self.folder(name));
        started(&room.host, shell.stderr(Stdio::null()))
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let folder = self.folder("");
        let _ = fs::write(folder.join("cgroup.kill"), "1");
        for _ in 0..200 {
            let mut find = Command::new("find");
            find.arg(&folder).args(["-depth", "-type", "d"]);
            find.args(["-exec", "rmdir", "{}", ";"]);
            let _ = find.stderr(Stdio::null()).status();
            if !folder.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn id(folder: &Path) -> u64 {
    fs::metadata(folder).expect("it is there").ino()
}

fn started(namespace: &OwnedFd, command: &mut Command) -> Child {
    let child = namespace::inside(namespace.as_fd(), || command.spawn());
    child.expect("entered").expect("started")
}

/// Ends what was started, also where a test fails.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A room in which the host sends by itself, through its bridge and `out`.
fn room(test: &str) -> Option<(Room, Slice)> {
    let room = Room::new(test, 0)?;
    room.host("ip addr add 10.9.0.50/24 dev br0");
    room.host("ip link set lo up");
    Some((room, Slice::new(test)?))
}

fn line(room: &Room, rate: u64) -> Wanted {
    let terms = Terms {
        tx: Some(rate),
        ..Terms::default()
    };
    Wanted {
        links: [(room.index("out"), terms)].into(),
        ..Wanted::default()
    }
}

fn group(room: &Room, guarantee: Option<u64>, ceiling: Option<u64>) -> Group {
    Group {
        share: Share {
            uplink: room.index("out"),
            guarantee,
            ceiling,
            weight: 1,
        },
        burst_ns: None,
        class: None,
    }
}

/// Bytes at layer 2 that come to a socket until `end`, and how long that took.
fn came(socket: &UdpSocket, end: Instant) -> (u64, f64) {
    let start = Instant::now();
    let mut buffer = [0; 2048];
    let mut bytes = 0;
    while Instant::now() < end {
        if let Ok(length) = socket.recv(&mut buffer) {
            bytes += length as u64 + HEADS;
        }
    }
    (bytes, start.elapsed().as_secs_f64())
}

fn receiver(room: &Room, port: u16) -> UdpSocket {
    let socket = udp(&room.outside, &format!("10.9.0.100:{port}"));
    greet(&udp(&room.host, "10.9.0.50:0"), &socket);
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("set");
    socket
}

/// What a class may let through in that time: who borrows is ahead by a packet that is not cut yet.
fn allowed(rate: u64, seconds: f64) -> f64 {
    rate as f64 * (seconds + 0.002) + 65_564.0 + 2.0 * 1514.0
}

/// What has left by `out` in the class of a handle.
fn sent(room: &Room, class: Handle) -> u64 {
    let mut bytes = 0;
    room.site()
        .classes(room.index("out"), |of| {
            if let Some(of) = of.filter(|of| of.handle == class) {
                bytes = of.counters.bytes;
            }
        })
        .expect("classes");
    bytes
}

#[test]
fn what_a_group_sends_is_in_its_class_and_what_others_send_is_not() {
    let Some((room, slice)) = room("what_a_group_sends_is_in_its_class") else {
        return;
    };
    let before = room.host("tc qdisc show");
    slice.make("db");
    slice.make("other");
    let mut wanted = line(&room, 400 * MBIT);
    let db = slice.path("db");
    wanted
        .groups
        .insert(db.clone(), group(&room, None, Some(10 * MBIT)));
    slice.look(&mut wanted);
    let mut site = room.site();
    assert!(site.apply(&wanted, &[]).expect("applied").steps > 0);
    assert_eq!(site.apply(&wanted, &[]).expect("again").steps, 0);
    assert_eq!(site.differs(&wanted).expect("seen"), None);
    // Found again by somebody who knows of nothing, after a crash.
    let seen = room.site().see().expect("seen");
    assert_eq!(seen.differs(&wanted).expect("compared"), None);
    assert!(seen.classes_of_groups(&wanted).contains_key(&db));

    let (one, two) = (receiver(&room, 9001), receiver(&room, 9002));
    let _senders = [
        Ends(slice.flood(&room, "db", 9001)),
        Ends(slice.flood(&room, "other", 9002)),
    ];
    std::thread::sleep(Duration::from_millis(200));
    let end = Instant::now() + Duration::from_millis(1500);
    let (limited, free) = std::thread::scope(|scope| {
        let other = scope.spawn(|| came(&two, end));
        (came(&one, end), other.join().expect("counted"))
    });
    let (bytes, seconds) = limited;
    // What had come before it was counted from waits in the receiver, at most as much as it holds.
    let most = allowed(10 * MBIT, seconds + 0.3);
    assert!(
        (bytes as f64) < most,
        "{bytes} B in {seconds} s, {most} allowed"
    );
    assert!(bytes as f64 > 0.5 * most, "{bytes} B in {seconds} s");
    assert!(free.0 as f64 > 3.0 * most, "{free:?} of the other");

    site.apply(&Wanted::default(), &[]).expect("cleared");
    assert_eq!(room.host("tc qdisc show"), before);
}

#[test]
fn a_stream_of_a_group_has_its_rate() {
    let Some((room, slice)) = room("a_stream_of_a_group") else {
        return;
    };
    const LIMIT: u64 = 8 * MBIT;
    slice.make("db");
    let mut wanted = line(&room, 400 * MBIT);
    let limit = group(&room, None, Some(LIMIT));
    wanted.groups.insert(slice.path("db"), limit);
    slice.look(&mut wanted);
    room.site().apply(&wanted, &[]).expect("applied");
    let bound = namespace::inside(room.outside.as_fd(), || {
        TcpListener::bind("10.9.0.100:9003").expect("bound")
    });
    let listener = bound.expect("entered");
    // It is in its group, and begins when it is told to: nothing has come before the clock runs,
    // neither in a buffer nor behind a packet that was lost.
    let script = "echo 0 > \"$0/cgroup.procs\"; echo ready; read -r; \
                  exec 3> /dev/tcp/10.9.0.100/9003; exec cat /dev/zero >&3";
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).arg(slice.folder("db"));
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sender = Ends(started(&room.host, shell.stderr(Stdio::null())));
    let mut ready = [0; 6];
    let told = sender.0.stdout.as_mut().expect("piped");
    told.read_exact(&mut ready).expect("it is in its group");
    let start = Instant::now();
    drop(sender.0.stdin.take());
    let (mut stream, _) = listener.accept().expect("it comes");
    let (mut buffer, mut bytes) = (vec![0; 65_536], 0);
    while start.elapsed() < Duration::from_secs(2) {
        bytes += stream.read(&mut buffer).expect("read");
    }
    let most = allowed(LIMIT, start.elapsed().as_secs_f64());
    assert!(bytes as f64 <= most, "{bytes} B, {most} allowed");
    assert!(bytes as f64 > 0.5 * most, "{bytes} B of {most}");
}

#[test]
fn a_group_that_comes_back_again_and_again_never_escapes() {
    let Some((room, slice)) = room("a_group_that_comes_back") else {
        return;
    };
    const LIMIT: u64 = 4 * MBIT;
    let mut wanted = line(&room, 400 * MBIT);
    let db = slice.path("db");
    wanted
        .groups
        .insert(db.clone(), group(&room, None, Some(LIMIT)));
    // It is not there yet when its limit is set.
    slice.look(&mut wanted);
    let mut site = room.site();
    site.apply(&wanted, &[]).expect("applied");
    let gate = site.see().expect("seen").gate(&wanted).expect("open");
    let gate = gate.expect("there is one");
    let socket = receiver(&room, 9001);
    // What is in no class of its own. Nobody else is here.
    let others = Handle::of(0xb05a, 2);
    let before = sent(&room, others);
    let end = Instant::now() + Duration::from_secs(3);
    let (restarts, (bytes, seconds)) = std::thread::scope(|scope| {
        let counted = scope.spawn(|| came(&socket, end));
        let mut restarts = 0_u32;
        while Instant::now() + Duration::from_millis(100) < end {
            let id = slice.make("db");
            let sender = Ends(slice.flood(&room, "db", 9001));
            // Now it is known, and now it is not: it may send from its first moment on.
            std::thread::sleep(Duration::from_millis(20));
            if restarts.is_multiple_of(2) {
                gate.enter(&db, id).expect("entered");
                std::thread::sleep(Duration::from_millis(10));
                gate.leave(&db, id).expect("forgotten");
            }
            drop(sender);
            slice.remove("db");
            restarts += 1;
        }
        (restarts, counted.join().expect("counted"))
    });
    assert!(restarts > 20, "{restarts} restarts");
    let escaped = sent(&room, others) - before;
    assert!(escaped < 1000, "{escaped} B in {restarts} restarts escaped");
    let most = allowed(LIMIT, seconds);
    assert!(
        (bytes as f64) <= most,
        "{bytes} B in {seconds} s and {restarts} restarts, {most} allowed"
    );
    assert!(bytes as f64 > 0.3 * most, "{bytes} B: nothing was tried");
}

#[test]
fn the_deepest_limit_counts_and_levels_change_at_once() {
    let Some((room, slice)) = room("the_deepest_limit_counts") else {
        return;
    };
    slice.make("a");
    slice.make("a/deep");
    let mut wanted = line(&room, 400 * MBIT);
    let (a, deep) = (slice.path("a"), slice.path("a/deep"));
    wanted.groups.insert(a, group(&room, None, Some(20 * MBIT)));
    slice.look(&mut wanted);
    let mut site = room.site();
    site.apply(&wanted, &[]).expect("applied");
    let filters = |room: &Room| room.host("tc filter show dev out egress");
    assert!(
        filters(&room).contains("bonsai-out-2"),
        "{}",
        filters(&room)
    );
    let sent = |wanted: &Wanted, path: &str| {
        let seen = room.site().see().expect("seen");
        sent(&room, seen.classes_of_groups(wanted)[path])
    };
    let sender = Ends(slice.flood(&room, "a/deep", 9001));
    std::thread::sleep(Duration::from_millis(300));
    let outer = slice.path("a");
    assert!(sent(&wanted, &outer) > 10_000);

    wanted
        .groups
        .insert(deep.clone(), group(&room, None, Some(2 * MBIT)));
    slice.look(&mut wanted);
    site.apply(&wanted, &[]).expect("deeper");
    assert!(
        filters(&room).contains("bonsai-out-3"),
        "{}",
        filters(&room)
    );
    let before = sent(&wanted, &outer);
    std::thread::sleep(Duration::from_millis(300));
    assert!(sent(&wanted, &deep) > 10_000);
    // What waited in its queue still goes: 50 ms of 20 Mbit/s, where 300 ms would be 750 kB.
    let after = sent(&wanted, &outer);
    assert!(after - before <= 130_000, "{} B more", after - before);

    wanted.groups.remove(&deep);
    slice.look(&mut wanted);
    site.apply(&wanted, &[]).expect("less deep");
    assert!(
        filters(&room).contains("bonsai-out-2"),
        "{}",
        filters(&room)
    );
    drop(sender);
}

#[test]
fn guarantees_of_groups_hold_one_to_three() {
    let Some((room, slice)) = room("guarantees_of_groups_hold") else {
        return;
    };
    let mut wanted = line(&room, 16 * MBIT);
    for (name, guarantee) in [("a", 4), ("b", 12)] {
        slice.make(name);
        let group = group(&room, Some(guarantee * MBIT), None);
        wanted.groups.insert(slice.path(name), group);
    }
    slice.look(&mut wanted);
    let mut site = room.site();
    site.apply(&wanted, &[]).expect("applied");
    let _sockets = [receiver(&room, 9001), receiver(&room, 9002)];
    let _senders = [
        Ends(slice.flood(&room, "a", 9001)),
        Ends(slice.flood(&room, "b", 9002)),
    ];
    let classes = site.see().expect("seen").classes_of_groups(&wanted);
    let sent = || ["a", "b"].map(|name| sent(&room, classes[&slice.path(name)]));
    std::thread::sleep(Duration::from_millis(500));
    let parts = || {
        let (start, before) = (Instant::now(), sent());
        std::thread::sleep(Duration::from_secs(2));
        let (after, seconds) = (sent(), start.elapsed().as_secs_f64());
        [(0, 4.0), (1, 12.0)].map(|(of, guarantee): (usize, f64)| {
            (after[of] - before[of]) as f64 / seconds / MBIT as f64 / guarantee
        })
    };
    // One has less, and the other more, only while the machine has no time to send: not again and again.
    let mut seen = Vec::new();
    let holds = |of: &[f64; 2]| of.iter().all(|part| (0.5..1.2).contains(part));
    while !seen.last().is_some_and(holds) {
        assert!(seen.len() < 5, "{seen:?} of the guarantees");
        seen.push(parts());
    }
    // More than there is.
    let more = group(&room, Some(13 * MBIT), None);
    wanted.groups.insert(slice.path("b"), more);
    let error = site.apply(&wanted, &[]).expect_err("too much");
    assert!(error.to_string().contains("1Mbit/s more than"), "{error}");
}

#[test]
fn slips_of_groups_are_answered_in_a_sentence() {
    let Some((room, slice)) = room("slips_of_groups") else {
        return;
    };
    let mut site = room.site();
    let refused = |site: &mut bonsai_link::Site, wanted: &Wanted| {
        let error = site.apply(wanted, &[]).expect_err("refused");
        error.to_string()
    };
    for path in ["/", "a", "/a//b", "/a/../b"] {
        let mut wanted = line(&room, 40 * MBIT);
        let group = group(&room, None, Some(MBIT));
        wanted.groups.insert(path.to_owned(), group);
        let text = refused(&mut site, &wanted);
        assert!(text.contains("is no group of processes"), "{text}");
    }
    // The deepest that there may be: the kernel takes the program.
    let mut wanted = line(&room, 40 * MBIT);
    let deep = "/a".repeat(32);
    wanted.groups.insert(deep, group(&room, None, Some(MBIT)));
    site.apply(&wanted, &[]).expect("deep");
    let mut wanted = line(&room, 40 * MBIT);
    let deep = "/a".repeat(33);
    wanted.groups.insert(deep, group(&room, None, Some(MBIT)));
    let text = refused(&mut site, &wanted);
    assert!(text.contains("33 groups deep"), "{text}");
    let mut wanted = Wanted::default();
    let db = slice.path("db");
    wanted.groups.insert(db, group(&room, None, Some(MBIT)));
    let text = refused(&mut site, &wanted);
    assert!(text.contains("has no tx limit"), "{text}");
    let mut wanted = line(&room, 40 * MBIT);
    let db = slice.path("db");
    wanted.groups.insert(db, group(&room, None, Some(MBIT)));
    let names: BTreeMap<String, u64> = (0..10_001).map(|id| (id.to_string(), id + 9)).collect();
    let above = Above {
        id: 5,
        children: names,
    };
    wanted.tree.insert(slice.path.clone(), above);
    let text = refused(&mut site, &wanted);
    assert!(text.contains("10001 groups in"), "{text}");
}
