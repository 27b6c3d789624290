//! `bonsai trace import`.

use anyhow::Context;
use bonsai_services::refusal::Refusal;
use bonsai_trace::import::{Event, Format, Options, Report, import};
use bonsai_trace::{Error, Interning, Written};
use serde_json::json;

use super::files::{open, save};
use crate::cli::{TraceEvent, TraceFormat, TraceImport};
use crate::output::{count, print_json, say};

pub(super) fn run(args: &TraceImport) -> anyhow::Result<()> {
    let options = options(args)?;
    let (input, progress) = open(&args.from)?;
    let name = args.from.display().to_string();
    let done = save(&args.output, |out| {
        let mut sink = Interning::new(out)?;
        let report = import(input, &options, &mut sink).map_err(|error| said(&name, error))?;
        let volumes = sink.volumes().to_vec();
        let (_, written) = sink.finish()?;
        Ok((report, written, volumes))
    });
    progress.done();
    let (report, written, volumes) = done?;
    if args.json {
        let document = json!({
            "schema": 1,
            "imported": report,
            "volumes": volumes,
            "contents": written.contents,
            "bytes_written": written.bytes,
            "bytes_a_request": each(&written),
        });
        if args.output.as_os_str() == "-" {
            say!("{document}");
            return Ok(());
        }
        return print_json(&document, false);
    }
    eprint!("{}", text(&report, &written, volumes.len()));
    Ok(())
}

fn options(args: &TraceImport) -> anyhow::Result<Options> {
    let format = args.format.map(|format| match format {
        TraceFormat::Fiu => Format::Fiu,
        TraceFormat::Blkparse => Format::Blkparse,
        TraceFormat::Tracefs => Format::Tracefs,
        TraceFormat::Msr => Format::Msr,
        TraceFormat::Fio => Format::Fio,
        TraceFormat::Arc => Format::Arc,
        TraceFormat::Csv => Format::Csv,
    });
    if args.columns.is_some() && format.is_some_and(|format| format != Format::Csv) {
        return Err(Refusal::input(
            "--columns is for CSV: leave --format away, or write --format csv",
        ));
    }
    Ok(Options {
        format,
        columns: args.columns.clone(),
        event: match args.event {
            TraceEvent::Issue => Event::Issue,
            TraceEvent::Queue => Event::Queue,
            TraceEvent::Complete => Event::Complete,
        },
        first_sector: args.first_sector,
        by_process: args.by_process,
        skip_bad: args.skip_bad,
    })
}

/// An error, with the name of the input; what is wrong with it has the exit code for bad input.
pub(crate) fn said(name: &str, error: Error) -> anyhow::Error {
    match error {
        // What is below: a disk that is full, or packed data that is damaged.
        Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
            let done: Result<(), _> = Err(error);
            match done.with_context(|| name.to_owned()) {
                Err(error) => error,
                Ok(()) => Refusal::input(name.to_owned()),
            }
        }
        error => Refusal::input(format!("{name}: {error}")),
    }
}

fn each(written: &Written) -> f64 {
    written.packed as f64 / written.requests.max(1) as f64
}

fn text(report: &Report, written: &Written, volumes: usize) -> String {
    let format = report.format.map_or("", Format::word);
    let mut text = format!(
        "{format}: {} in {} lines, {}, {}; {} bytes, {:.1} a request before compression\n",
        count(written.requests, "request", "requests"),
        report.records,
        count(volumes as u64, "volume", "volumes"),
        count(written.contents, "content", "contents"),
        written.bytes,
        each(written),
    );
    let mut note = |n: u64, one: &str, many: &str| {
        if n > 0 {
            text += &format!("  {}\n", count(n, one, many));
        }
    };
    note(
        report.ignored,
        "line is no request",
        "lines are no requests",
    );
    note(
        report.unaligned,
        "request begins or ends within a block: it accesses each that it touches",
        "requests begin or end within a block: they access each that they touch",
    );
    note(
        report.contents_left_out,
        "content of such a request is left out",
        "contents of such requests are left out",
    );
    note(
        report.backwards,
        "request is older than the one before it",
        "requests are older than those before them",
    );
    if let Some(first) = &report.first_bad {
        let bad = count(report.bad, "bad record was", "bad records were");
        text += &format!("  {bad} passed over, the first: {first}\n");
    }
    text
}
