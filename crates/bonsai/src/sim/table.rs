//! `bonsai sim table`: the thesis' table.

use bonsai_sim::published::{FIGURES, Published};
use bonsai_sim::{Plan, Policy, Row, Scheme, run_all};
use serde_json::{Value, json};

use super::{blocks, load, percent, progress, threads};
use crate::cli::SimTable;
use crate::output::{finish, print, print_json, table};

const SCHEMES: [&str; 3] = ["plain", "drive", "iodedup:10%"];

pub(super) fn run(args: &SimTable) -> anyhow::Result<()> {
    let schemes = SCHEMES.iter().map(|name| name.parse());
    let plan = Plan {
        blocks: vec![blocks(args.cache)?],
        schemes: schemes.collect::<Result<Vec<Scheme>, _>>()?,
        policies: vec![Policy::Lru],
        latency: args.how.latency,
        threads: threads(args.how.threads),
    };
    let mut found = Vec::new();
    for path in &args.traces {
        let loaded = load(path, args.how.as_recorded)?;
        let bar = progress(plan.schemes.len());
        let rows = run_all(&loaded.stream, &plan, || bar.inc(1));
        bar.finish_and_clear();
        let name = path.file_stem().unwrap_or(path.as_os_str());
        found.push((name.to_string_lossy().into_owned(), rows));
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
    print(&text(args, &found))
}

fn text(args: &SimTable, found: &[(String, Vec<Row>)]) -> String {
    let header = [
        "trace",
        "scheme",
        "hits, %",
        "reads saved, %",
        "read, ms",
        "from",
    ];
    let mut lines = table(&header, &[2, 3, 4]);
    for (name, rows) in found {
        for row in rows {
            lines.add_row([
                name.clone(),
                row.scheme.clone(),
                percent(row.hit_ratio),
                percent(row.reads_saved),
                format!("{:.2}", row.read_ms),
                format!("this run, {}", args.cache),
            ]);
        }
    }
    for figure in &FIGURES {
        lines.add_row(published(figure));
    }
    format!(
        "{}\nPublished, all with 1 GiB: slides of \"Towards Improved Provisioning and Utilization of Resources in\n\
         Virtualized Environments\"; counters that came with the thesis' simulator. They do not agree on homes+webvm,\n\
         and nothing says why. Hits are of reads and writes; writes put blocks into the cache.\n",
        finish(&lines)
    )
}

fn published(figure: &Published) -> [String; 6] {
    let number = |value: Option<f64>, digits: usize| {
        value
            .map(|value| format!("{value:.digits$}"))
            .unwrap_or_default()
    };
    [
        figure.trace.to_owned(),
        figure.scheme.to_owned(),
        number(figure.hit_ratio, 2),
        number(Some(figure.reads_saved), 2),
        number(figure.read_ms, 2),
        format!("published, {}", figure.source),
    ]
}
