//! Mapping the engine and a ledger into a stopped process.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::runner::Runner;
use super::shared::Shared;
use super::{AttachError, ENTRIES, PAGE, Process, STACK, TWINS};
use crate::engine::Engine;

/// Executable, readable, writable.
const X: u64 = 4;
const W: u64 = 2;
const R: u64 = 1;
const MAP_SHARED: u64 = 1;
const MAP_PRIVATE: u64 = 2;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const O_RDWR: u64 = 2;
const O_CLOEXEC: u64 = 0o2_000_000;
const AF_UNIX: u64 = 1;
const SOCK_DGRAM: u64 = 2;
const MSG_CMSG_CLOEXEC: u64 = 0x4000_0000;

mod nr {
    pub(super) const OPEN: u64 = 2;
    pub(super) const CLOSE: u64 = 3;
    pub(super) const MMAP: u64 = 9;
    pub(super) const MUNMAP: u64 = 11;
    pub(super) const MADVISE: u64 = 28;
    pub(super) const RECVMSG: u64 = 47;
    pub(super) const SOCKETPAIR: u64 = 53;
}

/// Takes a free region; false if it is not free any more.
pub(super) fn reserve(runner: &Runner, at: u64, len: u64) -> Result<bool, AttachError> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let region = [at, len, R | W, flags, u64::MAX, 0];
    Ok(runner.call("mmap", nr::MMAP, region)? == at)
}

/// Gives one back. What cannot be removed is in nobody's way.
pub(super) fn remove(runner: &Runner, at: u64, len: u64) {
    let _ = runner.call("munmap", nr::MUNMAP, [at, len, 0, 0, 0, 0]);
}

/// Gives the memory of the engine's stack back, which is in use for an instant only.
pub(super) fn empty(runner: &Runner, top: u64) {
    const MADV_DONTNEED: u64 = 4;
    let at = super::borrowed::stack(top).start;
    // Memory that stays in use is in nobody's way.
    let _ = runner.call("madvise", nr::MADVISE, [at, STACK, MADV_DONTNEED, 0, 0, 0]);
}

/// Fills the region at `at`: engine, twins, stack; and maps the ledger.
pub(super) fn fill(
    process: &Process,
    runner: &Runner,
    engine: &Engine,
    ledger: &Path,
    at: u64,
    mapped: &mut Vec<(u64, u64)>,
) -> Result<Shared, AttachError> {
    let twins = at + engine.len.next_multiple_of(PAGE);
    let entries = twins + TWINS;
    let stack = entries + ENTRIES;
    let open = |path: &Path| {
        let file = File::options().read(true).write(path == ledger).open(path);
        file.map_err(|error| AttachError::system("the service's files", error))
    };
    let files = [open(&engine.path)?, open(ledger)?];
    let [code, segment] = hand_over(process, runner, &files, stack)
        .or_else(|_| open_there(process, runner, [&engine.path, ledger], stack))?;
    for part in &engine.parts {
        let rights = if part.code { R | X } else { R | W };
        let (from, len) = (at + part.at, part.file_len.next_multiple_of(PAGE));
        let flags = MAP_PRIVATE | MAP_FIXED;
        runner.call(
            "mmap",
            nr::MMAP,
            [from, len, rights, flags, code, part.offset],
        )?;
        if !part.code {
            // What the file has behind it is not zero.
            let rest = usize::try_from(len - part.file_len).unwrap_or(0);
            process.write(from + part.file_len, &vec![0; rest])?;
        }
    }
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    runner.call("mmap", nr::MMAP, [twins, TWINS, R | X, flags, u64::MAX, 0])?;
    let len = bonsai_ledger::TOTAL_LEN as u64;
    let map = [0, len, R | W, MAP_SHARED, segment, 0];
    let ledger_at = runner.call("mmap", nr::MMAP, map)?;
    mapped.push((ledger_at, len));
    for fd in [code, segment] {
        runner.call("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0])?;
    }
    for (word, value) in &engine.relocations {
        process.write(at + word, &(at + value).to_le_bytes())?;
    }
    let data = engine.parts.iter().filter(|part| !part.code);
    let shared = data
        .map(|part| at + part.at..at + part.at + part.file_len.next_multiple_of(PAGE))
        .find_map(|range| Shared::find(&process.memory, range));
    let shared = shared.ok_or(AttachError::OtherEngine)?;
    shared.place([twins, stack + STACK - 64, ledger_at], entries..stack)?;
    Ok(shared)
}

/// Hands files over through a pair of sockets: its user, its root and its name spaces
/// may be others, so that it could not open them. `room` is memory of its own.
fn hand_over(
    process: &Process,
    runner: &Runner,
    files: &[File; 2],
    room: u64,
) -> Result<[u64; 2], AttachError> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let errno = |errno: rustix::io::Errno| AttachError::system("a socket of it", errno);
    let numbers = |at: u64| {
        let mut bytes = [0_u8; 8];
        let read = process.memory.read_exact_at(&mut bytes, at);
        read.map_err(|error| AttachError::system("its memory", error))?;
        let [a, b] = [0, 4].map(|i| bytes.get(i..i + 4).map_or(0, word));
        Ok([a, b])
    };
    let pair = [AF_UNIX, SOCK_DGRAM | O_CLOEXEC, 0, room, 0, 0];
    runner.call("socketpair", nr::SOCKETPAIR, pair)?;
    let [theirs, ours] = numbers(room)?;
    let passed = (|| {
        let pid = rustix::process::Pid::from_raw(process.held.pid.as_raw());
        let pid = pidfd_open(pid.ok_or(AttachError::Gone)?, PidfdFlags::empty()).map_err(errno)?;
        let number = i32::try_from(ours).unwrap_or(-1);
        let socket = pidfd_getfd(pid, number, PidfdGetfdFlags::empty()).map_err(errno)?;
        let fds = [files[0].as_fd(), files[1].as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); 64];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let byte = [std::io::IoSlice::new(b"B")];
        sendmsg(&socket, &byte, &mut control, SendFlags::empty()).map_err(errno)?;
        // struct iovec, struct msghdr, and where they point.
        let (vector, header, control) = (room + 16, room + 128, room + 256);
        let words = |words: &[u64]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<_>>()
        };
        process.write(vector, &words(&[room + 64, 1]))?;
        process.write(header, &words(&[0, 0, vector, 1, control, 64, 0]))?;
        let receive = [theirs, header, MSG_CMSG_CLOEXEC, 0, 0, 0];
        runner.call("recvmsg", nr::RECVMSG, receive)?;
        // Behind the head of the message, a struct cmsghdr.
        numbers(control + 16)
    })();
    for fd in [theirs, ours] {
        runner.call("close", nr::CLOSE, [fd, 0, 0, 0, 0, 0])?;
    }
    passed
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Has it open files by their names.
fn open_there(
    process: &Process,
    runner: &Runner,
    paths: [&Path; 2],
    room: u64,
) -> Result<[u64; 2], AttachError> {
    let mut fds = [0; 2];
    for ((path, mode), fd) in paths.into_iter().zip([0, O_RDWR]).zip(&mut fds) {
        process.write(room, &crate::enter::path_bytes(path))?;
        *fd = runner.call("open", nr::OPEN, [room, mode | O_CLOEXEC, 0, 0, 0, 0])?;
    }
    Ok(fds)
}
