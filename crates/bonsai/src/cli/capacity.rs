//! What the machine has.

use std::path::PathBuf;

use bonsai_api::Span;
use bonsai_units::Resource;
use clap::{Args, Subcommand};

use super::daemon::span;

/// Show what the machine has of each resource, or measure it.
///
/// What is shared out is a capacity that was configured, or measured and then configured; nothing
/// is guessed.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum CapacityCommand {
    /// Show the capacities in force, and where each is from.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    Probe(Probe),
}

const EXAMPLES: &str = "\
Examples:
  bonsai capacity show
  bonsai capacity probe read --path /srv/media
  bonsai capacity probe write --path /srv/media --for 10s --apply
  bonsai capacity probe send --interface eth0";

/// Measure what the machine has of a resource.
///
/// A disk reads or writes a file without a name for some seconds, past all caches: at most 256 MiB
/// and a twentieth of what is free, and at most 4 GiB are written. What others move meanwhile is
/// added. Others are slower for that time. Of a link the speed is read that its driver says; nothing
/// is sent. Nothing is configured but with --apply.
#[derive(Args, Debug)]
pub(crate) struct Probe {
    /// The resource: read, write, send or recv.
    pub(crate) resource: Resource,

    /// For read and write: a folder on the disk; without it, where the daemon keeps its state.
    #[arg(long, value_name = "DIR")]
    pub(crate) path: Option<PathBuf>,

    /// For send and recv: the interface; without it, the one of the default route.
    #[arg(long, value_name = "NAME", conflicts_with = "path")]
    pub(crate) interface: Option<String>,

    /// For how long, from 1s to 20s.
    #[arg(long = "for", value_name = "TIME", default_value = "3s", value_parser = span)]
    pub(crate) lasts: Span,

    /// Configure what was measured as the capacity.
    #[arg(long)]
    pub(crate) apply: bool,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
