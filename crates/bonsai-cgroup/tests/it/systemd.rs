//! Units of a systemd of our own.

use std::process::Command;

use bonsai_cgroup::{
    Controller, Cpu, Disk, Error, Hierarchies, OwnGroup, Target, Unified, Version,
};
use bonsai_units::DiskTerms;
use tempfile::TempDir;

use crate::manager::{self, ALL_OF_IT, device};
use crate::support::run;

#[test]
fn units_are_limited_through_systemd_so_that_it_shows_them() {
    let name = "units_are_limited_through_systemd_so_that_it_shows_them";
    manager::within(name, "systemd::within");
}

/// What systemctl shows of a property.
fn shown(property: &str) -> String {
    let mut command = Command::new("systemctl");
    let text = run(command.args(["show", "db.service", "-p", property]));
    text.trim().to_owned()
}

/// The part of the test above that is made where process 1 is systemd; nothing elsewhere.
#[test]
fn within() {
    if !manager::is_within() {
        return;
    }
    let device = device().expect("a disk");
    let hierarchies = Hierarchies::read().expect("/proc is there");
    let held = TempDir::new().expect("a folder");
    let held = held.path().join("held");
    let target = Target::Unit("db.service".to_owned());
    let node = device.file();
    let node = node.display();

    let disk = Disk::open(hierarchies.clone(), &held).expect("records");
    let terms = DiskTerms::parse(["read=5MB/s", "read=300/s", "write=unlimited"]);
    let devices = [device.clone()];
    let done = disk.set(&target, &devices, &terms.expect("terms"));
    let done = done.expect("in force");
    let expected = [Some(5_000_000), None, Some(300), None];
    assert_eq!(done.devices[0].1.as_array(), expected);
    let read = format!("IOReadBandwidthMax={node} 5000000");
    assert_eq!(shown("IOReadBandwidthMax"), read);
    assert_eq!(shown("IOReadIOPSMax"), format!("IOReadIOPSMax={node} 300"));
    assert_eq!(shown("IOWriteBandwidthMax"), "");
    run(Command::new("systemctl").arg("daemon-reload"));
    let path = done.group.expect("it runs");
    let seen = disk.look(Some(&path)).expect("a look").remove(0);
    let mut on = seen.devices.iter();
    let one = on.find(|one| one.device == device).expect("limited");
    assert_eq!(one.limits.as_array(), expected, "after a reload");
    assert_eq!(one.holder, bonsai_cgroup::Holder::Bonsai);

    // Where it is, and where it will be while it does not run.
    let to_be = || hierarchies.path_to_be(&target).expect("a unit");
    assert_eq!(to_be(), path);
    run(Command::new("systemctl").args(["stop", "db.service"]));
    assert_eq!(to_be(), path, "while it does not run");
    run(Command::new("systemctl").args(["start", "db.service"]));
    // In a cgroup namespace of its own, levels are not those of the machine.
    let error = Unified::find().expect_err("it is not the topmost");
    assert!(matches!(error, Error::NotTop { .. }), "{error}");

    // Named by its group it is the same unit.
    let by_path = Target::Cgroup(path);
    let done = disk.clear(&by_path, None).expect("cleared");
    assert_eq!(done.target, target);
    assert_eq!(shown("IOReadBandwidthMax"), "");
    assert_eq!(shown("IOReadIOPSMax"), "");
    let write = format!("IOWriteBandwidthMax={node} 9000000");
    assert_eq!(shown("IOWriteBandwidthMax"), write);

    let cpu = Cpu::open(hierarchies.clone(), &held).expect("records");
    let terms = "weight=200,quota=15ms/10ms".parse().expect("terms");
    let done = cpu.set(&by_path, &terms).expect("in force");
    assert_eq!(done.target, target);
    assert_eq!(shown("CPUWeight"), "CPUWeight=200");
    assert_eq!(shown("CPUQuotaPerSecUSec"), "CPUQuotaPerSecUSec=1.500000s");
    assert_eq!(shown("CPUQuotaPeriodUSec"), "CPUQuotaPeriodUSec=10ms");
    cpu.clear(&target).expect("cleared");
    assert_eq!(shown("CPUWeight"), "CPUWeight=[not set]");
    assert_eq!(shown("CPUQuotaPerSecUSec"), "CPUQuotaPerSecUSec=700ms");
    assert_eq!(shown("CPUQuotaPeriodUSec"), "CPUQuotaPeriodUSec=infinity");

    for (unit, hint) in [("no-such.service", "no unit"), ("odd name", "no unit")] {
        let error = cpu.clear(&Target::Unit(unit.to_owned())).expect_err(unit);
        assert!(error.to_string().contains(hint), "{error}");
        assert!(matches!(error, Error::NoUnit { .. }));
    }

    let own = OwnGroup::enter(&hierarchies, "it").expect("a scope");
    own.set(&cpu, &"weight=50,quota=50%".parse().expect("terms"))
        .expect("in force");
    let group = hierarchies.of_process(Controller::Cpu, std::process::id());
    let group = group.expect("a group");
    assert!(group.path().contains("bonsai-it-"), "{}", group.path());
    let unlimited = group.version() == Version::V1;
    assert_eq!(unlimited, !group.path().ends_with(".scope"));
    own.leave().expect("left");
    own.remove().expect("removed");
    println!("{ALL_OF_IT}");
}
