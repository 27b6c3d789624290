//! An image under a name, and what was done with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::image::Image;
use crate::protocol::ExportInfo;
use crate::server::pool::Pool;

/// Blocks of the page cache, in bytes.
const PAGE: u32 = 4096;

/// How an export is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients ask for.
    pub name: String,
    /// Workers for what waits, at most.
    pub workers: usize,
}

/// An image that is served. Nothing of it is shared with others: neither workers nor memory.
#[derive(Debug)]
pub struct Export {
    info: ExportInfo,
    image: Image,
    /// What was done with it.
    pub counters: Counters,
    pub(crate) pool: Arc<Pool>,
}

/// What was done, from the start on.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that were answered with data.
    pub reads: AtomicU64,
    /// Their bytes.
    pub read_bytes: AtomicU64,
    /// Reads that were answered by the connection's own thread, from the page cache.
    pub at_once: AtomicU64,
    /// Writes, zeroes and trims that were done.
    pub writes: AtomicU64,
    /// Their bytes.
    pub written_bytes: AtomicU64,
    /// Flushes that were done, writes with FUA among them.
    pub flushes: AtomicU64,
    /// Requests that were refused as they made no sense.
    pub refused: AtomicU64,
    /// Requests that failed below.
    pub failed: AtomicU64,
    /// Connections now.
    pub connections: AtomicU64,
}

/// Adds to a counter that nobody waits for.
pub(crate) fn add(counter: &AtomicU64, units: u64) {
    counter.fetch_add(units, Ordering::Relaxed);
}

impl Export {
    /// An image under a name.
    #[must_use]
    pub fn new(image: Image, options: &Options) -> Self {
        let info = ExportInfo {
            name: options.name.clone(),
            description: image.path().display().to_string(),
            size: image.size(),
            read_only: image.is_read_only(),
            rotational: false,
            fast_zero: !image.is_read_only(),
            preferred_block: PAGE,
        };
        Self {
            info,
            image,
            counters: Counters::default(),
            pool: Arc::new(Pool::new(&options.name, options.workers)),
        }
    }

    /// What clients are told.
    #[must_use]
    pub const fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// What is served.
    #[must_use]
    pub const fn image(&self) -> &Image {
        &self.image
    }
}
