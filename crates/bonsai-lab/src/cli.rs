//! The command line of `bonsai-bench`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::benches::{ALL, Benchmark, Crowd, hold};
use crate::context::{Choice, Context, Effort, Interrupted};
use crate::facts::{Host, utc_now};
use crate::net::{self, commands::End};
use crate::record::{Line, Record, Recorder, Run, load_average};
use crate::report::Tally;
use crate::service::find_library;

/// Measures what Bonsai promises, side by side with its peers.
///
/// Exit code: 0, or 1 if a promise was broken beyond doubt, or 2 if it could not be
/// measured.
#[derive(Debug, Parser)]
#[command(name = "bonsai-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say which benchmarks there are.
    List,
    /// Run benchmarks (all of them, where none is named) and report.
    Run(RunArgs),
    /// Make the tables of an earlier run again from its record.
    Report {
        /// The record, a .jsonl file.
        file: PathBuf,
    },
    /// One end of network traffic: a generator with numbers and instants, and its meter.
    #[command(subcommand)]
    Net(End),
    /// Hold services for a benchmark until the standard input ends.
    #[command(hide = true)]
    Hold {
        /// What they do.
        crowd: Crowd,
        /// How many.
        services: u64,
        /// Of so many threads each.
        threads: u32,
    },
}

#[derive(Debug, Parser)]
struct RunArgs {
    /// Benchmarks, as `bonsai-bench list` names them.
    names: Vec<String>,
    /// How much time to spend.
    #[arg(long, value_enum, default_value = "normal", conflicts_with_all = ["quick", "full"])]
    effort: Effort,
    /// The same as --effort quick.
    #[arg(long)]
    quick: bool,
    /// The same as --effort full.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Where all random orders come from; drawn from the clock where it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Of the combinations of a benchmark, only those whose description has this
    /// text in it, such as `read-1` or `64 x 16`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The folder for records.
    #[arg(long, default_value = "bench/raw")]
    raw: PathBuf,
    /// Write the plot of the one benchmark that is named (link-media, link-paper, media-002, media-fig11,
    /// media-fig12, media-ten, nbd-replay, paper-fig12, paper-shares or policy-week) to this file.
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::List => {
            list();
            Ok(Tally::default())
        }
        Command::Run(args) => run(&args),
        Command::Hold {
            crowd,
            services,
            threads,
        } => hold(crowd, services, threads).map(|()| Tally::default()),
        Command::Net(end) => net::commands::run(&end).map(|()| Tally::default()),
        Command::Report { file } => report(&file).map(|(_, tally)| tally),
    };
    match done {
        Ok(tally) if tally.broken > 0 => ExitCode::from(1),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bonsai-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    for bench in ALL {
        println!("{:12} {}", bench.name(), bench.about());
    }
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static dyn Benchmark>> {
    if names.is_empty() {
        return Ok(ALL.to_vec());
    }
    let find = |name: &String| {
        let known = || ALL.iter().map(|b| b.name()).collect::<Vec<_>>().join(", ");
        let found = ALL.iter().find(|bench| bench.name() == name);
        found
            .copied()
            .with_context(|| format!("there is no benchmark {name:?}; there are {}", known()))
    };
    names.iter().map(find).collect()
}

fn run(args: &RunArgs) -> anyhow::Result<Tally> {
    let benches = chosen(&args.names)?;
    anyhow::ensure!(
        args.figure.is_none() || benches.len() == 1,
        "--figure is of one benchmark: name link-media, link-paper, media-002, media-fig11, media-fig12, media-ten, \
         nbd-replay, paper-fig12, paper-shares or policy-week"
    );
    let library = find_library()?;
    let interrupted = Interrupted::listen()?;
    let started = utc_now();
    let effort = match (args.quick, args.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => args.effort,
    };
    let seed = args.seed.unwrap_or_else(crate::service::monotonic_ns);
    let names = benches
        .iter()
        .map(|bench| bench.name().to_owned())
        .collect();
    let run = Run::new(
        started.clone(),
        names,
        format!("{effort:?}"),
        seed,
        Host::read(&library),
    );
    let path = args.raw.join(format!("{}.jsonl", started.replace(':', "")));
    let recorder = Recorder::create(path.clone(), &run)?;
    eprintln!("record: {}", path.display());
    let choice = Choice {
        effort,
        only: args.only.clone(),
        figure: args.figure.clone(),
    };
    let mut context = Context::new(choice, seed, library, recorder, interrupted)?;
    let from = Instant::now();
    let measured = measure(&mut context, &benches);
    let end = Line::End {
        seconds: from.elapsed().as_secs(),
        load: load_average(),
    };
    context.recorder.write(&end)?;
    drop(context);

    let (text, tally) = report(&path)?;
    let page = path.with_file_name(format!("{}-report.md", started.replace(':', "")));
    bonsai_host::write_output(&page, text.as_bytes())?;
    eprintln!("report: {}", page.display());
    measured.map(|()| tally)
}

/// Runs each benchmark; one that fails does not keep the others from running.
fn measure(context: &mut Context, benches: &[&dyn Benchmark]) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for bench in benches {
        context.begin(bench.name());
        context.progress(bench.about());
        if let Err(error) = bench.run(context) {
            context.check()?;
            context.skip("the rest", format!("{error:#}"))?;
            failed.push(bench.name());
        }
    }
    anyhow::ensure!(
        failed.is_empty(),
        "could not be measured to the end: {}",
        failed.join(", ")
    );
    Ok(())
}

/// Prints the tables of a record; returns them as Markdown.
fn report(path: &Path) -> anyhow::Result<(String, Tally)> {
    let record = Record::read(path)?;
    let run = &record.run;
    let took = record
        .seconds()
        .map_or("cut off".to_owned(), |s| format!("{s} s"));
    let head = format!(
        "{}\n\nStarted {}, effort {}, seed {}, {took}; load average {:.1} at the start. Library {} bytes.\n\n\
         Brackets are 95 % bootstrap intervals of the median.",
        run.host.describe(),
        run.started,
        run.effort,
        run.seed,
        run.load,
        run.host.library_bytes,
    );
    println!("{head}\n");
    let mut page = format!("# Benchmarks\n\n{head}\n\n");
    let mut tally = Tally::default();
    for bench in ALL
        .iter()
        .filter(|bench| run.names.iter().any(|name| name == bench.name()))
    {
        let mut section = bench.report(&record);
        for (what, why) in record.skips(bench.name()) {
            section.text(format!("Not measured: {what}: {why}."));
        }
        let title = format!("{}: {}", bench.name(), bench.about());
        println!("## {title}\n\n{}", section.terminal());
        page.push_str(&format!("## {title}\n\n{}", section.markdown()));
        tally.add(&section);
    }
    println!("{}", tally.text());
    page.push_str(&format!("{}\n", tally.text()));
    Ok((page, tally))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert!(Cli::try_parse_from(["bonsai-bench", "run", "--quick", "--full"]).is_err());
    }

    #[test]
    fn benchmarks_are_found_by_name() {
        assert_eq!(chosen(&[]).expect("all").len(), ALL.len());
        let names: Vec<_> = ALL.iter().map(|bench| bench.name().to_owned()).collect();
        assert_eq!(chosen(&names).expect("by name").len(), ALL.len());
        let error = chosen(&["x".to_owned()])
            .err()
            .expect("no such")
            .to_string();
        assert!(error.contains("call-cost"), "{error}");
    }
}
