//! `bonsai drive`: disk images for guests.

mod escape;
mod exports;
mod images;
mod lines;
mod listen;
mod log;
mod metrics;
mod pid_file;
mod scan;
mod serve;
mod service;
mod status;
mod tls;

use crate::cli::DriveCommand;

pub(crate) use serve::folder;

/// `bonsai drive`.
///
/// # Errors
/// What was asked for makes no sense, or cannot be served.
pub(crate) fn run(command: &DriveCommand) -> anyhow::Result<u8> {
    match command {
        DriveCommand::Serve(args) => serve::run(args),
        DriveCommand::Status(args) => status::run(args),
    }
}
