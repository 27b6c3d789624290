//! What a run would have taken, by fixed latencies.

use super::Outcome;

/// How long each thing takes, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// A hit in a cache, of blocks or of contents.
    pub cache_ns: f64,
    /// A read from the disk.
    pub disk_ns: f64,
    /// Looking up what is known of a block.
    pub lookup_ns: f64,
    /// Making a fingerprint and putting it down.
    pub update_ns: f64,
}

impl Latency {
    /// The model behind the published figures: 230 ns and 8 ms, and nothing for metadata.
    pub const PUBLISHED: Self = Self {
        cache_ns: 230.0,
        disk_ns: 8e6,
        lookup_ns: 0.0,
        update_ns: 0.0,
    };

    /// The thesis' study of overheads: 83 ns, 13.7 ms, 100 ns, and 33 us for an MD5.
    pub const WITH_METADATA: Self = Self {
        cache_ns: 83.0,
        disk_ns: 13.7e6,
        lookup_ns: 100.0,
        update_ns: 33e3,
    };

    /// The mean time of a read, ns; metadata of writes is not in it. Nothing without reads.
    #[must_use]
    pub fn mean_read_ns(&self, outcome: &Outcome) -> f64 {
        if outcome.reads == 0 {
            return 0.0;
        }
        let hits = outcome.read_hits as f64;
        let reads = outcome.reads as f64;
        let misses = reads - hits;
        let read_updates = outcome.compulsory.min(outcome.updates) as f64;
        let all = hits * self.cache_ns
            + misses * self.disk_ns
            + outcome.lookups as f64 * self.lookup_ns
            + read_updates * self.update_ns;
        all / reads
    }
}
