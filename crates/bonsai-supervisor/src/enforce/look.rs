//! What a descriptor of a thread is: a file, a socket, or another thing.
//!
//! It is looked up for each call anew. A number may stand for another thing after any
//! `close` or `dup2`, of which nobody tells: to be told, each of them would have to be
//! asked about, at five times the price of a look. What is kept is the way to the answer,
//! never the answer: a folder of the kernel's, and files of it that are read again.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use bonsai_calls::Fd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::path::Arg;

/// Numbers of a thread that are looked at by a file kept open.
const SEEN: usize = 4;

/// A number that was looked at, and `fdinfo` of it once it was for the second time.
#[derive(Debug, Default)]
struct Seen {
    number: Option<u32>,
    info: Option<File>,
    /// What is at a place, if that is no socket.
    known: Option<(Place, Fd)>,
}

/// Where the file of a descriptor is: its mount, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    mount: u64,
    inode: u64,
}

/// How the descriptors of a thread are looked at.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// `/proc/TID/fd`.
    folder: Option<OwnedFd>,
    seen: [Seen; SEEN],
}

impl Looks {
    /// What a descriptor is; `None` if there is none.
    ///
    /// # Errors
    /// It may not be seen.
    pub(crate) fn kind(&mut self, tid: u32, number: u32) -> io::Result<Option<Fd>> {
        let mut name = [0; 12];
        let name = decimal(number, &mut name);
        if let Some(kind) = self
            .folder
            .as_ref()
            .and_then(|folder| look(folder, name).ok())
        {
            return Ok(Some(kind));
        }
        // Of the program before, or of another thread with this number.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(format!("/proc/{tid}/fd"), flags, Mode::empty())?;
        let found = look(&folder, name);
        self.folder = Some(folder);
        match found {
            Ok(kind) => Ok(Some(kind)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What a descriptor is, where all that matters is whether it is a socket: at two thirds
    /// of the price. What else it is serves the statistics, and is believed of a file that is
    /// where another one was. `keeps` if a file may be kept for it.
    ///
    /// # Errors
    /// It may not be seen.
    pub(crate) fn socket_or(&mut self, tid: u32, number: u32, keeps: bool) -> io::Result<Fd> {
        let of = number as usize % SEEN;
        let mut place = None;
        if let Some(mount) = sockets() {
            let seen = &mut self.seen[of];
            if seen.number != Some(number) {
                // Whatever is used once is not worth a file.
                *seen = Seen {
                    number: Some(number),
                    ..Seen::default()
                };
            } else if seen.info.is_none() && keeps {
                seen.info = File::open(format!("/proc/{tid}/fdinfo/{number}")).ok();
            }
            // There is none of a thread that had this number before, nor of what is closed.
            place = seen.info.as_ref().and_then(place_of);
            match (place, seen.known) {
                (Some(found), _) if found.mount == mount => return Ok(Fd::Socket),
                (Some(found), Some((known, kind))) if found == known => return Ok(kind),
                (None, _) => seen.info = None,
                _ => {}
            }
        }
        let kind = self.kind(tid, number)?.unwrap_or(Fd::File);
        self.seen[of].known = place
            .filter(|_| kind != Fd::Socket)
            .map(|place| (place, kind));
        Ok(kind)
    }

    /// Descriptors of ours that are kept for it.
    pub(crate) fn kept(&self) -> usize {
        let infos = self.seen.iter().filter(|seen| seen.info.is_some()).count();
        usize::from(self.folder.is_some()) + infos
    }
}

/// The mount that all sockets are on, and nothing else is: the kernel's own, which is
/// there from its start to its end. `None` if it cannot be told here.
fn sockets() -> Option<u64> {
    static MOUNT: OnceLock<Option<u64>> = OnceLock::new();
    let learn = || {
        let (socket, other) = UnixStream::pair().ok()?;
        let of = |fd: i32| place_of(&File::open(format!("/proc/self/fdinfo/{fd}")).ok()?);
        let mount = of(socket.as_raw_fd())?.mount;
        // A kernel that is not what it says may have one mount for all.
        let (pipe, _end) = io::pipe().ok()?;
        let is_own = mount == of(other.as_raw_fd())?.mount && mount != of(pipe.as_raw_fd())?.mount;
        is_own.then_some(mount)
    };
    *MOUNT.get_or_init(learn)
}

/// The place that an `fdinfo` says, as it is now (`ino` since Linux 5.14).
pub(crate) fn place_of(info: &File) -> Option<Place> {
    let mut text = [0; 128];
    let len = info.read_at(&mut text, 0).ok()?;
    parse(&text[..len])
}

fn parse(text: &[u8]) -> Option<Place> {
    let value = |name: &[u8]| {
        // A line that is not whole could be a smaller number.
        let mut lines = text.split_inclusive(|byte| *byte == b'\n');
        let line = lines.find_map(|line| line.strip_prefix(name))?;
        let digits = line.strip_suffix(b"\n")?.trim_ascii_start();
        (!digits.is_empty()).then_some(())?;
        digits.iter().try_fold(0_u64, |sum, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        })
    };
    Some(Place {
        mount: value(b"mnt_id:")?,
        inode: value(b"ino:")?,
    })
}

/// Whether a descriptor is non-blocking, as its `fdinfo` says (proc_pid_fdinfo(5): in octal).
pub(crate) fn waits_not(tid: u32, fd: u64) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    let number = fd as u32;
    let text = std::fs::read_to_string(format!("/proc/{tid}/fdinfo/{number}"));
    let flags = text.ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(line.trim(), 8).ok()
    });
    flags.is_some_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// A number as a name in a folder of descriptors: with a zero at its end, so that it
/// need not be copied.
fn decimal(number: u32, name: &mut [u8; 12]) -> &CStr {
    let mut at = name.len() - 1;
    let mut rest = number;
    loop {
        at -= 1;
        name[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    CStr::from_bytes_until_nul(&name[at..]).unwrap_or_default()
}

fn look(folder: &OwnedFd, name: &CStr) -> rustix::io::Result<Fd> {
    type_of(folder, name, AtFlags::empty()).map(kind_of)
}

/// The type of an open file, without waiting for a server.
pub(crate) fn type_of_open(fd: &OwnedFd) -> rustix::io::Result<FileType> {
    type_of(fd, c"", AtFlags::EMPTY_PATH)
}

/// The type of what a link of `/proc/PID/fd` leads to, without waiting for a server.
pub(crate) fn type_at(link: &str) -> rustix::io::Result<FileType> {
    type_of(rustix::fs::CWD, link, AtFlags::empty())
}

/// The type from the kernel's cache (`AT_STATX_DONT_SYNC`): a type does not change, and a server may not answer.
fn type_of(folder: impl AsFd, name: impl Arg, flags: AtFlags) -> rustix::io::Result<FileType> {
    let flags = flags | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(folder, name, flags, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(stat.stx_mode.into()))
}

/// The kind of a file, as the table has it.
pub(crate) fn kind_of(kind: FileType) -> Fd {
    match kind {
        FileType::RegularFile | FileType::BlockDevice => Fd::File,
        FileType::Socket => Fd::Socket,
        _ => Fd::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_says_what_a_number_is_now() {
        let tid = std::process::id();
        let (socket, _other) = UnixStream::pair().expect("sockets");
        let (pipe, _end) = std::io::pipe().expect("a pipe");
        let file = File::open("/proc/self/exe").expect("ourselves");
        // A number that no other test gets, once it is closed.
        let mut slot = rustix::io::fcntl_dupfd_cloexec(&file, 700).expect("a number");
        let number = slot.as_raw_fd().cast_unsigned();
        let mut looks = Looks::default();
        let others = [(file.as_fd(), Fd::File), (pipe.as_fd(), Fd::Other)];
        for round in 0..3 {
            for (other, kind) in others {
                for (what, kind) in [(socket.as_fd(), Fd::Socket), (other, kind)] {
                    rustix::io::dup2(what, &mut slot).expect("another thing");
                    let found = looks.socket_or(tid, number, true);
                    assert_eq!(found.expect("seen"), kind, "{round}");
                }
            }
        }
        let kept = looks.seen[number as usize % SEEN].info.is_some();
        assert!(kept || sockets().is_none());
        for (what, kind) in others.into_iter().chain([(socket.as_fd(), Fd::Socket)]) {
            rustix::io::dup2(what, &mut slot).expect("another thing");
            assert_eq!(looks.kind(tid, number).expect("seen"), Some(kind));
        }
        let waits_not = || waits_not(tid, number.into());
        assert!(!waits_not());
        socket.set_nonblocking(true).expect("a flag");
        assert!(waits_not());
        drop(slot);
        assert!(!waits_not());
        assert_eq!(looks.kind(tid, number).ok(), Some(None));
        assert_eq!(looks.socket_or(tid, number, true).ok(), Some(Fd::File));
    }

    #[test]
    fn numbers_that_are_not_whole_are_none() {
        let file = tempfile::tempfile().expect("a file");
        let far = rustix::fs::SeekFrom::Start(1 << 43);
        rustix::fs::seek(&file, far).expect("far");
        let info = File::open(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
        let found = place_of(&info.expect("open")).map(|place| place.mount);
        assert!(found.is_some() && found != sockets());
        let text = b"pos:\t0\nflags:\t02\nmnt_id:\t17\nino:\t42\n";
        assert_eq!(
            parse(text),
            Some(Place {
                mount: 17,
                inode: 42
            })
        );
        for len in 0..text.len() {
            assert_eq!(parse(&text[..len]), None, "{len}");
        }
    }
}
