//! Asking servers: all at once, and for a bounded time, whatever they do.
//!
//! Servers may be those of other users, who may have put anything in their place: a socket that nobody answers, somebody
//! else's, or one that answers without an end. So what is connected to was looked at before and is held, who is at its
//! other end is asked of the kernel, and both time and bytes are bounded.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;

use super::{Ask, ENDING};

/// So much is read of all answers together.
const MOST_BYTES: usize = 16 << 20;
/// Servers that are asked together, at most.
const MOST_SERVERS: usize = 256;

/// A control socket that was looked at.
#[derive(Debug)]
pub struct Door {
    pid: u32,
    held: OwnedFd,
    uid: u32,
}

/// An answer, or that there was none in time.
#[derive(Clone, Debug)]
pub struct Asked<T> {
    /// The process that the name of its socket says.
    pub pid: u32,
    /// What it said.
    pub answer: Option<T>,
}

/// Those that were asked.
#[derive(Clone, Debug)]
pub struct Answers<T> {
    /// Those that are there, by process.
    pub servers: Vec<Asked<T>>,
    /// Those whose sockets nobody listens on.
    pub dead: Vec<u32>,
}

impl Door {
    /// A control socket of a user, by its name and a descriptor of it (`O_PATH`); `None` for what is none.
    #[must_use]
    pub fn of(name: &str, held: OwnedFd, uid: u32) -> Option<Self> {
        let pid = name.strip_suffix(ENDING)?.strip_suffix('.')?.parse().ok()?;
        let stat = fstat(&held).ok()?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        (is_socket && stat.st_uid == uid).then_some(Self { pid, held, uid })
    }

    /// The process that its name says.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks; nobody is waited for.
    fn knock(&self, ask: Ask) -> Result<UnixStream, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // What was looked at is what is connected to.
        let path = format!("/proc/self/fd/{}", self.held.as_raw_fd());
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let who = rustix::net::sockopt::socket_peercred(&socket)?.uid;
        if who.as_raw() != self.uid {
            return Err(Errno::PERM);
        }
        let mut stream = UnixStream::from(socket);
        let mut line = serde_json::to_vec(&ask).map_err(|_| Errno::INVAL)?;
        line.push(b'\n');
        // A line fits into any socket's buffer. A server that answers before it was asked may be gone already.
        if stream.write_all(&line).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
        Ok(stream)
    }
}

/// Asks the servers of this user in a folder, those `which` names by their processes; sockets of dead ones are removed.
///
/// # Errors
/// The folder cannot be read. That there is none is no error.
pub fn ask_all<T: DeserializeOwned>(
    folder: &Path,
    ask: Ask,
    patience: Duration,
    which: impl Fn(u32) -> bool,
) -> io::Result<Vec<Asked<T>>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let uid = rustix::process::geteuid().as_raw();
    let mut doors = Vec::new();
    for entry in entries {
        let entry = entry?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(held) = open(entry.path(), flags, Mode::empty()) {
            let door = Door::of(&entry.file_name().to_string_lossy(), held, uid);
            doors.extend(door.filter(|door| which(door.pid)));
        }
    }
    let answers = ask_doors(&doors, ask, patience);
    for pid in answers.dead {
        // It may have been removed by somebody else.
        let _ = fs::remove_file(folder.join(format!("{pid}.{ENDING}")));
    }
    Ok(answers.servers)
}

/// Asks servers, all at once; whoever has not answered in time is among those without an answer.
#[must_use]
pub fn ask_doors<T: DeserializeOwned>(doors: &[Door], ask: Ask, patience: Duration) -> Answers<T> {
    let end = Instant::now() + patience;
    let mut doors: Vec<&Door> = doors.iter().take(MOST_SERVERS).collect();
    doors.sort_by_key(|door| door.pid);
    let mut open: Vec<Listening> = Vec::new();
    let (mut servers, mut dead) = (Vec::new(), Vec::new());
    let mut room = MOST_BYTES;
    for door in doors {
        match door.knock(ask) {
            Ok(stream) => open.push(Listening {
                at: servers.len(),
                stream,
                text: Vec::new(),
            }),
            Err(Errno::CONNREFUSED) => {
                dead.push(door.pid);
                continue;
            }
            // Too many wait for it already, or it is somebody else's.
            Err(_) => {}
        }
        let (pid, answer) = (door.pid, None);
        servers.push(Asked { pid, answer });
    }
    while !open.is_empty() && wait(&open, end) {
        open.retain_mut(|one| match one.hear(&mut room) {
            Heard::More => true,
            Heard::All => {
                if let Some(asked) = servers.get_mut(one.at) {
                    asked.answer = serde_json::from_slice(&one.text).ok();
                }
                false
            }
            Heard::Nothing => false,
        });
    }
    Answers { servers, dead }
}

/// A server that is listened to.
struct Listening {
    at: usize,
    stream: UnixStream,
    text: Vec<u8>,
}

enum Heard {
    More,
    All,
    Nothing,
}

impl Listening {
    fn hear(&mut self, room: &mut usize) -> Heard {
        let mut some = [0; 16 << 10];
        match self.stream.read(&mut some) {
            Ok(0) => Heard::All,
            Ok(read) => {
                let heard = some.get(..read).unwrap_or_default();
                self.text.extend_from_slice(heard);
                match room.checked_sub(read) {
                    Some(left) => {
                        *room = left;
                        Heard::More
                    }
                    None => Heard::Nothing,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Heard::More,
            Err(_) => Heard::Nothing,
        }
    }
}

/// Waits until somebody says something; false where the time is over.
fn wait(open: &[Listening], end: Instant) -> bool {
    let left = end.saturating_duration_since(Instant::now());
    let Some(left) = Timespec::try_from(left).ok().filter(|_| !left.is_zero()) else {
        return false;
    };
    let mut waited: Vec<PollFd<'_>> = open
        .iter()
        .map(|one| PollFd::new(&one.stream, PollFlags::IN))
        .collect();
    match poll(&mut waited, Some(&left)) {
        Ok(ready) => ready > 0,
        Err(error) => error == Errno::INTR,
    }
}
