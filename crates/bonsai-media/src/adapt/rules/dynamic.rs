//! Throughput where the buffer is low, BOLA where it is not.

use super::super::{Adapt, Choice, Fetched, Ladder, Progress, Settings, View};
use super::{Bola, Throughput};

/// What is low, milliseconds.
const LOW_MS: f64 = 10_000.0;

/// Both rules are asked for each segment, and one is followed.
#[derive(Debug)]
pub(in super::super) struct Dynamic {
    bola: Bola,
    throughput: Throughput,
    by_bola: bool,
}

impl Dynamic {
    pub(in super::super) fn new(ladder: &Ladder, settings: &Settings) -> Self {
        Self {
            bola: Bola::new(ladder, settings),
            throughput: Throughput::new(settings),
            by_bola: false,
        }
    }
}

impl Adapt for Dynamic {
    fn choose(&mut self, segment: usize, view: &View<'_>) -> Choice {
        let bola = self.bola.choose(segment, view);
        let throughput = self.throughput.choose(segment, view);
        if self.by_bola {
            self.by_bola = view.level_ms >= LOW_MS || bola.quality >= throughput.quality;
        } else {
            self.by_bola = view.level_ms > LOW_MS && bola.quality >= throughput.quality;
        }
        if self.by_bola { bola } else { throughput }
    }

    fn waited(&mut self, ms: f64) {
        self.bola.waited(ms);
        self.throughput.waited(ms);
    }

    fn fetched(&mut self, fetched: &Fetched, view: &View<'_>) {
        self.bola.fetched(fetched, view);
        self.throughput.fetched(fetched, view);
    }

    fn abandon(&mut self, progress: &Progress, view: &View<'_>) -> Option<usize> {
        self.throughput.abandon(progress, view)
    }

    fn sought(&mut self, segment: usize) {
        self.bola.sought(segment);
        self.throughput.sought(segment);
    }
}
