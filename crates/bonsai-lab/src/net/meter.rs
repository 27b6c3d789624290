//! What a receiver counts: of each flow how much came, was lost, came twice or out of order; and
//! delays.

use bonsai_stats::{BUCKETS, LogHistogram};
use serde::{Deserialize, Serialize};

/// So many sequence numbers back it is known which have come: a multiple of 64.
const WINDOW: u64 = 1 << 16;

/// What came of a flow.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Counts {
    /// Packets, duplicates too.
    pub(crate) packets: u64,
    /// Bytes of their payload.
    pub(crate) payload: u64,
    /// Bytes of layer 2: see `packet`.
    pub(crate) layer2: u64,
    /// Packets that had come before.
    pub(crate) duplicated: u64,
    /// Packets with a smaller number than one that had come already (RFC 4737, section 3.3,
    /// Type-P-Reordered), duplicates apart.
    pub(crate) reordered: u64,
    /// How many times numbers were left out; they may have come later.
    pub(crate) gaps: u64,
    /// One more than the largest number that came.
    pub(crate) next: u64,
}

impl Counts {
    /// Different packets.
    pub(crate) const fn distinct(&self) -> u64 {
        self.packets - self.duplicated
    }

    /// Packets that did not come, of so many sent.
    pub(crate) const fn lost(&self, sent: u64) -> u64 {
        sent.saturating_sub(self.distinct())
    }

    /// With those of another flow.
    #[must_use]
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.packets += other.packets;
        self.payload += other.payload;
        self.layer2 += other.layer2;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.gaps += other.gaps;
        self.next += other.next;
        self
    }
}

/// Counts the packets of a flow.
#[derive(Debug)]
pub(crate) struct Flow {
    counts: Counts,
    /// A bit for each of the last [`WINDOW`] numbers below `counts.next`.
    seen: Vec<u64>,
}

impl Default for Flow {
    fn default() -> Self {
        let words = usize::try_from(WINDOW / 64).unwrap_or(0);
        Self {
            counts: Counts::default(),
            seen: vec![0; words],
        }
    }
}

impl Flow {
    /// A packet of that number has come, of so many bytes.
    pub(crate) fn packet(&mut self, seq: u64, payload: u64, layer2: u64) {
        let counts = &mut self.counts;
        counts.packets += 1;
        counts.payload += payload;
        counts.layer2 += layer2;
        if seq >= counts.next {
            counts.gaps += u64::from(seq > counts.next);
            let skipped = (seq - counts.next).min(WINDOW);
            counts.next = seq.saturating_add(1);
            for left_out in seq - skipped..seq {
                self.mark(left_out, false);
            }
            self.mark(seq, true);
        } else if self.counts.next - seq <= WINDOW && self.is_marked(seq) {
            self.counts.duplicated += 1;
        } else {
            self.counts.reordered += 1;
            if self.counts.next - seq <= WINDOW {
                self.mark(seq, true);
            }
        }
    }

    /// What came.
    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }

    fn place(seq: u64) -> (usize, u64) {
        let bit = seq % WINDOW;
        (usize::try_from(bit / 64).unwrap_or(0), 1 << (bit % 64))
    }

    fn mark(&mut self, seq: u64, seen: bool) {
        let (word, bit) = Self::place(seq);
        if let Some(word) = self.seen.get_mut(word) {
            *word = if seen { *word | bit } else { *word & !bit };
        }
    }

    fn is_marked(&self, seq: u64) -> bool {
        let (word, bit) = Self::place(seq);
        self.seen.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Delays as a record keeps them: buckets of `bonsai_stats::LogHistogram` that are not empty, and the
/// greatest exactly.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Delays {
    /// Index of a bucket and how many are in it.
    pub(crate) buckets: Vec<(usize, u64)>,
    /// The greatest, ns.
    pub(crate) most_ns: u64,
}

impl Delays {
    /// Of a histogram and the greatest.
    pub(crate) fn new(histogram: &LogHistogram, most_ns: u64) -> Self {
        let all = histogram.counts().iter().copied().enumerate();
        Self {
            buckets: all.filter(|(_, count)| *count > 0).collect(),
            most_ns,
        }
    }

    /// Both together.
    #[must_use]
    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut histogram = self.histogram();
        histogram.merge(&other.histogram());
        Self::new(&histogram, self.most_ns.max(other.most_ns))
    }

    /// A percentile in ns: exact to the width of a bucket, never above the greatest.
    pub(crate) fn percentile(&self, percent: f64) -> Option<u64> {
        let found = self.histogram().percentile(percent);
        found.map(|ns| ns.min(self.most_ns))
    }

    /// A percentile in ms, zero where nothing came.
    pub(crate) fn ms(&self, percent: f64) -> f64 {
        self.percentile(percent).unwrap_or(0) as f64 / 1e6
    }

    fn histogram(&self) -> LogHistogram {
        let mut histogram = LogHistogram::default();
        for (index, count) in &self.buckets {
            histogram.add((*index).min(BUCKETS - 1), *count);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u64]) -> Counts {
        let mut flow = Flow::default();
        for seq in numbers {
            flow.packet(*seq, 100, 142);
        }
        flow.counts()
    }

    #[test]
    fn loss_order_and_duplicates_are_told_apart() {
        // Numbers, sent; lost, duplicated, reordered, gaps.
        let table: [(&[u64], u64, [u64; 4]); 8] = [
            (&[], 3, [3, 0, 0, 0]),
            (&[0, 1, 2], 3, [0, 0, 0, 0]),
            (&[0, 1], 3, [1, 0, 0, 0]),
            (&[0, 2], 3, [1, 0, 0, 1]),
            (&[0, 2, 1], 3, [0, 0, 1, 1]),
            (&[0, 1, 1, 2], 3, [0, 1, 0, 0]),
            // RFC 4737, section 4.1.1: two after one that overtook them.
            (&[0, 3, 1, 2, 4], 5, [0, 0, 2, 1]),
            (&[0, 3, 1, 1, 2, 3], 4, [0, 2, 2, 1]),
        ];
        for (numbers, sent, expected) in table {
            let counts = of(numbers);
            let found = [
                counts.lost(sent),
                counts.duplicated,
                counts.reordered,
                counts.gaps,
            ];
            assert_eq!(found, expected, "{numbers:?}");
            assert_eq!(counts.layer2, 142 * numbers.len() as u64);
        }
    }

    #[test]
    fn what_is_known_of_old_numbers_is_bounded() {
        let counts = of(&[0, WINDOW * 3, WINDOW * 3 - 1, WINDOW * 3 - 1, 1]);
        assert_eq!((counts.reordered, counts.duplicated), (2, 1));
        let all: Vec<u64> = (0..WINDOW * 2).collect();
        let counts = of(&all);
        assert_eq!((counts.lost(WINDOW * 2), counts.duplicated), (0, 0));
        assert_eq!(of(&[u64::MAX]).gaps, 1);
    }

    #[test]
    fn delays_survive_a_record() {
        let mut histogram = LogHistogram::default();
        for i in 1..=1_000_u64 {
            histogram.record(i * 1_000);
        }
        let delays = Delays::new(&histogram, 1_000_000);
        let text = serde_json::to_string(&delays).expect("text");
        let read: Delays = serde_json::from_str(&text).expect("read");
        assert_eq!(read, delays);
        let half = read.percentile(50.0).expect("delays") as f64;
        assert!((half / 500_000.0 - 1.0).abs() < 0.1, "{half}");
        assert_eq!(read.percentile(100.0), Some(1_000_000));
        assert_eq!(read.and(&read).percentile(50.0), read.percentile(50.0));
        assert_eq!(Delays::default().percentile(50.0), None);
    }
}
