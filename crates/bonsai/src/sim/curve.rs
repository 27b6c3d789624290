//! `bonsai sim curve`.

use std::io;

use bonsai_services::refusal::Refusal;
use bonsai_sim::{
    Line, Loaded, NotACurve, Sample, Scheme, check_curve, curves, sampled, sizes, write_csv,
};
use serde::Serialize;
use serde_json::json;

use super::{check_apart, load, notes, page, percent, progress, size, threads};
use crate::cli::SimCurve;
use crate::output::{finish, print, print_json, say, table};
use crate::trace::save;

/// A point of a curve, as a line of CSV.
#[derive(Serialize)]
struct Flat<'a> {
    scheme: &'a str,
    cache_bytes: u64,
    hit_ratio: f64,
    reads_saved: f64,
    write_hits: f64,
    error: f64,
}

pub(super) fn run(args: &SimCurve) -> anyhow::Result<()> {
    check_apart(args.html.as_ref(), args.figure.as_ref())?;
    let loaded = load(&args.trace, args.of.as_recorded)?;
    let is_text = !args.csv && !args.json && args.html.is_none();
    let points = args.points.unwrap_or(if is_text { 1 } else { 8 });
    let (schemes, left_out) = drawable(args, &loaded)?;
    for scheme in &left_out {
        say!("bonsai: {scheme}; it is left out (bonsai sim run simulates it at given sizes)");
    }
    let lines = lines(args, &loaded, &schemes, points)?;
    if let Some(path) = &args.html {
        let page = page::curves(&args.trace, &loaded, &left_out, &lines)?;
        save(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    }
    if let Some(path) = &args.figure {
        let plot = page::saved(&lines)?;
        save(path, |out| Ok(out.write_all(plot.as_bytes())?))?;
    }
    if args.json {
        let left_out: Vec<_> = left_out
            .iter()
            .map(|of| json!({"scheme": of.scheme, "why": of.why}))
            .collect();
        return print_json(
            &json!({"schema": 1, "sample": args.sample, "curves": lines, "left_out": left_out}),
            false,
        );
    }
    if args.csv {
        return Ok(write_csv(&flat(&lines), io::stdout().lock())?);
    }
    print(&(notes(&loaded) + "\n" + &text(&lines, args.sample)))
}

/// The schemes that have a curve for this trace, and those that have none.
fn drawable(args: &SimCurve, loaded: &Loaded) -> anyhow::Result<(Vec<Scheme>, Vec<NotACurve>)> {
    let (mut schemes, mut left_out) = (Vec::new(), Vec::new());
    for &scheme in &args.scheme {
        match check_curve(&loaded.stream, scheme) {
            Ok(()) => schemes.push(scheme),
            Err(error) => left_out.push(error),
        }
    }
    if schemes.is_empty() {
        let why: Vec<String> = left_out.iter().map(ToString::to_string).collect();
        return Err(Refusal::input(format!(
            "{}; bonsai sim run simulates it at given sizes, and --scheme plain has a curve of every trace",
            why.join("; ")
        )));
    }
    Ok((schemes, left_out))
}

fn lines(
    args: &SimCurve,
    loaded: &Loaded,
    schemes: &[Scheme],
    points: u32,
) -> anyhow::Result<Vec<Line>> {
    let stream = &loaded.stream;
    let at = sizes(stream.blocks.len().into(), points);
    let threads = threads(args.of.threads);
    let bar = progress(schemes.len());
    let done = || bar.inc(1);
    let lines = match args.sample {
        None => curves(stream, schemes, &at, threads, done),
        Some(one_in) => {
            let sample = Sample {
                one_in,
                seed: args.seed,
            };
            sampled(stream, schemes, &at, sample, threads, done)
        }
    };
    bar.finish_and_clear();
    lines.map_err(|error| Refusal::input(error.to_string()))
}

fn flat(lines: &[Line]) -> Vec<Flat<'_>> {
    let points = lines.iter().flat_map(|line| {
        line.points.iter().map(|point| Flat {
            scheme: &line.scheme,
            cache_bytes: point.cache_bytes,
            hit_ratio: point.hit_ratio,
            reads_saved: point.reads_saved,
            write_hits: point.write_hits,
            error: point.error,
        })
    });
    points.collect()
}

fn text(lines: &[Line], sample: Option<u32>) -> String {
    let mut header = vec!["cache"];
    header.extend(lines.iter().map(|line| line.scheme.as_str()));
    let right: Vec<usize> = (0..header.len()).collect();
    let mut rows = table(&header, &right);
    for (n, point) in lines
        .first()
        .iter()
        .flat_map(|line| line.points.iter().enumerate())
    {
        let mut row = vec![size(point.cache_bytes)];
        row.extend(lines.iter().map(|line| {
            let point = line.points[n];
            match sample {
                None => percent(point.reads_saved),
                Some(_) => format!("{} +-{}", percent(point.reads_saved), percent(point.error)),
            }
        }));
        rows.add_row(row);
    }
    format!("Reads saved by an LRU cache, %:\n{}", finish(&rows))
}
