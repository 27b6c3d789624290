//! Which process holds which TUN or TAP interface.
//!
//! A descriptor of `/dev/net/tun` has an interface once `TUNSETIFF` was called on it; its fdinfo
//! then has a line `iff:` with the name (Documentation/networking/tuntap.rst, `tun_chr_show_fdinfo`).
//! The interface can be in another namespace than the process: whoever sets up the network of a
//! container without root makes it inside and works outside. So the descriptor itself is asked,
//! through a copy of it (`pidfd_getfd(2)`, which the holder does not notice). A macvtap has a
//! device of its own, `/dev/tapINDEX`.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, RawFd};

use rustix::fs::{Mode, OFlags, RawDir, readlinkat_raw};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::ioctl;
use super::namespaces::NsId;
use super::roots::read_of_process;

/// Descriptors that are looked at of one process, the lowest first: new ones take the lowest number
/// that is free, so those of interfaces are among them even in a machine with many disks. More would
/// let any user make each look as long as they like.
const MOST_DESCRIPTORS: usize = 4096;

/// What kind of interface it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapKind {
    /// Carries packets.
    Tun,
    /// Carries Ethernet frames.
    Tap,
    /// One of both; the descriptor may not be asked which.
    TunOrTap,
    /// A macvtap or ipvtap.
    MacVtap {
        /// Its interface index.
        index: u32,
    },
}

/// An interface that a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// What it is.
    pub kind: TapKind,
    /// Its name; `None` for a macvtap, which is known by its index.
    pub name: Option<String>,
    /// Process that holds it.
    pub pid: u32,
    /// Its first descriptor there.
    pub fd: RawFd,
    /// How many descriptors it has there: its queues, and copies.
    pub queues: usize,
    /// The network namespace that it is in, where known.
    pub netns: Option<NsId>,
    /// Whether that was asked of the descriptor; otherwise it is that of the process.
    pub netns_is_exact: bool,
    /// Whether the process also has vhost-net, so that packets pass by it, within the kernel.
    pub vhost: bool,
}

/// What the target of a link in `/proc/PID/fd` is of use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Tun,
    MacVtap(u32),
    VhostNet,
}

fn device(target: &[u8]) -> Option<Device> {
    // Nearly all are sockets, pipes and files; a device can have another path in a chroot.
    if target.ends_with(b"/net/tun") {
        return Some(Device::Tun);
    }
    if target.ends_with(b"/vhost-net") {
        return Some(Device::VhostNet);
    }
    let at = target.iter().rposition(|byte| *byte == b'/')?;
    let index = std::str::from_utf8(target[at..].strip_prefix(b"/tap")?).ok()?;
    if !target.starts_with(b"/dev/") || !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    index.parse().ok().map(Device::MacVtap)
}

/// The interface's name in the fdinfo of a descriptor of `/dev/net/tun`; `None` if it has none yet.
#[must_use]
pub fn interface(fdinfo: &[u8]) -> Option<String> {
    let mut lines = fdinfo.split(|byte| *byte == b'\n');
    let name = lines
        .find_map(|line| line.strip_prefix(b"iff:"))?
        .trim_ascii();
    // IFNAMSIZ, with a zero at its end.
    (!name.is_empty() && name.len() < 16).then(|| String::from_utf8_lossy(name).into_owned())
}

/// The interfaces that the process holds whose folder in procfs is `folder`. `netns` is that of the
/// process. None if it has ended or its descriptors may not be read.
pub(super) fn of_process(folder: &File, pid: u32, netns: Option<NsId>, live: bool) -> Vec<Tap> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(descriptors) = rustix::fs::openat(folder, "fd", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&descriptors, &mut buffer);
    let mut found = Vec::new();
    for _ in 0..MOST_DESCRIPTORS {
        let Some(Ok(entry)) = entries.next() else {
            break;
        };
        let mut target = [MaybeUninit::uninit(); 256];
        let target = readlinkat_raw(&descriptors, entry.file_name(), &mut target[..]);
        let Some(device) = target.ok().and_then(|(target, _)| device(target)) else {
            continue;
        };
        let fd = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|name| name.parse::<RawFd>().ok());
        found.extend(fd.map(|fd| (fd, device)));
    }
    if found.is_empty() {
        return Vec::new();
    }
    let vhost = found.iter().any(|(_, device)| *device == Device::VhostNet);
    let mut taps: Vec<Tap> = Vec::new();
    for (fd, device) in found {
        let tap = Tap {
            kind: TapKind::TunOrTap,
            name: None,
            pid,
            fd,
            queues: 1,
            netns,
            netns_is_exact: false,
            vhost,
        };
        let tap = match device {
            Device::VhostNet => continue,
            Device::MacVtap(index) => Tap {
                kind: TapKind::MacVtap { index },
                ..tap
            },
            Device::Tun => {
                let Ok(info) = read_of_process(folder, &format!("fdinfo/{fd}"), 4096) else {
                    continue;
                };
                let Some(name) = interface(&info) else {
                    continue;
                };
                let tap = Tap {
                    name: Some(name),
                    ..tap
                };
                if live { asked(folder, tap) } else { tap }
            }
        };
        let same = taps
            .iter_mut()
            .find(|one| (one.kind, &one.name, one.netns) == (tap.kind, &tap.name, tap.netns));
        match same {
            Some(one) => one.queues += 1,
            None => taps.push(tap),
        }
    }
    taps
}

/// With what the descriptor itself says, if it may be asked.
fn asked(folder: &File, mut tap: Tap) -> Tap {
    let copy = || {
        let pid = Pid::from_raw(i32::try_from(tap.pid).ok()?)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number is still that of the process whose folder this is.
        read_of_process(folder, "stat", 4096).ok()?;
        pidfd_getfd(process, tap.fd, PidfdGetfdFlags::empty()).ok()
    };
    let Some(copy) = copy() else { return tap };
    // A copy of another file, opened in its place a moment ago, refuses this.
    let Some(is_tap) = ioctl::is_tap(copy.as_fd()) else {
        return tap;
    };
    tap.kind = if is_tap { TapKind::Tap } else { TapKind::Tun };
    let netns = ioctl::netns_of_tun(copy.as_fd());
    if let Some(stat) = netns.and_then(|netns| rustix::fs::fstat(netns).ok()) {
        tap.netns = Some(NsId::of(&stat));
        tap.netns_is_exact = true;
    }
    tap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_a_descriptor() {
        let info = b"pos:\t0\nflags:\t0104002\nmnt_id:\t24\nino:\t105\niff:\tvnet3\n";
        assert_eq!(interface(info).as_deref(), Some("vnet3"));
        assert_eq!(interface(b"pos:\t0\niff:\t\n"), None);
        assert_eq!(interface(b"pos:\t0\n"), None);
        assert_eq!(interface(b"iff:\t0123456789012345\n"), None);
        assert_eq!(
            interface(b"iff:\t\xff\x1b\n").as_deref(),
            Some("\u{fffd}\u{1b}")
        );
    }

    #[test]
    fn devices_by_their_paths() {
        assert_eq!(device(b"/dev/net/tun"), Some(Device::Tun));
        assert_eq!(
            device(b"/srv/jailer/firecracker/x/root/dev/net/tun"),
            Some(Device::Tun)
        );
        assert_eq!(device(b"/dev/tap17"), Some(Device::MacVtap(17)));
        assert_eq!(device(b"/dev/vhost-net"), Some(Device::VhostNet));
        for other in [
            &b"socket:[123]"[..],
            b"/dev/tap",
            b"/dev/tap1x",
            b"/home/tap3",
            b"/dev/tap99999999999",
        ] {
            assert_eq!(device(other), None);
        }
    }
}
