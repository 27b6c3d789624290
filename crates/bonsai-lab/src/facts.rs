//! What machine this is: without it, no number means anything.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine, and the library that was measured on it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Host {
    /// Model name of the first CPU.
    pub(crate) cpu: String,
    /// CPUs that this process may use.
    pub(crate) cpus: usize,
    /// Whether a hypervisor runs below.
    pub(crate) virtual_machine: bool,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// The C library.
    pub(crate) libc: String,
    /// What the kernel's clock reads.
    pub(crate) clocksource: String,
    /// How the clock frequency is chosen, if the machine says.
    pub(crate) governor: String,
    /// Bytes of the preload library.
    pub(crate) library_bytes: u64,
    /// Version of Bonsai.
    pub(crate) version: String,
}

impl Host {
    /// Looks at this machine.
    pub(crate) fn read(library: &Path) -> Self {
        let line = |path: &str| {
            fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned())
        };
        let cpuinfo = line("/proc/cpuinfo");
        let field = |name: &str| {
            let found = cpuinfo.lines().find(|l| l.starts_with(name));
            let value = found
                .and_then(|l| l.split_once(':'))
                .map(|(_, value)| value.trim().to_owned());
            value.unwrap_or_else(|| "unknown".to_owned())
        };
        let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
        let libc = libc.map_or_else(
            |_| "unknown".to_owned(),
            |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
        );
        let sys = "/sys/devices/system";
        Self {
            cpu: field("model name"),
            cpus: cpus(),
            virtual_machine: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            kernel: line("/proc/sys/kernel/osrelease"),
            libc,
            clocksource: line(&format!(
                "{sys}/clocksource/clocksource0/current_clocksource"
            )),
            governor: line(&format!("{sys}/cpu/cpu0/cpufreq/scaling_governor")),
            library_bytes: fs::metadata(library).map_or(0, |m| m.len()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// In one paragraph.
    pub(crate) fn describe(&self) -> String {
        let machine = if self.virtual_machine {
            " in a virtual machine"
        } else {
            ""
        };
        format!(
            "Machine: {} x {}{machine}, Linux {}, {}, clock source {}, frequency governor {}. Bonsai {}.",
            self.cpus,
            self.cpu,
            self.kernel,
            self.libc,
            self.clocksource,
            self.governor,
            self.version
        )
    }
}

/// CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The wall clock as `2026-01-31T12:34:56Z`.
pub(crate) fn utc_now() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    bonsai_units::format_utc(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_a_cpu() {
        let host = Host::read(Path::new("/nonexistent"));
        assert!(host.cpus >= 1);
        assert_ne!(host.kernel, "unknown");
        assert!(host.describe().contains(&host.kernel));
    }
}
