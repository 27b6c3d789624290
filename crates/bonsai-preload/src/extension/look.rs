//! Asking the kernel what a descriptor is.

use crate::amount::{Args, MsgHdr, Pages, readable};
use crate::answers;
use crate::descriptors::Known;
use crate::held;
use crate::kind;
use crate::seccomp::{Helper, ask, forbids};
use crate::sys;
use bonsai_calls::about::{self, Address};
use bonsai_calls::{CallId, Fd};
use bonsai_ledger::{BUCKETS, End, Kind, Peer, Scope, Segment, mapped};
use core::sync::atomic::{AtomicU64, Ordering};

/// Device and number of what a descriptor refers to; zeros for nothing.
pub(crate) fn file(fd: usize) -> [u64; 2] {
    let (_, [device, number, _]) = kind::look_all(fd);
    [device, number]
}

/// What a descriptor is, and which limits it is under; `before` is what was known of
/// it under earlier limits, and `lasts` says whether what is found can be
/// written down.
pub(crate) fn at(segment: &Segment, fd: usize, before: Option<Known>, lasts: bool) -> Known {
    let (epoch, narrowed) = segment.with_config(bonsai_ledger::Config::narrowed);
    if let Some(known) = before
        && is_unaskable()
    {
        // Limits with other rates go on as they were; of new ones nothing can be known.
        return Known {
            matches: known.matches & narrowed,
            by_call: known.by_call & narrowed,
            ..known
        };
    }
    let before = before.map(|known| (known.file, known.identity));
    let by_path = answers::by_path(segment, narrowed);
    let (looked, [device, number, names], key) = match by_path {
        0 => {
            let (looked, words) = kind::look_all(fd);
            (looked, words, None)
        }
        _ => answers::look(fd),
    };
    let kind = looked.kind;
    let file = [device, number];
    let identity = match before {
        // The number of a socket or a pipe is its own, in all processes.
        _ if kind == Fd::Socket => number,
        _ if looked.pipe => 1 << 55 | mixed(number ^ device.rotate_left(32)) >> 9,
        Some((known, identity)) if known == file => identity,
        _ if lasts => new_stream(fd),
        // Looked up at each call: then it has to be the same each time.
        _ => 1 << 56 | mixed(seed(fd) ^ mixed(number ^ device.rotate_left(32))) >> 8,
    };
    let mut known = Known {
        file,
        identity,
        ..Known::default()
    };
    let mut socket: Option<Socket> = None;
    // No socket has a path.
    let mut fitting = (kind == Fd::Socket).then_some(0);
    for bucket in bits(narrowed) {
        let Some(label) = segment.labels.get(bucket) else {
            continue;
        };
        let scope = label.scope();
        let fits_kind = match scope.kind {
            None => true,
            Some(Kind::Files) => kind == Fd::File,
            Some(Kind::Sockets) => kind == Fd::Socket,
        };
        if !fits_kind {
            continue;
        }
        let mut under = true;
        if scope.is_of_sockets() {
            if kind != Fd::Socket {
                continue;
            }
            let socket = socket.get_or_insert_with(|| Socket::of(fd));
            known.port = socket.port.unwrap_or(0);
            under = scope.has_socket(socket.port, socket.peer);
            if socket.addressed {
                known.by_call |= 1 << bucket;
            }
        }
        if let Some(wanted) = scope.device {
            under &= kind != Fd::Socket && wanted == device;
        }
        if scope.path.is_some() {
            let all = (by_path, epoch);
            let find = || answers::fitting(segment, fd, names, key.as_ref(), all);
            under &= *fitting.get_or_insert_with(find) >> bucket & 1 != 0;
        }
        known.matches |= u64::from(under) << bucket;
    }
    known
}

/// Whether a filter forbids to ask what limits on some descriptors go by.
fn is_unaskable() -> bool {
    let asked = [
        Helper::Fstat,
        Helper::Readlink,
        Helper::Getsockname,
        Helper::Getpeername,
    ];
    asked.into_iter().any(forbids)
}

/// The limits of `asked` that a call under way is under by its address; those that it
/// was under by its descriptor, where it has none.
pub(crate) fn by_call(segment: &Segment, known: &Known, asked: u64, address: Option<Peer>) -> u64 {
    let Some(peer) = address else {
        return known.matches & asked;
    };
    let own = (known.port != 0).then_some(known.port);
    let mut under = 0;
    for bucket in bits(asked) {
        let scope = segment.labels.get(bucket).map(|label| label.scope());
        let has = |scope: Scope| scope.has_socket(own, Some(peer));
        under |= u64::from(scope.is_some_and(has)) << bucket;
    }
    under
}

/// Of limits on a call with two descriptors, those that are for its source and those
/// that are for its target; some for either.
pub(crate) fn by_end(segment: &Segment, narrowed: u64) -> (u64, u64) {
    let (mut source, mut target) = (0, 0);
    for bucket in bits(narrowed) {
        let end = segment
            .labels
            .get(bucket)
            .and_then(|label| label.scope().end);
        source |= u64::from(end != Some(End::Target)) << bucket;
        target |= u64::from(end != Some(End::Source)) << bucket;
    }
    (source, target)
}

/// The address that a call has among its arguments.
pub(crate) fn address(call: CallId, args: &Args, pages: &mut Pages) -> Option<Peer> {
    let arg = |at: u8| args.a.get(usize::from(at)).copied().unwrap_or(0);
    let (at, len) = match about::address(call) {
        Address::None => return None,
        Address::Arg(first) => (arg(first), arg(first + 1)),
        Address::Message(first) => {
            let at = arg(first);
            if !readable(at, size_of::<MsgHdr>(), pages) {
                return None;
            }
            // SAFETY: readable.
            let message = unsafe { &*(at as *const MsgHdr) };
            (
                message.name,
                usize::try_from(message.name_len & 0xffff_ffff).unwrap_or(0),
            )
        }
    };
    let len = len.min(ADDRESS);
    if at == 0 || len == 0 || !readable(at, len, pages) {
        return None;
    }
    // SAFETY: readable.
    parse(unsafe { core::slice::from_raw_parts(at as *const u8, len) })
}

/// The numbers of the bits that are set.
pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (bit < BUCKETS).then_some(bit)
    })
}

/// A number for a stream that has none by itself: no other one has it. Above the numbers
/// of sockets, which have 32 bits.
fn new_stream(fd: usize) -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    1 << 56 | mixed((seed(fd) ^ sys::now().rotate_left(32)).wrapping_add(count)) >> 8
}

/// A descriptor of this process.
fn seed(fd: usize) -> u64 {
    u64::from(held::process()) << 32 | (fd as u64 & 0xffff_ffff)
}

/// A number of which every bit depends on every bit of another one (the end of
/// splitmix64).
const fn mixed(seed: u64) -> u64 {
    let seed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ seed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ seed >> 31
}

/// What a socket says of itself.
struct Socket {
    port: Option<u16>,
    peer: Option<Peer>,
    /// Its calls may have an address of their own.
    addressed: bool,
}

const SOL_SOCKET: usize = 1;
const SO_TYPE: usize = 3;
const SOCK_STREAM: u32 = 1;

/// The longest address that matters: struct sockaddr_in6.
const ADDRESS: usize = 28;

impl Socket {
    fn of(fd: usize) -> Self {
        let mut address = [0_u8; ADDRESS];
        let mut address_len = 28_u32;
        // SAFETY: as many bytes as it says.
        let got = unsafe { ask!(Getpeername, fd, address.as_mut_ptr(), &raw mut address_len) };
        let peer = (got == 0).then(|| parse(&address)).flatten();
        address_len = 28;
        // SAFETY: likewise.
        let got = unsafe { ask!(Getsockname, fd, address.as_mut_ptr(), &raw mut address_len) };
        let own = (got == 0).then(|| parse(&address)).flatten();
        let mut kind = 0_u32;
        let mut len = 4_u32;
        // SAFETY: four bytes.
        unsafe {
            ask!(
                Getsockopt,
                fd,
                SOL_SOCKET,
                SO_TYPE,
                &raw mut kind,
                &raw mut len
            );
        }
        Self {
            port: own.map(|own| own.port),
            peer,
            addressed: peer.is_none() || kind != SOCK_STREAM,
        }
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// An address as the kernel has it: of IPv4 or IPv6.
pub(crate) fn parse(address: &[u8]) -> Option<Peer> {
    let (family, rest) = address.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let address = match u16::from_ne_bytes(*family) {
        AF_INET => mapped(*rest.first_chunk::<4>()?),
        AF_INET6 => *rest.get(4..)?.first_chunk::<16>()?,
        _ => return None,
    };
    Some(Peer {
        address,
        port: u16::from_be_bytes(*port),
    })
}
