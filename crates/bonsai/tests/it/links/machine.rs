//! A machine with a daemon, in network namespaces that last as long as it.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_api::LinkView;
use bonsai_client::Client;
use bonsai_link::namespace;

use crate::support::{Place, Said, signal, skip};

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine with a daemon: a namespace with `v1`, whose other end is `eth0` of a guest.
pub(crate) struct Machine {
    pub(crate) host: OwnedFd,
    pub(crate) guest: OwnedFd,
    pub(crate) place: Place,
    /// Where the daemon keeps what survives it: whatever is beside services is tidied away.
    pub(crate) state: Place,
    daemon: Option<Child>,
}

impl Machine {
    /// `None`, and the reason in the log, where there can be none.
    pub(crate) fn new(test: &str, config: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "making network namespaces needs root");
            return None;
        }
        if ["ip", "tc"].map(|tool| Command::new(tool).arg("-V").output().is_ok()) != [true, true] {
            skip(test, "iproute2 is not installed");
            return None;
        }
        let make = || namespace::make().expect("a namespace");
        let machine = Self {
            host: make(),
            guest: make(),
            place: Place::bare(),
            state: Place::bare(),
            daemon: None,
        };
        machine.pair("v1", "eth0");
        let file = machine.place.path().join("bonsai.toml");
        std::fs::write(&file, config).expect("written");
        let mut machine = machine;
        machine.start();
        Some(machine)
    }

    /// Makes a pair: `name` here, the other end in the guest.
    pub(crate) fn pair(&self, name: &str, other: &str) {
        // A namespace is named to `ip` by a process in it.
        let mut inside = Command::new("sleep");
        let mut inside = spawned(&self.guest, inside.arg("20"));
        let guest = inside.id();
        self.host(&format!(
            "ip link add {name} type veth peer name {other} netns {guest}"
        ));
        self.host(&format!("ip link set {name} up"));
        inside.kill().expect("ended");
        inside.wait().expect("ended");
    }

    pub(crate) fn start(&mut self) {
        self.start_by(&[]);
    }

    /// Starts the daemon by another program, which is given the rest of the words.
    pub(crate) fn start_by(&mut self, by: &[&str]) {
        let mut command = self.place.bonsai(&["daemon", "--config"]);
        command.arg(self.place.path().join("bonsai.toml"));
        if let [program, words @ ..] = by {
            let bonsai = command;
            command = Command::new(program);
            command.args(words).arg(bonsai.get_program());
            command.args(bonsai.get_args());
            for (name, value) in bonsai.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
        }
        command
            .env("BONSAI_STATE_DIR", self.state.path())
            .stdout(Stdio::null());
        self.daemon = Some(spawned(&self.host, &mut command));
        let end = Instant::now() + PATIENCE;
        while self.client().status().is_err() {
            assert!(Instant::now() < end, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the daemon as nothing else would.
    pub(crate) fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        signal(daemon.id(), "KILL");
        daemon.wait().expect("ended");
    }

    pub(crate) fn client(&self) -> Client {
        Client::unix(self.place.path().join("daemon.sock")).expect("a client")
    }

    /// `bonsai ARGS` on that machine.
    pub(crate) fn say(&self, args: &[&str]) -> Said {
        let mut command = self.place.bonsai(args);
        let output = namespace::inside(self.host.as_fd(), || command.output());
        output.expect("entered").expect("bonsai").into()
    }

    /// Runs a command on that machine; it has to succeed.
    pub(crate) fn host(&self, line: &str) -> String {
        run(&self.host, line)
    }

    /// The rate that the kernel has for what `v1` sends, as `tc` says it.
    pub(crate) fn has(&self, device: &str, rate: &str) -> bool {
        let shown = namespace::inside(self.host.as_fd(), || {
            let mut tc = Command::new("tc");
            tc.args(["class", "show", "dev", device]).output()
        });
        // A device that is not there has none.
        let shown = Said::from(shown.expect("entered").expect("tc"));
        shown.out.contains(&format!("rate {rate} "))
    }

    /// What Prometheus is told.
    pub(crate) fn metrics(&self) -> String {
        let mut stream =
            UnixStream::connect(self.place.path().join("daemon.sock")).expect("the daemon listens");
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    }

    /// Waits until it is so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        self.until_in(PATIENCE, what, is_so);
    }

    /// The same for what takes several rounds of the daemon: one takes seconds beside other load.
    pub(crate) fn until_in(&self, patience: Duration, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + patience;
        while !is_so() {
            assert!(
                Instant::now() < end,
                "{what}: never; {}; the last entries: {:#?}",
                self.host("tc class show dev v1"),
                self.client().audit(None, None, 20)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn link(&self, target: &str) -> LinkView {
        self.client().link(target).expect("it is shown")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Starts a command in a namespace.
pub(crate) fn spawned(namespace: &OwnedFd, command: &mut Command) -> Child {
    let child = namespace::inside(namespace.as_fd(), || command.spawn());
    child.expect("entered").expect("started")
}

/// Runs a command in a namespace; it has to succeed.
pub(crate) fn run(namespace: &OwnedFd, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = namespace::inside(namespace.as_fd(), || {
        Command::new(words[0]).args(&words[1..]).output()
    });
    let said: Said = output.expect("entered").expect("started").into();
    assert_eq!(said.code, Some(0), "{line}: {said:?}");
    said.out
}
