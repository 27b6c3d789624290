//! The recorder's thread: notes become a trace.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonsai_trace::{BLOCK, Contents, Digest, Error, Request, Volume, Writer};

use super::known::{MOST_NUMBERS, ZERO, number_of, word_of};
use super::print::{Prints, ZEROES};
use super::{Mark, Note, Notes, Shared, Tap};
use crate::export::Export;

/// How long notes wait, but for many of them.
const LOOK: Duration = Duration::from_millis(20);
/// How long requests wait for the end of their frame: so much is lost at most when the process is killed.
const FRAME: Duration = Duration::from_secs(1);
/// Contents that are told apart: about 270 MiB. Requests with others have no contents.
const MOST_DIFFERENT: u32 = 8 << 20;

/// Where a trace goes.
pub trait Output: Write + Send {
    /// Whether nobody wants more.
    fn is_left(&self) -> bool {
        false
    }
}

impl Output for std::fs::File {}

/// What a recording was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Requests in the trace.
    pub requests: u64,
    /// Contents that were told apart.
    pub contents: u64,
    /// Requests that there was no room for.
    pub lost: u64,
    /// Requests whose contents there was no room for.
    pub bare: u64,
    /// Requests that begin or end within a block.
    pub unaligned: u64,
    /// Bytes of the trace.
    pub bytes: u64,
}

pub(super) struct Keeper<W: Write> {
    writer: Writer<W>,
    taps: Vec<Arc<Tap>>,
    prints: Arc<Prints>,
    /// By their marks.
    contents: Contents,
    zero: Option<u32>,
    numbers: Vec<u32>,
    found: Summary,
}

impl<W: Output> Keeper<W> {
    pub(super) fn new(
        exports: &[Arc<Export>],
        (taps, prints): (Vec<Arc<Tap>>, Arc<Prints>),
        to: W,
    ) -> Result<Self, Error> {
        let mut writer = Writer::new(to)?;
        for export in exports {
            writer.add_volume(&Volume {
                name: export.info().name.clone(),
                bytes: Some(export.info().size),
            })?;
        }
        // So that there is something to read from the first moment on.
        writer.flush()?;
        Ok(Self {
            writer,
            taps,
            prints,
            contents: Contents::default(),
            zero: None,
            numbers: Vec::new(),
            found: Summary::default(),
        })
    }

    /// Writes until the end is asked for, or nothing can be written.
    pub(super) fn run(&mut self, shared: &Shared) -> Result<(), Error> {
        let mut taken = Notes::default();
        let mut framed = Instant::now();
        loop {
            let over = take(shared, &mut taken) || self.writer.get_ref().is_left();
            self.write(&mut taken)?;
            if over {
                return Ok(());
            }
            if framed.elapsed() >= FRAME {
                self.writer.flush()?;
                framed = Instant::now();
            }
        }
    }

    /// Ends the trace, with what came last.
    pub(super) fn finish(mut self, shared: &Shared) -> Result<Summary, Error> {
        let mut last = std::mem::take(&mut *shared.lock());
        self.write(&mut last)?;
        let (_, written) = self.writer.finish()?;
        Ok(Summary {
            requests: written.requests,
            contents: written.contents,
            bytes: written.bytes,
            ..self.found
        })
    }

    fn write(&mut self, taken: &mut Notes) -> Result<(), Error> {
        let mut marks = taken.marks.drain(..);
        let mut words = taken.words.as_slice();
        for note in taken.notes.drain(..) {
            let (own, rest) = words
                .split_at_checked(note.words as usize)
                .unwrap_or_default();
            words = rest;
            self.one(&note, own, &mut marks)?;
        }
        drop(marks);
        taken.words.clear();
        self.found.lost += taken.lost;
        self.writer.lost(std::mem::take(&mut taken.lost))
    }

    fn one(
        &mut self,
        note: &Note,
        words: &[u32],
        marks: &mut impl Iterator<Item = Mark>,
    ) -> Result<(), Error> {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        let mut is_bare = false;
        for word in words {
            let number = match *word {
                0 => match marks.next() {
                    Some(mark) => self.learn(note.volume, mark)?,
                    None => None,
                },
                ZERO => self.zero()?,
                word => number_of(word),
            };
            match number {
                Some(number) => numbers.push(number),
                None => is_bare = true,
            }
        }
        if is_bare {
            numbers.clear();
        }
        self.found.bare += u64::from(is_bare);
        let (offset, length) = (note.offset, u64::from(note.length));
        self.found.unaligned += u64::from(!(offset | length).is_multiple_of(BLOCK));
        let done = self.writer.push(&Request {
            time_ns: note.time_ns,
            volume: note.volume,
            offset,
            length: note.length,
            op: note.op,
            contents: &numbers,
        });
        self.numbers = numbers;
        done
    }

    /// The number of a content by its mark; `None` where there are too many.
    fn learn(&mut self, volume: u32, mark: Mark) -> Result<Option<u32>, Error> {
        let number = self.number(mark.mark)?;
        let tap = usize::try_from(volume)
            .ok()
            .and_then(|at| self.taps.get(at));
        if let (Some(tap), Some(ticket), Some(number)) = (tap, mark.ticket, number) {
            tap.known.learned(mark.block, ticket, word_of(number));
        }
        Ok(number)
    }

    fn zero(&mut self) -> Result<Option<u32>, Error> {
        if self.zero.is_none() {
            self.zero = self.number(ZEROES)?;
        }
        Ok(self.zero)
    }

    fn number(&mut self, mark: u128) -> Result<Option<u32>, Error> {
        const { assert!(MOST_DIFFERENT < MOST_NUMBERS) };
        let content = Digest(mark.to_le_bytes());
        let count = self.contents.digests().len();
        if count >= MOST_DIFFERENT as usize {
            return Ok(self.contents.find(content));
        }
        let (number, is_new) = self.contents.number(content);
        if is_new {
            self.writer.add_content(self.prints.digest(mark))?;
        }
        Ok(Some(number))
    }
}

/// Takes all notes, once there are some; says whether the end was asked for.
fn take(shared: &Shared, into: &mut Notes) -> bool {
    let mut notes = shared.lock();
    if !notes.stopping && !notes.are_many() {
        let waited = shared.more.wait_timeout(notes, LOOK);
        (notes, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    let stopping = notes.stopping;
    std::mem::swap(&mut *notes, into);
    notes.stopping = stopping;
    stopping
}
