//! Where an exported symbol goes: to its own fast path, or to libc, whose system
//! call sites are patched. Found out at its first call, without a lock.

use crate::amount::Args;
use crate::elf;
use crate::patch;
use crate::seccomp::is_filtered;
use crate::slots::{self, SYMBOLS, Site, Symbol, flag};
use crate::state;
use crate::sys::{self, place};
use crate::trap;
use bonsai_calls as calls;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// libc's "no second thread has been started"; points at a zero, that is "there
/// may be threads", where libc does not say.
pub(crate) static BONSAI_SINGLE: AtomicPtr<AtomicU8> =
    AtomicPtr::new((&raw const UNKNOWN).cast_mut());
static UNKNOWN: AtomicU8 = AtomicU8::new(0);

/// Finds libc's thread indicator. At start-up.
pub(crate) fn find_single_threaded() {
    if let Some(at) = elf::first_definition(b"__libc_single_threaded") {
        BONSAI_SINGLE.store(at as *mut AtomicU8, Ordering::Relaxed);
    }
}

/// Whether no second thread exists for certain.
pub(crate) fn single_threaded() -> bool {
    // SAFETY: libc's variable, or our own.
    unsafe { (*BONSAI_SINGLE.load(Ordering::Relaxed)).load(Ordering::Relaxed) != 0 }
}

/// A cancellation point in a program that may cancel threads.
fn may_be_cancelled(site: &Site) -> bool {
    site.flags & flag::CANCELLABLE != 0 && !single_threaded()
}

/// Whether the call of a symbol is made by libc's own function: one that may be cancelled; and
/// under a filter one that libc makes by another number. Where libc's code is trapped, that would come back here.
pub(crate) fn goes_through_libc(site: &Site) -> bool {
    let is_other = || {
        matches!(site.call(), calls::OPEN | calls::PIPE) && is_filtered() && !trap::is_active()
    };
    site.flags & flag::SLOT == 0 && (may_be_cancelled(site) || is_other())
}

/// The way of a symbol that does not go to libc: its fast path, unless it may be
/// cancelled.
fn first_door(site: &Site) -> usize {
    if may_be_cancelled(site) && site.flags & flag::PLAIN != 0 {
        return place!("bonsai_first_all_slow");
    }
    let symbol = site.symbol;
    let starts = place!("bonsai_door_starts") as *const [u16; SYMBOLS];
    // SAFETY: distances from the first of them, one for each symbol.
    let start = unsafe { (*starts).get(usize::from(symbol)) };
    place!("bonsai_doors") + usize::from(start.copied().unwrap_or(0))
}

/// The next definition of a symbol behind ours; its fast path if there is none.
pub(crate) fn real(site: &Site) -> usize {
    let known = place!("bonsai_symbol_next") as *const [AtomicUsize; SYMBOLS];
    // SAFETY: so long, zero at first, and there for good.
    let Some(next) = (unsafe { (*known).get(usize::from(site.symbol)) }) else {
        return 0;
    };
    let known = next.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let Some((at, _)) = slots::symbol(site.symbol).and_then(elf::next_definition) else {
        return 0;
    };
    next.store(at, Ordering::Relaxed);
    at
}

/// # Safety
/// From `bonsai_real` only.
pub(crate) unsafe extern "C" fn bonsai_real_target(symbol: &Symbol) -> usize {
    let site = symbol.site();
    match real_early(site) {
        0 => first_door(site),
        at => at,
    }
}

/// The same as [`real`], also before our start: constructors of other libraries may run before ours (glibc before 2.35 puts them in
/// another order, and a program's own `.preinit_array` always comes first).
pub(crate) fn real_early(site: &Site) -> usize {
    match real(site) {
        0 => {
            elf::survey();
            real(site)
        }
        at => at,
    }
}

/// Decides where a symbol goes from now on.
///
/// # Safety
/// From `bonsai_find` only.
pub(crate) unsafe extern "C" fn bonsai_find_target(symbol: &Symbol) -> usize {
    let early = !crate::attach::done();
    if early {
        slots::share();
        crate::threads::too_early();
    }
    let site = symbol.site();
    let door = first_door(site);
    if early {
        // Ask again at the next call.
        return door;
    }
    let next = slots::symbol(site.symbol).and_then(elf::next_definition);
    let target = match next {
        None => door,
        Some((at, _)) if state::segment().is_none() => at,
        // Behind us a sanitizer or another interposer: it has to see the call,
        // and libc's patched site behind it will count it.
        Some((at, object)) if stays_with_libc(site, at) => {
            let shorter = is_patched(site, site.nr as usize)
                && site.flags & flag::PLAIN != 0
                && !may_be_cancelled(site)
                && elf::is_libc(object);
            if shorter { door } else { at }
        }
        Some(_) => door,
    };
    symbol.target.store(target, Ordering::Relaxed);
    target
}

/// Whether libc's function of that name ends in patched sites only.
fn stays_with_libc(site: &Site, at: usize) -> bool {
    let own = site.flags & flag::OWN != 0;
    let tail = site.flags & flag::TAIL != 0;
    // libc makes some of these with other system calls than their names say; the
    // numbers are those of x86-64.
    let used: &[usize] = match site.call() {
        // openat
        calls::OPEN => &[257],
        // Their instructions inside libc have another form and stay unpatched; but for `fstat` from glibc 2.39 on.
        calls::STAT | calls::LSTAT | calls::FSTAT | calls::NEWFSTATAT => {
            return begins_with_patched(at, site.nr);
        }
        calls::IOCTL => return false,
        calls::FALLOCATE | calls::GETRANDOM if tail => return false,
        // pselect6
        calls::SELECT => &[270],
        calls::EXECVEAT => &[59, 322],
        calls::FORK | calls::VFORK => return false,
        // `syscall` itself.
        calls::GETPPID if own => return false,
        calls::PREADV2 => &[327, 295],
        calls::PWRITEV2 => &[328, 296],
        _ => return is_patched(site, site.nr as usize),
    };
    used.iter().all(|nr| is_patched(site, *nr))
}

/// True if a function begins with the system call of its name, and the call is patched: `patch::patch` fills up its jump with a no-op of
/// three bytes.
fn begins_with_patched(at: usize, nr: u32) -> bool {
    // SAFETY: a function of libc, which does not end the memory of its text.
    let code = unsafe { &*(at as *const [u8; 17]) };
    // endbr64
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let number = code.strip_prefix(&[0xb8]);
    let rest = number.and_then(|code| code.strip_prefix(&nr.to_le_bytes()));
    matches!(rest, Some([0xe9, _, _, _, _, 0x0f, 0x1f, 0x00, ..]))
}

/// True if all instructions by which libc's function makes a call are patched.
fn is_patched(site: &Site, nr: usize) -> bool {
    let is_point = site.flags & flag::POINT != 0 && patch::is_point_here(site.call());
    patch::all_patched(nr, is_point)
}

/// Makes a call through the next definition of its symbol, for a thread that may
/// be cancelled in it. The result is raw.
pub(crate) fn forward(args: &Args, site: &Site) -> Option<isize> {
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    let at = real(site);
    if at == 0 {
        return None;
    }
    let mut a = args.a;
    if site.flags & flag::FLAGS_LAST != 0 {
        a[4] = a[5];
    }
    // SAFETY: the function of that name, with the arguments it was called with.
    let result = unsafe {
        let function = core::mem::transmute::<usize, Function>(at);
        function(a[0], a[1], a[2], a[3], a[4], a[5])
    };
    // Functions that return int leave the upper half of the register undefined.
    let failed = result.cast_unsigned() & 0xffff_ffff == 0xffff_ffff;
    Some(if failed {
        -(sys::errno() as isize)
    } else {
        result
    })
}
