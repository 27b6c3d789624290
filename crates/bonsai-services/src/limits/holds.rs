//! Which limits a service can hold.
//!
//! A program under the library waits at every call of the table. A server counts its clients' requests instead, as the calls
//! that they would be, and waits for limits on these alone; any other limit would be accepted, shown, and do nothing. So the
//! service's ledger says which kind it is, and that is what every change of limits is checked against.

use bonsai_calls::{CALLS, Selection, names, select};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, flags};
use bonsai_units::Setting;

use super::{Limit, LimitProblem};

/// The calls that requests of a server count as.
const REQUESTS: [&str; 2] = ["pread64", "pwrite64"];

/// Which limits a service can hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holds {
    /// Those on every call.
    #[default]
    Everything,
    /// Those on reads and writes of a disk image's clients.
    Requests,
}

impl Holds {
    /// As the ledger of a service says.
    #[must_use]
    pub fn of(ledger: &Ledger) -> Self {
        match ledger.header.flags.load(Ordering::Relaxed) & flags::REQUESTS {
            0 => Self::Everything,
            _ => Self::Requests,
        }
    }

    /// Whether a limit on these calls does anything.
    #[must_use]
    pub fn covers(self, selection: Selection) -> bool {
        self == Self::Everything
            || CALLS
                .iter()
                .any(|call| REQUESTS.contains(&call.name) && selection.contains(call))
    }

    /// Checks limits that are to come into force; lifting one is always right.
    ///
    /// # Errors
    /// [`LimitProblem::NotHeld`].
    pub fn check(self, service: &str, limits: &[Limit]) -> Result<(), LimitProblem> {
        let is_idle = |limit: &&Limit| {
            limit.setting != Setting::Unlimited
                && self == Self::Requests
                && (limit.is_narrow() || !self.covers(limit.selection))
        };
        match limits.iter().find(is_idle) {
            None => Ok(()),
            Some(limit) => Err(LimitProblem::NotHeld {
                service: service.to_owned(),
                name: limit.name.clone(),
                held: held(),
            }),
        }
    }
}

/// The names of limits that a server holds, for people.
fn held() -> String {
    let of = |name: &&str| select(name).is_some_and(|calls| Holds::Requests.covers(calls));
    let held: Vec<&str> = names().filter(of).collect();
    held.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_holds_limits_on_reads_and_writes_alone() {
        let problem = |text: &str| {
            let limits = [Limit::parse(text).expect(text)];
            assert_eq!(Holds::Everything.check("web", &limits), Ok(()), "{text}");
            Holds::Requests.check("web", &limits).err()
        };
        for text in [
            "read=1MB/s",
            "write=100/s",
            "disk=1MB/s",
            "all=1000/s",
            "pread64=5/s",
            "pwrite64=1MB/s",
            "sync=unlimited",
            "read@/x=unlimited",
        ] {
            assert_eq!(problem(text), None, "{text}");
        }
        for text in [
            "sync=2/s",
            "fsync=1/s",
            "fdatasync=1/s",
            "send=5MB/s",
            "open=1/s",
            "preadv=1MB/s",
            "read@/x=1MB/s",
            "read/stream=1MB/s",
            "send@10.0.0.1=1MB/s",
        ] {
            let said = problem(text).expect(text).to_string();
            let wanted = "web serves a disk image, and holds limits on all, read, write, disk, pread64, pwrite64 alone";
            assert!(said.starts_with(wanted), "{said}");
        }
    }
}
