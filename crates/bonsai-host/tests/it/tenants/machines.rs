//! Virtual machines and the interfaces that processes hold.

use bonsai_host::tenants::{Network, TapKind, Who};

use super::{PLAIN, Process, Tree, described, found, refusal};

const TUN: &str = "/dev/net/tun";
const VNET3: &str = "pos:\t0\nflags:\t0104002\nmnt_id:\t24\nino:\t105\niff:\tvnet3\n";

#[test]
fn a_machine_of_libvirt_is_known_by_its_name_and_its_interface() {
    let tree = Tree::new();
    let groups = "0::/machine.slice/machine-qemu\\x2d3\\x2dguest1.scope/libvirt/emulator\n";
    let words = [
        "-name",
        "guest=guest1,debug-threads=on",
        "-S",
        "-netdev",
        "tap,fds=27:28,vhost=on",
    ];
    let descriptors = [
        (3, "anon_inode:[eventfd]", ""),
        (27, TUN, VNET3),
        (28, TUN, VNET3),
        (29, "/dev/vhost-net", ""),
        // Opened, and without an interface yet.
        (30, TUN, "pos:\t0\niff:\t\n"),
    ];
    let process = Process {
        program: "qemu-system-x86_64",
        words: &words,
        groups,
        descriptors: &descriptors,
        ..PLAIN
    };
    tree.process(300, process);
    tree.write("run/libvirt/qemu/guest1.pid", "300\n");
    // libvirtd still has a copy of the descriptor.
    let copy = [(9, TUN, VNET3)];
    tree.process(
        200,
        Process {
            program: "libvirtd",
            descriptors: &copy,
            start: 1,
            ..PLAIN
        },
    );
    let tenants = tree.look();
    let behind = tenants.behind_tap("vnet3", tenants.own);
    assert_eq!(
        described(behind),
        "machine guest1 (qemu by libvirt, PID 300)"
    );
    assert!(tenants.behind_tap("vnet4", tenants.own).is_none());
    let target = found(&tenants, Who::Machine("guest1"));
    let group = r"/machine.slice/machine-qemu\x2d3\x2dguest1.scope";
    assert_eq!(target.behind.cgroup.as_deref(), Some(group));
    let Ok(Network::Taps(taps)) = target.network() else {
        panic!("{:?}", target.network());
    };
    assert_eq!(taps.len(), 1);
    assert_eq!(
        (taps[0].name.as_deref(), taps[0].queues, taps[0].fd),
        (Some("vnet3"), 2, 27)
    );
    assert!(taps[0].vhost && taps[0].kind == TapKind::TunOrTap && !taps[0].netns_is_exact);
    let text = refusal(&tenants, Who::Machine("guest2"));
    assert_eq!(
        text,
        "there is no virtual machine `guest2` (there are: guest1)"
    );
    assert!(Tree::new().look().taps.is_empty());
}

#[test]
fn machines_of_other_hypervisors_hold_theirs() {
    let tree = Tree::new();
    let info = |name: &str| format!("iff:\t{name}\n");
    for (pid, program, words, tap) in [
        (10, "firecracker", &["--id", "fc1"][..], "fc0"),
        (
            11,
            "cloud-hypervisor",
            &["--api-socket", "/run/ch1.sock"],
            "ch0",
        ),
        (12, "crosvm", &["run", "--name", "cros1"], "cr0"),
        (13, "linux", &["ubd0=root", "umid=uml1", "mem=64M"], "uml0"),
        (14, "qemu-kvm", &["-nodefaults"], "tap9"),
        (15, "openvpn", &["--dev", "tun0"], "tun0"),
    ] {
        let info = info(tap);
        let descriptors = [(5, TUN, info.as_str())];
        tree.process(
            pid,
            Process {
                program,
                words,
                descriptors: &descriptors,
                ..PLAIN
            },
        );
    }
    // A helper thread of user-mode Linux is a process, with the same words and descriptors.
    let (info, words) = (info("uml0"), ["ubd0=root", "umid=uml1", "mem=64M"]);
    let descriptors = [(5, TUN, info.as_str())];
    let helper = Process {
        program: "linux",
        words: &words,
        ppid: 13,
        descriptors: &descriptors,
        ..PLAIN
    };
    tree.process(
        16,
        Process {
            start: 1001,
            ..helper
        },
    );
    let tenants = tree.look();
    for (name, tap, wanted) in [
        ("fc1", "fc0", "machine fc1 (firecracker, PID 10)"),
        ("ch1", "ch0", "machine ch1 (cloud-hypervisor, PID 11)"),
        ("cros1", "cr0", "machine cros1 (crosvm, PID 12)"),
        ("uml1", "uml0", "machine uml1 (user-mode linux, PID 13)"),
    ] {
        assert_eq!(described(tenants.behind_tap(tap, tenants.own)), wanted);
        assert_eq!(
            found(&tenants, Who::Machine(name)).behind.describe(),
            wanted
        );
    }
    let behind = |tap| described(tenants.behind_tap(tap, tenants.own));
    assert_eq!(behind("tap9"), "machine without a name (qemu, PID 14)");
    assert_eq!(behind("tun0"), "openvpn (PID 15)");
}

#[test]
fn a_macvtap_is_known_by_its_index() {
    let tree = Tree::new();
    let descriptors = [(20, "/dev/tap17", "pos:\t0\n")];
    let process = Process {
        program: "qemu-system-arm",
        words: &["-name", "m"],
        descriptors: &descriptors,
        ..PLAIN
    };
    tree.process(300, process);
    let tenants = tree.look();
    let behind = tenants.behind_macvtap(17, tenants.own);
    assert_eq!(described(behind), "machine m (qemu, PID 300)");
    assert!(tenants.behind_macvtap(18, tenants.own).is_none());
}

#[test]
fn a_machine_without_an_interface_is_not_shaped_at_one() {
    let tree = Tree::new();
    let words = ["-name", "m", "-netdev", "user,id=n0"];
    tree.process(
        300,
        Process {
            program: "qemu-system-x86_64",
            words: &words,
            ..PLAIN
        },
    );
    let target = found(&tree.look(), Who::Machine("m"));
    let text = target.network().expect_err("no interface").to_string();
    assert!(
        text.starts_with("machine m (qemu, PID 300) has no TUN/TAP interface"),
        "{text}"
    );
}

#[test]
fn a_name_of_two_machines_is_refused_with_both() {
    let tree = Tree::new();
    for pid in [300, 301] {
        tree.process(
            pid,
            Process {
                program: "qemu-system-x86_64",
                words: &["-name", "m"],
                ..PLAIN
            },
        );
    }
    let text = refusal(&tree.look(), Who::Machine("m"));
    let both = "machine m (qemu, PID 300), machine m (qemu, PID 301)";
    assert!(text.contains(both), "{text}");
}
