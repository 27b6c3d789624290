//! From rounds to differences and verdicts.

use std::collections::BTreeMap;

use bonsai_stats::{Interval, MedianEstimate, median};

use super::{Cell, Generation, OPERATIONS, Operation, Round, Variant};
use crate::load::{Conditions, doubt_of};
use crate::record::Sample;
use crate::report::{Section, Table, Verdict};
use crate::study::{Pairing, median_or_zero, signed_with_interval, with_interval};

/// What a call under no limit may cost, ns.
const UNLIMITED_MOST_NS: f64 = 3.0;

/// Which part of a batch's pair is looked at.
#[derive(Clone, Copy)]
enum Time {
    Wall,
    Cpu,
}

/// ns per operation in a round.
fn per_operation(
    generation: &Generation,
    round: &Round,
    variant: Variant,
    time: Time,
) -> Option<f64> {
    let batches = round.batches.get(&variant)?;
    let times: Vec<f64> = batches
        .iter()
        .map(|(wall, cpu)| match time {
            Time::Wall => *wall as f64,
            Time::Cpu => *cpu as f64,
        })
        .collect();
    Some(median(&times)? / generation.count as f64)
}

/// ns per operation of each generation: of the bare program, and of a variant.
fn pairs(
    generations: &[&Generation],
    variant: Variant,
    time: Time,
    empty_ns: f64,
) -> Vec<(f64, f64)> {
    let of = |generation: &&Generation| {
        let rounds: Vec<(f64, f64)> = generation
            .rounds
            .iter()
            .filter_map(|round| {
                let of = |variant| per_operation(generation, round, variant, time);
                Some((of(Variant::Bare)?, of(variant)?))
            })
            .collect();
        let bares: Vec<f64> = rounds.iter().map(|(bare, _)| *bare).collect();
        let added: Vec<f64> = rounds
            .iter()
            .map(|(bare, variant)| variant - bare)
            .collect();
        let bare = median(&bares)? - empty_ns;
        Some((bare, bare + median(&added)?))
    };
    generations.iter().filter_map(of).collect()
}

pub(super) fn study(samples: &[Sample<Vec<Generation>>], seed: u64) -> Section {
    let mut section = Section::default();
    let mut cells: BTreeMap<&Cell, (Vec<&Generation>, Vec<&Conditions>)> = BTreeMap::new();
    for sample in samples {
        let Some(first) = sample.data.first() else {
            continue;
        };
        let (generations, conditions) = cells.entry(&first.cell).or_default();
        generations.extend(&sample.data);
        conditions.push(&sample.conditions);
    }
    let of_nothing: Vec<f64> = cells
        .iter()
        .filter(|(cell, _)| cell.operation == "nothing")
        .flat_map(|(_, (generations, _))| pairs(generations, Variant::Bare, Time::Cpu, 0.0))
        .map(|(bare, _)| bare)
        .collect();
    let empty_ns = median_or_zero(&of_nothing);
    section.text(format!(
        "CPU time per operation, ns, of the bare program, and what each variant adds to it: the \
         median over processes started anew. fread and fwrite of 64 bytes make one system \
         call of 4096 bytes every 64 operations; `empty` is close(-1), the cheapest call that is \
         counted; getppid is one that is not. The loop's own {empty_ns:.2} ns are taken off."
    ));
    let mut table = Table::new(&[
        "operation",
        "threads x processes",
        "bare",
        "no limit",
        "first door",
        "both doors",
        "per stream",
        "ratio",
        "wall ratio",
        "doubt",
    ]);
    for operation in &OPERATIONS {
        for (cell, (generations, conditions)) in cells
            .iter()
            .filter(|(cell, _)| cell.operation == operation.name)
        {
            let pair =
                |variant| Pairing::of(&pairs(generations, variant, Time::Cpu, empty_ns), seed);
            let (Some(none), Some(first), Some(both)) = (
                pair(Variant::NoLimit),
                pair(Variant::First),
                pair(Variant::Both),
            ) else {
                continue;
            };
            // Records of earlier versions have none.
            let streams = pair(Variant::Streams);
            let wall = Pairing::of(
                &pairs(generations, Variant::Both, Time::Wall, empty_ns),
                seed,
            );
            let mut doubt = doubt_of(conditions.iter().copied());
            let unshaped: u64 = generations.iter().map(|g| g.unshaped).sum();
            if unshaped > 0 {
                doubt = Some(format!("{unshaped} calls were not decided on"));
            }
            let wall = wall.map_or_else(String::new, |wall| format!("{:.4}", wall.ratio.median));
            for (name, times) in operation.shown() {
                let added = |pairing: &Pairing| {
                    signed_with_interval(&scaled(&pairing.difference, times), 2)
                };
                table.row(vec![
                    name,
                    format!("{} x {}", cell.threads, cell.processes),
                    format!("{:.1}", both.base.median * times),
                    added(&none),
                    added(&first),
                    added(&both),
                    streams.as_ref().map_or_else(String::new, added),
                    with_interval(&both.ratio, 4),
                    wall.clone(),
                    doubt.clone().unwrap_or_default(),
                ]);
            }
            promises(&mut section, operation, cell, &none, &both, doubt.as_ref());
        }
    }
    section.table(table);
    section
}

/// An estimate of so many times the value.
fn scaled(estimate: &MedianEstimate, times: f64) -> MedianEstimate {
    let Interval { low, high } = estimate.interval;
    let interval = Interval {
        low: low * times,
        high: high * times,
    };
    MedianEstimate {
        median: estimate.median * times,
        interval,
        count: estimate.count,
    }
}

fn promises(
    section: &mut Section,
    operation: &Operation,
    cell: &Cell,
    none: &Pairing,
    both: &Pairing,
    doubt: Option<&String>,
) {
    let what = format!("{} {} x {}", cell.operation, cell.threads, cell.processes);
    let per_call = scaled(&none.difference, f64::from(operation.per_call));
    section.promise(
        format!("{what}, no limit"),
        format!("+{UNLIMITED_MOST_NS} ns per call"),
        format!("{} ns", signed_with_interval(&per_call, 2)),
        Verdict::at_most(&per_call, UNLIMITED_MOST_NS, doubt),
    );
    let Some(most) = operation.most else { return };
    if most.ns.is_finite() {
        section.promise(
            format!("{what}, limit that does not bind"),
            format!("+{} ns", most.ns),
            format!("{} ns", signed_with_interval(&both.difference, 2)),
            Verdict::at_most(&both.difference, most.ns, doubt),
        );
    }
    section.promise(
        format!("{what}, limit that does not bind"),
        format!("ratio {}", 1.0 + most.part),
        with_interval(&both.ratio, 4),
        Verdict::at_most(&both.ratio, 1.0 + most.part, doubt),
    );
}

#[cfg(test)]
mod tests {
    use super::super::VARIANTS;
    use super::*;

    fn generations(bare: u64, added: u64) -> Sample<Vec<Generation>> {
        let round = |drift: u64| Round {
            order: VARIANTS.to_vec(),
            batches: VARIANTS
                .iter()
                .zip(0_u64..)
                .map(|(variant, i)| {
                    (
                        *variant,
                        vec![(bare + drift + added * i, bare + drift + added * i); 3],
                    )
                })
                .collect(),
        };
        let cell = Cell {
            operation: "read-1".to_owned(),
            threads: 1,
            processes: 1,
        };
        let generation = |i: u64| Generation {
            cell: cell.clone(),
            limit: String::new(),
            count: 100,
            rounds: (0..3).map(|j| round((3 * i + j) * 50)).collect(),
            unshaped: 0,
        };
        Sample {
            conditions: Conditions::default(),
            data: (0..20).map(generation).collect(),
        }
    }

    #[test]
    fn differences_are_judged() {
        // 200 ns bare; 1, 2 and 3 ns more.
        let kept = study(&[generations(20_000, 100)], 1);
        assert!(
            kept.promises().iter().all(|p| p.verdict == Verdict::Kept),
            "{:?}",
            kept.promises()
        );
        assert_eq!(kept.promises().len(), 3);
        // 2, 4 and 6 ns more: 3 % too many.
        let broken = study(&[generations(20_000, 200)], 1);
        let verdicts: Vec<_> = broken
            .promises()
            .iter()
            .map(|p| p.verdict.clone())
            .collect();
        assert_eq!(verdicts, [Verdict::Kept, Verdict::Broken, Verdict::Broken]);
    }

    #[test]
    fn undecided_calls_are_doubted() {
        let mut sample = generations(20_000, 300);
        sample.data[0].unshaped = 3;
        let section = study(&[sample], 1);
        assert!(
            section
                .promises()
                .iter()
                .all(|p| p.verdict != Verdict::Broken)
        );
    }
}
