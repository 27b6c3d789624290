//! `bonsai drive status`.

use std::time::Duration;

use bonsai_nbd::control::{
    Ask, Asked, ExportStatus, ServerShares, ServerStatus, SharingStatus, ask_all,
};
use bonsai_nbd::sharing::{CacheShares, GroupShares, ScanPhase};
use bonsai_services::observe::SCHEMA;
use bonsai_units::Bytes;
use serde_json::{Value, json};

use super::serve::folder;
use crate::cli::DriveStatus;
use crate::output::{count, escaped, finish, print, print_json, table};

/// How long servers may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long they may take to count what images have in common.
const COUNTING: Duration = Duration::from_secs(5);

/// A block, in bytes.
const BLOCK: u64 = 4096;

/// `bonsai drive status`.
///
/// # Errors
/// The servers' folder cannot be read.
pub(super) fn run(args: &DriveStatus) -> anyhow::Result<u8> {
    let folder = folder()?;
    let servers = ask_all::<ServerStatus>(&folder, Ask::Status, PATIENCE, |_| true)?;
    // Whoever did not answer is not asked for more.
    let answered = |pid: u32| {
        let mut answered = servers.iter().filter(|server| server.answer.is_some());
        answered.any(|server| server.pid == pid)
    };
    let shares = ask_all::<ServerShares>(&folder, Ask::Shares, COUNTING, answered)?;
    let of = |pid: u32| {
        let shares = shares.iter().find(|shares| shares.pid == pid);
        shares.and_then(|shares| shares.answer.as_ref())
    };
    if args.json {
        let answered = servers.iter().filter_map(|server| {
            let mut value = json!(server.answer.as_ref()?);
            if let Value::Object(fields) = &mut value {
                fields.insert("shares".to_owned(), json!(of(server.pid)));
            }
            Some(value)
        });
        let silent = servers.iter().filter(|server| server.answer.is_none());
        let silent: Vec<u32> = silent.map(|server| server.pid).collect();
        let servers: Vec<Value> = answered.collect();
        let document = json!({ "schema": SCHEMA, "servers": servers, "without_answer": silent });
        print_json(&document, false)?;
        return Ok(0);
    }
    if servers.is_empty() {
        print("no images are served\n")?;
        return Ok(0);
    }
    let texts = servers.iter().map(|server| text(server, of(server.pid)));
    print(&texts.collect::<String>())?;
    Ok(0)
}

fn text(server: &Asked<ServerStatus>, shares: Option<&ServerShares>) -> String {
    let Some(status) = &server.answer else {
        return format!("server {} does not answer\n", server.pid);
    };
    let head = format!("server {}\n", status.pid);
    let shares = shares.map_or(&[][..], |shares| &shares.groups);
    // A group of one shares only with itself, which its export says.
    let groups = shares.iter().map(of_group);
    head + &status.exports.iter().map(of_export).collect::<String>() + &groups.collect::<String>()
}

fn of_export(of: &ExportStatus) -> String {
    let service = of.service.as_ref().filter(|service| **service != of.name);
    let mut text = format!(
        "  {} ({}{}{}): {} connections\n    {} reads, {} bytes, {} at once; {} writes, {} bytes; {} flushes; {} refused, {} failed\n",
        escaped(&of.name),
        escaped(&of.image),
        if of.read_only { ", read-only" } else { "" },
        service.map_or_else(String::new, |service| format!(
            ", the service {}",
            escaped(service)
        )),
        of.connections,
        of.reads,
        of.read_bytes,
        of.at_once,
        of.writes,
        of.written_bytes,
        of.flushes,
        of.refused,
        of.failed,
    );
    if let Some(shared) = &of.sharing {
        text += &of_sharing(shared);
    }
    if let Some(recording) = &of.recording {
        text += &format!(
            "    is recorded: {} requests, {} lost\n",
            recording.requests, recording.lost
        );
    }
    if let Some(wrong) = &of.wrong {
        text += &format!("    {}\n", escaped(wrong));
    }
    text
}

/// How far a scan is, and why nothing is shared now.
fn of_scan(of: &SharingStatus) -> String {
    let scan = &of.scan;
    let mut text = match scan.phase {
        ScanPhase::None => String::new(),
        ScanPhase::Queued => "    scan: queued\n".to_owned(),
        ScanPhase::Waiting => {
            "    scan: waits until no other program has the image open\n".to_owned()
        }
        ScanPhase::Loading => "    scan: loads the fingerprints that were kept\n".to_owned(),
        ScanPhase::Reading => {
            let percent = (scan.done_bytes * 100).checked_div(scan.total_bytes);
            format!("    scan: {} % of the image\n", percent.unwrap_or(0))
        }
        ScanPhase::Done => "    scan: done\n".to_owned(),
        ScanPhase::Failed => "    scan: failed, see the server's log\n".to_owned(),
    };
    if let Some(why) = &of.unguarded {
        text += &format!("    not shared now: {why}\n");
    }
    text
}

fn of_sharing(of: &SharingStatus) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let factor = match of.contents {
        0 => 1.0,
        contents => of.known_blocks as f64 / contents as f64,
    };
    format!(
        "    group {}: {} reads saved, {} bytes redirected, {} bytes of zeroes; charged to this export as read
    not redirected (blocks): {} not known, {} lead, {} cold, {} split, {} raced, {} wrong; {} not learned
    of the server: {} blocks known, dedup factor {factor:.2}, metadata {} of {} bytes; outside writes {}\n{}",
        escaped(&of.group),
        of.reads_saved,
        of.redirected_bytes,
        of.zero_bytes,
        of.not_known,
        of.leads,
        of.cold,
        of.split,
        of.raced,
        of.wrong,
        of.not_learned,
        of.known_blocks,
        of.metadata_bytes,
        of.metadata_limit,
        of.outside_writes,
        of_scan(of),
    )
}

fn of_group(of: &GroupShares) -> String {
    let size = |blocks: u64| Bytes(blocks * BLOCK).human();
    let known: u64 = of.known_blocks.iter().sum();
    let about = match of.one_in {
        1 => String::new(),
        n => format!(", by one content in {n}"),
    };
    let mut text = format!(
        "  group {}: {} known of {}, {} different{about}; zeroes aside\n",
        escaped(&of.group),
        size(known),
        count(of.exports.len() as u64, "export", "exports"),
        size(of.contents),
    );
    if of.exports.len() > 1 && !of.shared_blocks.is_empty() {
        let names: Vec<String> = of.exports.iter().map(|name| escaped(name)).collect();
        let mut head = vec!["of", "known"];
        head.extend(names.iter().map(String::as_str));
        let numbers: Vec<usize> = (1..head.len()).collect();
        let mut rows = table(&head, &numbers);
        let known = of.known_blocks.iter().zip(&names);
        for ((known, name), shared) in known.zip(&of.shared_blocks) {
            let cells = [name.clone(), size(*known)].into_iter();
            rows.add_row(cells.chain(shared.iter().map(|blocks| size(*blocks))));
        }
        text += "  what each (row) has in common with each (column), with itself in other blocks\n";
        text += &finish(&rows);
    } else if of.exports.len() > 1 {
        text += "  too many exports to count what each two have in common\n";
    }
    text + &of_cache(of.cache.as_ref())
}

fn of_cache(of: Option<&CacheShares>) -> String {
    let size = |blocks: u64| Bytes(blocks * BLOCK).human();
    let Some(of) = of else {
        return "  in the page cache: the kernel does not say (cachestat, Linux 6.5)\n".to_owned();
    };
    let Some(factor) = of.dedup_factor else {
        return "  in the page cache: none of it\n".to_owned();
    };
    let error = match of.one_in {
        1 => String::new(),
        n => format!(" ± {:.2} (one content in {n})", of.error),
    };
    format!(
        "  in the page cache: {} of it, {} different, dedup factor {factor:.2}{error}\n",
        size(of.resident_blocks),
        size(of.contents),
    )
}
