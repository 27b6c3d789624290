//! Containers, with the files that their engines write.

use bonsai_host::tenants::{Network, Who};

use super::{PLAIN, Process, TenantError, Tree, described, found, refusal};

const WEB: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
const DB: &str = "9ec39baaaaaaaaaabeff50a308f77067065ea6be0d91a3378375056cd4422cf3";
const APP: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9";
const PAUSE: &str = "1111111111111111111111111111111111111111111111111111111111111111";

/// A container of Docker as version 24 describes it, shortened.
fn docker(tree: &Tree, id: &str, name: &str) {
    let text = format!(
        r#"{{"StreamConfig":{{}},"State":{{"Running":true,"Paused":false,"Pid":70,"ExitCode":0,"Error":"",
        "StartedAt":"2026-01-02T03:04:05.678Z","Health":null}},"ID":"{id}","Created":"2026-01-02T03:04:05Z",
        "Managed":false,"Path":"nginx","Args":["-g","daemon off;"],"Config":{{"Hostname":"{short}",
        "Labels":{{"maintainer":"x"}}}},"Image":"sha256:{id}","NetworkSettings":{{"Bridge":"",
        "SandboxID":"{id}","SandboxKey":"/var/run/docker/netns/9ec39b91f3d7","Networks":{{"bridge":{{}}}}}},
        "LogPath":"","Name":"/{name}","Driver":"overlay2","OS":"linux","RestartCount":0}}"#,
        short = &id[..12],
    );
    tree.write(
        &format!("var/lib/docker/containers/{id}/config.v2.json"),
        text,
    );
}

fn scope(prefix: &str, id: &str) -> String {
    format!("0::/system.slice/{prefix}-{id}.scope\n")
}

#[test]
fn a_container_of_docker_is_found_by_name_and_by_the_beginning_of_its_id() {
    let tree = Tree::new();
    docker(&tree, WEB, "web");
    docker(&tree, DB, "db");
    tree.link_netns("web", "run/docker/netns/9ec39b91f3d7");
    tree.process(
        71,
        Process {
            groups: &scope("docker", WEB),
            netns: "web",
            start: 20,
            ..PLAIN
        },
    );
    tree.process(
        70,
        Process {
            groups: &scope("docker", WEB),
            netns: "web",
            start: 10,
            ..PLAIN
        },
    );
    // Of version 1, with a group of its own for the engine.
    let old = format!("5:memory:/docker/{DB}\n1:name=systemd:/docker/{DB}\n");
    tree.process(
        80,
        Process {
            groups: &old,
            netns: "db",
            start: 30,
            ..PLAIN
        },
    );
    let tenants = tree.look();
    for name in ["web", WEB, "9ec39b91", "9EC39B91F3D7"] {
        let target = found(&tenants, Who::Container(name));
        assert_eq!(target.behind.describe(), "container web (docker)");
        assert_eq!(target.behind.pid, Some(70));
        assert_eq!(target.behind.unit, Some(format!("docker-{WEB}.scope")));
        let netns = target.behind.netns.expect("readable");
        assert_eq!(target.network().ok(), Some(Network::Namespace(netns)));
        // Not by the name that Docker mounts its namespace under.
        assert_eq!(
            described(tenants.behind_netns(netns)),
            "container web (docker)"
        );
    }
    assert_eq!(found(&tenants, Who::Container("db")).behind.pid, Some(80));
    assert_eq!(
        described(tenants.behind_process(71)),
        "container web (docker)"
    );

    let text = refusal(&tenants, Who::Container("9ec39b"));
    assert_eq!(
        text,
        "`9ec39b` may mean web (docker 9ec39b91f3d7, PID 70), db (docker 9ec39baaaaaa, PID 80): \
         say which by its ID or its process"
    );
    let text = refusal(&tenants, Who::Container("9ec3"));
    assert!(text.contains("give at least 6 digits"), "{text}");
    let text = refusal(&tenants, Who::Container("cache"));
    assert_eq!(
        text,
        "there is no running container `cache` (there are: web, db)"
    );
}

#[test]
fn a_container_on_the_machines_network_has_no_interface_of_its_own() {
    let tree = Tree::new();
    docker(&tree, WEB, "web");
    tree.process(
        70,
        Process {
            groups: &scope("docker", WEB),
            ..PLAIN
        },
    );
    let target = found(&tree.look(), Who::Container("web"));
    let error = target.network().expect_err("no network of its own");
    assert!(matches!(error, TenantError::SharesOurs { .. }));
    assert_eq!(
        error.to_string(),
        "container web (docker) shares the machine's network namespace, so no interface is its own: \
         limit it by its control group, or start it with a network of its own"
    );
}

#[test]
fn a_container_that_does_not_run_is_said_to_be_stopped() {
    let tree = Tree::new();
    docker(&tree, WEB, "web");
    tree.write(
        "var/lib/containers/storage/overlay-containers/containers.json",
        format!(r#"[{{"id":"{APP}","names":["app"],"image":"","layer":"{APP}","flags":{{}}}}]"#),
    );
    let tenants = tree.look();
    for name in ["web", "9ec39b91", "app", "0a1b2c3d"] {
        let text = refusal(&tenants, Who::Container(name));
        assert!(text.ends_with("is not running: start it first"), "{text}");
    }
}

#[test]
fn the_data_of_docker_may_be_elsewhere() {
    let tree = Tree::new();
    docker(&tree, WEB, "web");
    std::fs::rename(tree.path("var/lib/docker"), tree.path("data")).expect("writable");
    let data = tree.path("data").display().to_string();
    tree.write(
        "etc/docker/daemon.json",
        format!(r#"{{"debug":true,"data-root":"{data}"}}"#),
    );
    tree.process(
        70,
        Process {
            groups: &scope("docker", WEB),
            netns: "web",
            ..PLAIN
        },
    );
    assert_eq!(
        found(&tree.look(), Who::Container("web")).behind.pid,
        Some(70)
    );
}

#[test]
fn containers_of_podman_are_called_as_its_storage_or_their_monitor_says() {
    let tree = Tree::new();
    // As Podman 4.3 writes it.
    tree.write(
        "var/lib/containers/storage/overlay-containers/volatile-containers.json",
        format!(
            r#"[{{"id":"{WEB}","names":["web"],"image":"","layer":"{APP}","metadata":"{{\"name\":\"web\"}}",
            "created":"2026-11-22T23:55:07.87320304Z","flags":{{"MountLabel":"","ProcessLabel":""}}}}]"#
        ),
    );
    let groups =
        format!("9:name=systemd:/libpod_parent/libpod-{WEB}\n0::/libpod_parent/libpod-{WEB}\n");
    tree.process(
        70,
        Process {
            groups: &groups,
            netns: "web",
            ..PLAIN
        },
    );
    // Of another user, whose storage is not read.
    let theirs = format!(
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{APP}.scope/container\n"
    );
    let words = [
        "--api-version",
        "1",
        "-c",
        APP,
        "-n",
        "app",
        "--exit-command-arg",
        "-n",
    ];
    let conmon = format!("0::/user.slice/libpod-conmon-{APP}.scope\n");
    tree.process(
        75,
        Process {
            program: "conmon",
            words: &words,
            groups: &conmon,
            ..PLAIN
        },
    );
    tree.process(
        80,
        Process {
            groups: &theirs,
            netns: "app",
            ppid: 75,
            ..PLAIN
        },
    );
    // Of a container that this monitor does not claim, and whose name nothing tells.
    let nameless = format!("0::/libpod-{DB}.scope\n");
    tree.process(
        81,
        Process {
            groups: &nameless,
            netns: "db",
            ppid: 75,
            ..PLAIN
        },
    );
    // One that claims to be a monitor of a container that it does not run.
    let words = ["-c", WEB, "-n", "app"];
    tree.process(
        76,
        Process {
            program: "conmon",
            words: &words,
            ..PLAIN
        },
    );
    let tenants = tree.look();
    for (name, pid) in [("web", 70), ("app", 80)] {
        let target = found(&tenants, Who::Container(name));
        assert_eq!(
            target.behind.describe(),
            format!("container {name} (podman)")
        );
        assert_eq!(target.behind.pid, Some(pid));
    }
    let text = described(tenants.behind_process(81));
    assert_eq!(text, "container 9ec39baaaaaa (podman)");
    assert_eq!(tenants.containers.len(), 3);
}

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

#[test]
fn a_name_of_two_containers_is_refused_with_both() {
    let tree = Tree::new();
    docker(&tree, WEB, "web");
    tree.process(
        70,
        Process {
            groups: &scope("docker", WEB),
            netns: "a",
            start: 1,
            ..PLAIN
        },
    );
    tree.process(
        71,
        Process {
            groups: "0::/lxc.payload.web\n",
            netns: "b",
            start: 2,
            ..PLAIN
        },
    );
    let text = refusal(&tree.look(), Who::Container("web"));
    assert!(
        text.contains("`web` may mean web (docker 9ec39b91f3d7, PID 70), web (lxc, PID 71)"),
        "{text}"
    );
}
