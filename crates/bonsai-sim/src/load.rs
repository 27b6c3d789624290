//! A trace, read into memory.

use std::io::Read;

use bonsai_dedup::intern::Unnumbered;
use bonsai_dedup::stream::Stream;
use bonsai_trace::{Merged, Op, Reader, Request, Which};

/// A trace, and what of it is not simulated.
#[derive(Debug)]
pub struct Loaded {
    /// Reads and writes of blocks.
    pub stream: Stream,
    /// Requests in the trace.
    pub requests: u64,
    /// Blocks that were trimmed: caches and metadata are left as they are, as no published simulation has trims.
    pub trimmed: u64,
    /// Volumes of the trace.
    pub volumes: usize,
    /// Reads and writes whose content the trace does not say.
    pub without_content: u64,
    /// Requests that were lost while the trace was recorded.
    pub lost: u64,
}

/// Why a trace cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// It is damaged, or cannot be read.
    #[error(transparent)]
    Trace(#[from] bonsai_trace::Error),
    /// It has a block that cannot be numbered.
    #[error("request {record}: {source}")]
    Block {
        /// Which request, from 0 on.
        record: u64,
        /// What is wrong.
        source: Unnumbered,
    },
    /// There is nothing to simulate.
    #[error("it has no reads and no writes of blocks")]
    Empty,
}

/// Why traces cannot be loaded as one.
#[derive(Debug, thiserror::Error)]
pub enum FailedTogether {
    /// One of them, by its number from 0, is damaged, or cannot be read.
    #[error("{1}")]
    One(usize, bonsai_trace::Error),
    /// What all of them are together.
    #[error(transparent)]
    All(#[from] Failed),
}

impl From<Which> for FailedTogether {
    fn from((which, error): Which) -> Self {
        Self::One(which, error)
    }
}

/// Loads a trace. With `as_recorded`, reads return what the trace says, also where it had put something else there
/// before; else what a disk would.
///
/// # Errors
/// It is damaged, cannot be read, or has nothing in it.
pub fn load<R: Read>(reader: &mut Reader<R>, as_recorded: bool) -> Result<Loaded, Failed> {
    let mut loaded = Loaded::nothing();
    reader.for_each(|request| loaded.take(request))?;
    loaded.volumes = reader.volumes().len();
    loaded.lost = reader.lost();
    loaded.finish(as_recorded)
}

/// Loads several traces as one, in the order of their times; as [`load`] does. Devices stay apart, contents are the same where their
/// fingerprints are.
///
/// # Errors
/// One is damaged or cannot be read, or there is nothing in all of them.
pub fn load_together<R: Read>(
    readers: Vec<Reader<R>>,
    as_recorded: bool,
) -> Result<Loaded, FailedTogether> {
    let mut loaded = Loaded::nothing();
    let mut merged = Merged::new(readers)?;
    merged.for_each(|request| loaded.take(request).map_err(FailedTogether::from))?;
    loaded.volumes = merged.volumes() as usize;
    loaded.lost = merged.lost();
    Ok(loaded.finish(as_recorded)?)
}

impl Loaded {
    fn nothing() -> Self {
        Self {
            stream: Stream::default(),
            requests: 0,
            trimmed: 0,
            volumes: 0,
            without_content: 0,
            lost: 0,
        }
    }

    fn take(&mut self, request: &Request<'_>) -> Result<(), Failed> {
        let record = self.requests;
        self.requests += 1;
        match request.op {
            Op::Flush => return Ok(()),
            Op::Trim => {
                let blocks = request.blocks();
                self.trimmed += blocks.end - blocks.start;
                return Ok(());
            }
            Op::Read | Op::Write => (),
        }
        let failed = |source| Failed::Block { record, source };
        for access in request.accesses() {
            let is_write = access.op == Op::Write;
            self.without_content += u64::from(access.content.is_none());
            self.stream
                .push(access.volume, access.block, access.content, is_write)
                .map_err(failed)?;
        }
        Ok(())
    }

    fn finish(mut self, as_recorded: bool) -> Result<Self, Failed> {
        let record = self.requests;
        let failed = |source| Failed::Block { record, source };
        self.stream.finish().map_err(failed)?;
        if self.stream.requests.is_empty() {
            return Err(Failed::Empty);
        }
        if !as_recorded {
            self.stream.make_consistent();
        }
        Ok(self)
    }
}
