//! Benchmarks: what Bonsai costs, how exact it is, and how its peers do.
//!
//! ```text
//! benchmark --run--> record (bench/raw/TIME.jsonl) --report--> tables, verdicts
//! ```
//!
//! # Invariants
//! 1. The record comes first: what was asked for, on which machine, and every raw
//!    sample, each written before the next is taken. Tables are made from the
//!    record alone, so `bonsai-bench report FILE` makes them again, any time.
//! 2. Variants are compared within a round, in an order drawn anew for each: the
//!    median of the paired differences, with its 95 % bootstrap interval.
//! 3. The tool doubts itself aloud. A number that was measured while others used
//!    the machine, or that spreads too widely, is called doubtful beside itself;
//!    a promise is *broken* only where neither is the case.
//! 4. Every process that is started ends: with its handle, and with this process.
//!
//! # Map
//! `benches` has one module per benchmark; `context` is what they run in; `service`
//! puts programs under limits, `daemon` under a daemon; `child` runs them; `net` makes and measures
//! traffic between namespaces; `load` watches
//! the machine; `record` and `report` are the two ends of invariant 1; `study` is the
//! arithmetic between them, `plot` what figures have in common. The measured programs are C files in `bench/`, part of this program
//! and compiled when it runs.
#![forbid(unsafe_code)]

mod benches;
mod cage;
mod child;
mod cli;
mod context;
mod daemon;
mod facts;
mod load;
mod net;
mod plot;
mod programs;
mod record;
mod report;
mod service;
mod study;

pub use cli::main;
