//! Twins: traces that are like another, of any length.
//!
//! The original is taken as runs of requests. The twin goes through them in *epochs*, each of which has addresses
//! and contents of its own: LRU caches then see in each what they see in the original, for what comes from an epoch
//! before is never asked for again. Within an epoch, windows of runs change places with neighbours by chance (a
//! bootstrap of blocks without replacement: with it, windows that come twice would be hits of their own). So address
//! reuse, content reuse and what they have to do with each other stay joined, as there is no step at which they are
//! drawn apart. Reads find what the twin has written before, also where the order has changed.
//!
//! What a twin does not do: it is not smaller than its original (which it keeps in memory, 32 bytes a request and 8 a
//! block), and it hides nothing.

mod content;

use bonsai_stats::SplitMix64;
use hashbrown::HashTable;

pub use content::fill;

use crate::format::Writer;
use crate::model::{BLOCK, Digest, MAX_END, Op, Request, Volume};
use crate::stat::{Blocks, mix};
use crate::{Error, Written};

const NONE: u32 = u32::MAX;

/// An original, as its twins need it.
#[derive(Debug, Default)]
pub struct Original {
    heads: Vec<Head>,
    /// For each access: its block's dense number, and its content or [`NONE`].
    blocks: Vec<u32>,
    contents: Vec<u32>,
    /// Where runs begin, by numbers of requests.
    runs: Vec<u32>,
    numbers: Blocks,
    /// Where the last request of each volume ended, and where all do.
    ends: Vec<u64>,
    spans: Vec<u64>,
    most_contents: u32,
    shared: Vec<bool>,
    first_block: Vec<u32>,
    last: Option<(u32, Op)>,
    last_ns: u64,
    writes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    offset: u64,
    gap_ns: u32,
    first_access: u32,
    length: u32,
    volume: u16,
    op: Op,
    has_contents: bool,
}

/// What differs from the original.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// What chance begins with.
    pub seed: u64,
    /// Runs in a window.
    pub window: usize,
    /// Windows that change places with each other.
    pub shuffle: usize,
    /// Part of the blocks with a content of others that keep it, 0 to 1.
    pub sharing: f64,
    /// Part of the runs at known blocks that stay there, 0 to 1; the others go to new ones.
    pub reuse: f64,
    /// Part of the requests that write, 0 to 1; `None` is the original's.
    pub writes: Option<f64>,
    /// Runs have at most that many blocks.
    pub longest_run: Option<u32>,
    /// Times between requests, multiplied.
    pub pace: f64,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            seed: 1,
            window: 96,
            shuffle: 2,
            sharing: 1.0,
            reuse: 1.0,
            writes: None,
            longest_run: None,
            pace: 1.0,
        }
    }
}

impl Original {
    /// Takes a request in.
    ///
    /// # Errors
    /// The trace has 2^32 accesses or more.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is checked that they are fewer"
    )]
    pub fn add(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let most = u64::from(u32::MAX);
        let blocks = request.blocks();
        if self.blocks.len() as u64 + (blocks.end - blocks.start) >= most
            || request.volume >= 1 << 16
        {
            return Err(Error::TooMany {
                what: "accesses for the original of a twin",
                most,
            });
        }
        let at = request.volume as usize;
        if self.ends.len() <= at {
            self.ends.resize(at + 1, 0);
            self.spans.resize(at + 1, 0);
        }
        if self.last != Some((request.volume, request.op)) || self.ends[at] != request.offset {
            self.runs.push(self.heads.len() as u32);
        }
        self.last = Some((request.volume, request.op));
        self.ends[at] = request.end();
        self.spans[at] = self.spans[at].max(request.end());
        let gap = match self.heads.is_empty() {
            true => 0,
            false => request.time_ns.saturating_sub(self.last_ns),
        };
        self.last_ns = request.time_ns;
        self.writes += u64::from(request.op == Op::Write);
        self.heads.push(Head {
            offset: request.offset,
            gap_ns: u32::try_from(gap).unwrap_or(u32::MAX),
            first_access: self.blocks.len() as u32,
            length: request.length,
            volume: request.volume as u16,
            op: request.op,
            has_contents: !request.contents.is_empty(),
        });
        for access in request.accesses() {
            let block = self.numbers.number(access.volume, access.block);
            self.blocks.push(block);
            self.contents.push(access.content.unwrap_or(NONE));
            let Some(content) = access.content else {
                continue;
            };
            self.most_contents = self.most_contents.max(content + 1);
            let n = content as usize;
            if self.first_block.len() <= n {
                self.first_block.resize(n + 1, NONE);
                self.shared.resize(n + 1, false);
            }
            match self.first_block[n] {
                NONE => self.first_block[n] = block,
                other => self.shared[n] |= other != block,
            }
        }
        Ok(())
    }

    /// How many requests it has.
    pub const fn len(&self) -> u64 {
        self.heads.len() as u64
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
}

/// Takes what a block of the twin holds before anything is written to it: volume, block, digest.
pub type Initial<'a> = &'a mut dyn FnMut(u32, u64, Digest);

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
) -> Result<(W, Written), Error> {
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
    let mut made = Made::new(original, knobs, number, writer, initial)?;
    while made.left > 0 {
        made.epoch()?;
    }
    made.writer.finish()
}

/// A twin on its way.
struct Made<'a, W> {
    original: &'a Original,
    knobs: &'a Knobs,
    random: SplitMix64,
    writer: Writer<W>,
    initial: Option<Initial<'a>>,
    left: u64,
    epoch: u64,
    now_ns: u64,
    /// Bytes of each volume in an epoch, and where those for runs that are moved go next.
    spans: Vec<u64>,
    fresh: Vec<u64>,
    /// What each block holds in this epoch, by the original's numbers of contents or above those.
    disk: Vec<u32>,
    touched: Vec<bool>,
    /// The twin's number of each content in this epoch.
    contents: Vec<u32>,
    private: HashTable<((u32, u32), u32)>,
    digests: Vec<Digest>,
    scratch: Vec<u32>,
}

impl<'a, W: std::io::Write> Made<'a, W> {
    fn new(
        original: &'a Original,
        knobs: &'a Knobs,
        number: u64,
        writer: Writer<W>,
        initial: Option<Initial<'a>>,
    ) -> Result<Self, Error> {
        let epochs = number.div_ceil(original.len());
        let chunk = u64::from(knobs.longest_run.unwrap_or(1)) * BLOCK;
        let unit = chunk * (1_u64 << 20).div_ceil(chunk);
        let spans: Vec<u64> = original
            .spans
            .iter()
            .map(|span| span.next_multiple_of(unit).max(unit))
            .collect();
        // Runs that are moved need at most as much again.
        let most = spans
            .iter()
            .map(|span| u128::from(*span) * u128::from(epochs) * 2);
        if most.max().unwrap_or(0) > u128::from(MAX_END / 2) {
            return Err(Error::TooMany {
                what: "bytes of a volume of a twin",
                most: MAX_END / 2,
            });
        }
        Ok(Self {
            fresh: spans.iter().map(|span| span * epochs).collect(),
            original,
            knobs,
            random: SplitMix64::new(knobs.seed),
            writer,
            initial,
            left: number,
            epoch: 0,
            now_ns: 0,
            spans,
            disk: Vec::new(),
            touched: Vec::new(),
            contents: Vec::new(),
            private: HashTable::new(),
            digests: Vec::new(),
            scratch: Vec::new(),
        })
    }

    fn epoch(&mut self) -> Result<(), Error> {
        let original = self.original;
        let blocks = original.numbers.len();
        self.disk.clear();
        self.disk.resize(blocks, NONE);
        self.touched.clear();
        self.touched.resize(blocks, false);
        self.contents.clear();
        self.contents.resize(original.most_contents as usize, NONE);
        self.private.clear();
        let windows: Vec<&[u32]> = original.runs.chunks(self.knobs.window.max(1)).collect();
        let mut order: Vec<usize> = (0..windows.len()).collect();
        // Where groups begin differs, so that no two neighbours are apart for ever.
        let group = self.knobs.shuffle.max(1);
        let skipped = usize::try_from(self.random.below(group as u64)).unwrap_or(0);
        let (head, rest) = order.split_at_mut(skipped.min(windows.len()));
        self.shuffle(head);
        for part in rest.chunks_mut(group) {
            self.shuffle(part);
        }
        for window in order {
            for (n, first) in windows[window].iter().enumerate() {
                let run = window * self.knobs.window.max(1) + n;
                let end = original.runs.get(run + 1).copied();
                let end = end.map_or(original.heads.len(), |end| end as usize);
                self.run(*first as usize..end)?;
                if self.left == 0 {
                    return Ok(());
                }
            }
        }
        self.epoch += 1;
        Ok(())
    }

    fn shuffle(&mut self, part: &mut [usize]) {
        for n in (1..part.len()).rev() {
            let other = self.random.below(n as u64 + 1);
            part.swap(n, usize::try_from(other).unwrap_or(n));
        }
    }

    fn chance(&mut self, part: f64) -> bool {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 >= 1.0 - part
    }

    fn run(&mut self, requests: std::ops::Range<usize>) -> Result<(), Error> {
        let original = self.original;
        let first = original.heads[requests.start];
        let known = original
            .blocks
            .get(first.first_access as usize)
            .is_some_and(|block| self.touched[*block as usize]);
        let moves = known && self.knobs.reuse < 1.0 && !self.chance(self.knobs.reuse);
        let at = usize::from(first.volume);
        let mut base = None;
        if moves {
            // As far into a block as before.
            let start = first.offset / BLOCK * BLOCK;
            let last = original.heads[requests.end - 1];
            let bytes = (last.offset + u64::from(last.length)).next_multiple_of(BLOCK) - start;
            base = Some((self.fresh[at], start));
            self.fresh[at] += bytes;
        }
        for n in requests {
            if self.left == 0 {
                return Ok(());
            }
            let head = original.heads[n];
            self.request(head, n, base)?;
        }
        Ok(())
    }

    /// The op of a request, where the part of writes is to differ.
    fn op(&mut self, op: Op) -> Op {
        let Some(wanted) = self.knobs.writes else {
            return op;
        };
        let own = self.original.writes as f64 / self.original.len() as f64;
        match op {
            Op::Read if wanted > own && self.chance((wanted - own) / (1.0 - own)) => Op::Write,
            Op::Write if wanted < own && !self.chance(wanted / own) => Op::Read,
            _ => op,
        }
    }

    fn request(&mut self, head: Head, n: usize, base: Option<(u64, u64)>) -> Result<(), Error> {
        let op = self.op(head.op);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts of floats saturate"
        )]
        let gap = if self.knobs.pace == 1.0 {
            u64::from(head.gap_ns)
        } else {
            (f64::from(head.gap_ns) * self.knobs.pace) as u64
        };
        self.now_ns = self.now_ns.saturating_add(gap);
        let next = self.original.heads.get(n + 1);
        let end = next.map_or(self.original.blocks.len(), |next| {
            next.first_access as usize
        });
        let accesses = head.first_access as usize..end;
        let offset = match base {
            Some((fresh, start)) => fresh + (head.offset - start),
            None => head.offset + self.spans[usize::from(head.volume)] * self.epoch,
        };
        let mut contents = std::mem::take(&mut self.scratch);
        contents.clear();
        for (n, access) in accesses.enumerate() {
            let block = self.original.blocks[access];
            let content = self.original.contents[access];
            if base.is_none() {
                self.touched[block as usize] = true;
            }
            if head.has_contents {
                let is_moved = base.is_some();
                let found = self.content(block, content, op, is_moved)?;
                if let (Some((content, is_first)), Some(_)) = (found, &self.initial) {
                    let place = self.place(head.volume, offset + n as u64 * BLOCK) / BLOCK;
                    let digest = self.digests[content as usize];
                    if let Some(initial) = self.initial.as_mut().filter(|_| is_first) {
                        initial(u32::from(head.volume), place, digest);
                    }
                }
                contents.extend(found.map(|(content, _)| content));
            }
        }
        let done = self.put(head, offset, op, &contents);
        self.scratch = contents;
        done
    }

    /// The twin's number of what a block holds, and whether that was there from the beginning.
    fn content(
        &mut self,
        block: u32,
        content: u32,
        op: Op,
        is_moved: bool,
    ) -> Result<Option<(u32, bool)>, Error> {
        if content == NONE {
            return Ok(None);
        }
        if is_moved {
            // A new block with a content of its own.
            return Ok(Some((self.new_content()?, op == Op::Read)));
        }
        let held = self.disk[block as usize];
        if op == Op::Read && held != NONE {
            return Ok(Some((held, false)));
        }
        let shared = self.original.shared[content as usize];
        let keeps = self.knobs.sharing >= 1.0 || !shared || {
            let chance = mix(
                mix(u64::from(block), u64::from(content)),
                self.knobs.seed ^ self.epoch << 20,
            );
            ((chance >> 11) as f64 / (1_u64 << 53) as f64) < self.knobs.sharing
        };
        let found = if keeps {
            match self.contents[content as usize] {
                NONE => {
                    let new = self.new_content()?;
                    self.contents[content as usize] = new;
                    new
                }
                known => known,
            }
        } else {
            self.private(block, content)?
        };
        self.disk[block as usize] = found;
        Ok(Some((found, op == Op::Read && held == NONE)))
    }

    fn private(&mut self, block: u32, content: u32) -> Result<u32, Error> {
        let pair = (block, content);
        let hash = |pair: &(u32, u32)| mix(u64::from(pair.0), u64::from(pair.1));
        if let Some((_, known)) = self.private.find(hash(&pair), |(one, _)| *one == pair) {
            return Ok(*known);
        }
        let new = self.new_content()?;
        self.private
            .insert_unique(hash(&pair), (pair, new), |(pair, _)| hash(pair));
        Ok(new)
    }

    fn new_content(&mut self) -> Result<u32, Error> {
        // Different numbers always have different digests: one half is the number.
        let n = self.digests_made();
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&mix(n, self.knobs.seed).to_be_bytes());
        digest[8..].copy_from_slice(&(n ^ mix(self.knobs.seed, 7)).to_be_bytes());
        let digest = Digest(digest);
        if self.initial.is_some() {
            self.digests.push(digest);
        }
        self.writer.add_content(digest)
    }

    fn digests_made(&self) -> u64 {
        self.writer.contents()
    }

    /// Where bytes of a volume go: chunks change places, where runs are to be short.
    fn place(&self, volume: u16, offset: u64) -> u64 {
        let Some(longest) = self.knobs.longest_run else {
            return offset;
        };
        let chunk = u64::from(longest) * BLOCK;
        let span = self.spans[usize::from(volume)];
        let (area, within) = (offset / span, offset % span);
        let chunks = span / chunk;
        // A step without a common divisor reaches each chunk once.
        let mut step = (chunks / 2 + chunks / 8) | 1;
        while gcd(step, chunks) != 1 {
            step += 2;
        }
        let (n, rest) = (within / chunk, within % chunk);
        let moved = u128::from(n) * u128::from(step) % u128::from(chunks.max(1));
        area * span + u64::try_from(moved).unwrap_or(0) * chunk + rest
    }

    /// Writes a request; in parts, where its chunks are apart.
    fn put(&mut self, head: Head, offset: u64, op: Op, contents: &[u32]) -> Result<(), Error> {
        let chunk = self
            .knobs
            .longest_run
            .map_or(u64::MAX, |longest| u64::from(longest) * BLOCK);
        let end = offset + u64::from(head.length);
        let mut from = offset;
        loop {
            let to = match chunk {
                u64::MAX => end,
                chunk => end.min((from / chunk + 1) * chunk),
            };
            let blocks = |bytes: u64| usize::try_from(bytes / BLOCK).unwrap_or(usize::MAX);
            let part = match contents {
                [] => contents,
                all => &all[blocks(from - offset)..blocks(to - offset)],
            };
            self.writer.push(&Request {
                time_ns: self.now_ns,
                volume: u32::from(head.volume),
                offset: self.place(head.volume, from),
                length: u32::try_from(to - from).unwrap_or(u32::MAX),
                op,
                contents: part,
            })?;
            self.left -= 1;
            from = to;
            if from >= end || self.left == 0 {
                return Ok(());
            }
        }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
