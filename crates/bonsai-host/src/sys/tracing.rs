//! Who may be traced: what puts programs without a loader, and processes that run already, under
//! limits; and whether a filter is in the way.

use std::fs;

use rustix::thread::{CapabilitySet, capabilities};

use super::{Capability, State};

/// How far Yama goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// It is not there.
    Off,
    /// `kernel.yama.ptrace_scope`.
    Number(u32),
    /// What stands there is no number.
    Strange,
}

impl Scope {
    fn here() -> Self {
        match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
            Ok(text) => Self::parse(&text),
            Err(_) => Self::Off,
        }
    }

    fn parse(text: &str) -> Self {
        text.trim().parse().map_or(Self::Strange, Self::Number)
    }

    /// Whether programs can be traced by who starts them (`children`), or those that run already.
    fn allows(self, children: bool, privileged: bool) -> (State, &'static str) {
        match self {
            Self::Off => (State::Yes, "no restriction (Yama is off)"),
            Self::Number(0) => (State::Yes, "scope 0: any process of the same user"),
            Self::Number(1 | 2) if privileged => (State::Yes, "root may trace"),
            Self::Number(1) if children => (State::Yes, "scope 1: own children, which is enough"),
            Self::Number(1) => (State::No, "scope 1: own children only, unless root"),
            Self::Number(2) => (State::No, "scope 2: only root may trace"),
            Self::Number(3) => (State::No, "scope 3: nobody may trace until the next boot"),
            Self::Number(_) | Self::Strange => (State::Unknown, "the scope is not one of 0 to 3"),
        }
    }
}

fn is_privileged() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

pub(super) fn ptrace() -> Capability {
    let (state, detail) = Scope::here().allows(true, is_privileged());
    Capability::new("ptrace", state, detail)
}

pub(super) fn attach() -> Capability {
    let (state, detail) = Scope::here().allows(false, is_privileged());
    Capability::new("attach", state, detail)
}

pub(super) fn other_users() -> Capability {
    let name = "attach_other_users";
    if is_privileged() {
        let detail = "also processes of other users, and set-user-ID programs";
        Capability::new(name, State::Yes, detail)
    } else {
        Capability::new(name, State::No, "needs root (CAP_SYS_PTRACE)")
    }
}

pub(super) fn unfiltered() -> Capability {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    let (state, detail) = match mode.map(str::trim) {
        Some("0") => (State::Yes, "no seccomp filter"),
        Some(_) => (
            State::No,
            "a seccomp filter: what comes by dlopen is left as it is",
        ),
        None => (
            State::Unknown,
            "/proc/self/status does not tell of a seccomp filter",
        ),
    };
    Capability::new("unfiltered", state, detail)
}

#[cfg(test)]
mod tests {
    use super::Scope;
    use crate::sys::State::{No, Unknown, Yes};

    #[test]
    fn each_scope_allows_what_its_documentation_says() {
        // Own children, others; the same as root.
        for (text, expected) in [
            ("0\n", [Yes, Yes, Yes, Yes]),
            ("1\n", [Yes, No, Yes, Yes]),
            ("2\n", [No, No, Yes, Yes]),
            ("3\n", [No, No, No, No]),
            ("4", [Unknown; 4]),
            ("x", [Unknown; 4]),
        ] {
            let scope = Scope::parse(text);
            let states = [(true, false), (false, false), (true, true), (false, true)]
                .map(|(children, privileged)| scope.allows(children, privileged).0);
            assert_eq!(states, expected, "{text}");
        }
        assert_eq!(Scope::Off.allows(false, false).0, Yes);
    }
}
