//! Jitter: how much the spacing of packets differs from that of their media times.
//!
//! Source: RFC 3550, section 6.4.1 and appendix A.8: `J += (|D| - J) / 16`, where D is the difference
//! of two packets' transit times. The standard says "consecutive packets"; of a picture that is cut
//! into many packets, all have one timestamp and follow each other at once, so that what is meant
//! makes a difference of several times. Both readings are kept.

use serde::Serialize;

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct JitterReport {
    /// At the end.
    pub last_ns: f64,
    /// The mean over all packets that count.
    pub mean_ns: f64,
    /// The largest.
    pub max_ns: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Jitter {
    before: Option<(u64, u32)>,
    now: f64,
    sum: f64,
    max: f64,
    count: u64,
}

impl Jitter {
    /// A packet that counts has come.
    pub(super) fn arrive(&mut self, at_ns: u64, timestamp: u32, ns_per_tick: f64) {
        if let Some((at, then)) = self.before.replace((at_ns, timestamp)) {
            let difference = ns(at_ns, at) - ticks(timestamp, then) * ns_per_tick;
            self.now += (difference.abs() - self.now) / 16.0;
            self.sum += self.now;
            self.max = self.max.max(self.now);
            self.count += 1;
        }
    }

    /// What follows has no spacing to what was.
    pub(super) fn forget(&mut self) {
        self.before = None;
    }

    /// The timestamp of the last one that counted.
    pub(super) fn timestamp(&self) -> Option<u32> {
        self.before.map(|(_, timestamp)| timestamp)
    }

    #[expect(clippy::cast_precision_loss, reason = "packets of a stream")]
    pub(super) fn report(&self) -> JitterReport {
        JitterReport {
            last_ns: self.now,
            mean_ns: match self.count {
                0 => 0.0,
                count => self.sum / count as f64,
            },
            max_ns: self.max,
        }
    }
}

/// From one time to another, which may be before it.
#[expect(clippy::cast_precision_loss, reason = "seconds, in nanoseconds")]
fn ns(now: u64, then: u64) -> f64 {
    match now.checked_sub(then) {
        Some(later) => later as f64,
        None => -((then - now) as f64),
    }
}

/// From one timestamp to another, over the end of their numbers.
fn ticks(now: u32, then: u32) -> f64 {
    f64::from(now.wrapping_sub(then).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_the_standard_computes_it() {
        // 160 ticks of 8 kHz are 20 ms. One packet is 16 ms late, and the next in its place again.
        let mut jitter = Jitter::default();
        let tick = 1e9 / 8000.0;
        for (at_ms, timestamp) in [(0, 0), (20, 160), (56, 320), (60, 480), (80, 640)] {
            jitter.arrive(at_ms * 1_000_000, timestamp, tick);
        }
        // 0; 16/16 = 1; 1 + (16 - 1)/16 = 1.9375; 1.9375 * 15/16.
        let report = jitter.report();
        assert!((report.max_ns - 1_937_500.0).abs() < 1e-3, "{report:?}");
        assert!((report.last_ns - 1_816_406.25).abs() < 1e-3, "{report:?}");
        let mean = (0.0 + 1_000_000.0 + 1_937_500.0 + 1_816_406.25) / 4.0;
        assert!((report.mean_ns - mean).abs() < 1e-3, "{report:?}");
    }

    #[test]
    fn timestamps_go_over_their_end() {
        let mut jitter = Jitter::default();
        for (at_ms, timestamp) in [(0, u32::MAX - 79), (20, 80), (40, 240)] {
            jitter.arrive(at_ms * 1_000_000, timestamp, 1e9 / 8000.0);
        }
        assert!(jitter.report().max_ns < 1.0);
    }
}
