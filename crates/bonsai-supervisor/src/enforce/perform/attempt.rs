//! One attempt at a call, without waiting: as much as goes at once.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::FileType;

use super::address;
use super::control::{self, Sender};
use super::job::option;
use super::local::Local;
use super::plan::{Message, Plan};
use crate::enforce::amount;
use crate::enforce::memory::{self, write_exactly};
use crate::enforce::rights::{self, Rights};

/// All flags of `preadv2` that there are (linux/fs.h of 6.18): with others the kernel refuses it.
pub(super) const FLAGS: i32 = 0x1ff;

/// What an attempt came to.
pub(super) enum Came {
    /// It moved so many bytes.
    Bytes(u64),
    /// It may wait for a device, which is not for whoever makes the attempt.
    Elsewhere,
    /// It would have to wait until the descriptor is ready for these events.
    NotYet(RawFd, i16),
}

/// The descriptors and the thread of a call.
pub(super) struct Ends<'a> {
    pub(super) tid: u32,
    pub(super) pid: u32,
    pub(super) process: &'a OwnedFd,
    pub(super) rights: Option<&'a Arc<Rights>>,
    /// What it sends goes to a Unix socket.
    pub(super) is_unix: bool,
    /// A process of the service has entered a Landlock domain of its own.
    pub(super) is_confined: bool,
    pub(super) nr: u32,
    pub(super) args: [u64; 6],
    pub(super) fd: &'a OwnedFd,
    /// Where a transfer goes to.
    pub(super) other: Option<&'a OwnedFd>,
    pub(super) kind: FileType,
    /// What a transfer goes to is; [`FileType::Unknown`] of none.
    pub(super) other_kind: FileType,
    /// Nothing may be waited for, not even a device: others would wait with us.
    pub(super) hurries: bool,
    /// Whether the thread still waits, and so still is who had its number.
    pub(super) waits: &'a dyn Fn() -> bool,
    /// Gives a descriptor of ours to the thread: its number there.
    pub(super) give: &'a dyn Fn(&OwnedFd, bool) -> io::Result<i32>,
}

pub(super) fn checked(result: isize) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::last_os_error())
}

pub(super) fn is_later(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

fn is_there(process: &OwnedFd) -> bool {
    let none = std::ptr::null::<libc::siginfo_t>();
    let process = process.as_raw_fd();
    // SAFETY: signal 0 does nothing.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, 0, none, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Nothing would be waited for, and something had to be; or that is not known beforehand.
fn is_refused(error: &io::Error) -> bool {
    is_later(error) || error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

pub(super) fn ready(fd: RawFd, events: i16) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one descriptor, and no wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// Whether a call has to wait for these events. A socket that listens neither sends nor receives: it refuses.
pub(super) fn would_wait(fd: RawFd, events: i16) -> bool {
    !ready(fd, events) && !listens(fd)
}

fn listens(fd: RawFd) -> bool {
    option::<4>(fd, libc::SO_ACCEPTCONN).is_some_and(|value| i32::from_le_bytes(value) != 0)
}

impl Ends<'_> {
    /// Makes the call for at most `len` bytes, `done` bytes further on.
    pub(super) fn attempt(&self, plan: &Plan, done: u64, len: u64) -> io::Result<Came> {
        match plan {
            Plan::Write {
                spans,
                offset,
                flags,
            } => {
                let mut copied = Local::copied(self.tid, spans, done, len)?;
                // Pages are given one by one (vmsplice(2)).
                if self.nr == 278 && !copied.bytes.is_empty() {
                    copied.missing = 0;
                }
                self.still_waits()?;
                if self.kind == FileType::Unknown && self.nr != 278 && done == 0 {
                    return self.write_list(&copied.by_spans(spans), *offset, *flags);
                }
                self.write(&copied, offset.map(|at| at + done.cast_signed()), *flags)
            }
            Plan::Read {
                spans,
                offset,
                flags,
            } => {
                if offset.is_none() && len > 0 && self.must_wait(*flags) {
                    return Ok(Came::NotYet(self.fd.as_raw_fd(), libc::POLLIN));
                }
                let mut room = Local::room(self.tid, spans, done, len)?;
                let came =
                    self.read(&mut room, offset.map(|at| at + done.cast_signed()), *flags)?;
                if let Came::Bytes(got) = came {
                    let got = usize::try_from(got).unwrap_or(0);
                    self.put(spans, done, &room.bytes[..got])?;
                }
                Ok(came)
            }
            Plan::Send(message) => self.send(message, done, len),
            Plan::Receive(message) => self.receive(message, done, len),
            Plan::Transfer {
                offsets,
                flags,
                asked,
                denied,
                ..
            } => self.transfer(*offsets, *flags, (len, *asked), *denied),
            Plan::Nothing => Ok(Came::Bytes(0)),
            Plan::Refused => self.refused(),
        }
    }

    /// What was read by the number of a thread was its own only if that has waited all the
    /// time. It asks again, if a signal came.
    fn still_waits(&self) -> io::Result<()> {
        if (self.waits)() {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EINTR))
        }
    }

    /// Bytes that have come in, to where they were wanted.
    fn put(&self, spans: &[memory::Span], skip: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // They have come, and are its own even if a signal came meanwhile; but they must not
        // get to whoever else has its number by now.
        if !is_there(self.process) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        match memory::write(self.tid, spans, skip, bytes)? {
            put if put == bytes.len() => Ok(()),
            _ => Err(memory::fault()),
        }
    }

    fn write(&self, copied: &Local, offset: Option<i64>, flags: i32) -> io::Result<Came> {
        let fd = self.fd.as_raw_fd();
        // `write` of nothing is an empty message; a list of nothing is none (`do_iter_write` of fs/read_write.c).
        let is_nothing = copied.len() == 0 && i64::from(self.nr) != libc::SYS_write;
        if self.kind == FileType::Socket && !is_nothing {
            let mut control = Vec::new();
            if let Some(sender) = self.sender().filter(|_| self.is_unix) {
                control::say_who(&mut control, sender);
            }
            return self.send_bytes(&Message::default(), copied, &mut control, 0);
        }
        // Files are waited for: they are as fast as their device is.
        let is_file = self.is_file();
        let may_wait = offset.is_some() || is_file;
        let (vectors, count) = match is_file {
            true => copied.vectors(0, self.room(self.fd, offset, copied.len())?),
            false => copied.vectors(0, usize::MAX),
        };
        let now = if may_wait && !self.hurries {
            0
        } else {
            libc::RWF_NOWAIT
        };
        let offset = offset.unwrap_or(-1);
        let put = self.as_program(|| {
            // SAFETY: the buffer lives during the call.
            checked(unsafe { libc::pwritev2(fd, vectors.as_ptr(), count, offset, flags | now) })
        });
        let is_pipe = self.kind == FileType::Fifo;
        match put {
            Err(error) if self.hurries && may_wait && is_refused(&error) => Ok(Came::Elsewhere),
            Err(error) if is_later(&error) => Ok(Came::NotYet(fd, libc::POLLOUT)),
            Err(error) if self.hurries && !is_pipe && is_refused(&error) => Ok(Came::Elsewhere),
            Err(error) if now != 0 && error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                if ready(fd, libc::POLLOUT) {
                    self.write_at_once(copied, flags)
                } else {
                    Ok(Came::NotYet(fd, libc::POLLOUT))
                }
            }
            put => put.map(Came::Bytes),
        }
    }

    /// Files without a name (eventfd(2) and the like) take each vector of a list as a write of its own.
    fn write_list(
        &self,
        list: &[libc::iovec],
        offset: Option<i64>,
        flags: i32,
    ) -> io::Result<Came> {
        let fd = self.fd.as_raw_fd();
        let count = i32::try_from(list.len()).unwrap_or(i32::MAX);
        // Files without support for this flag take bytes at once, or are not ready.
        let is_full = offset.is_none() && !ready(fd, libc::POLLOUT);
        let flags = if is_full {
            flags | libc::RWF_NOWAIT
        } else {
            flags
        };
        let put = self.as_program(|| {
            // SAFETY: the buffers live during the call.
            checked(unsafe {
                libc::pwritev2(fd, list.as_ptr(), count, offset.unwrap_or(-1), flags)
            })
        });
        match put {
            Err(error) if is_later(&error) || is_full && is_refused(&error) => {
                Ok(Came::NotYet(fd, libc::POLLOUT))
            }
            put => put.map(Came::Bytes),
        }
    }

    /// How many bytes from here on are within the largest file that the program may make
    /// (`RLIMIT_FSIZE`).
    ///
    /// # Errors
    /// None, and it gets the signal for that.
    pub(super) fn room(
        &self,
        file: &OwnedFd,
        offset: Option<i64>,
        len: usize,
    ) -> io::Result<usize> {
        use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fstat, seek};
        let Some(most) = self.longest_file().filter(|_| len > 0) else {
            return Ok(len);
        };
        let at = if fcntl_getfl(file)?.contains(OFlags::APPEND) {
            fstat(file)?.st_size.cast_unsigned()
        } else if let Some(offset) = offset {
            offset.cast_unsigned()
        } else {
            seek(file, SeekFrom::Current(0))?
        };
        let left = usize::try_from(most.saturating_sub(at)).unwrap_or(usize::MAX);
        if left == 0 {
            // SAFETY: plain numbers.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, libc::SIGXFSZ) };
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        Ok(left.min(len))
    }

    /// The largest file that the program may make; `None` without a limit.
    fn longest_file(&self) -> Option<u64> {
        // SAFETY: plain numbers.
        let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
        let (pid, none) = (self.pid.cast_signed(), std::ptr::null());
        // SAFETY: the limit is written during the call, and nothing is set.
        let got = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, none, &raw mut limit) };
        if got == 0 {
            return (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur);
        }
        // Limits of another user: prlimit(2) wants CAP_SYS_RESOURCE, and the file is readable for all.
        let text = std::fs::read_to_string(format!("/proc/{}/limits", self.pid)).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max file size"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// In parts of at most `PIPE_BUF` bytes, which a pipe that is ready takes at once.
    fn write_at_once(&self, copied: &Local, flags: i32) -> io::Result<Came> {
        const MOST: u64 = libc::PIPE_BUF as u64;
        let (fd, mut done) = (self.fd.as_raw_fd(), 0);
        loop {
            let left = copied.len().saturating_sub(done) as u64;
            let most = match self.kind {
                FileType::Fifo if left > MOST => amount::first_of_pipe(left, MOST, MOST),
                _ => MOST,
            };
            let (vectors, count) = copied.vectors(done, usize::try_from(most).unwrap_or(0));
            let put = self.as_program(|| {
                // SAFETY: the buffer lives during the call.
                checked(unsafe { libc::pwritev2(fd, vectors.as_ptr(), count, -1, flags) })
            });
            match put {
                Ok(put) => done += usize::try_from(put).unwrap_or(0),
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(Came::Bytes(done as u64)),
            }
            if done >= copied.len() || put.is_ok_and(|put| put == 0) || !ready(fd, libc::POLLOUT) {
                return Ok(Came::Bytes(done as u64));
            }
        }
    }

    /// Makes a call with the program's rights, and no others.
    pub(super) fn as_program<T>(&self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        rights::with(self.rights, 0, call)
    }

    fn is_file(&self) -> bool {
        matches!(self.kind, FileType::RegularFile | FileType::BlockDevice)
    }

    /// Whether a read of something would wait. What is refused is not waited for.
    fn must_wait(&self, flags: i32) -> bool {
        let streams = matches!(self.kind, FileType::Socket | FileType::Fifo);
        streams && flags & !FLAGS == 0 && would_wait(self.fd.as_raw_fd(), libc::POLLIN)
    }

    fn read(&self, room: &mut Local, offset: Option<i64>, flags: i32) -> io::Result<Came> {
        let fd = self.fd.as_raw_fd();
        let (vectors, count) = room.vectors_mut();
        let streams = matches!(self.kind, FileType::Socket | FileType::Fifo);
        let offset = offset.unwrap_or(-1);
        let get = |now: i32| {
            self.as_program(|| {
                // SAFETY: the buffer lives during the call.
                checked(unsafe { libc::preadv2(fd, vectors.as_ptr(), count, offset, flags | now) })
            })
        };
        // Files of other kinds may have no reads by a list at all, or none that do not wait.
        let is_special = !streams && !self.is_file();
        // Somebody else may take what was ready for it.
        let mut got = get(if streams || is_special || self.hurries {
            libc::RWF_NOWAIT
        } else {
            0
        });
        let is_polled = streams || is_special;
        if let Err(error) = &got
            && (is_polled || self.hurries)
            && is_refused(error)
            && !(is_polled && is_later(error))
        {
            if is_special && !ready(fd, libc::POLLIN) {
                return Ok(Came::NotYet(fd, libc::POLLIN));
            }
            if self.hurries {
                return Ok(Came::Elsewhere);
            }
            got = get(0);
        }
        match got {
            Err(error) if is_later(&error) => Ok(Came::NotYet(fd, libc::POLLIN)),
            got => got.map(Came::Bytes),
        }
    }

    fn send(&self, message: &Message, done: u64, len: u64) -> io::Result<Came> {
        let copied = Local::copied(self.tid, &message.spans, done, len)?;
        self.still_waits()?;
        let mut control = if done == 0 {
            message.control.clone()
        } else {
            Vec::new()
        };
        let sender = self.sender();
        let held = control::to_ours(self.process, &mut control, sender)?;
        if self.is_unix
            && !held.says_who
            && let Some(sender) = sender
        {
            control::say_who(&mut control, sender);
        }
        let came = self.send_bytes(message, &copied, &mut control, message.flags)?;
        if let Came::Bytes(sent) = came
            && message.len_at != 0
        {
            let sent = u32::try_from(done + sent).unwrap_or(u32::MAX);
            write_exactly(self.tid, message.len_at, &sent.to_le_bytes())?;
        }
        Ok(came)
    }

    /// Who sends, where it would be us otherwise.
    fn sender(&self) -> Option<Sender<'_>> {
        let pid = self.pid;
        self.rights.map(|rights| Sender { pid, rights })
    }

    fn send_bytes(
        &self,
        message: &Message,
        copied: &Local,
        control: &mut [u8],
        flags: i32,
    ) -> io::Result<Came> {
        let (mut vectors, count) = copied.vectors(0, usize::MAX);
        // SAFETY: plain numbers and null pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = usize::try_from(count).unwrap_or(0);
        let mut name = &message.name;
        let translated;
        if self.is_unix && address::is_named(name) {
            if self.is_confined {
                // The supervisor is in no such domain, and could reach more than the program.
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
            let open = |open: &dyn Fn() -> io::Result<OwnedFd>| self.as_program(open);
            translated = address::translated(self.tid, name, open)?;
            name = translated.as_ref().map_or(name, |(name, _)| name);
        }
        if !name.is_empty() {
            header.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_namelen = u32::try_from(name.len()).unwrap_or(0);
        }
        if !control.is_empty() {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = control.len();
        }
        // The kernel would read the pages of zero-copy sends later: they are ours.
        let flags = (flags & !libc::MSG_ZEROCOPY) | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let more = if self.is_unix { rights::TO_SAY_WHO } else { 0 };
        let sent = rights::with(self.rights, more, || {
            // SAFETY: all that the header points to lives during the call.
            checked(unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const header, flags) })
        });
        match sent {
            Err(error) if is_later(&error) => Ok(Came::NotYet(self.fd.as_raw_fd(), libc::POLLOUT)),
            sent => sent.map(Came::Bytes),
        }
    }

    fn receive(&self, message: &Message, done: u64, len: u64) -> io::Result<Came> {
        let mut room = Local::room(self.tid, &message.spans, done, len)?;
        let mut name = [0_u8; 128];
        let mut control =
            vec![0_u8; usize::try_from(message.control_room.min(65_536)).unwrap_or(0)];
        let (mut vectors, count) = room.vectors_mut();
        // SAFETY: plain numbers and null pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = usize::try_from(count).unwrap_or(0);
        if message.name_at != 0 {
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = 128;
        }
        if message.control_at != 0 && !control.is_empty() {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = control.len();
        }
        let flags = message.flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let got = self.as_program(|| {
            // SAFETY: all that the header points to lives during the call.
            checked(unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, flags) })
        });
        let got = match got {
            Err(error) if is_later(&error) && message.flags & libc::MSG_ERRQUEUE == 0 => {
                return Ok(Came::NotYet(self.fd.as_raw_fd(), libc::POLLIN));
            }
            got => got?,
        };
        let bytes = &room.bytes;
        let there = match self.discards(message.flags) {
            true => 0,
            false => usize::try_from(got).unwrap_or(0).min(bytes.len()),
        };
        control.truncate(header.msg_controllen);
        let stays = message.flags & libc::MSG_CMSG_CLOEXEC == 0;
        let called = |who| match self.rights {
            Some(rights) => rights.names.theirs(who, self.pid),
            None => who,
        };
        let give = |ours: &OwnedFd, closes: bool| (self.give)(ours, closes || !stays);
        control::to_theirs(&mut control, give, called);
        self.put(&message.spans, done, &bytes[..there])?;
        self.results(message, &header, &name, &control, got)?;
        Ok(Came::Bytes(got))
    }

    /// Whether a receive drops its bytes and leaves the memory alone (`MSG_TRUNC`, tcp(7)).
    fn discards(&self, flags: i32) -> bool {
        flags & libc::MSG_TRUNC != 0
            && option::<4>(self.fd.as_raw_fd(), libc::SO_PROTOCOL)
                .map(i32::from_le_bytes)
                .is_some_and(|of| matches!(of, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP))
    }

    /// Writes what a received message says beside its bytes.
    fn results(
        &self,
        message: &Message,
        header: &libc::msghdr,
        name: &[u8],
        control: &[u8],
        got: u64,
    ) -> io::Result<()> {
        let len = header.msg_namelen;
        let room = message.name_room.min(len).min(128);
        write_exactly(
            self.tid,
            message.name_at,
            &name[..usize::try_from(room).unwrap_or(0)],
        )?;
        if message.name_len_at != 0 {
            write_exactly(self.tid, message.name_len_at, &len.to_le_bytes())?;
        }
        if message.header_at != 0 {
            let at = |offset: u64| message.header_at + offset;
            write_exactly(self.tid, message.control_at, control)?;
            write_exactly(self.tid, at(8), &len.to_le_bytes())?;
            write_exactly(self.tid, at(40), &(control.len() as u64).to_le_bytes())?;
            // As it asked for.
            let closes = message.flags & libc::MSG_CMSG_CLOEXEC;
            let flags = header.msg_flags & !libc::MSG_CMSG_CLOEXEC | closes;
            write_exactly(self.tid, at(48), &flags.to_le_bytes())?;
        }
        if message.len_at != 0 {
            let got = u32::try_from(got).unwrap_or(u32::MAX);
            write_exactly(self.tid, message.len_at, &got.to_le_bytes())?;
        }
        Ok(())
    }
}
