//! Reads traces.

use std::io::{self, Read};

use super::columns::{Batch, Known, Unpacker};
use super::frame::{Closed, FILE_HEADER, Header, Kind, MAGIC, Opener, check_file_header};
use crate::Error;
use crate::model::{Access, Digest, Request, Volume};

/// Reads a trace as it comes: a frame at a time, in bounded memory, but for the table of fingerprints
/// where that is wanted.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    opener: Opener,
    unpacker: Unpacker,
    batch: Batch,
    volumes: Vec<Volume>,
    contents: usize,
    fingerprints: Option<Vec<Digest>>,
    lost: u64,
    /// Requests before the frame that is read next.
    record: u64,
    /// Where it begins.
    offset: u64,
    is_over: bool,
}

/// Whether a file that begins so is a trace of this format, of whatever version.
pub fn is_trace(beginning: &[u8]) -> bool {
    beginning.starts_with(&MAGIC)
}

impl<R: Read> Reader<R> {
    /// Begins to read. Frames are large: nothing is gained by a buffer below.
    ///
    /// # Errors
    /// It is no trace, or of another version.
    pub fn new(mut from: R) -> Result<Self, Error> {
        let mut header = [0; FILE_HEADER];
        from.read_exact(&mut header).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                Error::NoTrace
            } else {
                error.into()
            }
        })?;
        check_file_header(&header)?;
        Ok(Self {
            from,
            opener: Opener::new()?,
            unpacker: Unpacker::default(),
            batch: Batch::default(),
            volumes: Vec::new(),
            contents: 0,
            fingerprints: None,
            lost: 0,
            record: 0,
            offset: FILE_HEADER as u64,
            is_over: false,
        })
    }

    /// Keeps fingerprints as they come, 16 bytes each: for [`Self::fingerprints`].
    #[must_use]
    pub fn keeping_fingerprints(mut self) -> Self {
        self.fingerprints = Some(Vec::new());
        self
    }

    /// The volumes of the requests read so far, by their numbers.
    pub fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    /// The fingerprints read so far, by their numbers; none if they are not kept.
    pub fn fingerprints(&self) -> &[Digest] {
        self.fingerprints.as_deref().unwrap_or(&[])
    }

    /// How many contents were named so far: numbers of contents are below that.
    pub const fn contents(&self) -> usize {
        self.contents
    }

    /// Requests read so far.
    pub const fn requests(&self) -> u64 {
        self.record
    }

    /// Requests that came while the trace was recorded, and are not in it; as far as it was read.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The next requests, some ten thousands of them; `None` at the end of a whole trace.
    ///
    /// # Errors
    /// It is damaged or cut off, or cannot be read.
    pub fn next_batch(&mut self) -> Result<Option<&Batch>, Error> {
        if self.is_over {
            return Ok(None);
        }
        loop {
            let (record, offset) = (self.record, self.offset);
            let damaged = |what| Error::Damaged {
                record,
                offset,
                what,
            };
            let (header, bytes) = match self.opener.open(&mut self.from) {
                Ok(found) => found,
                Err(Closed::Short) => return Err(Error::Truncated { record, offset }),
                Err(Closed::Damaged(what)) => return Err(damaged(what)),
                Err(Closed::Io(error)) => return Err(error.into()),
            };
            let is_batch = self.take(header).map_err(damaged)?;
            self.offset += bytes;
            if self.is_over {
                return match self.from.read(&mut [0])? {
                    0 => Ok(None),
                    _ => Err(Error::Damaged {
                        record,
                        offset: self.offset,
                        what: "something follows its end",
                    }),
                };
            }
            if is_batch {
                return Ok(Some(&self.batch));
            }
        }
    }

    /// Takes a frame in; says whether it was one of requests.
    fn take(&mut self, header: Header) -> Result<bool, &'static str> {
        let raw = &self.opener.raw;
        let records = header.records;
        match header.kind {
            Kind::Volumes => {
                self.volumes.extend(volumes(raw, records)?);
                if self.volumes.len() > super::writer::MAX_VOLUMES {
                    return Err("there are too many volumes");
                }
            }
            Kind::Fingerprints => {
                let (digests, rest) = raw.as_chunks::<16>();
                if digests.len() != records || !rest.is_empty() {
                    return Err("a frame has not as many fingerprints as it says");
                }
                self.contents += records;
                if self.contents as u64 > u64::from(u32::MAX) {
                    return Err("there are too many fingerprints");
                }
                if let Some(kept) = &mut self.fingerprints {
                    kept.extend(digests.iter().map(|digest| Digest(*digest)));
                }
            }
            Kind::Requests => {
                let known = Known {
                    volumes: self.volumes.len(),
                    contents: self.contents,
                };
                self.unpacker.unpack(raw, records, known, &mut self.batch)?;
                self.record += records as u64;
                return Ok(true);
            }
            Kind::Lost => {
                let lost = raw.as_slice().try_into().map(u64::from_le_bytes);
                let lost = lost.map_err(|_| "a frame says not how many requests were lost")?;
                self.lost = self.lost.saturating_add(lost);
            }
            Kind::End => {
                let all = [self.record, self.contents as u64, self.volumes.len() as u64];
                let all = all.map(u64::to_le_bytes).concat();
                if *raw != all {
                    return Err("not everything is there that its end counts");
                }
                self.is_over = true;
            }
        }
        Ok(false)
    }

    /// Calls `each` with every request that is left.
    ///
    /// # Errors
    /// As for [`Self::next_batch`], or what `each` says.
    pub fn for_each<E: From<Error>>(
        &mut self,
        mut each: impl FnMut(&Request<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(batch) = self.next_batch()? {
            for request in batch.iter() {
                each(&request)?;
            }
        }
        Ok(())
    }

    /// The accesses to blocks that are left, in order; after an error there are none.
    pub fn accesses(&mut self) -> Accesses<'_, R> {
        self.batch.clear();
        Accesses {
            reader: self,
            next: 0,
            block: 0,
            is_failed: false,
        }
    }
}

/// The iterator of [`Reader::accesses`].
#[derive(Debug)]
pub struct Accesses<'r, R> {
    reader: &'r mut Reader<R>,
    /// The request in the batch, and the block of it.
    next: usize,
    block: u64,
    is_failed: bool,
}

impl<R: Read> Iterator for Accesses<'_, R> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(request) = self.reader.batch.get(self.next) {
                let blocks = request.blocks();
                let block = blocks.start + self.block;
                if block < blocks.end {
                    let n = usize::try_from(self.block).unwrap_or(usize::MAX);
                    self.block += 1;
                    return Some(Ok(Access {
                        time_ns: request.time_ns,
                        volume: request.volume,
                        block,
                        content: request.contents.get(n).copied(),
                        op: request.op,
                    }));
                }
                (self.next, self.block) = (self.next + 1, 0);
                continue;
            }
            if self.is_failed {
                return None;
            }
            (self.next, self.block) = (0, 0);
            match self.reader.next_batch() {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.reader.batch.clear();
                    return None;
                }
                Err(error) => {
                    self.is_failed = true;
                    self.reader.batch.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

fn volumes(mut raw: &[u8], records: usize) -> Result<Vec<Volume>, &'static str> {
    const WRONG: &str = "the table of volumes cannot be read";
    let mut volumes = Vec::new();
    while let Some((head, rest)) = raw.split_at_checked(9) {
        let (name, rest) = rest.split_at_checked(usize::from(head[8])).ok_or(WRONG)?;
        let name = std::str::from_utf8(name).map_err(|_| WRONG)?;
        let bytes = u64::from_le_bytes(head[..8].try_into().map_err(|_| WRONG)?);
        volumes.push(Volume {
            name: name.to_owned(),
            bytes: (bytes > 0).then_some(bytes),
        });
        raw = rest;
    }
    if !raw.is_empty() || volumes.len() != records {
        return Err(WRONG);
    }
    Ok(volumes)
}
