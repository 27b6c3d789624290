//! Numbers for names and digests, and a writer that gives them.

use std::io::Write;

use hashbrown::HashTable;

use crate::Error;
use crate::format::{Writer, Written};
use crate::model::{Digest, Request, Sink, Volume};

/// Numbers of contents, in the order in which they first come; 26 to 36 bytes each.
#[derive(Debug, Default)]
pub struct Contents {
    digests: Vec<Digest>,
    /// With a part of the hash, so that a table that grows asks for no digest.
    table: HashTable<(Tag, u32)>,
}

/// Contents that are looked for together.
const BATCH: usize = 64;

impl Contents {
    /// The number of a digest, and whether it is new.
    #[inline]
    pub fn number(&mut self, digest: Digest) -> (u32, bool) {
        let tag = Tag::of(digest);
        if let Some(n) = self.tagged(tag, digest) {
            return (n, false);
        }
        // The writer refuses the last one.
        let n = u32::try_from(self.digests.len()).unwrap_or(u32::MAX);
        self.digests.push(digest);
        self.table
            .insert_unique(tag.hash(), (tag, n), |(tag, _)| tag.hash());
        (n, true)
    }

    /// The numbers of several, which are put behind `numbers`.
    pub fn numbers(&mut self, digests: &[Digest], numbers: &mut Vec<u32>) {
        for batch in digests.chunks(BATCH) {
            self.fetch(batch);
            numbers.extend(batch.iter().map(|digest| self.number(*digest).0));
        }
    }

    /// The number of a digest that came already.
    pub fn find(&self, digest: Digest) -> Option<u32> {
        self.tagged(Tag::of(digest), digest)
    }

    #[inline]
    fn tagged(&self, tag: Tag, digest: Digest) -> Option<u32> {
        let is_it = |(known, n): &(Tag, u32)| *known == tag && self.digests[*n as usize] == digest;
        self.table.find(tag.hash(), is_it).map(|(_, n)| *n)
    }

    /// Has what [`Contents::number`] needs of memory for a batch come at once, and not one after the other.
    fn fetch(&self, digests: &[Digest]) {
        let mut found = [u32::MAX; BATCH];
        for (found, digest) in found.iter_mut().zip(digests) {
            let tag = Tag::of(*digest);
            let known = self.table.find(tag.hash(), |(known, _)| *known == tag);
            *found = known.map_or(u32::MAX, |(_, n)| *n);
        }
        let known = found.iter().filter_map(|n| self.digests.get(*n as usize));
        std::hint::black_box(known.fold(0, |sum, digest| sum ^ digest.0[0]));
    }

    /// The digests, by their numbers.
    pub fn digests(&self) -> &[Digest] {
        &self.digests
    }
}

/// 32 bits of a digest's hash.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Tag(u32);

impl Tag {
    /// Digests are spread evenly; the multiplication is for those that somebody made up.
    #[inline]
    fn of(digest: Digest) -> Self {
        let [a, b] = [0, 8].map(|at| {
            let mut half = [0; 8];
            half.copy_from_slice(&digest.0[at..at + 8]);
            u64::from_le_bytes(half)
        });
        let wide = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b | 1);
        #[expect(clippy::cast_possible_truncation, reason = "all parts are wanted")]
        let folded = wide as u64 ^ (wide >> 64) as u64;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are wanted")]
        let folded = folded as u32 ^ (folded >> 32) as u32;
        Self(folded)
    }

    /// The table looks at the lowest bits, and at the seven highest.
    #[inline]
    fn hash(self) -> u64 {
        u64::from(self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A writer that numbers volumes and contents by itself.
#[derive(Debug)]
pub struct Interning<W> {
    writer: Writer<W>,
    volumes: Vec<String>,
    contents: Contents,
}

impl<W: Write> Interning<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(to: W) -> Result<Self, Error> {
        Ok(Self {
            writer: Writer::new(to)?,
            volumes: Vec::new(),
            contents: Contents::default(),
        })
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<(W, Written), Error> {
        self.writer.finish()
    }

    /// Ends the frame, so that what was added so far can be read though the trace is never finished.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.writer.flush()
    }

    /// Where it goes.
    pub fn get_mut(&mut self) -> &mut W {
        self.writer.get_mut()
    }

    /// Adds a volume whose size is known, under a name that is new.
    ///
    /// # Errors
    /// There are too many of them.
    pub fn add_volume(&mut self, volume: &Volume) -> Result<u32, Error> {
        let n = self.writer.add_volume(volume)?;
        self.volumes.push(volume.name.clone());
        Ok(n)
    }

    /// The names of the volumes, by their numbers.
    pub fn volumes(&self) -> &[String] {
        &self.volumes
    }
}

impl<W: Write> Sink for Interning<W> {
    fn volume(&mut self, name: &str) -> Result<u32, Error> {
        if let Some(n) = self.volumes.iter().position(|volume| volume == name) {
            return Ok(u32::try_from(n).unwrap_or(u32::MAX));
        }
        self.add_volume(&Volume {
            name: name.to_owned(),
            bytes: None,
        })
    }

    #[inline]
    fn content(&mut self, digest: Digest) -> Result<u32, Error> {
        let (n, is_new) = self.contents.number(digest);
        if is_new {
            self.writer.add_content(digest)?;
        }
        Ok(n)
    }

    fn contents(&mut self, digests: &[Digest], numbers: &mut Vec<u32>) -> Result<(), Error> {
        let known = self.contents.digests().len();
        self.contents.numbers(digests, numbers);
        for digest in &self.contents.digests()[known..] {
            self.writer.add_content(*digest)?;
        }
        Ok(())
    }

    #[inline]
    fn request(&mut self, request: &Request<'_>) -> Result<(), Error> {
        self.writer.push(request)
    }

    fn lost(&mut self, requests: u64) -> Result<(), Error> {
        self.writer.lost(requests)
    }
}
