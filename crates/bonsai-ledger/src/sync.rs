//! The atomics in use: loom's under its model checker, the real ones elsewhere.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Adds to a counter that only the calling thread writes, without a bus lock.
///
/// On x86-64 this is one instruction, so that neither a signal handler of the
/// same thread nor a kill can lose or tear a count.
#[inline(always)]
pub fn bump(counter: &AtomicU64, by: u64) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: an aligned 8-byte add to memory that the reference keeps valid; an
    // atomic type allows it to change under shared references.
    unsafe {
        core::arch::asm!("add qword ptr [{c}], {by}", c = in(reg) core::ptr::from_ref(counter),
            by = in(reg) by, options(nostack));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(loom))))]
    counter.fetch_add(by, Ordering::Relaxed);
}
