//! Numbers of the same kind, one for each slot: written in the shortest of a few ways.
//!
//! | mode | what follows |
//! |---|---|
//! | 0 | nothing: all are zero |
//! | 1 | the number that all are |
//! | 2 | pairs of how often, and by how much more or less than the one before (from 0) |
//! | 3 | of each by how much more or less than the one before (from 0) |
//! | 4 | the least, a number of bits, and by how much each is more, in that many bits |
//! | 8 + mode | the same of the differences to another column, as small numbers |

use super::DecodeError;
use super::varint::{Input, length_of, put, unzigzag, zigzag};

const ZERO: u8 = 0;
const SAME: u8 = 1;
const RUNS: u8 = 2;
const STEPS: u8 = 3;
const PACKED: u8 = 4;
const DIFFERENCES: u8 = 8;

/// The most numbers that a column has.
pub(super) const MOST: usize = 60;

/// Appends the column in the shortest way; returns the mode.
pub(super) fn write_column(column: &[u64], reference: Option<&[u64]>, out: &mut Vec<u8>) -> u8 {
    let (mode, length) = shortest(column);
    if let Some(reference) = reference.filter(|_| length > 0) {
        let mut differences = [0; MOST];
        let differences = &mut differences[..column.len()];
        for (difference, (value, from)) in differences.iter_mut().zip(column.iter().zip(reference))
        {
            *difference = zigzag(*value, *from);
        }
        let (other, less) = shortest(differences);
        if less < length {
            write(other, differences, out);
            return DIFFERENCES | other;
        }
    }
    write(mode, column, out);
    mode
}

/// The shortest way, and how many bytes it takes: nothing is written that is then thrown away.
fn shortest(column: &[u64]) -> (u8, usize) {
    let first = column.first().copied().unwrap_or(0);
    if column.iter().all(|value| *value == first) {
        return if first == 0 {
            (ZERO, 0)
        } else {
            (SAME, length_of(first))
        };
    }
    let (mut steps, mut runs) = (0, 0);
    let (mut before, mut run) = (0, 0_u64);
    let (mut least, mut most) = (first, first);
    for &value in column {
        let step = length_of(zigzag(value, before));
        steps += step;
        // The first is a run of its own, also where it is zero.
        if run > 0 && value == before {
            run += 1;
        } else {
            runs += step + if run > 0 { length_of(run) } else { 0 };
            run = 1;
        }
        before = value;
        (least, most) = (least.min(value), most.max(value));
    }
    runs += length_of(run);
    let packed = length_of(least) + 1 + (bits_of(most - least) * column.len()).div_ceil(8);
    let ways = [(RUNS, runs), (STEPS, steps), (PACKED, packed)];
    let by_length = ways.into_iter().min_by_key(|(_, length)| *length);
    by_length.unwrap_or_default()
}

const fn bits_of(most: u64) -> usize {
    (u64::BITS - most.leading_zeros()) as usize
}

/// Appends the column in one of the ways.
fn write(mode: u8, column: &[u64], out: &mut Vec<u8>) {
    match mode {
        SAME => put(out, column[0]),
        RUNS => {
            let mut before = 0;
            for run in column.chunk_by(|a, b| a == b) {
                put(out, run.len() as u64);
                put(out, zigzag(run[0], before));
                before = run[0];
            }
        }
        STEPS => {
            let mut before = 0;
            for &value in column {
                put(out, zigzag(value, before));
                before = value;
            }
        }
        PACKED => pack(column, out),
        _ => {}
    }
}

fn pack(column: &[u64], out: &mut Vec<u8>) {
    let least = column.iter().copied().min().unwrap_or(0);
    let most = column.iter().map(|value| value - least).max().unwrap_or(0);
    let bits = bits_of(most);
    put(out, least);
    out.push(u8::try_from(bits).unwrap_or(64));
    // What has not become bytes yet; at most 7 + 64 bits.
    let (mut rest, mut waiting) = (0_u128, 0);
    for value in column {
        rest |= u128::from(value - least) << waiting;
        waiting += bits;
        while waiting >= 8 {
            out.push(rest.to_le_bytes()[0]);
            rest >>= 8;
            waiting -= 8;
        }
    }
    if waiting > 0 {
        out.push(rest.to_le_bytes()[0]);
    }
}

/// Reads a column into all of these numbers.
pub(super) fn read_column(
    mode: u8,
    input: &mut Input<'_>,
    column: &mut [u64],
    reference: Option<&[u64]>,
) -> Result<(), DecodeError> {
    match mode & !DIFFERENCES {
        ZERO => column.fill(0),
        SAME => column.fill(input.number()?),
        RUNS => read_runs(input, column)?,
        STEPS => {
            let mut before = 0;
            for value in column.iter_mut() {
                before = unzigzag(input.number()?, before);
                *value = before;
            }
        }
        PACKED => read_packed(input, column)?,
        _ => return Err(DecodeError::Range),
    }
    if mode & DIFFERENCES != 0 {
        let reference = reference.ok_or(DecodeError::Range)?;
        for (value, from) in column.iter_mut().zip(reference) {
            *value = unzigzag(*value, *from);
        }
    }
    Ok(())
}

fn read_runs(input: &mut Input<'_>, column: &mut [u64]) -> Result<(), DecodeError> {
    let mut rest = column;
    let mut before = 0;
    while !rest.is_empty() {
        let run = usize::try_from(input.number()?).map_err(|_| DecodeError::Range)?;
        if run == 0 || run > rest.len() {
            return Err(DecodeError::Range);
        }
        before = unzigzag(input.number()?, before);
        let (these, others) = rest.split_at_mut(run);
        these.fill(before);
        rest = others;
    }
    Ok(())
}

fn read_packed(input: &mut Input<'_>, column: &mut [u64]) -> Result<(), DecodeError> {
    let least = input.number()?;
    let bits = usize::from(input.byte()?);
    if bits > 64 {
        return Err(DecodeError::Range);
    }
    let bytes = input.take((bits * column.len()).div_ceil(8))?;
    let mask = if bits == 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    };
    let mut bytes = bytes.iter();
    let (mut rest, mut waiting) = (0_u128, 0);
    for value in column {
        while waiting < bits {
            rest |= u128::from(*bytes.next().ok_or(DecodeError::Short)?) << waiting;
            waiting += 8;
        }
        let low = u64::try_from(rest & u128::from(mask)).unwrap_or(u64::MAX);
        rest >>= bits;
        waiting -= bits;
        *value = least.checked_add(low).ok_or(DecodeError::Range)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn again(column: &[u64], reference: Option<&[u64]>) -> usize {
        let mut bytes = Vec::new();
        let mode = write_column(column, reference, &mut bytes);
        if mode & DIFFERENCES == 0 {
            assert_eq!(shortest(column), (mode, bytes.len()), "as long as was said");
        }
        let mut input = Input::new(&bytes);
        let mut read = vec![0; column.len()];
        assert_eq!(read_column(mode, &mut input, &mut read, reference), Ok(()));
        assert_eq!(read, column);
        assert!(input.is_empty());
        bytes.len()
    }

    #[test]
    fn the_shortest_way_is_taken() {
        assert_eq!(again(&[0; 60], None), 0);
        assert_eq!(again(&[100; 60], None), 1);
        let mut step = [1_000_000; 60];
        step[30..].fill(2_000_000);
        assert!(again(&step, None) <= 8, "two runs");
        let noise: Vec<u64> = (0..60).map(|i| 5_000_000 + i * 7919 % 1024).collect();
        assert!(again(&noise, None) <= 4 + 1 + 75, "ten bits each");
        assert_eq!(again(&noise, Some(&noise)), 0, "the same as another");
        let extremes = [0, u64::MAX, 0, u64::MAX - 1, 1];
        again(&extremes, Some(&[u64::MAX, 0, 5, 6, 7]));
    }

    proptest! {
        #[test]
        fn a_column_is_read_back(
            column in prop::collection::vec(prop_oneof![Just(0), 0..100_u64, any::<u64>()], 0..60),
            other in prop::collection::vec(any::<u64>(), 60),
        ) {
            again(&column, None);
            again(&column, Some(&other[..column.len()]));
        }
    }
}
