//! What viewers see of streams, put together for a report each second or so.
//!
//! Of each value it is the ninth of ten: one viewer of many with a bad line is no reason to do anything
//! about a service, more than a tenth of them are.

use hdrhistogram::Histogram;

/// As many reports are looked at in a period; what comes beyond is of others like them.
const MOST: usize = 8_192;

/// The part of viewers that sees no worse.
const MOST_OF_THEM: f64 = 0.9;

/// What viewers saw since the last time. Whatever is not known is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Reports of streams that this rests on.
    pub reports: u32,
    /// The part that was lost, 0 to 1: of packets on their way, and of pictures and sound that were left
    /// out before.
    pub loss: Option<f64>,
    /// Milliseconds: how late it was sent, and the way to the viewer.
    pub delay_ms: Option<f64>,
    /// Jitter (RFC 3550), milliseconds.
    pub jitter_ms: Option<f64>,
    /// Stalls of players.
    pub stalls: Option<u32>,
}

impl Seen {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self
            == Self {
                reports: self.reports,
                ..Self::default()
            }
    }
}

/// How far a stream was at its last report: packets that should have come, and those that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets that should have come, of a count that may wrap.
    pub expected: u32,
    /// Packets that did not.
    pub lost: u32,
}

impl Counted {
    /// The part that was lost since then, 0 to 1; `None` where nothing was expected.
    #[must_use]
    pub fn lost_since(&self, before: &Self) -> Option<f64> {
        let expected = self.expected.wrapping_sub(before.expected);
        // A receiver that starts anew counts from the beginning.
        if expected == 0 || expected > u32::MAX / 2 {
            return None;
        }
        let lost = self.lost.saturating_sub(before.lost);
        Some((f64::from(lost) / f64::from(expected)).min(1.0))
    }
}

/// Puts together what is heard of streams.
#[derive(Clone, Debug)]
pub struct Gathering {
    loss: Vec<f64>,
    jitter_ms: Vec<f64>,
    trips_ms: Vec<f64>,
    late_us: Histogram<u32>,
    sent: u64,
    left_out: u64,
    reports: u32,
}

impl Default for Gathering {
    fn default() -> Self {
        // A microsecond to an hour, within 10 %.
        let late_us = Histogram::new_with_bounds(1, 3_600_000_000, 1);
        Self {
            loss: Vec::new(),
            jitter_ms: Vec::new(),
            trips_ms: Vec::new(),
            late_us: late_us.expect("bounds of a histogram"),
            sent: 0,
            left_out: 0,
            reports: 0,
        }
    }
}

impl Gathering {
    /// A stream's viewer has reported: the part that was lost, jitter, and the way there and back, both in
    /// nanoseconds.
    pub fn heard(&mut self, loss: Option<f64>, jitter_ns: f64, trip_ns: Option<u64>) {
        self.reports = self.reports.saturating_add(1);
        if self.jitter_ms.len() >= MOST {
            return;
        }
        self.loss.extend(loss);
        self.jitter_ms.push(jitter_ns.max(0.0) / 1e6);
        self.trips_ms.extend(trip_ns.map(ms));
    }

    /// A sample is so much later than it should be, nanoseconds.
    pub fn late(&mut self, ns: u64) {
        self.late_us.saturating_record((ns / 1000).max(1));
    }

    /// A stream is that far behind the media's clock, nanoseconds; before it where that is negative.
    pub fn behind(&mut self, ns: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is not negative, and beyond the range a cast saturates"
        )]
        self.late(ns.max(0.0) as u64);
    }

    /// A sample was sent; or left out, as there is no rate for it.
    pub const fn sample(&mut self, is_sent: bool) {
        match is_sent {
            true => self.sent += 1,
            false => self.left_out += 1,
        }
    }

    /// What it comes to since the last time.
    pub fn take(&mut self) -> Seen {
        let left_out = ratio(self.left_out, self.sent + self.left_out);
        let loss = match (most(&mut self.loss), left_out > 0.0) {
            (Some(lost), _) => Some(1.0 - (1.0 - lost) * (1.0 - left_out)),
            (None, true) => Some(left_out),
            (None, false) => None,
        };
        let trip = most(&mut self.trips_ms);
        let late = (!self.late_us.is_empty())
            .then(|| ms(self.late_us.value_at_quantile(MOST_OF_THEM) * 1000));
        let delay_ms = match (late, trip) {
            (None, None) => None,
            // Half of the way there and back is the way there.
            (late, trip) => Some(late.unwrap_or(0.0) + trip.unwrap_or(0.0) / 2.0),
        };
        let seen = Seen {
            reports: self.reports,
            loss,
            delay_ms,
            jitter_ms: most(&mut self.jitter_ms),
            stalls: None,
        };
        self.late_us.reset();
        (self.sent, self.left_out, self.reports) = (0, 0, 0);
        seen
    }
}

/// What nine of ten are not above, by nearest rank; they are taken out.
fn most(values: &mut Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let place = (values.len() * 9).div_ceil(10).checked_sub(1);
    let most = place.and_then(|place| values.get(place).copied());
    values.clear();
    most
}

#[expect(clippy::cast_precision_loss, reason = "an hour, in nanoseconds")]
fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "samples of a second")]
fn ratio(of: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => of as f64 / all as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_viewer_of_many_with_a_bad_line_is_not_what_they_see() {
        let mut gathering = Gathering::default();
        assert!(gathering.take().is_empty());
        for number in 0..20 {
            let is_bad = number == 7;
            let (loss, jitter, trip) = match is_bad {
                true => (0.5, 9e8, 900_000_000),
                false => (0.001, 2e6, 4_000_000),
            };
            gathering.heard(Some(loss), jitter, Some(trip));
        }
        let seen = gathering.take();
        let expected = Seen {
            reports: 20,
            loss: Some(0.001),
            delay_ms: Some(2.0),
            jitter_ms: Some(2.0),
            stalls: None,
        };
        assert_eq!(seen.reports, expected.reports);
        assert!((seen.loss.expect("heard") - 0.001).abs() < 1e-9);
        assert_eq!(
            (seen.delay_ms, seen.jitter_ms),
            (expected.delay_ms, expected.jitter_ms)
        );
        // More than a tenth are.
        for number in 0..20 {
            gathering.heard(Some(if number < 3 { 0.5 } else { 0.0 }), 0.0, None);
        }
        assert_eq!(gathering.take().loss, Some(0.5));
        assert!(gathering.take().is_empty());
    }

    #[test]
    fn what_is_left_out_is_missing_as_what_is_lost() {
        let mut gathering = Gathering::default();
        for number in 0..100 {
            gathering.sample(number % 4 != 0);
        }
        assert_eq!(gathering.take().loss, Some(0.25));
        gathering.heard(Some(0.2), 0.0, None);
        gathering.sample(true);
        gathering.sample(false);
        let seen = gathering.take();
        assert!((seen.loss.expect("known") - 0.6).abs() < 1e-9, "{seen:?}");
        // Where all is sent and nobody has reported, nothing is known of losses.
        gathering.sample(true);
        assert_eq!(gathering.take().loss, None);
    }

    #[test]
    fn who_sends_late_delays() {
        let mut gathering = Gathering::default();
        for _ in 0..100 {
            gathering.late(500_000_000);
        }
        let seen = gathering.take();
        let delay = seen.delay_ms.expect("known");
        assert!((450.0..=550.0).contains(&delay), "{seen:?}");
    }

    #[test]
    fn losses_are_counted_between_reports() {
        let counted = |expected, lost| Counted { expected, lost };
        let since = |now: Counted, before| now.lost_since(&before);
        assert_eq!(since(counted(300, 5), counted(200, 3)), Some(0.02));
        assert_eq!(since(counted(5, 1), counted(u32::MAX - 4, 0)), Some(0.1));
        assert_eq!(since(counted(300, 3), counted(200, 5)), Some(0.0));
        assert_eq!(since(counted(200, 3), counted(200, 3)), None);
        assert_eq!(since(counted(100, 0), counted(200, 0)), None);
        assert_eq!(since(counted(210, 500), counted(200, 0)), Some(1.0));
    }
}
