//! Programs that cannot be entered: they are run, and named in the ledger.

use crate::attach::{self, ledger_path, preload_path};
use crate::elf::PT_INTERP;
use crate::entering;
use crate::identity;
use crate::environment::text;
use crate::headers::Phdr;
use crate::seccomp::{Helper, ask, forbids};
use crate::state;
use crate::sys;
use crate::trap;
use bonsai_ledger::{Process, Reason, Segment, coverage, flags};
use core::sync::atomic::Ordering;

pub(crate) const AT_FDCWD: usize = (-100_isize).cast_unsigned();

/// What was done about a program that the loader will not bring us into.
pub(crate) enum Done {
    /// A helper holds this thread, and enters the program: the number of the question.
    Held(usize),
    /// It is named in the ledger; what the entry said before.
    Named(&'static Process, u32),
    /// It is not to be run: the service is strict.
    Refused,
}

/// Whether a program of which nothing would be shaped is to be refused. Says so where
/// the program that wanted to run it complains, too.
/// It would be `killed` where it stands at addresses whose calls are trapped.
pub(crate) fn refuses(segment: &Segment, path: *const u8, killed: bool) -> bool {
    let strict = segment.header.flags.load(Ordering::Relaxed) & flags::STRICT != 0;
    if strict || killed {
        // SAFETY: the program's own string.
        let path = unsafe { text(path) };
        let said: &[u8] = if killed {
            b": cannot be entered, and would stand where calls are trapped\n"
        } else {
            b": nothing of it can be shaped, and --strict refuses that\n"
        };
        let parts: [&[u8]; 3] = [b"bonsai: ", path, said];
        // SAFETY: three slices, which are laid out as `struct iovec` is.
        unsafe { ask!(Writev, 2, parts.as_ptr(), parts.len()) };
    }
    strict || killed
}

/// Looks at a program about to be run. If it has no loader, it is entered from
/// outside; if it cannot be covered, the ledger says so.
pub(crate) fn see_to(segment: &'static Segment, path: *const u8, dir: usize) -> Option<Done> {
    let (reason, killed) = reason_against(path, dir)?;
    if reason == Reason::Static
        && segment.header.flags.load(Ordering::Relaxed) & flags::NO_PATCH == 0
        && let Some(number) = entering::ask(segment)
    {
        return Some(Done::Held(number));
    }
    if refuses(segment, path, killed) {
        return Some(Done::Refused);
    }
    let process = identity::of_running(sys::getpid());
    let entry = segment.claim_process(process, identity::has_ended)?;
    let before = entry.coverage.swap(coverage::UNCOVERED, Ordering::Relaxed);
    entry.reason.store(reason as u32, Ordering::Relaxed);
    // SAFETY: the program's own string.
    attach::store_program(&entry.program, unsafe { text(path) });
    Some(Done::Named(entry, before))
}

/// Whether the loader will be able to open the interposer: a process that has changed
/// its user, or its root, may not reach it any more. Asked for the effective user, and for the real one without
/// capabilities (access(2)): a user who is not root loses them by running a program.
pub(crate) fn library_opens() -> bool {
    const EACCES: isize = -13;
    const ENOENT: isize = -2;
    let path = preload_path().as_ptr();
    // R_OK and AT_EACCESS.
    // SAFETY: the path is a C string; asks only.
    let mut answer = unsafe { ask!(Faccessat2, AT_FDCWD, path, 4, 0x200) };
    // A filter, or a kernel, may not know faccessat2; faccessat asks for the real user.
    if matches!(answer, sys::ENOSYS | sys::EPERM) {
        // SAFETY: likewise.
        answer = unsafe { ask!(Faccessat, AT_FDCWD, path, 4, 0x200) };
    }
    let is_refused = |answer| matches!(answer, EACCES | ENOENT);
    // SAFETY: ask only.
    let by_real_user = || unsafe {
        let is_root = ask!(Geteuid) == 0;
        !is_root && is_refused(ask!(Faccessat, AT_FDCWD, path, 4, 0))
    };
    !is_refused(answer) && !by_real_user()
}

/// Whether the library will be able to open the ledger in the next program, as it does there. Opened and not asked for, as a mount
/// may be read-only, and Landlock says nothing before.
fn ledger_opens() -> bool {
    const ENFILE: isize = -23;
    const EMFILE: isize = -24;
    // openat(O_RDWR | O_CLOEXEC)
    // SAFETY: the path is a C string.
    let opened = unsafe { ask!(OpenWrite, AT_FDCWD, ledger_path().as_ptr(), 0o2_000_002, 0) };
    if let Ok(fd) = usize::try_from(opened) {
        // SAFETY: opened just now.
        unsafe { ask!(Close, fd) };
    }
    opened >= 0 || matches!(opened, ENFILE | EMFILE)
}

/// Why the program at `path` cannot be entered; `None` if it can, or if nothing
/// is known against it. And whether it would be killed for being there.
fn reason_against(path: *const u8, dir: usize) -> Option<(Reason, bool)> {
    let opens = library_opens();
    if !opens && !trap::is_active() {
        return Some((Reason::NoAccess, false));
    }
    // The library gets into the next program, and cannot open the ledger there.
    if forbids(Helper::OpenWrite) {
        return Some((Reason::NoAccess, false));
    }
    if forbids(Helper::Close) {
        return None;
    }
    // Nothing of this is worth a segmentation fault: the kernel refuses bad paths.
    let mut head = [0_u64; 128];
    let mut stat = [0_u64; 18];
    // SAFETY: the kernel checks `path`; the buffers are as long as said.
    let got = unsafe {
        // openat(O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        let fd = usize::try_from(ask!(OpenRead, dir, path, 0o2_004_000, 0)).ok()?;
        let got = ask!(Read, fd, head.as_mut_ptr(), 1024);
        ask!(Fstat, fd, stat.as_mut_ptr());
        ask!(Close, fd);
        got
    };
    // SAFETY: any bytes will do.
    let bytes = unsafe { core::slice::from_raw_parts(head.as_ptr().cast::<u8>(), 1024) };
    let bytes = bytes.get(..usize::try_from(got).ok()?)?;
    if !bytes.starts_with(b"\x7fELF") || bytes.len() < 64 {
        let is_script = bytes.starts_with(b"#!");
        return (is_script && !ledger_opens()).then_some((Reason::NoAccess, false));
    }
    // EM_X86_64 is 62, ELFCLASS64 is 2.
    if head[2] >> 16 & 0xffff != 62 || bytes[4] != 2 {
        return Some((Reason::ForeignArch, false));
    }
    let (at, count) = (usize::try_from(head[4]).ok()?, (head[7] & 0xffff) as usize);
    let end = at.checked_add(count.checked_mul(size_of::<Phdr>())?)?;
    if at % 8 != 0 || end > bytes.len() {
        return None;
    }
    // SAFETY: within the buffer, aligned; any bits are valid.
    let headers =
        unsafe { core::slice::from_raw_parts(bytes.as_ptr().add(at).cast::<Phdr>(), count) };
    // ET_EXEC is 2: it says where it stands.
    let killed = head[2] & 0xffff == 2 && trap::overlaps(headers);
    if !opens {
        return Some((Reason::NoAccess, killed));
    }
    // The loader minds a user that is not the one who started the program, be it by
    // the set-user-ID bit or from before.
    let owner = isize::try_from((stat[3] >> 32) as u32).unwrap_or(-1);
    // SAFETY: getuid and geteuid have no arguments.
    let (real, effective) = unsafe { (ask!(Getuid), ask!(Geteuid)) };
    let becomes = if stat[3] & 0o4000 == 0 {
        effective
    } else {
        owner
    };
    if becomes != real {
        return Some((Reason::SetId, killed));
    }
    let enters = headers.iter().any(|h| h.kind == PT_INTERP);
    match enters {
        false => Some((Reason::Static, killed)),
        true if !ledger_opens() => Some((Reason::NoAccess, killed)),
        true => None,
    }
}

/// Whether the program of a child is refused before there is one.
pub(crate) fn refuses_child(path: *const u8) -> bool {
    state::segment().is_some_and(|segment| {
        reason_against(path, AT_FDCWD).is_some_and(|(_, killed)| refuses(segment, path, killed))
    })
}

/// Names a child whose program cannot be entered.
pub(crate) fn note_child(pid: u32, path: *const u8) {
    let Some((reason, _)) = reason_against(path, AT_FDCWD) else {
        return;
    };
    // The number that its parent has been given is one of the parent's namespace.
    let child = identity::of(pid);
    let claim = |segment: &'static Segment| segment.claim_process(child, identity::has_ended);
    if let Some(entry) = state::segment().and_then(claim) {
        entry.coverage.store(coverage::UNCOVERED, Ordering::Relaxed);
        entry.reason.store(reason as u32, Ordering::Relaxed);
        // SAFETY: the program's own string, which posix_spawn has just used.
        attach::store_program(&entry.program, unsafe { text(path) });
    }
}
