//! Schemes, policies and sizes in every combination.

use std::io::Write;

use bonsai_dedup::cache::Policy;
use bonsai_dedup::scheme::{Latency, Outcome, Scheme, run};
use bonsai_dedup::stream::Stream;
use serde::Serialize;

use crate::BLOCK;
use crate::work::in_parallel;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Memory, blocks.
    pub blocks: Vec<u32>,
    /// Schemes.
    pub schemes: Vec<Scheme>,
    /// Policies.
    pub policies: Vec<Policy>,
    /// By which times are made of counts.
    pub latency: Latency,
    /// Threads at most.
    pub threads: usize,
}

/// One combination and what came of it. Ratios are 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Memory, bytes.
    pub cache_bytes: u64,
    /// The scheme's name.
    pub scheme: String,
    /// The policy's name.
    pub policy: String,
    /// Reads of blocks.
    pub reads: u64,
    /// Writes of blocks.
    pub writes: u64,
    /// Reads for which the disk was not asked.
    pub read_hits: u64,
    /// Writes of what was in the cache.
    pub write_hits: u64,
    /// Hits of all requests.
    pub hit_ratio: f64,
    /// Reads for which the disk was not asked, of all reads.
    pub reads_saved: f64,
    /// Mean time of a read, ms.
    pub read_ms: f64,
    /// Reads that the content cache of IODEDUP answered.
    pub content_hits: u64,
    /// Reads that another block's data answered, under DRIVE.
    pub dedup_hits: u64,
    /// Reads from the disk of what was not there before.
    pub compulsory_misses: u64,
    /// Reads from the disk of what was.
    pub capacity_misses: u64,
    /// Different contents of the blocks that are cached at the end.
    pub dedup_factor: Option<f64>,
    /// Bytes of metadata of DRIVE at the end.
    pub metadata_bytes: u64,
    /// Blocks that it knows then.
    pub metadata_blocks: u64,
}

impl Row {
    fn new(blocks: u32, scheme: Scheme, policy: Policy, of: &Outcome, latency: Latency) -> Self {
        Self {
            cache_bytes: u64::from(blocks) * BLOCK,
            scheme: scheme.to_string(),
            policy: policy.to_string(),
            reads: of.reads,
            writes: of.writes,
            read_hits: of.read_hits,
            write_hits: of.write_hits,
            hit_ratio: of.hit_ratio(),
            reads_saved: of.reads_saved(),
            read_ms: latency.mean_read_ns(of) / 1e6,
            content_hits: of.content_hits,
            dedup_hits: of.dedup_hits,
            compulsory_misses: of.compulsory,
            capacity_misses: of.capacity_misses(),
            // The second cache of IODEDUP has copies of what is in the first one: no factor for both.
            dedup_factor: of
                .dedup_factor()
                .filter(|_| !matches!(scheme, Scheme::Iodedup { .. })),
            metadata_bytes: of.map_bytes,
            metadata_blocks: of.map_blocks,
        }
    }
}

/// Runs all combinations, by size, then scheme, then policy; `done` is told of each that is done.
#[must_use]
pub fn run_all(stream: &Stream, plan: &Plan, done: impl Fn() + Sync) -> Vec<Row> {
    let mut jobs = Vec::new();
    for &blocks in &plan.blocks {
        for &scheme in &plan.schemes {
            jobs.extend(plan.policies.iter().map(|&policy| (blocks, scheme, policy)));
        }
    }
    let work = |&(blocks, scheme, policy): &(u32, Scheme, Policy)| {
        let outcome = run(stream, scheme, policy, blocks);
        Row::new(blocks, scheme, policy, &outcome, plan.latency)
    };
    in_parallel(&jobs, plan.threads, work, done)
}

/// Writes rows as CSV, with a line of headings.
///
/// # Errors
/// They cannot be written.
pub fn write_csv<T: Serialize>(rows: &[T], to: impl Write) -> Result<(), csv::Error> {
    let mut writer = csv::Writer::from_writer(to);
    rows.iter().try_for_each(|row| writer.serialize(row))?;
    writer.flush()?;
    Ok(())
}
