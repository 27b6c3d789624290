//! Pods of Kubernetes, and engines other than Docker and Podman.

use bonsai_host::tenants::Who;

use super::{PLAIN, Process, Tree, described, found};

const WEB: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
const DB: &str = "9ec39baaaaaaaaaabeff50a308f77067065ea6be0d91a3378375056cd4422cf3";
const APP: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9";
const PAUSE: &str = "1111111111111111111111111111111111111111111111111111111111111111";

#[test]
fn containers_of_a_pod_are_found_together_and_one_by_one() {
    let tree = Tree::new();
    let bundle = |id: &str, kind: &str, name: &str| {
        let named = if name.is_empty() {
            String::new()
        } else {
            format!(r#""io.kubernetes.cri.container-name":"{name}","#)
        };
        let text = format!(
            r#"{{"ociVersion":"1.0.2","process":{{"args":["/pause"]}},"annotations":{{{named}
            "io.kubernetes.cri.container-type":"{kind}","io.kubernetes.cri.sandbox-id":"{PAUSE}",
            "io.kubernetes.cri.sandbox-name":"web-0","io.kubernetes.cri.sandbox-namespace":"shop"}},
            "linux":{{"cgroupsPath":"kubepods-podx.slice:cri-containerd:{id}"}}}}"#
        );
        let folder = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
        tree.write(&format!("{folder}/{id}/config.json"), text);
    };
    bundle(PAUSE, "sandbox", "");
    bundle(WEB, "container", "nginx");
    bundle(APP, "container", "app");
    let group =
        |id: &str| format!("0::/kubepods.slice/kubepods-podx.slice/cri-containerd-{id}.scope\n");
    tree.process(
        70,
        Process {
            groups: &group(PAUSE),
            netns: "pod",
            start: 1,
            ..PLAIN
        },
    );
    tree.process(
        71,
        Process {
            groups: &group(WEB),
            netns: "pod",
            start: 2,
            ..PLAIN
        },
    );
    // The same without systemd.
    let group = format!("0::/kubepods/burstable/podx/{APP}\n");
    tree.process(
        72,
        Process {
            groups: &group,
            netns: "pod",
            start: 3,
            ..PLAIN
        },
    );
    let tenants = tree.look();
    let whole = "container nginx of pod shop/web-0 (containerd) and 1 more";
    for name in ["web-0", "shop/web-0", "shop/web-0/nginx", "nginx"] {
        assert_eq!(
            found(&tenants, Who::Container(name)).behind.describe(),
            whole,
            "{name}"
        );
    }
    assert_eq!(found(&tenants, Who::Container("app")).behind.pid, Some(72));
    let netns = tenants.processes[&70].netns.expect("readable");
    assert_eq!(described(tenants.behind_netns(netns)), whole);
}

#[test]
fn other_engines_have_their_names() {
    let tree = Tree::new();
    tree.write(
        &format!("run/containers/storage/overlay-containers/{APP}/userdata/config.json"),
        r#"{"annotations":{"io.container.manager":"cri-o","io.kubernetes.container.name":"app",
        "io.kubernetes.cri-o.ContainerType":"container","io.kubernetes.pod.name":"p",
        "io.kubernetes.pod.namespace":"default"}}"#,
    );
    let crio = format!("0::/kubepods.slice/crio-{APP}.scope\n");
    tree.process(
        70,
        Process {
            groups: &crio,
            netns: "a",
            ..PLAIN
        },
    );
    tree.process(
        71,
        Process {
            groups: "0::/lxc.payload.mail/init.scope\n",
            netns: "b",
            ..PLAIN
        },
    );
    // The supervisor of systemd-nspawn is outside, whatever the groups look like.
    let (inside, outside) = (
        "0::/machine.slice/machine-deb.scope/payload\n",
        "0::/machine.slice/machine-deb.scope/supervisor\n",
    );
    tree.process(
        72,
        Process {
            groups: outside,
            program: "systemd-nspawn",
            start: 1,
            ..PLAIN
        },
    );
    tree.process(
        73,
        Process {
            groups: inside,
            netns: "c",
            start: 2,
            ..PLAIN
        },
    );
    let old = "1:name=systemd:/machine.slice/machine-old.scope\n";
    tree.process(
        74,
        Process {
            groups: old,
            program: "systemd-nspawn",
            start: 1,
            ..PLAIN
        },
    );
    tree.process(
        75,
        Process {
            groups: old,
            netns: "d",
            start: 2,
            ..PLAIN
        },
    );
    let virt = "0::/machine.slice/machine-lxc\\x2d77\\x2dfile\\x2dserver.scope\n";
    tree.process(
        76,
        Process {
            groups: virt,
            program: "libvirt_lxc",
            start: 1,
            ..PLAIN
        },
    );
    tree.process(
        77,
        Process {
            groups: virt,
            netns: "e",
            start: 2,
            ..PLAIN
        },
    );
    // One that nothing is known of.
    let bare = format!("0::/{DB}\n");
    tree.process(
        78,
        Process {
            groups: &bare,
            netns: "f",
            ..PLAIN
        },
    );
    let tenants = tree.look();
    for (name, pid, wanted) in [
        (
            "default/p/app",
            70,
            "container app of pod default/p (cri-o)",
        ),
        ("mail", 71, "container mail (lxc)"),
        ("deb", 73, "container deb (systemd-nspawn)"),
        ("old", 75, "container old (systemd-nspawn)"),
        ("file-server", 77, "container file-server (libvirt-lxc)"),
        ("9ec39b", 78, "container 9ec39baaaaaa (container engine)"),
    ] {
        let target = found(&tenants, Who::Container(name));
        assert_eq!(
            (target.behind.describe().as_str(), target.behind.pid),
            (wanted, Some(pid))
        );
        assert!(target.network().is_ok());
    }
}
