//! `bonsai sim run`.

use std::io;

use bonsai_sim::{Plan, Row, run_all, write_csv};
use serde_json::json;

use super::{blocks, load, notes, page, percent, progress, size, threads};
use crate::cli::SimRun;
use crate::output::{finish, print, print_json, table};
use crate::trace::save;

pub(super) fn run(args: &SimRun) -> anyhow::Result<()> {
    let sizes = args.cache.iter().map(|&size| blocks(size));
    let plan = Plan {
        blocks: sizes.collect::<anyhow::Result<_>>()?,
        schemes: args.scheme.clone(),
        policies: args.policy.clone(),
        latency: args.how.latency,
        threads: threads(args.how.of.threads),
    };
    let loaded = load(&args.trace, args.how.of.as_recorded)?;
    let bar = progress(plan.blocks.len() * plan.schemes.len() * plan.policies.len());
    let rows = run_all(&loaded.stream, &plan, || bar.inc(1));
    bar.finish_and_clear();
    if let Some(path) = &args.html {
        let page = page::runs(&args.trace, &loaded, &rows)?;
        save(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    }
    if args.json {
        let stream = &loaded.stream;
        return print_json(
            &json!({
                "schema": 1,
                "requests": stream.requests.len(),
                "blocks": stream.blocks.len(),
                "contents": stream.contents,
                "inconsistent": stream.inconsistent,
                "without_content": loaded.without_content,
                "trimmed": loaded.trimmed,
                "runs": rows,
            }),
            false,
        );
    }
    if args.csv {
        return Ok(write_csv(&rows, io::stdout().lock())?);
    }
    print(&(notes(&loaded) + "\n" + &text(&rows)))
}

fn text(rows: &[Row]) -> String {
    let header = [
        "cache",
        "scheme",
        "policy",
        "reads saved, %",
        "hits, %",
        "writes hit, %",
        "read, ms",
        "unique, %",
        "metadata",
    ];
    let mut lines = table(&header, &[0, 3, 4, 5, 6, 7, 8]);
    for row in rows {
        let writes = row.write_hits as f64 / row.writes.max(1) as f64;
        let metadata = if row.metadata_bytes == 0 {
            String::new()
        } else {
            size(row.metadata_bytes)
        };
        lines.add_row([
            size(row.cache_bytes),
            row.scheme.clone(),
            row.policy.clone(),
            percent(row.reads_saved),
            percent(row.hit_ratio),
            percent(writes),
            format!("{:.3}", row.read_ms),
            row.dedup_factor.map(percent).unwrap_or_default(),
            metadata,
        ]);
    }
    finish(&lines)
}
