//! Losses as bursts and gaps between them.
//!
//! Source: RFC 3611, section 4.7.2. A *burst* is the longest run of packets that begins and ends
//! with a loss, in which fewer than [`GMIN`] packets that came stand between two losses. A loss that
//! stands alone is of a *gap*, as all is that is no burst. *Density* is the part of the packets that
//! were lost, of each.

use serde::Serialize;

use super::ratio;

/// Packets that end a burst (RFC 3611's recommended value).
const GMIN: u64 = 16;

/// Losses, settled in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Bursts {
    settled: u64,
    lost: u64,
    bursts: u64,
    /// Packets and losses of bursts that are over.
    burst_packets: u64,
    burst_lost: u64,
    /// The last loss, with those near before it.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    first: u64,
    last: u64,
    lost: u64,
}

/// Losses as bursts and gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BurstReport {
    /// How many bursts there were.
    pub bursts: u64,
    /// The mean length of a burst, packets.
    pub burst_packets: f64,
    /// The part of a burst's packets that was lost, 0 to 1.
    pub burst_density: f64,
    /// The mean length of what was between bursts, packets.
    pub gap_packets: f64,
    /// The part of those that was lost, 0 to 1.
    pub gap_density: f64,
}

impl Bursts {
    /// The next packet, in order of their numbers, has come or is lost.
    pub(super) fn settle(&mut self, came: bool) {
        let at = self.settled;
        self.settled += 1;
        if came {
            return;
        }
        self.lost += 1;
        match &mut self.open {
            Some(open) if at - open.last <= GMIN => {
                open.last = at;
                open.lost += 1;
            }
            open => {
                let next = Open {
                    first: at,
                    last: at,
                    lost: 1,
                };
                if let Some(over) = open.replace(next) {
                    self.close(over);
                }
            }
        }
    }

    fn close(&mut self, over: Open) {
        if over.lost > 1 {
            self.bursts += 1;
            self.burst_packets += over.last - over.first + 1;
            self.burst_lost += over.lost;
        }
    }

    #[cfg(test)]
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    #[cfg(test)]
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    /// What it comes to, with the last burst as over.
    pub(super) fn report(mut self) -> BurstReport {
        if let Some(open) = self.open.take() {
            self.close(open);
        }
        let gap_packets = self.settled - self.burst_packets;
        BurstReport {
            bursts: self.bursts,
            burst_packets: ratio(self.burst_packets, self.bursts),
            burst_density: ratio(self.burst_lost, self.burst_packets),
            // There is one before the first burst, and one after each.
            gap_packets: ratio(gap_packets, self.bursts + 1),
            gap_density: ratio(self.lost - self.burst_lost, gap_packets),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(runs: &[(bool, u32)]) -> BurstReport {
        let mut bursts = Bursts::default();
        for (came, times) in runs {
            (0..*times).for_each(|_| bursts.settle(*came));
        }
        bursts.report()
    }

    #[test]
    fn a_loss_that_stands_alone_is_of_a_gap() {
        let one = report(&[(true, 50), (false, 1), (true, 49)]);
        let expected = BurstReport {
            gap_packets: 100.0,
            gap_density: 0.01,
            ..BurstReport::default()
        };
        assert_eq!(one, expected);
    }

    #[test]
    fn losses_near_each_other_are_a_burst() {
        // 15 that came do not end one, 16 do.
        let one = report(&[(true, 40), (false, 2), (true, 15), (false, 1), (true, 42)]);
        assert_eq!((one.bursts, one.burst_packets), (1, 18.0));
        assert_eq!((one.burst_density, one.gap_packets), (3.0 / 18.0, 41.0));
        let two = report(&[(true, 40), (false, 2), (true, 16), (false, 1), (true, 41)]);
        assert_eq!((two.bursts, two.burst_packets), (1, 2.0));
        assert_eq!((two.burst_density, two.gap_density), (1.0, 1.0 / 98.0));
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(report(&[]), BurstReport::default());
        let clean = report(&[(true, 10)]);
        assert_eq!(
            (clean.bursts, clean.gap_packets, clean.gap_density),
            (0, 10.0, 0.0)
        );
    }
}
