//! Traffic control as the kernel has it: queueing disciplines, classes, filters; read, and written
//! as messages.
//!
//! Source: `include/uapi/linux/pkt_sched.h`, `pkt_cls.h`; tc(8), tc-htb(8).

pub(crate) mod filter;
pub(crate) mod htb;
pub(crate) mod queue;
pub(crate) mod seen;

use std::fmt;

use crate::netlink::message::Message;
use crate::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST};

pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
pub(crate) const RTM_GETQDISC: u16 = 38;
pub(crate) const RTM_NEWTCLASS: u16 = 40;
pub(crate) const RTM_DELTCLASS: u16 = 41;
pub(crate) const RTM_GETTCLASS: u16 = 42;
pub(crate) const RTM_NEWTFILTER: u16 = 44;
pub(crate) const RTM_DELTFILTER: u16 = 45;
pub(crate) const RTM_GETTFILTER: u16 = 46;
pub(crate) const RTM_NEWCHAIN: u16 = 100;
pub(crate) const RTM_GETCHAIN: u16 = 102;

pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
pub(crate) const TCA_STATS2: u16 = 7;
pub(crate) const TCA_CHAIN: u16 = 11;

/// Bytes of a `tcmsg`.
pub(crate) const TCMSG: usize = 20;

/// The name of a queueing discipline, `major:0`, or of a class in it, `major:minor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

impl Handle {
    /// The place of what a device sends through (`TC_H_ROOT`).
    pub const ROOT: Self = Self(0xffff_ffff);
    /// The place of `clsact` and `ingress` (`TC_H_INGRESS`).
    pub const CLSACT: Self = Self(0xffff_fff1);
    /// Where filters for what comes in hang (`TC_H_MIN_INGRESS`).
    pub const INCOMING: Self = Self(0xffff_fff2);
    /// Where filters for what goes out hang, before the queueing discipline (`TC_H_MIN_EGRESS`).
    pub const OUTGOING: Self = Self(0xffff_fff3);

    /// A class of a discipline.
    #[must_use]
    pub const fn of(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// The discipline's number.
    #[must_use]
    pub const fn major(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The class's number.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    pub const fn minor(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for Handle {
    /// As tc writes it: hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ROOT => f.write_str("root"),
            Self::CLSACT => f.write_str("clsact"),
            Self(0) => f.write_str("none"),
            _ if self.minor() == 0 => write!(f, "{:x}:", self.major()),
            _ => write!(f, "{:x}:{:x}", self.major(), self.minor()),
        }
    }
}

/// The fixed part of a message about traffic control.
pub(crate) fn tcmsg(device: u32, handle: Handle, parent: Handle, info: u32) -> [u8; TCMSG] {
    let mut fixed = [0; TCMSG];
    for (place, value) in [(4, device), (8, handle.0), (12, parent.0), (16, info)] {
        fixed[place..place + 4].copy_from_slice(&value.to_ne_bytes());
    }
    fixed
}

/// Whether a request makes something, which must not be there yet, or changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Make,
    /// Makes it, also where there is another one, which goes at the same moment.
    Replace,
    Change,
}

impl Write {
    fn flags(self) -> u16 {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        match self {
            Self::Make => flags | NLM_F_CREATE | NLM_F_EXCL,
            Self::Replace => flags | NLM_F_CREATE | NLM_F_REPLACE,
            Self::Change => flags,
        }
    }
}

/// Makes or changes a discipline; `options` adds what is inside `TCA_OPTIONS`.
pub(crate) fn qdisc(
    write: Write,
    device: u32,
    handle: Handle,
    parent: Handle,
    kind: &str,
) -> Message {
    let fixed = tcmsg(device, handle, parent, 0);
    let mut message = Message::new(RTM_NEWQDISC, write.flags(), &fixed);
    message.text(TCA_KIND, kind);
    message
}

/// Takes a discipline away, and all that hangs on it.
pub(crate) fn no_qdisc(device: u32, handle: Handle, parent: Handle) -> Message {
    let fixed = tcmsg(device, handle, parent, 0);
    Message::new(RTM_DELQDISC, NLM_F_REQUEST | NLM_F_ACK, &fixed)
}
