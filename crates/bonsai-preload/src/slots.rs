//! The records of fast paths, and the slots that patched sites jump to.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

include!(concat!(env!("OUT_DIR"), "/pools.rs"));

/// What a fast path knows of its symbol or site. Written once, before anything
/// can jump to it.
#[repr(C)]
pub(crate) struct Site {
    /// Where to go on after a patched site; of a symbol: the next definition.
    pub(crate) ret: AtomicUsize,
    /// What the patched instruction compared the result with.
    cmp: AtomicUsize,
    /// The system call number.
    pub(crate) nr: u32,
    /// The first entry of its call.
    pub(crate) call: u8,
    /// Bits of [`flag`].
    pub(crate) flags: u8,
    _pad: u16,
    /// 32 * entry, for shared pools.
    offset: u32,
    /// The number of the symbol.
    pub(crate) symbol: u32,
}

const _: () = assert!(size_of::<Site>() == 32);

pub(crate) mod flag {
    /// `preadv2`: libc's fifth argument is the system call's sixth.
    pub(crate) const FLAGS_LAST: u8 = 1;
    /// libc's function is a cancellation point.
    pub(crate) const CANCELLABLE: u8 = 2;
    /// A slot of a patched site, not a symbol.
    pub(crate) const SLOT: u8 = 4;
}

/// Memory written before other threads exist.
#[repr(transparent)]
pub(crate) struct Early<T>(UnsafeCell<T>);
// SAFETY: written during start-up only, by the only thread.
unsafe impl<T> Sync for Early<T> {}

impl<T> Early<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) const fn get(&self) -> *mut T {
        self.0.get()
    }
}

unsafe extern "C" {
    static bonsai_slot_sites: [Early<Site>; SLOTS];
    static bonsai_slot_starts: [i32; SLOTS];
}

/// Slots given out of each pool, by its first slot.
static USED: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

/// Takes a slot for a site of `call`, and returns the address to jump to; `None`
/// if its pool is used up.
pub(crate) fn take(call: u8, nr: u32, ret: usize, cmp: i32) -> Option<usize> {
    let (first, count) = POOL_OF.get(usize::from(call)).copied()?;
    let used = USED.get(usize::from(first))?;
    let i = used.load(Ordering::Relaxed);
    if i >= usize::from(count) {
        return None;
    }
    used.store(i + 1, Ordering::Relaxed);
    let slot = usize::from(first) + i;
    // SAFETY: within the array; only this thread exists, and nothing jumps here yet.
    unsafe {
        let sites = (&raw const bonsai_slot_sites).cast::<Site>().cast_mut();
        sites.add(slot).write(Site {
            ret: AtomicUsize::new(ret),
            #[expect(
                clippy::cast_sign_loss,
                reason = "sign-extended to 64 bits, as cmp does"
            )]
            cmp: AtomicUsize::new(cmp as isize as usize),
            nr,
            call,
            flags: flag::SLOT,
            _pad: 0,
            offset: 32 * u32::from(call),
            symbol: 0,
        });
        let starts = &raw const bonsai_slot_starts;
        let start = (*starts).get(slot).copied()?;
        Some((starts as usize).wrapping_add_signed(start as isize))
    }
}

/// How many symbols there are.
pub(crate) const SYMBOLS: usize = SYMBOL_FACTS.len();

/// What [`FACTS`] says of an entry.
pub(crate) mod fact {
    /// Bytes come in.
    pub(crate) const IN: u8 = 1;
    /// Bytes go out.
    pub(crate) const OUT: u8 = 2;
    /// There is an entry for each kind of descriptor.
    pub(crate) const KINDS: u8 = 4;
    /// It sends on a socket.
    pub(crate) const SENDS: u8 = 8;
    /// It receives or accepts on a socket.
    pub(crate) const RECEIVES: u8 = 16;
    /// The kernel does not let signals interrupt it.
    pub(crate) const WHOLE: u8 = 32;
}

/// What is known of an entry; nothing of one that does not exist.
pub(crate) fn facts(call: u8) -> u8 {
    FACTS.get(usize::from(call)).copied().unwrap_or(0)
}

/// The name of a symbol, whether it is hand-written, and whether libc's own
/// function runs after the decision.
pub(crate) fn symbol(number: u32) -> Option<(&'static [u8], bool, bool)> {
    let number = number as usize;
    let (end, thunk) = SYMBOL_FACTS.get(number).copied()?;
    let start = match number {
        0 => 0,
        n => SYMBOL_FACTS.get(n - 1)?.0,
    };
    Some((
        NAMES.get(usize::from(start)..usize::from(end))?,
        thunk == 1,
        thunk == 2,
    ))
}
