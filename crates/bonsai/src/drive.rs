//! `bonsai drive`: disk images for guests.

mod escape;
mod exports;
mod images;
mod listen;
mod log;
mod metrics;
mod pid_file;
mod scan;
mod serve;
mod service;
mod status;
mod tls;

use bonsai_services::refusal::{Refusal, exit_code};

use crate::cli::DriveCommand;
use crate::output::is_closed_pipe;

pub(crate) use serve::folder;

/// `bonsai drive`.
///
/// # Errors
/// What was asked for makes no sense, or cannot be served.
pub(crate) fn run(command: &DriveCommand) -> anyhow::Result<u8> {
    let done = match command {
        DriveCommand::Serve(args) => serve::run(args),
        DriveCommand::Status(args) => status::run(args),
    };
    done.map_err(|error| {
        if is_closed_pipe(&error) {
            return error;
        }
        // It may name files, whose names others have chosen.
        let text = format!("{error:#}");
        Refusal::code(exit_code(&error), escape::escaped(&text))
    })
}
