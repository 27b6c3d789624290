//! Several traces as one, in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Read;

use crate::format::Reader;
use crate::intern::Contents;
use crate::{Error, Request};

/// Traces that are read together. In memory are a frame of each, and the digests of all: equal ones are one content, whichever
/// trace has them. Volumes stay apart, also where their names are the same.
///
/// Requests of one trace keep their order, also where their times do not rise; of equal times, the trace that was given
/// first goes first.
#[derive(Debug)]
pub struct Merged<R> {
    sources: Vec<Source<R>>,
    contents: Contents,
    /// When the next request of each source is due.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    volumes: u32,
}

#[derive(Debug)]
struct Source<R> {
    reader: Reader<R>,
    /// The next request of its batch.
    next: usize,
    /// Numbers of its contents among all.
    numbers: Vec<u32>,
    /// Numbers of its volumes among all.
    volumes: Vec<u32>,
}

/// Which trace it was, from 0, and what is wrong with it.
pub type Which = (usize, Error);

impl<R: Read> Merged<R> {
    /// Reads the first requests of each.
    ///
    /// # Errors
    /// One is damaged, or cannot be read.
    pub fn new(readers: impl IntoIterator<Item = Reader<R>>) -> Result<Self, Which> {
        let sources = readers.into_iter().map(|reader| Source {
            reader: reader.keeping_fingerprints(),
            next: 0,
            numbers: Vec::new(),
            volumes: Vec::new(),
        });
        let mut merged = Self {
            sources: sources.collect(),
            contents: Contents::default(),
            due: BinaryHeap::new(),
            volumes: 0,
        };
        for at in 0..merged.sources.len() {
            merged.line_up(at)?;
        }
        Ok(merged)
    }

    /// Volumes of the requests so far.
    pub const fn volumes(&self) -> u32 {
        self.volumes
    }

    /// Requests that came while the traces were recorded, and are not in them; as far as they were read.
    pub fn lost(&self) -> u64 {
        self.sources.iter().map(|of| of.reader.lost()).sum()
    }

    /// Calls `each` with every request, its volume and contents by their numbers among all.
    ///
    /// # Errors
    /// One is damaged, or cannot be read; or what `each` says.
    pub fn for_each<E: From<Which>>(
        &mut self,
        mut each: impl FnMut(&Request<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut contents = Vec::new();
        while let Some(Reverse((_, at))) = self.due.pop() {
            let source = &mut self.sources[at];
            if let Some(request) = source.reader.current().get(source.next) {
                let numbers = &source.numbers;
                contents.clear();
                contents.extend(request.contents.iter().map(|n| numbers[*n as usize]));
                each(&Request {
                    volume: source.volumes[request.volume as usize],
                    contents: &contents,
                    ..request
                })?;
                source.next += 1;
            }
            self.line_up(at)?;
        }
        Ok(())
    }

    /// Has the next request of a source in the line, if there is one.
    fn line_up(&mut self, at: usize) -> Result<(), Which> {
        let source = &mut self.sources[at];
        loop {
            if let Some(request) = source.reader.current().get(source.next) {
                self.due.push(Reverse((request.time_ns, at)));
                return Ok(());
            }
            source.next = 0;
            let more = source.reader.next_batch().map_err(|error| (at, error))?;
            if more.is_none() {
                return Ok(());
            }
            let digests = &source.reader.fingerprints()[source.numbers.len()..];
            self.contents.numbers(digests, &mut source.numbers);
            for _ in source.volumes.len()..source.reader.volumes().len() {
                source.volumes.push(self.volumes);
                self.volumes += 1;
            }
        }
    }
}
