//! What a device has of traffic control at this moment.

use std::collections::BTreeMap;

use crate::error::Error;
use crate::netlink::message::{Message, attribute, attributes, text, u32_at, u64_at};
use crate::netlink::{Dumped, Socket};

use super::{
    Handle, RTM_GETQDISC, RTM_GETTCLASS, RTM_NEWQDISC, RTM_NEWTCLASS, TCA_KIND, TCA_OPTIONS,
    TCA_STATS2, TCMSG, htb, tcmsg,
};

const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_PKT64: u16 = 8;

/// What went through a class or a discipline since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes at layer 2, each segment with its own head.
    pub bytes: u64,
    /// Packets; each segment counts.
    pub packets: u64,
    /// Bytes that wait now.
    pub backlog: u32,
    /// Packets that were dropped because too many waited.
    pub drops: u32,
    /// How often something had to wait.
    pub overlimits: u32,
}

/// Reads what is counted out of `TCA_STATS2`.
fn counters(stats: &[u8]) -> Counters {
    let mut counters = Counters::default();
    for (kind, value) in attributes(stats) {
        match kind {
            TCA_STATS_BASIC => {
                counters.bytes = u64_at(value, 0).unwrap_or_default();
                counters.packets = u32_at(value, 8).unwrap_or_default().into();
            }
            // Only where 32 bits were too few.
            TCA_STATS_PKT64 => counters.packets = u64_at(value, 0).unwrap_or_default(),
            TCA_STATS_QUEUE => {
                counters.backlog = u32_at(value, 4).unwrap_or_default();
                counters.drops = u32_at(value, 8).unwrap_or_default();
                counters.overlimits = u32_at(value, 16).unwrap_or_default();
            }
            _ => {}
        }
    }
    counters
}

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// The device it is on, by its index.
    pub device: u32,
    /// Its kind, such as `htb`.
    pub kind: String,
    /// Its name; 0 for those that the kernel makes by itself.
    pub handle: Handle,
    /// The class it is in, or [`Handle::ROOT`], [`Handle::CLSACT`].
    pub parent: Handle,
    /// Its options as the kernel shows them, which is how it takes them.
    pub options: Vec<u8>,
    /// What went through it.
    pub counters: Counters,
}

impl Qdisc {
    /// Whether somebody made it: what the kernel makes by itself has no name.
    #[must_use]
    pub fn made(&self) -> bool {
        self.handle.major() != 0
    }
}

/// A class of HTB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The device it is on, by its index.
    pub device: u32,
    /// Its name.
    pub handle: Handle,
    /// The discipline that it ends in; 0 for none of its own.
    pub leaf: Handle,
    /// What it gives.
    pub terms: htb::Class,
    /// What went through it.
    pub counters: Counters,
}

/// All disciplines of a namespace, or of one device of it.
pub(crate) fn qdiscs(socket: &mut Socket, device: Option<u32>) -> Result<Vec<Qdisc>, Error> {
    let mut found = Vec::new();
    let fixed = tcmsg(device.unwrap_or(0), Handle(0), Handle(0), 0);
    socket.dump(
        &Message::dump(RTM_GETQDISC, &fixed),
        |dumped| match dumped {
            Dumped::Again => found.clear(),
            Dumped::One(RTM_NEWQDISC, bytes) => {
                let one = qdisc(bytes).filter(|one| device.is_none_or(|of| of == one.device));
                found.extend(one);
            }
            Dumped::One(..) => {}
        },
    )?;
    Ok(found)
}

/// What went through each HTB at a root that is named so; `each` gets the device and the counters, and
/// is told by `None` to forget what it got. Nothing is allocated.
pub(crate) fn roots(
    socket: &mut Socket,
    handle: Handle,
    mut each: impl FnMut(Option<(u32, Counters)>),
) -> Result<(), Error> {
    let read = |bytes: &[u8]| {
        let is_it = u32_at(bytes, 8)? == handle.0 && u32_at(bytes, 12)? == Handle::ROOT.0;
        let rest = bytes.get(TCMSG..).filter(|_| is_it)?;
        let kind = attribute(rest, TCA_KIND)?;
        let is_htb = kind.strip_suffix(&[0])? == htb::KIND.as_bytes();
        let stats = attribute(rest, TCA_STATS2).filter(|_| is_htb)?;
        Some((u32_at(bytes, 4)?, counters(stats)))
    };
    let fixed = tcmsg(0, Handle(0), Handle(0), 0);
    socket.dump(
        &Message::dump(RTM_GETQDISC, &fixed),
        |dumped| match dumped {
            Dumped::Again => each(None),
            Dumped::One(RTM_NEWQDISC, bytes) => {
                if let Some(one) = read(bytes) {
                    each(Some(one));
                }
            }
            Dumped::One(..) => {}
        },
    )
}

/// Reads a discipline out of a message.
pub(crate) fn qdisc(bytes: &[u8]) -> Option<Qdisc> {
    let rest = bytes.get(TCMSG..)?;
    Some(Qdisc {
        device: u32_at(bytes, 4)?,
        handle: Handle(u32_at(bytes, 8)?),
        parent: Handle(u32_at(bytes, 12)?),
        kind: text(attribute(rest, TCA_KIND)?),
        options: attribute(rest, TCA_OPTIONS).unwrap_or_default().to_vec(),
        counters: counters(attribute(rest, TCA_STATS2).unwrap_or_default()),
    })
}

/// Reads a class of HTB out of a message; `None` for those of other kinds. In one go, and nothing is
/// allocated: it is done ten thousand times a second.
pub(crate) fn class(bytes: &[u8]) -> Option<Class> {
    let (mut kind, mut options, mut stats) = (None, None, None);
    for (of, value) in attributes(bytes.get(TCMSG..)?) {
        match of {
            TCA_KIND => kind = Some(value),
            TCA_OPTIONS => options = Some(value),
            TCA_STATS2 => stats = Some(value),
            _ => {}
        }
    }
    if kind?.strip_suffix(&[0])? != htb::KIND.as_bytes() {
        return None;
    }
    Some(Class {
        device: u32_at(bytes, 4)?,
        handle: Handle(u32_at(bytes, 8)?),
        leaf: Handle(u32_at(bytes, 16)?),
        terms: htb::read(Handle(u32_at(bytes, 12)?), options?)?,
        counters: counters(stats.unwrap_or_default()),
    })
}

/// The classes of HTB of a device; `each` gets one after the other, and nothing is kept, so that
/// a thousand can be looked at ten times a second. It is told by `None` to forget what it got.
pub(crate) fn classes(
    socket: &mut Socket,
    device: u32,
    mut each: impl FnMut(Option<Class>),
) -> Result<(), Error> {
    let fixed = tcmsg(device, Handle(0), Handle(0), 0);
    socket.dump(
        &Message::dump(RTM_GETTCLASS, &fixed),
        |dumped| match dumped {
            Dumped::Again => each(None),
            Dumped::One(RTM_NEWTCLASS, bytes) => {
                if let Some(class) = class(bytes) {
                    each(Some(class));
                }
            }
            Dumped::One(..) => {}
        },
    )
}

/// The same, kept by name.
pub(crate) fn classes_of(
    socket: &mut Socket,
    device: u32,
) -> Result<BTreeMap<Handle, Class>, Error> {
    let mut found = BTreeMap::new();
    classes(socket, device, |class| match class {
        None => found.clear(),
        Some(class) => {
            found.insert(class.handle, class);
        }
    })?;
    Ok(found)
}
