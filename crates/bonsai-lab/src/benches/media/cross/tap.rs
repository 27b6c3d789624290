//! Datagrams that come by the loopback, captured with the kernel's times.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReceiveTimeout, ReceiveTimestampns, RxqOvfl};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType,
    recvmsg, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// What is kept of a frame: its headers, and those of RTP.
const KEPT: usize = 128;
/// For what comes while this thread does not run, bytes.
const BUFFER: usize = 8 << 20;
/// How often it is looked whether it is over.
const LOOKS_MS: i64 = 50;
/// Frames that are for this machine (packet(7)): those that it sends are seen once more on their way out.
const HOST: u8 = 0;

/// What sees all frames of this machine.
#[derive(Debug)]
pub(super) struct Tap {
    socket: OwnedFd,
    loopback: usize,
}

impl Tap {
    /// One that captures from now on.
    ///
    /// # Errors
    /// It is not allowed.
    pub(super) fn open() -> anyhow::Result<Self> {
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )?;
        if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
            setsockopt(&socket, RcvBuf, &BUFFER)?;
        }
        setsockopt(&socket, ReceiveTimestampns, &true)?;
        setsockopt(&socket, RxqOvfl, &1)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(LOOKS_MS))?;
        let loopback = usize::try_from(if_nametoindex("lo")?)?;
        Ok(Self { socket, loopback })
    }

    /// Captures datagrams of the loopback while something is done; the file, and what was done.
    ///
    /// # Errors
    /// Either cannot be done, or frames came faster than they were captured.
    pub(super) fn during<T>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(Vec<u8>, T)> {
        // What has come since it was opened.
        let mut frame = [0; KEPT];
        let mut dropped = 0;
        while let Some(frame) = self.next(&mut frame, MsgFlags::MSG_DONTWAIT)? {
            dropped = frame.dropped;
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let capturing = scope.spawn(|| self.capture(&is_over, dropped));
            let done = work();
            is_over.store(true, Ordering::Relaxed);
            let file = capturing.join();
            let file = file.ok().context("the capture has panicked")??;
            Ok((file, done?))
        })
    }

    fn capture(&self, is_over: &AtomicBool, before: u32) -> anyhow::Result<Vec<u8>> {
        // pcap with nanoseconds, Ethernet.
        let kept = u32::try_from(KEPT)?;
        let header = [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, kept, 1];
        let mut file = header.map(u32::to_le_bytes).concat();
        let mut frame = [0; KEPT];
        while !is_over.load(Ordering::Relaxed) {
            let Some(next) = self.next(&mut frame, MsgFlags::empty())? else {
                continue;
            };
            let Frame {
                at,
                length,
                is_it,
                dropped,
            } = next;
            anyhow::ensure!(
                dropped == before,
                "the capture lost {} frames",
                dropped.wrapping_sub(before)
            );
            // IPv4 (or IPv6) and UDP.
            let is_udp = match (frame[12], frame[13]) {
                (8, 0) => frame[23] == 17,
                (0x86, 0xdd) => frame[20] == 17,
                _ => false,
            };
            if is_it && is_udp {
                let kept = length.min(KEPT);
                let words = [u64::from(at.0), u64::from(at.1), kept as u64, length as u64];
                for word in words {
                    file.extend(u32::try_from(word)?.to_le_bytes());
                }
                file.extend(&frame[..kept]);
            }
        }
        Ok(file)
    }

    /// The next frame; nothing where none has come for a while.
    fn next(&self, frame: &mut [u8], flags: MsgFlags) -> anyhow::Result<Option<Frame>> {
        let mut control = nix::cmsg_space!([u8; 64]);
        let mut slices = [IoSliceMut::new(frame)];
        let fd = self.socket.as_raw_fd();
        // The length is that of all of it, and not of what is kept.
        let flags = flags | MsgFlags::MSG_TRUNC;
        let read = recvmsg::<LinkAddr>(fd, &mut slices, Some(&mut control), flags);
        let message = match read {
            Ok(message) => message,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let from = message.address.as_ref();
        let is_it = from.is_some_and(|of| of.ifindex() == self.loopback && of.pkttype() == HOST);
        let (mut at, mut dropped) = (None, 0);
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::ScmTimestampns(of) => {
                    at = Some((u32::try_from(of.tv_sec())?, u32::try_from(of.tv_nsec())?));
                }
                ControlMessageOwned::RxqOvfl(of) => dropped = of,
                _ => {}
            }
        }
        Ok(Some(Frame {
            at: at.context("a frame without a time")?,
            length: message.bytes,
            is_it,
            dropped,
        }))
    }
}

/// A frame that was captured.
struct Frame {
    /// When, seconds and nanoseconds of the wall clock.
    at: (u32, u32),
    length: usize,
    /// Whether it came by the loopback.
    is_it: bool,
    /// Frames that found no room since this socket was opened (`SO_RXQ_OVFL`, socket(7)).
    dropped: u32,
}
