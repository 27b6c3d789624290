//! When viewers come.

use bonsai_stats::SplitMix64;

/// How viewers come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All at once: what a server sees when a match begins.
    Crowd,
    /// At equal distances, so many a second.
    Even(f64),
    /// By chance, so many a second on average (Poisson).
    Poisson(f64),
}

impl Arrivals {
    /// When each comes, nanoseconds from the beginning, in order.
    #[must_use]
    pub fn times(&self, viewers: u32, seed: u64) -> Vec<u64> {
        let mut random = SplitMix64::new(seed);
        let mut at = 0.0;
        let mut next = |step: f64| {
            let now = at;
            at += step;
            now
        };
        let times = (0..viewers).map(|_| match self {
            Self::Crowd => next(0.0),
            Self::Even(per_sec) => next(1e9 / per_sec),
            Self::Poisson(per_sec) => next(-unit(&mut random).ln() * 1e9 / per_sec),
        });
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "nanoseconds from the beginning on"
        )]
        times.map(|at| at as u64).collect()
    }
}

/// A number above 0 and up to 1.
#[expect(clippy::cast_precision_loss, reason = "it has 53 bits")]
fn unit(random: &mut SplitMix64) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_as_it_is_said() {
        assert_eq!(Arrivals::Crowd.times(3, 1), [0, 0, 0]);
        assert_eq!(
            Arrivals::Even(4.0).times(3, 1),
            [0, 250_000_000, 500_000_000]
        );
        let times = Arrivals::Poisson(100.0).times(10_001, 1);
        assert!(times.is_sorted() && times[0] == 0);
        let mean = times[10_000] as f64 / 1e4;
        assert!((mean / 1e7 - 1.0).abs() < 0.05, "{mean}");
        assert_eq!(times, Arrivals::Poisson(100.0).times(10_001, 1));
    }
}
