//! `bonsai trace head`.

use serde_json::json;

use super::import::said;
use crate::cli::TraceHead;
use crate::output::{escaped, finish, print, table};

pub(crate) use super::opened::trace;

pub(super) fn head(args: &TraceHead) -> anyhow::Result<()> {
    let (reader, _) = trace(&args.trace)?;
    let mut reader = reader.keeping_fingerprints();
    let name = args.trace.display().to_string();
    let mut left = args.number;
    let mut lines = table(
        &["time", "volume", "op", "offset", "length", "contents"],
        &[0, 3, 4],
    );
    let mut text = String::new();
    while left > 0 {
        let Some(batch) = reader.next_batch().map_err(|error| said(&name, error))? else {
            break;
        };
        let batch = batch.clone();
        for request in batch
            .iter()
            .take(usize::try_from(left).unwrap_or(usize::MAX))
        {
            left -= 1;
            let volume = &reader.volumes()[request.volume as usize].name;
            let digests = request
                .contents
                .iter()
                .map(|content| reader.fingerprints()[*content as usize].to_string());
            if args.json {
                let line = json!({
                    "time_ns": request.time_ns,
                    "volume": volume,
                    "op": request.op.word(),
                    "offset": request.offset,
                    "length": request.length,
                    "contents": digests.collect::<Vec<_>>(),
                });
                text += &format!("{line}\n");
                continue;
            }
            let seconds = format!(
                "{}.{:09} s",
                request.time_ns / 1_000_000_000,
                request.time_ns % 1_000_000_000
            );
            let mut contents = digests.take(1).collect::<String>();
            if request.contents.len() > 1 {
                contents += &format!(" and {} more", request.contents.len() - 1);
            }
            lines.add_row([
                seconds,
                escaped(volume),
                request.op.word().to_owned(),
                request.offset.to_string(),
                request.length.to_string(),
                contents,
            ]);
        }
    }
    if !args.json {
        text = finish(&lines);
    }
    print(&text)
}
