//! `bonsai sim curve`.

use std::io;

use bonsai_services::refusal::Refusal;
use bonsai_sim::{Line, Loaded, curves, sampled, sizes, write_csv};
use serde::Serialize;
use serde_json::json;

use super::{load, notes, page, percent, progress, size, threads};
use crate::cli::SimCurve;
use crate::output::{finish, print, print_json, table};
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
    let loaded = load(&args.trace, args.of.as_recorded)?;
    let is_text = !args.csv && !args.json && args.html.is_none();
    let points = args.points.unwrap_or(if is_text { 1 } else { 8 });
    let lines = lines(args, &loaded, points)?;
    if let Some(path) = &args.html {
        let page = page::curves(&args.trace, &loaded, &lines)?;
        save(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    }
    if let Some(path) = &args.figure {
        let plot = page::saved(&lines)?;
        save(path, |out| Ok(out.write_all(plot.as_bytes())?))?;
    }
    if args.json {
        return print_json(
            &json!({"schema": 1, "sample": args.sample, "curves": lines}),
            false,
        );
    }
    if args.csv {
        return Ok(write_csv(&flat(&lines), io::stdout().lock())?);
    }
    print(&(notes(&loaded) + "\n" + &text(&lines, args.sample)))
}

fn lines(args: &SimCurve, loaded: &Loaded, points: u32) -> anyhow::Result<Vec<Line>> {
    let stream = &loaded.stream;
    let at = sizes(stream.blocks.len().into(), points);
    let threads = threads(args.of.threads);
    let bar = progress(args.scheme.len());
    let done = || bar.inc(1);
    let lines = match args.sample {
        None => curves(stream, &args.scheme, &at, threads, done),
        Some(one_in) => sampled(stream, &args.scheme, &at, one_in, threads, done),
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
