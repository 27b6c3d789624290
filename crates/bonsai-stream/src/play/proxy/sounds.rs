//! Sound that is apart: it comes with the pictures that it belongs to, or by itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::body::Bytes;

use super::desk::KEPT;

/// Sound that begins so shortly before the end of a segment is of the next, ms.
const AT_END_MS: f64 = 100.0;

/// It.
#[derive(Debug)]
pub(super) struct Sounds {
    /// When each segment begins, and when all ends, ms.
    starts_ms: Arc<[f64]>,
    there: BTreeMap<usize, Bytes>,
    /// The last that a player was given.
    given: Option<usize>,
}

impl Sounds {
    /// Of segments that begin then, with the end of all; of nothing, if that is all there is.
    pub(super) fn new(starts_ms: Vec<f64>) -> Self {
        Self {
            starts_ms: starts_ms.into(),
            there: BTreeMap::new(),
            given: None,
        }
    }

    /// How many there are of the film.
    pub(super) fn count(&self) -> usize {
        self.starts_ms.len() - 1
    }

    pub(super) fn has(&self, of: usize) -> bool {
        self.there.contains_key(&of)
    }

    /// One has come.
    pub(super) fn put(&mut self, of: usize, bytes: Bytes) {
        self.there.insert(of, bytes);
    }

    /// All of them go.
    pub(super) fn clear(&mut self) {
        self.there.clear();
    }

    /// Gives one to a player; those long before it go.
    pub(super) fn give(&mut self, of: usize) -> Option<Bytes> {
        let bytes = self.there.get(&of).cloned()?;
        self.given = Some(self.given.map_or(of, |given| given.max(of)));
        self.there.retain(|at, _| at + KEPT > of);
        Some(bytes)
    }

    /// A player goes elsewhere: only what is between these times stays, ms.
    pub(super) fn seek(&mut self, from_ms: f64, to_ms: f64) {
        self.given = None;
        let starts = Arc::clone(&self.starts_ms);
        let stays = |at: usize| starts[at + 1] > from_ms && starts[at] < to_ms;
        self.there.retain(|at, _| stays(*at));
    }

    /// What has ended before that time goes, ms: who shows pictures alone asks for no sound.
    pub(super) fn forget(&mut self, before_ms: f64) {
        let starts = Arc::clone(&self.starts_ms);
        self.there.retain(|at, _| starts[at + 1] > before_ms);
    }

    /// Those that come with pictures between these times, ms, and are not there yet, nor were given.
    pub(super) fn missing(&self, from_ms: f64, to_ms: f64) -> Vec<usize> {
        let ends = self.starts_ms.iter().skip(1);
        let all = ends.zip(self.starts_ms.iter()).enumerate();
        let of_it = all.filter(|(_, (end, start))| **end > from_ms && **start < to_ms - AT_END_MS);
        let missing = of_it.map(|(at, _)| at).filter(|at| {
            let was_given = self.given.is_some_and(|given| given >= *at);
            !was_given && !self.there.contains_key(at)
        });
        missing.collect()
    }

    /// What is kept, bytes.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.there.values();
        all.map(|bytes| u64::try_from(bytes.len()).unwrap_or(0))
            .sum()
    }
}
