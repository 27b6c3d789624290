//! Blocks of thread states: who has which, and what becomes of a dead thread's.

use crate::identity;
use crate::state::{Own, segment};
use crate::seccomp::{Helper, ask, forbids};
use crate::sys;
use bonsai_ledger::Owner;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Threads per block of states.
const BLOCK: usize = 62;

/// A block of thread states, wiped on fork as a whole.
#[repr(C, align(4096))]
struct Block {
    /// Whose threads these are. Zero in a forked child: a new block is made, and this
    /// one left alone, for the words in thread storage may still point into it.
    pid: AtomicU32,
    /// Which thread has which state, by thread id; 0 for free.
    tids: [AtomicU32; BLOCK],
    /// How many of the first states have ever been in use.
    used: AtomicU32,
    /// Where the search for a dead thread's state goes on.
    cursor: AtomicU32,
    /// Where giving back goes on.
    sweep: AtomicU32,
    next: AtomicPtr<Self>,
    states: [Own; BLOCK],
}

#[unsafe(link_section = ".bss.bonsai_early")]
static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(null_mut());

/// True for a thread that has ended. Those of another process of this namespace live as long as that does;
/// of another namespace nothing is known.
pub(crate) fn is_dead(own_pid: u32, owner: Owner) -> bool {
    if !owner.is_in(identity::namespace()) {
        return false;
    }
    // SAFETY: signal 0 only asks whether the target exists.
    let answer = unsafe {
        if owner.pid == own_pid {
            ask!(Tgkill, owner.pid, owner.tid, 0)
        } else {
            ask!(Kill, owner.pid, 0)
        }
    };
    answer == sys::ESRCH
}

/// A thread of this process.
fn thread(pid: u32, tid: u32) -> Owner {
    Owner::of(identity::of(pid), tid)
}

/// A state for a thread, and the number of its process.
pub(crate) fn claim(tid: u32) -> (*mut Own, u32) {
    let mut block = BLOCKS.load(Ordering::Acquire);
    // SAFETY: blocks are never unmapped.
    while let Some(b) = unsafe { block.as_ref() } {
        let pid = b.pid.load(Ordering::Acquire);
        if pid == 0 {
            break;
        }
        if let Some(own) = claim_in(b, tid, pid) {
            return (own, pid);
        }
        block = b.next.load(Ordering::Acquire);
    }
    let pid = sys::getpid();
    (new_block(tid, pid), pid)
}

/// Calls `each` for the state of every thread of this process; none of them runs.
#[cfg(feature = "alone")]
pub(crate) fn each(mut each: impl FnMut(&mut Own)) {
    let mut block = BLOCKS.load(Ordering::Acquire);
    // SAFETY: blocks are never unmapped.
    while let Some(b) = unsafe { block.as_ref() } {
        if b.pid.load(Ordering::Acquire) == 0 {
            break;
        }
        for (tid, state) in b.tids.iter().zip(&b.states) {
            if tid.load(Ordering::Relaxed) > BUSY && !state.page.is_null() {
                // SAFETY: its thread is stopped or dead, and so are all others.
                each(unsafe { &mut *(&raw const *state).cast_mut() });
            }
        }
        block = b.next.load(Ordering::Acquire);
    }
}

/// Marks a state that is being cleared; no thread has this id.
const BUSY: u32 = 1;

/// Gives back what a thread held that has ended, and whose state nobody has taken
/// over in a whole round: threads do not say when they go. Looks at one state, and
/// at every fourth call only.
fn harvest(block: &Block, pid: u32) {
    let Some(segment) = segment() else { return };
    let turn = block.sweep.fetch_add(1, Ordering::Relaxed);
    let i = turn as usize / 4 % BLOCK;
    if !turn.is_multiple_of(4) {
        return;
    }
    let (Some(slot), Some(state)) = (block.tids.get(i), block.states.get(i)) else {
        return;
    };
    let tid = slot.load(Ordering::Relaxed);
    // The exchange makes this thread the only one to look at the state.
    if tid > BUSY
        && is_dead(pid, thread(pid, tid))
        && slot
            .compare_exchange(tid, BUSY, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    {
        // SAFETY: its thread is dead, and nobody else gets it while it is busy.
        let own = unsafe { &mut *(&raw const *state).cast_mut() };
        if own.mourned != tid {
            own.mourned = tid;
            slot.store(tid, Ordering::Release);
            return;
        }
        if !own.page.is_null() {
            crate::pay::release(segment, own);
            own.page = null();
        }
        slot.store(0, Ordering::Release);
    }
}

/// States looked at for a dead owner whenever a thread needs one.
const PROBES: u32 = 2;

/// A state of a block for a thread: a dead thread's, if one is found at once, or one
/// that is free.
fn claim_in(block: &Block, tid: u32, pid: u32) -> Option<*mut Own> {
    harvest(block, pid);
    let seize = |i: usize, seen: u32| {
        let slot = block.tids.get(i)?;
        slot.compare_exchange(seen, tid, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        Some((&raw const *block.states.get(i)?).cast_mut())
    };
    let used = block.used.load(Ordering::Relaxed);
    for _ in 0..PROBES.min(used) {
        let i = (block.cursor.fetch_add(1, Ordering::Relaxed) % used) as usize;
        let seen = block.tids.get(i)?.load(Ordering::Relaxed);
        // The main thread outlives the others.
        if seen > BUSY
            && seen != pid
            && is_dead(pid, thread(pid, seen))
            && let Some(own) = seize(i, seen)
        {
            return Some(own);
        }
    }
    for (i, slot) in (0_u32..).zip(&block.tids) {
        let seen = slot.load(Ordering::Relaxed);
        if (seen == 0 || seen == tid)
            && let Some(own) = seize(i as usize, seen)
        {
            block.used.fetch_max(i + 1, Ordering::Relaxed);
            return Some(own);
        }
    }
    None
}

/// Blocks that nobody has yet: from here, and to where. In a forked child those that its
/// parent has not used are wiped, and there.
static SPARE: AtomicUsize = AtomicUsize::new(0);
static SPARE_END: AtomicUsize = AtomicUsize::new(0);

/// Blocks made for later: each forked child of a child needs one, and so do threads beyond
/// the first [`BLOCK`].
const SPARES: usize = 8;

/// Maps blocks while that is still allowed.
pub(crate) fn reserve() {
    if SPARE_END.load(Ordering::Relaxed) == 0 {
        let len = SPARES * size_of::<Block>();
        let at = map(len);
        if at != 0 {
            SPARE.store(at, Ordering::Relaxed);
            SPARE_END.store(at + len, Ordering::Relaxed);
        }
    }
}

/// Memory of states is not wiped in a forked child, which goes on with its parent's: then
/// there is nothing in them that it must not have.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Whether threads may have pages of counters, and leases.
pub(crate) fn are_wiped() -> bool {
    !SHARED.load(Ordering::Relaxed)
}

/// New memory, wiped on fork as a whole; 0 for none.
fn map(len: usize) -> usize {
    // SAFETY: a new private mapping; MADV_WIPEONFORK on all of it.
    unsafe {
        let at = ask!(Mmap, 0, len, 3, 0x22, usize::MAX, 0);
        if (-4095..0).contains(&at) {
            return 0;
        }
        if ask!(Madvise, at, len, 18) != 0 {
            SHARED.store(true, Ordering::Relaxed);
        }
        at.cast_unsigned()
    }
}

/// The process, as it was known last; 0 in a forked child that has not been here.
pub(crate) fn pid() -> u32 {
    // SAFETY: blocks are never unmapped.
    unsafe { BLOCKS.load(Ordering::Acquire).as_ref() }.map_or(0, |b| b.pid.load(Ordering::Acquire))
}

fn new_block(tid: u32, pid: u32) -> *mut Own {
    let mut block = null_mut();
    if forbids(Helper::Mmap) || forbids(Helper::Madvise) {
        let at = SPARE.fetch_add(size_of::<Block>(), Ordering::Relaxed);
        if at < SPARE_END.load(Ordering::Relaxed) {
            block = at as *mut Block;
        }
    }
    if block.is_null() {
        block = map(size_of::<Block>()) as *mut Block;
    }
    if block.is_null() {
        return null_mut();
    }
    // SAFETY: just mapped, zeroed, and not shared yet.
    unsafe {
        (*block).pid.store(pid, Ordering::Relaxed);
        (*block).tids[0].store(tid, Ordering::Relaxed);
        (*block).used.store(1, Ordering::Relaxed);
    }
    let mut head = BLOCKS.load(Ordering::Acquire);
    loop {
        // SAFETY: blocks are never unmapped. A wiped one ends the list: those
        // behind it are the parent's.
        let usable = unsafe { head.as_ref() }.is_some_and(|b| b.pid.load(Ordering::Acquire) != 0);
        // SAFETY: ours until published.
        unsafe {
            (*block)
                .next
                .store(if usable { head } else { null_mut() }, Ordering::Relaxed);
        };
        match BLOCKS.compare_exchange(head, block, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as above.
            Ok(_) => return unsafe { &raw mut (*block).states[0] },
            Err(seen) => head = seen,
        }
    }
}
