//! `bonsai trace`: block traces.
//!
//! | module | what is in it |
//! |---|---|
//! | `export` | formats for others |
//! | `files` | where traces come from and go to |
//! | `import` | formats of others |
//! | `made` | twins |
//! | `opened` | a trace of any format, for all that read one |
//! | `record` | what servers and devices are asked for |
//! | `stat`, `page` | what a trace is like, as text and as a page |
//! | `replay` | a trace against servers of NBD |
//! | `show` | the first requests |

mod export;
mod files;
mod import;
mod made;
mod opened;
mod page;
mod record;
mod replay;
mod show;
mod stat;

use crate::cli::TraceCommand;

pub(crate) use files::{create_output, output_error, save, write_output};
pub(crate) use import::said;
pub(crate) use page::{COLOURS, escaped, plot};
pub(crate) use record::{available, create};
pub(crate) use show::trace;
pub(crate) use stat::size;

/// Does what one of the subcommands says.
///
/// # Errors
/// A trace that cannot be read, is bad, or cannot be written.
pub(crate) fn run(command: &TraceCommand) -> anyhow::Result<u8> {
    match command {
        TraceCommand::Import(args) => import::run(args)?,
        TraceCommand::Record(args) => return record::run(args),
        TraceCommand::Head(args) => show::head(args)?,
        TraceCommand::Export(args) => export::run(args)?,
        TraceCommand::Stat(args) => stat::run(args)?,
        TraceCommand::Gen(args) => made::run(args)?,
        TraceCommand::Replay(args) => return replay::run(args),
    }
    Ok(0)
}
