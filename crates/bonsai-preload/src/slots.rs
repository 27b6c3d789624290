//! The records of fast paths, and the slots that patched sites jump to.

use crate::elf;
use crate::sys::place;
use bonsai_sites::ANY;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

pub(crate) use crate::facts::*;

/// What the slot of a patched site knows beyond that. Written once, before
/// anything can jump to it.
#[repr(C)]
pub(crate) struct Slot {
    site: Site,
    /// Where to go on.
    ret: usize,
    /// What the patched instruction compared the result with; of a moved site,
    /// whether its call has no bytes and takes the shared fast path.
    cmp: usize,
}

const _: () = assert!(size_of::<Slot>() == 24);
const _: () = assert!(size_of::<Symbol>() == 16);

impl Slot {
    const fn new(call: u8, nr: u32, flags: u8, ret: usize, cmp: usize) -> Self {
        Self {
            site: Site {
                nr,
                offset: 32 * call as u16,
                flags,
                symbol: 0,
            },
            ret,
            cmp,
        }
    }

    /// The record of a moved site, whose call may have another number than `nr`.
    pub(crate) fn moved(call: u8, nr: u32, is_libcs: bool, ret: usize) -> Self {
        let pool = POOL_OF.get(usize::from(call));
        // Nothing is compared there: whether the shared fast path does.
        let counted = usize::from(pool == Some(&COUNT_POOL));
        let flags = if is_libcs { flag::SLOT | flag::ANY } else { 0 };
        Self::new(call, nr, flags, ret, counted)
    }

    /// Record of a cancellation point; `bit` of the thread's word says that it is cancelled, 0 stands for all bits.
    pub(crate) fn in_place(bit: u8, ret: usize) -> Self {
        let flags = flag::SLOT | flag::ANY | flag::IN_PLACE;
        Self::new(0, u32::from(ANY), flags, ret, usize::from(bit))
    }

    /// The slot of a record in one.
    ///
    /// # Safety
    /// The record is a slot's.
    pub(crate) unsafe fn of(site: &Site) -> &Self {
        // SAFETY: its first part, by contract.
        unsafe { &*(&raw const *site).cast() }
    }

    /// Where the site's `syscall` is.
    pub(crate) const fn at(&self) -> usize {
        self.ret - 2
    }

    /// Bit of the word by which a cancellation point knows that its thread is cancelled; 0 for musl.
    #[expect(clippy::cast_possible_truncation, reason = "it came in as a byte")]
    pub(crate) const fn bit(&self) -> u8 {
        self.cmp as u8
    }
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

/// The length of a slot's code.
const SLOT: usize = 12;

/// Slots given out of each pool.
static USED: [AtomicU8; POOLS.len()] = [const { AtomicU8::new(0) }; POOLS.len()];

/// Takes a slot for a site of `call`, and returns the address to jump to; `None`
/// if its pool is used up.
pub(crate) fn take(call: u8, nr: u32, ret: usize, cmp: i32) -> Option<usize> {
    let pool = usize::from(*POOL_OF.get(usize::from(call))?);
    let (before, rest) = POOLS.split_at_checked(pool)?;
    let used = USED.get(pool)?;
    let i = used.load(Ordering::Relaxed);
    if i >= *rest.first()? {
        return None;
    }
    used.store(i + 1, Ordering::Relaxed);
    let slot = sum(before) + usize::from(i);
    let sites = place!("bonsai_slot_sites") as *mut Slot;
    // Sign-extended to 64 bits, as cmp does.
    let cmp = (cmp as isize).cast_unsigned();
    let record = Slot::new(call, nr, flag::SLOT, ret, cmp);
    // SAFETY: within the array, and nothing jumps here yet.
    unsafe { sites.add(slot).write(record) };
    Some(place!("bonsai_slots") + SLOT * slot)
}

/// A symbol: where it goes, and its record.
#[repr(C)]
pub(crate) struct Symbol {
    /// 0 until its first call.
    pub(crate) target: AtomicUsize,
    /// Written by [`share`].
    site: UnsafeCell<Site>,
}

impl Symbol {
    pub(crate) fn site(&self) -> &Site {
        // SAFETY: written while there is one thread, and the same each time.
        unsafe { &*self.site.get() }
    }
}

/// Makes the records of exported symbols, and those by which they use the paths of
/// slots. Before the first of them is told where to go.
pub(crate) fn share() {
    let symbols = place!("bonsai_targets") as *const Symbol;
    for (symbol, fact) in (0_u8..).zip(&SYMBOL_FACTS) {
        let [nr @ .., call, flags] = fact.to_le_bytes();
        let site = Site {
            nr: u32::from(u16::from_le_bytes(nr)),
            offset: 32 * u16::from(call),
            flags,
            symbol,
        };
        // SAFETY: within the array; there is one thread.
        unsafe { (*symbols.add(usize::from(symbol))).site.get().write(site) };
    }
    let records = place!("bonsai_through") as *mut Slot;
    let ret = place!("bonsai_first_return");
    for (i, symbol) in THROUGH.iter().enumerate() {
        // SAFETY: within both arrays; there is one thread.
        unsafe {
            let site = (*symbols.add(usize::from(*symbol))).site.get().read();
            records.add(i).write(Slot {
                site,
                ret,
                cmp: (-4096_isize).cast_unsigned(),
            });
        }
    }
}

fn sum(lengths: &[u8]) -> usize {
    lengths.iter().map(|n| usize::from(*n)).sum()
}

/// The name of a symbol, which stands in our own symbol table.
pub(crate) fn symbol(number: u8) -> Option<&'static [u8]> {
    elf::ours()?.name_of(*HASHES.get(usize::from(number))?)
}
