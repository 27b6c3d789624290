//! `bonsai drive status`.

use bonsai_nbd::control::{self, ExportStatus, ServerStatus, SharingStatus};
use bonsai_services::observe::SCHEMA;
use serde_json::json;

use super::serve::folder;
use crate::cli::DriveStatus;
use crate::output::{print, print_json};

/// `bonsai drive status`.
///
/// # Errors
/// The servers' folder cannot be read.
pub(super) fn run(args: &DriveStatus) -> anyhow::Result<u8> {
    let servers = control::ask_all(&folder()?)?;
    if args.json {
        print_json(&json!({ "schema": SCHEMA, "servers": servers }), false)?;
        return Ok(0);
    }
    if servers.is_empty() {
        print("no images are served\n")?;
        return Ok(0);
    }
    print(&servers.iter().map(text).collect::<String>())?;
    Ok(0)
}

fn text(server: &ServerStatus) -> String {
    let head = format!("server {}\n", server.pid);
    head + &server.exports.iter().map(of_export).collect::<String>()
}

fn of_export(of: &ExportStatus) -> String {
    let mut text = format!(
        "  {} ({}{}): {} connections\n    {} reads, {} bytes, {} at once; {} writes, {} bytes; {} flushes; {} refused, {} failed\n",
        of.name,
        of.image,
        if of.read_only { ", read-only" } else { "" },
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
        text += &format!("    {wrong}\n");
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
    of the server: {} blocks known, dedup factor {factor:.2}, metadata {} of {} bytes; outside writes {}\n",
        of.group,
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
    )
}
