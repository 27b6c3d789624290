//! The slots of one service, as a value and as bytes.

use bonsai_units::Resource;

use super::column::{MOST, read_column, write_column};
use super::varint::{Input, put, put_length};
use super::{
    Cells, DecodeError, FIELDS, Level, SUMMARY, added, checked, checksum, combined, widened,
};

/// The slots of one service in one span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Which slots there are, ascending, and how many of their seconds were observed.
    pub(crate) slots: Vec<(u8, u16)>,
    /// Of each resource its cells, slot by slot.
    sections: [Option<Vec<u64>>; Resource::COUNT],
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
        self.slots.push((slot, seconds));
        let width = level.columns();
        let all = self.slots.len() * width;
        for (section, cells) in self.sections.iter_mut().zip(cells) {
            if let Some(cells) = cells {
                let section = section.get_or_insert_default();
                section.resize(all - width, 0);
                section.extend_from_slice(&cells[..width]);
            } else if let Some(section) = section {
                section.resize(all, 0);
            }
        }
    }

    /// The cells of a resource in the `i`th slot, as many as the tier has; none where all of them
    /// are zero throughout the block.
    fn row(&self, resource: usize, i: usize) -> Option<&[u64]> {
        let section = self.sections.get(resource)?.as_ref()?;
        let width = section.len().checked_div(self.slots.len())?;
        section.get(i * width..(i + 1) * width)
    }

    /// The same, with zeros for those that the tier does not have.
    pub(crate) fn cells(&self, resource: usize, i: usize) -> Option<Cells> {
        let row = self.row(resource, i)?;
        let mut cells = [0; SUMMARY];
        cells[..row.len()].copy_from_slice(row);
        Some(cells)
    }

    /// The values of a second.
    pub(crate) fn values(&self, resource: usize, i: usize) -> [u64; FIELDS] {
        let row = self.row(resource, i).and_then(|row| row.first_chunk());
        row.copied().unwrap_or_default()
    }

    /// The cells of all resources in the `i`th slot.
    fn all_cells(&self, i: usize) -> [Option<Cells>; Resource::COUNT] {
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
        let seconds = self.slots.iter();
        let seconds = seconds.fold(0_u16, |sum, (_, n)| sum.saturating_add(*n));
        let total = std::array::from_fn(|resource| {
            let cells = (0..self.slots.len()).map_while(|i| self.cells(resource, i));
            let cells = cells.map(|cells| match level {
                Level::Second => widened(&cells),
                _ => cells,
            });
            cells.reduce(|sum, cells| added(&sum, &cells))
        });
        (seconds, total)
    }

    /// The bytes of it.
    pub(crate) fn encoded(&self, level: Level) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(level, &mut out);
        out
    }

    /// Appends the bytes of it.
    pub(crate) fn encode(&self, level: Level, out: &mut Vec<u8>) {
        let from = out.len();
        out.push(level.tag());
        let full = u16::try_from(level.slot_seconds()).unwrap_or(u16::MAX);
        if self.slots.len() == level.slots() && self.slots.iter().all(|(_, n)| *n == full) {
            out.push(0);
        } else if let [(slot, seconds)] = self.slots[..] {
            out.extend([2, slot]);
            if level != Level::Second {
                put(out, u64::from(seconds));
            }
        } else {
            out.push(1);
            let bits = self
                .slots
                .iter()
                .fold(0_u64, |bits, (slot, _)| bits | 1 << slot);
            out.extend(bits.to_le_bytes());
            if level != Level::Second {
                let mut column = [0; MOST];
                for (cell, (_, n)) in column.iter_mut().zip(&self.slots) {
                    *cell = u64::from(*n);
                }
                let mode = out.len();
                out.push(0);
                out[mode] = write_column(&column[..self.slots.len()], None, out);
            }
        }
        let mask = self.sections.iter().enumerate();
        out.push(mask.fold(0, |mask, (i, s)| mask | u8::from(s.is_some()) << i));
        for section in self.sections.iter().flatten() {
            write_section(section, level, self.slots.len(), out);
        }
        let sum = checksum(&out[from..]);
        out.extend(sum.to_le_bytes());
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
        let mut block = Self::default();
        let mut input = opened(bytes, level)?;
        read_slots(&mut input, level, &mut block.slots)?;
        block.read_sections(input, level, 0, only)?;
        Ok(block)
    }

    /// Puts the one slot that these bytes have behind all others; leaves it out where it is not
    /// behind them.
    ///
    /// # Errors
    /// They are no block, or one of more slots. The block is as it was.
    pub(crate) fn append(
        &mut self,
        bytes: &[u8],
        level: Level,
        only: Option<usize>,
    ) -> Result<(), DecodeError> {
        let mut input = opened(bytes, level)?;
        let before = self.slots.len();
        let last = self.slots.last().map(|(slot, _)| *slot);
        let there = self.sections.each_ref().map(Option::is_some);
        let done = read_slots(&mut input, level, &mut self.slots).and_then(|()| {
            match self.slots[before..] {
                [(slot, _)] if last.is_none_or(|last| last < slot) => self
                    .read_sections(input, level, before, only)
                    .map(|()| true),
                [_] => Ok(false),
                _ => Err(DecodeError::Range),
            }
        });
        if done != Ok(true) {
            self.slots.truncate(before);
            for (section, there) in self.sections.iter_mut().zip(there) {
                match section {
                    Some(cells) if there => cells.truncate(before * level.columns()),
                    _ => *section = None,
                }
            }
        }
        done.map(drop)
    }

    /// Reads the sections of slots that were added to the first `before`.
    fn read_sections(
        &mut self,
        mut input: Input<'_>,
        level: Level,
        before: usize,
        only: Option<usize>,
    ) -> Result<(), DecodeError> {
        let mask = input.byte()?;
        if mask >> Resource::COUNT != 0 {
            return Err(DecodeError::Range);
        }
        let all = self.slots.len() * level.columns();
        for (i, section) in self.sections.iter_mut().enumerate() {
            let mut part = None;
            if mask & 1 << i != 0 {
                let length = input.length()?;
                part = Some(Input::new(input.take(length)?));
            }
            match part.filter(|_| only.is_none_or(|only| only == i)) {
                Some(part) => {
                    let section = section.get_or_insert_default();
                    section.resize(all, 0);
                    let new = &mut section[before * level.columns()..];
                    read_section(part, level, self.slots.len() - before, new)?;
                }
                None => {
                    if let Some(section) = section {
                        section.resize(all, 0);
                    }
                }
            }
        }
        if input.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Range)
        }
    }
}

/// What is behind the tag of a block of that tier.
fn opened(bytes: &[u8], level: Level) -> Result<Input<'_>, DecodeError> {
    let mut input = Input::new(checked(bytes)?);
    if input.byte()? == level.tag() {
        Ok(input)
    } else {
        Err(DecodeError::Tag)
    }
}

/// Adds the slots of a block.
fn read_slots(
    input: &mut Input<'_>,
    level: Level,
    slots: &mut Vec<(u8, u16)>,
) -> Result<(), DecodeError> {
    let full = u16::try_from(level.slot_seconds()).unwrap_or(u16::MAX);
    let number = u8::try_from(level.slots()).unwrap_or(u8::MAX);
    match input.byte()? {
        0 => slots.extend((0..number).map(|slot| (slot, full))),
        1 => {
            let bits = input.word()?;
            if bits >> number != 0 {
                return Err(DecodeError::Range);
            }
            let before = slots.len();
            let there = (0..number).filter(|slot| bits >> slot & 1 == 1);
            slots.extend(there.map(|slot| (slot, full)));
            if level != Level::Second {
                let new = &mut slots[before..];
                let mut column = [0; MOST];
                let column = &mut column[..new.len()];
                let mode = input.byte()?;
                read_column(mode, input, column, None)?;
                for (slot, n) in new.iter_mut().zip(column) {
                    slot.1 = u16::try_from(*n).map_err(|_| DecodeError::Range)?;
                }
            }
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
            slots.push((slot, seconds));
        }
        _ => return Err(DecodeError::Range),
    }
    Ok(())
}

/// Copies a column out of cells that stand slot by slot.
fn column_of<'a>(
    section: &[u64],
    width: usize,
    at: usize,
    column: &'a mut [u64; MOST],
) -> &'a mut [u64] {
    let mut length = 0;
    for (cell, row) in column.iter_mut().zip(section.chunks_exact(width)) {
        *cell = row[at];
        length += 1;
    }
    &mut column[..length]
}

fn write_section(section: &[u64], level: Level, slots: usize, out: &mut Vec<u8>) {
    let width = level.columns();
    let from = out.len();
    out.resize(from + width.div_ceil(2), 0);
    let (mut column, mut other) = ([0; MOST], [0; MOST]);
    for at in 0..width {
        let column = column_of(section, width, at, &mut column);
        debug_assert_eq!(column.len(), slots);
        let reference = level.reference(at);
        let reference = reference.map(|at| &*column_of(section, width, at, &mut other));
        let mode = write_column(column, reference, out);
        out[from + at / 2] |= mode << (4 * (at % 2));
    }
    put_length(out, from);
}

/// Reads the columns of so many slots into cells that stand slot by slot.
fn read_section(
    mut part: Input<'_>,
    level: Level,
    slots: usize,
    section: &mut [u64],
) -> Result<(), DecodeError> {
    let width = level.columns();
    let modes = part.take(width.div_ceil(2))?;
    let (mut column, mut other) = ([0; MOST], [0; MOST]);
    for at in 0..width {
        let mode = modes[at / 2] >> (4 * (at % 2)) & 15;
        let column = &mut column[..slots];
        let reference = level.reference(at);
        let reference = reference.map(|at| &*column_of(section, width, at, &mut other));
        read_column(mode, &mut part, column, reference)?;
        for (row, cell) in section.chunks_exact_mut(width).zip(column) {
            row[at] = *cell;
        }
    }
    if part.is_empty() {
        Ok(())
    } else {
        Err(DecodeError::Range)
    }
}
