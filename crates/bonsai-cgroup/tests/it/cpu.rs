//! Weight, quota and reserved time, on the real kernel.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bonsai_cgroup::{Controller, Cpu, Error, Hierarchies, Holder, OwnGroup, Target};
use bonsai_units::CpuTerms;
use tempfile::TempDir;

use crate::support::{Group, Python, is_root, skip};

const SCHED_DEADLINE: u32 = 6;

/// The kernel has one sum of all reserves: those who look how much is left take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn terms(text: &str) -> CpuTerms {
    text.parse().expect("terms")
}

fn cpu(records: &TempDir) -> Cpu {
    let hierarchies = Hierarchies::read().expect("/proc is there");
    Cpu::open(hierarchies, &records.path().join("held")).expect("records")
}

/// All of a group, as the kernel writes it.
fn raw(group: &Group) -> Vec<String> {
    let files: &[&str] = if group.has("cpu.max") {
        &["cpu.weight", "cpu.max"]
    } else {
        &["cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"]
    };
    files.iter().map(|name| group.read(name)).collect()
}

#[test]
fn weight_and_quota_are_set_and_exactly_what_was_there_before_is_restored() {
    let name = "weight_and_quota_are_set_and_exactly_what_was_there_before_is_restored";
    let Some(group) = Group::new(name, Controller::Cpu) else {
        return;
    };
    // Shares that no weight is equal to.
    if group.has("cpu.max") {
        group.write("cpu.weight", "333");
        group.write("cpu.max", "40000 80000");
    } else {
        group.write("cpu.shares", "1000");
        group.write("cpu.cfs_quota_us", "70000");
    }
    let before = raw(&group);
    let records = TempDir::new().expect("a folder");
    let target = group.target();
    let set = cpu(&records);
    let done = set.set(&target, &terms("weight=200,quota=15ms/10ms"));
    let done = done.expect("in force");
    assert_eq!(done.weight, Some(200));
    assert_eq!(done.quota, Some("15ms/10ms".parse().expect("a quota")));
    let now = raw(&group).concat();
    assert!(now.contains("15000") && now.contains("10000"), "{now}");
    let done = set
        .set(&target, &terms("quota=unlimited"))
        .expect("in force");
    assert_eq!((done.quota, done.weight), (None, Some(200)));
    let all = set.look(None).expect("a look");
    let of_it = |one: &&bonsai_cgroup::cpu::CpuSeen| one.state.target == target;
    let one = all.iter().find(of_it).expect("it is seen");
    assert_eq!(one.holder, Holder::Bonsai);
    assert!(all.iter().all(|one| one.holder != Holder::Nobody));
    let done = cpu(&records).clear(&target).expect("cleared");
    assert!(!done.changed_since);
    assert_eq!(raw(&group), before);
}

#[test]
fn what_the_kernel_refuses_changes_nothing() {
    let name = "what_the_kernel_refuses_changes_nothing";
    let Some(group) = Group::new(name, Controller::Cpu) else {
        return;
    };
    let before = raw(&group);
    let records = TempDir::new().expect("a folder");
    // More than the kernel can count: weight is set by then.
    let absurd = CpuTerms {
        quota: bonsai_units::Change::To(bonsai_units::Quota {
            runtime_us: u64::MAX / 2,
            period_us: 100_000,
        }),
        ..terms("weight=200")
    };
    let error = cpu(&records).set(&group.target(), &absurd);
    let error = error.expect_err("refused");
    assert!(error.to_string().contains("quota"), "{error}");
    assert_eq!(raw(&group), before);
    let error = cpu(&records).clear(&group.target()).expect_err("nothing");
    assert!(matches!(error, Error::NothingHeld { .. }), "{error}");
}

#[test]
fn time_is_reserved_for_all_threads_and_undone_exactly() {
    let _alone = alone();
    let name = "time_is_reserved_for_all_threads_and_undone_exactly";
    if !is_root() {
        return skip(name, "only root may reserve time");
    }
    let Some(group) = Group::new(name, Controller::Cpu) else {
        return;
    };
    let Some(mut python) = Python::start(Some(&group)) else {
        return skip(name, "python3 is not installed");
    };
    let before = python.scheduled();
    // Nicer by 5 than whoever runs the tests.
    let nice = before[0].1;
    assert!(nice >= 5, "{before:?}");
    assert_eq!(before, vec![(0, nice); 3]);
    let records = TempDir::new().expect("a folder");
    let set = cpu(&records);
    let target = group.target();
    let wanted = terms("reserve=1ms/100ms");
    let done = match set.set(&target, &wanted) {
        Err(Error::Scheduler { why, .. }) => return skip(name, &why),
        done => done.expect("reserved"),
    };
    assert_eq!((done.reserved, done.threads), (3, 3));
    let policies = |python: &Python| -> Vec<u32> {
        let all = python.scheduled();
        all.into_iter().map(|(policy, _)| policy).collect()
    };
    assert_eq!(policies(&python), [SCHED_DEADLINE; 3]);

    // A deadline thread may fork and make threads; what it makes has no reservation.
    assert_eq!(python.tell("fork"), "0");
    assert_eq!(python.tell("thread"), "started");
    assert_eq!(policies(&python)[3], 0);
    assert_eq!(set.again(&target).expect("once more"), 1);
    assert_eq!(set.again(&target).expect("once more"), 0);
    assert_eq!(policies(&python), [SCHED_DEADLINE; 4]);
    let done = set.set(&target, &terms("reserve=2ms/100ms")).expect("more");
    assert_eq!((done.reserved, done.threads), (4, 4));

    let done = cpu(&records).clear(&target).expect("cleared");
    assert!(!done.changed_since);
    // The thread that was made meanwhile is as its process was.
    assert_eq!(python.scheduled(), vec![(0, nice); 4]);
}

#[test]
fn more_than_there_is_cannot_be_reserved() {
    let _alone = alone();
    let name = "more_than_there_is_cannot_be_reserved";
    if !is_root() {
        return skip(name, "only root may reserve time");
    }
    let Some(python) = Python::start(None) else {
        return skip(name, "python3 is not installed");
    };
    let before = python.scheduled();
    let records = TempDir::new().expect("a folder");
    let target = Target::Process(python.pid());
    // By our own sum: a CPU for each of three threads is more than 95 % of all but many.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus <= 3 {
        let error = cpu(&records).set(&target, &terms("reserve=10ms/10ms"));
        let error = error.expect_err("too much");
        assert!(matches!(error, Error::ReserveFull { .. }), "{error}");
        assert_eq!(python.scheduled(), before);
    }
    let error = cpu(&records).set(&target, &terms("weight=200"));
    let error = error.expect_err("a process has no weight");
    assert!(matches!(error, Error::ProcessAlone { .. }), "{error}");
    let gone = Target::Process(u32::MAX >> 2);
    let error = cpu(&records).set(&gone, &terms("reserve=1ms/100ms"));
    let error = error.expect_err("no such process");
    assert!(matches!(error, Error::NoProcess { .. }), "{error}");
}

#[test]
fn what_the_kernel_has_no_room_for_is_taken_back_from_all_threads() {
    let _alone = alone();
    let name = "what_the_kernel_has_no_room_for_is_taken_back_from_all_threads";
    if !is_root() {
        return skip(name, "only root may reserve time");
    }
    let (Some(first), Some(second)) = (Python::start(None), Python::start(None)) else {
        return skip(name, "python3 is not installed");
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // Each three threads: together more than 95 %, and by records apart, so that the kernel says so.
    let part = 95 * cpus / 5;
    if part > 99 {
        return skip(name, "so many CPUs have room for both");
    }
    let wanted = terms(&format!("reserve={part}ms/100ms"));
    let records = [(); 2].map(|()| TempDir::new().expect("a folder"));
    let (one, two) = (Target::Process(first.pid()), Target::Process(second.pid()));
    match cpu(&records[0]).set(&one, &wanted) {
        Err(Error::Scheduler { why, .. }) => return skip(name, &why),
        Err(Error::KernelFull { .. }) => return skip(name, "others have reserved time here"),
        done => done.expect("reserved"),
    };
    let before = second.scheduled();
    let error = cpu(&records[1]).set(&two, &wanted).expect_err("no room");
    assert!(matches!(error, Error::KernelFull { .. }), "{error}");
    assert_eq!(second.scheduled(), before);
    // Whoever keeps the same records is told before the kernel is asked.
    let error = cpu(&records[0]).set(&two, &wanted).expect_err("no room");
    assert!(matches!(error, Error::ReserveFull { .. }), "{error}");
    cpu(&records[0]).clear(&one).expect("cleared");
    assert_eq!(first.scheduled(), before);
}

/// Says to [`within_a_group_of_its_own`] that it has a process to itself.
const APART: &str = "BONSAI_TEST_OWN_GROUP";

#[test]
fn a_group_of_its_own_is_entered_left_and_removed() {
    if Group::new(
        "a_group_of_its_own_is_entered_left_and_removed",
        Controller::Cpu,
    )
    .is_none()
    {
        return;
    }
    // A process enters as a whole: what other tests start meanwhile would be in the group, too.
    let own = std::env::current_exe().expect("this test");
    let status = Command::new(own)
        .args(["--exact", "cpu::within_a_group_of_its_own", "--nocapture"])
        .env(APART, "yes")
        .status();
    assert!(status.expect("started").success());
}

#[test]
fn within_a_group_of_its_own() {
    if std::env::var_os(APART).is_none() {
        return;
    }
    let hierarchies = Hierarchies::read().expect("/proc is there");
    let own = || {
        let group = hierarchies.of_process(Controller::Cpu, std::process::id());
        group.expect("a group").path().to_owned()
    };
    let before = own();
    let group = match OwnGroup::enter(&hierarchies, "it") {
        Err(Error::Occupied { .. }) => {
            let name = "a_group_of_its_own_is_entered_left_and_removed";
            return skip(name, "this group has processes");
        }
        group => group.expect("a group"),
    };
    let records = TempDir::new().expect("a folder");
    let set = cpu(&records);
    group
        .set(&set, &terms("weight=50,quota=50%"))
        .expect("in force");
    let within = own();
    assert!(within.contains("bonsai-it-"), "{within}");
    let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
    group.leave().expect("left");
    assert_eq!(own(), before);
    let there = hierarchies.of_process(Controller::Cpu, child.id());
    assert_eq!(there.expect("a group").path(), within);
    assert!(!group.remove().expect("it has a process"));
    child.kill().expect("ours");
    child.wait().expect("ours");
    set.clear(&group.target()).expect("cleared");
    assert!(group.remove().expect("empty"));
    assert!(hierarchies.group(Controller::Cpu, &within).is_err());
}
