//! By what the network carries.

use super::super::{Adapt, Choice, Progress, Settings, View};
use super::InsufficientBuffer;

/// Sooner nothing is given up, milliseconds.
pub(super) const GRACE_MS: f64 = 500.0;
/// A download may take so many times what its segment lasts.
const PATIENCE: f64 = 1.8;

/// The highest quality that the estimated throughput carries, with a margin.
#[derive(Debug)]
pub(in super::super) struct Throughput {
    safety: f64,
    buffer: Option<InsufficientBuffer>,
}

impl Throughput {
    pub(in super::super) fn new(settings: &Settings) -> Self {
        let buffer = settings.insufficient_buffer;
        Self {
            safety: settings.safety,
            buffer: buffer.then(InsufficientBuffer::new),
        }
    }
}

impl Adapt for Throughput {
    fn choose(&mut self, _segment: usize, view: &View<'_>) -> Choice {
        let quality = view.affordable(view.estimate.kbps * self.safety);
        let buffer = self.buffer.as_mut();
        let lower = buffer.and_then(|buffer| buffer.lower(quality, view));
        Choice::now(lower.unwrap_or(quality))
    }

    fn abandon(&mut self, progress: &Progress, view: &View<'_>) -> Option<usize> {
        let transfer_ms = progress.time_ms - progress.first_byte_ms;
        if progress.time_ms < GRACE_MS || transfer_ms <= 0.0 {
            return None;
        }
        let kbps = progress.came_bits / transfer_ms;
        let left_bits = progress.size_bits - progress.came_bits;
        let whole_ms = progress.time_ms + left_bits / kbps;
        if whole_ms <= PATIENCE * view.ladder.segment_ms() {
            return None;
        }
        let quality = view.affordable(kbps * self.safety);
        let bits =
            progress.size_bits * view.ladder.kbps(quality) / view.ladder.kbps(progress.quality);
        (quality < progress.quality && bits < left_bits).then_some(quality)
    }
}
