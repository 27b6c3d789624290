//! A request, from its beginning to its note.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bonsai_trace::{MAX_LENGTH, Op};

use super::known::{Held, ZERO};
use super::print::ZEROES;
use super::{BLOCK_BYTES, Mark, Note, Tap};
use crate::sharing::{BLOCK, Written};

/// A request that is under way while its export is recorded.
#[derive(Debug)]
pub(crate) struct Begun {
    tap: Arc<Tap>,
    at: Instant,
    /// From when on nobody else could change the image.
    since: Option<u64>,
    op: Op,
    range: (u64, u64),
    turn: u64,
    /// A change that has not ended.
    is_open: bool,
}

impl Begun {
    pub(super) fn new(
        tap: Arc<Tap>,
        (at, since): (Instant, Option<u64>),
        op: Op,
        range: (u64, u64),
    ) -> Self {
        let is_open = matches!(op, Op::Write | Op::Trim);
        let turn = match is_open {
            true => tap.known.begin(&touched(range)),
            false => tap.known.now(),
        };
        Self {
            tap,
            at,
            since,
            op,
            range,
            turn,
            is_open,
        }
    }

    /// A read is done, and gave these bytes. What a block held is known only if nobody else could change it all the time, which
    /// `since` says as at the beginning.
    pub(crate) fn read(self, bytes: &[u8], since: Option<u64>) {
        let is_guarded = self.since.is_some() && self.since == since;
        let held = |block| match is_guarded {
            true => self.tap.known.held(block, self.turn),
            false => Held::Fleeting,
        };
        match self.blocks() {
            Some(blocks) if blocks.end - blocks.start == 1 => {
                self.with_contents(bytes, &[held(blocks.start)]);
            }
            Some(blocks) => self.with_contents(bytes, &blocks.map(held).collect::<Vec<_>>()),
            None => self.plain(),
        }
    }

    /// A change is done.
    pub(crate) fn changed(mut self, written: Written<'_>) {
        let mut held = Vec::new();
        self.close(|of| held.push(of));
        match (written, self.blocks()) {
            (Written::Bytes(bytes), Some(_)) => self.with_contents(bytes, &held),
            (Written::Zeroes, Some(_)) => self.zeroes(&held),
            _ => self.plain(),
        }
    }

    /// A flush is done.
    pub(crate) fn flushed(self) {
        self.plain();
    }

    fn close(&mut self, each: impl FnMut(Held)) {
        if std::mem::take(&mut self.is_open) {
            self.tap.known.end(&touched(self.range), self.turn, each);
        }
    }

    /// Its blocks, where it has whole ones only.
    fn blocks(&self) -> Option<Range<u64>> {
        let (offset, length) = self.range;
        let whole = length > 0 && (offset | length).is_multiple_of(BLOCK);
        whole.then(|| offset / BLOCK..(offset + length) / BLOCK)
    }

    fn note(&self, (offset, length): (u64, u64)) -> Note {
        Note {
            time_ns: self.tap.shared.time_ns(self.at),
            offset,
            length: u32::try_from(length).unwrap_or(MAX_LENGTH),
            volume: self.tap.volume,
            op: self.op,
            words: 0,
        }
    }

    /// Parts that a trace can have as one request.
    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (offset, length) = self.range;
        let step = u64::from(MAX_LENGTH);
        let count = length.div_ceil(step).max(1);
        (0..count).map(move |n| (offset + n * step, step.min(length - n * step)))
    }

    fn plain(&self) {
        for part in self.parts() {
            self.tap.shared.push(self.note(part), &[], &[]);
        }
    }

    fn with_contents(&self, bytes: &[u8], held: &[Held]) {
        let mut note = self.note(self.range);
        note.words = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let first = self.range.0 / BLOCK;
        if let [held] = held {
            let (word, mark) = self.content(first, *held, bytes);
            self.tap.shared.push(note, &[word], mark.as_slice());
            return;
        }
        let mut words = Vec::with_capacity(held.len());
        let mut marks = Vec::new();
        for ((held, block), bytes) in held.iter().zip(first..).zip(bytes.chunks(BLOCK_BYTES)) {
            let (word, mark) = self.content(block, *held, bytes);
            words.push(word);
            marks.extend(mark);
        }
        self.tap.shared.push(note, &words, &marks);
    }

    /// The word of a block, and where none is known, 0 and what it stands for.
    fn content(&self, block: u64, held: Held, bytes: &[u8]) -> (u32, Option<Mark>) {
        let ticket = match held {
            Held::Content(word) => return (word, None),
            Held::New { slot } => self.tap.known.ticket(block, slot),
            Held::Fleeting => None,
        };
        let mark = self.tap.shared.prints.mark(bytes);
        if mark == ZEROES {
            if let Some(ticket) = ticket {
                self.tap.known.learned(block, ticket, ZERO);
            }
            return (ZERO, None);
        }
        let mark = Mark {
            mark,
            block,
            ticket,
        };
        (0, Some(mark))
    }

    fn zeroes(&self, held: &[Held]) {
        for (of, block) in held.iter().zip(self.range.0 / BLOCK..) {
            if let Held::New { slot } = of
                && let Some(ticket) = self.tap.known.ticket(block, *slot)
            {
                self.tap.known.learned(block, ticket, ZERO);
            }
        }
        for (offset, length) in self.parts() {
            let mut note = self.note((offset, length));
            let words = vec![ZERO; usize::try_from(length / BLOCK).unwrap_or(0)];
            note.words = u32::try_from(words.len()).unwrap_or(u32::MAX);
            self.tap.shared.push(note, &words, &[]);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // It failed, and may have changed something.
        self.close(|_| {});
    }
}

/// Blocks that are touched, in whole or in part.
fn touched((offset, length): (u64, u64)) -> Range<u64> {
    offset / BLOCK..(offset + length).div_ceil(BLOCK)
}
