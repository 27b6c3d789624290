//! What a player's viewer sees, beside what the client counts.

use bonsai_media::adapt::{Client, Phase, Summary, Weights};
use hdrhistogram::Histogram;

use super::{Log, Logged, Seen, Shortfall, Stall, Times};

/// Segments of a player.
pub(super) struct Meter {
    /// Times of segments, us.
    times: Histogram<u32>,
    quality: usize,
    /// If it is kept.
    log: Option<Log>,
    /// A stall that has not ended, and how long all before it were, ms.
    stall: Option<(Stall, f64)>,
}

impl Meter {
    pub(super) fn new(keeps_log: bool) -> Self {
        Self {
            times: super::times(),
            quality: 0,
            log: keeps_log.then(Log::default),
            stall: None,
        }
    }

    /// A segment has come in so long.
    pub(super) fn fetched(&mut self, us: u64, quality: usize) {
        // It grows as it has to.
        let _ = self.times.record(us);
        self.quality = quality;
    }

    /// Which, of how many ms, and its bytes: of pictures, and of sound apart.
    pub(super) fn log(&mut self, segment: usize, quality: usize, ms: f64, bytes: (u64, u64)) {
        if let Some(log) = &mut self.log {
            log.segments.push(Logged {
                segment,
                quality,
                ms,
                bytes: bytes.0,
                sound_bytes: bytes.1,
            });
        }
    }

    /// Looks whether a stall has begun or ended, when so much media has come, ms: whoever stalls has shown all
    /// of it.
    pub(super) fn phase(&mut self, client: &mut Client, came_ms: f64, at: u64) {
        if self.log.is_none() {
            return;
        }
        let stalls = client.player().phase() == Phase::Stalled;
        match (&mut self.stall, stalls) {
            (None, true) => {
                let stall = Stall {
                    at_ms: came_ms,
                    ms: 0.0,
                };
                let log = self.log.iter().flat_map(|log| &log.stalls);
                let before = log.map(|stall| stall.ms).sum();
                self.stall = Some((stall, before));
            }
            (Some((stall, before)), false) => {
                stall.ms = client.summary(at).stall_ms - *before;
                let ended = *stall;
                self.stall = None;
                self.log.iter_mut().for_each(|log| log.stalls.push(ended));
            }
            _ => {}
        }
    }

    /// What was seen until then. Of a single list it is not known what it carries, but for what came of so much
    /// media, ms.
    pub(super) fn seen(
        mut self,
        client: &mut Client,
        at: u64,
        (came_ms, is_known): (f64, bool),
        connections: u64,
        buffer_ms: f64,
    ) -> Seen {
        let mut summary = client.summary(at);
        if !is_known && came_ms > 0.0 {
            let kbps = (summary.bits - summary.wasted_bits) / came_ms;
            #[expect(clippy::cast_precision_loss, reason = "segments of a film")]
            let segments = summary.segments as f64;
            summary.kbps_sum = segments * kbps;
            if summary.played_ms > 0.0 {
                summary.mean_kbps = kbps;
            }
        }
        if let (Some((mut stall, before)), Some(log)) = (self.stall.take(), &mut self.log) {
            stall.ms = summary.stall_ms - before;
            log.stalls.push(stall);
        }
        Seen {
            mean_segment_kbps: mean_of_segments(&summary),
            score: Weights::default()
                .score(&summary)
                .map(|score| score.per_segment),
            quality: self.quality,
            times: Times::of(&self.times),
            connections,
            short_of: short_of(&summary, buffer_ms),
            log: self.log,
            summary,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "segments of a film")]
fn mean_of_segments(summary: &Summary) -> f64 {
    match summary.segments {
        0 => 0.0,
        segments => summary.kbps_sum / segments as f64,
    }
}

/// What it falls short of top quality by: the highest, from its first picture on, which comes before a buffer's
/// worth of media was shown; and no stall.
pub(super) fn short_of(summary: &Summary, buffer_ms: f64) -> Vec<Shortfall> {
    let mut short = Vec::new();
    if summary.stalls > 0 {
        short.push(Shortfall::Stall);
    }
    if summary.switches_down > 0 {
        short.push(Shortfall::Lower);
    }
    if let Some((highest_ms, lower)) = summary.in_quality_ms.split_last() {
        let lower_ms: f64 = lower.iter().sum();
        if *highest_ms <= 0.0 || lower_ms > buffer_ms {
            short.push(Shortfall::Late);
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_quality_is_the_highest_from_its_first_picture_on() {
        let good = Summary {
            in_quality_ms: vec![2_000.0, 0.0, 20_000.0],
            switches_up: 1,
            ..Summary::default()
        };
        assert_eq!(short_of(&good, 25_000.0), []);
        assert_eq!(short_of(&good, 1_000.0), [Shortfall::Late]);
        let down = Summary {
            switches_down: 1,
            stalls: 2,
            ..good
        };
        assert_eq!(
            short_of(&down, 25_000.0),
            [Shortfall::Stall, Shortfall::Lower]
        );
        let never = Summary {
            in_quality_ms: vec![2_000.0, 0.0],
            ..Summary::default()
        };
        assert_eq!(short_of(&never, 25_000.0), [Shortfall::Late]);
    }
}
