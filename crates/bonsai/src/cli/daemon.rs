//! The daemon and what is asked of it.

use std::path::PathBuf;

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

/// Look at a configuration file.
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
    },
}
