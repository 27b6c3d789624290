//! What the machine is able to do, compared with what can be known from elsewhere.

use std::collections::BTreeSet;
use std::fs;

use bonsai_host::sys::{Capability, State, capabilities, kernel_release};

fn find(all: &[Capability], name: &str) -> Capability {
    let found = all.iter().find(|capability| capability.name == name);
    found
        .unwrap_or_else(|| panic!("no `{name}` in {all:?}"))
        .clone()
}

#[test]
fn every_ability_has_its_name_and_reason() {
    let all = capabilities();
    let names: BTreeSet<&str> = all.iter().map(|capability| capability.name).collect();
    assert_eq!(names.len(), all.len());
    for Capability {
        name,
        state,
        detail,
    } in &all
    {
        println!("{name}: {state:?} ({detail})");
        assert!(
            !detail.is_empty() && !detail.contains('\n'),
            "{name}: {detail}"
        );
    }
}

#[test]
fn abilities_fit_the_kernel_release() {
    let all = capabilities();
    let release = kernel_release().expect("a release with a number");
    let uname = fs::read_to_string("/proc/sys/kernel/osrelease").expect("readable");
    assert_eq!(release.text, uname.trim());
    for (name, major, minor) in [
        ("futex_waitv", 5, 16),
        ("madvise_populate_write", 5, 14),
        ("madvise_wipe_on_fork", 4, 14),
    ] {
        let capability = find(&all, name);
        // A sandbox may refuse a call that the kernel has; nothing adds one it has not.
        if !release.at_least(major, minor) {
            assert_ne!(
                capability.state,
                State::Yes,
                "{name}: {}",
                capability.detail
            );
        } else if capability.state != State::Yes {
            println!("{name} is refused here: {}", capability.detail);
        }
    }
}

#[test]
fn a_try_to_write_into_text_leaves_the_program_whole() {
    let exe = fs::read("/proc/self/exe").expect("readable");
    let capability = find(&capabilities(), "text_write");
    assert_ne!(capability.state, State::Unknown, "{}", capability.detail);
    assert_eq!(fs::read("/proc/self/exe").expect("readable"), exe);
    let maps = fs::read_to_string("/proc/self/maps").expect("readable");
    // The page is unmapped again: nothing executable starts at the beginning of a file.
    let left = maps.lines().filter(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_file = fields.get(5).is_some_and(|path| path.starts_with('/'));
        is_file && fields.get(1) == Some(&"r-xp") && fields.get(2) == Some(&"00000000")
    });
    assert_eq!(left.count(), 0, "{maps}");
}

#[test]
fn shared_memory_and_clock_agree_with_their_files() {
    let all = capabilities();
    let shm = find(&all, "shared_memory");
    assert_eq!(
        shm.state == State::Yes,
        tempfile::tempfile_in("/dev/shm").is_ok(),
        "{shm:?}"
    );
    let clock = find(&all, "clock_source");
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match fs::read_to_string(path) {
        Ok(source) => assert!(clock.detail.starts_with(source.trim()), "{clock:?}"),
        Err(_) => assert_eq!(clock.state, State::Unknown, "{clock:?}"),
    }
    let cgroup = find(&all, "cgroup_io");
    let mounted = ["/sys/fs/cgroup/blkio", "/sys/fs/cgroup/io.stat"].map(fs::exists);
    if mounted.into_iter().flatten().any(|exists| exists) {
        assert_eq!(cgroup.state, State::Yes, "{cgroup:?}");
    }
}
