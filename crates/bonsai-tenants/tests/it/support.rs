//! A machine of a test: a network namespace of its own, guests in further ones, control groups.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bonsai_cgroup::{Controller, Hierarchies};
use bonsai_link::namespace;
use bonsai_tenants::{Bodies, Body};

/// Set where the tests run on a kernel of their own: a block device that may be written over.
pub(crate) const SPARE_DISK: &str = "BONSAI_TEST_SPARE_DISK";

/// Set in a process that is a machine.
const APART: &str = "BONSAI_TEST_APART";

/// How long anything may take before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Interfaces of targets: none are limited.
pub(crate) const NOTHING: BTreeMap<String, (u64, u32)> = BTreeMap::new();

/// Says on standard error, and in the file that `BONSAI_SKIP_LOG` names, that a test was not made.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("SKIP: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let file = OpenOptions::new().append(true).create(true).open(log);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file that BONSAI_SKIP_LOG names can be appended to");
    }
}

/// Whether a program is in PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Whether this process may change what belongs to the machine.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a test in a process of its own, whose network namespace is its own as well: whose interface it
/// is, is told by that of the process. `true` in that process.
pub(crate) fn apart(module: &str, test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        run("ip link set lo up");
        return true;
    }
    if !is_root() {
        skip(test, "making network namespaces needs root");
        return false;
    }
    if !is_installed("ip") {
        skip(test, "iproute2 is not installed");
        return false;
    }
    let own = std::env::current_exe().expect("this test");
    let host = namespace::make().expect("a namespace");
    let done = namespace::inside(host.as_fd(), || {
        Command::new(own)
            .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
            .env(APART, "1")
            .status()
    });
    let done = done.expect("entered").expect("started");
    assert!(done.success(), "{test} failed in its namespace");
    false
}

/// Runs a command, which has to succeed.
pub(crate) fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().expect("a program"))
        .args(words)
        .output();
    let output = output.expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A child that is ended.
pub(crate) struct Held(pub(crate) Child);

impl Held {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
    }
}

/// A namespace with a process, `eth0` 10.7.0.2 in it, and the other end, 10.7.0.1, here.
pub(crate) struct Guest {
    pub(crate) namespace: Option<OwnedFd>,
    pub(crate) process: Held,
    pub(crate) end: String,
}

impl Guest {
    /// With an end of that name.
    pub(crate) fn new(end: &str, number: u8) -> Self {
        Self::of(end, number, &mut sleeper())
    }

    /// With that process.
    pub(crate) fn of(end: &str, number: u8, command: &mut Command) -> Self {
        let namespace = namespace::make().expect("a namespace");
        let started = namespace::inside(namespace.as_fd(), || command.spawn());
        let process = Held(started.expect("entered").expect("started"));
        let guest = Self {
            namespace: Some(namespace),
            process,
            end: end.to_owned(),
        };
        guest.pair(number);
        guest
    }

    /// Makes the pair.
    pub(crate) fn pair(&self, number: u8) {
        let (end, pid) = (&self.end, self.process.pid());
        run(&format!(
            "ip link add {end} type veth peer name eth0 netns {pid}"
        ));
        run(&format!("ip addr add 10.7.{number}.1/24 dev {end}"));
        run(&format!("ip link set {end} up"));
        self.inside(&format!("ip addr add 10.7.{number}.2/24 dev eth0"));
        self.inside("ip link set eth0 up");
    }

    pub(crate) fn inside(&self, line: &str) -> String {
        let namespace = self.namespace.as_ref().expect("it is open");
        namespace::inside(namespace.as_fd(), || run(line)).expect("entered")
    }

    /// A socket in it.
    pub(crate) fn socket(&self, address: &str) -> UdpSocket {
        let namespace = self.namespace.as_ref().expect("it is open");
        let socket = namespace::inside(namespace.as_fd(), || UdpSocket::bind(address));
        socket.expect("entered").expect("bound")
    }
}

/// A program that waits for its end.
pub(crate) fn sleeper() -> Command {
    let mut command = Command::new("sleep");
    command
        .arg("100")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// What a packet of so much payload is at layer 2: Ethernet, IPv4 and UDP before it.
pub(crate) const HEADS: u64 = 14 + 20 + 8;

/// Sends packets one after the other, each when the one before has come: bytes at layer 2.
pub(crate) fn carry(from: &UdpSocket, to: &UdpSocket, packets: u64) -> u64 {
    const PAYLOAD: usize = 1400;
    let target = to.local_addr().expect("an address");
    let mut buffer = [0; 2048];
    let wait = |time| to.set_read_timeout(Some(time)).expect("set");
    // Links are up some time before they carry, and addresses are looked for first.
    wait(Duration::from_millis(50));
    let end = Instant::now() + PATIENCE;
    loop {
        let _ = from.send_to(b"hello", target);
        if to.recv(&mut buffer).is_ok() {
            break;
        }
        assert!(Instant::now() < end, "{target} is not reached");
    }
    while to.recv(&mut buffer).is_ok() {}
    wait(PATIENCE);
    for _ in 0..packets {
        from.send_to(&[0; PAYLOAD], target).expect("sent");
        to.recv(&mut buffer).expect("it comes");
    }
    packets * (PAYLOAD as u64 + HEADS)
}

/// Looks until something is so.
pub(crate) fn until(
    bodies: &mut Bodies,
    links: &BTreeMap<String, (u64, u32)>,
    id: &str,
    what: impl Fn(&Body) -> bool,
) -> Body {
    let end = Instant::now() + PATIENCE;
    loop {
        let body = bodies.look(links).get(id).cloned().expect("it is wanted");
        if what(&body) {
            return body;
        }
        assert!(Instant::now() < end, "{id} is {body:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bodies with these places, by name.
pub(crate) fn bodies(folder: &std::path::Path, places: &[(&str, &str)]) -> Bodies {
    let mut bodies = Bodies::new(folder.to_owned());
    let places = places.iter().map(|(id, place)| {
        let place = place.parse().expect(place);
        ((*id).to_owned(), place)
    });
    bodies.want(places.collect());
    bodies
}

/// A control group of one name in the hierarchies of disks and CPUs. What is in it is ended, and it is
/// removed at the end.
pub(crate) struct Group {
    pub(crate) path: String,
    pub(crate) folders: Vec<PathBuf>,
}

impl Group {
    /// None, and why it is skipped, where no group can be made.
    pub(crate) fn new(test: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::named(test, &format!("bonsai-test.{}.{next}", std::process::id()))
    }

    /// One of that name.
    pub(crate) fn named(test: &str, name: &str) -> Option<Self> {
        let hierarchies = Hierarchies::read().expect("/proc is there");
        let mut folders: Vec<PathBuf> = Vec::new();
        for controller in [Controller::Io, Controller::Cpu] {
            let Ok(hierarchy) = hierarchies.with(controller) else {
                skip(test, "a hierarchy with disks or CPUs is not mounted");
                return None;
            };
            let folder = hierarchy.mount.join(name);
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        let group = Self {
            path: format!("/{name}"),
            folders,
        };
        for folder in &group.folders {
            if let Err(error) = fs::create_dir(folder) {
                skip(test, &format!("no control group can be made: {error}"));
                return None;
            }
        }
        if group
            .file("io.max", "blkio.throttle.read_bps_device")
            .is_none()
        {
            skip(test, "the controller is not enabled for groups here");
            return None;
        }
        Some(group)
    }

    /// The file that there is, of version 2 or 1.
    pub(crate) fn file(&self, v2: &str, v1: &str) -> Option<PathBuf> {
        let mut all = self
            .folders
            .iter()
            .flat_map(|folder| [folder.join(v2), folder.join(v1)]);
        all.find(|path| path.exists())
    }

    /// Limits on bytes read.
    pub(crate) fn reads(&self) -> String {
        let path = self.file("io.max", "blkio.throttle.read_bps_device");
        fs::read_to_string(path.expect("a file")).expect("readable")
    }

    /// A command whose process is in the group before it begins.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        let enter: String = self
            .folders
            .iter()
            .map(|folder| format!("echo 0 > '{}'/cgroup.procs && ", folder.display()))
            .collect();
        command.args(["-c", &format!("{enter} exec \"$@\""), "sh", program]);
        command
    }

    /// A process that waits for its end; it is in the group when this returns.
    pub(crate) fn sleeper(&self) -> Held {
        let mut command = self.command("sh");
        command.args(["-c", "echo ready; exec sleep 100"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        Held(child)
    }

    pub(crate) fn remove(&self) {
        for folder in &self.folders {
            let end = Instant::now() + PATIENCE;
            while fs::remove_dir(folder).is_err() && folder.exists() {
                assert!(Instant::now() < end, "{} stays", folder.display());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for folder in &self.folders {
                let _ = fs::remove_dir(folder);
            }
        } else {
            self.remove();
        }
    }
}
