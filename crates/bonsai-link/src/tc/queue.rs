//! The queue that a class ends in: `fq_codel` where the kernel has it, `bfifo` elsewhere.
//!
//! `fq_codel` serves flows in turn, those that have just begun first, and drops or marks what has waited
//! for too long (RFC 8290): a flood keeps nobody else of its class waiting. Source: tc-fq_codel(8),
//! `net/sched/sch_fq_codel.c`, `include/net/codel.h`.

use std::sync::OnceLock;

use crate::error::Error;
use crate::netlink::Socket;
use crate::netlink::message::{Message, attributes, u32_at};

use super::{Handle, TCA_OPTIONS, Write, qdisc};

const PLAIN: &str = "bfifo";
/// The kind of those that keep themselves short.
pub(crate) const SHORT: &str = "fq_codel";

const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;

/// The kernel's unit of the times of CoDel, ns (`CODEL_SHIFT`).
pub(crate) const CODEL_TICK_NS: u64 = 1024;
/// How many queues there are in one, 64 bytes each: a class is of one tenant, and there are thousands.
const FLOWS: u32 = 256;
/// The loopback interface, which is in each namespace.
const LOOPBACK: u32 = 1;

/// The queue that a class ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Bytes; of one that keeps itself short, the memory of packets, which is more than their length.
    pub(crate) limit: u32,
    /// Of one that keeps itself short: for how long packets may wait, in ticks of 1,024 ns.
    pub(crate) target: Option<u32>,
}

impl Leaf {
    /// Whether the other one can be made of this one without taking it away.
    pub(crate) fn is_like(self, other: Self) -> bool {
        self.target.is_some() == other.target.is_some()
    }
}

/// Ticks in microseconds, so that the kernel makes the same ticks of them, which it rounds down.
fn micros(ticks: u32) -> u32 {
    let micros = (u64::from(ticks) * CODEL_TICK_NS).div_ceil(1_000);
    u32::try_from(micros).unwrap_or(u32::MAX)
}

/// Microseconds as the kernel shows them, rounded down, in ticks.
fn ticks(micros: u32) -> u32 {
    let ticks = (u64::from(micros) * 1_000).div_ceil(CODEL_TICK_NS);
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Makes or changes the queue of a class.
pub(crate) fn leaf(write: Write, device: u32, class: Handle, of: Leaf) -> Message {
    let handle = Handle::of(class.minor(), 0);
    let Some(target) = of.target else {
        let mut message = qdisc(write, device, handle, class, PLAIN);
        message.u32(TCA_OPTIONS, of.limit);
        return message;
    };
    let mut message = qdisc(write, device, handle, class, SHORT);
    message.nest(TCA_OPTIONS, |options| {
        options.u32(TCA_FQ_CODEL_TARGET, micros(target));
        // What is a twentieth of it may be waited for (RFC 8289, 4.4).
        options.u32(TCA_FQ_CODEL_INTERVAL, micros(target.saturating_mul(20)));
        options.u32(TCA_FQ_CODEL_MEMORY_LIMIT, of.limit);
        if write != Write::Change {
            options.u32(TCA_FQ_CODEL_FLOWS, FLOWS);
        }
    });
    message
}

/// Reads the queue of a class; `None` if it is none of ours.
pub(crate) fn read(kind: &str, options: &[u8]) -> Option<Leaf> {
    match kind {
        PLAIN => Some(Leaf {
            limit: u32_at(options, 0)?,
            target: None,
        }),
        SHORT => {
            let (mut limit, mut target) = (None, None);
            for (of, value) in attributes(options) {
                match of {
                    TCA_FQ_CODEL_TARGET => target = u32_at(value, 0).map(ticks),
                    TCA_FQ_CODEL_MEMORY_LIMIT => limit = u32_at(value, 0),
                    _ => {}
                }
            }
            Some(Leaf {
                limit: limit?,
                target: Some(target?),
            })
        }
        _ => None,
    }
}

/// Whether queues that keep themselves short can be made. The kernel is asked for one that cannot be,
/// with no flows: what it does not know it refuses otherwise. Asked once, since for each time it may look
/// for a module.
pub(crate) fn can_be_short(socket: &mut Socket) -> Result<bool, Error> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    // Of no name, since one that has it would be taken for the one that is meant.
    let mut none = qdisc(Write::Replace, LOOPBACK, Handle(0), Handle::ROOT, SHORT);
    none.nest(TCA_OPTIONS, |options| {
        options.u32(TCA_FQ_CODEL_FLOWS, 0);
    });
    match socket.ask(&none) {
        Err(Error::Refused(refused)) => Ok(match refused.errno {
            libc::EINVAL => *KNOWN.get_or_init(|| true),
            libc::ENOENT => *KNOWN.get_or_init(|| false),
            // Without the right to ask there is no right to make one.
            _ => false,
        }),
        Err(error) => Err(error),
        Ok(()) => Err(Error::Unexpected {
            what: "queues without flows".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::attribute;
    use crate::tc::TCMSG;
    use proptest::prelude::*;

    /// As the kernel does it (`fq_codel_change`, `codel_time_to_us`).
    fn shown(micros: u32) -> u32 {
        let ticks = u64::from(micros) * 1_000 / CODEL_TICK_NS;
        u32::try_from(ticks * CODEL_TICK_NS / 1_000).expect("as large")
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(time in 0_u32..1 << 30) {
            prop_assert_eq!(ticks(shown(micros(time))), time);
        }

        #[test]
        fn a_plain_queue_is_read_as_it_was_written(limit: u32) {
            let of = Leaf { limit, target: None };
            let message = leaf(Write::Make, 3, Handle::of(0xb05a, 9), of);
            let mut bytes = Vec::new();
            message.finish(1, &mut bytes);
            let options = attribute(&bytes[16 + TCMSG..], TCA_OPTIONS).expect("options");
            prop_assert_eq!(read(PLAIN, options), Some(of));
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (read(PLAIN, &bytes), read(SHORT, &bytes));
        }
    }

    #[test]
    fn flows_are_said_once() {
        // The kernel refuses a change that names them.
        let of = Leaf {
            limit: 300_000,
            target: Some(4_882),
        };
        let flows = |write| {
            let mut bytes = Vec::new();
            leaf(write, 3, Handle::of(0xb05a, 9), of).finish(1, &mut bytes);
            let options = attribute(&bytes[16 + TCMSG..], TCA_OPTIONS).expect("options");
            attribute(options, TCA_FQ_CODEL_FLOWS).is_some()
        };
        assert!(flows(Write::Make) && !flows(Write::Change));
    }
}
