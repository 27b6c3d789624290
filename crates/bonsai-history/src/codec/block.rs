//! The slots of one service, as a value and as bytes.

use bonsai_units::Resource;

use super::column::{read_column, write_column};
use super::varint::{Input, put};
use super::{Cells, DecodeError, FIELDS, Level, SUMMARY, checked, checksum, combined, widened};

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

    /// The values of a second.
    pub(crate) fn values(&self, resource: usize, i: usize) -> [u64; FIELDS] {
        let columns = self.sections.get(resource).and_then(Option::as_ref);
        columns.map_or([0; FIELDS], |columns| {
            std::array::from_fn(|field| columns[field].get(i).copied().unwrap_or(0))
        })
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
