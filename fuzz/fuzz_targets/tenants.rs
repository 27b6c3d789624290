//! Any bytes as what a process says of itself: control groups, a descriptor's fdinfo, a command
//! line. What comes out is bounded by what went in, and fit for a terminal once it is cleaned.
#![no_main]

use bonsai_host::tenants::{
    Hypervisor, hypervisor, interface, machine, mark, of_monitor, parse_groups, plain,
};
use libfuzzer_sys::fuzz_target;

const ALL: [Hypervisor; 5] = [
    Hypervisor::Qemu,
    Hypervisor::Firecracker,
    Hypervisor::CloudHypervisor,
    Hypervisor::Crosvm,
    Hypervisor::UserModeLinux,
];

fuzz_target!(|bytes: &[u8]| {
    let groups = parse_groups(bytes);
    for path in groups.paths() {
        assert!(path.starts_with('/'));
        assert!(groups.are_in(path));
        let _ = mark(path);
    }
    assert!(groups.main().is_none_or(|path| path != "/"));
    let _ = (groups.mark(), groups.unit());

    if let Some(name) = interface(bytes) {
        assert!(!name.is_empty() && name.chars().count() < 16);
    }

    for hypervisor in ALL {
        let name = machine(hypervisor, bytes).and_then(|machine| machine.name);
        assert!(name.is_none_or(|name| !name.is_empty()));
    }
    if let Some((id, name)) = of_monitor(bytes) {
        assert!(id.len() == 64 && !name.is_empty());
    }

    let text = String::from_utf8_lossy(bytes);
    let _ = (mark(&text), hypervisor(&text));
    let shown = plain(&text);
    assert!(!shown.contains(char::is_control) && shown.chars().count() <= 121);
    assert!(plain(&shown).chars().take(120).eq(shown.chars().take(120)));
});
