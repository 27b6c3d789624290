//! `bonsai trace import`.

use anyhow::Context;
use bonsai_services::refusal::Refusal;
use bonsai_trace::import::{Event, Format, Objects, Options, Report, import};
use bonsai_trace::{Error, Interning, Written};
use serde_json::json;

use super::files::{open, save, shown};
use crate::cli::{TraceEvent, TraceFormat, TraceImport};
use crate::output::{count, print_json, say};

pub(super) fn run(args: &TraceImport) -> anyhow::Result<()> {
    let options = options(args)?;
    let (input, progress) = open(&args.from)?;
    let name = shown(&args.from);
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
        TraceFormat::Vscsi => Format::Vscsi,
        TraceFormat::OracleGeneral => Format::OracleGeneral,
    });
    if args.columns.is_some() && format.is_some_and(|format| format != Format::Csv) {
        return Err(Refusal::input(
            "--columns is for CSV: leave --format away, or write --format csv",
        ));
    }
    let is_csv = format.is_none_or(|format| format == Format::Csv);
    if args.delimiter.is_some() && (args.columns.is_none() && format.is_none() || !is_csv) {
        return Err(Refusal::input(
            "--delimiter is for CSV: name its columns with --columns, or write --format csv",
        ));
    }
    if args.objects != Objects::Blocks
        && format.is_some_and(|format| format != Format::OracleGeneral)
    {
        return Err(Refusal::input(
            "--objects is for oracleGeneral: leave --format away, or write --format oracleGeneral",
        ));
    }
    Ok(Options {
        format,
        columns: args.columns.clone(),
        delimiter: args.delimiter,
        objects: args.objects,
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
    let unit = match report.format {
        Some(format) if !format.is_text() => ["record", "records"],
        _ => ["line", "lines"],
    };
    let format = report.format.map_or("", Format::word);
    let mut text = format!(
        "{format}: {} in {}, {}, {}; {} bytes, {:.1} a request before compression\n",
        count(written.requests, "request", "requests"),
        count(report.records, unit[0], unit[1]),
        count(volumes as u64, "volume", "volumes"),
        count(written.contents, "content", "contents"),
        written.bytes,
        each(written),
    );
    for note in notes(report, unit) {
        text += &format!("  {note}\n");
    }
    text
}

/// What was guessed, skipped, left out or strange.
pub(super) fn notes(report: &Report, [line, lines]: [&str; 2]) -> Vec<String> {
    let mut notes = Vec::new();
    if report.requests == 0 {
        notes.push("there is no request in it".to_owned());
    }
    if let Some(delimiter) = report.delimiter {
        notes.push(format!("between values: {delimiter}"));
    }
    if let Some(heading) = &report.heading {
        notes.push(format!("taken for a heading: {heading}"));
    }
    if report.ignored > 0 {
        let reasons: Vec<String> = report
            .skipped
            .iter()
            .map(|(reason, skipped)| count(skipped, reason.words()[0], reason.words()[1]))
            .collect();
        let are = if report.ignored == 1 {
            "is no request"
        } else {
            "are no requests"
        };
        notes.push(format!(
            "{} {are}: {}",
            count(report.ignored, line, lines),
            reasons.join(", ")
        ));
    }
    let counted = [
        (
            report.parts,
            "more file of this format begins in the middle",
            "more files of this format begin in the middle",
        ),
        (
            report.unaligned,
            "request begins or ends within a block: it accesses each that it touches",
            "requests begin or end within a block: they access each that they touch",
        ),
        (
            report.contents_left_out,
            "content of such a request is left out",
            "contents of such requests are left out",
        ),
        (
            report.sizes_left_out,
            "object has another size than 4096 bytes: each is one block (--objects sector takes them for addresses)",
            "objects have other sizes than 4096 bytes: each is one block (--objects sector takes them for addresses)",
        ),
        (
            report.backwards,
            "request is older than the one before it",
            "requests are older than those before them",
        ),
        (
            report.lost,
            "event, at least, was lost while they were recorded",
            "events were lost while they were recorded",
        ),
    ];
    let said = counted.into_iter().filter(|(n, ..)| *n > 0);
    notes.extend(said.map(|(n, one, many)| count(n, one, many)));
    if let Some(first) = &report.first_bad {
        let bad = count(report.bad, "bad record was", "bad records were");
        notes.push(format!("{bad} passed over, the first: {first}"));
    }
    notes
}
