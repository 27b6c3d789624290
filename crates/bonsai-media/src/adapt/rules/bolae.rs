//! By the level of the buffer, and of one that is made up.

use super::super::{Adapt, Choice, Fetched, Ladder, Progress, Settings, View};
use super::{InsufficientBuffer, Weighing};

/// The level up to which the lowest quality is the best one, milliseconds.
const LEAST_MS: f64 = 10_000.0;
/// What each quality wants above that, milliseconds.
const LEVEL_MS: f64 = 2_000.0;

/// BOLA-E. The *placeholder* is media that is not there but is reckoned with: as much as makes BOLA choose what
/// the network carries at the start, and what full buffers kept it from fetching later.
#[derive(Debug)]
pub(in super::super) struct Bolae {
    weighing: Weighing,
    buffer: Option<InsufficientBuffer>,
    started: bool,
    placeholder_ms: f64,
    last_quality: usize,
}

impl Bolae {
    pub(in super::super) fn new(ladder: &Ladder, settings: &Settings) -> Self {
        let utilities = ladder.utilities(1.0);
        let most = utilities[ladder.highest()];
        let (vp, gp) = if settings.insufficient_buffer {
            let wanted_ms = LEAST_MS + LEVEL_MS * ladder.bitrates_kbps().len() as f64;
            let buffer_ms = wanted_ms.max(settings.buffer_ms);
            let gp = (most - 1.0) / (buffer_ms / LEAST_MS - 1.0);
            (LEAST_MS / gp, gp)
        } else {
            // As BOLA weighs: here, the lowest quality is worth 1.
            let gp = settings.gamma_p - 1.0;
            let room_ms = settings.buffer_ms - ladder.segment_ms();
            (room_ms / (most + gp), gp)
        };
        let buffer = settings.insufficient_buffer;
        Self {
            weighing: Weighing { utilities, vp, gp },
            buffer: buffer.then(InsufficientBuffer::new),
            started: false,
            placeholder_ms: 0.0,
            last_quality: 0,
        }
    }

    /// The level from which on a quality is better than all below it.
    fn floor(&self, quality: usize, ladder: &Ladder) -> f64 {
        let Weighing { utilities, vp, gp } = &self.weighing;
        let (kbps, utility) = (ladder.kbps(quality), utilities[quality]);
        (0..quality).fold(0.0, |level: f64, lower| {
            let (lower_kbps, lower_utility) = (ladder.kbps(lower), utilities[lower]);
            let even = (kbps * lower_utility - lower_kbps * utility) / (kbps - lower_kbps);
            level.max(vp * (gp + even))
        })
    }

    /// The placeholder is no larger than brings the buffer up to that level.
    fn at_most(&mut self, level_ms: f64, have_ms: f64) {
        self.placeholder_ms = self.placeholder_ms.min((level_ms - have_ms).max(0.0));
    }

    /// The first segment after a start is what the network carries.
    fn start(&mut self, view: &View<'_>) -> Choice {
        self.started = true;
        self.buffer = self.buffer.map(|_| InsufficientBuffer::new());
        let quality = view.affordable(view.estimate.kbps);
        self.placeholder_ms = (self.floor(quality, view.ladder) - view.level_ms).max(0.0);
        Choice::now(quality)
    }

    /// How long to wait at a level that is too high for a quality; what is made up goes first.
    fn wait(&mut self, quality: usize, view: &View<'_>) -> f64 {
        let over_ms = view.level_ms + self.placeholder_ms - self.weighing.ceiling(quality);
        if over_ms <= 0.0 {
            return 0.0;
        }
        let wait_ms = if over_ms <= self.placeholder_ms {
            self.placeholder_ms -= over_ms;
            0.0
        } else {
            let wait_ms = over_ms - self.placeholder_ms;
            self.placeholder_ms = 0.0;
            wait_ms
        };
        if quality == view.ladder.highest() {
            0.0
        } else {
            wait_ms
        }
    }
}

impl Adapt for Bolae {
    fn choose(&mut self, _segment: usize, view: &View<'_>) -> Choice {
        if !self.started {
            return self.start(view);
        }
        let level_ms = view.level_ms + self.placeholder_ms;
        let mut quality = self.weighing.best(level_ms, view.ladder.bitrates_kbps());
        let carried = view.affordable(view.estimate.kbps);
        if quality > self.last_quality && quality > carried {
            quality = self.last_quality.max(carried) + 1;
        }
        let wait_ms = self.wait(quality, view);
        let buffer = self.buffer.as_mut();
        if let Some(lower) = buffer.and_then(|buffer| buffer.lower(quality, view)) {
            self.at_most(self.floor(lower, view.ladder), view.level_ms);
            return Choice::now(lower);
        }
        Choice { quality, wait_ms }
    }

    fn waited(&mut self, ms: f64) {
        self.placeholder_ms += ms;
    }

    fn fetched(&mut self, fetched: &Fetched, view: &View<'_>) {
        self.last_quality = fetched.quality;
        if let Some(lower) = fetched.abandoned_to {
            let level_ms = if lower > 0 {
                self.floor(lower, view.ladder)
            } else {
                LEAST_MS
            };
            self.at_most(level_ms, view.level_ms);
            return;
        }
        let before_ms = view.level_ms + fetched.time_ms;
        self.at_most(self.weighing.ceiling(fetched.quality), before_ms);
        // A quality that was not BOLA's choice: it reckons as if it had been. Not so in a stall.
        if view.level_ms > 0.0 {
            let least_ms = self.floor(fetched.quality, view.ladder) - before_ms;
            self.placeholder_ms = self.placeholder_ms.max(least_ms);
        }
    }

    fn abandon(&mut self, progress: &Progress, view: &View<'_>) -> Option<usize> {
        let left_bits = progress.size_bits - progress.came_bits;
        let transfer_ms = progress.time_ms - progress.first_byte_ms;
        if progress.came_bits <= 0.0 || left_bits <= 0.0 || transfer_ms <= 0.0 {
            return None;
        }
        // Another request costs its latency, in which this one would go on.
        let kbps = progress.came_bits / transfer_ms;
        let left_bits = left_bits - progress.first_byte_ms * kbps;
        if left_bits <= 0.0 {
            return None;
        }
        let level_ms = (view.level_ms + self.placeholder_ms - progress.first_byte_ms).max(0.0);
        let this = (progress.quality, progress.size_bits);
        let bitrates = view.ladder.bitrates_kbps();
        self.weighing
            .better_anew(this, left_bits, level_ms, bitrates)
    }

    fn sought(&mut self, _segment: usize) {
        self.started = false;
    }
}
