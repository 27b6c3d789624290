//! HTB, the one discipline that shares by guarantee, ceiling and weight.
//!
//! What the kernel does, in short: a class is *green* while it is below its `rate`, *yellow* up to
//! its `ceil`, and *red* beyond. Green classes send; yellow ones borrow from their parent, in turns
//! of `quantum` bytes, as long as it is not red itself. `burst` and `cburst` say for how long a
//! class may be ahead of `rate` and `ceil`. Source: tc-htb(8), `net/sched/sch_htb.c`.

use crate::netlink::message::{Message, attribute, attributes, place_of, u32_at, u64_at};
use crate::netlink::{NLM_F_ACK, NLM_F_REQUEST};

use super::{
    Handle, RTM_DELTCLASS, RTM_NEWTCLASS, TCA_KIND, TCA_OPTIONS, Write, qdisc as any_qdisc, tcmsg,
};

/// Its name.
pub(crate) const KIND: &str = "htb";

const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_DIRECT_QLEN: u16 = 5;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;

/// The version that userland says, `HTB_VER >> 16`.
const VERSION: u32 = 3;
/// Bytes of a `tc_htb_glob`.
const GLOB: usize = 20;
/// Bytes of a `tc_ratespec` and of a `tc_htb_opt`.
const RATESPEC: usize = 12;
const OPT: usize = 44;
/// `TC_LINKLAYER_ETHERNET`: packets cost their length, and the kernel wants no table of costs.
const ETHERNET: u8 = 1;
/// The kernel's unit of bursts, ns (`PSCHED_SHIFT`).
pub(crate) const TICK_NS: u64 = 64;

/// What an HTB class gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The class it is in: its number, or 0 for the root of the tree.
    pub parent: u16,
    /// What it has whenever it wants it, bytes per second; at least 1.
    pub rate: u64,
    /// What it has at most, bytes per second.
    pub ceil: u64,
    /// For how long it may be ahead of `rate`, in ticks of 64 ns.
    pub burst: u32,
    /// For how long it may be ahead of `ceil`, in ticks of 64 ns.
    pub cburst: u32,
    /// Bytes that it borrows in a turn.
    pub quantum: u32,
    /// Who borrows first, 0 to 7.
    pub priority: u32,
}

/// The root of a device: what is in no class goes to `default`.
pub(crate) fn root(write: Write, device: u32, major: u16, default: u16, direct: u32) -> Message {
    let mut message = any_qdisc(write, device, Handle::of(major, 0), Handle::ROOT, KIND);
    message.nest(TCA_OPTIONS, |options| {
        let mut glob = [0; GLOB];
        // The second is the divisor by which a quantum follows from a rate; each class says its own.
        for (place, value) in [(0, VERSION), (4, 10), (8, u32::from(default))] {
            glob[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
        options.put(TCA_HTB_INIT, &glob);
        options.u32(TCA_HTB_DIRECT_QLEN, direct);
    });
    message
}

/// The class that a root sends everything to that is in none.
pub(crate) fn default_of(options: &[u8]) -> Option<u16> {
    let glob = attribute(options, TCA_HTB_INIT)?;
    u16::try_from(u32_at(glob, 8)?).ok()
}

/// Options of a root as they are taken: the kernel shows its whole version and wants the first part
/// of it, and it counts the packets that were in no class.
pub(crate) fn as_taken(options: &mut [u8]) {
    let Some(place) = place_of(options, TCA_HTB_INIT) else {
        return;
    };
    if let Some(glob) = options.get_mut(place).filter(|glob| glob.len() == GLOB) {
        glob[..4].copy_from_slice(&VERSION.to_ne_bytes());
        glob[16..].fill(0);
    }
}

fn ratespec(rate: u64, into: &mut [u8]) {
    into[1] = ETHERNET;
    let short = u32::try_from(rate).unwrap_or(u32::MAX);
    into[8..RATESPEC].copy_from_slice(&short.to_ne_bytes());
}

/// Makes or changes a class.
pub(crate) fn class(write: Write, device: u32, handle: Handle, class: &Class) -> Message {
    let parent = match class.parent {
        0 => Handle::of(handle.major(), 0),
        minor => Handle::of(handle.major(), minor),
    };
    let fixed = tcmsg(device, handle, parent, 0);
    let mut message = Message::new(RTM_NEWTCLASS, write.flags(), &fixed);
    message.text(TCA_KIND, KIND).nest(TCA_OPTIONS, |options| {
        let mut opt = [0; OPT];
        ratespec(class.rate, &mut opt[..RATESPEC]);
        ratespec(class.ceil, &mut opt[RATESPEC..2 * RATESPEC]);
        let rest = [class.burst, class.cburst, class.quantum, 0, class.priority];
        for (index, value) in rest.into_iter().enumerate() {
            let place = 2 * RATESPEC + 4 * index;
            opt[place..place + 4].copy_from_slice(&value.to_ne_bytes());
        }
        options.put(TCA_HTB_PARMS, &opt);
        // A rate of 32 bits ends at 34 Gbit/s.
        for (kind, rate) in [(TCA_HTB_RATE64, class.rate), (TCA_HTB_CEIL64, class.ceil)] {
            if rate > u64::from(u32::MAX) {
                options.u64(kind, rate);
            }
        }
    });
    message
}

/// Takes a class away, with the discipline that it ends in.
pub(crate) fn no_class(device: u32, handle: Handle) -> Message {
    let fixed = tcmsg(device, handle, Handle::of(handle.major(), 0), 0);
    Message::new(RTM_DELTCLASS, NLM_F_REQUEST | NLM_F_ACK, &fixed)
}

/// Reads a class out of its options.
pub(crate) fn read(parent: Handle, options: &[u8]) -> Option<Class> {
    let (mut opt, mut rate64, mut ceil64) = (None, None, None);
    for (kind, value) in attributes(options) {
        match kind {
            TCA_HTB_PARMS => opt = Some(value),
            TCA_HTB_RATE64 => rate64 = u64_at(value, 0),
            TCA_HTB_CEIL64 => ceil64 = u64_at(value, 0),
            _ => {}
        }
    }
    let opt = opt?;
    let rate = |long: Option<u64>, place| {
        let short = u64::from(u32_at(opt, place)?);
        Some(long.unwrap_or(0).max(short))
    };
    let field = |index: usize| u32_at(opt, 2 * RATESPEC + 4 * index);
    Some(Class {
        parent: if parent == Handle::ROOT {
            0
        } else {
            parent.minor()
        },
        rate: rate(rate64, 8)?,
        ceil: rate(ceil64, RATESPEC + 8)?,
        burst: field(0)?,
        cburst: field(1)?,
        quantum: field(2)?,
        priority: field(4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_is_read_as_it_was_written(
            parent in 0_u16..=0xffff, rate in 1_u64..1 << 40, more in 0_u64..1 << 40,
            burst: u32, cburst: u32, quantum: u32, priority in 0_u32..8,
        ) {
            let class = Class { parent, rate, ceil: rate + more, burst, cburst, quantum, priority };
            let message = super::class(Write::Make, 3, Handle::of(0xb05a, 9), &class);
            let mut bytes = Vec::new();
            message.finish(1, &mut bytes);
            let fixed = &bytes[16..];
            let place = Handle(u32_at(fixed, 12).expect("a parent"));
            let options = attribute(&fixed[super::super::TCMSG..], TCA_OPTIONS).expect("options");
            prop_assert_eq!(read(place, options), Some(class));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(Handle::ROOT, &bytes);
            let _ = default_of(&bytes);
        }
    }
}
