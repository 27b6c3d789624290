//! A real guest: a kernel of its own, whose only program is `tests/guests/init`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::flow::{Flow, Flows, Way};
use crate::links::machine::{Machine, spawned};
use crate::support::skip;

/// How long a boot may take: 3 s on a quiet machine, without KVM; a busy one needs a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// The interface that it is connected to.
pub(super) const TAP: &str = "guest0";
const HOST: &str = "10.77.0.1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hypervisor {
    Qemu,
    UserModeLinux,
}

impl Hypervisor {
    /// What `bonsai link ls` calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::UserModeLinux => "user-mode linux",
        }
    }
}

/// A guest that runs; it sends and receives all the time.
pub(super) struct Guest {
    child: Child,
    folder: TempDir,
    hypervisor: Hypervisor,
    pub(super) flows: Flows,
}

/// Makes the tap of guests, which stays when a guest goes.
pub(super) fn connect(machine: &Machine) {
    machine.host(&format!("ip tuntap add {TAP} mode tap"));
    machine.host(&format!("ip addr add {HOST}/24 dev {TAP}"));
    machine.host(&format!("ip link set {TAP} up"));
}

impl Guest {
    /// Boots one and waits until it sends and receives; `None`, and the reason in the log, where it
    /// cannot be.
    pub(super) fn boot(
        test: &str,
        machine: &Machine,
        hypervisor: Hypervisor,
        name: &str,
    ) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let flows = Flows {
            up: Flow::new(&machine.host, (HOST, 0), Way::Up),
            down: Flow::new(&machine.host, (HOST, 0), Way::Down),
        };
        let said = folder.path().join("said");
        let mut command = Command::new("bash");
        command
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../tests/guests/boot.sh"
            ))
            .arg(match hypervisor {
                Hypervisor::Qemu => "qemu",
                Hypervisor::UserModeLinux => "uml",
            })
            .arg(name)
            .arg(folder.path())
            .arg(TAP)
            .arg("guest.address=10.77.0.2/24")
            .arg(format!("guest.send={}", flows.up.address))
            .arg(format!("guest.receive={}", flows.down.address))
            .stdin(Stdio::null())
            .stdout(File::create(&said).expect("a file"))
            .process_group(0);
        let start = Instant::now();
        let mut guest = Self {
            child: spawned(&machine.host, &mut command),
            folder,
            hypervisor,
            flows,
        };
        while !guest.flows.move_both_ways() {
            if let Some(status) = guest.child.try_wait().expect("ours") {
                let said = fs::read_to_string(&said).expect("readable");
                assert_eq!(status.code(), Some(77), "{said} {}", guest.console());
                skip(test, said.trim());
                return None;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "it does not boot: {}",
                guest.console()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{test}: it sends and receives after {:?}", start.elapsed());
        Some(guest)
    }

    /// What its kernel said.
    fn console(&self) -> String {
        fs::read_to_string(self.folder.path().join("console")).unwrap_or_default()
    }

    /// Stops its processor, and lets it go on.
    pub(super) fn pause(&self, stop: bool) {
        match self.hypervisor {
            Hypervisor::Qemu => self.tell(if stop { "stop" } else { "cont" }),
            Hypervisor::UserModeLinux => {
                let signal = if stop { Signal::STOP } else { Signal::CONT };
                kill_process(self.pid(), signal).expect("it runs");
            }
        }
    }

    /// Ends it, as its owner would.
    pub(super) fn quit(mut self) {
        match self.hypervisor {
            Hypervisor::Qemu => self.tell("quit"),
            Hypervisor::UserModeLinux => {
                kill_process_group(self.pid(), Signal::KILL).expect("it runs");
            }
        }
        self.child.wait().expect("ended");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Tells QEMU something, by its machine protocol (docs/interop/qmp-spec.txt).
    fn tell(&self, command: &str) {
        let stream = UnixStream::connect(self.folder.path().join("qmp")).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
        for command in ["qmp_capabilities", command] {
            let text = json!({ "execute": command }).to_string();
            (&stream).write_all(text.as_bytes()).expect("said");
            // A greeting and events come between.
            let answered = lines.by_ref().map_while(Result::ok).any(|line| {
                let line: Value = serde_json::from_str(&line).expect("JSON");
                assert!(line.get("error").is_none(), "{command}: {line}");
                line.get("return").is_some()
            });
            assert!(answered, "{command}: {}", self.console());
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("its console: {}", self.console());
        }
        // User Mode Linux is several processes; they may have gone.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}
