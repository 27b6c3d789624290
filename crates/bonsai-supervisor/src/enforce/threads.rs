//! What is known of each thread of an enforced service, and what it owes.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bonsai_calls::{CALLS, CallId, Fd};
use bonsai_ledger::sync::bump;
use bonsai_ledger::{Count, Ledger, Owner, ProcessId, Tickets, coverage, own_namespace};

use super::amount::{Counted, counted};
use super::drawn::Drawn;
use super::listener::Asked;
use super::look::Looks;
use super::names::text_of;
use super::perform::Handle;
use super::rights::Rights;

/// What comes in may be ahead of its payment by so many bytes, all threads together.
/// It is known only afterwards how many they were, and an idle reader must not hold up
/// the others.
pub(crate) const AHEAD: u64 = 256 * 1024;

/// A thread is looked at again when it was let through with so many bytes, or so long
/// ago.
const SETTLE_BYTES: u64 = AHEAD / 8;
const SETTLE_AFTER: Duration = Duration::from_millis(4);

/// Descriptors kept for threads. Beyond, their bytes are paid in advance and in full.
pub(crate) const KEPT: usize = 8192;

/// Directions, as indices.
pub(crate) const IN: usize = 0;
pub(crate) const OUT: usize = 1;

/// Calls that were let through and whose actual bytes are not known yet: those of one
/// entry, in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Open {
    pub(crate) entry: CallId,
    /// Bytes that they may move.
    pub(crate) asked: u64,
    /// Of these, paid for.
    pub(crate) paid: u64,
    /// What the thread had moved before.
    base: u64,
    since: u64,
    /// Under which limits.
    epoch: u32,
    /// Charged to all kinds of descriptors.
    any: bool,
}

impl Open {
    /// Bytes that may move without having been paid for.
    pub(crate) fn ahead(&self) -> u64 {
        self.asked - self.paid
    }

    fn is_ripe(&self, now: u64) -> bool {
        let waited = now.saturating_sub(self.since);
        self.asked >= SETTLE_BYTES || u128::from(waited) >= SETTLE_AFTER.as_nanos()
    }
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) asked: Asked,
    pub(crate) entry: CallId,
    pub(crate) tickets: Tickets,
    /// Bytes that tickets were taken for.
    pub(crate) paid: u64,
    /// Bytes that it moves at most.
    pub(crate) bytes: u64,
    /// Bytes that it may bring in without having been paid for: they are reserved while
    /// it waits, as many may wait together.
    pub(crate) credit: u64,
    pub(crate) since: u64,
    /// Charged to all kinds of descriptors.
    pub(crate) any: bool,
    /// It was told that a signal has ended it.
    pub(crate) told: bool,
    /// Its number in the line of alarms.
    pub(crate) alarm: u64,
}

/// A thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) pid: u32,
    page: Option<usize>,
    /// When it was seen to live, ns.
    lived: u64,
    /// Its counters, as the kernel keeps them; none where they may not be read.
    io: Option<File>,
    looks: Looks,
    /// What its descriptors are taken by.
    process: Option<Arc<OwnedFd>>,
    pub(crate) open: [Open; 2],
    pub(crate) wait: Option<Waiting>,
    /// Whose rights the calls have that are made in its place, once they are known, until it may have changed them.
    pub(crate) rights: Option<Arc<Rights>>,
    /// The call that is made in its place.
    pub(crate) job: Option<Arc<Handle>>,
    /// What was done for a call whose answer did not arrive, because a signal came
    /// first: the same call, made again, gets it.
    pub(crate) done: Option<(u32, [u64; 6], i64)>,
}

impl Thread {
    pub(crate) fn new(ledger: &Ledger, tid: u32, keeps: bool) -> Self {
        let pid = process_of(tid).unwrap_or(tid);
        let me = Owner::of(process_id(pid), tid);
        let is_dead = |owner: Owner| !is_alive(owner.pid, owner.tid);
        let page = ledger.claim_page(me, is_dead, |page| ledger.reserve_page(page));
        describe(ledger, pid);
        Self {
            tid,
            pid,
            page,
            lived: 0,
            io: keeps
                .then(|| File::open(format!("/proc/{pid}/task/{tid}/io")).ok())
                .flatten()
                // Opening is allowed to more than reading is.
                .filter(|io| counted(io).is_ok()),
            looks: Looks::default(),
            process: None,
            rights: None,
            open: [Open::default(); 2],
            wait: None,
            job: None,
            done: None,
        }
    }

    /// True where its number belongs to another thread by now, or to none.
    pub(crate) fn is_gone(&self) -> bool {
        !is_alive(self.pid, self.tid)
    }

    /// The same, for a thread of that number that makes a call: the kernel is asked once in [`SOON`].
    pub(crate) fn is_another(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.lived) < SOON && numbers_are_many() {
            return false;
        }
        let is_gone = self.is_gone();
        if !is_gone {
            self.lived = now;
        }
        is_gone
    }

    pub(crate) fn has_io(&self) -> bool {
        self.io.is_some()
    }

    pub(crate) fn page<'a>(&self, ledger: &'a Ledger) -> (&'a bonsai_ledger::ThreadPage, usize) {
        match self.page {
            Some(page) => (&ledger.threads[page], page),
            None => (&ledger.crowd, 0),
        }
    }

    pub(crate) fn count(&self, ledger: &Ledger, entry: CallId, calls: u64, bytes: u64) {
        let (page, _) = self.page(ledger);
        let count: &Count = &page.counts[usize::from(entry)];
        bump(&count.calls, calls);
        bump(&count.bytes, bytes);
    }

    /// Notes that it waits; only with a page of its own.
    pub(crate) fn note(
        &self,
        ledger: &Ledger,
        entry: CallId,
        since: u64,
        due: (u64, u8),
        now: u64,
    ) {
        if let Some(page) = self.page {
            let note = &ledger.threads[page].wait;
            note.begin(since);
            note.sleep(entry, self.tid, due.1, due.0, now);
        }
    }

    pub(crate) fn note_end(&self, ledger: &Ledger, entry: CallId, waited: u64) {
        let (page, number) = self.page(ledger);
        if self.page.is_some() {
            page.wait.end();
        }
        ledger.record_wait(entry, number, waited);
    }

    /// Whether calls let through have to be settled before one that is charged so.
    pub(crate) fn is_ripe(&self, direction: usize, drawn: Drawn, now: u64) -> bool {
        let open = &self.open[direction];
        open.asked > 0 && ((open.entry, open.any) != (drawn.entry, drawn.any) || open.is_ripe(now))
    }

    /// What it has moved so far; `None` if that cannot be known any more.
    pub(crate) fn counted(&mut self) -> Option<Counted> {
        let found = self.io.as_ref().and_then(|io| counted(io).ok());
        if found.is_none() {
            self.io = None;
        }
        found
    }

    /// Lets a call through whose bytes are settled later.
    pub(crate) fn let_through(
        &mut self,
        direction: usize,
        drawn: Drawn,
        (asked, paid): (u64, u64),
        (base, now): (u64, u64),
    ) {
        let open = &mut self.open[direction];
        if open.asked == 0 {
            (open.base, open.since) = (base, now);
            (open.entry, open.epoch, open.any) = (drawn.entry, drawn.epoch, drawn.any);
        }
        open.asked += asked;
        open.paid += paid;
    }

    /// Settles what is open: charges what was moved beyond what was paid for, or gives
    /// back the rest. Returns how much less it is ahead by.
    pub(crate) fn settle(
        &mut self,
        ledger: &Ledger,
        direction: usize,
        now_counted: Option<Counted>,
        now: u64,
    ) -> u64 {
        let open = std::mem::take(&mut self.open[direction]);
        if open.asked == 0 {
            return 0;
        }
        let moved = now_counted.map_or(open.asked, |counted| {
            let value = if direction == IN {
                counted.read
            } else {
                counted.written
            };
            value.saturating_sub(open.base).min(open.asked)
        });
        let drawn = Drawn::again(ledger, open.entry, open.any);
        if moved > open.paid {
            drawn.owe(ledger, moved - open.paid, now);
        } else if drawn.epoch == open.epoch {
            ledger.refund_mask(drawn.mask, drawn.byte_buckets, open.paid - moved, 0);
        }
        self.count(ledger, open.entry, 0, moved);
        open.ahead()
    }

    /// Whether all that could move has moved.
    pub(crate) fn is_through(&self, direction: usize, counted: Counted) -> bool {
        let open = &self.open[direction];
        let value = if direction == IN {
            counted.read
        } else {
            counted.written
        };
        value.saturating_sub(open.base) >= open.asked
    }

    /// What a descriptor of it is; where it is not `wanted` for sure, it is for sockets
    /// only. `None` if it may not be seen.
    pub(crate) fn kind(&mut self, fd: u64, wanted: bool, keeps: bool) -> Option<Fd> {
        #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
        let number = fd as u32;
        if wanted {
            // A descriptor that is none gives an error, whatever it is charged to.
            let found = self.looks.kind(self.tid, number).ok()?;
            return Some(found.unwrap_or(Fd::File));
        }
        self.looks.socket_or(self.tid, number, keeps).ok()
    }

    /// What its descriptors are taken by, if that was kept.
    pub(crate) fn process(&self) -> Option<Arc<OwnedFd>> {
        self.process.clone()
    }

    pub(crate) fn keep_process(&mut self, process: Arc<OwnedFd>) {
        self.process = Some(process);
    }

    /// Descriptors of ours that are kept for it.
    pub(crate) fn kept(&self) -> usize {
        usize::from(self.io.is_some()) + usize::from(self.process.is_some()) + self.looks.kept()
    }
}

/// The entry of a call on a kind of descriptor.
pub(crate) fn entry_on(first: CallId, kind: Fd) -> CallId {
    let by_kind = CALLS[usize::from(first)].fd != Fd::Any;
    first
        + match kind {
            Fd::Socket if by_kind => 1,
            Fd::Other if by_kind => 2,
            _ => 0,
        }
}

/// Time within which no number comes round, ns. A number is given out in a microsecond at best, all of them in 30 ms.
const SOON: u64 = 1_000_000;

/// True where there are as many numbers as the kernel has by default, or more (`pid_max`, proc_sys_kernel(5)).
fn numbers_are_many() -> bool {
    const DEFAULT: u32 = 32_768;
    static ARE_MANY: OnceLock<bool> = OnceLock::new();
    *ARE_MANY.get_or_init(|| {
        let most = text_of("/proc/sys/kernel/pid_max").ok();
        most.and_then(|most| most.trim().parse::<u32>().ok())
            .is_some_and(|most| most >= DEFAULT)
    })
}

/// `tgkill` takes microseconds where the kernel may audit signals.
pub(super) fn is_alive(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 does nothing.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    sent == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// The process of a thread.
fn process_of(tid: u32) -> Option<u32> {
    let text = text_of(&format!("/proc/{tid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// A process as the ledger has it: all numbers are those of the supervisor's pid namespace.
fn process_id(pid: u32) -> ProcessId {
    let namespace = own_namespace();
    ProcessId { pid, namespace }
}

/// Puts a process into the ledger's table.
fn describe(ledger: &Ledger, pid: u32) {
    use bonsai_ledger::sync::Ordering;
    let known = ledger
        .processes
        .iter()
        .any(|p| p.id.load(Ordering::Relaxed) == process_id(pid).word());
    if known {
        return;
    }
    let is_dead = |other: ProcessId| !is_alive(other.pid, other.pid);
    let Some(entry) = ledger.claim_process(process_id(pid), is_dead) else {
        return;
    };
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut bytes = name
        .into_iter()
        .take_while(|byte| *byte != b'\n')
        .chain(std::iter::repeat(0));
    for word in &entry.program {
        let mut eight = [0_u8; 8];
        eight.fill_with(|| bytes.next().unwrap_or(0));
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
    entry.reason.store(0, Ordering::Relaxed);
    entry
        .coverage
        .store(coverage::ATTACHED | coverage::PATCHED, Ordering::Release);
}

/// What the descriptors of a thread are taken by.
pub(crate) fn process(tid: u32, pid: u32) -> std::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    /// Linux 6.9: of a thread, which may have descriptors of its own.
    const PIDFD_THREAD: i32 = libc::O_EXCL;
    let opened = |number: u32, flags: i32| {
        // SAFETY: plain numbers.
        let made = unsafe { libc::syscall(libc::SYS_pidfd_open, number, flags) };
        match i32::try_from(made) {
            // SAFETY: a new descriptor that nobody else has.
            Ok(made @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    opened(tid, PIDFD_THREAD).or_else(|_| opened(pid, 0))
}

/// A descriptor of whom `process` is of, as one of ours.
///
/// # Errors
/// There is none, or it may not be had.
pub(crate) fn descriptor(process: &OwnedFd, fd: u64) -> std::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    // SAFETY: plain numbers.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd as u32, 0) };
    match i32::try_from(got) {
        // SAFETY: a new descriptor that nobody else has.
        Ok(got @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(got) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}
