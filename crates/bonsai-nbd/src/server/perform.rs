//! What workers do.

use std::io;
use std::sync::Arc;

use rustix::io::Errno as System;

use super::link::{Link, Reply};
use crate::export::{Export, add};
use crate::image::Image;
use crate::protocol::{Command, Errno, Request};
use crate::sharing::Written;

/// Extents of one reply, at most: 8 KiB.
const MOST_EXTENTS: usize = 1024;

/// A request that waits for the disk.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) link: Arc<Link>,
    pub(super) request: Request,
    /// Of a write; its memory may be longer.
    pub(super) payload: Vec<u8>,
    /// What was counted of it at its connection, in bytes.
    pub(super) counted: usize,
}

impl Job {
    /// Does it, and answers.
    pub(super) fn perform(self) {
        let Self {
            link,
            request,
            payload,
            counted,
        } = self;
        let mut reply = match request.command {
            Command::Read => read(&link, &request),
            _ => other(&link, &request, &payload),
        };
        if !payload.is_empty() {
            link.export.pool.give_back(payload);
        }
        reply.counted = Some(counted);
        link.reply([reply]);
    }
}

fn read(link: &Link, request: &Request) -> Reply {
    let export = &link.export;
    let length = request.length as usize;
    let mut data = export.pool.memory(length);
    let into = data.get_mut(..length).unwrap_or_default();
    if let Err(error) = export.read(into, request.offset) {
        export.pool.give_back(data);
        return failure(link, request, &error);
    }
    read_reply(link, request, data)
}

/// The answer to a read that has come to something.
pub(super) fn read_reply(link: &Link, request: &Request, data: Vec<u8>) -> Reply {
    count_read(&link.export, request.length);
    let replies = link.replies();
    let mut head = vec![0; replies.read_header_bytes()];
    replies.read_header(request.cookie, request.offset, request.length, &mut head);
    Reply {
        head,
        data,
        length: request.length as usize,
        counted: None,
    }
}

fn other(link: &Link, request: &Request, payload: &[u8]) -> Reply {
    let mut head = Vec::new();
    if request.command == Command::BlockStatus {
        let most = if request.one_extent() {
            1
        } else {
            MOST_EXTENTS
        };
        let image = link.export.image();
        match image.extents(request.offset, request.length.into(), most) {
            Ok(extents) => link.replies().extents(request.cookie, &extents, &mut head),
            Err(error) => return failure(link, request, &error),
        }
    } else {
        match change(link, request, payload) {
            Ok(()) => link.replies().done(request.cookie, &mut head),
            Err(error) => return failure(link, request, &error),
        }
    }
    Reply {
        head,
        ..Reply::default()
    }
}

/// Does what changes an image, or has no data to give.
pub(super) fn change(link: &Link, request: &Request, payload: &[u8]) -> io::Result<()> {
    let export = &link.export;
    let image = export.image();
    let (offset, length) = (request.offset, u64::from(request.length));
    let fua = request.fua();
    match request.command {
        Command::Write => {
            let bytes = payload.get(..request.length as usize);
            let bytes = bytes.unwrap_or_default();
            let done = export.change((offset, length), Written::Bytes(bytes), |image| {
                image.write(bytes, offset, fua)
            });
            if fua && done.is_err() {
                export.lost();
            }
            done?;
        }
        // The system takes no empty ranges.
        Command::Trim | Command::WriteZeroes | Command::Cache if length == 0 => {}
        Command::Trim => {
            export.change((offset, length), Written::Unknown, |image| {
                match is_hole(image, request) {
                    true => Ok(()),
                    false => image.trim(offset, length),
                }
            })?;
        }
        Command::WriteZeroes => {
            export.change((offset, length), Written::Zeroes, |image| {
                match !request.no_hole() && is_hole(image, request) {
                    true => Ok(()),
                    false => image.zero(offset, length, request.no_hole(), request.fast_zero()),
                }
            })?;
        }
        Command::Cache => return image.fetch(offset, length),
        Command::Flush => {
            export.flush(|| link.flush())?;
            add(&export.counters.flushes, 1);
            return Ok(());
        }
        Command::Read | Command::BlockStatus | Command::Disconnect | Command::Unknown(_) => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    if fua {
        // A write has it by its own flag.
        if request.command != Command::Write {
            link.flush()?;
        }
        add(&export.counters.flushes, 1);
    }
    add(&export.counters.writes, 1);
    add(&export.counters.written_bytes, length);
    Ok(())
}

/// Whether all that a request is about is a hole: then there is nothing to trim, or to make zeroes. To ask takes a tenth of
/// the time of punching it once more, which waits for the file system's journal.
pub(super) fn is_hole(image: &Image, request: &Request) -> bool {
    let end = request.offset + u64::from(request.length);
    matches!(image.extent(request.offset, end), Ok((next, true)) if next >= end)
}

pub(super) fn count_read(export: &Export, length: u32) {
    add(&export.counters.reads, 1);
    add(&export.counters.read_bytes, length.into());
}

fn failure(link: &Link, request: &Request, error: &io::Error) -> Reply {
    let mut head = Vec::new();
    fail(link, request, error, &mut head);
    Reply {
        head,
        ..Reply::default()
    }
}

/// The answer to what failed below.
pub(super) fn fail(link: &Link, request: &Request, error: &io::Error, out: &mut Vec<u8>) {
    // Nothing failed where it was asked to fail.
    if error.kind() != io::ErrorKind::Unsupported {
        add(&link.export.counters.failed, 1);
    }
    if let Some((throttle, (writes, bytes))) = link.export.throttle().zip(request.counted()) {
        throttle.failed(writes, bytes);
    }
    refuse(link, request, number(error), out);
}

/// The answer to what is not done.
pub(super) fn refuse(link: &Link, request: &Request, error: Errno, out: &mut Vec<u8>) {
    let chunked = matches!(request.command, Command::Read | Command::BlockStatus);
    link.replies().failed(request.cookie, error, chunked, out);
}

/// The system's errors as those of the protocol.
fn number(error: &io::Error) -> Errno {
    if error.kind() == io::ErrorKind::Unsupported {
        return Errno::NotSup;
    }
    match error.raw_os_error().map(System::from_raw_os_error) {
        Some(System::NOSPC | System::DQUOT | System::FBIG) => Errno::NoSpc,
        Some(System::NOMEM) => Errno::NoMem,
        Some(System::PERM | System::ROFS | System::ACCESS) => Errno::Perm,
        _ => Errno::Io,
    }
}
