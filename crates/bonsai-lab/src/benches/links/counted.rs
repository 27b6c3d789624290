//! What a class's counter said at instants.

use serde::{Deserialize, Serialize};

/// Instants of CLOCK_MONOTONIC, ns, and bytes of layer 2 since some beginning.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Counted(pub(super) Vec<(u64, u64)>);

impl Counted {
    /// Bytes a second from the first reading to the last.
    pub(super) fn mean(&self) -> Option<f64> {
        rate(*self.0.first()?, *self.0.last()?)
    }

    /// Of all stretches from one reading to the first that is so many ns later, the rate that is furthest
    /// from another.
    pub(super) fn worst(&self, window_ns: u64, from: f64) -> Option<f64> {
        let rates = self.0.iter().enumerate().filter_map(|(i, first)| {
            let rest = &self.0[i..];
            let last = rest.iter().find(|(at, _)| *at >= first.0 + window_ns)?;
            rate(*first, *last)
        });
        let distance = |rate: &f64| (rate - from).abs();
        rates.max_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    /// Seconds from the first reading to the last.
    pub(super) fn seconds(&self) -> f64 {
        let ends = self.0.first().zip(self.0.last());
        ends.map_or(0.0, |(first, last)| (last.0 - first.0) as f64 / 1e9)
    }
}

fn rate(first: (u64, u64), last: (u64, u64)) -> Option<f64> {
    let ns = last.0.checked_sub(first.0).filter(|ns| *ns > 0)?;
    Some(last.1.saturating_sub(first.1) as f64 * 1e9 / ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn means_and_the_worst_window() {
        // A reading each half second: 100 B/s, but for one half second with nothing.
        let bytes = [0, 50, 100, 100, 150, 200, 250];
        let readings = bytes.iter().zip(0_u64..);
        let counted = Counted(readings.map(|(bytes, i)| (i * S / 2, *bytes)).collect());
        assert_eq!(counted.mean(), Some(250.0 / 3.0));
        assert_eq!(counted.worst(S, 100.0), Some(50.0));
        assert_eq!(counted.worst(S / 2, 100.0), Some(0.0));
        assert_eq!(counted.worst(10 * S, 100.0), None, "no window is that long");
        assert!((counted.seconds() - 3.0).abs() < 1e-9);
        assert_eq!(Counted::default().mean(), None);
        assert_eq!(Counted(vec![(5, 1)]).mean(), None);
    }
}
