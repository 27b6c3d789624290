//! The clock, by the function that the kernel maps into each process (vdso(7)): a tenth of a
//! system call, none that a filter could forbid where the clock source is the processor's, and
//! nothing that another library can replace. Programs that are told a false time are told it by
//! libc's function; limits are kept by the true one.

#[cfg(feature = "alone")]
use crate::amount::Args;
use crate::elf;
use crate::seccomp::ask;
#[cfg(feature = "alone")]
use crate::sys::nr;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Where the kernel has mapped its object; 0 if it has not.
#[unsafe(link_section = ".bss.bonsai_early")]
static OBJECT: AtomicUsize = AtomicUsize::new(0);
/// Its function; 0 before it is looked for.
#[unsafe(link_section = ".bss.bonsai_early")]
static CLOCK: AtomicUsize = AtomicUsize::new(0);

/// `clock_gettime(2)`.
type Clock = unsafe extern "C" fn(clock: i32, now: &mut [u64; 2]) -> i32;

const CLOCK_MONOTONIC: i32 = 1;

/// Takes note of where the object is. It is looked into when the clock is first needed: at
/// start-up these would be three pages more to touch.
///
/// # Safety
/// `auxiliary` is the kernel's vector of this process.
pub(crate) unsafe fn begin(auxiliary: *const [usize; 2]) {
    const AT_SYSINFO_EHDR: usize = 33;
    // SAFETY: by contract.
    let at = unsafe { elf::auxiliary(auxiliary, AT_SYSINFO_EHDR) };
    OBJECT.store(at, Ordering::Relaxed);
}

/// From here on the clock stands still: in strict mode of seccomp the processor's is forbidden.
pub(crate) fn stop() {
    CLOCK.store(stopped as *const () as usize, Ordering::Relaxed);
}

unsafe extern "C" fn stopped(_: i32, _: &mut [u64; 2]) -> i32 {
    0
}

/// By a system call, where there is no such object.
unsafe extern "C" fn asked(clock: i32, now: &mut [u64; 2]) -> i32 {
    // SAFETY: writes the two words.
    unsafe { ask!(ClockGettime, clock, now.as_mut_ptr()) };
    0
}

#[cold]
#[inline(never)]
fn find() -> usize {
    let object = OBJECT.load(Ordering::Relaxed);
    let is_there = object != 0 && !is_unmapped(object);
    // SAFETY: the kernel's own object, which is mapped.
    let found = is_there.then(|| unsafe { elf::mapped_at(object) });
    let clock = found.and_then(|object| object.find(b"__vdso_clock_gettime"));
    let clock = clock.unwrap_or(asked as *const () as usize);
    CLOCK.store(clock, Ordering::Relaxed);
    clock
}

/// Whether the program has unmapped the object before its function was needed.
fn is_unmapped(object: usize) -> bool {
    const EFAULT: isize = -14;
    // rt_sigprocmask(how = -1, set) copies eight bytes, and refuses `how`.
    // SAFETY: changes nothing.
    unsafe { ask!(Sigprocmask, usize::MAX, object, 0, 8) == EFAULT }
}

/// Before `mmap`, `munmap` or `mremap` of a static program: valgrind, for one, unmaps the object.
/// The clock is read by a system call from then on.
#[cfg(feature = "alone")]
pub(crate) fn before_unmapping(args: &Args) {
    /// Pages of data lie before the object, and more code may follow its first page.
    const AROUND: usize = 1 << 16;
    const MAP_FIXED: usize = 0x10;
    let is_unmapped = match args.nr {
        nr::MUNMAP | nr::MREMAP => true,
        nr::MMAP => args.a[3] & MAP_FIXED != 0,
        _ => false,
    };
    let object = OBJECT.load(Ordering::Relaxed);
    let end = args.a[0].saturating_add(args.a[1]);
    if is_unmapped && object != 0 && args.a[0] < object + AROUND && end > object - AROUND {
        OBJECT.store(0, Ordering::Relaxed);
        CLOCK.store(asked as *const () as usize, Ordering::Relaxed);
    }
}

/// CLOCK_MONOTONIC, ns.
#[inline(never)]
pub(crate) extern "C" fn now() -> u64 {
    let mut now = [0_u64; 2];
    let clock = match CLOCK.load(Ordering::Relaxed) {
        0 => find(),
        clock => clock,
    };
    // SAFETY: the kernel's function, or one of the two above.
    unsafe {
        let clock = core::mem::transmute::<usize, Clock>(clock);
        clock(CLOCK_MONOTONIC, &mut now);
    }
    now[0].wrapping_mul(1_000_000_000).wrapping_add(now[1])
}
