//! What the interposer knows: of the process, and of each thread.

use crate::sys::{self, call, nr};
use bonsai_calls::{CALLS, MAX_CALLS};
use bonsai_ledger::{Owner, Segment, THREADS, ThreadPage};
use core::arch::{asm, global_asm};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// More than any program will ever use up: the lease of a call without limits.
pub(crate) const UNLIMITED: i64 = i64::MAX / 2;

/// The process's ledger; null before attaching and in programs that have none.
#[unsafe(link_section = ".bss.bonsai_early")]
static SEGMENT: AtomicPtr<Segment> = AtomicPtr::new(null_mut());

/// Where the fast path reads the epoch. Points at a number that no thread has
/// until the process has attached.
pub(crate) static BONSAI_EPOCH: AtomicPtr<AtomicU32> =
    AtomicPtr::new((&raw const NO_EPOCH).cast_mut());
static NO_EPOCH: AtomicU32 = AtomicU32::new(u32::MAX);

/// libc's system call sites are patched.
#[unsafe(link_section = ".bss.bonsai_early")]
pub(crate) static PATCHED: AtomicBool = AtomicBool::new(false);
/// A seccomp filter is in place: only the plain futex call is used to wait.
#[unsafe(link_section = ".bss.bonsai_early")]
pub(crate) static GUARDED: AtomicBool = AtomicBool::new(false);

/// The state of one thread. Wiped by the kernel in a forked child, so that a
/// child neither spends its parent's leases nor writes its counters.
#[repr(C, align(64))]
pub(crate) struct Own {
    /// The epoch its leases belong to; 0 sends the next call to the slow path.
    pub(crate) epoch: AtomicU32,
    pub(crate) tid: u32,
    /// Its page of counters, null if not set up.
    pub(crate) page: *const ThreadPage,
    /// Calls of the slow path under way: more than one when a signal handler
    /// interrupted it.
    pub(crate) depth: u32,
    /// The page is shared with other threads.
    pub(crate) crowd: bool,
    /// Where the outermost of them stands on the stack.
    frame: usize,
    /// Slow paths so far.
    pub(crate) entered: u32,
    /// The epoch that its entries were last brought up to.
    pub(crate) synced: u32,
    /// Pages of the program's memory that were found readable last.
    pub(crate) readable: [usize; 2],
    _pad2: u64,
    pub(crate) entries: [Entry; ENTRIES],
}

/// The lease of a thread for one entry of the table.
#[repr(C)]
pub(crate) struct Entry {
    /// Calls that may go.
    pub(crate) calls: i64,
    /// Bytes that may go; negative when they came in before they were due.
    pub(crate) bytes: i64,
    /// Bytes of the lease as booked.
    pub(crate) lease_bytes: u32,
    /// When it was granted, us modulo 2^32.
    pub(crate) granted_us: u32,
    /// Calls of the lease as booked.
    pub(crate) lease_calls: u32,
    /// Calls for more bytes than this go the slow way, to be paced in pieces.
    pub(crate) piece: u32,
}

/// Entries of the table, and some room: with its share of the block's head, a
/// thread's state stays below a page.
const ENTRIES: usize = 123;

const _: () = assert!(CALLS.len() <= ENTRIES && ENTRIES <= MAX_CALLS);
const _: () = assert!(size_of::<Own>() <= 4032 && size_of::<Entry>() == 32);
const _: () = assert!(core::mem::offset_of!(Own, entries) == 64);

impl Own {
    /// Runs `f` as a call of the slow path. A handler that left an earlier one by
    /// `siglongjmp` has taken its frame away with it: then that one is over.
    #[inline]
    pub(crate) fn within<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let mark = 0_u8;
        let here = &raw const mark as usize;
        if self.depth == 0 || here > self.frame {
            self.depth = 0;
            self.frame = here;
        }
        self.depth += 1;
        self.entered = self.entered.wrapping_add(1);
        let result = f(self);
        self.depth = self.depth.saturating_sub(1);
        result
    }

    /// Calls of an entry counted on this thread's page.
    pub(crate) fn made(&self, call: u8) -> u64 {
        // SAFETY: set up with the state and never unmapped.
        let page = unsafe { &*self.page };
        page.counts
            .get(usize::from(call))
            .map_or(0, |c| c.calls.load(Ordering::Relaxed))
    }

    /// Runs `f` as if outside: it may not come back, while the memory stays in
    /// use (an exec in a vforked child).
    pub(crate) fn suspended<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let depth = core::mem::replace(&mut self.depth, 0);
        let result = f();
        self.depth = depth;
        result
    }
}

// Three words in initial-exec thread storage: the thread's state, its page of
// counters, and the distance from the latter to the former.
global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".balign 8",
    ".hidden bonsai_me",
    ".globl bonsai_me",
    ".type bonsai_me,@object",
    ".size bonsai_me,24",
    "bonsai_me: .quad {nobody}, 0, 0",
    ".popsection",
    nobody = sym NOBODY,
);

/// As much of the state of a thread that has none as anybody reads: no epoch, no
/// page.
#[unsafe(link_section = ".bss.bonsai_early")]
static NOBODY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

const _: () = assert!(core::mem::offset_of!(Own, page) < size_of_val(&NOBODY));

/// Makes this thread's words fit for a fast path before the loader has filled them
/// in: functions that choose an implementation run that early.
pub(crate) fn too_early() {
    // SAFETY: our own thread storage.
    let words = unsafe { &mut *me_words() };
    if words[0] == 0 {
        words[0] = &raw const NOBODY as usize;
    }
}

/// The address of this thread's three words.
fn me_words() -> *mut [usize; 3] {
    let words: *mut [usize; 3];
    // SAFETY: reads the thread pointer and adds the offset of our own variable.
    unsafe {
        asm!("mov {w}, qword ptr fs:[0]", "add {w}, qword ptr [rip + bonsai_me@gottpoff]",
            w = out(reg) words, options(nostack, readonly));
    }
    words
}

/// The segment, once attached.
#[inline(never)]
pub(crate) fn segment() -> Option<&'static Segment> {
    // SAFETY: set once, to a mapping that is never removed.
    unsafe { SEGMENT.load(Ordering::Acquire).as_ref() }
}

/// From here on calls are decided on.
pub(crate) fn set_segment(segment: &'static Segment) {
    SEGMENT.store(core::ptr::from_ref(segment).cast_mut(), Ordering::Release);
    BONSAI_EPOCH.store(
        (&raw const segment.header.epoch.0).cast_mut(),
        Ordering::Release,
    );
}

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
    cursor: AtomicU32,
    next: AtomicPtr<Self>,
    states: [Own; BLOCK],
}

#[unsafe(link_section = ".bss.bonsai_early")]
static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(null_mut());

/// The state of the calling thread, set up if need be; null if there is no
/// memory for it.
#[inline(never)]
pub(crate) fn me(segment: &'static Segment) -> *mut Own {
    let words = me_words();
    // SAFETY: our own thread storage.
    let own = unsafe { (*words)[0] } as *mut Own;
    // SAFETY: never unmapped once it is there.
    if !own.is_null() && unsafe { !(*own).page.is_null() } {
        return own;
    }
    set_up(segment, words)
}

/// Gives back what the calling thread holds.
pub(crate) fn release_mine(segment: &'static Segment) {
    // SAFETY: our own thread storage, and our own state.
    let own = unsafe { ((*me_words())[0] as *mut Own).as_mut() };
    if let Some(own) = own.filter(|own| !own.page.is_null()) {
        crate::pay::release(segment, own);
    }
}

#[cold]
#[inline(never)]
fn set_up(segment: &'static Segment, words: *mut [usize; 3]) -> *mut Own {
    let tid = sys::gettid();
    let (own, pid) = claim_state(tid);
    if own.is_null() {
        return null_mut();
    }
    let dead = |o: Owner| thread_is_dead(pid, o);
    let populate = |i: usize| {
        // Brings the page in, or fails without a SIGBUS when shared memory is full.
        // SAFETY: a page of our own mapping.
        unsafe { call!(nr::MADVISE, &raw const segment.threads[i], 4096, 23) == 0 }
    };
    let claimed = segment.claim_page(Owner { pid, tid }, dead, populate);
    let page = claimed.map_or(&raw const segment.crowd, |i| {
        &raw const segment.threads[i.min(THREADS - 1)]
    });
    // SAFETY: claimed above, so this thread is the only one to write it. `page`
    // comes last: a signal handler in between starts over.
    unsafe {
        (*own).tid = tid;
        (*own).depth = 0;
        (*own).crowd = claimed.is_none();
        (*own).epoch.store(0, Ordering::Relaxed);
        (*own).page = page;
        (*words)[1] = page as usize;
        (*words)[2] = (own as usize).wrapping_sub(page as usize);
        (*words)[0] = own as usize;
    }
    crate::attach::register(segment, pid);
    own
}

fn thread_is_dead(own_pid: u32, owner: Owner) -> bool {
    // SAFETY: signal 0 only asks whether the target exists.
    let answer = unsafe {
        if owner.pid == own_pid {
            call!(nr::TGKILL, owner.pid, owner.tid, 0)
        } else {
            call!(nr::KILL, owner.pid, 0)
        }
    };
    answer == sys::ESRCH
}

/// A state for a thread, and the number of its process.
fn claim_state(tid: u32) -> (*mut Own, u32) {
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

/// States looked at for dead owners whenever a thread needs one.
const HARVEST: u32 = 2;

/// Gives back what threads held that have ended: threads do not say when they go.
fn harvest(block: &Block, pid: u32) {
    let Some(segment) = segment() else { return };
    let from = block.cursor.fetch_add(HARVEST, Ordering::Relaxed);
    for i in 0..HARVEST {
        let i = from.wrapping_add(i) as usize % BLOCK;
        let Some(slot) = block.tids.get(i) else {
            continue;
        };
        let tid = slot.load(Ordering::Relaxed);
        // The exchange makes this thread the only one to look at the state.
        if tid > BUSY
            && thread_is_dead(pid, Owner { pid, tid })
            && slot
                .compare_exchange(tid, BUSY, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            // SAFETY: its thread is dead, and nobody else gets it while it is busy.
            if let (false, Some(own)) = unsafe {
                (
                    block.states[i].page.is_null(),
                    (&raw const block.states[i]).cast_mut().as_mut(),
                )
            } {
                crate::pay::release(segment, own);
                own.page = null();
            }
            slot.store(0, Ordering::Release);
        }
    }
}

/// Marks a state that is being cleared; no thread has this id.
const BUSY: u32 = 1;

fn claim_in(block: &Block, tid: u32, pid: u32) -> Option<*mut Own> {
    harvest(block, pid);
    for pass in 0..2 {
        for (i, slot) in block.tids.iter().enumerate() {
            let seen = slot.load(Ordering::Relaxed);
            let usable = seen == 0
                || seen == tid
                || (pass == 1 && thread_is_dead(pid, Owner { pid, tid: seen }));
            if usable
                && slot
                    .compare_exchange(seen, tid, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                let own = (&raw const block.states[i]).cast_mut();
                // SAFETY: ours since the exchange. What a dead thread left behind
                // must not be taken for leases of ours.
                unsafe { (*own).page = null() };
                return Some(own);
            }
        }
    }
    None
}

fn new_block(tid: u32, pid: u32) -> *mut Own {
    // SAFETY: a new private mapping; MADV_WIPEONFORK on all of it.
    let block = unsafe {
        let at = call!(nr::MMAP, 0, size_of::<Block>(), 3, 0x22, usize::MAX, 0);
        if (-4095..0).contains(&at) {
            return null_mut();
        }
        call!(nr::MADVISE, at, size_of::<Block>(), 18);
        at as *mut Block
    };
    // SAFETY: just mapped, zeroed, and not shared yet.
    unsafe {
        (*block).pid.store(pid, Ordering::Relaxed);
        (*block).tids[0].store(tid, Ordering::Relaxed);
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
