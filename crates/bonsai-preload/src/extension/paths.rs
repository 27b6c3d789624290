//! Paths: of descriptors, by `/proc`, and of calls, by their arguments.

use crate::amount::{Args, Pages, readable};
use crate::look::bits;
use crate::seccomp::ask;
use bonsai_calls::pattern::{matches, normalize};
use bonsai_calls::{CallId, about};
use bonsai_ledger::{LIMIT_NAME, Label, Segment, Unshaped};
use core::sync::atomic::{AtomicIsize, Ordering};

/// A path, in a mapping of its own: a stack may be small.
pub(crate) struct Path {
    at: isize,
    len: usize,
}

/// The longest path, with its end (PATH_MAX).
const LONGEST: usize = 4096;

/// Room for the path of a folder, and one that begins in it.
const ROOM: usize = 3 * LONGEST;

/// What the kernel puts behind the path of a file without a name.
const DELETED: &[u8] = b" (deleted)";

/// The current folder, as the descriptor of one.
pub(crate) const AT_FDCWD: usize = (-100_i32).cast_unsigned() as usize;

/// A mapping for a path that nobody uses just now: making one takes as long as the rest.
static SPARE: AtomicIsize = AtomicIsize::new(0);

impl Path {
    fn new() -> Self {
        let mut at = SPARE.swap(0, Ordering::Acquire);
        if at == 0 {
            // SAFETY: a mapping of our own: PROT_READ | PROT_WRITE, MAP_PRIVATE |
            // MAP_ANONYMOUS.
            at = unsafe { ask!(Mmap, 0, ROOM, 3, 0x22, -1_isize, 0) };
        }
        Self { at, len: 0 }
    }

    /// Of a descriptor, which has so many names; `None` if it cannot be told.
    pub(crate) fn of_descriptor(segment: &Segment, fd: usize, names: u64) -> Option<Self> {
        let mut path = Self::new();
        let mut link = *b"/proc/thread-self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        write_number(&mut link[21..31], fd);
        if !path.read_link(&link) {
            segment.count_unshaped(Unshaped::NoPath);
            return None;
        }
        if names == 0 && path.bytes().ends_with(DELETED) {
            path.len -= DELETED.len();
        }
        Some(path)
    }

    /// Of a call, without a look at what is there: `text` from `folder` on.
    fn of_call(segment: &Segment, folder: usize, text: usize, pages: &mut Pages) -> Self {
        let mut path = Self::new();
        let Some(len) = length(text, pages).filter(|_| path.at >= 0) else {
            return path;
        };
        // SAFETY: so long, and readable.
        let text = unsafe { core::slice::from_raw_parts(text as *const u8, len) };
        if text.first() != Some(&b'/') {
            let found = if folder == AT_FDCWD {
                path.read_link(b"/proc/thread-self/cwd\0")
            } else {
                let mut link = *b"/proc/thread-self/fd/\0\0\0\0\0\0\0\0\0\0\0";
                write_number(&mut link[21..31], folder);
                path.read_link(&link)
            };
            if !found {
                segment.count_unshaped(Unshaped::NoPath);
                return path;
            }
        }
        path.push(b"/");
        path.push(text);
        let len = path.len.min(ROOM);
        // SAFETY: its own mapping.
        let all = unsafe { core::slice::from_raw_parts_mut(path.at as *mut u8, len) };
        path.len = normalize(all);
        path
    }

    /// Reads what a link says, which ends with a zero.
    fn read_link(&mut self, link: &[u8]) -> bool {
        if self.at < 0 {
            return false;
        }
        // SAFETY: a C string, and room in its own mapping.
        let got = unsafe { ask!(Readlink, link.as_ptr(), self.at, LONGEST) };
        self.len = usize::try_from(got).unwrap_or(0);
        got > 0
    }

    fn push(&mut self, text: &[u8]) {
        let len = text.len().min(ROOM - self.len.min(ROOM));
        let to = self.at.cast_unsigned() + self.len;
        // SAFETY: within its own mapping.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), to as *mut u8, len) };
        self.len += len;
    }

    fn bytes(&self) -> &[u8] {
        if self.at < 0 {
            return &[];
        }
        // SAFETY: as much as was written to the mapping.
        let all = unsafe { core::slice::from_raw_parts(self.at as *const u8, self.len) };
        // What has no path has a word instead: `socket:[7]`.
        if all.first() == Some(&b'/') { all } else { &[] }
    }

    /// Whether it is one that a limit is for, whose pattern stands there in its name.
    pub(crate) fn fits(&self, label: &Label, part: (u8, u8)) -> bool {
        let mut pattern = [0_u8; LIMIT_NAME];
        matches(label.name_part(part, &mut pattern), self.bytes())
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        if self.at >= 0
            && SPARE
                .compare_exchange(0, self.at, Ordering::Release, Ordering::Relaxed)
                .is_err()
        {
            // SAFETY: its own mapping.
            unsafe { ask!(Munmap, self.at, ROOM) };
        }
    }
}

/// Of limits on a call by path, those that this one is under.
#[inline(never)]
pub(crate) fn matching(
    segment: &Segment,
    call: CallId,
    args: &Args,
    narrowed: u64,
    pages: &mut Pages,
) -> u64 {
    let Some((folder, text)) = about::path(call) else {
        return 0;
    };
    let arg = |at: u8| args.a.get(usize::from(at)).copied();
    let folder = arg(folder).map_or(AT_FDCWD, |fd| fd & 0xffff_ffff);
    let path = Path::of_call(segment, folder, arg(text).unwrap_or(0), pages);
    let mut under = 0;
    for bucket in bits(narrowed) {
        if let Some(label) = segment.labels.get(bucket)
            && let Some(part) = label.scope().path
        {
            under |= u64::from(path.fits(label, part)) << bucket;
        }
    }
    under
}

/// The length of a text that ends with a zero; `None` where the kernel would refuse it.
fn length(text: usize, pages: &mut Pages) -> Option<usize> {
    let mut len = 0;
    while len < LONGEST {
        let at = text.checked_add(len)?;
        let in_page = 4096 - at % 4096;
        if !readable(at, in_page, pages) {
            return None;
        }
        // SAFETY: the rest of a page that is readable.
        let part = unsafe { core::slice::from_raw_parts(at as *const u8, in_page) };
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            return Some(len + end).filter(|len| *len < LONGEST);
        }
        len += in_page;
    }
    None
}

/// Writes a number in decimal, from the left.
fn write_number(to: &mut [u8], number: usize) {
    let mut digits = 1;
    while number / 10_usize.pow(digits) > 0 && digits < 10 {
        digits += 1;
    }
    for (place, byte) in (0..digits).rev().zip(to) {
        let digit = number / 10_usize.pow(place) % 10;
        *byte = b'0' + u8::try_from(digit).unwrap_or(0);
    }
}
