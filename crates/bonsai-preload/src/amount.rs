//! How many bytes a call asks for, and how many it moved.

use crate::seccomp::ask;
use crate::signal::Context;
use bonsai_calls as calls;
use bonsai_calls::CallId;
pub(crate) use bonsai_calls::io_size::{IoSize, io_size};
use bonsai_calls::whole::{self, MOST_BYTES, MOST_VECTORS};
use bonsai_decide::Extras;
use bonsai_decide::charge::{self, Moved};

/// A call as it stands in the registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Args {
    pub(crate) a: [usize; 6],
    pub(crate) nr: usize,
}

impl Args {
    /// The call at which a signal came.
    pub(crate) const fn of(context: &Context) -> Self {
        Self {
            a: [
                context.rdi,
                context.rsi,
                context.rdx,
                context.r10,
                context.r8,
                context.r9,
            ],
            nr: context.rax,
        }
    }
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IoVec {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

/// `struct msghdr`.
#[repr(C)]
pub(crate) struct MsgHdr {
    pub(crate) name: usize,
    pub(crate) name_len: u64,
    pub(crate) iov: *const IoVec,
    pub(crate) iov_len: usize,
    control: usize,
    control_len: usize,
    flags: u64,
}

impl MsgHdr {
    /// Bytes alone, without an address or anything beside them.
    pub(crate) const PLAIN: Self = Self {
        name: 0,
        name_len: 0,
        iov: core::ptr::null(),
        iov_len: 0,
        control: 0,
        control_len: 0,
        flags: 0,
    };
}

/// `struct mmsghdr`.
#[repr(C)]
struct MMsgHdr {
    hdr: MsgHdr,
    len: u32,
}

/// Pages found readable last, by the lowest bit of their number. A program that
/// unmaps one and passes a pointer into it a moment later gets a fault where the
/// kernel would have refused the call.
pub(crate) type Pages = [usize; 2];

/// Whether memory of the program may be read: its own pointers are only followed
/// if the kernel could follow them too.
pub(crate) fn readable(at: usize, len: usize, pages: &mut Pages) -> bool {
    const EINVAL: isize = -22;
    if at < 4096 || !whole::is_range(at, len) {
        return false;
    }
    for page in at >> 12..=(at + len.max(1) - 1) >> 12 {
        if pages[page & 1] == page {
            continue;
        }
        // rt_sigprocmask(how = -1, set): copies eight bytes, then refuses `how`:
        // EFAULT where they cannot be read, EINVAL where they can.
        // SAFETY: changes nothing.
        if unsafe { ask!(Sigprocmask, usize::MAX, page << 12, 0, 8) } != EINVAL {
            return false;
        }
        pages[page & 1] = page;
    }
    true
}

fn vectors(at: usize, count: usize, pages: &mut Pages) -> usize {
    if count == 0 || count > MOST_VECTORS || !readable(at, count * size_of::<IoVec>(), pages) {
        return 0;
    }
    // SAFETY: readable, and not longer than the kernel would read.
    let vectors = unsafe { core::slice::from_raw_parts(at as *const IoVec, count) };
    if !vectors.iter().all(|v| whole::is_range(v.base, v.len)) {
        return 0;
    }
    vectors
        .iter()
        .fold(0_usize, |sum, v| sum.saturating_add(v.len))
        .min(MOST_BYTES)
}

/// Bytes that a call asks for, at most; 0 for arguments that the kernel may refuse: such a call is made as it came, and what it
/// moves all the same is paid for afterwards.
pub(crate) fn asked(call: CallId, args: &Args, pages: &mut Pages) -> usize {
    match io_size(call) {
        IoSize::Arg(i) => counted(call, args, args.a[usize::from(i) % 6], pages),
        IoSize::Vec(at, count) => {
            let (at, count) = (args.a[usize::from(at) % 6], args.a[usize::from(count) % 6]);
            let asked = vectors(at, count, pages);
            if has_place(call, args, asked) {
                asked
            } else {
                0
            }
        }
        IoSize::Msg => {
            let at = args.a[1];
            if !readable(at, size_of::<MsgHdr>(), pages) {
                return 0;
            }
            // SAFETY: readable.
            let msg = unsafe { &*(at as *const MsgHdr) };
            vectors(msg.iov as usize, msg.iov_len, pages)
        }
        IoSize::Messages => {
            let (at, count) = (args.a[1], args.a[2].min(MOST_VECTORS));
            if !readable(at, count * size_of::<MMsgHdr>(), pages) {
                return 0;
            }
            messages(at, count, |m| {
                vectors(m.hdr.iov as usize, m.hdr.iov_len, pages)
            })
        }
        IoSize::None => 0,
    }
}

/// The same where a register has the count.
fn counted(call: CallId, args: &Args, count: usize, pages: &mut Pages) -> usize {
    // Descriptors, and where their offsets are.
    let ends = match call {
        calls::SENDFILE_FILE | calls::SENDFILE_SOCKET | calls::SENDFILE_OTHER => {
            [(args.a[1], args.a[2]), (args.a[0], 0)]
        }
        calls::SPLICE_FILE
        | calls::SPLICE_SOCKET
        | calls::SPLICE_OTHER
        | calls::COPY_FILE_RANGE => [(args.a[0], args.a[1]), (args.a[2], args.a[3])],
        calls::TEE => [(args.a[0], 0), (args.a[1], 0)],
        _ => {
            let is_whole = whole::is_range(args.a[1], count) && has_place(call, args, count);
            return if is_whole { count.min(MOST_BYTES) } else { 0 };
        }
    };
    let mut has_place = |(fd, at): (usize, usize)| {
        if at == 0 {
            return count <= MOST_BYTES || has_room_behind(fd, count);
        }
        // SAFETY: readable, and of any alignment.
        let offset = || unsafe { (at as *const usize).read_unaligned() };
        readable(at, size_of::<usize>(), pages) && whole::is_place(offset(), count)
    };
    let is_accepted = whole::is_count(count) && ends.into_iter().all(&mut has_place);
    if is_accepted {
        let within = match call {
            calls::COPY_FILE_RANGE => within_one(ends, count),
            _ => None,
        };
        within.unwrap_or(count).min(MOST_BYTES)
    } else {
        0
    }
}

/// Bytes that a copy within one file can move, by descriptors and readable offsets: at most those before the end of the file at the
/// start of the call, none for overlapping ranges. `None` for two files.
fn within_one(ends: [(usize, usize); 2], count: usize) -> Option<usize> {
    let mut files = [[0_u64; 18]; 2];
    for ((fd, _), stat) in ends.iter().zip(&mut files) {
        // SAFETY: struct stat has 144 bytes.
        if unsafe { ask!(Fstat, *fd, stat.as_mut_ptr()) } < 0 {
            return None;
        }
    }
    // Device, number and size.
    if files[0][..2] != files[1][..2] {
        return None;
    }
    let size = usize::try_from(files[0][6]).unwrap_or(0);
    let [from, to] = ends.map(|(fd, at)| match at {
        0 => position(fd).unwrap_or(0),
        // SAFETY: readable, and of any alignment.
        at => unsafe { (at as *const usize).read_unaligned() },
    });
    let is_refused = whole::is_onto_itself(from, to, count, size);
    Some(if is_refused {
        0
    } else {
        count.min(size.saturating_sub(from))
    })
}

/// A file's position; none where it has none.
fn position(fd: usize) -> Option<usize> {
    const SEEK_CUR: usize = 1;
    // SAFETY: asks only.
    usize::try_from(unsafe { ask!(Lseek, fd, 0, SEEK_CUR) }).ok()
}

/// Whether `count` bytes behind a file's position have valid offsets; true for files without a position.
fn has_room_behind(fd: usize, count: usize) -> bool {
    position(fd).is_none_or(|position| whole::is_place(position, count))
}

/// Whether a file has room for so many bytes where the call has them read or written.
fn has_place(call: CallId, args: &Args, count: usize) -> bool {
    whole::offset_after(call, args.a[3], 0).is_none_or(|offset| whole::is_place(offset, count))
}

/// The vectors of a call for which [`asked`] has found some bytes.
pub(crate) fn list(call: CallId, args: &Args) -> Option<&'static [IoVec]> {
    let (at, count) = match io_size(call) {
        IoSize::Vec(at, count) => (
            args.a[usize::from(at) % 6] as *const IoVec,
            args.a[usize::from(count) % 6],
        ),
        IoSize::Msg => {
            // SAFETY: found readable.
            let msg = unsafe { &*(args.a[1] as *const MsgHdr) };
            (msg.iov, msg.iov_len)
        }
        _ => return None,
    };
    // SAFETY: found readable.
    Some(unsafe { core::slice::from_raw_parts(at, count) })
}

/// Flags and the like of a call for which [`asked`] has found some bytes.
pub(crate) fn extras(call: CallId, args: &Args) -> Extras {
    let is_addressed = call == calls::SENDMSG && {
        // SAFETY: found readable.
        let msg = unsafe { &*(args.a[1] as *const MsgHdr) };
        msg.name != 0 || msg.control_len != 0
    };
    Extras {
        flags: flags(call, args),
        is_addressed,
    }
}

/// Flags of a call (`MSG_*`, `RWF_*`); 0 for a call without them.
#[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
pub(crate) fn flags(call: CallId, args: &Args) -> u32 {
    let flags = match call {
        calls::SENDTO | calls::RECVFROM | calls::SENDMMSG | calls::RECVMMSG => args.a[3],
        calls::SENDMSG | calls::RECVMSG => args.a[2],
        calls::PREADV2 | calls::PWRITEV2 => args.a[5],
        _ => 0,
    };
    flags as u32
}

/// Adds up an array of messages that is readable: checked, or just used by the
/// kernel.
fn messages(at: usize, count: usize, mut bytes: impl FnMut(&MMsgHdr) -> usize) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: by the caller.
    let list = unsafe { core::slice::from_raw_parts(at as *const MMsgHdr, count) };
    list.iter()
        .fold(0_usize, |sum, m| sum.saturating_add(bytes(m)))
}

/// The messages of `sendmmsg` from number `done` of `total` on that have at most
/// `most` bytes together, but one at least: where they begin, how many there are, and
/// their bytes. For a call for which [`asked`] has found some.
pub(crate) fn group(
    args: &Args,
    done: usize,
    total: usize,
    most: usize,
    pages: &mut Pages,
) -> (usize, usize, usize) {
    let at = args.a[1] + done * size_of::<MMsgHdr>();
    // SAFETY: found readable.
    let list = unsafe { core::slice::from_raw_parts(at as *const MMsgHdr, total - done) };
    let (mut count, mut bytes) = (0, 0_usize);
    for m in list {
        let next = vectors(m.hdr.iov as usize, m.hdr.iov_len, pages).saturating_add(bytes);
        if count > 0 && next > most {
            break;
        }
        (count, bytes) = (count + 1, next);
    }
    (at, count, bytes)
}

/// Room for a message that has been received. The kernel cuts a vector to what there can be before it looks where it ends, so that
/// one that is no range may have been accepted.
fn room(args: &Args, pages: &mut Pages) -> usize {
    if !readable(args.a[1], size_of::<MsgHdr>(), pages) {
        return 0;
    }
    // SAFETY: readable.
    let msg = unsafe { &*(args.a[1] as *const MsgHdr) };
    let len = msg.iov_len.min(MOST_VECTORS);
    if len == 0 || !readable(msg.iov as usize, len * size_of::<IoVec>(), pages) {
        return 0;
    }
    // SAFETY: readable.
    let vectors = unsafe { core::slice::from_raw_parts(msg.iov, len) };
    vectors.iter().fold(0, |sum, v| sum.saturating_add(v.len))
}

/// Bytes that a call moved, by its result.
pub(crate) fn moved(call: CallId, args: &Args, result: isize) -> usize {
    let got = usize::try_from(result).unwrap_or(0);
    match charge::moved(call, flags(call, args), result) {
        Moved::Bytes(bytes) => bytes,
        Moved::All => asked(call, args, &mut [0; 2]),
        Moved::Messages => messages(args.a[1], got, |m| m.len as usize),
        Moved::WithinRoom if call == calls::RECVMSG => got.min(room(args, &mut [0; 2])),
        Moved::WithinRoom => got.min(args.a[2]),
    }
}
