//! What an interposed call costs: the same program bare and in services, in turn.
//!
//! A *generation* starts one process per variant anew; a *round* lets each variant
//! in a random order make a few batches of about half a millisecond. What a variant
//! adds in a round is the difference of the medians of the batches, in CPU time per
//! operation: time in which another program ran does not count. What it adds in a
//! generation is the median of that over the rounds.
//!
//! Two processes of the same program differ by several ns a call, as other addresses
//! and pages suit the caches more or less. So the generation is what is independent,
//! and intervals are those of the median over generations. The cost of the loop
//! itself is measured, too, and taken off.

mod harness;
mod study;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::harness::{Harness, measure};
use super::Benchmark;
use crate::context::Context;
use crate::load::Moment;
use crate::record::Record;
use crate::report::Section;

/// The benchmark "call-cost".
#[derive(Debug)]
pub(crate) struct CallCost;

/// What is promised of an operation: at most so many ns, and such a part, more
/// than the bare call under a limit that does not bind.
#[derive(Clone, Copy, Debug)]
struct Most {
    ns: f64,
    part: f64,
}

struct Operation {
    /// Its name in `calls.c`.
    name: &'static str,
    /// The class that it is limited by, and whether in bytes.
    class: &'static str,
    in_bytes: bool,
    /// Bytes of one operation.
    bytes: u64,
    /// Operations that make one system call.
    per_call: u32,
    most: Option<Most>,
}

impl Operation {
    /// The rows that it has in the table: name, and factor of its times.
    fn shown(&self) -> Vec<(String, f64)> {
        let own = (self.name.to_owned(), 1.0);
        let call = (
            format!("{}, per system call", self.name),
            f64::from(self.per_call),
        );
        if self.per_call > 1 {
            vec![own, call]
        } else {
            vec![own]
        }
    }
}

const fn moves(
    name: &'static str,
    class: &'static str,
    bytes: u64,
    per_call: u32,
    most: Option<Most>,
) -> Operation {
    Operation {
        name,
        class,
        in_bytes: true,
        bytes,
        per_call,
        most,
    }
}

const EMPTY_MOST: Option<Most> = Some(Most {
    ns: 4.0,
    part: 0.02,
});
const HALF_PERCENT: Option<Most> = Some(Most {
    ns: f64::INFINITY,
    part: 0.005,
});

const OPERATIONS: [Operation; 11] = [
    Operation {
        name: "getppid",
        class: "all",
        in_bytes: false,
        bytes: 0,
        per_call: 1,
        most: EMPTY_MOST,
    },
    Operation {
        name: "empty",
        class: "close",
        in_bytes: false,
        bytes: 0,
        per_call: 1,
        most: EMPTY_MOST,
    },
    moves("read-1", "read", 1, 1, EMPTY_MOST),
    moves("pread-4k", "read", 4096, 1, HALF_PERCENT),
    moves("write-4k", "write", 4096, 1, None),
    moves("readv-4k", "read", 4096, 1, None),
    moves("writev-4k", "write", 4096, 1, None),
    moves("send-1448", "send", 1448, 1, None),
    moves("sendmsg-1448", "send", 1448, 1, None),
    moves("fread-64", "read", 64, 64, HALF_PERCENT),
    moves("fwrite-64", "write", 64, 64, HALF_PERCENT),
];

/// Operations that are measured with several threads and processes as well.
const SHARED: [&str; 4] = ["empty", "read-1", "pread-4k", "fread-64"];

/// Threads and processes.
const SHAPES: [(u32, u32); 4] = [(1, 1), (2, 1), (8, 1), (1, 2)];

/// A way of running the program.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
enum Variant {
    Bare,
    /// In a service without limits.
    NoLimit,
    /// Under a limit that does not bind, by exported symbols alone.
    First,
    /// Under a limit that does not bind.
    Both,
    /// Under a limit per stream that does not bind.
    Streams,
}

const VARIANTS: [Variant; 5] = [
    Variant::Bare,
    Variant::NoLimit,
    Variant::First,
    Variant::Both,
    Variant::Streams,
];

/// What is measured.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
struct Cell {
    operation: String,
    threads: u32,
    processes: u32,
}

/// One generation of a cell.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Generation {
    cell: Cell,
    limit: String,
    /// Operations of a batch.
    count: u64,
    rounds: Vec<Round>,
    /// Calls that went through without a decision: none, or the limit was not
    /// what was measured.
    unshaped: u64,
}

/// The order, and of each variant its batches: wall and CPU time, ns, of all
/// threads and processes.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    order: Vec<Variant>,
    batches: BTreeMap<Variant, Vec<(u64, u64)>>,
}

impl Benchmark for CallCost {
    fn name(&self) -> &'static str {
        "call-cost"
    }

    fn about(&self) -> &'static str {
        "ns per call: bare, under no limit, under limits that do not bind"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let program = context.program_path("calls")?;
        let file = context.file(1 << 20)?;
        let effort = context.effort;
        let (blocks, generations, rounds) = effort.of((2, 5, 2), (6, 10, 4), (20, 15, 4));
        for (operation, threads, processes) in cells() {
            let harness = Harness {
                program: &program,
                file: &file,
                threads,
                processes,
            };
            let cell = Cell {
                operation: operation.name.to_owned(),
                threads,
                processes,
            };
            let what = format!("{} {threads} x {processes}", operation.name);
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            let (count, limit) = harness.calibrate(operation)?;
            for _ in 0..blocks {
                let before = Moment::now();
                let block: Vec<Generation> = (0..generations)
                    .map(|_| harness.generation(context, operation, &cell, count, &limit, rounds))
                    .collect::<Result<_, _>>()?;
                context.sample(before.until_now(), &block)?;
            }
        }
        // The loop alone, which all samples contain.
        let harness = Harness {
            program: &program,
            file: &file,
            threads: 1,
            processes: 1,
        };
        let cell = Cell {
            operation: "nothing".to_owned(),
            threads: 1,
            processes: 1,
        };
        for _ in 0..3 {
            let before = Moment::now();
            let mut bare = vec![harness.start("nothing", 0, None)?];
            let batches = measure(&mut bare, 1_000_000)?;
            drop(bare);
            let round = Round {
                order: vec![Variant::Bare],
                batches: [(Variant::Bare, batches)].into(),
            };
            let generation = Generation {
                cell: cell.clone(),
                limit: String::new(),
                count: 1_000_000,
                rounds: vec![round],
                unshaped: 0,
            };
            context.sample(before.until_now(), &[generation])?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        study::study(&record.samples(self.name()), record.run.seed)
    }
}

fn cells() -> Vec<(&'static Operation, u32, u32)> {
    let shared = |operation: &Operation| SHARED.contains(&operation.name);
    SHAPES
        .iter()
        .flat_map(|(threads, processes)| OPERATIONS.iter().map(|o| (o, *threads, *processes)))
        .filter(|(operation, threads, processes)| threads * processes == 1 || shared(operation))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_measured_alone_and_four_together() {
        let cells = cells();
        assert_eq!(cells.len(), OPERATIONS.len() + 3 * SHARED.len());
        let source = include_str!("../../../../bench/calls.c");
        for operation in &OPERATIONS {
            assert!(
                source.contains(&format!("{{\"{}\"", operation.name)),
                "{}",
                operation.name
            );
            assert!(bonsai_calls::select(operation.class).is_some());
        }
    }
}
