//! How points become bytes, and back.
//!
//! # Definitions
//! - A *cell* is a number of a slot: what was asked for in that second, say.
//! - A *slot* is the smallest time of a tier ([`Level`]): 1 s, 1 min or 1 h.
//! - A *section* has the cells of one resource, column by column.
//! - A *block* has the slots of one service in a minute, an hour or a day.
//! - A *row of all* has one slot of every service: what has not become blocks yet.
//!
//! # Format of a block
//! ```text
//! tag 0x11, 0x12 or 0x13 for seconds, minutes, hours
//! 0: every slot is there, with all its seconds
//! 1: bitmap of slots (8 bytes, little endian), seconds of each (a column; not of tier 1 s)
//! 2: the only slot (1 byte), its seconds (varint; not of tier 1 s)
//! mask of resources (1 byte, bit = index of the resource)
//! for each: length (varint) | modes (4 bits each, low half first) | columns
//! FNV-1a checksum of all that (4 bytes, little endian)
//! ```
//! A resource that is not there was zero all the time.
//!
//! # Invariants
//! 1. Decoding takes any bytes: it gives a block or an error, in time and memory
//!    bounded by the number of slots.
//! 2. What is encoded is decoded to the same.
//! 3. A single damaged byte is found (FNV-1a is a bijection of its state in each byte).

mod block;
mod column;
mod rows;
#[cfg(test)]
mod tests;
mod varint;

use bonsai_units::Resource;

pub(crate) use block::Block;
pub(crate) use rows::{Entry, entries, push_entry};

/// What is wrong with bytes that should have been a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end early.
    #[error("a block ends early")]
    Short,
    /// They are no block of that tier.
    #[error("a block starts with another tag")]
    Tag,
    /// The checksum is another one.
    #[error("a block does not agree with its checksum")]
    Checksum,
    /// A number in them cannot be.
    #[error("a block has a number that cannot be")]
    Range,
}

/// A resolution at which points are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// One second.
    Second,
    /// One minute.
    Minute,
    /// One hour.
    Hour,
}

/// Values of a second: asked, got, limit, guarantee, waited, waits.
pub(crate) const FIELDS: usize = 6;
/// Where the limit is among them; 0 is none, others are one more than they mean.
pub(crate) const LIMIT: usize = 2;
/// Cells of a longer slot: least, sum and most of each value, and how many seconds had a limit.
pub(crate) const SUMMARY: usize = 3 * FIELDS + 1;
/// Where that number is.
pub(crate) const LIMITED: usize = SUMMARY - 1;

/// Cells of a slot; of a second only the first [`FIELDS`] are used.
pub(crate) type Cells = [u64; SUMMARY];

impl Level {
    /// All, from fine to coarse.
    pub const ALL: [Self; 3] = [Self::Second, Self::Minute, Self::Hour];

    /// Seconds of a slot.
    #[must_use]
    pub const fn slot_seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
        }
    }

    /// Slots of a block.
    #[must_use]
    pub const fn slots(self) -> usize {
        match self {
            Self::Second | Self::Minute => 60,
            Self::Hour => 24,
        }
    }

    /// Seconds of a block.
    #[must_use]
    pub const fn block_seconds(self) -> u64 {
        self.slot_seconds() * self.slots() as u64
    }

    /// The next coarser one.
    pub(crate) const fn coarser(self) -> Option<Self> {
        match self {
            Self::Second => Some(Self::Minute),
            Self::Minute => Some(Self::Hour),
            Self::Hour => None,
        }
    }

    /// Its place among all.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    const fn columns(self) -> usize {
        match self {
            Self::Second => FIELDS,
            Self::Minute | Self::Hour => SUMMARY,
        }
    }

    const fn tag(self) -> u8 {
        0x11 + self as u8
    }

    /// The column that column `at` is told by the difference to, where that is shorter.
    const fn reference(self, at: usize) -> Option<usize> {
        match self {
            // What was got is mostly what was asked for.
            Self::Second if at == 1 => Some(0),
            Self::Second => None,
            // The most of a value is often its least; what was got is what was asked for.
            _ if at == LIMITED => None,
            _ if at >= 3 && at < 6 => Some(at - 3),
            _ if at % 3 == 2 => Some(at - 2),
            _ => None,
        }
    }
}

/// A second as a longer slot.
pub(crate) fn widened(second: &Cells) -> Cells {
    let mut cells = [0; SUMMARY];
    for (field, &value) in second.iter().take(FIELDS).enumerate() {
        // A limit is kept as one more than it is, so that 0 is none.
        let value = if field == LIMIT {
            value.saturating_sub(1)
        } else {
            value
        };
        cells[3 * field..3 * field + 3].fill(value);
    }
    cells[LIMITED] = u64::from(second[LIMIT] != 0);
    cells
}

/// Two longer slots as one; a resource that is in neither stays out.
fn combined(
    a: &[Option<Cells>; Resource::COUNT],
    b: &[Option<Cells>; Resource::COUNT],
) -> [Option<Cells>; Resource::COUNT] {
    std::array::from_fn(|i| match (&a[i], &b[i]) {
        (None, None) => None,
        (a, b) => Some(added(
            &a.unwrap_or([0; SUMMARY]),
            &b.unwrap_or([0; SUMMARY]),
        )),
    })
}

/// The least, sum and most of both.
pub(crate) fn added(a: &Cells, b: &Cells) -> Cells {
    let mut cells = [0; SUMMARY];
    for field in 0..FIELDS {
        let at = 3 * field;
        // Seconds without a limit say nothing of limits.
        let one = match field {
            LIMIT if b[LIMITED] == 0 => Some(a),
            LIMIT if a[LIMITED] == 0 => Some(b),
            _ => None,
        };
        if let Some(one) = one {
            cells[at..at + 3].copy_from_slice(&one[at..at + 3]);
            continue;
        }
        cells[at] = a[at].min(b[at]);
        cells[at + 1] = a[at + 1].saturating_add(b[at + 1]);
        cells[at + 2] = a[at + 2].max(b[at + 2]);
    }
    cells[LIMITED] = a[LIMITED].saturating_add(b[LIMITED]);
    cells
}

/// FNV-1a with 32 bits.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |state: u32, byte| {
        (state ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// The bytes without the checksum behind them.
fn checked(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or(DecodeError::Short)?;
    if checksum(body) == u32::from_le_bytes(*sum) {
        Ok(body)
    } else {
        Err(DecodeError::Checksum)
    }
}
