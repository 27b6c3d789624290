//! Services whose processes are in pid namespaces of their own: equal numbers in one ledger, shown by
//! the numbers of the machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bonsai_ledger::{Ledger, own_namespace};
use serde_json::Value;

use crate::support::{PATIENCE, Place, compiled, signal, skip, static_program};

/// A namespace with its own `/proc`, as containers have it.
const OWN: [&str; 4] = ["unshare", "-p", "--fork", "--mount-proc"];

/// Reads a number of bytes of a file, 4 KiB a call, and stays until its input ends.
const READER: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **v) {
    static char block[4096];
    int fd = open(v[1], O_RDONLY);
    for (long left = atol(v[2]); left > 0; left -= 4096)
        if (pread(fd, block, 4096, 0) != 4096) return 1;
    close(1);
    while (n > 3 && read(0, block, 1) > 0) {}
    return 0;
}"#;

/// True where a pid namespace can be made; otherwise a skip.
fn can_unshare(test: &str) -> bool {
    let made = Command::new(OWN[0]).args(&OWN[1..]).arg("true").output();
    let can = made.is_ok_and(|output| output.status.success());
    if !can {
        skip(
            test,
            "unshare -p --fork --mount-proc is refused (root, user namespaces)",
        );
    }
    can
}

/// A place, a reader, and a file for it.
fn place(test: &str, is_static: bool) -> Option<(Place, PathBuf, PathBuf)> {
    if !can_unshare(test) {
        return None;
    }
    let place = Place::new(test)?;
    let reader = match is_static {
        true => static_program(test, &place, READER),
        false => compiled(test, &place, READER, ".reader", &[]),
    }?;
    let file = place.path().join(".file");
    std::fs::write(&file, vec![1; 4096]).expect("a file");
    Some((place, reader, file))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path")
}

fn numbers(value: &Value) -> BTreeSet<u64> {
    let all = value.as_array().expect("processes").iter();
    all.map(|one| one["pid"].as_u64().expect("a number"))
        .collect()
}

/// The process and all that descend from it, by the kernel.
fn descendants(pid: u32) -> BTreeSet<u64> {
    let processes = bonsai_host::proc::Processes::read().expect("/proc");
    let found = processes.descendants(pid).into_iter();
    found.map(|process| process.pid.into()).collect()
}

#[test]
fn members_of_a_pid_namespace_are_shown_by_the_numbers_of_the_machine() {
    let test = "members_of_a_pid_namespace_are_shown_by_the_numbers_of_the_machine";
    let Some((place, reader, file)) = place(test, false) else {
        return;
    };
    let script = format!("'{}' '{}' 400000000", text(&reader), text(&file));
    let args = [
        &["-l", "read=400kB/s", "--"],
        &OWN[..],
        &["sh", "-c"],
        &[&script, "x"],
    ]
    .concat();
    let running = place.start("ns", &args);
    let service = place.until("ns", |service| service["waiting"][0].is_object());
    let members = descendants(running.pid());
    let shown = numbers(&service["processes"]);
    assert!(
        shown.is_subset(&members),
        "{shown:?} of {members:?}: {service:#}"
    );
    assert_eq!(
        service["uncovered"].as_array().map(Vec::len),
        Some(0),
        "{service:#}"
    );
    let waiting = &service["waiting"][0];
    let pid = waiting["pid"].as_u64().expect("a number");
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it lives");
    assert_eq!(comm.trim(), ".reader", "{service:#}");
    assert_eq!(
        (&waiting["program"], &waiting["tid"]),
        (&".reader".into(), &pid.into())
    );
    for process in service["processes"].as_array().expect("processes") {
        assert_eq!(process["covered"], "patched", "{process:#}");
    }
    let audit = place.json(&["audit", "ns", "--json"]);
    assert!(
        numbers(&audit["processes"]).is_subset(&members),
        "{audit:#}"
    );
    let unseen = audit["total"]["read"]["unseen"].as_u64().expect("known");
    assert!(unseen < 200_000, "{audit:#}");
    let end = Instant::now() + PATIENCE;
    loop {
        let why = place.json(&["why", "ns", "--for", "500ms", "--json"]);
        if why["cause"] == "bonsai" {
            break;
        }
        assert!(Instant::now() < end, "{why:#}");
    }
    // From a namespace beside it none of them is seen, and no stranger is named instead of them.
    let mut beside = Command::new(OWN[0]);
    let status = place.bonsai(&["status", "ns", "--json", "--interval", "10ms"]);
    beside
        .args(&OWN[1..])
        .arg(status.get_program())
        .args(status.get_args());
    for (name, value) in status.get_envs() {
        match value {
            Some(value) => beside.env(name, value),
            None => beside.env_remove(name),
        };
    }
    let said = beside.output().expect("unshare");
    let seen: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
    let seen = &seen["services"][0];
    assert_eq!(seen["name"], "ns", "{seen:#}");
    for list in ["processes", "uncovered", "waiting"] {
        assert_eq!(seen[list].as_array().map(Vec::len), Some(0), "{seen:#}");
    }
    // unshare(1) passes no signal on.
    signal(u32::try_from(pid).expect("a number"), "KILL");
    running.end();
}

#[test]
fn equal_numbers_in_two_pid_namespaces_are_counted_apart() {
    let test = "equal_numbers_in_two_pid_namespaces_are_counted_apart";
    let Some((place, reader, file)) = place(test, false) else {
        return;
    };
    // Two processes that are number 1 of their namespace, at the same time.
    let (unshare, reader, file) = (OWN.join(" "), text(&reader), text(&file));
    let bytes = [1_228_800_u64, 409_600];
    let each = |bytes| format!("{unshare} '{reader}' '{file}' {bytes} stay <&3 & ");
    let script = format!("exec 3<&0; {}{}wait", each(bytes[0]), each(bytes[1]));
    let begin = Instant::now();
    let running = place.start(
        "two",
        &["-l", "pread64=800kB/s:burst=8kB", "--", "sh", "-c", &script],
    );
    let total: u64 = bytes.iter().sum();
    let service = place.until("two", |service| {
        let all = service["processes"].as_array().expect("processes").iter();
        let sum = all.filter_map(|one| one["bytes"].as_u64()).sum::<u64>();
        sum >= total && service["waiting"].as_array().is_some_and(Vec::is_empty)
    });
    let took = begin.elapsed();
    // Together they have what one service has.
    assert!(took > Duration::from_millis(1950), "{took:?}: {service:#}");
    let audit = place.json(&["audit", "two", "--json"]);
    let readers = |processes: &Value| -> Vec<Value> {
        let all = processes.as_array().expect("processes").iter();
        all.filter(|one| one["program"] == ".reader")
            .cloned()
            .collect()
    };
    let found = readers(&audit["processes"]);
    let mut counted: Vec<(u64, u64)> = Vec::new();
    for process in &found {
        let calls = process["calls"].as_array().expect("calls").iter();
        let mut calls = calls.filter(|call| call["call"] == "pread64");
        let call = calls.next().unwrap_or_else(|| panic!("{audit:#}"));
        assert!(calls.next().is_none(), "{audit:#}");
        let number = |name: &str| call[name].as_u64().expect("a number");
        counted.push((number("calls"), number("bytes")));
        let pid = process["pid"].as_u64().expect("a number");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        assert!(
            status
                .lines()
                .any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
        );
    }
    counted.sort_unstable();
    let exact = [bytes[1], bytes[0]].map(|bytes| (bytes / 4096, bytes));
    assert_eq!(counted, exact, "{audit:#}");
    assert_eq!(readers(&service["processes"]).len(), 2, "{service:#}");
    let said = running.end();
    assert_eq!(said.err, "", "{said:?}");
}

#[test]
fn static_programs_in_a_pid_namespace_are_limited() {
    let test = "static_programs_in_a_pid_namespace_are_limited";
    let Some((place, reader, file)) = place(test, true) else {
        return;
    };
    let (reader, file) = (text(&reader), text(&file));
    let limits = ["run", "-v", "-l", "pread64=400kB/s:burst=8kB", "--"];
    let by_shell = format!("'{reader}' '{file}' 204800; '{reader}' '{file}' 204800");
    for program in [&[reader, file, "409600"][..], &["sh", "-c", &by_shell]] {
        // With the numbers of the machine in /proc, too.
        for own in [&OWN[..], &OWN[..3]] {
            let begin = Instant::now();
            let said = place.say(&[&limits[..], own, program].concat());
            let took = begin.elapsed();
            assert_eq!(said.code, Some(0), "{said:?}");
            assert!(took > Duration::from_millis(950), "{took:?}: {said:?}");
            assert!(!said.err.contains("not covered"), "{said:?}");
        }
    }
}

#[test]
fn what_processes_of_a_pid_namespace_leave_is_freed() {
    let test = "what_processes_of_a_pid_namespace_leave_is_freed";
    let Some((place, reader, file)) = place(test, false) else {
        return;
    };
    let (unshare, reader, file) = (OWN.join(" "), text(&reader), text(&file));
    let script = format!("{unshare} '{reader}' '{file}' 40960; read x");
    let running = place.start("left", &["--", "sh", "-c", &script]);
    let ledger = Ledger::open(&place.path().join("left/ledger")).expect("its ledger");
    let read = |ledger: &Ledger| ledger.totals().iter().map(|total| total.bytes).sum::<u64>();
    let end = Instant::now() + PATIENCE;
    let wait = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(Instant::now() < end, "{what}: {:?}", ledger.process_table());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("it is counted", &|| read(&ledger) >= 40_960);
    // Until then it is marked, for a second look.
    wait("it has ended", &|| {
        let table = ledger.process_table();
        table.iter().any(|entry| entry.id.has_ended())
    });
    wait("nothing is left", &|| {
        ledger.foreign_namespaces(own_namespace()).next().is_none()
    });
    // Counters are not forgotten, and the shell's entry stays.
    assert!(read(&ledger) >= 40_960);
    let table = ledger.process_table();
    assert!(
        table
            .iter()
            .any(|entry| entry.id.namespace == own_namespace()),
        "{table:?}"
    );
    drop(running);
}
