//! A twin on its way.

use std::io::Write;
use std::ops::Range;

use bonsai_stats::SplitMix64;

use super::epoch::Epoch;
use super::original::{Head, NONE, Original};
use super::places::Places;
use super::{Initial, Knobs, Twin};
use crate::Error;
use crate::format::Writer;
use crate::model::{BLOCK, Digest, MAX_END, MAX_LENGTH, Op, Request};
use crate::stat::mix;

/// A twin on its way.
pub(super) struct Made<'a, W> {
    original: &'a Original,
    knobs: &'a Knobs,
    random: SplitMix64,
    writer: Writer<W>,
    initial: Option<Initial<'a>>,
    left: u64,
    /// Epochs that have begun.
    epochs: u64,
    now_ns: u64,
    /// Where blocks are, if not where the original has them.
    places: Option<Places>,
    /// Bytes of each volume in an epoch, and where those for runs that are moved go next.
    spans: Vec<u64>,
    fresh: Vec<u64>,
    /// Where the requests of each volume end so far.
    ends: Vec<u64>,
    digests: Vec<Digest>,
    scratch: Vec<u32>,
}

impl<'a, W: Write> Made<'a, W> {
    pub(super) fn new(
        original: &'a Original,
        knobs: &'a Knobs,
        number: u64,
        writer: Writer<W>,
        initial: Option<Initial<'a>>,
    ) -> Result<Self, Error> {
        // The last ones of those that go on together may have hardly begun.
        let epochs = number.div_ceil(original.len()) + knobs.together.max(1) as u64 - 1;
        let chunk = u64::from(knobs.longest_run.unwrap_or(1)) * BLOCK;
        let unit = chunk * (1_u64 << 20).div_ceil(chunk);
        let places = (knobs.gaps != 1.0).then(|| Places::new(original, knobs.gaps));
        let spans = places
            .as_ref()
            .map(|places| places.spans(original, MAX_END));
        let spans: Vec<u64> = spans
            .as_ref()
            .unwrap_or(&original.spans)
            .iter()
            .map(|span| span.next_multiple_of(unit).max(unit))
            .collect();
        // Beyond the epochs is as much again for runs that are moved; who moves so many that it is too little is told by the writer.
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
            epochs: 0,
            now_ns: 0,
            places,
            ends: vec![0; original.spans.len()],
            spans,
            digests: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Makes all of it.
    pub(super) fn run(mut self) -> Result<(W, Twin), Error> {
        let together = 0..self.knobs.together.max(1);
        let mut together: Vec<Epoch> = together.map(|_| self.epoch()).collect();
        for turn in (0..together.len()).cycle() {
            if self.left == 0 {
                break;
            }
            let epoch = &mut together[turn];
            if epoch.windows.is_empty() {
                *epoch = self.epoch();
            }
            if let Some(window) = epoch.windows.pop() {
                self.window(epoch, window)?;
            }
        }
        let (to, written) = self.writer.finish()?;
        let ends = self.ends;
        Ok((to, Twin { written, ends }))
    }

    /// A new one.
    fn epoch(&mut self) -> Epoch {
        self.epochs += 1;
        Epoch::new(self.epochs - 1, self.original, self.knobs, &mut self.random)
    }

    /// A window of an epoch, or what there is left to make of it.
    fn window(&mut self, epoch: &mut Epoch, window: usize) -> Result<(), Error> {
        let original = self.original;
        let runs = self.knobs.window.max(1);
        let first = window * runs;
        for run in first..(first + runs).min(original.runs.len()) {
            let start = original.runs[run] as usize;
            let end = original.runs.get(run + 1).copied();
            let end = end.map_or(original.heads.len(), |end| end as usize);
            self.one_run(epoch, start..end)?;
            if self.left == 0 {
                break;
            }
        }
        Ok(())
    }

    fn chance(&mut self, part: f64) -> bool {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 >= 1.0 - part
    }

    fn one_run(&mut self, epoch: &mut Epoch, requests: Range<usize>) -> Result<(), Error> {
        let original = self.original;
        let first = original.heads[requests.start];
        let is_access = matches!(first.op, Op::Read | Op::Write) && first.length > 0;
        let known = self.knobs.reuse < 1.0
            && is_access
            && original
                .numbers
                .find(u32::from(first.volume), first.offset / BLOCK)
                .is_some_and(|block| epoch.touched[block as usize]);
        let moves = known && !self.chance(self.knobs.reuse);
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
            self.request(epoch, (head, n), base)?;
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

    fn request(
        &mut self,
        epoch: &mut Epoch,
        (head, n): (Head, usize),
        base: Option<(u64, u64)>,
    ) -> Result<(), Error> {
        let op = self.op(head.op);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "casts of floats saturate"
        )]
        let gap = if self.knobs.pace == 1.0 {
            head.gap_ns
        } else {
            (head.gap_ns as f64 * self.knobs.pace) as u64
        };
        self.now_ns = self.now_ns.saturating_add(gap);
        let next = self.original.heads.get(n + 1);
        let end = next.map_or(self.original.blocks.len(), |next| {
            next.first_access as usize
        });
        let accesses = head.first_access as usize..end;
        let offset = match base {
            Some((fresh, start)) => fresh + (head.offset - start),
            None => {
                let places = self.places.as_ref();
                let own = places.map_or(head.offset, |of| of.of(head.volume, head.offset));
                own + self.spans[usize::from(head.volume)] * epoch.number
            }
        };
        let head = Head {
            length: self.length(head, base.is_some()),
            ..head
        };
        if base.is_none() {
            self.touch(epoch, head);
        }
        let mut contents = std::mem::take(&mut self.scratch);
        contents.clear();
        for (n, access) in accesses.enumerate().take_while(|_| head.has_contents) {
            let block = self.original.blocks[access];
            let content = self.original.contents[access];
            let (content, is_first) = self.content(epoch, (block, content), op, base.is_some())?;
            if is_first && self.initial.is_some() {
                let place = self.place(head.volume, offset + n as u64 * BLOCK) / BLOCK;
                let digest = self.digests[content as usize];
                if let Some(initial) = self.initial.as_mut() {
                    initial(u32::from(head.volume), place, digest);
                }
            }
            contents.push(content);
        }
        let done = self.put(head, offset, op, &contents);
        self.scratch = contents;
        done
    }

    /// How long a request is: a trim over gaps is as much longer as they are wider.
    fn length(&self, head: Head, is_moved: bool) -> u32 {
        let Some(places) = self
            .places
            .as_ref()
            .filter(|_| head.op == Op::Trim && !is_moved)
        else {
            return head.length;
        };
        let end = places.of(head.volume, head.offset + u64::from(head.length));
        let length = end.saturating_sub(places.of(head.volume, head.offset));
        let length = length.clamp(
            u64::from(head.length).clamp(1, BLOCK),
            u64::from(MAX_LENGTH),
        );
        u32::try_from(length).unwrap_or(MAX_LENGTH)
    }

    /// Has the blocks of a request known, where that matters.
    fn touch(&self, epoch: &mut Epoch, head: Head) {
        if epoch.touched.is_empty() || !matches!(head.op, Op::Read | Op::Write) {
            return;
        }
        let first = head.offset / BLOCK;
        let end = (head.offset + u64::from(head.length)).div_ceil(BLOCK);
        for block in first..end {
            let number = self.original.numbers.find(u32::from(head.volume), block);
            if let Some(number) = number {
                epoch.touched[number as usize] = true;
            }
        }
    }

    /// The twin's number of what a block holds, and whether that was there from the beginning.
    fn content(
        &mut self,
        epoch: &mut Epoch,
        (block, content): (u32, u32),
        op: Op,
        is_moved: bool,
    ) -> Result<(u32, bool), Error> {
        if is_moved {
            // A new block with a content of its own.
            return Ok((self.new_content()?, op == Op::Read));
        }
        let held = epoch.disk[block as usize];
        if op == Op::Read && held != NONE {
            return Ok((held, false));
        }
        let shared = self.original.shared[content as usize];
        let keeps = self.knobs.sharing >= 1.0 || !shared || {
            let chance = mix(
                mix(u64::from(block), u64::from(content)),
                self.knobs.seed ^ epoch.number << 20,
            );
            ((chance >> 11) as f64 / (1_u64 << 53) as f64) < self.knobs.sharing
        };
        let found = if keeps {
            match epoch.contents[content as usize] {
                NONE => {
                    let new = self.new_content()?;
                    epoch.contents[content as usize] = new;
                    new
                }
                known => known,
            }
        } else {
            self.private(epoch, (block, content))?
        };
        epoch.disk[block as usize] = found;
        Ok((found, op == Op::Read && held == NONE))
    }

    /// A content that no other block has.
    fn private(&mut self, epoch: &mut Epoch, pair: (u32, u32)) -> Result<u32, Error> {
        let hash = |pair: &(u32, u32)| mix(u64::from(pair.0), u64::from(pair.1));
        if let Some((_, known)) = epoch.private.find(hash(&pair), |(one, _)| *one == pair) {
            return Ok(*known);
        }
        let new = self.new_content()?;
        epoch
            .private
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
            let request = Request {
                time_ns: self.now_ns,
                volume: u32::from(head.volume),
                offset: self.place(head.volume, from),
                length: u32::try_from(to - from).unwrap_or(u32::MAX),
                op,
                contents: part,
            };
            self.writer.push(&request)?;
            if op != Op::Flush {
                let end = &mut self.ends[usize::from(head.volume)];
                *end = request.end().max(*end);
            }
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
