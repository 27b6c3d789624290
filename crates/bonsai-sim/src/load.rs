//! A trace, read into memory.

use std::io::Read;

use bonsai_dedup::intern::Unnumbered;
use bonsai_dedup::stream::Stream;
use bonsai_trace::{Op, Reader};

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

/// Loads a trace. With `as_recorded`, reads return what the trace says, also where it had put something else there
/// before; else what a disk would.
///
/// # Errors
/// It is damaged, cannot be read, or has nothing in it.
pub fn load<R: Read>(reader: &mut Reader<R>, as_recorded: bool) -> Result<Loaded, Failed> {
    let mut loaded = Loaded {
        stream: Stream::default(),
        requests: 0,
        trimmed: 0,
        volumes: 0,
        without_content: 0,
    };
    reader.for_each(|request| {
        let record = loaded.requests;
        loaded.requests += 1;
        match request.op {
            Op::Flush => return Ok(()),
            Op::Trim => {
                loaded.trimmed += request.blocks().count() as u64;
                return Ok(());
            }
            Op::Read | Op::Write => (),
        }
        let failed = |source| Failed::Block { record, source };
        for access in request.accesses() {
            let is_write = access.op == Op::Write;
            loaded.without_content += u64::from(access.content.is_none());
            let stream = &mut loaded.stream;
            stream
                .push(access.volume, access.block, access.content, is_write)
                .map_err(failed)?;
        }
        Ok::<(), Failed>(())
    })?;
    let record = loaded.requests;
    let failed = |source| Failed::Block { record, source };
    loaded.stream.finish().map_err(failed)?;
    if loaded.stream.requests.is_empty() {
        return Err(Failed::Empty);
    }
    if !as_recorded {
        loaded.stream.make_consistent();
    }
    loaded.volumes = reader.volumes().len();
    Ok(loaded)
}
