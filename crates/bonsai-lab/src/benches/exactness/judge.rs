//! How far what got through is from what was asked for.
//!
//! # Two views
//! - *Writes* are seen as the kernel counts them for the process, every 10 ms: the
//!   pieces of a large call count when they are moved.
//! - *Reads* are seen as the program gets them, at the return of each call: the
//!   bytes are fetched first and handed over when they are due.
//!
//! Either way a process has a series of points (instant, bytes until then), one
//! every 10 ms, by the program's own clock.

use super::flow::{Answer, BIN_NS, Operation};
use super::grid::Cell;
use crate::load::GAP_NS;

/// Points in 100 ms and in a second.
const TENTH: usize = 10;
const SECOND: usize = 100;

/// Pieces of a call that is paced are near what the rate gives in a quantum, 4.4 ms;
/// the longest are half as long again. At least a page.
const PIECE_PER_SECOND: u64 = 150;
const LEAST_PIECE: u64 = 4096;

/// Errors of what got through, as parts of what was asked for: 0.01 is 1 % too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Judged {
    /// Over the whole measurement, without what lies before the first and behind the
    /// last instant at which all processes were looked at together; `None` if there
    /// is not nearly all of it left.
    pub(super) total: Option<f64>,
    /// The time before, in which the flow sets in.
    pub(super) warm: f64,
    /// The worst aligned second; `None` if the machine was starved in all.
    pub(super) second: Option<f64>,
    /// The worst 100 ms, beginning at any multiple of 10 ms; likewise.
    pub(super) tenth: Option<f64>,
    /// The worst 100 ms, starved or not.
    pub(super) tenth_of_all: f64,
    /// The smallest process's share of the largest one's.
    pub(super) fairness: f64,
    /// Windows of 100 ms that were left out, because the machine was starved.
    pub(super) starved: usize,
}

/// What is allowed, as parts of what was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    pub(super) total: f64,
    pub(super) second: f64,
    pub(super) tenth: f64,
    pub(super) fairness: f64,
}

/// The measurement that is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Instant of its first point, ns of the monotonic clock.
    pub(super) start_ns: u64,
    /// Points before it, and in it.
    pub(super) warm: usize,
    pub(super) length: usize,
}

impl Allowed {
    /// 0.1 % in total, 1 % in a second, 3 % or one call in 100 ms, fairness 0.97.
    /// What is in the hands of one call when a window ends cannot be held against
    /// the limit: a piece of it, or all of a small one.
    pub(super) fn of(cell: &Cell, span: &Span) -> Self {
        let piece = (cell.rate / PIECE_PER_SECOND / LEAST_PIECE * LEAST_PIECE).max(LEAST_PIECE);
        let in_hand = match cell.operation {
            Operation::WriteFile => cell.size.min(piece),
            Operation::Write | Operation::Read | Operation::ReadFile => cell.size,
        } as f64;
        let part = |bytes: f64, seconds: f64| bytes / (cell.rate as f64 * seconds);
        let seconds = span.length as f64 / SECOND as f64;
        // Each thread of a process may be one call ahead or behind.
        let share = seconds / f64::from(cell.processes * cell.threads);
        Self {
            total: part(in_hand, seconds).max(0.001),
            second: part(in_hand, 1.0).max(0.01),
            tenth: part(cell.size as f64, 0.1).max(0.03),
            fairness: (1.0 - part(2.0 * in_hand, share)).clamp(0.0, 0.97),
        }
    }
}

/// Points (instant since the start in ns, bytes until then).
type Series = Vec<(u64, u64)>;

fn series(cell: &Cell, answer: &Answer) -> Series {
    if matches!(cell.operation, Operation::Write | Operation::WriteFile) {
        return answer.kernel.clone();
    }
    let mut sum = 0;
    let ends = answer.bins.iter().zip(1..).map(|(bytes, i)| {
        sum += bytes;
        (i * BIN_NS, sum)
    });
    [(0, 0)].into_iter().chain(ends).collect()
}

/// Bytes per second between two points; `None` if one is missing.
fn rate_between(series: &Series, from: usize, to: usize) -> Option<f64> {
    let ((t0, v0), (t1, v1)) = (series.get(from)?, series.get(to)?);
    Some(v1.saturating_sub(*v0) as f64 * 1e9 / t1.saturating_sub(*t0).max(1) as f64)
}

/// Judges a measurement during which the control thread had `gaps`. `None` if
/// points are missing.
pub(super) fn judge(
    cell: &Cell,
    span: &Span,
    answers: &[Answer],
    gaps: &[(u64, u64)],
) -> Option<Judged> {
    let all: Vec<Series> = answers.iter().map(|answer| series(cell, answer)).collect();
    let end = span.warm + span.length;
    if all.iter().any(|series| series.len() <= end) {
        return None;
    }
    let error = |from: usize, to: usize| -> Option<f64> {
        let rates: Option<Vec<f64>> = all
            .iter()
            .map(|series| rate_between(series, from, to))
            .collect();
        Some(rates?.iter().sum::<f64>() / cell.rate as f64 - 1.0)
    };
    let is_late = |point: usize| {
        let late = |series: &Series| series[point].0.abs_diff(point as u64 * BIN_NS) > GAP_NS;
        all.iter().any(late)
    };
    let whole = || {
        let from = (span.warm..end).find(|point| !is_late(*point))?;
        let to = (from..=end).rfind(|point| !is_late(*point))?;
        (to - from >= span.length * 9 / 10).then_some((from, to))
    };
    let starved = |from: usize, to: usize| {
        let at = |point: usize| span.start_ns + point as u64 * BIN_NS;
        let gap = gaps
            .iter()
            .any(|(since, late)| *since < at(to) && since + late + GAP_NS > at(from));
        gap || is_late(from) || is_late(to)
    };
    let worse = |a: Option<f64>, b: f64| Some(a.filter(|a| a.abs() >= b.abs()).unwrap_or(b));
    let mut judged = Judged {
        total: whole().and_then(|(from, to)| error(from, to)),
        warm: error(0, span.warm)?,
        second: None,
        tenth: None,
        tenth_of_all: 0.0,
        fairness: 1.0,
        starved: 0,
    };
    for from in (span.warm..=end - SECOND.min(span.length)).step_by(SECOND) {
        if !starved(from, from + SECOND) {
            judged.second = worse(judged.second, error(from, from + SECOND)?);
        }
    }
    let mut all_tenths = None;
    for from in span.warm..=end - TENTH {
        let found = error(from, from + TENTH)?;
        all_tenths = worse(all_tenths, found);
        if starved(from, from + TENTH) {
            judged.starved += 1;
        } else {
            judged.tenth = worse(judged.tenth, found);
        }
    }
    judged.tenth_of_all = all_tenths.unwrap_or(0.0);
    let shares: Option<Vec<f64>> = all
        .iter()
        .map(|series| rate_between(series, span.warm, end))
        .collect();
    judged.fairness = bonsai_stats::min_max_ratio(&shares?)?;
    Some(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell {
        rate: 1_000_000,
        size: 1_000,
        threads: 1,
        processes: 2,
        operation: Operation::Write,
    };
    const SPAN: Span = Span {
        start_ns: 1_000_000_000,
        warm: 50,
        length: 200,
    };

    /// Each process gets `bytes(i)` in the i-th 10 ms.
    fn answers(bytes: impl Fn(u64) -> u64) -> Vec<Answer> {
        let bins: Vec<u64> = (0..260).map(bytes).collect();
        let mut sum = 0;
        let kernel = (0..260_u64)
            .map(|i| {
                let point = (i * BIN_NS, sum);
                sum += bins[usize::try_from(i).expect("small")];
                point
            })
            .collect();
        vec![
            Answer {
                calls: 0,
                cpu_ns: 0,
                nivcsw: 0,
                late_ns: 0,
                bins,
                kernel
            };
            2
        ]
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    fn is(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| near(a, b))
    }

    #[test]
    fn an_exact_flow_has_no_error() {
        let found = judge(&CELL, &SPAN, &answers(|_| 5_000), &[]).expect("judged");
        assert!(
            is(found.total, 0.0) && is(found.second, 0.0) && is(found.tenth, 0.0),
            "{found:?}"
        );
        assert!(near(found.fairness, 1.0));
        let read = Cell {
            operation: Operation::Read,
            ..CELL
        };
        assert_eq!(judge(&read, &SPAN, &answers(|_| 5_000), &[]), Some(found));
    }

    #[test]
    fn a_burst_shows_in_each_window_it_is_in() {
        // 10 ms of double rate: 10 % of 100 ms, 1 % of a second, 0.5 % of two.
        let found = judge(
            &CELL,
            &SPAN,
            &answers(|i| if i == 120 { 10_000 } else { 5_000 }),
            &[],
        )
        .expect("judged");
        assert!(
            is(found.total, 0.005) && is(found.second, 0.01) && is(found.tenth, 0.1),
            "{found:?}"
        );
    }

    #[test]
    fn starved_windows_are_left_out_and_counted() {
        let stalled = answers(|i| if i == 120 { 0 } else { 5_000 });
        let gap = (SPAN.start_ns + 1_200_000_000, 9_000_000);
        let found = judge(&CELL, &SPAN, &stalled, &[gap]).expect("judged");
        assert!(
            is(found.tenth, 0.0) && near(found.tenth_of_all, -0.1),
            "{found:?}"
        );
        assert_eq!(found.starved, 11);
        assert!(is(found.total, -0.005), "the total is what it is");
        let always: Vec<_> = (0..260)
            .map(|i| (SPAN.start_ns + i * BIN_NS, 3_000_000))
            .collect();
        let found = judge(&CELL, &SPAN, &stalled, &always).expect("judged");
        assert_eq!(
            (found.second, found.tenth, found.starved),
            (None, None, 191)
        );
    }

    #[test]
    fn one_call_is_allowed() {
        let allowed = Allowed::of(&CELL, &SPAN);
        assert!(
            near(allowed.total, 0.001) && near(allowed.second, 0.01) && near(allowed.tenth, 0.03)
        );
        let large = Cell {
            size: 65_536,
            operation: Operation::WriteFile,
            ..CELL
        };
        let allowed = Allowed::of(&large, &SPAN);
        // A piece of 4096 bytes of 2 MB; a call of 65 536 bytes of 100 kB.
        assert!(
            near(allowed.total, 0.002_048) && near(allowed.tenth, 0.655_36),
            "{allowed:?}"
        );
        assert!(near(allowed.fairness, 0.97) || allowed.fairness < 0.97);
    }

    #[test]
    fn unfair_shares_are_seen() {
        let mut both = answers(|_| 5_000);
        both[1] = answers(|_| 4_000)[0].clone();
        let found = judge(&CELL, &SPAN, &both, &[]).expect("judged");
        assert!(near(found.fairness, 0.8));
        assert!(
            judge(
                &CELL,
                &Span {
                    length: 900,
                    ..SPAN
                },
                &both,
                &[]
            )
            .is_none(),
            "too short"
        );
    }
}
