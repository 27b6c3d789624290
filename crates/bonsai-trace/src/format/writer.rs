//! Writes traces.

use std::io::Write;

use super::columns::Packer;
use super::frame::{CONTENTS, Kind, REQUESTS, Sealer, file_header};
use crate::Error;
use crate::model::{Digest, Request, Volume};

/// There are at most that many volumes.
pub(crate) const MAX_VOLUMES: usize = 1 << 16;
/// A volume's name is at most that long, bytes.
const MAX_NAME: usize = 255;

/// Writes a trace as it comes, in bounded memory. Without [`Writer::finish`] the file counts as cut off.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    sealer: Sealer,
    packer: Packer,
    raw: Vec<u8>,
    volumes: Counted,
    fingerprints: Counted,
    requests: u64,
    bytes: u64,
    packed: u64,
}

/// Records that wait for their frame, and all that there ever were.
#[derive(Debug, Default)]
struct Counted {
    raw: Vec<u8>,
    held: usize,
    all: usize,
}

/// What a trace took.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Written {
    /// Requests.
    pub requests: u64,
    /// Fingerprints.
    pub contents: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the requests before they were compressed, those of frames counted in.
    pub packed: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(mut to: W) -> Result<Self, Error> {
        let header = file_header();
        to.write_all(&header)?;
        Ok(Self {
            to,
            sealer: Sealer::new()?,
            packer: Packer::default(),
            raw: Vec::new(),
            volumes: Counted::default(),
            fingerprints: Counted::default(),
            requests: 0,
            bytes: header.len() as u64,
            packed: 0,
        })
    }

    /// Adds a volume, and says its number.
    ///
    /// # Errors
    /// There are too many, or its name is longer than 255 bytes.
    pub fn add_volume(&mut self, volume: &Volume) -> Result<u32, Error> {
        let number = self.volumes.all;
        let name = volume.name.as_bytes();
        if number >= MAX_VOLUMES {
            return Err(Error::TooMany {
                what: "volumes",
                most: MAX_VOLUMES as u64,
            });
        }
        if name.len() > MAX_NAME {
            return Err(Error::TooMany {
                what: "bytes in the name of a volume",
                most: MAX_NAME as u64,
            });
        }
        let raw = &mut self.volumes.raw;
        raw.extend(volume.bytes.unwrap_or(0).to_le_bytes());
        raw.push(name.len() as u8);
        raw.extend(name);
        self.volumes.held += 1;
        self.volumes.all += 1;
        Ok(number as u32)
    }

    /// Adds a fingerprint, and says its number. Whether it is there already is for the caller to know.
    ///
    /// # Errors
    /// There are too many, or it cannot be written.
    pub fn add_content(&mut self, digest: Digest) -> Result<u32, Error> {
        let number = self.fingerprints.all;
        if number as u64 >= u64::from(u32::MAX) {
            return Err(Error::TooMany {
                what: "contents",
                most: u64::from(u32::MAX),
            });
        }
        self.fingerprints.raw.extend(digest.0);
        self.fingerprints.held += 1;
        self.fingerprints.all += 1;
        if self.fingerprints.held >= CONTENTS {
            self.flush_tables()?;
        }
        Ok(number as u32)
    }

    /// Adds a request.
    ///
    /// # Errors
    /// There can be no such request, or it cannot be written.
    pub fn push(&mut self, request: &Request<'_>) -> Result<(), Error> {
        self.requests += 1;
        let unknown = (request.volume as usize >= self.volumes.all)
            .then_some("it is of a volume that was not added");
        let strange = request
            .contents
            .iter()
            .any(|content| *content as usize >= self.fingerprints.all)
            .then_some("it has a content that was not added");
        if let Some(what) = request.wrong().or(unknown).or(strange) {
            return Err(Error::Request {
                record: self.requests,
                what,
            });
        }
        self.packer.push(request);
        let (requests, contents) = self.packer.held();
        if requests >= REQUESTS || contents >= CONTENTS {
            self.flush_requests()?;
        }
        Ok(())
    }

    /// Ends the trace: from now on it is whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> Result<(W, Written), Error> {
        self.flush_requests()?;
        let contents = self.fingerprints.all as u64;
        let mut end = self.requests.to_le_bytes().to_vec();
        end.extend(contents.to_le_bytes());
        end.extend((self.volumes.all as u64).to_le_bytes());
        self.frame(Kind::End, 0, &end)?;
        self.to.flush()?;
        let written = Written {
            requests: self.requests,
            contents,
            bytes: self.bytes,
            packed: self.packed,
        };
        Ok((self.to, written))
    }

    /// Ends the frame, so that what was added so far can be read though the trace is never finished.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.flush_requests()?;
        Ok(self.to.flush()?)
    }

    /// Says that so many requests came here and are not in the trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn lost(&mut self, requests: u64) -> Result<(), Error> {
        if requests == 0 {
            return Ok(());
        }
        self.flush_requests()?;
        self.frame(Kind::Lost, 1, &requests.to_le_bytes())
    }

    /// Where it goes.
    pub const fn get_ref(&self) -> &W {
        &self.to
    }

    /// Where it goes. Whoever writes there spoils it.
    pub(crate) const fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }

    /// Bytes written so far: whole frames.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Requests so far.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Fingerprints so far.
    pub const fn contents(&self) -> u64 {
        self.fingerprints.all as u64
    }

    fn flush_tables(&mut self) -> Result<(), Error> {
        for (kind, is_volumes) in [(Kind::Volumes, true), (Kind::Fingerprints, false)] {
            let table = if is_volumes {
                &mut self.volumes
            } else {
                &mut self.fingerprints
            };
            if table.held == 0 {
                continue;
            }
            let held = std::mem::take(&mut table.held);
            let mut raw = std::mem::take(&mut table.raw);
            self.frame(kind, held, &raw)?;
            raw.clear();
            if is_volumes {
                self.volumes.raw = raw;
            } else {
                self.fingerprints.raw = raw;
            }
        }
        Ok(())
    }

    /// What requests speak of comes before them.
    fn flush_requests(&mut self) -> Result<(), Error> {
        self.flush_tables()?;
        let (requests, _) = self.packer.held();
        if requests == 0 {
            return Ok(());
        }
        let mut raw = std::mem::take(&mut self.raw);
        self.packer.take(&mut raw);
        self.packed += raw.len() as u64;
        self.frame(Kind::Requests, requests, &raw)?;
        self.raw = raw;
        Ok(())
    }

    fn frame(&mut self, kind: Kind, records: usize, raw: &[u8]) -> Result<(), Error> {
        let (header, stored) = self.sealer.seal(kind, records, raw)?;
        self.to.write_all(&header)?;
        self.to.write_all(stored)?;
        self.bytes += (header.len() + stored.len()) as u64;
        Ok(())
    }
}
