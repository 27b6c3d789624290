//! Which combinations are measured.

use serde::{Deserialize, Serialize};

use super::flow::Operation;
use crate::context::Effort;
use crate::study;

/// One combination.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct Cell {
    /// Bytes per second.
    pub(super) rate: u64,
    /// Bytes of a call.
    pub(super) size: u64,
    /// Threads of each process.
    pub(super) threads: u32,
    /// Processes on the bucket.
    pub(super) processes: u32,
    pub(super) operation: Operation,
}

const RATES: [u64; 7] = [
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];
const SIZES: [u64; 7] = [1, 64, 1448, 4096, 65_536, 1 << 20, 1 << 24];
/// Threads and processes, in an order that mixes both.
const SHAPES: [(u32, u32); 12] = [
    (1, 1),
    (16, 4),
    (4, 16),
    (64, 1),
    (1, 4),
    (16, 16),
    (4, 1),
    (64, 4),
    (1, 16),
    (16, 1),
    (4, 4),
    (64, 16),
];

/// No more calls a second than this: they alone fill a core.
const MOST_CALLS: u64 = 2_000_000;
/// A page is never split.
const LARGEST_SMALL: u64 = 4096;
/// A call takes no longer than the measurement.
const LONGEST_S: u64 = 5;

impl Cell {
    pub(super) fn describe(&self) -> String {
        format!(
            "{} in {} of {}, {} x {}",
            study::rate(self.rate),
            self.operation,
            study::size(self.size),
            self.threads,
            self.processes
        )
    }
}

/// Why rate and size are not measured together.
pub(super) fn refusal(rate: u64, size: u64) -> Option<String> {
    if rate / size > MOST_CALLS {
        return Some(format!(
            "{} calls a second are more than {MOST_CALLS}",
            rate / size
        ));
    }
    if size > rate * LONGEST_S {
        return Some(format!(
            "one call takes {} s, longer than {LONGEST_S} s",
            size / rate
        ));
    }
    None
}

/// How so many bytes are written: large calls to a file, where they can be paced in
/// pieces.
fn writing(size: u64) -> Operation {
    if size > LARGEST_SMALL {
        Operation::WriteFile
    } else {
        Operation::Write
    }
}

/// Every rate with every size, each with the next shape in turn: each shape is
/// met about three times, each with other rates and sizes. Reads, and large calls
/// that a device takes whole, are measured at a few of them only. With
/// [`Effort::Full`] every shape with every rate and size.
pub(super) fn cells(effort: Effort) -> (Vec<Cell>, Vec<(String, String)>) {
    let mut cells = Vec::new();
    let mut refused = Vec::new();
    let mut turn = 0;
    for rate in RATES {
        for size in SIZES {
            if let Some(why) = refusal(rate, size) {
                refused.push((
                    format!("{} in calls of {}", study::rate(rate), study::size(size)),
                    why,
                ));
                continue;
            }
            let cell = |(threads, processes)| Cell {
                rate,
                size,
                threads,
                processes,
                operation: writing(size),
            };
            if effort == Effort::Full {
                cells.extend(SHAPES.map(cell));
            } else {
                // 5 and 12 have no common divisor.
                cells.push(cell(SHAPES[turn * 5 % SHAPES.len()]));
            }
            turn += 1;
        }
    }
    let other = |operation, rate, size, threads, processes| Cell {
        rate,
        size,
        threads,
        processes,
        operation,
    };
    let others = [
        other(Operation::Read, 10_000, 1, 1, 1),
        other(Operation::Read, 1_000_000, 1448, 4, 4),
        other(Operation::ReadFile, 10_000_000, 4096, 16, 1),
        other(Operation::ReadFile, 10_000_000, 1 << 20, 1, 1),
        other(Operation::ReadFile, 100_000_000, 65_536, 1, 16),
        other(Operation::Read, 1_000_000_000, 65_536, 4, 1),
        other(Operation::Write, 10_000_000, 65_536, 4, 4),
        other(Operation::Write, 100_000_000, 1 << 20, 4, 1),
    ];
    if effort == Effort::Quick {
        let write = |rate, size, threads, processes| Cell {
            rate,
            size,
            threads,
            processes,
            operation: writing(size),
        };
        cells = vec![
            write(10_000, 64, 1, 1),
            write(1_000_000, 1448, 16, 4),
            write(10_000_000, 65_536, 4, 4),
            write(1_000_000_000, 65_536, 1, 4),
            others[2],
        ];
        refused.clear();
    } else {
        cells.extend(others);
    }
    (cells, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rate_size_and_shape_is_met() {
        let (cells, refused) = cells(Effort::Normal);
        let writes: Vec<_> = cells
            .iter()
            .filter(|c| c.operation == writing(c.size))
            .collect();
        assert_eq!(writes.len() + refused.len(), RATES.len() * SIZES.len());
        let rates: BTreeSet<_> = writes.iter().map(|c| c.rate).collect();
        let sizes: BTreeSet<_> = writes.iter().map(|c| c.size).collect();
        let shapes: BTreeSet<_> = writes.iter().map(|c| (c.threads, c.processes)).collect();
        assert_eq!(
            (rates.len(), sizes.len(), shapes.len()),
            (RATES.len(), SIZES.len(), SHAPES.len())
        );
        let (full, _) = super::cells(Effort::Full);
        assert_eq!(full.len(), writes.len() * SHAPES.len() + 8);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(refusal(1_000_000_000, 64).is_some(), "too many calls");
        assert!(refusal(1_000_000, 1 << 24).is_some(), "17 s a call");
        assert!(refusal(1_000, 4096).is_none());
        assert!(refusal(1_000_000_000, 1 << 24).is_none());
    }
}
