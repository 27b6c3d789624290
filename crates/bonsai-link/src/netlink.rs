//! A socket to the kernel's routing side: requests with an answer each, and dumps.
//!
//! The socket is that of `netlink-sys`. Messages are read where they lie: `netlink-packet-route`,
//! the runner-up, has no HTB, makes a dozen of allocations of a class, which is too much for a
//! thousand of them ten times a second, and refuses a whole message for an attribute that a newer
//! kernel has grown. `neli` has no traffic control.

pub(crate) mod message;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use netlink_sys::{SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::sockopt;

use crate::error::Error;
use crate::namespace;
use message::{Message, Received, attribute, messages, text};

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
/// Of an answer: what was dumped changed meanwhile.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Of an answer: words follow.
const NLM_F_ACK_TLVS: u16 = 0x200;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Answers to as many requests fit the receive buffer, whatever each takes there.
const AT_ONCE: usize = 64;
/// Bytes of the receive buffer; the kernel doubles it.
const RECEIVE: usize = 1 << 20;
/// A dump is at most this long per message (kernel: `NLMSG_GOODSIZE` to 32 KiB).
const LONGEST: usize = 64 << 10;
/// How often a dump is begun again if what it shows changes meanwhile.
const AGAIN: usize = 8;

/// What the kernel said to a request that it refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The error number.
    pub errno: i32,
    /// Its words, where it has some.
    pub words: Option<String>,
}

/// With these words the kernel says that a part of it is not there.
///
/// Source: `net/sched/sch_api.c`, `cls_api.c`, `act_api.c` and `net/core/rtnetlink.c`.
const LACKS: [&str; 4] = [
    "Specified qdisc kind is unknown",
    "TC classifier not found",
    "Failed to load TC action module",
    "Unknown device type",
];

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        match &self.words {
            Some(words) if LACKS.iter().any(|of| words.starts_with(of)) => write!(
                f,
                "{}: this kernel has none, and no module of it is installed (some distributions \
                 have those in a package of their own); bonsai doctor says what there is",
                words.trim_end_matches('.')
            ),
            Some(words) => write!(f, "{} ({error})", words.trim_end_matches('.')),
            None => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Refused {}

/// A socket that belongs to the network namespace it was opened in.
pub(crate) struct Socket {
    socket: netlink_sys::Socket,
    port: u32,
    sequence: u32,
    answer: Vec<u8>,
    request: Vec<u8>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket")
            .field("fd", &self.socket.as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens one in a network namespace, or in the calling thread's, that hears of what happens to
    /// groups (`RTNLGRP_*`).
    pub(crate) fn open(namespace: Option<BorrowedFd<'_>>, groups: &[u32]) -> Result<Self, Error> {
        let Some(namespace) = namespace else {
            return Self::open_here(groups).map_err(Error::Socket);
        };
        namespace::inside(namespace, || Self::open_here(groups))?.map_err(Error::Socket)
    }

    fn open_here(groups: &[u32]) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        // Without them: plain error numbers, and whole requests in the answers.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        // Root may have more than the system's maximum, others get that.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE);
        }
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok(Self {
            socket,
            port,
            sequence: 0,
            answer: vec![0; LONGEST],
            request: Vec::new(),
        })
    }

    /// The number by which the kernel says whose doing something was.
    pub(crate) const fn port(&self) -> u32 {
        self.port
    }

    /// Asks for one thing, and waits for the answer.
    pub(crate) fn ask(&mut self, message: &Message) -> Result<(), Error> {
        let mut answers = self.ask_all(std::slice::from_ref(message))?;
        match answers.pop() {
            Some(Err(refused)) => Err(Error::Refused(refused)),
            _ => Ok(()),
        }
    }

    /// Asks for many, in order, and waits for all answers. One that is refused does not keep the
    /// kernel from those behind it.
    pub(crate) fn ask_all(
        &mut self,
        messages: &[Message],
    ) -> Result<Vec<Result<(), Refused>>, Error> {
        let mut answers = Vec::with_capacity(messages.len());
        for some in messages.chunks(AT_ONCE) {
            let first = self.sequence.wrapping_add(1);
            self.request.clear();
            for message in some {
                self.sequence = self.sequence.wrapping_add(1);
                message.finish(self.sequence, &mut self.request);
            }
            self.socket.send(&self.request, 0).map_err(Error::Socket)?;
            let mut waiting = some.len();
            answers.resize(answers.len() + waiting, Ok(()));
            let start = answers.len() - waiting;
            while waiting > 0 {
                self.receive(|answer| {
                    let place = answer.sequence.wrapping_sub(first) as usize;
                    if answer.kind == NLMSG_ERROR && place < some.len() {
                        answers[start + place] = refusal(answer);
                        waiting -= 1;
                    }
                })?;
            }
        }
        Ok(answers)
    }

    /// Asks for one thing that has an answer of its own, given to `each`.
    pub(crate) fn get(
        &mut self,
        message: &Message,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        self.request.clear();
        message.finish(sequence, &mut self.request);
        self.socket.send(&self.request, 0).map_err(Error::Socket)?;
        let mut answer = None;
        while answer.is_none() {
            self.receive(|one| {
                if one.sequence != sequence {
                    return;
                }
                if one.kind == NLMSG_ERROR {
                    answer = Some(refusal(one));
                } else {
                    each(one.kind, one.payload);
                    answer = Some(Ok(()));
                }
            })?;
        }
        match answer {
            Some(Err(refused)) => Err(Error::Refused(refused)),
            _ => Ok(()),
        }
    }

    /// Asks for all of a kind; `each` gets the type and payload of each answer. It is told of a
    /// new beginning by [`Dumped::Again`], if what is dumped changes meanwhile.
    pub(crate) fn dump(
        &mut self,
        ask: &Message,
        mut each: impl FnMut(Dumped<'_>),
    ) -> Result<(), Error> {
        for again in 0..=AGAIN {
            if again > 0 {
                each(Dumped::Again);
            }
            self.sequence = self.sequence.wrapping_add(1);
            let sequence = self.sequence;
            self.request.clear();
            ask.finish(sequence, &mut self.request);
            self.socket.send(&self.request, 0).map_err(Error::Socket)?;
            let mut done = None;
            let mut changed = false;
            while done.is_none() {
                self.receive(|one| {
                    if one.sequence != sequence || done.is_some() {
                        return;
                    }
                    changed |= one.flags & NLM_F_DUMP_INTR != 0;
                    match one.kind {
                        NLMSG_DONE | NLMSG_ERROR => done = Some(refusal(one)),
                        kind => each(Dumped::One(kind, one.payload)),
                    }
                })?;
            }
            if let Some(Err(refused)) = done {
                return Err(Error::Refused(refused));
            }
            if !changed {
                return Ok(());
            }
        }
        Err(Error::Restless)
    }

    /// Reads one datagram of the kernel, and gives each message in it to `each`.
    fn receive(&mut self, mut each: impl FnMut(&Received<'_>)) -> Result<(), Error> {
        let length = loop {
            match self.socket.recv(&mut &mut self.answer[..], 0) {
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Socket(error)),
            }
        };
        for message in messages(&self.answer[..length]) {
            each(&message);
        }
        Ok(())
    }

    /// Reads what was told to the groups this socket belongs to, without waiting, but for the doing
    /// of the socket with the port `but`. `false` if something was lost, because it was not read in
    /// time.
    pub(crate) fn heard(
        &mut self,
        but: Option<u32>,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<bool, Error> {
        let mut whole = true;
        loop {
            match self
                .socket
                .recv(&mut &mut self.answer[..], libc::MSG_DONTWAIT)
            {
                Ok(length) => {
                    let others = |message: &Received<'_>| Some(message.port) != but;
                    for message in messages(&self.answer[..length]).filter(others) {
                        each(message.kind, message.payload);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(whole),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => whole = false,
                Err(error) => return Err(Error::Socket(error)),
            }
        }
    }
}

impl Socket {
    /// The number that the kernel gives to the socket's network namespace and to no other, until
    /// the machine restarts (`SO_NETNS_COOKIE`, Linux 5.14). Older kernels have the number of the
    /// namespace's file only, which a later namespace may get again once this one has ended.
    pub(crate) fn cookie(&self) -> Result<u64, Error> {
        match self.netns_cookie() {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => self.netns_inode(),
            answer => answer,
        }
        .map_err(Error::Socket)
    }

    fn netns_cookie(&self) -> io::Result<u64> {
        const SO_NETNS_COOKIE: libc::c_int = 71;
        let mut cookie = 0_u64;
        let mut length: libc::socklen_t = 8;
        // SAFETY: the kernel writes at most `length` bytes, which `cookie` has. rustix does not
        // offer the option.
        let answer = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(cookie)
    }

    /// The inode of the socket's network namespace.
    fn netns_inode(&self) -> io::Result<u64> {
        /// `linux/sockios.h`, from Linux 4.10 on.
        const SIOCGSKNS: libc::Ioctl = 0x894c;
        // SAFETY: `SIOCGSKNS` has no argument, and its answer is a descriptor or an error.
        let fd = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCGSKNS) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us (close-on-exec).
        let namespace = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(rustix::fs::fstat(&namespace)?.st_ino)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a dump gives.
pub(crate) enum Dumped<'a> {
    /// The type and the payload of a message.
    One(u16, &'a [u8]),
    /// What was given up to now is to be forgotten.
    Again,
}

/// What an answer says: of `NLMSG_ERROR`, and of `NLMSG_DONE`, which has the same number.
fn refusal(answer: &Received<'_>) -> Result<(), Refused> {
    let payload = answer.payload;
    let code = message::u32_at(payload, 0).map_or(0, u32::cast_signed);
    if code == 0 {
        return Ok(());
    }
    // The head of the request is between the number and the words.
    let words = (answer.flags & NLM_F_ACK_TLVS != 0)
        .then(|| payload.get(20..))
        .flatten()
        .and_then(|rest| attribute(rest, NLMSGERR_ATTR_MSG))
        .map(text);
    Err(Refused {
        errno: code.wrapping_neg(),
        words,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_namespace_has_the_number_of_its_file_where_the_kernel_gives_it_none() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIP: namespaces of sockets are told to root");
        }
        let socket = Socket::open(None, &[]).expect("a socket");
        let own = std::fs::metadata("/proc/self/ns/net").expect("a namespace");
        assert_eq!(socket.netns_inode().expect("a number"), own.ino());
        let other = namespace::make().expect("a namespace");
        let there = Socket::open(Some(other.as_fd()), &[]).expect("a socket");
        assert_ne!(there.netns_inode().expect("a number"), own.ino());
    }
}
