//! Containers and machines that are services: processes, namespaces and groups that look as their
//! engines make them.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use bonsai_cgroup::Device;
use bonsai_tenants::bodies::Terms;
use tempfile::tempdir;

use crate::support::{Group, Guest, Held, NOTHING, PATIENCE, apart, bodies, carry, until};

#[test]
fn a_container_that_is_started_again_is_another_one_with_the_same_limits() {
    let name = "a_container_that_is_started_again_is_another_one_with_the_same_limits";
    if !apart("whose", name) {
        return;
    }
    // As LXC names the group of a container.
    let called = format!("bonsai{}", std::process::id());
    let Some(group) = Group::named(name, &format!("lxc.payload.{called}")) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let place = format!("container:{called}");
    let mut bodies = bodies(folder.path(), &[("web", &place)]);
    let none = until(&mut bodies, &NOTHING, "web", |body| body.why.is_some());
    assert!(!none.there, "{none:?}");
    let terms = Terms {
        read: Device::disks().ok().map(|_| 5_000_000),
        cpu: Some("weight=200".parse().expect("terms")),
        ..Terms::default()
    };
    bodies.put("web", &terms).expect("noted");
    let mut born = None;
    for number in 1..3 {
        let mut command = group.command("sleep");
        command.arg("100").stdin(Stdio::null());
        let mut guest = Guest::of("v1", number, &mut command);
        let body = until(&mut bodies, &NOTHING, "web", |body| {
            body.there && body.totals[0].is_some() && body.totals[2].is_some()
        });
        assert_eq!((body.pid, body.uid), (Some(guest.process.pid()), 0));
        assert_ne!(Some(body.born_ns), born, "it is another one");
        born = Some(body.born_ns);
        assert_eq!((body.disk_why, body.cpu_why, body.why), (None, None, None));
        if terms.read.is_some() {
            assert!(group.reads().contains("5000000"), "{}", group.reads());
        }
        let socket = guest.socket(&format!("10.7.{number}.2:9000"));
        let here = std::net::UdpSocket::bind(format!("10.7.{number}.1:9000")).expect("bound");
        let sent = carry(&socket, &here, 50);
        let after = bodies.look(&NOTHING)["web"].clone();
        assert!(
            after.totals[0] >= Some(sent) && after.totals[1] < Some(sent),
            "{after:?}"
        );
        drop(socket);
        guest.process.end();
        guest.namespace = None;
        until(&mut bodies, &NOTHING, "web", |body| !body.there);
        let end = Instant::now() + PATIENCE;
        while crate::support::run("ip -o link show").contains("v1@") {
            assert!(Instant::now() < end, "the namespace is kept");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        group.remove();
        for folder in &group.folders {
            fs::create_dir(folder).expect("made");
        }
    }
    bodies.release("web");
}

#[test]
fn a_machine_in_a_group_with_others_has_no_limits_of_its_own() {
    let name = "a_machine_in_a_group_with_others_has_no_limits_of_its_own";
    let (Some(group), Ok(_)) = (Group::new(name), Device::disks()) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    // A program of that name is taken for a machine, with the name that its command line says.
    let program = folder.path().join("qemu-system-x86_64");
    fs::copy("/bin/sh", &program).expect("copied");
    let called = format!("guest{}", std::process::id());
    let mut machine = group.command(program.to_str().expect("a name"));
    machine.args(["-c", "read line; :", "-name", &called]);
    let machine = Held(machine.stdin(Stdio::piped()).spawn().expect("started"));
    let mut other = group.sleeper();
    let place = format!("vm:{called}");
    let mut bodies = bodies(folder.path(), &[("guest", &place)]);
    let body = until(&mut bodies, &NOTHING, "guest", |body| body.there);
    assert_eq!(body.pid, Some(machine.pid()));
    let why = body.why.expect("it has no interface");
    assert!(why.contains("no TUN/TAP interface"), "{why}");
    assert_eq!(body.totals, [None; 4], "what others read is not its own");
    let terms = Terms {
        read: Some(5_000_000),
        ..Terms::default()
    };
    let error = bodies.put("guest", &terms).expect_err("shared");
    let text = error.sentence();
    assert!(
        text.contains(&format!("with process {}", other.pid())),
        "{text}"
    );
    let body = bodies.look(&NOTHING)["guest"].clone();
    assert_eq!(body.disk_why, Some(text));
    assert_eq!(
        group
            .reads()
            .lines()
            .filter(|line| line.contains("5000000"))
            .count(),
        0
    );
    // Alone it has them: what was refused is tried again.
    other.end();
    let body = until(&mut bodies, &NOTHING, "guest", |body| {
        body.disk_why.is_none() && body.totals[2].is_some()
    });
    assert!(group.reads().contains("5000000"), "{body:?}");
    bodies.release("guest");
    assert!(!group.reads().contains("5000000"));
}

#[test]
fn a_namespace_with_a_name_that_is_made_again_is_another_one() {
    let name = "a_namespace_with_a_name_that_is_made_again_is_another_one";
    if !apart("whose", name) {
        return;
    }
    let called = format!("bonsai{}", std::process::id());
    let _named = Named(&called);
    let folder = tempdir().expect("a folder");
    let place = format!("netns:{called}");
    let mut bodies = bodies(folder.path(), &[("vod", &place)]);
    until(&mut bodies, &NOTHING, "vod", |body| body.why.is_some());
    let mut born = 0;
    for _ in 0..2 {
        crate::support::run(&format!("ip netns add {called}"));
        let bare = until(&mut bodies, &NOTHING, "vod", |body| body.there);
        assert!(bare.why.is_some_and(|why| why.contains("interface")));
        assert_ne!(bare.born_ns, born, "it is another one");
        crate::support::run(&format!(
            "ip link add v1 type veth peer name eth0 netns {called}"
        ));
        let body = until(&mut bodies, &NOTHING, "vod", |body| {
            body.totals[0].is_some()
        });
        assert_eq!(body.born_ns, bare.born_ns, "it only had no interface yet");
        born = body.born_ns;
        crate::support::run(&format!("ip netns del {called}"));
        until(&mut bodies, &NOTHING, "vod", |body| !body.there);
    }
}

/// Taken away at the end, however that comes.
struct Named<'a>(&'a str);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", self.0]).output();
    }
}

#[test]
fn a_container_in_the_network_of_the_machine_has_disk_and_cpu_alone() {
    let name = "a_container_in_the_network_of_the_machine_has_disk_and_cpu_alone";
    let called = format!("bonsaihost{}", std::process::id());
    let Some(group) = Group::named(name, &format!("lxc.payload.{called}")) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let mut command = group.command("sleep");
    let _process = Held(
        command
            .arg("100")
            .stdin(Stdio::null())
            .spawn()
            .expect("started"),
    );
    let place = format!("container:{called}");
    let mut bodies = bodies(folder.path(), &[("web", &place)]);
    let body = until(&mut bodies, &NOTHING, "web", |body| body.there);
    assert!(
        body.why
            .is_some_and(|why| why.contains("shares the machine's network"))
    );
    assert_eq!(body.totals[..2], [None, None]);
    assert!(body.totals[2].is_some(), "its reads are counted");
}
