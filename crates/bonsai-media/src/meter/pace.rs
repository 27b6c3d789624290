//! How far a stream is behind its own media clock.
//!
//! A server that is starved, or held back, need not lose anything: it sends later and later, and the
//! film runs in slow motion. What shows it is the *lag*: how much longer it took from the first packet
//! to now than the media that has come since would play. The *pace* is media time over time.
//!
//! # Invariants
//! 1. Pictures that are sent in another order than they are shown in do not count as lag: what has
//!    come is as far as the latest media time.
//! 2. The sender's clock may be up to [`DRIFT_PPM`] slower or faster than ours, which is measured by
//!    its reports (RFC 3550, 6.4.1: SR) and is no lag. More is not believed.

/// What a clock may be off, parts per million; crystals are within 100.
const DRIFT_PPM: f64 = 500.0;

/// Sender reports tell of a clock's speed from so many nanoseconds apart on.
const APART_NS: u64 = 5_000_000_000;

/// Packets that are later than that are counted (002: 400 ms), nanoseconds.
pub(super) const LATE_NS: u64 = 400_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    first_ns: Option<u64>,
    last: u32,
    /// Media time of the last packet since the first, and the latest, ticks.
    now: i64,
    latest: i64,
    max_lag_ns: f64,
    pub(super) late: u64,
    reports: Option<[Told; 2]>,
    /// What it follows from those that the sender's clock is faster by; 0 where they do not tell.
    drift: f64,
}

/// A sender report: when it came, and the sender's clock, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Told {
    at_ns: u64,
    ntp_ns: u64,
}

impl Pace {
    pub(super) fn arrive(&mut self, at_ns: u64, timestamp: u32, ns_per_tick: f64) {
        let Some(first) = self.first_ns else {
            self.first_ns = Some(at_ns);
            (self.last, self.now, self.latest) = (timestamp, 0, 0);
            return;
        };
        self.now += i64::from(timestamp.wrapping_sub(self.last).cast_signed());
        self.last = timestamp;
        self.latest = self.latest.max(self.now);
        let passed = float(at_ns.saturating_sub(first)) * (1.0 + self.drift);
        let lag = passed - signed(self.latest) * ns_per_tick;
        self.max_lag_ns = self.max_lag_ns.max(lag);
        self.late += u64::from(passed - signed(self.now) * ns_per_tick > float(LATE_NS));
    }

    /// What follows has another clock: it is on time by what it begins with.
    pub(super) fn forget(&mut self) {
        self.first_ns = None;
        self.reports = None;
        self.drift = 0.0;
    }

    /// A sender report has come.
    pub(super) fn told(&mut self, at_ns: u64, ntp_ns: u64) {
        let told = Told { at_ns, ntp_ns };
        match &mut self.reports {
            Some([_, last]) => *last = told,
            none => *none = Some([told; 2]),
        }
        self.drift = self.drift_ppm().unwrap_or(0.0) * 1e-6;
    }

    /// How much faster the sender's clock is than ours, parts per million, if it told enough.
    pub(super) fn drift_ppm(&self) -> Option<f64> {
        let [first, last] = self.reports?;
        let ours = last.at_ns.checked_sub(first.at_ns)?;
        let theirs = last.ntp_ns.checked_sub(first.ntp_ns)?;
        let drift = (float(theirs) / float(ours) - 1.0) * 1e6;
        (ours >= APART_NS && drift.abs() <= DRIFT_PPM).then_some(drift)
    }

    /// Media time from the first packet on, nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is not negative, and hours at most"
    )]
    pub(super) fn media_ns(&self, ns_per_tick: f64) -> u64 {
        (signed(self.latest) * ns_per_tick) as u64
    }

    /// Nanoseconds behind at a time, and at most so far; media time over time.
    pub(super) fn report(&self, now_ns: u64, ns_per_tick: f64) -> Option<PaceReport> {
        let passed = float(now_ns.saturating_sub(self.first_ns?));
        let media = signed(self.latest) * ns_per_tick;
        let lag_ns = passed * (1.0 + self.drift) - media;
        Some(PaceReport {
            lag_ns,
            max_lag_ns: self.max_lag_ns.max(lag_ns),
            media_ns: media,
            pace: match passed > 0.0 {
                true => media / passed,
                false => 1.0,
            },
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PaceReport {
    pub(super) lag_ns: f64,
    pub(super) max_lag_ns: f64,
    pub(super) media_ns: f64,
    pub(super) pace: f64,
}

#[expect(clippy::cast_precision_loss, reason = "hours, in nanoseconds")]
fn float(ns: u64) -> f64 {
    ns as f64
}

#[expect(clippy::cast_precision_loss, reason = "hours, in ticks")]
fn signed(ticks: i64) -> f64 {
    ticks as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: f64 = 1e9 / 90_000.0;

    /// 25 pictures a second that each come so much later than the one before, ms.
    fn played(seconds: u64, every_ms: u64) -> Pace {
        let mut pace = Pace::default();
        for picture in 0..seconds * 25 {
            let timestamp = u32::try_from(picture * 3600).expect("small");
            // From near the end of the numbers.
            let timestamp = timestamp.wrapping_sub(9000);
            pace.arrive(picture * every_ms * 1_000_000, timestamp, TICK);
        }
        pace
    }

    #[test]
    fn on_time_is_no_lag_and_slow_motion_is() {
        let on_time = played(25, 40);
        let last = (25 * 25 - 1) * 40_000_000;
        let report = on_time.report(last, TICK).expect("some");
        assert!(
            report.max_lag_ns.abs() < 1e3 && (report.pace - 1.0).abs() < 1e-9,
            "{report:?}"
        );
        assert_eq!(on_time.late, 0);
        // 60 % of the pace, with nothing lost: 10 s late after 25 s.
        let slow = played(15, 66);
        let last = (15 * 25 - 1) * 66_000_000;
        let report = slow.report(last, TICK).expect("some");
        assert!((report.lag_ns - 9.724e9).abs() < 1e6, "{report:?}");
        assert!((report.pace - 40.0 / 66.0).abs() < 1e-6, "{report:?}");
        assert!(slow.late > 350, "{}", slow.late);
    }

    #[test]
    fn pictures_in_another_order_are_not_late() {
        // I P B B: shown 0, 3, 1, 2.
        let mut pace = Pace::default();
        for group in 0..100_u32 {
            for (place, shown) in [(0, 0), (1, 3), (2, 1), (3, 2)] {
                let at = u64::from(group * 4 + place) * 40_000_000;
                pace.arrive(at, (group * 4 + shown) * 3600, TICK);
            }
        }
        let report = pace.report(399 * 40_000_000, TICK).expect("some");
        assert!(report.max_lag_ns < 41e6, "{report:?}");
        assert_eq!(pace.late, 0);
    }

    #[test]
    fn a_clock_that_drifts_is_no_lag() {
        let mut pace = Pace::default();
        // The sender's clock is 200 ppm slower: after an hour it is 720 ms behind.
        for second in 0..3600_u64 {
            let at = second * 1_000_200_000;
            pace.arrive(at, u32::try_from(second * 90_000).expect("small"), TICK);
            if second % 5 == 0 {
                pace.told(at, 7_000_000_000 + second * 1_000_000_000);
            }
        }
        let drift = pace.drift_ppm().expect("told");
        assert!((drift + 200.0).abs() < 1.0, "{drift}");
        let report = pace.report(3599 * 1_000_200_000, TICK).expect("some");
        assert!(report.lag_ns.abs() < 5e6, "{report:?}");
        // Up to the second report nothing is known of its clock: 1 ms by then.
        assert!(report.max_lag_ns < 10e6, "{report:?}");
        // One that is set is not believed.
        pace.told(3600 * 1_000_200_000, 70_000_000_000);
        assert_eq!(pace.drift_ppm(), None);
    }
}
