//! Root's daemon, and what the owners of services say beside what others say.

use std::process::Stdio;
use std::time::Duration;

use conformance::finish;
use rustix::process::Signal;

use super::fixture::Ends;
use super::machine::Machine;
use crate::fixture::PATIENCE;

#[test]
fn a_bound_of_an_owner_makes_no_promise() {
    let test = "a_bound_of_an_owner_makes_no_promise";
    let config = "[capacity]\nread = \"20MB/s\"\n[classes.default.read]\nmin = \"15MB/s\"\n";
    let Some(machine) = Machine::started(test, config) else {
        return;
    };
    let (alice, bob) = (&machine.alice, &machine.bob);
    let _vod = alice.reader("vod");
    let _bulk = bob.reader("bulk");
    for id in ["54321:vod", "54322:bulk"] {
        machine.governs(id);
    }
    // 15 of 20 MB/s for each is not there. Nobody promised it by saying how much is too much.
    alice.done(&["set", "vod", "read=18MB/s"]);
    bob.done(&["set", "bulk", "read=17MB/s"]);
    machine.until("each has what there is room for", |machine| {
        let min = |id| machine.root.of(id, "read")["min"].as_f64();
        (min("54321:vod"), min("54322:bulk")) == (Some(15e6), Some(5e6))
    });
}

#[test]
fn many_services_of_one_user_share_as_one() {
    let test = "many_services_of_one_user_share_as_one";
    let Some(machine) = Machine::started(test, "[capacity]\nread = \"20MB/s\"\n") else {
        return;
    };
    let bulk = machine.bob.reader("bulk");
    let names: Vec<String> = (0..5).map(|i| format!("a{i}")).collect();
    let all: Vec<Ends> = names
        .iter()
        .map(|name| machine.alice.reader(name))
        .collect();
    let limit = |id: &str| machine.root.of(id, "read")["share"].as_f64().unwrap_or(0.0);
    machine.until("each user has half", |_| {
        let alice: f64 = names
            .iter()
            .map(|name| limit(&format!("54321:{name}")))
            .sum();
        (9e6..11e6).contains(&limit("54322:bulk")) && (9e6..11e6).contains(&alice)
    });
    let shares = machine.root.done(&["shares"]);
    assert!(
        shares.contains("all services of this user share a weight of 1"),
        "{shares}"
    );
    // By service, where root says so.
    machine.configure("[capacity]\nread = \"20MB/s\"\n[policy]\nowner-weight = 1000\n");
    machine.until("each service has a sixth", |_| {
        (3e6..4e6).contains(&limit("54322:bulk"))
    });
    drop((bulk, all));
}

#[test]
fn further_limits_of_users_that_are_taken_out_while_no_daemon_runs_do_not_stay() {
    let test = "further_limits_of_users_that_are_taken_out_while_no_daemon_runs_do_not_stay";
    let limits = |text: &str| format!("[services.\"54321:vod\".limits]\n{text}");
    let Some(mut machine) = Machine::started(test, &limits("open = \"7/s\"\nstat = \"9/s\"\n"))
    else {
        return;
    };
    let _vod = machine.alice.reader("vod");
    machine
        .alice
        .done(&["set", "vod", "pread64=5/s", "--direct"]);
    let has = |machine: &Machine, name: &str| {
        let status = machine.alice.done(&["status", "vod"]);
        status.contains(name)
    };
    let both = |machine: &Machine| has(machine, "open") && has(machine, "stat");
    machine.until("it has them", both);
    machine.end(Signal::KILL);
    assert!(both(&machine), "they stay without a daemon");
    machine.configure(&limits("stat = \"9/s\"\n"));
    machine.start();
    machine.until("it is gone", |machine| !has(machine, "open"));
    assert!(has(&machine, "stat") && has(&machine, "pread64"));
    // What its owner sets then is theirs.
    machine.alice.done(&["set", "vod", "open=6/s", "--direct"]);
    machine.root.done(&["set", "54321:vod", "stat=8/s"]);
    std::thread::sleep(Duration::from_millis(500));
    assert!(both(&machine));
}

#[test]
fn a_command_that_goes_on_as_an_owner_is_out_of_the_owners_reach() {
    let test = "a_command_that_goes_on_as_an_owner_is_out_of_the_owners_reach";
    let config = "[capacity]\nread = \"20MB/s\"\n";
    let Some(machine) = Machine::started(test, config) else {
        return;
    };
    let _vod = machine.alice.reader("vod");
    machine.governs("54321:vod");
    let mut command = machine.root.command(&["status", "54321:vod", "--watch"]);
    let watch = Ends(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let folder = format!("/proc/{}", watch.0.id());
    machine.until("it goes on as the owner", |_| {
        let status = std::fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        status.contains("\nUid:\t54321\t54321\t54321\t54321\n")
            && status.contains("\nGid:\t54321\t54321\t54321\t54321\n")
            && status.contains("\nCapEff:\t0000000000000000\n")
    });
    // What root had in its environment, and has open, is what tracing would reach.
    for what in ["environ", "fd/0", "maps"] {
        let mut reads = machine
            .alice
            .bare("/usr/bin/head", &["-c1", &format!("{folder}/{what}")]);
        let read = finish(&mut reads, PATIENCE).expect("it ends");
        assert!(!read.status.success(), "{what}: {read:?}");
    }
    assert!(
        machine
            .root
            .done(&["stats", "54321:vod"])
            .contains("54321:vod")
    );
}
