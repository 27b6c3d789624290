//! By what means packets find their class: the kernel's programs (BPF), or plain filters where it
//! has or allows none.
//!
//! ```text
//!            what comes in by a link                      what leaves by an uplink
//!   bpf      program -> one block that all share          program -> class of who sends it
//!            (before Linux 6.14: program, mirred)
//!   u32      u32, mirred -> a block of the link's own     nothing: there is one class
//! ```
//!
//! The two differ in the filters of a link and in the block, so that one takes the place of the
//! other while both are there: the program is asked first.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use crate::bpf::{Table, Which};
use crate::error::Error;
use crate::hooks::Hook;
use crate::namespace;
use crate::netlink::Socket;
use crate::tc::filter::{self, Place};
use crate::tc::queue::Kind;
use crate::tc::{self, Handle, Write};
use crate::wanted::Wanted;

/// By what means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Programs at the filter `bpf`: everything.
    Bpf,
    /// The filter `u32` and the action `mirred`: limits of both directions, and no shares of uplinks.
    U32,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bpf => "bpf",
            Self::U32 => "u32",
        })
    }
}

impl Plan {
    /// What this kernel offers and allows: tried once, where nobody is.
    pub(crate) fn tried() -> Self {
        static TRIED: OnceLock<Plan> = OnceLock::new();
        *TRIED.get_or_init(|| match fault() {
            None => Self::Bpf,
            Some(_) => Self::U32,
        })
    }

    /// Whether all that is wanted can be so.
    pub(crate) fn check(self, wanted: &Wanted, name: impl Fn(u32) -> String) -> Result<(), Error> {
        if self == Self::Bpf {
            return Ok(());
        }
        let share = wanted.links.iter().find(|(_, terms)| terms.share.is_some());
        let of_link = share.map(|(index, _)| name(*index));
        let of = of_link.or_else(|| wanted.groups.keys().next().cloned());
        of.map_or(Ok(()), |of| Err(Error::Wrong(format!("{of}: {NO_SHARES}"))))
    }
}

/// The plan, and what else of the kernel decides what there has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) plan: Plan,
    /// Whether a program can send packets through a block itself: see [`can_redirect`].
    pub(crate) redirects: bool,
    /// The queues that classes end in.
    pub(crate) queues: Kind,
    /// Where others have the turn that a filter would have.
    pub(crate) late: BTreeSet<(u32, Hook)>,
}

impl Means {
    /// The turn of a filter of a device.
    pub(crate) fn turn(&self, device: u32, hook: Hook) -> Hook {
        match self.late.contains(&(device, hook)) {
            true => hook.late(),
            false => hook,
        }
    }
}

/// Whether a program can send packets through a block itself. Before Linux 6.14 (commit ba8de796baf4,
/// `__bpf_tx_skb`) the block drops what a program sends there, and takes what an action of its filter
/// does (tc-mirred(8)).
pub(crate) fn can_redirect() -> bool {
    let release = rustix::system::uname();
    version(&release.release().to_string_lossy()) >= (6, 14)
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next())
}

/// Why there are no shares.
pub const NO_SHARES: &str = "shares of uplinks (guarantee, ceiling, weight, and limits of units and \
                             control groups) need the filter cls_bpf and the call bpf(2), and this \
                             kernel has or allows them not; tx and rx of interfaces work without";

/// Why programs cannot be used, if so. Where nothing can be tried, they may.
pub(crate) fn fault() -> Option<Error> {
    let program = Table::new().and_then(|table| table.program(Which::Incoming, None));
    let program = match program {
        Ok(program) => program,
        Err(error) => return Some(error),
    };
    let namespace = namespace::make().ok()?;
    let mut socket = Socket::open(Some(namespace.as_fd()), &[]).ok()?;
    // `lo` is the first interface of each namespace.
    let device = 1;
    let clsact = tc::qdisc(
        Write::Make,
        device,
        Handle::of(0xffff, 0),
        Handle::CLSACT,
        "clsact",
    );
    socket.ask(&clsact).ok()?;
    let place = Place {
        device,
        parent: Handle::INCOMING,
        priority: Hook::Incoming.priority(),
    };
    let program = filter::program(Write::Make, place, &program, "trial", None);
    socket.ask(&program).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_two_numbers() {
        assert_eq!(version("6.18.44-fc-v595"), (6, 18));
        assert_eq!(version("6.1.0-56-cloud-amd64"), (6, 1));
        assert_eq!(version("7"), (7, 0));
        assert_eq!(version("next"), (0, 0));
    }
}
