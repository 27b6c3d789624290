//! TCP connections of a process that runs, slowed down at their sender: without a restart, a queue or
//! a control group.
//!
//! A connection has a pace of its own (`SO_MAX_PACING_RATE`, socket(7)) that TCP keeps with timers
//! where no `fq` does. A copy of the process's descriptor is a way to set it (pidfd_getfd(2)). What
//! is paced is what is sent, payload alone; datagrams are not. A pace belongs to one connection, so
//! what a process may send is divided among its own: by turns, as they come, go and fall silent.
//! Between two turns a silent one that wakes up has what it was left, so that all together never
//! have more than the rate.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::Error;

/// What the kernel has for no pace.
const UNLIMITED: u64 = u64::MAX;
/// The part of an equal share that a silent connection is left.
const SILENT: u64 = 8;
/// The least that a connection is given, bytes per second.
const LEAST: u64 = 1_000;
/// Where `struct tcp_info` has the bytes that were acknowledged (Linux 4.1).
const BYTES_ACKED: usize = 120;
/// Where it has the bytes that wait to be sent (Linux 4.6).
const NOTSENT_BYTES: usize = 144;

/// What is known of a connection. Its socket is not kept: while there is a copy of it, a `close` of
/// the process would end nothing.
#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Its pace before.
    former: u64,
    /// What was acknowledged when it was looked at last.
    acked: u64,
    pace: u64,
}

/// The connections of a process, at one rate together. They have their former paces again when this
/// is dropped.
#[derive(Debug)]
pub struct Paced {
    pid: Pid,
    process: OwnedFd,
    /// By cookie, which no two sockets have.
    connections: BTreeMap<u64, Connection>,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// TCP connections that the process has.
    pub connections: usize,
    /// Those that moved since the turn before, or have something to send.
    pub active: usize,
    /// Bytes that were acknowledged since then, of all.
    pub acked: u64,
}

impl Paced {
    /// Gets hold of a process; nothing is paced yet.
    ///
    /// # Errors
    /// If there is none, or it may not be traced (root or the same user may, ptrace(2)).
    pub fn new(pid: u32) -> Result<Self, Error> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = raw.ok_or_else(|| Error::Wrong(format!("{pid} is no process ID")))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => Error::Wrong(format!("there is no process {pid}")),
            errno => Error::Process(errno.into()),
        })?;
        Ok(Self {
            pid,
            process,
            connections: BTreeMap::new(),
        })
    }

    /// Looks for connections, and divides `rate` (bytes per second) among them.
    ///
    /// # Errors
    /// If the process has ended, or may not be traced.
    pub fn turn(&mut self, rate: u64) -> Result<Turn, Error> {
        let mut sockets = self.sockets()?;
        let mut now = BTreeMap::new();
        let mut turn = Turn {
            connections: sockets.len(),
            ..Turn::default()
        };
        for (cookie, socket) in &sockets {
            let (acked, waits) = progress(socket)?;
            let known = self.connections.get(cookie).copied();
            let connection = match known {
                Some(known) => known,
                None => Connection {
                    former: pace_of(socket)?,
                    acked,
                    pace: UNLIMITED,
                },
            };
            let moved = acked.saturating_sub(connection.acked);
            turn.acked += moved;
            let is_active = moved > 0 || waits;
            turn.active += usize::from(is_active);
            let connection = Connection {
                acked,
                ..connection
            };
            now.insert(*cookie, (connection, is_active));
        }
        let (active, silent) = paces(rate, turn.active, turn.connections - turn.active);
        let pace = |cookie: &u64| if now[cookie].1 { active } else { silent };
        // Those that get less come first.
        sockets.sort_by_key(|(cookie, _)| pace(cookie) > now[cookie].0.pace);
        for (cookie, socket) in &sockets {
            if pace(cookie) != now[cookie].0.pace {
                set(socket, pace(cookie))?;
            }
        }
        let paced = now.iter().map(|(cookie, (connection, _))| {
            let pace = pace(cookie);
            (
                *cookie,
                Connection {
                    pace,
                    ..*connection
                },
            )
        });
        self.connections = paced.collect();
        Ok(turn)
    }

    /// Copies of the sockets of its connections, by cookie.
    fn sockets(&self) -> Result<Vec<(u64, OwnedFd)>, Error> {
        let folder = format!("/proc/{}/fd", self.pid);
        let entries = fs::read_dir(&folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Ended(self.pid.as_raw_nonzero().get()),
            _ => Error::Process(error),
        })?;
        let mut found = BTreeMap::new();
        for entry in entries.flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let is_socket = target.to_str().is_some_and(|to| to.starts_with("socket:["));
            let fd = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(fd) = fd.filter(|_| is_socket) else {
                continue;
            };
            match pidfd_getfd(&self.process, fd, PidfdGetfdFlags::empty()) {
                Ok(socket) if is_connection(&socket) => {
                    let cookie = sockopt::socket_cookie(&socket);
                    let cookie = cookie.map_err(|errno| Error::Process(errno.into()))?;
                    // One socket may have several descriptors.
                    found.insert(cookie, socket);
                }
                // It was closed meanwhile, or is something else.
                Ok(_) | Err(rustix::io::Errno::BADF) => {}
                Err(rustix::io::Errno::SRCH) => {
                    return Err(Error::Ended(self.pid.as_raw_nonzero().get()));
                }
                Err(errno) => return Err(Error::Process(errno.into())),
            }
        }
        Ok(found.into_iter().collect())
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        for (cookie, socket) in self.sockets().unwrap_or_default() {
            if let Some(connection) = self.connections.get(&cookie) {
                let _ = set(&socket, connection.former);
            }
        }
    }
}

/// What an active and a silent connection get: together no more than the rate, if that gives each of
/// them [`LEAST`].
fn paces(rate: u64, active: usize, silent: usize) -> (u64, u64) {
    let (active, silent) = (active as u64, silent as u64);
    let all = (active + silent).max(1);
    let left = if active == 0 {
        rate / all
    } else {
        rate / all / SILENT
    };
    let left = left.max(LEAST);
    let rest = rate.saturating_sub(left.saturating_mul(silent));
    ((rest / active.max(1)).max(LEAST), left)
}

/// Whether it is a TCP socket that has a peer.
fn is_connection(socket: &OwnedFd) -> bool {
    let tcp = sockopt::socket_protocol(socket).ok().flatten() == Some(rustix::net::ipproto::TCP);
    tcp && rustix::net::getpeername(socket).is_ok()
}

fn set(socket: &OwnedFd, pace: u64) -> Result<(), Error> {
    // SAFETY: the option takes a number of 64 bits (Linux 4.20), which lives for the call. rustix
    // does not offer it.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const pace).cast(),
            8,
        )
    };
    if answer != 0 {
        return Err(Error::Process(io::Error::last_os_error()));
    }
    Ok(())
}

/// Reads an option into `value`; how many bytes of it the kernel has written.
fn get(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> Result<usize, Error> {
    let mut length = u32::try_from(value.len()).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes, which `value` has.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(Error::Process(io::Error::last_os_error()));
    }
    Ok(length as usize)
}

fn pace_of(socket: &OwnedFd) -> Result<u64, Error> {
    let mut value = [0; size_of::<u64>()];
    let length = get(
        socket,
        libc::SOL_SOCKET,
        libc::SO_MAX_PACING_RATE,
        &mut value,
    )?;
    // Older kernels have 32 bits, all of them set for no pace.
    let short = u32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
    Ok(match length {
        4 if short == u32::MAX => UNLIMITED,
        4 => short.into(),
        _ => u64::from_ne_bytes(value),
    })
}

/// Bytes that were acknowledged, and whether more wait to be sent.
fn progress(socket: &OwnedFd) -> Result<(u64, bool), Error> {
    let mut info = [0; NOTSENT_BYTES + 4];
    get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    let acked = info.get(BYTES_ACKED..BYTES_ACKED + 8);
    let acked = acked.and_then(|bytes| bytes.try_into().ok());
    let waits = info[NOTSENT_BYTES..].iter().any(|byte| *byte != 0);
    Ok((acked.map_or(0, u64::from_ne_bytes), waits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_together_have_the_rate_and_no_more(
            rate in 10_000_000_u64..1 << 36, active in 0_usize..100, silent in 0_usize..100,
        ) {
            prop_assume!(active + silent > 0);
            let (fast, slow) = paces(rate, active, silent);
            let sum = fast * active as u64 + slow * silent as u64;
            prop_assert!(sum <= rate, "{} of {}", sum, rate);
            // Division leaves less than one each.
            prop_assert!(sum + (active + silent) as u64 > rate, "{} of {}", sum, rate);
            prop_assert!(active == 0 || fast >= slow);
        }
    }
}
