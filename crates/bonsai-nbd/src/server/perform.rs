//! What workers do.

use std::io;
use std::sync::Arc;

use rustix::io::Errno as System;

use super::budget::Buffer;
use super::link::{Link, Reply};
use crate::export::{Export, add};
use crate::image::Image;
use crate::protocol::{Command, Errno, Extent, Request};
use crate::sharing::Written;

/// Extents of one reply, at most: with what stands before them, less than [`EXTENTS_BYTES`].
const MOST_EXTENTS: usize = 1000;
/// What a block status reply takes, at most.
pub(super) const EXTENTS_BYTES: usize = 8192;
/// The page cache is filled in parts of this size, so that a long request ends soon after its client has gone.
const CACHED_TOGETHER: u64 = 8 << 20;

/// A request that waits for the disk. It is counted as under way at its connection.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) link: Arc<Link>,
    pub(super) request: Request,
    /// The data of a write, or room for the reply of a read or block status.
    pub(super) memory: Option<Buffer>,
}

impl Job {
    /// Does it, and answers.
    pub(super) fn perform(self) {
        let Self {
            link,
            request,
            memory,
        } = self;
        let mut reply = match request.command {
            // Nobody waits for it any more.
            _ if !is_done_for(&link, &request) => Reply::default(),
            Command::Read => read(&link, &request, memory),
            Command::BlockStatus => status(&link, &request, memory),
            _ => other(&link, &request, memory),
        };
        reply.counted = true;
        link.reply([reply]);
    }
}

/// Whether a request is to be done: changes that came as a whole are in any case, all else only for a client that is there.
pub(super) fn is_done_for(link: &Link, request: &Request) -> bool {
    match request.command {
        Command::Read => link.is_wanted(request.length.into()),
        Command::BlockStatus | Command::Cache => link.is_wanted(CACHED_TOGETHER),
        _ => true,
    }
}

fn read(link: &Link, request: &Request, memory: Option<Buffer>) -> Reply {
    let Some(mut data) = memory else {
        return failure(link, request, &io::ErrorKind::OutOfMemory.into());
    };
    match link.export.read(&mut data, request.offset) {
        Ok(()) => read_reply(link, request, data),
        Err(error) => failure(link, request, &error),
    }
}

/// The answer to a read that has come to something.
pub(super) fn read_reply(link: &Link, request: &Request, data: Buffer) -> Reply {
    count_read(&link.export, request.length);
    let replies = link.replies();
    let mut head = vec![0; replies.read_header_bytes()];
    replies.read_header(request.cookie, request.offset, request.length, &mut head);
    let length = data.len();
    Reply::bytes(head, Some(data), length)
}

/// Where there is data in a part of the image.
pub(super) fn extents(link: &Link, request: &Request) -> io::Result<Vec<Extent>> {
    let most = if request.one_extent() {
        1
    } else {
        MOST_EXTENTS
    };
    let image = link.export.image();
    image.extents(request.offset, request.length.into(), most)
}

fn status(link: &Link, request: &Request, memory: Option<Buffer>) -> Reply {
    let extents = match extents(link, request) {
        Ok(extents) => extents,
        Err(error) => return failure(link, request, &error),
    };
    let mut reply = Vec::new();
    link.replies().extents(request.cookie, &extents, &mut reply);
    let length = reply.len();
    match memory {
        // Many of these may wait for their client: they are held in what is counted.
        Some(mut data) if length <= data.len() => {
            if let Some(into) = data.get_mut(..length) {
                into.copy_from_slice(&reply);
            }
            Reply::bytes(Vec::new(), Some(data), length)
        }
        _ => Reply::bytes(reply, None, 0),
    }
}

fn other(link: &Link, request: &Request, payload: Option<Buffer>) -> Reply {
    let done = change(link, request, payload.as_deref().unwrap_or_default());
    drop(payload);
    match done {
        Ok(()) => {
            let mut head = Vec::new();
            link.replies().done(request.cookie, &mut head);
            Reply::bytes(head, None, 0)
        }
        Err(error) => failure(link, request, &error),
    }
}

/// Writes a part of a request's data, without counting it.
pub(super) fn write(link: &Link, bytes: &[u8], offset: u64, fua: bool) -> io::Result<()> {
    let range = (offset, bytes.len() as u64);
    let export = &link.export;
    let done = export.change(range, Written::Bytes(bytes), |image| {
        image.write(bytes, offset, fua)
    });
    if fua && done.is_err() {
        export.lost();
    }
    done
}

/// A change is done.
pub(super) fn count_change(link: &Link, request: &Request) {
    let counters = &link.export.counters;
    if request.fua() {
        add(&counters.flushes, 1);
    }
    add(&counters.writes, 1);
    add(&counters.written_bytes, request.length.into());
}

/// Does what changes an image, or has no data to give.
pub(super) fn change(link: &Link, request: &Request, payload: &[u8]) -> io::Result<()> {
    let export = &link.export;
    let (offset, length) = (request.offset, u64::from(request.length));
    let fua = request.fua();
    match request.command {
        Command::Write => {
            let bytes = payload.get(..request.length as usize);
            write(link, bytes.unwrap_or_default(), offset, fua)?;
        }
        Command::Trim if !export.info().discard => {}
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
                let keep = request.no_hole() || !export.info().discard;
                match !keep && is_hole(image, request) {
                    true => Ok(()),
                    false => image.zero(offset, length, keep, request.fast_zero()),
                }
            })?;
        }
        Command::Cache => return fetch(link, (offset, length)),
        Command::Flush => {
            export.flush(|| link.flush())?;
            add(&export.counters.flushes, 1);
            return Ok(());
        }
        Command::Read | Command::BlockStatus | Command::Disconnect | Command::Unknown(_) => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    // A write has it by its own flag.
    if fua && request.command != Command::Write {
        link.flush()?;
    }
    count_change(link, request);
    Ok(())
}

/// Has a part of the image read into the page cache, as long as its client is there.
fn fetch(link: &Link, (offset, length): (u64, u64)) -> io::Result<()> {
    let mut done = 0;
    while done < length && link.is_wanted(CACHED_TOGETHER) {
        let part = CACHED_TOGETHER.min(length - done);
        link.export.image().fetch(offset + done, part)?;
        done += part;
    }
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
    Reply::bytes(head, None, 0)
}

/// The answer to what failed below.
pub(super) fn fail(link: &Link, request: &Request, error: &io::Error, out: &mut Vec<u8>) {
    count_failure(link, request, error);
    answer(link, request, number(error), out);
}

/// Counts and reports what failed below.
pub(super) fn count_failure(link: &Link, request: &Request, error: &io::Error) {
    // Nothing failed where it was asked to fail.
    if error.kind() != io::ErrorKind::Unsupported {
        add(&link.export.counters.failed, 1);
        link.failures.report(request, error);
    }
    if let Some((throttle, (writes, bytes))) = link.export.throttle().zip(request.counted()) {
        throttle.failed(writes, bytes);
    }
}

/// The answer to what is not done, which is counted and reported.
pub(super) fn refuse(link: &Link, request: &Request, error: Errno, out: &mut Vec<u8>) {
    add(&link.export.counters.refused, 1);
    let number = i32::try_from(error.number()).unwrap_or(0);
    // The protocol has the system's numbers.
    let why = io::Error::from_raw_os_error(number);
    link.failures.report(request, &why);
    answer(link, request, error, out);
}

fn answer(link: &Link, request: &Request, error: Errno, out: &mut Vec<u8>) {
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
