//! From samples to numbers with their uncertainty.

use bonsai_stats::{Interval, MedianEstimate, PairedRatio, median};

/// The confidence of every interval.
const CONFIDENCE: f64 = 0.95;

/// The median of a sample with its 95 % interval.
pub(crate) fn estimate(values: &[f64], seed: u64) -> Option<MedianEstimate> {
    MedianEstimate::of(values, CONFIDENCE, seed)
}

/// A variant against its base, round by round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairing {
    /// The base.
    pub(crate) base: MedianEstimate,
    /// Variant minus base.
    pub(crate) difference: MedianEstimate,
    /// Variant over base.
    pub(crate) ratio: MedianEstimate,
}

impl Pairing {
    /// Of rounds `(base, variant)`; `None` below two rounds, or if a base is not
    /// above zero.
    pub(crate) fn of(rounds: &[(f64, f64)], seed: u64) -> Option<Self> {
        let bases: Vec<f64> = rounds.iter().map(|(base, _)| *base).collect();
        let differences: Vec<f64> = rounds
            .iter()
            .map(|(base, variant)| variant - base)
            .collect();
        Some(Self {
            base: estimate(&bases, seed)?,
            difference: estimate(&differences, seed)?,
            ratio: PairedRatio::of(rounds, seed)?.ratio,
        })
    }
}

/// The median, or zero of nothing.
pub(crate) fn median_or_zero(values: &[f64]) -> f64 {
    median(values).unwrap_or(0.0)
}

/// `12.3 [11.9, 12.8]`.
pub(crate) fn with_interval(estimate: &MedianEstimate, digits: usize) -> String {
    let Interval { low, high } = estimate.interval;
    format!(
        "{:.digits$} [{low:.digits$}, {high:.digits$}]",
        estimate.median
    )
}

/// A signed difference with its interval.
pub(crate) fn signed_with_interval(estimate: &MedianEstimate, digits: usize) -> String {
    let Interval { low, high } = estimate.interval;
    format!(
        "{:+.digits$} [{low:+.digits$}, {high:+.digits$}]",
        estimate.median
    )
}

/// A part as a signed percentage: `+1.25 %`.
pub(crate) fn percent(part: f64, digits: usize) -> String {
    format!("{:+.digits$} %", part * 100.0)
}

/// A number of bytes as it is written: `1 B`, `4 KiB`, `1448 B`, `16 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// A number of bytes per second as it is written: `10 MB/s`.
pub(crate) fn rate(bytes_per_sec: u64) -> String {
    bonsai_units::Rate::bytes_per_sec(bytes_per_sec).storage()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_cancel_what_both_met() {
        // The machine gets slower and slower; the variant costs 2 more each time.
        let rounds: Vec<_> = (0..20)
            .map(|i| (100.0 + f64::from(i), 102.0 + f64::from(i)))
            .collect();
        let pairing = Pairing::of(&rounds, 1).expect("an estimate");
        assert!((pairing.difference.median - 2.0).abs() < 1e-9);
        assert!(pairing.difference.interval.width() < 1e-9);
        assert!(pairing.base.interval.width() > 1.0);
        assert!(Pairing::of(&[(1.0, 1.0)], 1).is_none());
    }

    #[test]
    fn quantities() {
        for (bytes, text) in [
            (1, "1 B"),
            (1448, "1448 B"),
            (4096, "4 KiB"),
            (1 << 24, "16 MiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(rate(10_000_000), "10 MB/s");
        assert_eq!(percent(-0.0125, 2), "-1.25 %");
    }
}
