//! What follows from a rate: bursts, turns, queues. Pure.
//!
//! The rules were measured (see `docs/13-interfaces.md`): each says what goes wrong without it.

use crate::tc::htb;
use crate::tc::queue::{CODEL_TICK_NS, Kind, Leaf, Manner};

/// Bytes of layer 2 around a packet: an Ethernet header.
const HEADER: u64 = 14;
/// The smallest rate that a limit may have, bytes per second: 8 kbit/s. Below, a packet takes
/// seconds.
pub const MIN_RATE: u64 = 1_000;
/// The largest, bytes per second: 800 Gbit/s.
pub const MAX_RATE: u64 = 100_000_000_000;
/// For how long a limit may be ahead of its rate: what a timer that comes late may miss, as where the
/// hypervisor takes the processor. With 2 ms a limit of 10 Mbit/s missed 0.8 % of a second, and with the
/// default of other tools, a packet, 1 % at 1 Gbit/s.
pub const BURST_NS: u64 = 10_000_000;
/// The same of one that borrows of an uplink: what it is ahead the others wait for.
pub const SHARE_BURST_NS: u64 = 2_000_000;
/// A queue holds what leaves in this time.
pub const QUEUE_NS: u64 = 20_000_000;
/// The same of who has a share: its own alone wait in it. Streams below their guarantee that were held back
/// for 30 to 40 ms, as by the hypervisor, and then sent all at once, lost 0.04 to 0.07 % with 20 ms.
pub const SHARE_QUEUE_NS: u64 = 50_000_000;
/// What is guaranteed to those that have no guarantee, bytes per second: HTB takes no 0.
pub(crate) const NOTHING: u64 = 1;
/// The weight of those that say none.
pub const WEIGHT: u16 = 1;

fn bytes_in(rate: u64, ns: u64) -> u64 {
    let bytes = u128::from(rate) * u128::from(ns) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// How long `bytes` take at a rate, ticks of the kernel.
fn ticks(bytes: u64, rate: u64) -> u32 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    let ticks = ns.div_ceil(u128::from(htb::TICK_NS));
    // The kernel's clock of tokens ends after 60 s.
    let most = 60_000_000_000 / htb::TICK_NS;
    u32::try_from(ticks.min(u128::from(most))).unwrap_or(u32::MAX)
}

/// How far a class may be ahead, in ticks: `burst_ns` of its rate, which is what a late timer may
/// miss, and a packet, without which it would never send one on time.
pub(crate) fn burst(rate: u64, mtu: u32, burst_ns: u64) -> u32 {
    ticks(bytes_in(rate, burst_ns) + u64::from(mtu) + HEADER, rate)
}

/// Bytes of the queue of a class: what leaves in `queue_ns`, and at least one packet that is not cut
/// yet and one that is. With less, such a packet never fits: 0.3 of 10 Mbit/s, measured.
pub(crate) fn queue(ceil: u64, queue_ns: u64, mtu: u32, gso_max: u32) -> u32 {
    let least = u64::from(gso_max) + u64::from(mtu) + 2 * HEADER;
    u32::try_from(bytes_in(ceil, queue_ns).max(least)).unwrap_or(u32::MAX)
}

/// A packet that is not cut yet leaves in this time, or it is cut before it is queued. As much as half of a queue took the
/// place of all else that waited, and a longer one than the whole never fitted.
const WHOLE_NS: u64 = 5_000_000;
/// Bytes of the tags that a packet may have besides its header: two of VLAN.
const TAGS: u64 = 8;

/// Bytes of the longest packet that is queued as a whole: what leaves in [`WHOLE_NS`], and two packets as the wire has them,
/// since one that cannot be cut and is longer is dropped.
fn longest(ceil: u64, mtu: u32) -> u32 {
    let least = 2 * (u64::from(mtu) + HEADER + TAGS);
    u32::try_from(bytes_in(ceil, WHOLE_NS).max(least)).unwrap_or(u32::MAX)
}

/// For how long packets of a queue that keeps itself short may wait, at least.
const TARGET_NS: u64 = 5_000_000;
/// How much more memory packets take than they are long: small ones and those of virtual machines up to
/// four times as much.
const MEMORY: u32 = 4;

/// The queue of a class. One that keeps itself short lets packets wait for 5 ms, or, where that is longer,
/// for as long as one and a half take (RFC 8290, 5.2.2: less than one drops without need); what takes no
/// notice of that is dropped when as much waits as elsewhere.
pub(crate) fn leaf(ceil: u64, queue_ns: u64, mtu: u32, gso_max: u32, kind: Kind) -> Leaf {
    let limit = queue(ceil, queue_ns, mtu, gso_max);
    match kind {
        Kind::Short => {
            let packets = u128::from(mtu) * 1_500_000_000 / u128::from(ceil.max(1));
            let target = packets.clamp(TARGET_NS.into(), 60_000_000_000);
            let target = target / u128::from(CODEL_TICK_NS);
            Leaf {
                limit: limit.saturating_mul(MEMORY),
                manner: Manner::Short(u32::try_from(target).unwrap_or(u32::MAX)),
            }
        }
        Kind::Cutting => Leaf {
            limit,
            manner: Manner::Cutting(longest(ceil, mtu)),
        },
        Kind::Plain => Leaf {
            limit,
            manner: Manner::Plain,
        },
    }
}

/// Bytes that a class borrows in a turn, among siblings of which the smallest weight is `smallest`.
/// A packet that is not cut yet counts whole, so the smallest turn has to hold one; else TCP shares
/// 46:54 where it ought to 33:67, measured.
pub(crate) fn quantum(weight: u16, smallest: u16, gso_max: u32) -> u32 {
    let packet = u64::from(gso_max) + 2 * HEADER;
    let turn = packet * u64::from(weight) / u64::from(smallest.max(1));
    u32::try_from(turn.min(u64::from(i32::MAX.unsigned_abs()))).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_burst_is_its_time_and_a_packet() {
        // 1 Gbit/s: 250 kB in 2 ms, and a packet in 12 us.
        assert_eq!(burst(125_000_000, 1500, SHARE_BURST_NS), 31_440);
        // 1 Mbit/s: 1514 bytes take 12.1 ms.
        assert_eq!(burst(125_000, 1500, SHARE_BURST_NS), 220_500);
        // One byte a second: no longer than the kernel counts.
        assert_eq!(burst(1, 1500, BURST_NS), 937_500_000);
    }

    #[test]
    fn a_queue_holds_the_largest_packet() {
        assert_eq!(queue(1_250_000, QUEUE_NS, 1500, 65_536), 67_064);
        assert_eq!(queue(125_000_000, QUEUE_NS, 1500, 65_536), 2_500_000);
        assert_eq!(queue(12_500_000, SHARE_QUEUE_NS, 1500, 65_536), 625_000);
    }

    #[test]
    fn a_short_queue_lets_packets_wait_for_five_milliseconds_or_one_and_a_half_of_them() {
        let of = |ceil, kind| {
            let leaf = leaf(ceil, QUEUE_NS, 1500, 65_536, kind);
            (leaf.limit, leaf.manner)
        };
        assert_eq!(of(1_250_000, Kind::Plain), (67_064, Manner::Plain));
        assert_eq!(of(1_250_000, Kind::Short), (268_256, Manner::Short(4_882)));
        // 1 Mbit/s: 2,250 bytes take 18 ms.
        assert_eq!(of(125_000, Kind::Short).1, Manner::Short(17_578));
    }

    #[test]
    fn a_packet_that_would_fill_the_queue_is_cut() {
        let of = |ceil| leaf(ceil, QUEUE_NS, 1500, 65_536, Kind::Cutting).manner;
        assert_eq!(of(125_000), Manner::Cutting(3_044));
        assert_eq!(of(1_250_000), Manner::Cutting(6_250));
        // From 105 Mbit/s on the largest that there are go as they are.
        assert_eq!(of(13_125_000), Manner::Cutting(65_625));
    }

    #[test]
    fn turns_are_as_weights_are() {
        assert_eq!(quantum(1, 1, 65_536), 65_564);
        assert_eq!(quantum(2, 1, 65_536), 131_128);
        assert_eq!(quantum(200, 100, 65_536), 131_128);
    }

    proptest! {
        #[test]
        fn no_rate_overflows(rate in 1_u64..=MAX_RATE, mtu in 68_u32..65_536, ns in 0_u64..1 << 36) {
            let burst = burst(rate, mtu, ns);
            prop_assert!(u64::from(burst) * htb::TICK_NS <= 60_000_000_000);
            prop_assert!(queue(rate, QUEUE_NS, mtu, 65_536) >= 65_536 + mtu);
            // Of packets as the wire has them none is too long, and four of the longest fit.
            let leaf = leaf(rate, QUEUE_NS, mtu, 65_536, Kind::Cutting);
            let Manner::Cutting(longest) = leaf.manner else {
                return Err(TestCaseError::fail("another kind"));
            };
            prop_assert!(longest >= mtu + 14);
            prop_assert!(u64::from(longest) * 4 <= u64::from(leaf.limit) + 8 * (u64::from(mtu) + 22) + 4);
        }
    }
}
