//! `bonsai drive status`.

use bonsai_nbd::control::{self, ExportStatus, ServerStatus};
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
    if let Some(wrong) = &of.wrong {
        text += &format!("    {wrong}\n");
    }
    text
}
