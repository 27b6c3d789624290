//! What somebody else has at the root of an interface, kept so that it can be brought back.
//!
//! The kernel shows disciplines, classes and filters in the form in which it takes them. Whether that
//! holds for these is tried first, at an interface in a namespace of its own: what does not come
//! back there as it was is not taken over.

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::links;
use crate::namespace;
use crate::netlink::message::{Message, attribute, place_of, text, u32_at};
use crate::netlink::{Dumped, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, Socket};
use crate::tc::{
    Handle, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, RTM_NEWQDISC, RTM_NEWTCLASS,
    RTM_NEWTFILTER, TCA_KIND, TCA_OPTIONS, TCMSG, htb, no_qdisc, tcmsg,
};

/// A discipline, a class or a filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Object {
    kind: String,
    parent: u32,
    handle: u32,
    info: u32,
    options: Option<Vec<u8>>,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    qdiscs: Vec<Object>,
    classes: Vec<Object>,
    filters: Vec<Object>,
}

impl Saved {
    /// What it is, for people: the kind of the discipline at the root.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.qdiscs.first().map_or("nothing", |root| &root.kind)
    }

    /// Reads what is at the root of a device.
    pub(crate) fn read(socket: &mut Socket, device: u32) -> Result<Self, Error> {
        let mut qdiscs = dump(socket, RTM_GETQDISC, RTM_NEWQDISC, device, Handle(0))?;
        // What hangs at `clsact` stays where it is; what has no name the kernel makes by itself.
        qdiscs.retain(|one| one.handle != 0 && one.parent != Handle::CLSACT.0);
        qdiscs.sort_by_key(|one| (one.parent != Handle::ROOT.0, one.parent));
        let mut classes = dump(socket, RTM_GETTCLASS, RTM_NEWTCLASS, device, Handle(0))?;
        for class in &mut classes {
            // The discipline that it ends in, which follows from those.
            class.info = 0;
        }
        let mut filters = Vec::new();
        for qdisc in &qdiscs {
            let parent = Handle(qdisc.handle);
            filters.extend(dump(
                socket,
                RTM_GETTFILTER,
                RTM_NEWTFILTER,
                device,
                parent,
            )?);
        }
        Ok(Self {
            qdiscs,
            classes: parents_first(classes),
            filters,
        })
    }

    /// Puts it at the root of a device that has nothing there.
    pub(crate) fn bring_back(&self, socket: &mut Socket, device: u32) -> Result<(), Error> {
        let root = self.qdiscs.iter().take(1).map(|of| (RTM_NEWQDISC, of));
        let classes = self.classes.iter().map(|of| (RTM_NEWTCLASS, of));
        let leaves = self.qdiscs.iter().skip(1).map(|of| (RTM_NEWQDISC, of));
        let filters = self.filters.iter().map(|of| (RTM_NEWTFILTER, of));
        let all = root.chain(classes).chain(leaves).chain(filters);
        let messages: Vec<Message> = all.map(|(kind, of)| of.message(kind, device)).collect();
        // Some of it comes of itself (classes of TBF, the first table of u32) and is refused then:
        // what counts is what is there in the end.
        let answers = socket.ask_all(&messages)?;
        if Self::read(socket, device)? == *self {
            return Ok(());
        }
        // All or nothing.
        if let (Some(root), Some(Ok(()))) = (self.qdiscs.first(), answers.first()) {
            socket.ask(&no_qdisc(device, Handle(root.handle), Handle::ROOT))?;
        }
        let refused = answers.into_iter().find_map(Result::err);
        Err(refused.map_or(
            Error::Unexpected {
                what: self.kind().to_owned(),
            },
            Error::Refused,
        ))
    }

    /// Whether it comes back as it was, tried where nobody is.
    pub(crate) fn try_out(&self) -> Result<bool, Error> {
        let namespace = namespace::make()?;
        let mut socket = Socket::open(Some(namespace.as_fd()), &[])?;
        let device = links::make_ifb(&mut socket, "trial")?;
        match self.bring_back(&mut socket, device) {
            Ok(()) => Ok(true),
            Err(Error::Refused(_) | Error::Unexpected { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Object {
    fn message(&self, kind: u16, device: u32) -> Message {
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let fixed = tcmsg(device, Handle(self.handle), Handle(self.parent), self.info);
        let mut message = Message::new(kind, flags, &fixed);
        message.text(TCA_KIND, &self.kind);
        if let Some(options) = &self.options {
            message.put(TCA_OPTIONS, options);
        }
        message
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.get(TCMSG..)?;
        let kind = text(attribute(rest, TCA_KIND)?);
        let options = attribute(rest, TCA_OPTIONS).map(|options| taken(&kind, options));
        Some(Self {
            kind,
            handle: u32_at(bytes, 8)?,
            parent: u32_at(bytes, 12)?,
            info: u32_at(bytes, 16)?,
            options,
        })
    }
}

/// Options as they are taken: without what the kernel counts in them.
fn taken(kind: &str, options: &[u8]) -> Vec<u8> {
    // From <linux/pkt_cls.h>: how often each part of a filter matched, and where it runs.
    const TCA_U32_PCNT: u16 = 9;
    const TCA_U32_FLAGS: u16 = 11;
    // TCA_CLS_FLAGS_SKIP_HW, _SKIP_SW, _VERBOSE: the rest is only shown.
    const GIVEN: u8 = 1 | 2 | 16;
    let mut options = options.to_vec();
    match kind {
        htb::KIND => htb::as_taken(&mut options),
        "u32" => {
            if let Some(counted) = place_of(&options, TCA_U32_PCNT) {
                options[counted].fill(0);
            }
            if let Some(flags) = place_of(&options, TCA_U32_FLAGS).filter(|at| at.len() == 4) {
                let flag = flags.start + if cfg!(target_endian = "big") { 3 } else { 0 };
                options[flag] &= GIVEN;
            }
        }
        _ => {}
    }
    options
}

fn dump(
    socket: &mut Socket,
    ask: u16,
    answer: u16,
    device: u32,
    parent: Handle,
) -> Result<Vec<Object>, Error> {
    let mut found = Vec::new();
    let fixed = tcmsg(device, Handle(0), parent, 0);
    socket.dump(&Message::dump(ask, &fixed), |dumped| match dumped {
        Dumped::Again => found.clear(),
        Dumped::One(kind, bytes) if kind == answer && u32_at(bytes, 4) == Some(device) => {
            let one = Object::read(bytes);
            // The head of several filters has no options; a discipline may have none.
            found.extend(one.filter(|one| ask != RTM_GETTFILTER || one.options.is_some()));
        }
        Dumped::One(..) => {}
    })?;
    if ask == RTM_GETQDISC {
        for one in &mut found {
            // How many refer to it.
            one.info = 0;
        }
    }
    Ok(found)
}

/// Classes such that each comes after the one it is in.
fn parents_first(mut classes: Vec<Object>) -> Vec<Object> {
    let mut sorted: Vec<Object> = Vec::with_capacity(classes.len());
    while !classes.is_empty() {
        let names: Vec<u32> = classes.iter().map(|class| class.handle).collect();
        let (mut now, later): (Vec<_>, Vec<_>) = classes
            .into_iter()
            .partition(|class| class.parent == class.handle || !names.contains(&class.parent));
        classes = later;
        if now.is_empty() {
            // A ring, which no kernel has.
            sorted.append(&mut classes);
        }
        now.sort();
        sorted.append(&mut now);
    }
    sorted
}
