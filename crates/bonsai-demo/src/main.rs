//! The instruments of the demonstration, which `scripts/demo.sh` conducts.
//!
//! # Map
//! - [`measure`]: plays a film ([`viewer`], by the rules of [`player`]) and receives bulk data
//!   ([`relay`]), over a stand-in for a link if need be ([`link`]); counts ([`meter`]),
//!   shows it live ([`terminal`]) and writes a [`record`];
//! - [`page`]: reads the record and what `bonsai` said meanwhile ([`observed`]),
//!   sums it up ([`summary`], [`findings`]), draws it ([`plots`]) and writes the page ([`html`]).
//!
//! # Invariants
//! 1. A record holds what was counted; what is derived is derived from it later.
//! 2. What the page and the terminal claim is computed, and said when it is not so.
#![forbid(unsafe_code)]

mod findings;
mod html;
mod link;
mod measure;
mod meter;
mod observed;
mod page;
mod player;
mod plots;
mod record;
mod relay;
mod sockets;
mod summary;
mod terminal;
mod viewer;

use std::process::ExitCode;

use clap::Parser;

/// Measures and shows the demonstration.
#[derive(Debug, Parser)]
#[command(name = "bonsai-demo", version)]
enum Cli {
    Measure(measure::Measure),
    Page(page::Page),
}

/// What ends with it did not go as it should.
const BROKEN: u8 = 2;

fn main() -> ExitCode {
    let result = match Cli::parse() {
        Cli::Measure(args) => measure::run(&args).map(|()| true),
        Cli::Page(args) => page::run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        // All went well, but it does not show what it should.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bonsai-demo: {error:#}");
            ExitCode::from(BROKEN)
        }
    }
}
