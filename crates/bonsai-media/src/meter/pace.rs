//! How far a stream is behind its own media clock.
//!
//! A server that is starved, or held back, need not lose anything: it sends later and later, and the
//! film runs in slow motion. What shows it is the *lag*: how much longer it took from the first packet
//! to now than the media that has come since plays. The *pace* is media time over time.
//!
//! ```text
//!   time    0 ────── 40 ────── 80 ────── 120 ── now
//!   came    I0       P120      B40       B80
//!   place   0        40        80        120 ── up to 160: then the next is due
//!   covers  0..40    0..80     0..120    0..160
//! ```
//! A packet says when its media begins, and not for how long it plays. Between two packets the stream's
//! *place* goes on with time, for as long as the last step from one to another was: until then nothing is due.
//! Otherwise a stream would be slow by a packet, whenever it is looked at: by 85 ms where each packet holds four
//! frames of sound, which is 3 % of three seconds.
//!
//! # Invariants
//! 1. Pictures that are sent in another order than they are shown in are no lag, and no lead: one that is shown
//!    behind others that are still to come is as far as the first of those.
//! 2. The sender's clock may be up to [`DRIFT_PPM`] slower or faster than ours, which is measured by
//!    its reports (RFC 3550, 6.4.1: SR) and is no lag. More is not believed.
//! 3. Silence counts as lag from when the next packet is due, and after [`LONGEST_NS`] in any case.

/// What a clock may be off, parts per million; crystals are within 100.
const DRIFT_PPM: f64 = 500.0;

/// Sender reports tell of a clock's speed from so many nanoseconds apart on.
const APART_NS: u64 = 5_000_000_000;

/// Packets that are later than that are counted (002: 400 ms), nanoseconds.
pub(super) const LATE_NS: u64 = 400_000_000;

/// For longer no packet is taken to play: that is the lag from which on a stream is not of top quality.
const LONGEST_NS: f64 = 1e9;

#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    first_ns: Option<u64>,
    last: u32,
    /// Media time of the last packet since the first, and the latest, ticks.
    now: i64,
    latest: i64,
    /// When the latest came first, how far it is from the latest before it, ticks, and how many pictures have come
    /// from it on.
    latest_ns: u64,
    step: i64,
    pictures: i64,
    /// The least between two pictures that came one after the other; 0 before there are two.
    least: i64,
    /// The farthest that one was before the latest: how far pictures are out of the order they are shown in.
    depth: i64,
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
            (self.latest_ns, self.step, self.pictures) = (at_ns, 0, 1);
            (self.least, self.depth) = (0, 0);
            return;
        };
        let moved = i64::from(timestamp.wrapping_sub(self.last).cast_signed());
        self.now += moved;
        self.last = timestamp;
        if moved != 0 {
            self.pictures += 1;
            self.least = match self.least {
                0 => moved.abs(),
                least => least.min(moved.abs()),
            };
        }
        if self.now > self.latest {
            self.step = self.now - self.latest;
            (self.latest, self.latest_ns, self.pictures) = (self.now, at_ns, 1);
        } else {
            self.depth = self.depth.max(self.latest - self.now);
        }
        let passed = float(at_ns.saturating_sub(first)) * (1.0 + self.drift);
        let lag = passed - self.place_ns(at_ns, ns_per_tick);
        self.max_lag_ns = self.max_lag_ns.max(lag);
        self.late += u64::from(passed - signed(self.now) * ns_per_tick > float(LATE_NS));
    }

    /// By how much the latest is shown behind pictures that come after it.
    fn ahead(&self) -> i64 {
        self.depth.min(self.step - self.least).max(0)
    }

    /// How far the place is not known where pictures are unevenly apart, by so many ticks, and shown in another order than
    /// they are sent in: which of them the next ones come between is only known when they have come.
    pub(super) fn uncertain_ns(&self, uneven: u32, ns_per_tick: f64) -> f64 {
        let is_known = self.depth == 0 || i64::from(uneven) <= self.least / 2;
        match is_known {
            true => 0.0,
            false => (signed(self.depth) + f64::from(uneven)) * ns_per_tick,
        }
    }

    /// How long the latest plays, with those that come after it and are shown before it, nanoseconds.
    fn holds_ns(&self, ns_per_tick: f64) -> f64 {
        (signed(self.step) * ns_per_tick).min(LONGEST_NS)
    }

    /// How far the media is at a time, nanoseconds since the first packet's.
    fn place_ns(&self, now_ns: u64, ns_per_tick: f64) -> f64 {
        let since = float(now_ns.saturating_sub(self.latest_ns)) * (1.0 + self.drift);
        let began = signed(self.latest - self.ahead()) * ns_per_tick;
        began + since.min(self.holds_ns(ns_per_tick))
    }

    /// What all that has come plays, nanoseconds.
    fn covered_ns(&self, ns_per_tick: f64) -> f64 {
        let ahead = self.ahead();
        let each = match ahead {
            0 => self.holds_ns(ns_per_tick),
            _ => signed(self.least) * ns_per_tick,
        };
        let most = signed(ahead) * ns_per_tick + each;
        let began = signed(self.latest - ahead) * ns_per_tick;
        began + (signed(self.pictures) * each).min(most)
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
        let media_ns = self.place_ns(now_ns, ns_per_tick);
        let lag_ns = passed * (1.0 + self.drift) - media_ns;
        Some(PaceReport {
            lag_ns,
            max_lag_ns: self.max_lag_ns.max(lag_ns),
            media_ns,
            covered_ns: self.covered_ns(ns_per_tick),
            pace: match passed > 0.0 {
                true => media_ns / passed,
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
    pub(super) covered_ns: f64,
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
    use std::time::Duration;

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

    /// Streams of a second and more: how fast their clock is, of how many ticks each packet is, and in which order
    /// those of a group come.
    const STREAMS: [(f64, u32, &[u64]); 4] = [
        (90_000.0, 3_600, &[0]),
        (90_000.0, 3_600, &[0, 3, 1, 2]),
        (48_000.0, 1_024, &[0]),
        // Four frames of sound in each packet.
        (48_000.0, 4_096, &[0]),
    ];

    fn whole(ns: f64) -> u64 {
        u64::try_from(Duration::from_secs_f64(ns / 1e9).as_nanos()).expect("small")
    }

    /// One that is sent at so many times its own speed, up to a time, and looked at then; how many packets came.
    fn watched(
        (clock, ticks, order): (f64, u32, &[u64]),
        speed: f64,
        until_ns: f64,
        now_ns: f64,
    ) -> (PaceReport, u64) {
        let (mut pace, mut sent) = (Pace::default(), 0);
        loop {
            let at = float(sent) * f64::from(ticks) / clock * 1e9 / speed;
            if at > until_ns {
                break;
            }
            let group = u64::try_from(order.len()).expect("small");
            let shown = sent / group * group + order[usize::try_from(sent % group).expect("small")];
            let timestamp = u32::try_from(shown).expect("small") * ticks;
            pace.arrive(whole(at), timestamp, 1e9 / clock);
            sent += 1;
        }
        let report = pace.report(whole(now_ns), 1e9 / clock);
        (report.expect("some"), sent)
    }

    #[test]
    fn a_short_stream_on_time_is_not_slow_whenever_it_is_looked_at() {
        for stream in STREAMS {
            let each_ns = f64::from(stream.1) / stream.0 * 1e9;
            for ms in [1_000.0, 3_000.0, 10_000.0] {
                for more in 0..100 {
                    let end = (ms + f64::from(more) * 1.3) * 1e6;
                    let (report, sent) = watched(stream, 1.0, end, end);
                    assert!(
                        (report.pace - 1.0).abs() < 1e-6,
                        "{stream:?} {end}: {report:?}"
                    );
                    assert!(report.lag_ns.abs() < 1e3, "{stream:?} {end}: {report:?}");
                    // What all packets that came play, and not one less.
                    let all = float(sent) * each_ns;
                    assert!(
                        (report.covered_ns - all).abs() < 1e3,
                        "{stream:?} {end}: {report:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_short_stream_in_slow_motion_is_slow_whenever_it_is_looked_at() {
        for stream in STREAMS {
            for ms in [1_000.0, 3_000.0, 10_000.0] {
                for more in 0..100 {
                    let end = (ms + f64::from(more) * 1.3) * 1e6;
                    let (report, _) = watched(stream, 0.9, end, end);
                    // It is as far as it goes at its own speed up to when the next is due, and no farther.
                    assert!(
                        report.pace > 0.899 && report.pace < 0.915,
                        "{stream:?} {end}: {report:?}"
                    );
                    assert!(report.lag_ns > 0.085 * end, "{stream:?} {end}: {report:?}");
                }
            }
        }
    }

    #[test]
    fn silence_is_lag_from_when_the_next_packet_is_due() {
        for stream in STREAMS {
            let (report, sent) = watched(stream, 1.0, 1e9, 3e9);
            let all = float(sent) * f64::from(stream.1) / stream.0 * 1e9;
            // Of a group of pictures, those that are still to come may be waited for.
            assert!(
                report.media_ns >= all - 1e3 && report.media_ns < all + 121e6,
                "{report:?}"
            );
            assert!(
                (report.lag_ns - (3e9 - report.media_ns)).abs() < 1e3,
                "{report:?}"
            );
        }
        // Slides of ten seconds: nobody is sure that the next is not late.
        let (report, _) = watched((90_000.0, 900_000, &[0]), 1.0, 20e9, 25e9);
        assert!((report.lag_ns - 4e9).abs() < 1e3, "{report:?}");
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
