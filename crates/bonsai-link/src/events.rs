//! What happens to interfaces, as it happens.

use std::os::fd::{AsFd, BorrowedFd};

use crate::error::Error;
use crate::links::{RTM_DELLINK, RTM_NEWLINK};
use crate::netlink::Socket;

/// `RTNLGRP_LINK` and `RTNLGRP_TC`.
const GROUPS: [u32; 2] = [1, 4];

/// What was heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Interfaces came, went, or changed.
    pub links: bool,
    /// Disciplines, classes or filters did: our own changes are among them, but for those that are
    /// left out.
    pub control: bool,
}

/// A socket that hears of changes in a namespace. It is readable (poll(2)) when there are some.
#[derive(Debug)]
pub struct Events {
    socket: Socket,
    /// Whose doing is not told.
    but: Option<u32>,
}

impl Events {
    /// Begins to listen, in the calling thread's namespace or another one.
    ///
    /// # Errors
    /// If it cannot be entered, or there is no socket to the kernel.
    pub fn open(namespace: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let socket = Socket::open(namespace, &GROUPS)?;
        Ok(Self { socket, but: None })
    }

    /// Leaves out what the site with that port does ([`crate::Site::port`]): whoever moves rates many
    /// times a second knows of it.
    pub const fn leave_out(&mut self, port: Option<u32>) {
        self.but = port;
    }

    /// What happened since it was asked last, without waiting. Where too much happened to be told,
    /// everything may have changed.
    ///
    /// # Errors
    /// If the socket broke.
    pub fn heard(&mut self) -> Result<Heard, Error> {
        let mut heard = Heard::default();
        let whole = self.socket.heard(self.but, |kind, _| match kind {
            RTM_NEWLINK | RTM_DELLINK => heard.links = true,
            _ => heard.control = true,
        })?;
        heard.links |= !whole;
        heard.control |= !whole;
        Ok(heard)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
