//! A host with guests, each in a network namespace of its own that lasts as long as the room.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bonsai_link::{Plan, Site, namespace};

/// All means by which packets find their class.
pub(crate) const PLANS: [Plan; 2] = [Plan::Bpf, Plan::U32];

/// The block of the first limited interface.
pub(crate) fn block(plan: Plan) -> &'static str {
    match plan {
        Plan::Bpf => "bonsai-ifb",
        Plan::U32 => "bonsai-ifb10",
    }
}

/// Held by all rooms together, or by one test alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// Waits until there are no rooms, and lets none be made meanwhile: for what would take the time that
/// rates are measured in.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Prints that a test was not run, and why; the script that counts looks for it.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP: {test}: {reason}");
    if let Ok(log) = std::env::var("BONSAI_SKIP_LOG") {
        use std::io::Write;
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log);
        if let Ok(mut log) = log {
            let _ = writeln!(log, "SKIP: {test}: {reason}");
        }
    }
}

/// The host's namespace has a bridge `br0` with a pair to each guest, `v1` to `eth0`, and one to the
/// outside, `out` to `eth0`. Guests are 10.9.0.1 and so on, the outside is 10.9.0.100.
pub(crate) struct Room {
    pub(crate) host: OwnedFd,
    pub(crate) guests: Vec<OwnedFd>,
    pub(crate) outside: OwnedFd,
    _here: RwLockReadGuard<'static, ()>,
}

impl Room {
    /// `None`, with a printed reason, where namespaces cannot be made.
    pub(crate) fn new(test: &str, guests: usize) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "making network namespaces needs root");
            return None;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            skip(test, "iproute2 is not installed");
            return None;
        }
        let make = || namespace::make().expect("a namespace");
        let room = Self {
            host: make(),
            guests: (0..guests).map(|_| make()).collect(),
            outside: make(),
            _here: MACHINE.read().unwrap_or_else(PoisonError::into_inner),
        };
        room.host("ip link add br0 type bridge");
        silent(&room.host, "br0");
        room.host("ip link set br0 up");
        for (index, guest) in room.guests.iter().enumerate() {
            room.pair(guest, &format!("v{}", index + 1), index + 1);
        }
        room.pair(&room.outside, "out", 100);
        // What is compared later is to be as it stays.
        for _ in 0..400 {
            if !room.host("ip -o link show").contains("NO-CARRIER") {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(room)
    }

    /// Moves an interface of the host to the outside.
    pub(crate) fn move_out(&self, name: &str) {
        let pid = resident(&self.outside);
        self.host(&format!("ip link set {name} netns {pid}"));
        run(&self.outside, &format!("kill {pid}"));
    }

    /// Runs lines of a shell in the host.
    pub(crate) fn sh(&self, lines: &str) -> String {
        run_in(&self.host, "sh", &["-c", lines])
    }

    fn pair(&self, of: &OwnedFd, name: &str, address: usize) {
        let pid = resident(of);
        self.host(&format!(
            "ip link add {name} type veth peer name eth0 netns {pid}"
        ));
        silent(&self.host, name);
        silent(of, "eth0");
        self.host(&format!("ip link set {name} master br0 up"));
        run(of, &format!("ip addr add 10.9.0.{address}/24 dev eth0"));
        run(of, "ip link set eth0 up");
        run(of, "ip link set lo up");
        run(of, &format!("kill {pid}"));
    }

    /// Runs a command in the host.
    pub(crate) fn host(&self, line: &str) -> String {
        run(&self.host, line)
    }

    /// The host's interfaces. A bridge that has its carrier is told to be up a while later
    /// (RFC 2863, 3.1.12: unknown, up), which nobody here does.
    pub(crate) fn interfaces(&self) -> String {
        self.host("ip -o link show")
            .replace("state UNKNOWN", "state UP")
    }

    pub(crate) fn site(&self) -> Site {
        Site::open(Some(self.host.as_fd())).expect("a site")
    }

    /// The same, by means that are said.
    pub(crate) fn site_by(&self, plan: Plan) -> Site {
        Site::open_with(Some(self.host.as_fd()), plan).expect("a site")
    }

    /// The number of an interface of the host.
    pub(crate) fn index(&self, name: &str) -> u32 {
        let links = self.site().links().expect("links");
        bonsai_link::named(&links, name).expect("it is there").index
    }
}

/// A process in a namespace, by which that is named to `ip`.
fn resident(of: &OwnedFd) -> String {
    let pid = run_in(of, "sh", &["-c", "sleep 5 >/dev/null 2>&1 & echo $!"]);
    pid.trim().to_owned()
}

/// Runs a command in a namespace; it has to succeed.
pub(crate) fn run(namespace: &OwnedFd, line: &str) -> String {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    run_in(namespace, program, &words.collect::<Vec<_>>())
}

fn run_in(namespace: &OwnedFd, program: &str, args: &[&str]) -> String {
    let output = namespace::inside(namespace.as_fd(), || {
        Command::new(program).args(args).output()
    });
    let output = output.expect("entered").expect("started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// One that connects in a namespace.
pub(crate) fn connect(namespace: &OwnedFd, to: SocketAddr) -> TcpStream {
    let stream = namespace::inside(namespace.as_fd(), || {
        // Links are up some time before they carry.
        TcpStream::connect_timeout(&to, Duration::from_secs(20))
    });
    stream.expect("entered").expect("connected")
}

/// One that listens in a namespace, on any port.
pub(crate) fn listen(namespace: &OwnedFd, address: &str) -> TcpListener {
    let listener = namespace::inside(namespace.as_fd(), || TcpListener::bind((address, 0)));
    listener.expect("entered").expect("bound")
}

/// A socket in a namespace.
pub(crate) fn udp(namespace: &OwnedFd, address: &str) -> UdpSocket {
    let socket = namespace::inside(namespace.as_fd(), || UdpSocket::bind(address));
    socket.expect("entered").expect("bound")
}

/// Waits until something comes from one to the other: links are up some time before they carry, and
/// addresses are looked for first.
pub(crate) fn greet(from: &UdpSocket, to: &UdpSocket) {
    let target = to.local_addr().expect("an address");
    let mut buffer = [0; 2048];
    to.set_read_timeout(Some(Duration::from_millis(50)))
        .expect("set");
    let came = (0..400).any(|_| {
        let _ = from.send_to(b"hello", target);
        to.recv(&mut buffer).is_ok()
    });
    assert!(came, "{target} is not reached in 20 s");
    // What was asked for while nothing came may come now.
    while to.recv(&mut buffer).is_ok() {}
}

/// The kernel sends nothing of its own there to get addresses of IPv6, some seconds long: what is counted is what a test sends.
fn silent(of: &OwnedFd, name: &str) {
    // Where there is no IPv6 there is nothing to silence.
    let line = format!("ip link set {name} addrgenmode none || true");
    run_in(of, "sh", &["-c", &line]);
}

/// Sends as fast as it goes for `time`: bytes at layer 2 that came, and seconds from before the first
/// was sent until after the last had come. What a limit allows in that time is more than came.
pub(crate) fn flood(from: &UdpSocket, to: &UdpSocket, time: Duration) -> (u64, f64) {
    let start = OnceLock::new();
    flood_while(from, to, || {
        start.get_or_init(Instant::now).elapsed() < time
    })
}

/// The same for as long as `more` says.
pub(crate) fn flood_while(
    from: &UdpSocket,
    to: &UdpSocket,
    more: impl Fn() -> bool + Sync,
) -> (u64, f64) {
    const PAYLOAD: usize = 1400;
    // Ethernet, IPv4, UDP.
    const HEADS: u64 = 14 + 20 + 8;
    let target = to.local_addr().expect("an address");
    greet(from, to);
    to.set_read_timeout(Some(Duration::from_millis(300)))
        .expect("set");
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while more() {
                // What does not fit is dropped where the queue is full.
                let _ = from.send_to(&[0; PAYLOAD], target);
            }
        });
        let mut buffer = [0; 2048];
        let (mut bytes, mut last) = (0, start);
        while let Ok(length) = to.recv(&mut buffer) {
            last = Instant::now();
            bytes += length as u64 + HEADS;
        }
        (bytes, (last - start).as_secs_f64())
    })
}
