//! What a run counted.

use crate::cache::Cache;
use crate::drive::Counters;
use crate::stream::{Request, Stream};

/// Counts of a run, in requests of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests that read.
    pub reads: u64,
    /// Requests that write.
    pub writes: u64,
    /// Reads for which the disk was not asked: [`Self::content_hits`] among them.
    pub read_hits: u64,
    /// Writes whose block was in the cache.
    pub write_hits: u64,
    /// Reads that the second cache of IODEDUP answered.
    pub content_hits: u64,
    /// Reads that found another block's data in the cache, and saved a read by that.
    pub dedup_hits: u64,
    /// Reads from the disk of what was never there before, as far as the scheme could know.
    pub compulsory: u64,
    /// Times that what is known of a block was looked up.
    pub lookups: u64,
    /// Times that a fingerprint was made and put down.
    pub updates: u64,
    /// Blocks in the cache at the end.
    pub cached: u64,
    /// Different contents among them, where contents are known.
    pub unique: u64,
    /// What the map of DRIVE counted.
    pub map: Option<Counters>,
    /// Bytes of that map at the end, and blocks known to it.
    pub map_bytes: u64,
    /// Blocks known to it at the end.
    pub map_blocks: u64,
}

impl Outcome {
    /// Counts a request.
    #[inline]
    pub(super) fn count(&mut self, is_write: bool, hit: bool) {
        if is_write {
            self.writes += 1;
            self.write_hits += u64::from(hit);
        } else {
            self.reads += 1;
            self.read_hits += u64::from(hit);
        }
    }

    /// Part of all requests that hit, 0 to 1; hits of contents among them.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        part(self.read_hits + self.write_hits, self.reads + self.writes)
    }

    /// Part of reads for which the disk was not asked, 0 to 1.
    #[must_use]
    pub fn reads_saved(&self) -> f64 {
        part(self.read_hits, self.reads)
    }

    /// Part of the cached blocks that have a content of their own, 0 to 1; nothing when it is empty.
    #[must_use]
    pub fn dedup_factor(&self) -> Option<f64> {
        (self.cached > 0).then(|| part(self.unique, self.cached))
    }

    /// Reads from the disk of what was there before.
    #[must_use]
    pub fn capacity_misses(&self) -> u64 {
        self.reads - self.read_hits - self.compulsory
    }

    /// What is in the cache at the end.
    pub(super) fn look_into(&mut self, cache: &impl Cache, stream: &Stream) {
        let mut last = vec![None; stream.blocks.len() as usize];
        for request in &stream.requests {
            last[request.block as usize] = request.content();
        }
        let mut seen = vec![false; stream.contents as usize];
        for (id, content) in (0..).zip(last) {
            if cache.holds(id) {
                self.cached += 1;
                let fresh =
                    content.is_none_or(|c: u32| !std::mem::replace(&mut seen[c as usize], true));
                self.unique += u64::from(fresh);
            }
        }
    }
}

fn part(of: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        of as f64 / all as f64
    }
}

/// Requests that are looked at together.
const CHUNK: usize = 4_096;

/// Goes through a trace in chunks: of each, the numbers that `of` gives for its requests.
pub(super) fn in_chunks(
    requests: &[Request],
    of: impl Fn(Request) -> u32,
    mut then: impl FnMut(&[Request], &[u32]),
) {
    let mut ids = Vec::with_capacity(CHUNK);
    for chunk in requests.chunks(CHUNK) {
        ids.clear();
        ids.extend(chunk.iter().map(|&request| of(request)));
        then(chunk, &ids);
    }
}
