//! Virtual machines: which processes are one, and what it is called.
//!
//! What makes a process a machine is the program that it runs; its name stands in the command line
//! or, for those of libvirt, in `run/libvirt/qemu/NAME.pid` and in the control group.

use std::collections::BTreeMap;
use std::fmt;

use super::roots::{Roots, names_in, read};
use super::words::file_name;

/// What runs virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Hypervisor {
    /// QEMU, with and without KVM.
    Qemu,
    /// Firecracker.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
    /// crosvm.
    Crosvm,
    /// User-mode Linux.
    UserModeLinux,
}

impl fmt::Display for Hypervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Qemu => "qemu",
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::Crosvm => "crosvm",
            Self::UserModeLinux => "user-mode linux",
        })
    }
}

/// A running virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// What runs it.
    pub hypervisor: Hypervisor,
    /// Its name, if it has one. Any text.
    pub name: Option<String>,
    /// Whether libvirt manages it.
    pub libvirt: bool,
}

/// What programs of this name run, if that can be a virtual machine: the last component of an
/// executable's path.
#[must_use]
pub fn hypervisor(program: &str) -> Option<Hypervisor> {
    match program {
        "qemu-kvm" | "kvm" | "qemu" => Some(Hypervisor::Qemu),
        name if name.starts_with("qemu-system-") => Some(Hypervisor::Qemu),
        "firecracker" => Some(Hypervisor::Firecracker),
        "cloud-hypervisor" => Some(Hypervisor::CloudHypervisor),
        "crosvm" => Some(Hypervisor::Crosvm),
        "linux" | "linux.uml" | "vmlinux" => Some(Hypervisor::UserModeLinux),
        _ => None,
    }
}

/// The machine that a process with this command line (words, each ended by a zero byte) is.
/// `None` if it is none after all: a kernel is also a file that tools work on.
#[must_use]
pub fn machine(hypervisor: Hypervisor, command_line: &[u8]) -> Option<Machine> {
    let text = String::from_utf8_lossy(command_line);
    let words: Vec<&str> = text.split_terminator('\0').skip(1).collect();
    let name = match hypervisor {
        Hypervisor::Qemu => {
            option(&words, &["-name", "--name"]).and_then(|value| guest_name(&value))
        }
        // Its documented default.
        Hypervisor::Firecracker => {
            option(&words, &["--id"]).or_else(|| Some("anonymous-instance".to_owned()))
        }
        Hypervisor::CloudHypervisor => {
            option(&words, &["--api-socket"]).and_then(|socket| socket_name(&socket))
        }
        Hypervisor::Crosvm => {
            if words.first() != Some(&"run") {
                return None;
            }
            let named = option(&words, &["--name"]);
            named.or_else(|| socket_name(&option(&words, &["-s", "--socket"])?))
        }
        Hypervisor::UserModeLinux => {
            const OF_A_KERNEL: [&str; 7] = [
                "umid=",
                "ubd",
                "root=",
                "rootfstype=",
                "vec",
                "eth",
                "init=",
            ];
            let boots = |word: &str| OF_A_KERNEL.iter().any(|start| word.starts_with(start));
            if !words.iter().any(|word| boots(word)) {
                return None;
            }
            let id = words
                .iter()
                .rev()
                .find_map(|word| word.strip_prefix("umid="));
            id.map(str::to_owned)
        }
    };
    let name = name.filter(|name| !name.is_empty());
    Some(Machine {
        hypervisor,
        name,
        libvirt: false,
    })
}

/// The value of the last `--option value` or `--option=value`.
fn option(words: &[&str], names: &[&str]) -> Option<String> {
    let mut value = None;
    for (at, word) in words.iter().enumerate() {
        for name in names {
            match word.strip_prefix(name) {
                Some("") => value = words.get(at + 1).copied().or(value),
                Some(rest) => value = rest.strip_prefix('=').or(value),
                None => {}
            }
        }
    }
    value.map(str::to_owned)
}

/// The name in the value of QEMU's `-name [guest=]NAME[,process=...][,debug-threads=on]`. A comma in
/// a name is written twice (qemu(1), as in all of its options).
fn guest_name(value: &str) -> Option<String> {
    let mut parts = vec![String::new()];
    let mut rest = value.chars().peekable();
    while let Some(c) = rest.next() {
        if c == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let explicit = parts.iter().find_map(|part| part.strip_prefix("guest="));
    let first = parts.first().map(String::as_str);
    // Only the first part may stand without its key.
    let implicit =
        first.filter(|part| !part.starts_with("process=") && !part.starts_with("debug-threads="));
    explicit.or(implicit).map(str::to_owned)
}

/// What a control socket is called after: the file's name without its end, `path=` or not.
fn socket_name(value: &str) -> Option<String> {
    let path = value.split(',').find(|part| !part.starts_with("fd="))?;
    let path = path.strip_prefix("path=").unwrap_or(path);
    let name = file_name(path.as_bytes());
    let stem = name
        .rsplit_once('.')
        .map_or(name.as_str(), |(stem, _)| stem);
    (!stem.is_empty()).then(|| stem.to_owned())
}

/// The machines of libvirt: names by PID (`run/libvirt/qemu/NAME.pid`).
pub(super) fn of_libvirt(roots: &Roots) -> BTreeMap<u32, String> {
    let folder = roots.run.join("libvirt/qemu");
    let files = names_in(&folder).into_iter();
    files
        .filter_map(|file| {
            let name = file.strip_suffix(".pid")?.to_owned();
            let text = String::from_utf8(read(&folder.join(&file), 64)?).ok()?;
            Some((text.trim().parse().ok()?, name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(program: &str, words: &[&str]) -> Option<Option<String>> {
        let line: String = words.iter().map(|word| format!("{word}\0")).collect();
        let line = format!("{program}\0{line}");
        machine(hypervisor(program)?, line.as_bytes()).map(|machine| machine.name)
    }

    #[test]
    fn the_name_that_qemu_was_given() {
        for (value, wanted) in [
            ("guest1", "guest1"),
            ("guest=guest1,debug-threads=on", "guest1"),
            ("debug-threads=on,guest=a=b", "a=b"),
            ("a,,b,process=x", "a,b"),
            ("guest=a,,,process=x", "a,"),
        ] {
            let found = name("qemu-system-x86_64", &["-S", "-name", value, "-m", "1"]);
            assert_eq!(found, Some(Some(wanted.to_owned())), "{value}");
        }
        for words in [
            &["-name"][..],
            &["-S"],
            &["-name", "process=x"],
            &["-name", ""],
        ] {
            assert_eq!(name("qemu-kvm", words), Some(None), "{words:?}");
        }
        assert_eq!(name("qemu-img", &["-name", "x"]), None);
        assert_eq!(name("nginx", &["-name", "x"]), None);
    }

    #[test]
    fn the_names_that_others_were_given() {
        let named = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(
            name("firecracker", &["--id", "vm1", "--api-sock", "/x"]),
            named("vm1")
        );
        assert_eq!(name("firecracker", &["--id=vm2"]), named("vm2"));
        assert_eq!(name("firecracker", &[]), named("anonymous-instance"));
        assert_eq!(
            name("cloud-hypervisor", &["--api-socket", "path=/run/web.sock"]),
            named("web")
        );
        assert_eq!(
            name("cloud-hypervisor", &["--api-socket=/run/web.sock"]),
            named("web")
        );
        assert_eq!(name("cloud-hypervisor", &["--kernel", "x"]), Some(None));
        assert_eq!(
            name("crosvm", &["run", "--name", "a", "-s", "/run/b.sock"]),
            named("a")
        );
        assert_eq!(name("crosvm", &["run", "-s", "/run/b.sock"]), named("b"));
        assert_eq!(name("crosvm", &["stop", "/run/b.sock"]), None);
        assert_eq!(name("linux", &["ubda=root", "umid=uml1"]), named("uml1"));
        assert_eq!(name("linux", &["ubda=root"]), Some(None));
        assert_eq!(name("linux", &["--help"]), None);
    }
}
