//! Files that are cut short while they are mapped.
//!
//! A ledger belongs to the user of its service, who may shorten it at any time; whoever reads a
//! mapped page that is not there any more gets SIGBUS, which ends a process. A daemon that maps
//! ledgers of others must not be ended by them.
//!
//! # How
//! The handler finds the mapping around the address in `/proc/self/maps`. If that is of a ledger,
//! zeros take the place of the whole mapping, and the instruction is made again; [`lost`] says
//! that it happened, so that whoever looked throws away what was read. Everything else ends the
//! process, as without a handler: it is somebody's mistake, or a disk that fails.
#![expect(unsafe_code, reason = "a signal handler, and what it maps")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mm::{MapFlags, ProtFlags};

thread_local! {
    /// Mappings that this thread has lost so far. It needs no making and no end, so that the
    /// handler may use it; the signal comes to the thread that has read.
    static LOST: Cell<u64> = const { Cell::new(0) };
}

/// What the names of ledgers end with in `/proc/self/maps`.
const ENDS: [&[u8]; 3] = [
    b"/ledger",
    b"/ledger (deleted)",
    b":bonsai-ledger (deleted)",
];

/// More than the longest of them.
const TAIL: usize = 32;

/// From now on a ledger that is cut short reads as zeros.
///
/// # Errors
/// What the system says.
pub fn guard() -> io::Result<()> {
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler makes system calls and touches a number of its thread only.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    if done == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// How many mappings of ledgers the calling thread has lost so far. What it read of a ledger
/// while this grew is worth nothing.
#[must_use]
pub fn lost() -> u64 {
    LOST.get()
}

extern "C" fn on_bus(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gives a valid one to a handler with SA_SIGINFO.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR
        && let Some((start, end)) = mapping_of_ledger(at)
        && replace(start, end)
    {
        LOST.set(LOST.get() + 1);
        return;
    }
    // SAFETY: both are async-signal-safe. The signal is blocked until this returns; then it ends
    // the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Zeros instead of what was mapped there.
fn replace(start: usize, end: usize) -> bool {
    let (prot, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | MapFlags::FIXED,
    );
    // SAFETY: takes the place of a mapping whose owner is at this instruction, so that it stays
    // mapped as long; all bits are valid for what is read there.
    unsafe {
        rustix::mm::mmap_anonymous(start as *mut c_void, end.saturating_sub(start), prot, flags)
            .is_ok()
    }
}

/// The bounds of the mapping around an address, if it is of a ledger. Nothing is allocated.
fn mapping_of_ledger(at: usize) -> Option<(usize, usize)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let maps = openat(CWD, c"/proc/self/maps", flags, Mode::empty()).ok()?;
    let mut lines = Lines::new(at);
    // The stack for signals may have 8 KiB, and the kernel puts the widest registers there first,
    // more than 3 KiB.
    let mut buffer = [0_u8; 256];
    loop {
        let got = rustix::io::read(&maps, &mut buffer).ok()?;
        if got == 0 {
            return None;
        }
        for byte in &buffer[..got] {
            if let Some(found) = lines.take(*byte) {
                return found;
            }
        }
    }
}

/// Reads `START-END ... PATH` lines byte by byte.
struct Lines {
    at: usize,
    bounds: [usize; 2],
    /// Which of the bounds is being read; 2 behind them.
    part: usize,
    tail: [u8; TAIL],
    len: usize,
}

impl Lines {
    const fn new(at: usize) -> Self {
        Self {
            at,
            bounds: [0; 2],
            part: 0,
            tail: [0; TAIL],
            len: 0,
        }
    }

    /// Takes the next byte; at the end of the line with the address, what it says.
    fn take(&mut self, byte: u8) -> Option<Option<(usize, usize)>> {
        if byte == b'\n' {
            let [start, end] = self.bounds;
            if (start..end).contains(&self.at) {
                return Some(self.is_of_ledger().then_some((start, end)));
            }
            *self = Self::new(self.at);
            return None;
        }
        match (byte, self.part) {
            (b'-', 0) | (b' ', 1) => self.part += 1,
            (_, part @ (0 | 1)) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0) as usize;
                self.bounds[part] = self.bounds[part] << 4 | digit;
            }
            _ => {
                self.tail[self.len % TAIL] = byte;
                self.len += 1;
            }
        }
        None
    }

    fn is_of_ledger(&self) -> bool {
        ENDS.iter().any(|end| {
            self.len >= end.len()
                && end
                    .iter()
                    .rev()
                    .enumerate()
                    .all(|(back, byte)| self.tail[(self.len - 1 - back) % TAIL] == *byte)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn lines_are_understood() {
        let text = b"1000-3000 r--s 00000000 00:1a 7   /run/user/1/bonsai/vod/ledger\n\
                     3000-4000 rw-p 00000000 00:00 0 \n\
                     5000-6000 rw-s 00000000 00:1a 8   /memfd:bonsai-ledger (deleted)\n\
                     6000-7000 rw-s 00000000 00:1a 8   /var/lib/bonsai/history.sqlite-shm\n";
        let find = |at: usize| {
            let mut lines = Lines::new(at);
            text.iter().find_map(|byte| lines.take(*byte))
        };
        assert_eq!(find(0x2fff), Some(Some((0x1000, 0x3000))));
        assert_eq!(find(0x3000), Some(None));
        assert_eq!(find(0x5000), Some(Some((0x5000, 0x6000))));
        assert_eq!(find(0x6000), Some(None), "not a ledger");
        assert_eq!(find(0x4000), None, "nothing is mapped there");
    }

    #[test]
    fn a_ledger_that_is_cut_short_reads_as_zeros() {
        guard().expect("a handler");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ledger");
        std::fs::write(&path, vec![7; 16 * 4096]).expect("a file");
        let file = File::open(&path).expect("a file");
        let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping of a file with that length.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 16 * 4096, prot, flags, &file, 0) };
        let base = base.expect("mapped").cast::<u8>();
        // SAFETY: within the mapping; what is behind it changes, so it is read anew each time.
        let read = |at: usize| unsafe { base.add(at).read_volatile() };
        assert_eq!(read(5 * 4096), 7);
        let before = lost();
        File::options()
            .write(true)
            .open(&path)
            .expect("a file")
            .set_len(4096)
            .expect("shorter");
        assert_eq!(read(5 * 4096), 0);
        assert_eq!(lost(), before + 1);
        assert_eq!(read(9 * 4096), 0);
        assert_eq!(lost(), before + 1, "once for all of it");
        // SAFETY: mapped above with this length, and not used any more.
        unsafe { rustix::mm::munmap(base.cast(), 16 * 4096) }.expect("unmapped");
    }
}
