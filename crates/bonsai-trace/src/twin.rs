//! Twins: traces that are like another, of any length.
//!
//! The original is taken as runs of requests. The twin goes through them in *epochs*, each of which has addresses
//! and contents of its own: LRU caches then see in each what they see in the original, for what comes from an epoch
//! before is never asked for again. Within an epoch, windows of runs change places with neighbours by chance (a
//! bootstrap of blocks without replacement: with it, windows that come twice would be hits of their own). So address
//! reuse, content reuse and what they have to do with each other stay joined, as there is no step at which they are
//! drawn apart. Several epochs may go on together, a window of each in turns, as more guests do: what is asked for again is then
//! asked for that much later. Reads find what the twin has written before, also where the order has changed.
//!
//! What a twin does not do: it is not smaller than its original (which it keeps in memory, 32 bytes a request, 8 a
//! block of a request with contents, and some 30 a block that is read or written; trims and flushes are of no block), and it hides nothing.

mod content;
mod epoch;
mod made;
mod original;
mod places;

pub use content::fill;
pub use original::Original;

use crate::format::Writer;
use crate::model::{Digest, Volume};
use crate::{Error, Written};
use made::Made;

/// What differs from the original.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// Random seed.
    pub seed: u64,
    /// Runs in a window.
    pub window: usize,
    /// Windows that change places with each other.
    pub shuffle: usize,
    /// Epochs that go on together, at least 1: distances of reuse are as many times as long.
    pub together: usize,
    /// Part of the blocks with a content of others that keep it, 0 to 1.
    pub sharing: f64,
    /// Part of the runs at known blocks that stay there, 0 to 1; the others go to new ones.
    pub reuse: f64,
    /// Part of the requests that write, 0 to 1; `None` is the original's.
    pub writes: Option<f64>,
    /// Runs have at most that many blocks.
    pub longest_run: Option<u32>,
    /// Gaps of blocks that are never accessed, multiplied, but no narrower than a block: jumps over them are as many times as
    /// long, and nothing else differs.
    pub gaps: f64,
    /// Times between requests, multiplied.
    pub pace: f64,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            seed: 1,
            window: 96,
            shuffle: 2,
            together: 1,
            sharing: 1.0,
            reuse: 1.0,
            writes: None,
            longest_run: None,
            gaps: 1.0,
            pace: 1.0,
        }
    }
}

/// Takes what a block of the twin holds before anything is written to it: volume, block, digest.
pub type Initial<'a> = &'a mut dyn FnMut(u32, u64, Digest);

/// What was made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Twin {
    /// What was written.
    pub written: Written,
    /// Where the last read, write or trim of each volume ends, bytes.
    pub ends: Vec<u64>,
}

/// Makes a twin of `number` requests, and finishes the trace.
///
/// # Errors
/// The original is empty, or the twin too long for addresses or contents, or it cannot be written.
pub fn twin<'a, W: std::io::Write>(
    original: &'a Original,
    volumes: &[Volume],
    knobs: &'a Knobs,
    number: u64,
    to: W,
    initial: Option<Initial<'a>>,
) -> Result<(W, Twin), Error> {
    let mut writer = Writer::new(to)?;
    for volume in volumes {
        let bytes = None;
        let name = volume.name.clone();
        writer.add_volume(&Volume { name, bytes })?;
    }
    if original.is_empty() {
        return Err(Error::TooMany {
            what: "requests of a twin, for its original has none",
            most: 0,
        });
    }
    Made::new(original, knobs, number, writer, initial)?.run()
}
