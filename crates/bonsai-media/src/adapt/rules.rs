//! The rules themselves.

mod bola;
mod bolae;
mod davvi;
mod dynamic;
mod throughput;

pub(super) use self::bola::Bola;
pub(super) use self::bolae::Bolae;
pub(super) use self::davvi::Davvi;
pub(super) use self::dynamic::Dynamic;
pub(super) use self::throughput::Throughput;

use super::{Progress, View};

/// Sooner nothing is given up, milliseconds.
const GRACE_MS: f64 = 500.0;

/// How fast a download comes, bits a millisecond, and how many bits of it are left; nothing while it is too
/// young to say.
fn pace(progress: &Progress) -> Option<(f64, f64)> {
    let transfer_ms = progress.time_ms - progress.first_byte_ms;
    let is_young = progress.time_ms < GRACE_MS || transfer_ms <= 0.0;
    let left_bits = progress.size_bits - progress.came_bits;
    (!is_young).then(|| (progress.came_bits / transfer_ms, left_bits))
}

/// The quality that such a network carries, if it is a lower one and all of it is less than what is left.
fn lighter(progress: &Progress, left_bits: f64, kbps: f64, view: &View<'_>) -> Option<usize> {
    let quality = view.affordable(kbps);
    let bits = progress.size_bits * view.ladder.kbps(quality) / view.ladder.kbps(progress.quality);
    (quality < progress.quality && bits < left_bits).then_some(quality)
}

/// The insufficient buffer rule: a segment is fetched in no higher quality than one that comes before the
/// buffer is empty, with a margin that is larger from segment to segment.
#[derive(Clone, Copy, Debug)]
struct InsufficientBuffer {
    safety: f64,
}

impl InsufficientBuffer {
    const FIRST: f64 = 0.9;
    const LEAST: f64 = 0.5;

    const fn new() -> Self {
        Self {
            safety: Self::FIRST,
        }
    }

    /// A lower quality than this one, if it has to be. Asked once for each segment.
    fn lower(&mut self, quality: usize, view: &View<'_>) -> Option<usize> {
        let left_ms = view.level_ms - view.estimate.latency_ms;
        let safe_bits = self.safety * left_ms * view.estimate.kbps;
        self.safety = (self.safety * Self::FIRST).max(Self::LEAST);
        let fits = |quality| view.ladder.kbps(quality) * view.ladder.segment_ms() <= safe_bits;
        (0..quality).find(|&lower| !fits(lower + 1))
    }
}

/// BOLA's measure of a quality: what it is worth against what the buffer already holds, a bit.
#[derive(Clone, Debug)]
struct Weighing {
    utilities: Vec<f64>,
    /// V p of the paper, milliseconds,
    vp: f64,
    /// and gamma p.
    gp: f64,
}

impl Weighing {
    /// The level above which a quality is worth nothing.
    fn ceiling(&self, quality: usize) -> f64 {
        self.vp * (self.utilities[quality] + self.gp)
    }

    fn score(&self, quality: usize, level_ms: f64, bits: f64) -> f64 {
        (self.ceiling(quality) - level_ms) / bits
    }

    /// The best at such a level.
    fn best(&self, level_ms: f64, bitrates_kbps: &[f64]) -> usize {
        let mut best = (0, f64::NEG_INFINITY);
        for (quality, &kbps) in bitrates_kbps.iter().enumerate() {
            let score = self.score(quality, level_ms, kbps);
            if score > best.1 {
                best = (quality, score);
            }
        }
        best.0
    }

    /// The lower quality that is worth more at such a level, though all of it is still to come, than what is
    /// left of this one. One of more bits than are left is none.
    fn better_anew(
        &self,
        (quality, size_bits): (usize, f64),
        left_bits: f64,
        level_ms: f64,
        bitrates_kbps: &[f64],
    ) -> Option<usize> {
        let mut score = self.score(quality, level_ms, left_bits);
        let mut best = None;
        for (other, kbps) in bitrates_kbps.iter().enumerate().take(quality) {
            let other_bits = size_bits * kbps / bitrates_kbps[quality];
            let other_score = self.score(other, level_ms, other_bits);
            if other_bits < left_bits && other_score > score {
                score = other_score;
                best = Some(other);
            }
        }
        best
    }
}
