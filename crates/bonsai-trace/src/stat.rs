//! What a trace is like: how much, how often again, how far apart.

mod distribution;
mod leader;
mod stack;

use hashbrown::HashTable;
use leader::Leaders;
use serde::Serialize;

pub use distribution::Distribution;
pub use stack::Stack;

use crate::model::{Op, Request};

/// Points of a curve over time are between half of that and that many.
const POINTS: usize = 512;

/// A trace's characteristics, as far as it is read.
#[derive(Clone, Debug, Default)]
pub struct Stat {
    /// All that is counted.
    pub counts: Counts,
    /// Other blocks accessed between two accesses of the same.
    pub block_reuse: Distribution,
    /// Other contents accessed between two accesses of the same.
    pub content_reuse: Distribution,
    /// The same of the blocks that are accessed when reads go to the leader of their content (DRIVE).
    pub redirected_reuse: Distribution,
    /// Blocks in runs: accesses, each of the block behind the one before it, of the same kind and volume.
    pub run_length: Distribution,
    /// Blocks between the end of the last run on the volume and the beginning of the next, either way.
    pub jump: Distribution,
    /// How much was seen so far.
    pub footprint: Vec<Footprint>,
    blocks: Blocks,
    of_blocks: Stack,
    of_contents: Stack,
    of_leaders: Stack,
    leaders: Leaders,
    /// Pairs of block and content, and how many blocks a content had, and accesses.
    pairs: HashTable<(u32, u32)>,
    shared: Vec<u32>,
    accessed: Vec<u32>,
    run: Option<Run>,
    ends: Vec<u64>,
    first_ns: Option<u64>,
    step: u64,
}

/// What is counted.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Those of each kind, by [`Op`]'s numbers.
    pub by_op: [u64; 4],
    /// Requests that begin or end within a block.
    pub unaligned: u64,
    /// Accesses of reads and of writes, a block each.
    pub accesses: [u64; 2],
    /// Accesses whose content is known.
    pub with_content: u64,
    /// Bytes read and written.
    pub bytes: [u64; 2],
    /// Different blocks.
    pub blocks: u64,
    /// Different contents.
    pub contents: u64,
    /// Time between the first and the latest request, ns.
    pub duration_ns: u64,
}

/// What was seen up to an instant.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Footprint {
    /// Accesses so far.
    pub accesses: u64,
    /// Since the first request, ns.
    pub time_ns: u64,
    /// Different blocks so far.
    pub blocks: u64,
    /// Different contents so far.
    pub contents: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    volume: u32,
    op: Op,
    next: u64,
    length: u64,
}

/// Dense numbers of blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    keys: Vec<(u32, u64)>,
    table: HashTable<u32>,
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let wide = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
    let folded = wide as u64 ^ (wide >> 64) as u64;
    folded
}

impl Blocks {
    pub(crate) fn number(&mut self, volume: u32, block: u64) -> u32 {
        let Self { keys, table } = self;
        let hash = mix(u64::from(volume), block);
        if let Some(n) = table.find(hash, |n| keys[*n as usize] == (volume, block)) {
            return *n;
        }
        let n = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        keys.push((volume, block));
        table.insert_unique(hash, n, |n| {
            let (volume, block) = keys[*n as usize];
            mix(u64::from(volume), block)
        });
        n
    }

    /// The number of a block that has one.
    pub(crate) fn find(&self, volume: u32, block: u64) -> Option<u32> {
        let hash = mix(u64::from(volume), block);
        let is_it = |n: &u32| self.keys[*n as usize] == (volume, block);
        self.table.find(hash, is_it).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Volumes and blocks, by their numbers.
    pub(crate) fn keys(&self) -> &[(u32, u64)] {
        &self.keys
    }
}

impl Stat {
    /// Takes a request in.
    pub fn add(&mut self, request: &Request<'_>) {
        let counts = &mut self.counts;
        counts.requests += 1;
        counts.by_op[request.op as usize] += 1;
        counts.unaligned += u64::from(!request.is_aligned());
        let first = *self.first_ns.get_or_insert(request.time_ns);
        let time_ns = request.time_ns.saturating_sub(first);
        counts.duration_ns = counts.duration_ns.max(time_ns);
        if !matches!(request.op, Op::Read | Op::Write) {
            return;
        }
        counts.bytes[request.op as usize] += u64::from(request.length);
        for access in request.accesses() {
            self.counts.accesses[request.op as usize] += 1;
            let block = self.blocks.number(access.volume, access.block);
            if let Some(distance) = self.of_blocks.access(block) {
                self.block_reuse.add(distance);
            }
            let mut address = block;
            if let Some(content) = access.content {
                self.content(block, content);
                address = match request.op {
                    Op::Write => self.leaders.write(block, content),
                    _ => self.leaders.read(block, content),
                };
            }
            if let Some(distance) = self.of_leaders.access(address) {
                self.redirected_reuse.add(distance);
            }
            self.sequence(request, access.block);
            self.note(time_ns);
        }
    }

    fn content(&mut self, block: u32, content: u32) {
        self.counts.with_content += 1;
        if let Some(distance) = self.of_contents.access(content) {
            self.content_reuse.add(distance);
        }
        let at = content as usize;
        if self.accessed.len() <= at {
            self.accessed.resize(at + 1, 0);
            self.shared.resize(at + 1, 0);
        }
        self.counts.contents += u64::from(self.accessed[at] == 0);
        self.accessed[at] += 1;
        let pair = (block, content);
        let hash = |pair: &(u32, u32)| mix(u64::from(pair.0), u64::from(pair.1));
        if self.pairs.find(hash(&pair), |one| *one == pair).is_none() {
            self.pairs.insert_unique(hash(&pair), pair, hash);
            self.shared[at] += 1;
        }
    }

    fn sequence(&mut self, request: &Request<'_>, block: u64) {
        let (volume, op) = (request.volume, request.op);
        let at = volume as usize;
        if self.ends.len() <= at {
            self.ends.resize(at + 1, 0);
        }
        match &mut self.run {
            Some(run) if run.volume == volume && run.op == op && run.next == block => {
                run.next += 1;
                run.length += 1;
            }
            other => {
                if let Some(run) = other.take() {
                    self.run_length.add(run.length);
                }
                self.jump.add(self.ends[at].abs_diff(block));
                *other = Some(Run {
                    volume,
                    op,
                    next: block + 1,
                    length: 1,
                });
            }
        }
        self.ends[at] = block + 1;
    }

    fn note(&mut self, time_ns: u64) {
        let accesses = self.counts.accesses.iter().sum();
        self.counts.blocks = self.blocks.len() as u64;
        if self.step == 0 {
            self.step = 1;
        }
        if accesses % self.step != 0 {
            return;
        }
        self.footprint.push(Footprint {
            accesses,
            time_ns,
            blocks: self.counts.blocks,
            contents: self.counts.contents,
        });
        if self.footprint.len() >= POINTS {
            self.step *= 2;
            let step = self.step;
            self.footprint.retain(|point| point.accesses % step == 0);
        }
    }

    /// After the last request: the last run ends.
    pub fn finish(&mut self) {
        if let Some(run) = self.run.take() {
            self.run_length.add(run.length);
        }
    }

    /// How many blocks had the same content, for each content.
    pub fn sharing(&self) -> Distribution {
        let mut sharing = Distribution::default();
        let used = self.shared.iter().filter(|n| **n > 0);
        used.for_each(|n| sharing.add(u64::from(*n)));
        sharing
    }

    /// How often each content was accessed.
    pub fn occurrence(&self) -> Distribution {
        let mut occurrence = Distribution::default();
        let used = self.accessed.iter().filter(|n| **n > 0);
        used.for_each(|n| occurrence.add(u64::from(*n)));
        occurrence
    }

    /// The part of all accesses that an LRU cache of so many blocks has, 0 to 1: with blocks, redirected to leaders,
    /// and with contents.
    pub fn hit_ratios(&self, cache: u64) -> [f64; 3] {
        let all = self.counts.accesses.iter().sum::<u64>().max(1);
        [
            &self.block_reuse,
            &self.redirected_reuse,
            &self.content_reuse,
        ]
        .map(|of| of.below(cache) as f64 / all as f64)
    }
}
