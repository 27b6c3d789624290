//! Containers of Docker and Podman, with the files that these write.

use bonsai_host::tenants::{Network, Who};

use super::{PLAIN, Process, TenantError, Tree, described, found, refusal};

const WEB: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
const DB: &str = "9ec39baaaaaaaaaabeff50a308f77067065ea6be0d91a3378375056cd4422cf3";
const APP: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9";

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
