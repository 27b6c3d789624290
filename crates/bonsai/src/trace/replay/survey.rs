//! What a trace asks of each device, before any of it is sent.

use std::path::Path;

use bonsai_trace::{BLOCK, Op, Request, Volume};

use crate::trace::import::said;
use crate::trace::opened::trace_named;

/// Of a trace.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) volumes: Vec<Volume>,
    /// By numbers of volumes.
    pub(super) asked: Vec<Asked>,
    pub(super) requests: u64,
    /// Blocks whose content it knows.
    pub(super) known: u64,
}

/// Of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    reads: u64,
    /// Writes and trims.
    pub(super) writes: u64,
    /// Writes of unknown content.
    pub(super) unknown_writes: u64,
    /// Of reads, and of all: where the last ends, and offsets and lengths, or-ed.
    read_end: u64,
    end: u64,
    read_bits: u64,
    bits: u64,
}

impl Asked {
    fn add(&mut self, request: &Request<'_>) {
        let bits = request.offset | u64::from(request.length);
        match request.op {
            Op::Read => {
                self.reads += 1;
                self.read_end = self.read_end.max(request.end());
                self.read_bits |= bits;
            }
            Op::Write | Op::Trim => {
                self.writes += 1;
                let is_unknown = request.op == Op::Write && request.contents.is_empty();
                self.unknown_writes += u64::from(is_unknown);
            }
            // It goes to no place.
            Op::Flush => return,
        }
        self.end = self.end.max(request.end());
        self.bits |= bits;
    }

    /// Whether anything is asked of it.
    pub(super) const fn is_used(&self, reads_only: bool) -> bool {
        self.reads > 0 || !reads_only && self.writes > 0
    }

    /// Where the last request ends, bytes.
    pub(super) const fn end(&self, reads_only: bool) -> u64 {
        if reads_only { self.read_end } else { self.end }
    }

    /// What all offsets and lengths are multiples of, at most a block, bytes.
    pub(super) fn unit(&self, reads_only: bool) -> u32 {
        let bits = if reads_only {
            self.read_bits
        } else {
            self.bits
        };
        1 << (bits | BLOCK).trailing_zeros()
    }
}

/// Goes through a trace as a whole.
///
/// # Errors
/// It is no trace, or damaged.
pub(super) fn survey(path: &Path, name: &str) -> anyhow::Result<Survey> {
    let (mut reader, progress) = trace_named(path, name)?;
    let mut asked: Vec<Asked> = Vec::new();
    let (mut requests, mut known) = (0, 0);
    let read = reader.for_each(|request| {
        let at = request.volume as usize;
        if asked.len() <= at {
            asked.resize(at + 1, Asked::default());
        }
        asked[at].add(request);
        requests += 1;
        known += request.contents.len() as u64;
        Ok::<(), bonsai_trace::Error>(())
    });
    progress.done();
    read.map_err(|error| said(name, error))?;
    let volumes = reader.volumes().to_vec();
    asked.resize(volumes.len(), Asked::default());
    Ok(Survey {
        volumes,
        asked,
        requests,
        known,
    })
}
