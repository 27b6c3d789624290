//! What a call would move, as far as its registers say: they cannot change any more.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use bonsai_calls::io_size::{IoSize, io_size};
use bonsai_calls::whole;

use super::filter::entry_of;

/// The most one call moves (`MAX_RW_COUNT`).
pub(crate) const MOST: u64 = whole::MOST_BYTES as u64;

/// Where the number of bytes of a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Nowhere: it moves none.
    None,
    /// In a register: at most so many.
    AtMost(u64),
    /// In memory, which others may change while the call begins.
    InMemory,
}

pub(crate) fn amount(nr: u32, args: &[u64; 6]) -> Amount {
    let size = entry_of(nr).map_or(IoSize::None, io_size);
    match nr {
        // The kernel refuses it before anything moves.
        0 | 1 | 17 | 18 if !is_memory(args[1], args[2]) => return Amount::AtMost(0),
        17 | 18 if !is_place(args[3], args[2]) => return Amount::AtMost(0),
        _ => {}
    }
    match size {
        IoSize::Arg(at) => Amount::AtMost(args[usize::from(at)].min(MOST)),
        IoSize::Vec(..) | IoSize::Msg | IoSize::Messages => Amount::InMemory,
        IoSize::None => Amount::None,
    }
}

/// Whether a buffer lies where a program can have memory.
pub(crate) fn is_memory(at: u64, len: u64) -> bool {
    let numbers = usize::try_from(at).ok().zip(usize::try_from(len).ok());
    numbers.is_some_and(|(at, len)| whole::is_within(at, len, memory_end()))
}

pub(crate) fn is_count(len: u64) -> bool {
    usize::try_from(len).is_ok_and(whole::is_count)
}

fn is_place(offset: u64, len: u64) -> bool {
    let numbers = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
    numbers.is_some_and(|(offset, len)| whole::is_place(offset, len))
}

/// The end of a program's memory (`TASK_SIZE_MAX`), which depends on the levels of page tables.
fn memory_end() -> usize {
    const PAGE: usize = 4096;
    static END: OnceLock<usize> = OnceLock::new();
    *END.get_or_init(|| {
        let hint = 1_usize << 47;
        // SAFETY: a new mapping wherever there is room, of nothing.
        let got = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(hint as *mut _, PAGE, libc::PROT_NONE, flags, -1, 0)
        };
        let levels = if got as usize >= hint && got != libc::MAP_FAILED {
            5
        } else {
            4
        };
        if got != libc::MAP_FAILED {
            // SAFETY: the mapping that was just made, which nobody has seen.
            unsafe { libc::munmap(got, PAGE) };
        }
        (1 << (9 * levels + 11)) - PAGE
    })
}

/// The arguments of a call; registers beyond them hold whatever was there, and two calls
/// that differ in these are the same.
pub(crate) fn arguments(nr: u32, args: [u64; 6]) -> [u64; 6] {
    let count = match nr {
        0 | 1 | 19 | 20 | 46 | 47 => 3,
        17 | 18 | 40 | 276 | 278 | 307 => 4,
        295 | 296 | 299 => 5,
        _ => 6,
    };
    std::array::from_fn(|i| if i < count { args[i] } else { 0 })
}

/// What a thread has read and written by calls, as the kernel counts it
/// (`/proc/PID/task/TID/io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// Reads them through a file that is kept open; an error when the thread has ended, or
/// may not be looked into.
pub(crate) fn counted(io: &File) -> std::io::Result<Counted> {
    let mut text = [0; 256];
    let len = io.read_at(&mut text, 0)?;
    parse(&text[..len]).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

fn parse(text: &[u8]) -> Option<Counted> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let mut value = |name: &[u8]| {
        let digits = lines.next()?.strip_prefix(name)?;
        digits.iter().try_fold(0_u64, |sum, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            sum.checked_mul(10)?.checked_add(u64::from(digit))
        })
    };
    Some(Counted {
        read: value(b"rchar: ")?,
        written: value(b"wchar: ")?,
    })
}

/// Bytes of a pipe's first piece, of `left` in all and at most `most`: as many beyond whole pages as the call has. The kernel adds
/// these to the page that was begun before, if they fit (`pipe_write` of fs/pipe.c), and a call that ends at memory
/// that is not there has moved more or less by that.
pub(crate) const fn first_of_pipe(left: u64, most: u64, page: u64) -> u64 {
    let less = (most.wrapping_sub(left)) % page;
    if less < most { most - less } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_this_thread_is_read() {
        let tid = rustix::thread::gettid().as_raw_nonzero();
        let io = File::open(format!("/proc/self/task/{tid}/io")).expect("this thread");
        let before = counted(&io).expect("counters");
        std::fs::write("/dev/null", [0; 1000]).expect("written");
        let after = counted(&io).expect("counters");
        assert_eq!(after.written - before.written, 1000);
        assert!(
            after.read > before.read,
            "the counters themselves were read"
        );
        assert_eq!(parse(b"rchar: 1x\nwchar: 2\n"), None);
        assert_eq!(parse(b"rchar: 1\n"), None);
    }

    #[test]
    fn every_call_that_moves_bytes_has_an_amount() {
        for call in bonsai_calls::CALLS {
            let found = amount(u32::from(call.nr), &[1; 6]);
            assert_eq!(found != Amount::None, call.moves_bytes(), "{}", call.name);
        }
    }

    #[test]
    fn the_first_piece_of_a_pipe_has_the_rest_of_a_page() {
        const PAGE: u64 = 4096;
        for (left, most) in [
            (1_000_000, 65_536),
            (65_537, 65_536),
            (70_000, 5000),
            (9000, 7),
            (1 << 31, 4096),
        ] {
            let first = first_of_pipe(left, most, PAGE);
            assert!(0 < first && first <= most, "{left} {most}: {first}");
            assert!(
                most < PAGE || first % PAGE == left % PAGE,
                "{left} {most}: {first}"
            );
        }
        assert_eq!(
            first_of_pipe(1_000_000, 65_536, PAGE),
            61_440 + 1_000_000 % PAGE
        );
    }
}
