//! What only a descriptor can be asked, by ioctl(2).

#![expect(unsafe_code, reason = "these requests are in no crate")]

use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Whether this is a descriptor of a network namespace (ioctl_nsfs(2), `NS_GET_NSTYPE`).
pub(super) fn is_netns(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the request takes no argument; files that are no namespaces refuse it.
    let kind = unsafe { libc::ioctl(fd.as_raw_fd(), libc::NS_GET_NSTYPE) };
    kind == libc::CLONE_NEWNET
}

/// Whether the interface of this descriptor of `/dev/net/tun` carries Ethernet frames (a TAP)
/// rather than packets; `None` if it has none (`TUNGETIFF`).
pub(super) fn is_tap(fd: BorrowedFd<'_>) -> Option<bool> {
    // SAFETY: all bytes zero are a request without a name.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // SAFETY: the kernel writes one `ifreq`, and nothing to descriptors of other files, which
    // refuse the request or take it as one of theirs without `request` being read.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
    if done != 0 {
        return None;
    }
    // SAFETY: `TUNGETIFF` has filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Some(i32::from(flags) & libc::IFF_TAP != 0)
}

/// The network namespace that the interface of this descriptor of `/dev/net/tun` is in
/// (`TUNGETDEVNETNS`, Linux 5.2); it takes the right to administer that namespace.
pub(super) fn netns_of_tun(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    // SAFETY: the request takes no argument.
    let netns = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETDEVNETNS) };
    // SAFETY: what it returns is a new descriptor, which nobody else knows.
    (netns >= 0).then(|| unsafe { OwnedFd::from_raw_fd(netns) })
}
