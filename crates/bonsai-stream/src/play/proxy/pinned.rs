//! A rule that stays with what a player was given.

use std::sync::{Arc, Mutex, PoisonError};

use bonsai_media::adapt::{Adapt, Choice, Fetched, Progress, View};

/// The quality of each segment whose header a player has: it keeps headers, and a segment that it asks for again is to
/// be one that fits.
#[derive(Clone, Debug, Default)]
pub(super) struct Pins(Arc<Mutex<Vec<Option<usize>>>>);

impl Pins {
    pub(super) fn new(segments: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![None; segments])))
    }

    pub(super) fn get(&self, segment: usize) -> Option<usize> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(segment).copied().flatten()
    }

    pub(super) fn set(&self, segment: usize, quality: usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pin) = all.get_mut(segment) {
            *pin = Some(quality);
        }
    }

    /// Another player has no headers yet.
    pub(super) fn clear(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.fill(None);
    }
}

/// It.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) rule: Box<dyn Adapt>,
    pub(super) pins: Pins,
    /// Whether it is so with the segment that was chosen last.
    pub(super) is_pinned: bool,
}

impl Adapt for Pinned {
    fn choose(&mut self, segment: usize, view: &View<'_>) -> Choice {
        let choice = self.rule.choose(segment, view);
        let pin = self.pins.get(segment);
        self.is_pinned = pin.is_some();
        Choice {
            quality: pin.unwrap_or(choice.quality),
            ..choice
        }
    }

    fn waited(&mut self, ms: f64) {
        self.rule.waited(ms);
    }

    fn fetched(&mut self, fetched: &Fetched, view: &View<'_>) {
        self.rule.fetched(fetched, view);
    }

    fn abandon(&mut self, progress: &Progress, view: &View<'_>) -> Option<usize> {
        match self.is_pinned {
            true => None,
            false => self.rule.abandon(progress, view),
        }
    }

    fn sought(&mut self, segment: usize) {
        self.rule.sought(segment);
    }
}
