//! Runs and curves as a page: one file, with its plots in it.

use std::path::Path;

use bonsai_sim::{Line, Loaded, NotACurve, Point, Row, curves as passes, sizes};

use super::{notes, percent, size, threads};
use crate::trace::{escaped, plot};

const MIB: f64 = 1_048_576.0;

fn page(trace: &Path, loaded: &Loaded, plots: &str, table: &str) -> String {
    let title = trace.display().to_string();
    html(&title, &notes(loaded), plots, table)
}

/// A page, in one file.
pub(super) fn html(title: &str, notes: &str, plots: &str, table: &str) -> String {
    let title = escaped(title);
    let notes = escaped(notes).replace('\n', "<br>");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font:15px/1.4 sans-serif;max-width:1400px;margin:1em auto;padding:0 1em}}\
         td,th{{text-align:right;padding:0 .8em}}svg{{max-width:100%;height:auto}}</style></head>\n<body>\n\
         <h1>{title}</h1>\n<p>{notes}</p>\n{plots}\n{table}</body></html>\n"
    )
}

/// Lines of a value, in %, by MiB.
fn lines_of(lines: &[Line], value: fn(&Point) -> f64) -> Vec<(&str, Vec<(f64, f64)>)> {
    let lines = lines.iter().map(|line| {
        let points = line.points.iter();
        let points = points.map(|point| (point.cache_bytes as f64 / MIB, value(point) * 100.0));
        (line.scheme.as_str(), points.collect())
    });
    lines.collect()
}

/// The plot of reads saved.
///
/// # Errors
/// It cannot be drawn.
pub(super) fn saved(lines: &[Line]) -> anyhow::Result<String> {
    plot(
        "Reads saved by an LRU cache, %, by its size in MiB",
        true,
        &lines_of(lines, |point| point.reads_saved),
    )
}

fn drawn(lines: &[Line]) -> anyhow::Result<String> {
    let hits = plot(
        "Hits of reads and writes, %, by its size in MiB",
        true,
        &lines_of(lines, |point| point.hit_ratio),
    )?;
    Ok(saved(lines)? + &hits)
}

pub(super) fn rows(header: &[&str], cells: impl Iterator<Item = Vec<String>>) -> String {
    let head: String = header
        .iter()
        .map(|name| format!("<th>{}</th>", escaped(name)))
        .collect();
    let rows = cells.map(|row| {
        let cells: String = row
            .iter()
            .map(|cell| format!("<td>{}</td>", escaped(cell)))
            .collect();
        format!("<tr>{cells}</tr>\n")
    });
    format!(
        "<table><tr>{head}</tr>\n{}</table>\n",
        rows.collect::<String>()
    )
}

/// The page of curves.
///
/// # Errors
/// A plot cannot be drawn.
pub(super) fn curves(
    trace: &Path,
    loaded: &Loaded,
    left_out: &[NotACurve],
    lines: &[Line],
) -> anyhow::Result<String> {
    let mut header = vec!["cache"];
    header.extend(lines.iter().map(|line| line.scheme.as_str()));
    let sizes = lines.first().map_or(&[][..], |line| &line.points[..]);
    let cells = sizes.iter().enumerate().map(|(n, point)| {
        let mut row = vec![size(point.cache_bytes)];
        row.extend(lines.iter().map(|line| percent(line.points[n].reads_saved)));
        row
    });
    let mut notes = notes(loaded);
    for scheme in left_out {
        notes += &format!("{scheme}\n");
    }
    let title = trace.display().to_string();
    Ok(html(&title, &notes, &drawn(lines)?, &rows(&header, cells)))
}

/// The page of runs; with the curves of the schemes among them that have one.
///
/// # Errors
/// A plot cannot be drawn.
pub(super) fn runs(trace: &Path, loaded: &Loaded, found: &[Row]) -> anyhow::Result<String> {
    let header = [
        "cache",
        "scheme",
        "policy",
        "reads saved, %",
        "hits, %",
        "read, ms",
    ];
    let cells = found.iter().map(|row| {
        vec![
            size(row.cache_bytes),
            row.scheme.clone(),
            row.policy.clone(),
            percent(row.reads_saved),
            percent(row.hit_ratio),
            format!("{:.3}", row.read_ms),
        ]
    });
    let stream = &loaded.stream;
    let at = sizes(stream.blocks.len().into(), 8);
    let mut lines = Vec::new();
    let mut seen = Vec::new();
    for row in found {
        if !seen.contains(&&row.scheme) {
            seen.push(&row.scheme);
            let scheme = [row.scheme.parse()?];
            // IODEDUP, and DRIVE with bounds, have points in the table and no curve.
            lines.extend(passes(stream, &scheme, &at, threads(None), || ()).unwrap_or_default());
        }
    }
    Ok(page(trace, loaded, &drawn(&lines)?, &rows(&header, cells)))
}
