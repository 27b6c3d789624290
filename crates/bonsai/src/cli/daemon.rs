//! The daemon and what is asked of it.

use std::path::PathBuf;

use bonsai_api::Span;
use bonsai_units::Resource;
use clap::{Args, Subcommand};

/// Observe all services, decide who gets how much, and enforce that, live.
///
/// It adopts the services that run, shares out the capacity of bonsai.toml among them, and answers
/// over a Unix socket: commands, a page in the browser, a REST interface. It is never in the way of
/// a service: when it ends, the limits stay as they are. Root's is for the whole machine; anybody
/// else's is for their own services.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai daemon
  bonsai daemon --config bonsai.toml
  bonsai daemon --listen 127.0.0.1:7117")]
pub(crate) struct Daemon {
    /// The configuration file.
    ///
    /// Without it /etc/bonsai/bonsai.toml for root, otherwise ~/.config/bonsai/bonsai.toml, if it is
    /// there. It is read again when it changes.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Also answer over TCP at this address, to whoever has a token; instead of the file's.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,
}

/// Look at what is configured, check a file, or change it while the daemon runs.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether a configuration file could be used, and what is wrong with it where.
    ///
    /// Nothing is changed. The exit code is 2 if it could not.
    #[command(after_help = "\
Examples:
  bonsai config check
  bonsai config check bonsai.toml")]
    Check {
        /// The file; without it the one that the daemon would read.
        file: Option<PathBuf>,

        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what is in force: the file with all changes since, as TOML.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Change what is in force, such as policy.mode=static capacity.send=1Gbit/s; NAME= removes.
    #[command(after_help = "\
Examples:
  bonsai config set policy.mode=adaptive
  bonsai config set policy.automatic=on --reason 'the proposals of last week were good'
  bonsai config set groups.tenants.send.max=50% --for 2h
  bonsai config set services.web.target=container:web services.web.uplink=eth0
  bonsai config set services.db.target=unit:db.service services.db.cpu.quota=150%")]
    Set {
        /// What is to be different.
        #[arg(required = true, value_name = "NAME=VALUE")]
        values: Vec<String>,

        #[command(flatten)]
        how: Changing,

        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// How a change is made that goes through the daemon.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Changing {
    /// End the change by itself after this time, such as 10min; needs the daemon.
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    pub(crate) lasts: Option<Span>,

    /// Change nothing; show what would be different, and what all would get; needs the daemon.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Why, for the audit trail; at most 1000 characters.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: Option<String>,
}

/// A reason is refused here as by the daemon, which may be of another user.
fn reason(text: &str) -> Result<String, String> {
    bonsai_daemon::check_reason(text).map(|()| text.to_owned())
}

/// A time to look back: from a second on.
fn past(text: &str) -> Result<Span, String> {
    let past = span(text)?;
    if past.0 < std::time::Duration::from_secs(1) {
        return Err(format!(
            "{text:?} is too short: history is kept by the second, so write 1s or more"
        ));
    }
    Ok(past)
}

pub(super) fn span(text: &str) -> Result<Span, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Take the last change back that went through the daemon, or all since a revision.
#[derive(Args, Debug)]
pub(crate) struct Undo {
    /// The revision to go back to; without it, the one before the last change.
    #[arg(long, value_name = "REVISION")]
    pub(crate) to: Option<u64>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Change nothing; show the changes that would be taken back, their actors, and what all would get.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Show what the daemon has decided for each service, and why.
#[derive(Args, Debug)]
pub(crate) struct Shares {
    /// Only this service.
    pub(crate) service: Option<String>,

    /// Also resources that are not shared out.
    #[arg(long, short)]
    pub(crate) all: bool,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show who changed what, when, from what to what, and why.
#[derive(Args, Debug)]
pub(crate) struct Log {
    /// Only changes of this service.
    pub(crate) service: Option<String>,

    /// How many, the youngest.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub(crate) number: u32,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Look back at what a service got, or write it to a file.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai history vod
  bonsai history vod --resource read --since 24h
  bonsai history --since 24h --export parquet --output yesterday.parquet")]
pub(crate) struct Past {
    /// The service; all together without it.
    pub(crate) service: Option<String>,

    /// The resource: read, write, send, recv or calls.
    #[arg(long, short, default_value = "send")]
    pub(crate) resource: Resource,

    /// How far back.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = past)]
    pub(crate) since: Span,

    /// Write rows of all that is known to a file: csv or parquet.
    #[arg(long, value_name = "FORMAT", value_parser = ["csv", "parquet"])]
    pub(crate) export: Option<String>,

    /// The file; standard output without it.
    #[arg(long, short, requires = "export", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say whether more streams fit, how likely all get what they need, and what would have to give.
///
/// The exit code is 1 if they do not fit.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai admit vod --streams 10 --rate 2Mbit/s
  bonsai admit backup --streams 1 --rate 50MB/s --resource read")]
pub(crate) struct Admit {
    /// The service that would serve them.
    pub(crate) service: String,

    /// How many.
    #[arg(long, short)]
    pub(crate) streams: u32,

    /// The rate of each, such as 2Mbit/s.
    #[arg(long, short)]
    pub(crate) rate: String,

    /// Of what: read, write, send, recv or calls.
    #[arg(long, default_value = "send")]
    pub(crate) resource: Resource,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell the daemon what the clients of a service see.
///
/// In mode qos its guarantee follows these reports until the target of its class holds.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  bonsai report vod --loss 0.002 --jitter 12 --stalls 0")]
pub(crate) struct Report {
    /// The service.
    pub(crate) service: String,

    /// The part of packets that was lost, 0 to 1.
    #[arg(long)]
    pub(crate) loss: Option<f64>,

    /// Delay, ms.
    #[arg(long)]
    pub(crate) delay: Option<f64>,

    /// Jitter (RFC 3550), ms.
    #[arg(long)]
    pub(crate) jitter: Option<f64>,

    /// Stalls since the last report.
    #[arg(long)]
    pub(crate) stalls: Option<u32>,

    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Open the page: print its address, which holds for twelve hours and for whoever has it.
#[derive(Args, Debug)]
pub(crate) struct Page {
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make, list and revoke tokens for the interface over TCP.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it; it is not shown again.
    Create {
        /// What it is called.
        name: String,

        /// What its bearer may do: read or write.
        #[arg(long, default_value = "read", value_parser = ["read", "write"])]
        scope: String,

        /// How long it holds, such as 720h; for good without it.
        #[arg(long = "for", value_name = "TIME", value_parser = span)]
        lasts: Option<Span>,

        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the tokens there are, and when they end.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// End a token.
    Revoke {
        /// What it is called.
        name: String,

        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}
