//! Programs that cannot be entered: they are run, and named in the ledger.

use crate::attach::{self, preload_path};
use crate::elf::{PT_INTERP, Phdr};
use crate::environment::text;
use crate::state;
use crate::sys::{self, call, nr};
use bonsai_ledger::{Process, Reason, Segment, coverage};
use core::sync::atomic::Ordering;

pub(crate) const AT_FDCWD: usize = (-100_isize).cast_unsigned();

/// Looks at a program about to be run, and enters it into the ledger if it
/// cannot be covered. Returns what the entry said before.
pub(crate) fn note_uncovered(
    segment: &'static Segment,
    path: *const u8,
    dir: usize,
) -> Option<(&'static Process, u32)> {
    let reason = reason_against(path, dir)?;
    // SAFETY: signal 0 only asks.
    let dead = |pid: u32| unsafe { call!(nr::KILL, pid, 0) == sys::ESRCH };
    let entry = segment.claim_process(sys::getpid(), dead)?;
    let before = entry.coverage.swap(coverage::UNCOVERED, Ordering::Relaxed);
    entry.reason.store(reason as u32, Ordering::Relaxed);
    // SAFETY: the program's own string.
    attach::store_program(&entry.program, unsafe { text(path) });
    Some((entry, before))
}

/// Why the program at `path` cannot be entered; `None` if it can, or if nothing
/// is known against it.
fn reason_against(path: *const u8, dir: usize) -> Option<Reason> {
    // Nothing of this is worth a segmentation fault: the kernel refuses bad paths.
    let mut head = [0_u64; 128];
    let mut stat = [0_u64; 18];
    // SAFETY: the kernel checks `path`; the buffers are as long as said.
    let got = unsafe {
        // openat(O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        let fd = usize::try_from(call!(257, dir, path, 0o2_004_000, 0)).ok()?;
        let got = call!(nr::PREAD64, fd, head.as_mut_ptr(), 1024, 0);
        call!(nr::FSTAT, fd, stat.as_mut_ptr());
        call!(nr::CLOSE, fd);
        got
    };
    // SAFETY: the library's path is a C string; R_OK is 4.
    if unsafe { call!(nr::ACCESS, preload_path().as_ptr(), 4) } != 0 {
        return Some(Reason::NoAccess);
    }
    // SAFETY: any bytes will do.
    let bytes = unsafe { core::slice::from_raw_parts(head.as_ptr().cast::<u8>(), 1024) };
    let bytes = bytes.get(..usize::try_from(got).ok()?)?;
    if !bytes.starts_with(b"\x7fELF") || bytes.len() < 64 {
        return None;
    }
    // EM_X86_64 is 62, ELFCLASS64 is 2.
    if head[2] >> 16 & 0xffff != 62 || bytes[4] != 2 {
        return Some(Reason::ForeignArch);
    }
    // Set-user-ID and set-group-ID bits; as the user it would change to, the
    // loader does not mind.
    let mode = stat[3] & 0o6000;
    let owner = (stat[3] >> 32) as u32;
    // SAFETY: geteuid has no arguments.
    if mode & 0o4000 != 0 && unsafe { call!(107) } != isize::try_from(owner).unwrap_or(-1) {
        return Some(Reason::SetId);
    }
    let (at, count) = (usize::try_from(head[4]).ok()?, (head[7] & 0xffff) as usize);
    let end = at.checked_add(count.checked_mul(size_of::<Phdr>())?)?;
    if at % 8 != 0 || end > bytes.len() {
        return None;
    }
    // SAFETY: within the buffer, aligned; any bits are valid.
    let headers =
        unsafe { core::slice::from_raw_parts(bytes.as_ptr().add(at).cast::<Phdr>(), count) };
    let enters = headers.iter().any(|h| h.kind == PT_INTERP);
    (!enters).then_some(Reason::Static)
}

/// Names a child whose program cannot be entered.
pub(crate) fn note_child(pid: u32, path: *const u8) {
    let Some(reason) = reason_against(path, AT_FDCWD) else {
        return;
    };
    // SAFETY: signal 0 only asks.
    let dead = |pid: u32| unsafe { call!(nr::KILL, pid, 0) == sys::ESRCH };
    if let Some(entry) = state::segment().and_then(|s| s.claim_process(pid, dead)) {
        entry.coverage.store(coverage::UNCOVERED, Ordering::Relaxed);
        entry.reason.store(reason as u32, Ordering::Relaxed);
        // SAFETY: the program's own string, which posix_spawn has just used.
        attach::store_program(&entry.program, unsafe { text(path) });
    }
}
