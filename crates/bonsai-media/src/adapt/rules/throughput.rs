//! By what the network carries.

use super::super::{Adapt, Choice, Progress, Settings, View};
use super::{InsufficientBuffer, lighter, pace};

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
        let (kbps, left_bits) = pace(progress)?;
        let whole_ms = progress.time_ms + left_bits / kbps;
        if whole_ms <= PATIENCE * view.ladder.segment_ms() {
            return None;
        }
        lighter(progress, left_bits, kbps * self.safety, view)
    }
}
