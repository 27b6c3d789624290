//! Services, live.

use std::time::Duration;

use clap::Args;

use super::look::interval;
use crate::top::Sort;

/// Show services live in the terminal, and change their limits there.
///
/// A change is typed as for `bonsai set`, and goes the same way: through the daemon where one runs,
/// otherwise to the service at once.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys:
  up, down, page up, page down, home, end   choose a limit, or a service without any
  e or Enter   change it: 5MB/s, off, read=20MB/s:burst=1MB, send.min=40Mbit/s, weight=3
  u            take the last change back that was made here (where the daemon runs)
  / or s or r  filter, sort by the next (name, got, full, waits), the other way round
  ? or Esc     all keys, one step back
  q            quit

Examples:
  bonsai top
  bonsai top vod --interval 200ms
  bonsai top --sort waits --filter send
  bonsai top --once")]
pub(crate) struct Top {
    /// Only this service.
    pub(crate) service: Option<String>,

    /// Time between two pictures, and over which rates are measured.
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// What services are sorted by.
    #[arg(long, value_name = "BY", value_enum, default_value_t)]
    pub(crate) sort: Sort,

    /// Only services, or limits, with this text in their names.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) filter: String,

    /// Print one picture as text and end; needs no terminal.
    #[arg(long)]
    pub(crate) once: bool,

    /// One line of JSON each time instead of a picture; needs no terminal. It has all services.
    #[arg(long, conflicts_with_all = ["sort", "filter"])]
    pub(crate) json: bool,
}
