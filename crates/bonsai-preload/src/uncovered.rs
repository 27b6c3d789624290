//! Programs that cannot be entered: they are run, and named in the ledger.

use crate::attach::{self, PROGRAM_READS, ledger_path, preload_path};
use crate::elf::PT_INTERP;
use crate::entering;
use crate::identity;
use crate::environment::text;
use crate::headers::Phdr;
use crate::seccomp::{Helper, ask, forbids};
use crate::state;
use crate::sys::{self, nr};
use crate::trap;
use bonsai_ledger::{Process, Reason, Segment, coverage, flags};
use core::sync::atomic::{AtomicU64, Ordering};

pub(crate) const AT_FDCWD: usize = (-100_isize).cast_unsigned();

/// What was done about a program that the loader will not bring us into.
pub(crate) enum Done {
    /// A helper holds this thread, and enters the program: the number of the question.
    Held(usize, Option<Expected>),
    /// Nothing is known against it.
    Expected(Expected),
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
        say(&[b"bonsai: ", path, said]);
    }
    strict || killed
}

/// Writes a line to standard error, by one call.
pub(crate) fn say(parts: &[&[u8]]) {
    // SAFETY: slices are laid out as `struct iovec` is.
    unsafe { ask!(Writev, 2, parts.as_ptr(), parts.len()) };
}

/// Says on standard error, once in a service, that not all of a program is limited; `flag` is the one of the ledger that stands for this
/// line. In a strict service each process says the words of its refusal instead, and ends.
pub(crate) fn complain(segment: &Segment, flag: u32, program: &[u8], said: &[u8], refused: &[u8]) {
    let before = segment.header.flags.fetch_or(flag, Ordering::Relaxed);
    if before & flags::STRICT != 0 {
        say(&[b"bonsai: ", program, refused]);
        end_refused();
    } else if before & flag == 0 {
        say(&[b"bonsai: ", program, said]);
    }
}

/// Exit code of a program that cannot be executed, as shells have it.
pub(crate) const NOT_EXECUTABLE: usize = 126;

/// Ends a process that a strict service refuses.
pub(crate) fn end_refused() {
    // SAFETY: ends the process.
    unsafe { sys::syscall(nr::EXIT_GROUP, [NOT_EXECUTABLE, 0, 0, 0, 0, 0]) };
}

/// Looks at a program about to be run. If it has no loader, it is entered from
/// outside; if it cannot be covered, the ledger says so.
pub(crate) fn see_to(segment: &'static Segment, path: *const u8, dir: usize) -> Option<Done> {
    // First, as the process may be killed at any step.
    segment.count_overhead([PROGRAM_READS, 0]);
    let mut is_readable = false;
    let against = reason_against(path, dir, &mut is_readable);
    let expect = || Expected::note(segment, is_readable.then_some(path));
    let Some((reason, killed)) = against else {
        return expect().map(Done::Expected);
    };
    if reason == Reason::Static
        && segment.header.flags.load(Ordering::Relaxed) & flags::NO_PATCH == 0
        && let Some(number) = entering::ask(segment)
    {
        return Some(Done::Held(number, expect()));
    }
    if refuses(segment, path, killed) {
        return Some(Done::Refused);
    }
    let process = identity::of_running(sys::getpid());
    let entry = segment.claim_process(process, identity::has_ended)?;
    let before = entry.coverage.swap(coverage::UNCOVERED, Ordering::Relaxed);
    entry.expected_ns.store(0, Ordering::Relaxed);
    entry.reason.store(reason as u32, Ordering::Relaxed);
    // SAFETY: the program's own string.
    attach::store_program(&entry.program, unsafe { text(path) });
    Some(Done::Named(entry, before))
}

/// A note that the library, or the engine, is expected to come up in the program that a process runs
/// next. Its arrival takes the note away (`attach::register`); what is left is named by those that
/// read the ledger.
pub(crate) struct Expected {
    entry: &'static Process,
    /// Name of the program before; none for a vforked child, which had no entry.
    before: Option<[u64; 5]>,
}

impl Expected {
    /// Leaves the note: a search for the entry and some words, and for a vforked child a system call or
    /// two.
    /// Without the name of the program where that may not be memory of the process.
    fn note(segment: &'static Segment, path: Option<*const u8>) -> Option<Self> {
        let process = identity::of_running(sys::getpid());
        let own = segment.find_process(process);
        let entry = own.or_else(|| segment.claim_process(process, identity::has_ended))?;
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let before = own.map(|entry| entry.program.each_ref().map(word));
        if before.is_none() {
            // Left in it by another process.
            entry.coverage.store(0, Ordering::Relaxed);
            entry.reason.store(0, Ordering::Relaxed);
        }
        // SAFETY: the program's own string, which the kernel has read.
        let path = path.map_or(&b""[..], |path| unsafe { text(path) });
        if !path.is_empty() {
            attach::store_program(&entry.program, path);
        }
        entry.expected_ns.store(sys::now().max(1), Ordering::Release);
        Some(Self { entry, before })
    }

    /// Takes it back: the program does not run after all.
    pub(crate) fn take_back(&self, segment: &Segment) {
        segment.count_overhead([PROGRAM_READS.wrapping_neg(), 0]);
        self.entry.expected_ns.store(0, Ordering::Release);
        match self.before {
            Some(before) => {
                for (word, before) in self.entry.program.iter().zip(before) {
                    word.store(before, Ordering::Relaxed);
                }
            }
            None => self.entry.id.store(0, Ordering::Release),
        }
    }
}

/// Whether the loader will be able to open the interposer: a process that has changed
/// its user, or its root, may not reach it any more. Asked for the effective user, and for the real one without
/// capabilities (access(2)): a user who is not root loses them by running a program.
pub(crate) fn library_opens() -> bool {
    library_refused().is_none()
}

const EACCES: isize = -13;
const ENOENT: isize = -2;
const ENOTDIR: isize = -20;
const EROFS: isize = -30;
const EFAULT: isize = -14;
const ENAMETOOLONG: isize = -36;

/// Reason behind an error.
const fn reason_of(error: isize) -> Reason {
    match error {
        ENOENT | ENOTDIR => Reason::NoFile,
        EROFS => Reason::ReadOnly,
        _ => Reason::NoAccess,
    }
}

/// Why the loader will not be able to open the interposer.
fn library_refused() -> Option<Reason> {
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
    if is_refused(answer) {
        return Some(reason_of(answer));
    }
    by_real_user().then_some(Reason::NoAccess)
}

/// Why the library will not be able to open the ledger in the next program, as it does there. Opened and not asked for, as a mount
/// may be read-only, and Landlock says nothing before.
fn ledger_refused() -> Option<Reason> {
    const ENFILE: isize = -23;
    const EMFILE: isize = -24;
    // openat(O_RDWR | O_CLOEXEC)
    // SAFETY: the path is a C string.
    let opened = unsafe { ask!(OpenWrite, AT_FDCWD, ledger_path().as_ptr(), 0o2_000_002, 0) };
    if let Ok(fd) = usize::try_from(opened) {
        // SAFETY: opened just now.
        unsafe { ask!(Close, fd) };
    }
    let opens = opened >= 0 || matches!(opened, ENFILE | EMFILE);
    (!opens).then(|| reason_of(opened))
}

/// Why the program at `path` cannot be entered; `None` if it can, or if nothing
/// is known against it. And whether it would be killed for being there. `is_readable` is set where the kernel has read `path`.
fn reason_against(path: *const u8, dir: usize, is_readable: &mut bool) -> Option<(Reason, bool)> {
    let refused = library_refused();
    if let Some(reason) = refused
        && !trap::is_active()
    {
        return Some((reason, false));
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
        let opened = ask!(OpenRead, dir, path, 0o2_004_000, 0);
        *is_readable = !matches!(opened, sys::EPERM | EFAULT | ENAMETOOLONG);
        let fd = usize::try_from(opened).ok()?;
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
        let refused = is_script.then(ledger_refused).flatten();
        return refused.map(|reason| (reason, false));
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
    if let Some(reason) = refused {
        return Some((reason, killed));
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
    // A loader brings the library as it does where a program names it; its name spares the helper's look at the file.
    let enters = headers.iter().any(|h| h.kind == PT_INTERP) || is_loader(path, *is_readable);
    match enters {
        false => Some((ledger_refused().unwrap_or(Reason::Static), killed)),
        true => ledger_refused().map(|reason| (reason, killed)),
    }
}

/// True for the name of a loader, where the kernel has read it.
fn is_loader(path: *const u8, is_readable: bool) -> bool {
    // SAFETY: the program's own string, which the kernel has read.
    let path = if is_readable { unsafe { text(path) } } else { b"" };
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    file.starts_with(b"ld-linux") || file.starts_with(b"ld-musl")
}

/// Whether the program of a child is refused before there is one.
pub(crate) fn refuses_child(path: *const u8) -> bool {
    state::segment().is_some_and(|segment| {
        reason_against(path, AT_FDCWD, &mut false)
            .is_some_and(|(_, killed)| refuses(segment, path, killed))
    })
}

/// Names a child whose program cannot be entered.
pub(crate) fn note_child(pid: u32, path: *const u8) {
    let Some((reason, _)) = reason_against(path, AT_FDCWD, &mut false) else {
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
