//! Start-up: finding the service's ledger, mapping it, patching libc.

#[cfg(feature = "alone")]
mod entry;
#[cfg(not(feature = "alone"))]
mod library;
mod holes;
mod missing;
#[cfg(feature = "alone")]
pub(crate) mod running;

use crate::slots::Early;
use crate::seccomp::{self, ask};
use crate::state::{self, PATCHED};
use crate::sys;
use crate::uncovered::AT_FDCWD;
#[cfg(not(feature = "alone"))]
use crate::proof;
use crate::{elf, extension, identity, patch, trap, vdso};
use bonsai_ledger::{
    FIXED_LEN, MAGIC, Process, ProcessId, Reason, Segment, TOTAL_LEN, VERSION, coverage, flags,
};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[unsafe(link_section = ".bss.bonsai_early")]
static DONE: AtomicBool = AtomicBool::new(false);
#[unsafe(link_section = ".bss.bonsai_early")]
static REGISTERED: AtomicU64 = AtomicU64::new(0);
#[unsafe(link_section = ".bss.bonsai_early")]
static REASON: AtomicU32 = AtomicU32::new(0);
#[unsafe(link_section = ".bss.bonsai_early")]
static COST: AtomicU64 = AtomicU64::new(0);
#[unsafe(link_section = ".bss.bonsai_early")]
static STARTED: AtomicU64 = AtomicU64::new(0);
#[unsafe(link_section = ".bss.bonsai_early")]
static PROGRAM: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// As much is mapped of the engine's file, and of what is behind that, by the library beside
/// which it works; what is left of it is given back.
const BESIDE: usize = 1 << 20;

/// The longest path that is passed on.
const PATH: usize = 512;

/// The paths of the ledger and of the interposer itself, as C strings; empty without
/// a ledger.
#[unsafe(link_section = ".bss.bonsai_paths")]
static LEDGER: Early<[u8; PATH]> = Early::new([0; PATH]);
#[unsafe(link_section = ".bss.bonsai_paths")]
static PRELOAD: Early<[u8; PATH]> = Early::new([0; PATH]);

/// The variable that names the service's ledger.
const VARIABLE: &[u8] = b"BONSAI_LEDGER=";

/// Whether start-up is over.
pub(crate) fn done() -> bool {
    DONE.load(Ordering::Acquire)
}

/// The path of the ledger.
pub(crate) fn ledger_path() -> &'static [u8] {
    until_zero(&LEDGER)
}

/// The interposer's own path.
pub(crate) fn preload_path() -> &'static [u8] {
    until_zero(&PRELOAD)
}

/// The path of a file in the ledger's folder, as a C string, and its length.
fn beside_ledger(name: &[u8]) -> ([u8; PATH], usize) {
    let mut path = [0; PATH];
    let ledger = ledger_path();
    let folder = ledger.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    for (to, from) in path.iter_mut().zip(ledger.iter().take(folder).chain(name)) {
        *to = *from;
    }
    (path, folder + name.len())
}

fn until_zero(text: &'static Early<[u8; PATH]>) -> &'static [u8] {
    // SAFETY: written at start-up only.
    let text = unsafe { &*text.get() };
    text.split(|b| *b == 0).next().unwrap_or_default()
}

fn keep(to: &'static Early<[u8; PATH]>, from: &[u8]) -> bool {
    // SAFETY: at start-up, by the only thread.
    let to = unsafe { &mut *to.get() };
    let Some(room) = to.get_mut(..from.len()).filter(|_| from.len() < PATH) else {
        return false;
    };
    room.copy_from_slice(from);
    true
}

/// Maps the ledger that the environment names, patches this process, and enters it there.
///
/// # Safety
/// At start-up, by the only thread.
unsafe fn begin(given: &Given, patch: impl FnOnce(&'static Segment) -> Reason) {
    let Some(ledger) = given.ledger else {
        return;
    };
    read_program(given.auxiliary);
    let segment = match map(ledger) {
        Ok(segment) => segment,
        Err(failure) => return missing::complain(&failure, ProgramName::own().bytes()),
    };
    enter(segment, given.from, patch);
}

/// What the kernel and the program before have handed over.
struct Given {
    /// The path of the ledger.
    ledger: Option<*const u8>,
    auxiliary: *const [usize; 2],
    /// When it was looked at.
    from: u64,
}

impl Given {
    /// Nothing but what is here is asked before it is known whether there is a filter.
    ///
    /// # Safety
    /// `environment` is the array of a new process, which nobody has changed.
    unsafe fn in_environment(environment: *const *const u8) -> Self {
        let ledger = ledger_in(environment);
        // SAFETY: by contract.
        let auxiliary = unsafe { auxiliary_vector(environment) };
        // SAFETY: likewise.
        unsafe { vdso::begin(auxiliary) };
        Self {
            ledger,
            auxiliary,
            from: sys::now_early(),
        }
    }
}

/// Patches this process, and enters it into the ledger.
fn enter(segment: &'static Segment, from: u64, patch: impl FnOnce(&'static Segment) -> Reason) {
    seccomp::look_around(segment);
    identity::begin(segment, from);
    let reason = if segment.header.flags.load(Ordering::Relaxed) & flags::NO_PATCH == 0 {
        patch(segment)
    } else {
        Reason::PatchOff
    };
    let reason_of = |reason: Reason| {
        PATCHED.store(reason == Reason::None, Ordering::Relaxed);
        REASON.store(reason as u32, Ordering::Relaxed);
    };
    reason_of(reason);
    if segment.header.flags.load(Ordering::Relaxed) & flags::EXTENDED != 0 {
        // Later, another user's process may not be able to open it.
        extension::get(segment);
    }
    #[cfg(not(feature = "alone"))]
    let is_unseen = reason == Reason::None && !proof::holds();
    if trap::is_wanted(segment) {
        #[cfg(not(feature = "alone"))]
        if is_unseen {
            elf::objects().filter(|object| elf::is_libc(object)).for_each(trap::cover);
        }
        trap::begin(segment);
    }
    #[cfg(not(feature = "alone"))]
    if is_unseen && !(trap::is_active() && proof::is_trapped()) {
        reason_of(Reason::Unseen);
        proof::complain(segment, ProgramName::own().bytes());
    }
    // A program that runs already has its standard error for itself: there `bonsai attach` says it.
    #[cfg(feature = "alone")]
    let is_running = running::is_running();
    #[cfg(not(feature = "alone"))]
    let is_running = false;
    if PATCHED.load(Ordering::Relaxed) && !is_running {
        holes::complain(segment);
    }
    #[cfg(not(feature = "alone"))]
    segment.count_overhead([LIBRARY_READS * elf::objects().count() as u64, 0]);
    state::set_segment(segment);
    let now = sys::now_early();
    STARTED.store(now, Ordering::Relaxed);
    COST.store(now - from, Ordering::Relaxed);
    register(segment, sys::getpid());
}

/// Bytes that are read to start a program, about: the kernel's counters of the process have them, and no call of it. Of the kernel the
/// first bytes (`BINPRM_BUF_SIZE`), the loader's header, and the program headers of both, 56 bytes each; of the loader those of libc, twice;
/// of the program before its look at this one (`uncovered`).
pub(crate) const PROGRAM_READS: u64 = 256 + 64 + 4 * 13 * 56 + 1024;

/// Bytes that the loader reads of each library (`struct filebuf` in glibc's `elf/dl-load.c`).
#[cfg(not(feature = "alone"))]
const LIBRARY_READS: u64 = 832;

/// The value of `BONSAI_LEDGER`, kept for programs started later. Hears what is said of filters.
fn ledger_in(mut environment: *const *const u8) -> Option<*const u8> {
    let mut ledger = None;
    // SAFETY: an array of C strings that ends in a null pointer.
    unsafe {
        while !(*environment).is_null() {
            if let Some(text) = value_in(*environment, VARIABLE)
                && keep(&LEDGER, text)
            {
                ledger = Some(text.as_ptr());
            }
            if let Some(text) = value_in(*environment, seccomp::VARIABLE) {
                seccomp::hear(text);
            }
            environment = environment.add(1);
        }
    }
    ledger
}

/// What an entry says of a variable, if it is that variable's.
///
/// # Safety
/// `entry` is a C string.
unsafe fn value_in<'a>(entry: *const u8, name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: by contract; most variables are told apart by their first byte, and none is read
    // beyond its end.
    unsafe {
        let named = |(i, byte): (usize, &u8)| *entry.add(i) == *byte;
        name.iter().enumerate().all(named).then(|| {
            let value = entry.add(name.len());
            core::slice::from_raw_parts(value, sys::strlen(value))
        })
    }
}

/// Maps a ledger, if it is one of this layout. No descriptor is kept.
fn map(path: *const u8) -> Result<&'static Segment, Failure> {
    let failed = |error, flags| Err(Failure { error, flags });
    // SAFETY: `path` is a C string of the environment; the mapping is new, as
    // long as the file, and never removed.
    unsafe {
        // O_RDWR | O_CLOEXEC | O_NOFOLLOW
        let opened = ask!(OpenWrite, AT_FDCWD, path, 0o2_400_002, 0);
        let Ok(fd) = usize::try_from(opened) else {
            return failed(opened, missing::flags_of(path));
        };
        let mut head = [0_u64; HEAD];
        let got = ask!(Read, fd, head.as_mut_ptr(), size_of_val(&head));
        let known = got.cast_unsigned() == size_of_val(&head)
            && head[0] == MAGIC
            && head[1] & 0xffff_ffff == u64::from(VERSION)
            && head[2] == FIXED_LEN as u64
            && head[3] == TOTAL_LEN as u64;
        let at = if known {
            ask!(Mmap, 0, TOTAL_LEN, 3, 1, fd, 0)
        } else {
            missing::ANOTHER
        };
        ask!(Close, fd);
        if (-4095..0).contains(&at) {
            return failed(at, missing::flags_in(&head));
        }
        Ok(&*(at as *const Segment))
    }
}

/// Words of the header that are read before it is mapped: up to its flags.
const HEAD: usize = core::mem::offset_of!(bonsai_ledger::Header, flags) / 8 + 1;

/// Why a ledger cannot be used.
pub(crate) struct Failure {
    /// Answer of the kernel, or [`missing::ANOTHER`].
    error: isize,
    /// Flags of the ledger, as far as they could be read.
    flags: u32,
}

/// Finds the program's file name in the auxiliary vector (AT_EXECFN), which
/// stands behind the environment, and spares a system call.
fn read_program(auxiliary: *const [usize; 2]) {
    const AT_EXECFN: usize = 31;
    // SAFETY: of a new process; the entry is a C string.
    unsafe {
        let path = elf::auxiliary(auxiliary, AT_EXECFN) as *const u8;
        if !path.is_null() {
            store_program(
                &PROGRAM,
                core::slice::from_raw_parts(path, sys::strlen(path)),
            );
        }
    }
}

/// The auxiliary vector, which stands behind the environment (System V ABI, 3.4.1).
///
/// # Safety
/// `environment` is the array of a new process.
unsafe fn auxiliary_vector(mut environment: *const *const u8) -> *const [usize; 2] {
    // SAFETY: it ends in a null pointer.
    unsafe {
        while !(*environment).is_null() {
            environment = environment.add(1);
        }
        environment.add(1).cast()
    }
}

/// Keeps the file name of a path, at most 40 bytes of it.
pub(crate) fn store_program(to: &[AtomicU64; 5], path: &[u8]) {
    let file = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    for (i, word) in to.iter().enumerate() {
        let mut bytes = [0_u8; 8];
        for (byte, from) in bytes.iter_mut().zip(file.iter().skip(8 * i)) {
            *byte = *from;
        }
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// File name of the program, as [`store_program`] has kept it.
pub(crate) const fn program_words() -> &'static [AtomicU64; 5] {
    &PROGRAM
}

/// File name of the program, as [`store_program`] has kept it, with zero bytes behind it.
struct ProgramName([u8; 40]);

impl ProgramName {
    fn own() -> Self {
        let mut name = [0; 40];
        for (to, word) in name.chunks_exact_mut(8).zip(&PROGRAM) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Self(name)
    }

    fn bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// The process that was entered last; in a vforked child, its parent.
pub(crate) fn registered() -> u32 {
    let registered = ProcessId::from_word(REGISTERED.load(Ordering::Relaxed));
    registered.map_or(0, |process| process.pid)
}

/// Entry of that process in the ledger.
fn own_entry(segment: &Segment) -> Option<&Process> {
    let process = ProcessId::from_word(REGISTERED.load(Ordering::Relaxed))?;
    segment.claim_process(process, identity::has_ended)
}

/// Says in the ledger how many sites there are now.
pub(crate) fn recount(segment: &Segment) {
    // In a forked child that is not in the ledger yet, that comes later.
    if registered() == sys::getpid()
        && let Some(entry) = own_entry(segment)
    {
        enter_counts(entry);
        entry.coverage.fetch_or(trap_bits(), Ordering::Relaxed);
    }
}

/// What is to be said of the trap.
fn trap_bits() -> u32 {
    let bit = |is, bit| if is { bit } else { 0 };
    bit(trap::is_active(), coverage::TRAPPED) | bit(trap::has_failed(), coverage::UNTRAPPED)
}

/// Counts a call that came by the trap.
pub(crate) fn count_trapped(segment: &Segment) {
    if let Some(entry) = own_entry(segment) {
        entry.trapped.fetch_add(1, Ordering::Relaxed);
    }
}

fn name_program(entry: &Process) {
    for (to, from) in entry.program.iter().zip(&PROGRAM) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn enter_counts(entry: &Process) {
    let (patched, missed) = patch::count();
    entry.sites.store(patched, Ordering::Relaxed);
    entry.missed.store(missed.into(), Ordering::Relaxed);
    for (to, from) in entry.unseen.iter().zip(patch::unseen()) {
        to.store(from, Ordering::Relaxed);
    }
}

/// Enters the process into the ledger, once per process: also a forked child's.
pub(crate) fn register(segment: &Segment, pid: u32) {
    let process = identity::of(pid);
    if REGISTERED.swap(process.word(), Ordering::Relaxed) == process.word() {
        return;
    }
    // A child that somebody has forked who was on the way to it when the limits went.
    #[cfg(feature = "alone")]
    if running::is_detached() {
        return;
    }
    let Some(entry) = segment.claim_process(process, identity::has_ended) else {
        return;
    };
    let mut bits = coverage::ATTACHED;
    if PATCHED.load(Ordering::Relaxed) {
        bits |= coverage::PATCHED;
    }
    if seccomp::is_filtered() {
        bits |= coverage::GUARDED;
    }
    bits |= trap_bits();
    entry.trapped.store(0, Ordering::Relaxed);
    name_program(entry);
    enter_counts(entry);
    entry
        .reason
        .store(REASON.load(Ordering::Relaxed), Ordering::Relaxed);
    entry
        .attached_ns
        .store(STARTED.load(Ordering::Relaxed), Ordering::Relaxed);
    entry
        .attach_cost_ns
        .store(COST.load(Ordering::Relaxed), Ordering::Relaxed);
    entry.coverage.store(bits, Ordering::Release);
    entry.expected_ns.store(0, Ordering::Release);
}
