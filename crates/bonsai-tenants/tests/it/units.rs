//! A unit of systemd that is a service.

use std::process::Command;

use bonsai_tenants::bodies::Terms;
use tempfile::tempdir;

use crate::manager::{self, ALL_OF_IT, device};
use crate::support::{NOTHING, bodies, run, until};

#[test]
fn a_unit_is_counted_limited_and_found_again_when_it_is_restarted() {
    let name = "a_unit_is_counted_limited_and_found_again_when_it_is_restarted";
    manager::within(name, "units::within");
}

/// What systemctl shows of a property.
fn shown(property: &str) -> String {
    let text = run(&format!("systemctl show db.service -p {property}"));
    // A list without anything in it is not shown.
    let value = text.trim().split_once('=').map(|(_, value)| value);
    value.unwrap_or_default().to_owned()
}

/// The part of the test above that is made where process 1 is systemd; nothing elsewhere.
#[test]
fn within() {
    if !manager::is_within() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let node = device().expect("a disk").file();
    let mut first = bodies(folder.path(), &[("db", "unit:db.service")]);
    let body = until(&mut first, &NOTHING, "db", |body| body.there);
    assert_eq!(body.pid.map(|pid| pid.to_string()), Some(shown("MainPID")));
    let cpu = (shown("CPUWeight"), shown("CPUQuotaPerSecUSec"));
    let terms = Terms {
        read: Some(5_000_000),
        write: None,
        cpu: Some("weight=200".parse().expect("terms")),
    };
    first.put("db", &terms).expect("set");
    let limit = format!("{} 5000000", node.display());
    assert!(shown("IOReadBandwidthMax").contains(&limit));
    assert_eq!(shown("CPUWeight"), "200");
    let writes = shown("IOWriteBandwidthMax");
    assert!(
        writes.contains("9000000"),
        "what the unit itself says stays: {writes}"
    );
    drop(first);
    let mut next = bodies(folder.path(), &[("db", "unit:db.service")]);
    let same = until(&mut next, &NOTHING, "db", |body| body.there);
    next.put("db", &terms).expect("as it is");
    assert_eq!(same.pid, body.pid);

    run("systemctl stop db.service");
    let gone = until(&mut next, &NOTHING, "db", |body| !body.there);
    let why = gone.why.expect("words");
    assert!(why.contains("db.service has no control group now"), "{why}");
    run("systemctl start db.service");
    let other = until(&mut next, &NOTHING, "db", |body| {
        body.there && body.pid.is_some()
    });
    assert_ne!((other.pid, other.born_ns), (same.pid, same.born_ns));
    let limited = until(&mut next, &NOTHING, "db", |body| body.totals[2].is_some());
    assert_eq!((limited.disk_why, limited.cpu_why), (None, None));
    assert!(shown("IOReadBandwidthMax").contains(&limit));

    // By somebody else's hand.
    run("systemctl set-property --runtime db.service CPUWeight=33");
    until(&mut next, &NOTHING, "db", |body| body.cpu_why.is_some());
    assert_eq!(shown("CPUWeight"), "200");
    next.release("db");
    assert!(!shown("IOReadBandwidthMax").contains(&limit));
    assert_eq!((shown("CPUWeight"), shown("CPUQuotaPerSecUSec")), cpu);
    assert_eq!(shown("IOWriteBandwidthMax"), writes);
    let status = Command::new("systemctl")
        .args(["is-active", "db.service"])
        .status();
    assert!(status.expect("started").success());
    println!("{ALL_OF_IT}");
}
