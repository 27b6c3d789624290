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

mod column;
mod rows;
mod varint;

use bonsai_units::Resource;

pub(crate) use rows::{Entry, entries, push_entry};

use column::{read_column, write_column};
use varint::{Input, put};

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

/// The slots of one service in one span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Which slots there are, ascending, and how many of their seconds were observed.
    pub(crate) slots: Vec<(u8, u16)>,
    /// Of each resource its columns, each as long as `slots`.
    sections: [Option<Vec<Vec<u64>>>; Resource::COUNT],
}

impl Block {
    /// A block of one slot.
    pub(crate) fn single(
        level: Level,
        slot: u8,
        seconds: u16,
        cells: &[Option<Cells>; Resource::COUNT],
    ) -> Self {
        let mut block = Self::default();
        block.push(level, slot, seconds, cells);
        block
    }

    /// Adds a slot behind all others.
    pub(crate) fn push(
        &mut self,
        level: Level,
        slot: u8,
        seconds: u16,
        cells: &[Option<Cells>; Resource::COUNT],
    ) {
        debug_assert!(self.slots.last().is_none_or(|(last, _)| *last < slot));
        let before = self.slots.len();
        self.slots.push((slot, seconds));
        for (section, cells) in self.sections.iter_mut().zip(cells) {
            if section.is_none() && cells.is_none() {
                continue;
            }
            let columns = section.get_or_insert_with(|| vec![vec![0; before]; level.columns()]);
            for (at, column) in columns.iter_mut().enumerate() {
                column.push(cells.map_or(0, |cells| cells[at]));
            }
        }
    }

    /// The cells of a resource in the `i`th slot; none where all of them are zero
    /// throughout the block.
    pub(crate) fn cells(&self, resource: usize, i: usize) -> Option<Cells> {
        let columns = self.sections.get(resource)?.as_ref()?;
        let mut cells = [0; SUMMARY];
        for (cell, column) in cells.iter_mut().zip(columns) {
            *cell = *column.get(i)?;
        }
        Some(cells)
    }

    /// The cells of all resources in the `i`th slot.
    pub(crate) fn all_cells(&self, i: usize) -> [Option<Cells>; Resource::COUNT] {
        std::array::from_fn(|resource| self.cells(resource, i))
    }

    /// Both in one. Seconds that both have stay as they are in `self`; longer slots that both
    /// have are added up, because their seconds are others.
    pub(crate) fn merged(self, other: &Self, level: Level) -> Self {
        let mut block = Self::default();
        let (mut a, mut b) = (0, 0);
        loop {
            let (left, right) = (self.slots.get(a), other.slots.get(b));
            match (left, right) {
                (None, None) => return block,
                (Some(&(slot, n)), right) if right.is_none_or(|right| slot < right.0) => {
                    block.push(level, slot, n, &self.all_cells(a));
                    a += 1;
                }
                (Some(&(slot, n)), Some(&(same, more))) if slot == same => {
                    let cells = self.all_cells(a);
                    if level == Level::Second {
                        block.push(level, slot, n, &cells);
                    } else {
                        let added = combined(&cells, &other.all_cells(b));
                        block.push(level, slot, n.saturating_add(more), &added);
                    }
                    a += 1;
                    b += 1;
                }
                (_, Some(&(slot, n))) => {
                    block.push(level, slot, n, &other.all_cells(b));
                    b += 1;
                }
                (Some(_), None) => return block,
            }
        }
    }

    /// All slots as one slot of the next coarser tier: its seconds and cells.
    pub(crate) fn summary(&self, level: Level) -> (u16, [Option<Cells>; Resource::COUNT]) {
        let mut seconds = 0_u16;
        let mut total = None;
        for (i, (_, n)) in self.slots.iter().enumerate() {
            seconds = seconds.saturating_add(*n);
            let mut cells = self.all_cells(i);
            if level == Level::Second {
                cells = cells.map(|cells| cells.map(|cells| widened(&cells)));
            }
            total = Some(match total {
                None => cells,
                Some(before) => combined(&before, &cells),
            });
        }
        (seconds, total.unwrap_or_default())
    }

    /// The bytes of it.
    pub(crate) fn encode(&self, level: Level) -> Vec<u8> {
        let mut out = vec![level.tag()];
        let full = u16::try_from(level.slot_seconds()).unwrap_or(u16::MAX);
        if self.slots.len() == level.slots() && self.slots.iter().all(|(_, n)| *n == full) {
            out.push(0);
        } else if let [(slot, seconds)] = self.slots[..] {
            out.extend([2, slot]);
            if level != Level::Second {
                put(&mut out, u64::from(seconds));
            }
        } else {
            out.push(1);
            let bits = self
                .slots
                .iter()
                .fold(0_u64, |bits, (slot, _)| bits | 1 << slot);
            out.extend(bits.to_le_bytes());
            if level != Level::Second {
                let seconds: Vec<u64> = self.slots.iter().map(|(_, n)| u64::from(*n)).collect();
                let mut column = Vec::new();
                let mode = write_column(&seconds, None, &mut column);
                out.push(mode);
                out.extend(column);
            }
        }
        let mask = self.sections.iter().enumerate();
        out.push(mask.fold(0, |mask, (i, s)| mask | u8::from(s.is_some()) << i));
        for columns in self.sections.iter().flatten() {
            let mut modes = vec![0; level.columns().div_ceil(2)];
            let mut data = Vec::new();
            for (at, column) in columns.iter().enumerate() {
                let reference = level.reference(at).map(|at| columns[at].as_slice());
                modes[at / 2] |= write_column(column, reference, &mut data) << (4 * (at % 2));
            }
            put(&mut out, (modes.len() + data.len()) as u64);
            out.extend(modes);
            out.extend(data);
        }
        out.extend(checksum(&out).to_le_bytes());
        out
    }

    /// The block of these bytes; of one resource only, where that is named.
    ///
    /// # Errors
    /// They are none.
    pub(crate) fn decode(
        bytes: &[u8],
        level: Level,
        only: Option<usize>,
    ) -> Result<Self, DecodeError> {
        let mut input = Input::new(checked(bytes)?);
        if input.byte()? != level.tag() {
            return Err(DecodeError::Tag);
        }
        let slots = read_slots(&mut input, level)?;
        let mask = input.byte()?;
        if mask >> Resource::COUNT != 0 {
            return Err(DecodeError::Range);
        }
        let mut sections = <[Option<Vec<Vec<u64>>>; Resource::COUNT]>::default();
        for (i, section) in sections.iter_mut().enumerate() {
            if mask & 1 << i == 0 {
                continue;
            }
            let length = input.length()?;
            let mut part = Input::new(input.take(length)?);
            if only.is_none_or(|only| only == i) {
                *section = Some(read_section(&mut part, level, slots.len())?);
            }
        }
        if !input.is_empty() {
            return Err(DecodeError::Range);
        }
        Ok(Self { slots, sections })
    }
}

fn read_slots(input: &mut Input<'_>, level: Level) -> Result<Vec<(u8, u16)>, DecodeError> {
    let full = u16::try_from(level.slot_seconds()).unwrap_or(u16::MAX);
    let number = u8::try_from(level.slots()).unwrap_or(u8::MAX);
    match input.byte()? {
        0 => Ok((0..number).map(|slot| (slot, full)).collect()),
        1 => {
            let bits = input.word()?;
            if bits >> number != 0 {
                return Err(DecodeError::Range);
            }
            let slots = (0..number).filter(|slot| bits >> slot & 1 == 1);
            let mut slots: Vec<(u8, u16)> = slots.map(|slot| (slot, full)).collect();
            if level != Level::Second {
                let mode = input.byte()?;
                let seconds = read_column(mode, input, slots.len(), None)?;
                for (slot, n) in slots.iter_mut().zip(seconds) {
                    slot.1 = u16::try_from(n).map_err(|_| DecodeError::Range)?;
                }
            }
            Ok(slots)
        }
        2 => {
            let slot = input.byte()?;
            let seconds = match level {
                Level::Second => full,
                _ => u16::try_from(input.number()?).map_err(|_| DecodeError::Range)?,
            };
            if slot >= number {
                return Err(DecodeError::Range);
            }
            Ok(vec![(slot, seconds)])
        }
        _ => Err(DecodeError::Range),
    }
}

fn read_section(
    part: &mut Input<'_>,
    level: Level,
    slots: usize,
) -> Result<Vec<Vec<u64>>, DecodeError> {
    let modes = part.take(level.columns().div_ceil(2))?.to_vec();
    let mut columns: Vec<Vec<u64>> = Vec::with_capacity(level.columns());
    for at in 0..level.columns() {
        let mode = modes[at / 2] >> (4 * (at % 2)) & 15;
        let reference = level.reference(at).map(|at| columns[at].as_slice());
        let column = read_column(mode, part, slots, reference)?;
        columns.push(column);
    }
    if part.is_empty() {
        Ok(columns)
    } else {
        Err(DecodeError::Range)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cells(level: Level) -> impl Strategy<Value = Option<Cells>> {
        let number = prop_oneof![Just(0), 0..1000_u64, any::<u64>()];
        let columns = prop::collection::vec(number, level.columns());
        prop::option::of(columns.prop_map(|columns| {
            let mut cells = [0; SUMMARY];
            cells[..columns.len()].copy_from_slice(&columns);
            cells
        }))
    }

    fn block(level: Level) -> impl Strategy<Value = Block> {
        let slot = (
            0..level.slots(),
            0..4000_u16,
            prop::array::uniform5(cells(level)),
        );
        prop::collection::vec(slot, 0..70).prop_map(move |mut slots| {
            slots.sort_by_key(|slot| slot.0);
            slots.dedup_by_key(|slot| slot.0);
            let mut block = Block::default();
            for (slot, seconds, cells) in slots {
                let seconds = if level == Level::Second { 1 } else { seconds };
                let slot = u8::try_from(slot).expect("few slots");
                block.push(level, slot, seconds, &cells);
            }
            block
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_block_is_decoded_to_what_was_encoded(
            (level, block) in prop::sample::select(&Level::ALL[..])
                .prop_flat_map(|level| (Just(level), block(level))),
        ) {
            let bytes = block.encode(level);
            prop_assert_eq!(Block::decode(&bytes, level, None), Ok(block.clone()));
            let one = Block::decode(&bytes, level, Some(2)).expect("one resource");
            for i in 0..block.slots.len() {
                prop_assert_eq!(one.cells(2, i), block.cells(2, i));
            }
        }

        #[test]
        fn one_damaged_byte_is_found(
            block in block(Level::Second),
            at in any::<prop::sample::Index>(),
            bits in 1..=u8::MAX,
        ) {
            let mut bytes = block.encode(Level::Second);
            let at = at.index(bytes.len());
            bytes[at] ^= bits;
            prop_assert_eq!(
                Block::decode(&bytes, Level::Second, None),
                Err(DecodeError::Checksum)
            );
        }

        #[test]
        fn any_bytes_are_a_block_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            crate::fuzz::blocks(&bytes);
            // Nearly a block: its first bytes are right.
            for level in Level::ALL {
                let mut near = vec![level.tag(), 0, 1];
                near.extend(&bytes);
                crate::fuzz::blocks(&near);
            }
        }

        #[test]
        fn longer_slots_add_up_in_any_order(
            a in cells(Level::Minute), b in cells(Level::Minute), c in cells(Level::Minute),
        ) {
            // Sums of what was measured stay far below 2^64.
            let small = |cells: Option<Cells>| {
                let mut cells = cells?.map(|cell| cell >> 8);
                if cells[LIMITED] == 0 {
                    cells[3 * LIMIT..3 * LIMIT + 3].fill(0);
                }
                Some(cells)
            };
            let [a, b, c] = [a, b, c].map(|cells| [small(cells); Resource::COUNT]);
            prop_assert_eq!(combined(&a, &b), combined(&b, &a));
            prop_assert_eq!(combined(&combined(&a, &b), &c), combined(&a, &combined(&b, &c)));
        }
    }
}
