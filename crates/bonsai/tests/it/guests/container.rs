//! A real container of Podman: its image is made of busybox, its engine has folders of its own, and its
//! network is in the machine's namespace.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_api::LinkState;
use bonsai_client::How;
use bonsai_link::{Site, namespace};
use serde_json::json;
use tempfile::TempDir;

use super::envelope::{BLOCK, PATIENCE, is_limited};
use super::flow::{Flow, Flows, Way};
use crate::links::machine::Machine;
use crate::support::{Said, skip};

const IMAGE: &str = "localhost/bonsai-guest:1";
/// The bridge that Podman makes, and its address.
const BRIDGE: &str = "podman0";
const GATEWAY: &str = "10.88.0.1";
/// A network without a way out needs no rules of a firewall. Its name and ID are those of the default.
const NETWORK: &str = r#"{
    "name": "podman", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
    "driver": "bridge", "network_interface": "podman0", "created": "2024-01-01T00:00:00Z",
    "subnets": [{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}],
    "ipv6_enabled": false, "internal": true, "dns_enabled": false,
    "ipam_options": {"driver": "host-local"}
}"#;

/// An engine with one container.
struct Podman<'a> {
    machine: &'a Machine,
    folder: TempDir,
    name: String,
}

impl<'a> Podman<'a> {
    /// `None`, and the reason in the log, where it is not installed.
    fn new(test: &str, machine: &'a Machine) -> Option<Self> {
        if Command::new("podman").arg("--version").output().is_err() {
            skip(test, "podman is not installed (make test-guests)");
            return None;
        }
        let busybox = Path::new("/bin/busybox");
        if !busybox.exists() {
            skip(test, "busybox is not installed (busybox-static)");
            return None;
        }
        let podman = Self {
            machine,
            folder: tempfile::tempdir().expect("a folder"),
            name: format!("bonsai-web-{}", std::process::id()),
        };
        let root = podman.folder.path().join("image");
        fs::create_dir_all(root.join("bin")).expect("made");
        fs::create_dir(podman.folder.path().join("net")).expect("made");
        fs::write(podman.folder.path().join("net/podman.json"), NETWORK).expect("written");
        fs::copy(busybox, root.join("bin/busybox")).expect("copied");
        for name in ["sh", "nc", "sleep"] {
            symlink("busybox", root.join("bin").join(name)).expect("made");
        }
        let archive = podman.folder.path().join("image.tar");
        let tar = Command::new("tar")
            .arg("-C")
            .arg(&root)
            .arg("-cf")
            .arg(&archive)
            .arg(".")
            .status();
        assert!(tar.is_ok_and(|status| status.success()), "tar");
        let archive = archive.to_string_lossy().into_owned();
        let said = podman.say(&["import", &archive, IMAGE]);
        assert_eq!(said.code, Some(0), "{said:?}");
        Some(podman)
    }

    fn say(&self, args: &[&str]) -> Said {
        let folder = |name: &str| self.folder.path().join(name);
        let mut command = Command::new("podman");
        // crun wants more rights and newer control groups than a machine may have.
        if Path::new("/usr/sbin/runc").exists() {
            command.args(["--runtime", "/usr/sbin/runc"]);
        }
        command
            .arg("--root")
            .arg(folder("root"))
            .arg("--runroot")
            .arg(folder("run"))
            .arg("--tmpdir")
            .arg(folder("tmp"))
            .arg("--network-config-dir")
            .arg(folder("net"))
            .args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"])
            .args(["--events-backend", "file"])
            .args(args)
            .stdin(Stdio::null());
        let output = namespace::inside(self.machine.host.as_fd(), || command.output());
        output.expect("entered").expect("podman").into()
    }

    /// Starts the container, which connects to both ports without end; its ID.
    fn run(&self, flows: &Flows) -> Result<String, Said> {
        let script = format!(
            "(while :; do nc {GATEWAY} {} </dev/zero >/dev/null; sleep 0.1; done) & \
             while :; do nc {GATEWAY} {} </dev/null >/dev/null; sleep 0.1; done",
            flows.up.address.port(),
            flows.down.address.port(),
        );
        let said = self.say(&[
            "run",
            "-d",
            "--init=false",
            "--name",
            &self.name,
            "--cgroup-parent",
            &format!("/{}", self.name),
            // What Podman sets by default is more than root may in a container itself.
            "--ulimit=nofile=1024:1024",
            "--ulimit=nproc=1024:1024",
            IMAGE,
            "/bin/sh",
            "-c",
            &script,
        ]);
        if said.code == Some(0) {
            Ok(said.out.trim().to_owned())
        } else {
            Err(said)
        }
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        self.say(&["rm", "--force", "--time=0", &self.name]);
        // Its group, and that of its monitor, which takes a moment to go: in each hierarchy that there is.
        let root = Path::new("/sys/fs/cgroup");
        let below = fs::read_dir(root).into_iter().flatten().flatten();
        let groups: Vec<_> = below
            .map(|entry| entry.path())
            .chain([root.to_owned()])
            .map(|hierarchy| hierarchy.join(&self.name))
            .filter(|group| group.exists())
            .collect();
        let end = Instant::now() + Duration::from_secs(5);
        while groups.iter().any(|group| group.exists()) && Instant::now() < end {
            for group in &groups {
                let _ = fs::remove_dir(group.join("conmon"));
                let _ = fs::remove_dir(group);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Connections that the container makes: to any port, or to those of earlier ones.
fn flows(machine: &Machine, ports: [u16; 2]) -> Flows {
    let flow = |port, way| Flow::new(&machine.host, ("0.0.0.0", port), way);
    Flows {
        up: flow(ports[0], Way::Up),
        down: flow(ports[1], Way::Down),
    }
}

fn both_ways(flows: &Flows) {
    let start = Instant::now();
    while !flows.move_both_ways() {
        assert!(start.elapsed() < PATIENCE, "it does not connect");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for the pair of a container that is not `before`, and then for its limit: how long it had none,
/// and how many bytes went through it meanwhile.
fn without_a_limit(machine: &Machine, before: u32) -> (Duration, u64) {
    let mut site = Site::open(Some(machine.host.as_fd())).expect("a site");
    let start = Instant::now();
    let mut found: Option<(u32, Instant)> = None;
    while start.elapsed() < PATIENCE {
        let links = site.links().expect("links");
        let bridge = bonsai_link::named(&links, BRIDGE).map(|link| link.index);
        let bridge = bridge.ok();
        let port = links
            .iter()
            .find(|link| link.index != before && link.master.is_some() && link.master == bridge);
        if let Some(port) = port {
            let (_, since) = *found.get_or_insert((port.index, Instant::now()));
            let mut limited = false;
            let asked = site.classes(port.index, |class| limited = class.is_some());
            if asked.is_ok() && limited {
                return (
                    since.elapsed(),
                    port.traffic.rx_bytes + port.traffic.tx_bytes,
                );
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    panic!("it is not limited again: {found:?}");
}

#[test]
fn a_container_is_limited_by_its_name_and_again_when_it_starts_again() {
    let test = "a_container_is_limited_by_its_name_and_again_when_it_starts_again";
    let Some(machine) = Machine::new(test, "") else {
        return;
    };
    let Some(podman) = Podman::new(test, &machine) else {
        return;
    };
    let first = flows(&machine, [0, 0]);
    let id = match podman.run(&first) {
        Ok(id) => id,
        Err(said) => {
            let why = said.err.lines().last().unwrap_or_default();
            return skip(test, &format!("podman runs no container here: {why}"));
        }
    };
    let ports = [&first.up, &first.down].map(|flow| flow.address.port());
    both_ways(&first);
    let works = |args: &[&str]| {
        let said = machine.say(args);
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
        said.out
    };
    let listed = works(&["link", "ls", "--for", "10ms", "--json"]);
    assert!(
        listed.contains(&format!("container {} (podman)", podman.name)),
        "{listed}"
    );

    // By its name and by the beginning of its ID.
    let target = format!("container:{}", podman.name);
    for (name, limits) in [(podman.name.as_str(), [8.0, 4.0]), (&id[..12], [4.0, 9.0])] {
        let [tx, rx] = limits;
        let (tx, rx) = (format!("tx={tx}Mbit/s"), format!("rx={rx}Mbit/s"));
        let said = works(&["link", "set", "--container", name, &tx, &rx]);
        assert!(said.contains("in force"), "{said}");
        let view = machine.link(&format!("container:{name}"));
        is_limited(&machine, &view.name, &first, limits);
        let said = works(&["link", "clear", "--container", name]);
        assert!(said.contains("as it was before"), "{said}");
        assert!(!machine.host("ip link").contains(BLOCK));
    }

    // What is configured for it holds for the next one of that name.
    let client = machine.client();
    let patch = json!({ "tx": "5Mbit/s", "rx": "6Mbit/s" });
    let changed = client.change_link(&target, &patch, &How::default());
    assert!(changed.expect("changed").in_force);
    let before = machine.link(&target).index;
    drop(first);
    let second = flows(&machine, ports);
    let (gap, bytes) = std::thread::scope(|scope| {
        let gap = scope.spawn(|| without_a_limit(&machine, before));
        let said = podman.say(&["restart", "--time=0", &podman.name]);
        assert_eq!(said.code, Some(0), "{said:?}");
        gap.join().expect("limited")
    });
    eprintln!("{test}: limited again {gap:?} and {bytes} B after its interface came");
    machine.until("it is said", || {
        let view = machine.link(&target);
        view.state == LinkState::InForce && view.index != before
    });
    // A connection that has run without a limit for a second may need minutes to find the new rate (BBR,
    // measured), so that it is shown by one that begins now.
    drop(second);
    let third = flows(&machine, ports);
    both_ways(&third);
    let view = machine.link(&target);
    is_limited(&machine, &view.name, &third, [5.0, 6.0]);
    drop(podman);
    machine.until("it waits", || {
        machine.link(&target).state == LinkState::Waiting
    });
}
