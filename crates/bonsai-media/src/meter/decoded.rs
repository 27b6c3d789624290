//! Jitter in the order of decoding, also where pictures are unevenly apart.
//!
//! The first picture that came has the first of all times, the second the second ([`super::order`]). Where times are
//! evenly apart, it is the same which of them is taken, as long as all are as far from it. Where they are not, a film that
//! is sent exactly when due has no jitter by one reading alone: an encoder that holds pictures back decodes the
//! first at the time of the one that is as many before it (x264: `dts[i] = pts[i - delay]`). Packets do not say how many, so
//! each is measured, and the least is what can be known.

use super::jitter::{Jitter, JitterReport};

/// How many pictures encoders hold back, and one: x264 and x265 up to 2, others 3.
const DELAYS: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Decoded {
    by_delay: [Jitter; DELAYS],
    /// The last times, the latest first.
    times: [u32; DELAYS],
    seen: usize,
    /// The least and the most between two times, ticks; 0 before there are any.
    least: u32,
    most: u32,
}

impl Decoded {
    /// A picture has come, and the first of the times that are left is that.
    pub(super) fn arrive(&mut self, at_ns: u64, timestamp: u32, ns_per_tick: f64) {
        if self.seen > 0 {
            let step = timestamp.wrapping_sub(self.times[0]);
            if step.cast_signed() > 0 {
                self.most = self.most.max(step);
                self.least = match self.least {
                    0 => step,
                    least => least.min(step),
                };
            }
        }
        self.times.rotate_right(1);
        self.times[0] = timestamp;
        self.seen += 1;
        for (delay, jitter) in self.by_delay.iter_mut().enumerate() {
            if delay < self.seen {
                jitter.arrive(at_ns, self.times[delay], ns_per_tick);
            }
        }
    }

    /// How much farther two pictures are apart than two others, ticks.
    pub(super) const fn uneven(&self) -> u32 {
        self.most - self.least
    }

    /// What follows has no spacing to what was.
    pub(super) fn forget(&mut self) {
        self.by_delay.iter_mut().for_each(Jitter::forget);
        self.seen = 0;
    }

    pub(super) fn report(&self) -> JitterReport {
        let first = self.by_delay[0].report();
        // Half a step is more than any rounding to ticks.
        if self.seen < 2 * DELAYS || self.uneven() <= self.least / 2 {
            return first;
        }
        let reports = self.by_delay.iter().map(Jitter::report);
        reports.fold(first, |least, of| match of.max_ns < least.max_ns {
            true => of,
            false => least,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Meter, Packet, Thresholds};

    const TICKS_PER_MS: u32 = 90;

    /// A film of such steps, ms, whose pictures are shown as `I0 P3 B1 B2 P6 ...` and decoded two late, sent when due,
    /// and later by what `late` says of each.
    fn judged(steps: &[u32], late: impl Fn(usize) -> u64) -> (f64, Vec<super::super::Criterion>) {
        let mut times = vec![0];
        for step in steps {
            times.push(times[times.len() - 1] + step);
        }
        times.truncate((times.len() - 1) / 3 * 3 + 1);
        let (first, delay) = (times[0], times[1] - times[0]);
        let shown = |place: usize| match (place, place % 3) {
            (0, _) => 0,
            (_, 1) => place + 2,
            _ => place - 1,
        };
        let mut meter = Meter::new(90_000, 0);
        let mut last = 0;
        for place in 0..times.len() {
            let due = match place {
                0 => 0,
                _ => times[place - 1] + delay - first,
            };
            last = (u64::from(due) + late(place)) * 1_000_000;
            meter.arrive(&Packet {
                at_ns: last,
                ssrc: 7,
                sequence: u16::try_from(place).expect("small"),
                timestamp: times[shown(place)] * TICKS_PER_MS,
                payload: 1000,
            });
        }
        let report = meter.report(last);
        (
            report.jitter_decoded.max_ns,
            Thresholds::default().judge(&report).broken,
        )
    }

    #[test]
    fn a_film_of_variable_rate_that_is_late_is_seen() {
        let steps: Vec<u32> = (0..300).map(|of| 40 + of * 7 % 5 * 40).collect();
        assert_eq!(judged(&steps, |_| 0).1, []);
        // Each second picture 120 ms late.
        let (jitter, broken) = judged(&steps, |place| if place % 2 == 0 { 0 } else { 120 });
        assert!(jitter > 50e6 && !broken.is_empty(), "{jitter} {broken:?}");
        // Slower by a tenth.
        let (_, broken) = judged(&steps, |place| 12 * place as u64);
        assert!(!broken.is_empty());
    }

    proptest! {
        #[test]
        fn any_film_that_is_sent_when_due_is_of_top_quality(
            steps in prop::collection::vec(prop::sample::select(vec![40_u32, 80, 120, 200, 280]), 60..300),
        ) {
            let (jitter, broken) = judged(&steps, |_| 0);
            prop_assert!(jitter < 1e6, "{jitter}");
            prop_assert_eq!(broken, vec![]);
        }
    }
}
