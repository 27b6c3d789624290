//! Paying for what enters through rings and queues, and counting it.

use crate::amount::Args;
use crate::claim::Claim;
use crate::facts::{fact, facts};
use crate::identity;
use crate::own::Own;
use crate::patience::Patience;
use crate::pay;
use crate::sys;
use crate::wait::Wait;
use bonsai_bucket::QUANTUM_NS;
use bonsai_calls::about::{self, Address};
use bonsai_calls::{self as calls, CallId};
use bonsai_ledger::sync::bump;
use bonsai_ledger::{Owner, Process, Segment, coverage};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// No descriptor of the process: a place in a ring's table of files.
pub(crate) const NO_FD: usize = 0xffff_ffff;

/// What entries under the same limits ask for together.
pub(crate) struct Group {
    pub(crate) call: CallId,
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
    claim: Claim,
    /// Bytes and calls that a quantum gives, once that has been asked for.
    most: Option<(u64, u64)>,
}

/// A call on a descriptor, of which nothing else is known.
pub(crate) fn on(call: CallId, fd: usize) -> Args {
    let mut args = Args { a: [0; 6], nr: 0 };
    let ends = about::ends(call);
    let (at, other) = match ends.both() {
        true => (ends.target, ends.source),
        false => (0, about::NO_ARG),
    };
    if let Some(arg) = args.a.get_mut(usize::from(other)) {
        *arg = NO_FD;
    }
    if let Some(arg) = args.a.get_mut(usize::from(at)) {
        *arg = fd;
    }
    args
}

impl Group {
    pub(crate) fn new(segment: &Segment, own: &mut Own, call: CallId, args: &Args) -> Self {
        let mut claim = Claim::none(*args);
        claim.fill(segment, call, &mut own.readable);
        // What stands in a ring cannot be refused one by one.
        claim.refusable = None;
        Self {
            call,
            bytes: 0,
            calls: 0,
            claim,
            most: None,
        }
    }

    /// Whether entries are under the same limits as these.
    pub(crate) fn takes(&self, segment: &Segment, call: CallId, args: &Args) -> bool {
        self.call == call && (self.claim.args.a == args.a || !is_narrowed(segment, call))
    }

    /// Whether another entry may enter with these: what a quantum gives goes at once.
    pub(crate) fn has_room(&mut self, segment: &Segment, bytes: u64) -> bool {
        if self.calls == 0 {
            return true;
        }
        let claim = &self.claim;
        let (most_bytes, most_calls) = *self.most.get_or_insert_with(|| {
            let (all, counted) = (claim.all(), claim.byte_buckets);
            let (_, calls) = segment.quantum(all, counted, QUANTUM_NS);
            (segment.bytes_in(all, counted, QUANTUM_NS), calls)
        });
        self.bytes.saturating_add(bytes) <= most_bytes && self.calls < most_calls
    }

    /// Waits until they are due, and counts them; if the wait ends early, they are as if
    /// they had never been.
    pub(crate) fn pay(&mut self, segment: &Segment, own: &mut Own, may_end: bool) -> Wait {
        let (end, got) = self.wait(segment, own, may_end);
        if end != Wait::Due {
            self.claim.refund(segment, got.0, got.1);
            return end;
        }
        count(segment, own, self.call, self.calls, self.bytes);
        Wait::Due
    }

    /// Waits for bytes that have come already, and counts them.
    pub(crate) fn owe(&mut self, segment: &Segment, own: &mut Own) {
        let (end, got) = self.wait(segment, own, true);
        if end != Wait::Due {
            // They have moved: the next call waits for them.
            let (bytes, calls) = (self.bytes - got.0, self.calls - got.1);
            let taken = self.claim.take(segment, bytes, calls, sys::now());
            if taken.is_some() {
                self.claim.note(segment, (bytes, calls), 0);
            }
        }
        count(segment, own, self.call, self.calls, self.bytes);
    }

    /// Waits for what they ask for; returns how that ended, and what there is of it.
    fn wait(&mut self, segment: &Segment, own: &mut Own, may_end: bool) -> (Wait, (u64, u64)) {
        let (mut bytes, mut calls) = (self.bytes, self.calls);
        loop {
            if !self.claim.is_any() || bytes + calls == 0 {
                return (Wait::Due, (self.bytes, self.calls));
            }
            let what = (self.call, Patience::Endless);
            let (end, got) =
                pay::turn(segment, own, &mut self.claim, what, ((bytes, calls), false));
            (bytes, calls) = (bytes - got.0, calls - got.1);
            match end {
                Wait::Interrupted if !may_end => {}
                Wait::Due | Wait::Changed => return (Wait::Due, (self.bytes, self.calls)),
                end => return (end, (self.bytes - bytes, self.calls - calls)),
            }
        }
    }

    /// As if they had never been.
    pub(crate) fn undo(&self, segment: &Segment, own: &Own) {
        self.claim.refund(segment, self.bytes, self.calls);
        let minus = |n: u64| 0_u64.wrapping_sub(n);
        count(
            segment,
            own,
            self.call,
            minus(self.calls),
            minus(self.bytes),
        );
    }
}

/// Whether there is any limit on a call.
pub(crate) fn is_limited(segment: &Segment, call: CallId) -> bool {
    let (_, mask, _) = segment.mask(call);
    mask != 0 || is_narrowed(segment, call)
}

/// Whether some limits on a call are for some descriptors only.
fn is_narrowed(segment: &Segment, call: CallId) -> bool {
    let config = &segment.configs[(segment.epoch() & 1) as usize];
    let mask = config.narrowed.get(usize::from(call));
    mask.is_some_and(|mask| mask.load(Ordering::Relaxed) != 0)
}

/// Gives back what an entry turned out not to need, if the limits are still those that it
/// was charged under, and corrects what was counted.
pub(crate) fn correct(
    segment: &Segment,
    own: &mut Own,
    (call, fd): (CallId, usize),
    epoch: u32,
    (bytes, calls): (u64, u64),
) {
    let mut group = Group::new(segment, own, call, &on(call, fd));
    (group.bytes, group.calls) = (bytes, calls);
    // Which peer a message was charged for is not known any more: nothing goes back.
    let by_peer = about::address(call) != Address::None && is_narrowed(segment, call);
    if segment.epoch() == epoch && !by_peer {
        group.undo(segment, own);
    } else {
        let minus = |n: u64| 0_u64.wrapping_sub(n);
        count(segment, own, call, minus(calls), minus(bytes));
    }
}

/// Counts entries on the thread's page; modulo 2^64, so that it also corrects.
pub(crate) fn count(segment: &Segment, own: &Own, call: CallId, calls: u64, bytes: u64) {
    // SAFETY: set up with the state and never unmapped.
    let page = unsafe { &*own.page };
    let Some(count) = page.counts.get(usize::from(call)) else {
        return;
    };
    if own.crowd {
        count.calls.fetch_add(calls, Ordering::Relaxed);
        count.bytes.fetch_add(bytes, Ordering::Relaxed);
    } else {
        bump(&count.calls, calls);
        bump(&count.bytes, bytes);
    }
    // Which of these calls the kernel would have counted, made by themselves.
    let side = match call {
        calls::READ_FILE..=calls::PREADV2 => 0,
        calls::WRITE_FILE..=calls::PWRITEV2 => 1,
        _ => return,
    };
    if bytes == 0 {
        return;
    }
    let add = |sides: &[AtomicU64; 2]| sides[side].fetch_add(bytes, Ordering::Relaxed);
    add(&segment.header.beside);
    if let Some(process) = process() {
        add(&process.beside);
    }
}

/// Whether bytes come in by a call.
pub(crate) fn is_inward(call: CallId) -> bool {
    facts(call) & fact::IN != 0
}

/// Whether a call moves bytes.
pub(crate) fn moves_bytes(call: CallId) -> bool {
    facts(call) & (fact::IN | fact::OUT) != 0
}

/// Process whose rings these are.
static OWN: AtomicU64 = AtomicU64::new(0);
/// What the ledger says of it.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

fn process() -> Option<&'static Process> {
    // SAFETY: in the segment, which is never unmapped.
    unsafe { PROCESS.load(Ordering::Relaxed).as_ref() }
}

/// Says once per process that it submits this way. True in a process that was forked and
/// has not been here: what is known of rings is its parent's.
pub(crate) fn begin(segment: &'static Segment, own: &Own) -> bool {
    let process = identity::of(pid_of(segment, own));
    let word = process.word();
    let before = OWN.swap(word, Ordering::Relaxed);
    if before == word {
        return false;
    }
    let entry = segment.claim_process(process, identity::has_ended);
    if let Some(entry) = entry {
        if entry.beside_of.swap(word, Ordering::Relaxed) != word {
            for side in &entry.beside {
                side.store(0, Ordering::Relaxed);
            }
        }
        entry.coverage.fetch_or(coverage::RINGS, Ordering::Relaxed);
    }
    let entry = entry.map_or(core::ptr::null_mut(), |e| core::ptr::from_ref(e).cast_mut());
    PROCESS.store(entry, Ordering::Relaxed);
    before != 0
}

/// Says something about the process in the ledger.
pub(crate) fn say(bit: u32) {
    if let Some(process) = process() {
        process.coverage.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The process of the calling thread, from the ledger: that costs no call.
fn pid_of(segment: &Segment, own: &Own) -> u32 {
    let page = (own.page as usize).wrapping_sub((&raw const segment.threads) as usize) / 4096;
    let owner = segment.owners.get(page).filter(|_| !own.crowd);
    let owner = owner.and_then(|owner| Owner::from_word(owner.load(Ordering::Relaxed)));
    owner.map_or_else(sys::getpid, |owner| owner.pid)
}
