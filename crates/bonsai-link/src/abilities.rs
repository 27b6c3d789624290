//! What this kernel offers for interfaces, tried out where nobody is: in a network namespace that
//! is gone afterwards.

use std::os::fd::AsFd;

use crate::error::Error;
use crate::links;
use crate::namespace;
use crate::netlink::Socket;
use crate::plan::{self, Plan};
use crate::site::Site;
use crate::tc::{self, Handle, Write};
use crate::wanted::{Terms, Wanted};

/// What was tried.
#[derive(Debug)]
pub struct Ability {
    /// A short, stable name.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Why it does not work here, if so.
    pub fault: Option<Error>,
}

/// Tries everything.
///
/// # Errors
/// If no namespace can be made, which takes root.
pub fn abilities() -> Result<Vec<Ability>, Error> {
    let namespace = namespace::make()?;
    let mut site = Site::open(Some(namespace.as_fd()))?;
    let mut socket = Socket::open(Some(namespace.as_fd()), &[])?;
    let device = links::make_ifb(&mut socket, "trial");
    let block = device.as_ref().ok().copied();
    let limit = |both: bool| {
        let terms = Terms {
            tx: Some(1_000_000),
            rx: both.then_some(1_000_000),
            ..Terms::default()
        };
        Wanted {
            links: block.iter().map(|index| (*index, terms.clone())).collect(),
            ..Wanted::default()
        }
    };
    let sends = site.apply(&limit(false), &[]).map(drop);
    let receives = site.apply(&limit(true), &[]).map(drop);
    let cleared = site.apply(&Wanted::default(), &[]).map(drop);
    let mut plain = Site::open_with(Some(namespace.as_fd()), Plan::U32)?;
    let without = plain.apply(&limit(true), &[]).map(drop);
    let without = without.and(plain.apply(&Wanted::default(), &[]).map(drop));
    let mut all = Vec::new();
    let mut add = |name, purpose, tried: Result<(), Error>| {
        let fault = tried.err();
        all.push(Ability {
            name,
            purpose,
            fault,
        });
    };
    add(
        "ifb",
        "a block that what is received goes through",
        device.map(drop),
    );
    add(
        "htb",
        "limits of what is sent, guarantees and weights",
        sends,
    );
    add(
        "cls_bpf",
        "who is in which class of an uplink",
        plan::fault().map_or(Ok(()), Err),
    );
    add(
        "u32",
        "limits of what is received, without programs",
        without,
    );
    add(
        "link",
        "limits of both directions, and back",
        receives.and(cleared),
    );
    for (kind, purpose) in [
        (
            "fq",
            "paces of connections kept by a queue instead of timers",
        ),
        ("fq_codel", "queues that keep themselves short"),
    ] {
        let root = |index| {
            let handle = Handle::of(7, 0);
            socket.ask(&tc::qdisc(Write::Make, index, handle, Handle::ROOT, kind))?;
            socket.ask(&tc::no_qdisc(index, handle, Handle::ROOT))
        };
        let missing = Error::Wrong("there is no interface to try it on".into());
        add(kind, purpose, block.map_or(Err(missing), root));
    }
    Ok(all)
}
