//! `bonsai sim table`: the thesis' table.

use std::path::Path;

use bonsai_sim::published::{FIGURES, Published};
use bonsai_sim::{Plan, Policy, Row, Scheme, run_all};
use serde_json::{Value, json};

use super::{bars, blocks, check_apart, load, page, progress, threads, together};
use crate::cli::SimTable;
use crate::output::{escaped, finish, print, print_json, table};
use crate::trace::save;

pub(super) const SCHEMES: [&str; 3] = ["plain", "drive", "iodedup:10%"];

/// What is said of the published figures.
const PUBLISHED: &str = "\
Published, all with 1 GiB: slides of \"Towards Improved Provisioning and Utilization of Resources in
Virtualized Environments\"; counters that came with the thesis' simulator. They do not agree on homes+webvm,
and nothing says why. Hits are of reads and writes; writes put blocks into the cache.
";

pub(super) fn run(args: &SimTable) -> anyhow::Result<()> {
    check_apart(args.html.as_ref(), args.figure.as_ref())?;
    let schemes = SCHEMES.iter().map(|name| name.parse());
    let plan = Plan {
        blocks: vec![blocks(args.cache)?],
        schemes: schemes.collect::<Result<Vec<Scheme>, _>>()?,
        policies: vec![Policy::Lru],
        latency: args.how.latency,
        threads: threads(args.how.of.threads),
    };
    let mut found = Vec::new();
    for path in &args.traces {
        let loaded = load(path, args.how.of.as_recorded)?;
        let bar = progress(plan.schemes.len());
        let rows = run_all(&loaded.stream, &plan, || bar.inc(1));
        bar.finish_and_clear();
        found.push((name_of(path), rows));
    }
    let cells = cells(&found);
    if let Some(path) = &args.figure {
        let plot = bars::bars(&plotted(args), &traces(&cells), &cells)?;
        save(path, |out| Ok(out.write_all(plot.as_bytes())?))?;
    }
    if let Some(path) = &args.html {
        let page = html(args, &cells)?;
        save(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    }
    if args.json {
        let traces: Vec<Value> = found
            .iter()
            .map(|(name, rows)| json!({"trace": name, "runs": rows}))
            .collect();
        return print_json(
            &json!({"schema": 1, "traces": traces, "published": FIGURES}),
            false,
        );
    }
    print(&text(args, &cells))
}

/// The name of a row: those of its files, without what they end in.
fn name_of(path: &Path) -> String {
    let names = together(path).into_iter().map(|path| {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    });
    names.collect::<Vec<_>>().join("+")
}

/// The title of the plot.
fn plotted(args: &SimTable) -> String {
    format!(
        "Reads saved by LRU, %: this run with {}, published with 1 GiB",
        args.cache
    )
}

/// Where a figure is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    Run,
    Counters,
    Slides,
}

/// A row: what a scheme does for a trace; ratios are %.
#[derive(Debug)]
pub(super) struct Cell<'a> {
    pub(super) trace: &'a str,
    pub(super) scheme: &'a str,
    pub(super) source: Source,
    pub(super) reads_saved: f64,
    hit_ratio: Option<f64>,
    read_ms: Option<f64>,
}

/// Ours first.
fn cells(found: &[(String, Vec<Row>)]) -> Vec<Cell<'_>> {
    let own = found.iter().flat_map(|(name, rows)| {
        rows.iter().map(|row| Cell {
            trace: name,
            scheme: &row.scheme,
            source: Source::Run,
            reads_saved: row.reads_saved * 100.0,
            hit_ratio: Some(row.hit_ratio * 100.0),
            read_ms: Some(row.read_ms),
        })
    });
    own.chain(FIGURES.iter().map(|of| published(of))).collect()
}

fn published(of: &Published) -> Cell<'_> {
    Cell {
        trace: of.trace,
        scheme: of.scheme,
        source: match of.source {
            "slides" => Source::Slides,
            _ => Source::Counters,
        },
        reads_saved: of.reads_saved,
        hit_ratio: of.hit_ratio,
        read_ms: of.read_ms,
    }
}

/// Each once, in the order in which they come.
fn traces(cells: &[Cell<'_>]) -> Vec<String> {
    let mut traces: Vec<String> = Vec::new();
    for cell in cells {
        if !traces.iter().any(|name| name == cell.trace) {
            traces.push(cell.trace.to_owned());
        }
    }
    traces
}

fn row(args: &SimTable, cell: &Cell<'_>) -> [String; 6] {
    let number = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    [
        cell.trace.to_owned(),
        cell.scheme.to_owned(),
        number(cell.hit_ratio),
        number(Some(cell.reads_saved)),
        number(cell.read_ms),
        match cell.source {
            Source::Run => format!("this run, {}", args.cache),
            Source::Counters => "published, counters".to_owned(),
            Source::Slides => "published, slides".to_owned(),
        },
    ]
}

const HEADER: [&str; 6] = [
    "trace",
    "scheme",
    "hits, %",
    "reads saved, %",
    "read, ms",
    "from",
];

fn text(args: &SimTable, cells: &[Cell<'_>]) -> String {
    let mut lines = table(&HEADER, &[2, 3, 4]);
    for cell in cells {
        lines.add_row(row(args, cell).map(|cell| escaped(&cell)));
    }
    format!("{}\n{PUBLISHED}", finish(&lines))
}

/// The page: of each trace and scheme what is ours and what was published, one beneath the other.
fn html(args: &SimTable, cells: &[Cell<'_>]) -> anyhow::Result<String> {
    let names = traces(cells);
    let of = |trace: &str, scheme: &str| {
        let own = cells
            .iter()
            .filter(|cell| (cell.trace, cell.scheme) == (trace, scheme));
        own.map(|cell| row(args, cell).to_vec()).collect::<Vec<_>>()
    };
    let sorted = names
        .iter()
        .flat_map(|trace| SCHEMES.iter().flat_map(move |scheme| of(trace, scheme)));
    let rows = page::rows(&HEADER, sorted);
    let title = format!(
        "What plain caching, DRIVE and IODEDUP save, {}, LRU",
        args.cache
    );
    Ok(page::html(
        &title,
        PUBLISHED,
        &bars::bars(&plotted(args), &names, cells)?,
        &rows,
    ))
}
