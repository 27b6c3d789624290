//! Filters: who is sent where.

use std::os::fd::{AsFd, AsRawFd};

use crate::error::Error;
use crate::netlink::message::{Message, attribute, text, u32_at};
use crate::netlink::{Dumped, NLM_F_ACK, NLM_F_REQUEST, Socket};

use super::{
    Handle, RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWTFILTER, TCA_CHAIN, TCA_KIND, TCA_OPTIONS,
    TCMSG, Write, tcmsg,
};

const TCA_BPF_ACT: u16 = 1;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_EGRESS_REDIR: u32 = 1;
const TC_ACT_STOLEN: u32 = 4;
/// Every protocol, in the order of the network.
pub(crate) const ETH_P_ALL: u16 = 3_u16.to_be();

/// The name of a program among others that have its turn. The newest of them is asked first.
const fn program_name(priority: u16) -> u32 {
    match priority {
        // What tc(8) and others give to the first one is theirs.
        1 => 0xb05a,
        _ => 1,
    }
}

/// The name of our filter among others of u32 that have its turn: the last 12 bits of its handle. The
/// kernel puts the number of a table before it.
const MIRROR: u32 = 0xb0a;
/// Bytes of `struct tc_u32_sel` without keys: it matches all.
const SEL: usize = 16;
/// Bytes of `struct tc_mirred`, and where the action and the device are in it.
const MIRRED: usize = 28;
const MIRRED_ACTION: usize = 8;
const MIRRED_KIND: usize = 20;
const MIRRED_DEVICE: usize = 24;

/// Where a filter stands: `priority` is where in the line, 1 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The device, by its index.
    pub(crate) device: u32,
    /// [`Handle::INCOMING`] or [`Handle::OUTGOING`].
    pub(crate) parent: Handle,
    /// Its turn.
    pub(crate) priority: u16,
}

impl Place {
    fn fixed(self, handle: u32) -> [u8; TCMSG] {
        let info = u32::from(self.priority) << 16 | u32::from(ETH_P_ALL);
        tcmsg(self.device, Handle(handle), self.parent, info)
    }
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Where it stands.
    pub(crate) place: Place,
    /// The protocol that it is asked for, in the order of the network.
    pub(crate) protocol: u16,
    /// Its chain: of those behind the first, filters are asked only where one of the first says so.
    pub(crate) chain: u32,
    /// Its kind, such as `bpf`.
    pub(crate) kind: String,
    /// The name of its program, if it is one.
    pub(crate) name: Option<String>,
    /// The number of its program, if it is one.
    pub(crate) program: Option<u32>,
    /// Its name among those that have its turn.
    pub(crate) handle: u32,
    /// The block that it sends all to, if it is one of [`mirror`] or a program that does not decide
    /// itself; 0 where that is gone.
    pub(crate) block: Option<u32>,
}

impl Filter {
    /// Whether it is a table that filters of u32 stand in, which the kernel lists among them.
    pub(crate) fn is_table(&self) -> bool {
        self.kind == "u32" && self.handle & 0xfff == 0
    }
}

/// A program as a filter that decides itself, or that sends all out through a block. In a place that
/// has one it is put in its stead, without a packet in between that meets neither.
pub(crate) fn program(
    write: Write,
    place: Place,
    program: &impl AsFd,
    name: &str,
    block: Option<u32>,
) -> Message {
    let mut message = Message::new(
        RTM_NEWTFILTER,
        write.flags(),
        &place.fixed(program_name(place.priority)),
    );
    message.text(TCA_KIND, "bpf").nest(TCA_OPTIONS, |options| {
        let program = program.as_fd().as_raw_fd();
        options.u32(TCA_BPF_FD, program.cast_unsigned());
        options.text(TCA_BPF_NAME, name);
        match block {
            None => options.u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT),
            Some(block) => send(options, TCA_BPF_ACT, block),
        };
    });
    message
}

/// Takes a program away, and no filter of another kind that has its turn.
pub(crate) fn no_program(place: Place) -> Message {
    away(place, program_name(place.priority), "bpf")
}

/// A filter that sends all that comes in out through a block. `handle` is the one that is changed.
pub(crate) fn mirror(write: Write, place: Place, handle: Option<u32>, block: u32) -> Message {
    let handle = handle.unwrap_or(MIRROR);
    let mut sel = [0; SEL];
    sel[0] = TC_U32_TERMINAL;
    let mut message = Message::new(RTM_NEWTFILTER, write.flags(), &place.fixed(handle));
    message.text(TCA_KIND, "u32").nest(TCA_OPTIONS, |options| {
        send(options.put(TCA_U32_SEL, &sel), TCA_U32_ACT, block);
    });
    message
}

/// The action of a filter that sends all out through a block (tc-mirred(8)).
fn send(options: &mut Message, actions: u16, block: u32) -> &mut Message {
    let mut mirred = [0; MIRRED];
    for (at, value) in [
        (MIRRED_ACTION, TC_ACT_STOLEN),
        (MIRRED_KIND, TCA_EGRESS_REDIR),
        (MIRRED_DEVICE, block),
    ] {
        mirred[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    options.nest(actions, |actions| {
        // The first of a list.
        actions.nest(1, |action| {
            action
                .text(TCA_ACT_KIND, "mirred")
                .nest(TCA_ACT_OPTIONS, |options| {
                    options.put(TCA_MIRRED_PARMS, &mirred);
                });
        });
    })
}

/// Takes that away, and none of others that has its turn. If there is none, its table goes too, which would stay where
/// others have filters of u32 with other turns.
pub(crate) fn no_mirror(place: Place, handle: Option<u32>, is_alone: bool) -> Message {
    let handle = match is_alone {
        // All that have the turn.
        true => 0,
        false => handle.unwrap_or(MIRROR),
    };
    away(place, handle, "u32")
}

fn away(place: Place, handle: u32, kind: &str) -> Message {
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    let mut message = Message::new(RTM_DELTFILTER, flags, &place.fixed(handle));
    message.text(TCA_KIND, kind);
    message
}

/// All filters that hang at a place of a device.
pub(crate) fn filters(
    socket: &mut Socket,
    device: u32,
    parent: Handle,
) -> Result<Vec<Filter>, Error> {
    let mut found = Vec::new();
    let fixed = tcmsg(device, Handle(0), parent, 0);
    let answer = socket.dump(
        &Message::dump(RTM_GETTFILTER, &fixed),
        |dumped| match dumped {
            Dumped::Again => found.clear(),
            Dumped::One(RTM_NEWTFILTER, bytes) => found.extend(filter(bytes)),
            Dumped::One(..) => {}
        },
    );
    match answer {
        // There is nothing there that filters could hang on.
        Err(Error::Refused(refused)) if refused.errno == libc::EINVAL => Ok(Vec::new()),
        answer => answer.map(|()| found),
    }
}

/// Reads a filter out of a message; `None` for what is only the head of several.
pub(crate) fn filter(bytes: &[u8]) -> Option<Filter> {
    let rest = bytes.get(TCMSG..)?;
    let options = attribute(rest, TCA_OPTIONS)?;
    let kind = text(attribute(rest, TCA_KIND)?);
    let is_program = kind == "bpf";
    let of_program = |attr| attribute(options, attr).filter(|_| is_program);
    let handle = u32_at(bytes, 8)?;
    let actions = match &*kind {
        "bpf" => attribute(options, TCA_BPF_ACT),
        // Of ours, one without any leads nowhere.
        "u32" if handle & 0xfff == MIRROR => Some(attribute(options, TCA_U32_ACT).unwrap_or(&[])),
        _ => None,
    };
    Some(Filter {
        place: Place {
            device: u32_at(bytes, 4)?,
            parent: Handle(u32_at(bytes, 12)?),
            priority: Handle(u32_at(bytes, 16)?).major(),
        },
        protocol: Handle(u32_at(bytes, 16)?).minor(),
        chain: attribute(rest, TCA_CHAIN)
            .and_then(|value| u32_at(value, 0))
            .unwrap_or_default(),
        kind,
        name: of_program(TCA_BPF_NAME).map(text),
        program: of_program(TCA_BPF_ID).and_then(|value| u32_at(value, 0)),
        handle,
        block: actions.map(|actions| mirred(actions).unwrap_or_default()),
    })
}

/// The device that the first of some actions sends to.
fn mirred(actions: &[u8]) -> Option<u32> {
    let action = attribute(actions, 1)?;
    let parms = attribute(attribute(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS)?;
    u32_at(parms, MIRRED_DEVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_as_it_was_written() {
        let place = Place {
            device: 3,
            parent: Handle::INCOMING,
            priority: 0xb05b,
        };
        let mut bytes = Vec::new();
        mirror(Write::Make, place, Some(0x8000_0b0a), 7).finish(1, &mut bytes);
        let payload = &bytes[16..];
        let read = filter(payload).expect("a filter");
        assert_eq!((read.place, &*read.kind), (place, "u32"));
        assert_eq!((read.block, read.handle), (Some(7), 0x8000_0b0a));
        for length in 0..payload.len() {
            // What is cut off leads nowhere.
            let block = filter(&payload[..length]).and_then(|of| of.block);
            assert!(matches!(block, None | Some(0)), "{length}: {block:?}");
        }
        // A program may say the class alone.
        for block in [None, Some(9)] {
            let mut bytes = Vec::new();
            program(Write::Make, place, &std::io::stdin(), "a-name", block).finish(1, &mut bytes);
            let read = filter(&bytes[16..]).expect("a filter");
            assert_eq!((read.block, read.name.as_deref()), (block, Some("a-name")));
        }
        // One of somebody else has another name.
        let mut bytes = Vec::new();
        mirror(Write::Make, place, Some(0x8000_0800), 7).finish(1, &mut bytes);
        assert_eq!(filter(&bytes[16..]).and_then(|of| of.block), None);
    }
}
