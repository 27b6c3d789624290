//! Bytes over time, and what follows from them.

use serde::{Deserialize, Serialize};

const S: u64 = 1_000_000_000;

/// A bin of a new series.
pub(crate) const BIN_NS: u64 = 1_000_000;
/// So many bins a series has at most: two minutes.
const MOST_BINS: usize = 120_000;
/// So many arrivals are kept one by one.
const MOST_ARRIVALS: usize = 4_000_000;

/// Bytes in bins of time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Series {
    /// The beginning of the first bin: CLOCK_MONOTONIC, ns.
    pub(crate) origin_ns: u64,
    /// How long a bin is, ns.
    pub(crate) bin_ns: u64,
    /// Bytes.
    pub(crate) bins: Vec<u64>,
    /// Bytes that came when there were no more bins.
    pub(crate) beyond: u64,
}

impl Default for Series {
    /// An empty one, in bins of [`BIN_NS`], that begins with the first bytes.
    fn default() -> Self {
        Self {
            origin_ns: 0,
            bin_ns: BIN_NS,
            bins: Vec::new(),
            beyond: 0,
        }
    }
}

impl Series {
    /// So many bytes came at an instant. Those before the first bin count there: time stamps of a few
    /// microseconds may be out of order.
    pub(crate) fn add(&mut self, at_ns: u64, bytes: u64) {
        if self.bins.is_empty() {
            self.origin_ns = at_ns / self.bin_ns * self.bin_ns;
        }
        let bin = at_ns.saturating_sub(self.origin_ns) / self.bin_ns;
        let bin = usize::try_from(bin).unwrap_or(usize::MAX);
        if bin >= MOST_BINS {
            self.beyond += bytes;
            return;
        }
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += bytes;
    }

    /// The same in bins that are so many times as long.
    #[must_use]
    pub(crate) fn coarser(&self, times: usize) -> Self {
        let times = times.max(1);
        Self {
            origin_ns: self.origin_ns,
            bin_ns: self.bin_ns * times as u64,
            bins: self.bins.chunks(times).map(|c| c.iter().sum()).collect(),
            beyond: self.beyond,
        }
    }

    /// Bytes between two instants, of bins that lie in between in part as much as of their time.
    pub(crate) fn between(&self, from_ns: u64, to_ns: u64) -> f64 {
        let bins = self.bins.iter().enumerate();
        let parts = bins.map(|(i, bytes)| {
            let start = self.origin_ns + i as u64 * self.bin_ns;
            let end = start + self.bin_ns;
            let common = end.min(to_ns).saturating_sub(start.max(from_ns));
            *bytes as f64 * common as f64 / self.bin_ns as f64
        });
        parts.sum()
    }

    /// Bytes a second between two instants.
    pub(crate) fn rate(&self, from_ns: u64, to_ns: u64) -> f64 {
        self.between(from_ns, to_ns) * S as f64 / to_ns.saturating_sub(from_ns).max(1) as f64
    }

    /// Of all windows of so many ns between two instants, one at each bin, the rate furthest from
    /// another in bytes a second; `None` where none is that long.
    pub(crate) fn worst_window(
        &self,
        (from_ns, to_ns): (u64, u64),
        window_ns: u64,
        rate: f64,
    ) -> Option<f64> {
        if self.bin_ns == 0 {
            return None;
        }
        let index = |ns: u64| {
            let bin = ns.saturating_sub(self.origin_ns).div_ceil(self.bin_ns);
            usize::try_from(bin).unwrap_or(usize::MAX)
        };
        let window = usize::try_from(window_ns / self.bin_ns).ok()?.max(1);
        let to = index(to_ns).min(self.bins.len());
        let bins = self.bins.get(index(from_ns)..to)?;
        let mut sum: u64 = bins.get(..window)?.iter().sum();
        let seconds = (window as u64 * self.bin_ns) as f64 / S as f64;
        let mut worst = sum as f64 / seconds;
        for (first, next) in bins.iter().zip(&bins[window..]) {
            sum = sum + next - first;
            let this = sum as f64 / seconds;
            if (this - rate).abs() > (worst - rate).abs() {
                worst = this;
            }
        }
        Some(worst)
    }
}

/// Instants and bytes of single packets, bounded in number.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Arrivals(pub(crate) Vec<(u64, u32)>);

impl Arrivals {
    /// A packet of so many bytes came.
    pub(crate) fn add(&mut self, at_ns: u64, bytes: u32) {
        if self.0.len() < MOST_ARRIVALS {
            self.0.push((at_ns, bytes));
        }
    }

    /// Those between two instants.
    pub(crate) fn between(&self, from_ns: u64, to_ns: u64) -> &[(u64, u32)] {
        let first = self.0.partition_point(|(at, _)| *at < from_ns);
        let last = self.0.partition_point(|(at, _)| *at < to_ns);
        self.0.get(first..last).unwrap_or_default()
    }

    /// When the spacing of packets agrees with a rate after an instant: how long after it the first
    /// stretch of packets begins that takes at least `stretch_ns`, has at least four gaps, and is
    /// within `tolerance` (such as 0.1) of the rate in bytes a second. `None` where there is none.
    pub(crate) fn settled(
        &self,
        from_ns: u64,
        rate: f64,
        tolerance: f64,
        stretch_ns: u64,
    ) -> Option<u64> {
        const GAPS: usize = 4;
        let first = self.0.partition_point(|(at, _)| *at < from_ns);
        let packets = self.0.get(first..)?;
        let mut end = 0;
        let mut bytes: u64 = 0;
        for (start, (at, _)) in packets.iter().enumerate() {
            // `bytes` are those of the packets behind `start`, up to `end`.
            while end < packets.len() && (end < start + GAPS || packets[end].0 < at + stretch_ns) {
                end += 1;
                bytes += u64::from(packets.get(end).map_or(0, |(_, bytes)| *bytes));
            }
            let (last, _) = packets.get(end)?;
            let spaced = bytes as f64 * S as f64 / (last - at).max(1) as f64;
            if (spaced / rate - 1.0).abs() <= tolerance {
                return Some(at - from_ns);
            }
            bytes -= u64::from(packets.get(start + 1).map_or(0, |(_, bytes)| *bytes));
        }
        None
    }

    /// The longest time without a packet, of those that begin between two instants, ns.
    pub(crate) fn longest_gap(&self, from_ns: u64, to_ns: u64) -> u64 {
        let gaps = self.between(from_ns, to_ns).windows(2);
        gaps.map(|pair| pair[1].0.saturating_sub(pair[0].0))
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn series(bins: &[u64]) -> Series {
        Series {
            origin_ns: 10 * MS,
            bin_ns: MS,
            bins: bins.to_vec(),
            beyond: 0,
        }
    }

    #[test]
    fn bytes_come_into_their_bins() {
        let mut series = Series::default();
        for (at, bytes) in [
            (5_300_000, 10),
            (5_900_000, 1),
            (7_000_000, 5),
            (4_900_000, 2),
        ] {
            series.add(at, bytes);
        }
        assert_eq!(
            (series.origin_ns, series.bins.clone()),
            (5 * MS, vec![13, 0, 5])
        );
        series.add(u64::MAX, 9);
        assert_eq!((series.bins.len(), series.beyond), (3, 9));
        assert_eq!(series.coarser(2).bins, [13, 5]);
    }

    #[test]
    fn rates_between_instants() {
        let series = series(&[100, 100, 0, 300]);
        let table = [
            (10 * MS, 14 * MS, 500.0),
            (0, 100 * MS, 500.0),
            (10 * MS + MS / 2, 11 * MS + MS / 2, 100.0),
            (12 * MS, 13 * MS, 0.0),
            (13 * MS + MS / 4, 13 * MS + MS / 2, 75.0),
        ];
        for (from, to, bytes) in table {
            assert!(
                (series.between(from, to) - bytes).abs() < 1e-9,
                "{from} {to}"
            );
        }
        assert!((series.rate(10 * MS, 12 * MS) - 100_000.0).abs() < 1e-6);
    }

    #[test]
    fn the_worst_window_slides() {
        let steady = series(&[100; 20]);
        let all = (0, u64::MAX);
        let worst = |series: &Series, range| series.worst_window(range, 4 * MS, 100_000.0);
        assert_eq!(worst(&steady, all), Some(100_000.0));
        let mut bins = [100; 20];
        (bins[7], bins[8]) = (20, 0);
        let dip = series(&bins);
        assert_eq!(worst(&dip, all), Some(55_000.0));
        assert_eq!(worst(&dip, (19 * MS, u64::MAX)), Some(100_000.0));
        assert_eq!(worst(&dip, (0, 13 * MS)), None, "three bins");
        assert_eq!(worst(&series(&[]), all), None);
    }

    /// Packets of 1000 bytes, one at each of these distances in microseconds.
    fn spaced(runs: &[(usize, u64)]) -> Arrivals {
        let mut arrivals = Arrivals::default();
        let mut at = 0;
        for (count, us) in runs {
            for _ in 0..*count {
                at += us * 1_000;
                arrivals.add(at, 1_000);
            }
        }
        arrivals
    }

    #[test]
    fn a_change_shows_in_the_spacing_of_packets() {
        // 10 MB/s for 20 ms, then 1 MB/s.
        let changed = spaced(&[(200, 100), (50, 1_000)]);
        let settled = |from: u64, rate: f64| changed.settled(from, rate, 0.1, MS);
        assert_eq!(settled(0, 10e6), Some(100_000));
        // The last packet before the change is the first of the new spacing.
        assert_eq!(settled(19_900_000, 1e6), Some(100_000));
        assert_eq!(settled(5 * MS, 1e6), Some(15 * MS));
        assert_eq!(settled(21 * MS, 1e6), Some(0));
        assert_eq!(settled(21 * MS, 10e6), None);
        assert_eq!(settled(100 * MS, 1e6), None, "nothing comes any more");
        // Bursts of ten: their mean over a stretch counts, not single gaps.
        let mut bursts = Arrivals::default();
        for burst in 0..50_u64 {
            for _ in 0..10 {
                bursts.add(burst * MS, 1_000);
            }
        }
        assert_eq!(bursts.settled(0, 10e6, 0.1, 5 * MS), Some(0));
        assert_eq!(changed.longest_gap(0, u64::MAX), MS);
        assert_eq!(changed.longest_gap(0, 15 * MS), 100_000);
        assert_eq!(Arrivals::default().settled(0, 1e6, 0.1, MS), None);
    }
}
