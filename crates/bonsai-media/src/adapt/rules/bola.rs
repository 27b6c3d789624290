//! By the level of the buffer.

use super::super::{Adapt, Choice, Ladder, Progress, Settings, View};
use super::Weighing;

/// At its start and its end a film is taken for one of so many segments at least.
const FEWEST: f64 = 3.0;

/// BOLA for films that end (BOLA-FINITE), which goes up no further than a step above what the network carries
/// (BOLA-U).
#[derive(Debug)]
pub(in super::super) struct Bola {
    weighing: Weighing,
    buffer_ms: f64,
    first: usize,
    last_quality: usize,
}

impl Bola {
    pub(in super::super) fn new(ladder: &Ladder, settings: &Settings) -> Self {
        let mut this = Self {
            weighing: Weighing {
                utilities: ladder.utilities(0.0),
                vp: 0.0,
                gp: settings.gamma_p,
            },
            buffer_ms: settings.buffer_ms,
            first: 0,
            last_quality: 0,
        };
        this.weigh(settings.buffer_ms, ladder);
        this
    }

    /// As with a buffer of that size.
    fn weigh(&mut self, buffer_ms: f64, ladder: &Ladder) {
        let most = self.weighing.utilities[ladder.highest()];
        self.weighing.vp = (buffer_ms - ladder.segment_ms()) / (most + self.weighing.gp);
    }

    /// At the start there is no buffer yet, and at the end none is needed.
    fn buffer_at(&self, segment: usize, ladder: &Ladder) -> f64 {
        let since = segment.saturating_sub(self.first);
        let until = ladder.segments().map(|all| all.saturating_sub(segment));
        let segments = until.map_or(since, |until| since.min(until)) as f64;
        let room_ms = (segments / 2.0).max(FEWEST) * ladder.segment_ms();
        self.buffer_ms.min(room_ms)
    }
}

impl Adapt for Bola {
    fn choose(&mut self, segment: usize, view: &View<'_>) -> Choice {
        let buffer_ms = self.buffer_at(segment, view.ladder);
        self.weigh(buffer_ms, view.ladder);
        let mut quality = self
            .weighing
            .best(view.level_ms, view.ladder.bitrates_kbps());
        if quality > self.last_quality {
            let carried = view.affordable(view.estimate.kbps);
            if quality > carried {
                quality = if self.last_quality > carried {
                    self.last_quality
                } else {
                    carried + 1
                };
            }
        }
        self.last_quality = quality;
        Choice::now(quality)
    }

    fn abandon(&mut self, progress: &Progress, view: &View<'_>) -> Option<usize> {
        let left_bits = progress.size_bits - progress.came_bits;
        if progress.came_bits <= 0.0 || left_bits <= 0.0 {
            return None;
        }
        // More in the buffer than this quality is worth: there is time.
        if self.weighing.ceiling(progress.quality) < view.level_ms {
            return None;
        }
        let this = (progress.quality, progress.size_bits);
        let bitrates = view.ladder.bitrates_kbps();
        let lower = self
            .weighing
            .better_anew(this, left_bits, view.level_ms, bitrates);
        if let Some(lower) = lower {
            self.last_quality = lower;
        }
        lower
    }

    fn sought(&mut self, segment: usize) {
        self.first = segment;
    }
}
