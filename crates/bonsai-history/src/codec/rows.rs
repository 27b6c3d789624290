//! Rows of all services: one slot each, until blocks are made of them.
//!
//! `{ number of the service (varint) | length (varint) | block of one slot }`: each block has
//! its own checksum, so one that is damaged does not take the others with it.

use super::varint::{Input, put, put_length};
use super::{Block, DecodeError, Level};

/// One service in a row of all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// Its number.
    pub(crate) service: u32,
    bytes: &'a [u8],
}

impl Entry<'_> {
    /// Its slot.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn block(&self, level: Level, only: Option<usize>) -> Result<Block, DecodeError> {
        let mut block = Block::default();
        self.append_to(&mut block, level, only)?;
        Ok(block)
    }

    /// Puts its slot behind those of a block; one that is not behind them is left out.
    ///
    /// # Errors
    /// It is damaged; the block is as it was.
    pub(crate) fn append_to(
        &self,
        block: &mut Block,
        level: Level,
        only: Option<usize>,
    ) -> Result<(), DecodeError> {
        block.append(self.bytes, level, only)
    }
}

/// Adds a service to a row.
pub(crate) fn push_entry(row: &mut Vec<u8>, service: u32, level: Level, block: &Block) {
    put(row, u64::from(service));
    let from = row.len();
    block.encode(level, row);
    put_length(row, from);
}

/// The services of a row; an error is the last that comes.
pub(crate) fn entries(row: &[u8]) -> impl Iterator<Item = Result<Entry<'_>, DecodeError>> {
    let mut input = Input::new(row);
    std::iter::from_fn(move || {
        if input.is_empty() {
            return None;
        }
        let mut next = || {
            let service = input.number()?;
            let service = u32::try_from(service).map_err(|_| DecodeError::Range)?;
            let length = input.length()?;
            let bytes = input.take(length)?;
            Ok(Entry { service, bytes })
        };
        let entry = next();
        if entry.is_err() {
            input = Input::new(&[]);
        }
        Some(entry)
    })
}
