//! The queue that a class ends in: `fq_codel` where the kernel has it, elsewhere `tbf`, and `bfifo` where there is neither.
//!
//! `tbf` is here for one thing that it does besides shaping: it cuts packets that are longer than its burst before they are
//! queued (`tbf_segment`). Its own rate is so large that it never acts. Without that a queue of a few dozen kilobytes takes or
//! drops the 64 KiB that a local sender hands down at once as a whole, and bbr ends at a twentieth of the limit, measured.
//! The burst is not shown by the kernel, so it is written as the `mtu` of the peak rate too, which counts only if there is one.
//!
//! `fq_codel` serves flows in turn, those that have just begun first, and drops or marks what has waited
//! for too long (RFC 8290): a flood keeps nobody else of its class waiting. Source: tc-fq_codel(8),
//! `net/sched/sch_fq_codel.c`, `include/net/codel.h`; tc-tbf(8), `net/sched/sch_tbf.c`.

use std::sync::OnceLock;

use crate::error::Error;
use crate::netlink::Socket;
use crate::netlink::message::{Message, attribute, attributes, u32_at};

use super::{Handle, TCA_OPTIONS, Write, qdisc};

const PLAIN: &str = "bfifo";
/// The kind of those that keep themselves short.
pub(crate) const SHORT: &str = "fq_codel";
/// The kind of those that cut packets.
pub(crate) const CUTTING: &str = "tbf";

const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Bytes of `struct tc_tbf_qopt`, and what of it is used: the link layer and the rate, the limit, and the `mtu`.
const TBF: usize = 36;
const TBF_LINK_LAYER: usize = 1;
const TBF_RATE: usize = 8;
const TBF_LIMIT: usize = 24;
const TBF_MTU: usize = 32;
/// `TC_LINKLAYER_ETHERNET`: no table of rates is looked for.
const ETHERNET: u8 = 1;
/// Bytes per second at which no packet takes a nanosecond.
const NO_LIMIT: u64 = 1 << 60;

/// The kernel's unit of the times of CoDel, ns (`CODEL_SHIFT`).
pub(crate) const CODEL_TICK_NS: u64 = 1024;
/// How many queues there are in one, 64 bytes each: a class is of one tenant, and there are thousands.
const FLOWS: u32 = 256;
/// The loopback interface, which is in each namespace.
const LOOPBACK: u32 = 1;

/// The kind of queue that classes end in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `fq_codel`
    Short,
    /// `tbf`
    Cutting,
    /// `bfifo`
    Plain,
}

/// The queue that a class ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Bytes; of one that keeps itself short, the memory of packets, which is more than their length.
    pub(crate) limit: u32,
    pub(crate) manner: Manner,
}

/// How a queue treats packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The time that packets may wait, in ticks of 1,024 ns.
    Short(u32),
    /// Bytes of the longest packet that is queued as a whole.
    Cutting(u32),
    Plain,
    /// Made by another program: never wanted, and replaced where it is found.
    Foreign,
}

impl Leaf {
    /// Whether the other one can be made of this one without taking it away.
    pub(crate) fn is_like(self, other: Self) -> bool {
        std::mem::discriminant(&self.manner) == std::mem::discriminant(&other.manner)
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

/// Makes or changes the queue of a class; `None` for one that only its own program can make.
pub(crate) fn leaf(write: Write, device: u32, class: Handle, of: Leaf) -> Option<Message> {
    let handle = Handle::of(class.minor(), 0);
    let new = |kind| qdisc(write, device, handle, class, kind);
    Some(match of.manner {
        Manner::Foreign => return None,
        Manner::Plain => {
            let mut message = new(PLAIN);
            message.u32(TCA_OPTIONS, of.limit);
            message
        }
        Manner::Cutting(longest) => {
            let mut parms = [0; TBF];
            parms[TBF_LINK_LAYER] = ETHERNET;
            for (at, value) in [
                (TBF_RATE, u32::MAX),
                (TBF_LIMIT, of.limit),
                (TBF_MTU, longest),
            ] {
                parms[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
            let mut message = new(CUTTING);
            message.nest(TCA_OPTIONS, |options| {
                options.put(TCA_TBF_PARMS, &parms);
                options.put(TCA_TBF_RATE64, &NO_LIMIT.to_ne_bytes());
                options.u32(TCA_TBF_BURST, longest);
            });
            message
        }
        Manner::Short(target) => {
            let mut message = new(SHORT);
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
    })
}

/// Reads the queue of a class.
pub(crate) fn read(kind: &str, options: &[u8]) -> Leaf {
    ours(kind, options).unwrap_or(Leaf {
        limit: 0,
        manner: Manner::Foreign,
    })
}

fn ours(kind: &str, options: &[u8]) -> Option<Leaf> {
    match kind {
        PLAIN => Some(Leaf {
            limit: u32_at(options, 0)?,
            manner: Manner::Plain,
        }),
        CUTTING => {
            let parms = attribute(options, TCA_TBF_PARMS)?;
            let rate = attribute(options, TCA_TBF_RATE64);
            let is_free = rate == Some(&NO_LIMIT.to_ne_bytes()[..]);
            let limit = u32_at(parms, TBF_LIMIT)?;
            let longest = u32_at(parms, TBF_MTU).filter(|_| is_free)?;
            Some(Leaf {
                limit,
                manner: Manner::Cutting(longest),
            })
        }
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
                manner: Manner::Short(target?),
            })
        }
        _ => None,
    }
}

/// The best kind of queue that the kernel has. It is asked for queues that cannot be, `fq_codel` with no flows and `tbf`
/// without a rate: a kind that it does not know it refuses otherwise. Asked once, since for each time it may look for a module.
pub(crate) fn best(socket: &mut Socket) -> Result<Kind, Error> {
    static KNOWN: OnceLock<Kind> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    for (kind, name) in [(Kind::Short, SHORT), (Kind::Cutting, CUTTING)] {
        // Of no name, since one that has it would be taken for the one that is meant.
        let mut none = qdisc(Write::Replace, LOOPBACK, Handle(0), Handle::ROOT, name);
        none.nest(TCA_OPTIONS, |options| {
            if kind == Kind::Short {
                options.u32(TCA_FQ_CODEL_FLOWS, 0);
            }
        });
        match socket.ask(&none) {
            Err(Error::Refused(refused)) => match refused.errno {
                libc::EINVAL => return Ok(*KNOWN.get_or_init(|| kind)),
                libc::ENOENT => {}
                // Without the right to ask there is no right to make one.
                _ => return Ok(Kind::Plain),
            },
            Err(error) => return Err(error),
            Ok(()) => {
                return Err(Error::Unexpected {
                    what: format!("a queue of {name} that cannot be"),
                });
            }
        }
    }
    Ok(*KNOWN.get_or_init(|| Kind::Plain))
}

#[cfg(test)]
mod tests {
    use super::*;
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
        fn a_queue_is_read_as_it_was_written(limit: u32, longest: u32) {
            for (kind, manner) in [(PLAIN, Manner::Plain), (CUTTING, Manner::Cutting(longest))] {
                let of = Leaf { limit, manner };
                let message = leaf(Write::Make, 3, Handle::of(0xb05a, 9), of);
                let mut bytes = Vec::new();
                message.expect("ours").finish(1, &mut bytes);
                let options = attribute(&bytes[16 + TCMSG..], TCA_OPTIONS).expect("options");
                prop_assert_eq!(read(kind, options), of);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (read(PLAIN, &bytes), read(SHORT, &bytes), read(CUTTING, &bytes));
        }
    }

    #[test]
    fn flows_are_said_once() {
        // The kernel refuses a change that names them.
        let of = Leaf {
            limit: 300_000,
            manner: Manner::Short(4_882),
        };
        let flows = |write| {
            let mut bytes = Vec::new();
            let message = leaf(write, 3, Handle::of(0xb05a, 9), of);
            message.expect("ours").finish(1, &mut bytes);
            let options = attribute(&bytes[16 + TCMSG..], TCA_OPTIONS).expect("options");
            attribute(options, TCA_FQ_CODEL_FLOWS).is_some()
        };
        assert!(flows(Write::Make) && !flows(Write::Change));
    }
}
