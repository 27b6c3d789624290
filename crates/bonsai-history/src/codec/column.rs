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
use super::varint::{Input, put, unzigzag, zigzag};

const ZERO: u8 = 0;
const SAME: u8 = 1;
const RUNS: u8 = 2;
const STEPS: u8 = 3;
const PACKED: u8 = 4;
const DIFFERENCES: u8 = 8;

/// Appends the column in the shortest way; returns the mode.
pub(super) fn write_column(column: &[u64], reference: Option<&[u64]>, out: &mut Vec<u8>) -> u8 {
    let (mut mode, mut shortest) = shortest(column);
    if let Some(reference) = reference.filter(|_| !shortest.is_empty()) {
        let pairs = column.iter().zip(reference);
        let differences: Vec<u64> = pairs.map(|(value, from)| zigzag(*value, *from)).collect();
        let (other, bytes) = self::shortest(&differences);
        if bytes.len() < shortest.len() {
            (mode, shortest) = (DIFFERENCES | other, bytes);
        }
    }
    out.extend(shortest);
    mode
}

fn shortest(column: &[u64]) -> (u8, Vec<u8>) {
    let first = column.first().copied().unwrap_or(0);
    if column.iter().all(|value| *value == first) {
        let mut out = Vec::new();
        if first == 0 {
            return (ZERO, out);
        }
        put(&mut out, first);
        return (SAME, out);
    }
    let ways = [
        (RUNS, runs(column)),
        (STEPS, steps(column)),
        (PACKED, packed(column)),
    ];
    let by_length = ways.into_iter().min_by_key(|(_, bytes)| bytes.len());
    by_length.unwrap_or_default()
}

fn runs(column: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for run in column.chunk_by(|a, b| a == b) {
        put(&mut out, run.len() as u64);
        put(&mut out, zigzag(run[0], before));
        before = run[0];
    }
    out
}

fn steps(column: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = 0;
    for &value in column {
        put(&mut out, zigzag(value, before));
        before = value;
    }
    out
}

fn packed(column: &[u64]) -> Vec<u8> {
    let least = column.iter().copied().min().unwrap_or(0);
    let most = column.iter().map(|value| value - least).max().unwrap_or(0);
    let bits = 64 - most.leading_zeros();
    let mut out = Vec::new();
    put(&mut out, least);
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
    out
}

/// Reads a column of so many numbers.
pub(super) fn read_column(
    mode: u8,
    input: &mut Input<'_>,
    length: usize,
    reference: Option<&[u64]>,
) -> Result<Vec<u64>, DecodeError> {
    let mut column = match mode & !DIFFERENCES {
        ZERO => vec![0; length],
        SAME => vec![input.number()?; length],
        RUNS => read_runs(input, length)?,
        STEPS => read_steps(input, length)?,
        PACKED => read_packed(input, length)?,
        _ => return Err(DecodeError::Range),
    };
    if mode & DIFFERENCES != 0 {
        let reference = reference.ok_or(DecodeError::Range)?;
        for (value, from) in column.iter_mut().zip(reference) {
            *value = unzigzag(*value, *from);
        }
    }
    Ok(column)
}

fn read_runs(input: &mut Input<'_>, length: usize) -> Result<Vec<u64>, DecodeError> {
    let mut column = Vec::with_capacity(length);
    let mut before = 0;
    while column.len() < length {
        let run = usize::try_from(input.number()?).map_err(|_| DecodeError::Range)?;
        if run == 0 || run > length - column.len() {
            return Err(DecodeError::Range);
        }
        before = unzigzag(input.number()?, before);
        column.resize(column.len() + run, before);
    }
    Ok(column)
}

fn read_steps(input: &mut Input<'_>, length: usize) -> Result<Vec<u64>, DecodeError> {
    let mut before = 0;
    let mut step = || {
        before = unzigzag(input.number()?, before);
        Ok(before)
    };
    (0..length).map(|_| step()).collect()
}

fn read_packed(input: &mut Input<'_>, length: usize) -> Result<Vec<u64>, DecodeError> {
    let least = input.number()?;
    let bits = usize::from(input.byte()?);
    if bits > 64 {
        return Err(DecodeError::Range);
    }
    let bytes = input.take((bits * length).div_ceil(8))?;
    let mask = if bits == 64 {
        u64::MAX
    } else {
        (1 << bits) - 1
    };
    let mut bytes = bytes.iter();
    let (mut rest, mut waiting) = (0_u128, 0);
    let mut next = || {
        while waiting < bits {
            rest |= u128::from(*bytes.next().ok_or(DecodeError::Short)?) << waiting;
            waiting += 8;
        }
        let low = u64::try_from(rest & u128::from(mask)).unwrap_or(u64::MAX);
        rest >>= bits;
        waiting -= bits;
        least.checked_add(low).ok_or(DecodeError::Range)
    };
    (0..length).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn again(column: &[u64], reference: Option<&[u64]>) -> usize {
        let mut bytes = Vec::new();
        let mode = write_column(column, reference, &mut bytes);
        let mut input = Input::new(&bytes);
        let read = read_column(mode, &mut input, column.len(), reference);
        assert_eq!(read.as_deref(), Ok(column));
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
