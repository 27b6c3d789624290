//! What somebody else has at the root of an interface, kept so that it can be brought back.
//!
//! The kernel shows disciplines, classes and filters in the form in which it takes them. Whether that
//! holds for these is tried first, at an interface in a namespace of its own: what does not come
//! back there as it was is not taken over.
//!
//! # Invariants
//! 1. Every attribute that the kernel shows of an object is kept and compared, written back, known to
//!    count or to follow from others ([`Attribute`]), or a reason not to take it over: none is passed over.
//! 2. Filters are read wherever they can hang: at disciplines, at classes, and in every chain.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::links;
use crate::namespace;
use crate::netlink::message::{Message, attribute, attributes, place_of, text, u32_at};
use crate::netlink::{Dumped, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, Socket};
use crate::tc::{
    Handle, RTM_GETCHAIN, RTM_GETQDISC, RTM_GETTCLASS, RTM_GETTFILTER, RTM_NEWCHAIN, RTM_NEWQDISC,
    RTM_NEWTCLASS, RTM_NEWTFILTER, TCA_CHAIN, TCA_KIND, TCA_OPTIONS, TCA_STATS2, TCMSG, htb,
    no_qdisc, tcmsg,
};

/// A discipline, a class or a filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Object {
    kind: String,
    parent: u32,
    handle: u32,
    info: u32,
    options: Option<Vec<u8>>,
    /// Further attributes that it is made with, such as the chain of a filter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more: Vec<(u16, Vec<u8>)>,
    /// The first part that cannot be given back, in words.
    #[serde(skip)]
    strange: Option<String>,
}

/// The purpose of an attribute of an object.
enum Attribute {
    /// Given back as read.
    Given,
    /// Counts, or follows from what is given.
    Shown,
    /// Cannot be given back.
    Strange,
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
        // Classes within HTB and HFSC have filters of their own.
        for at in qdiscs.iter().chain(&classes) {
            let parent = Handle(at.handle);
            let mut here = dump(socket, RTM_GETTFILTER, RTM_NEWTFILTER, device, parent)?;
            templates(socket, device, parent, &mut here)?;
            filters.append(&mut here);
        }
        Ok(Self {
            qdiscs,
            classes: parents_first(classes),
            filters,
        })
    }

    /// The first part of it that cannot be given back, in words.
    pub(crate) fn strange(&self) -> Option<String> {
        let all = self.qdiscs.iter().chain(&self.classes).chain(&self.filters);
        let mut strange = all.filter_map(|one| Some((one, one.strange.as_ref()?)));
        let (one, what) = strange.next()?;
        Some(format!("{} {}: {what}", one.kind, Handle(one.handle)))
    }

    /// Puts it at the root of a device that has nothing there.
    pub(crate) fn bring_back(&self, socket: &mut Socket, device: u32) -> Result<(), Error> {
        let root = self.qdiscs.iter().take(1).map(|of| (RTM_NEWQDISC, of));
        let classes = self.classes.iter().map(|of| (RTM_NEWTCLASS, of));
        let leaves = self.qdiscs.iter().skip(1).map(|of| (RTM_NEWQDISC, of));
        let filters = in_order(&self.filters).into_iter();
        let filters = filters.map(|of| (RTM_NEWTFILTER, of));
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
        if self.strange().is_some() {
            return Ok(false);
        }
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
        for (kind, value) in &self.more {
            message.put(*kind, value);
        }
        message
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.get(TCMSG..)?;
        let kind = text(attribute(rest, TCA_KIND)?);
        let options = attribute(rest, TCA_OPTIONS).map(|options| taken(&kind, options));
        let (mut more, mut strange) = (Vec::new(), None);
        for (kind, value) in attributes(rest) {
            match purpose(kind, value) {
                Attribute::Given => more.push((kind, value.to_vec())),
                Attribute::Shown => {}
                Attribute::Strange => {
                    let text = format!("it has the attribute {kind}, which cannot be given back");
                    strange.get_or_insert(text);
                }
            }
        }
        Some(Self {
            kind,
            handle: u32_at(bytes, 8)?,
            parent: u32_at(bytes, 12)?,
            info: u32_at(bytes, 16)?,
            options,
            more,
            strange,
        })
    }
}

/// The purpose of an attribute, beside the kind and the options (<linux/rtnetlink.h>, `TCA_*`).
fn purpose(kind: u16, value: &[u8]) -> Attribute {
    const TCA_STATS: u16 = 3;
    const TCA_XSTATS: u16 = 4;
    const TCA_FCNT: u16 = 6;
    const TCA_STAB: u16 = 8;
    const TCA_PAD: u16 = 9;
    const TCA_HW_OFFLOAD: u16 = 12;
    // In the counters: an estimator (`tc ... estimator`), whose interval is not shown.
    const TCA_STATS_RATE_EST: u16 = 2;
    const TCA_STATS_RATE_EST64: u16 = 5;
    // In a size table: the number of its sizes, which are not shown, at the end of its `tc_sizespec`.
    const TCA_STAB_BASE: u16 = 1;
    const SIZES: usize = 20;
    match kind {
        TCA_KIND | TCA_OPTIONS | TCA_STATS | TCA_XSTATS | TCA_FCNT | TCA_PAD => Attribute::Shown,
        TCA_STATS2 => {
            let estimates =
                |(kind, _): (u16, &[u8])| matches!(kind, TCA_STATS_RATE_EST | TCA_STATS_RATE_EST64);
            match attributes(value).any(estimates) {
                true => Attribute::Strange,
                false => Attribute::Shown,
            }
        }
        TCA_CHAIN => match u32_at(value, 0) {
            // Without it, it is this one; kernels before 4.13 have no other.
            Some(0) => Attribute::Shown,
            _ => Attribute::Given,
        },
        TCA_STAB => {
            let sizes = attribute(value, TCA_STAB_BASE).and_then(|base| u32_at(base, SIZES));
            match sizes {
                Some(0) => Attribute::Given,
                _ => Attribute::Strange,
            }
        }
        // Nothing of it is done by the device.
        TCA_HW_OFFLOAD if value == [0] => Attribute::Shown,
        _ => Attribute::Strange,
    }
}

/// Marks filters whose chain has a template, and chains that hold nothing: neither is given back.
fn templates(
    socket: &mut Socket,
    device: u32,
    parent: Handle,
    filters: &mut Vec<Object>,
) -> Result<(), Error> {
    let mut found = Vec::new();
    let fixed = tcmsg(device, Handle(0), parent, 0);
    let answer = socket.dump(
        &Message::dump(RTM_GETCHAIN, &fixed),
        |dumped| match dumped {
            Dumped::Again => found.clear(),
            Dumped::One(RTM_NEWCHAIN, bytes) if u32_at(bytes, 4) == Some(device) => {
                let rest = bytes.get(TCMSG..).unwrap_or_default();
                let number = attribute(rest, TCA_CHAIN).and_then(|value| u32_at(value, 0));
                let template = attribute(rest, TCA_KIND).map(text);
                found.push((number.unwrap_or(0), template));
            }
            Dumped::One(..) => {}
        },
    );
    match answer {
        Ok(()) => {}
        // Before Linux 4.19 there are no templates to be shown, and nothing may hang here at all.
        Err(Error::Refused(_)) => return Ok(()),
        Err(error) => return Err(error),
    }
    for (number, template) in found {
        let is_used = filters.iter().any(|filter| filter.chain() == number);
        if is_used && template.is_none() {
            continue;
        }
        let what = match &template {
            Some(kind) => format!("its chain {number} has a template of {kind}"),
            None if number == 0 => continue,
            None => format!("its chain {number} is empty"),
        };
        filters.push(Object {
            kind: "the filters at".to_owned(),
            parent: parent.0,
            handle: parent.0,
            info: 0,
            options: None,
            more: Vec::new(),
            strange: Some(format!("{what}, which cannot be given back")),
        });
    }
    Ok(())
}

impl Object {
    /// The chain that a filter is in.
    fn chain(&self) -> u32 {
        let chain = self.more.iter().find(|(kind, _)| *kind == TCA_CHAIN);
        chain.and_then(|(_, value)| u32_at(value, 0)).unwrap_or(0)
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
            found.extend(Object::read(bytes));
        }
        Dumped::One(..) => {}
    })?;
    match ask {
        RTM_GETQDISC => {
            for one in &mut found {
                // A count of references.
                one.info = 0;
            }
        }
        RTM_GETTFILTER => {
            // The head of several filters has no options, and comes of itself with the first of them; one that is alone
            // is a filter (`fw` without options).
            let turn = |one: &Object| (one.info, one.chain());
            let with: BTreeSet<(u32, u32)> = found
                .iter()
                .filter(|one| one.options.is_some())
                .map(turn)
                .collect();
            found.retain(|one| one.options.is_some() || !with.contains(&turn(one)));
        }
        _ => {}
    }
    Ok(found)
}

/// Filters as they are made again: without the tables of u32 that come of themselves, one with each turn, and in the order
/// of these, for the kernel gives each the next number and filters are named by that. A table that is asked for and
/// refused would take a number with it.
fn in_order(filters: &[Object]) -> Vec<&Object> {
    // From <linux/pkt_cls.h>: the first table that has its number from the kernel, and the bits of a table's number.
    const OWN_TABLES: u32 = 0x8000_0000;
    const TABLE: u32 = 0xfff0_0000;
    let turn = |one: &Object| (one.parent, one.info, one.chain());
    let own_table = |one: &Object| {
        let table = one.handle & TABLE;
        (one.kind == "u32" && table >= OWN_TABLES).then_some(table)
    };
    let mut first = BTreeMap::new();
    for one in filters {
        if let Some(table) = own_table(one) {
            let known = first.entry(turn(one)).or_insert(table);
            *known = table.min(*known);
        }
    }
    let comes_of_itself = |one: &&Object| own_table(one).is_some() && one.handle & !TABLE == 0;
    let mut sorted: Vec<&Object> = filters.iter().filter(|one| !comes_of_itself(one)).collect();
    sorted.sort_by_key(|one| first.get(&turn(one)));
    sorted
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
