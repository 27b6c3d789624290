//! The decision: every call that the filter asks about, and when it is answered.

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bonsai_calls::{CALLS, CallId, Fd, Shape};
use bonsai_ledger::{Ledger, Tickets};
use rustix::time::{ClockId, clock_gettime};

use super::amount::{Amount, amount};
use super::drawn::Drawn;
use super::filter::{self, Refused, entry_of};
use super::interruption;
use super::listener::{Asked, Listener, Nothing};
use super::look;
use super::names::text_of;
use super::perform::Performers;
use super::rights;
use super::shift::Shift;
use super::state::{State, room};
use super::threads::{AHEAD, IN, OUT, Thread, Waiting, entry_on};

const CLONE3: u32 = 435;
const CLONE: u32 = 56;
const EXECVE: u32 = 59;
const EXECVEAT: u32 = 322;
const LANDLOCK_RESTRICT_SELF: u32 = 446;

/// The monotonic clock, ns: the ledger's time.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Has this thread come before others: until a call is heard of, any signal ends it, and whoever waits for an answer is late by as
/// much. It keeps no CPU for long. Only root may.
pub(super) fn first_of_all() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
}

/// The authority of an enforced service.
#[derive(Debug)]
pub struct Enforcer {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) listener: Listener,
    state: Mutex<State>,
    pub(super) alarm: Condvar,
    pub(crate) performers: Performers,
    /// Threads that hear of calls, and that look after parked ones.
    pub(super) hearing: Shift,
    pub(super) parking: Shift,
    /// How many descriptors may be kept for threads.
    pub(crate) room: usize,
    /// No process of the service is left.
    ended: AtomicBool,
    /// A process has entered a Landlock domain of its own.
    pub(super) confined: AtomicBool,
}

impl Enforcer {
    /// Begins to answer for the service behind a listener.
    ///
    /// # Errors
    /// There are no threads for it, or its own credentials cannot be read.
    pub fn start(ledger: Arc<Ledger>, listener: OwnedFd) -> std::io::Result<Arc<Self>> {
        rights::learn_ours()?;
        let enforcer = Arc::new(Self {
            ledger,
            listener: Listener::new(listener),
            state: Mutex::default(),
            alarm: Condvar::new(),
            performers: Performers::new()?,
            hearing: Shift::new("calls", Self::listen),
            parking: Shift::new("parked", |own| own.performers.park(own)),
            room: room(),
            ended: AtomicBool::new(false),
            confined: AtomicBool::new(false),
        });
        enforcer.start_thread("alarms", Self::ring)?;
        enforcer.start_thread("limits", |own| own.watch_limits())?;
        enforcer.relieve(&enforcer.parking)?;
        enforcer.relieve(&enforcer.hearing)?;
        Ok(enforcer)
    }

    fn start_thread(self: &Arc<Self>, name: &str, run: fn(&Arc<Self>)) -> std::io::Result<()> {
        let own = Arc::clone(self);
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn(move || run(&own)).map(drop)
    }

    /// Starts a further thread of a kind.
    pub(super) fn relieve(self: &Arc<Self>, shift: &Shift) -> std::io::Result<()> {
        self.start_thread(shift.name, shift.run)?;
        shift.start();
        Ok(())
    }

    /// How often calls were refused, by reason.
    #[must_use]
    pub fn refused(&self) -> Vec<(Refused, u64)> {
        let counts = self.state().refused;
        let all = Refused::ALL.into_iter().zip(counts);
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked with it has left numbers, each of them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>) {
        first_of_all();
        loop {
            let asked = self.hearing.idle(|| self.listener.receive());
            self.hearing.count();
            match asked {
                Ok(asked) => self.decide(&asked),
                Err(Nothing::Gone) => {}
                Err(Nothing::End) => {
                    self.ended.store(true, Ordering::Relaxed);
                    return;
                }
            }
            if self.hearing.is_replaced() {
                return;
            }
        }
    }

    fn decide(self: &Arc<Self>, asked: &Asked) {
        if let Some(why) = filter::refusal(asked.arch, asked.nr, &asked.args)
            && !(why == Refused::OthersResources && is_itself(asked))
        {
            return self.refuse(asked, why);
        }
        if asked.nr == LANDLOCK_RESTRICT_SELF {
            self.confined.store(true, Ordering::Relaxed);
        }
        let now = monotonic_ns();
        let mut guard = self.state();
        let state = &mut *guard;
        if filter::changes_rights(asked.nr) {
            state.forget_rights(asked.tid);
        }
        let Some(first) = entry_of(asked.nr) else {
            self.listener.go_on(asked.id);
            return;
        };
        if asked.nr == CLONE3
            || (asked.nr == CLONE && asked.args[0] & libc::CLONE_FILES as u64 != 0)
        {
            state.shared = true;
        }
        // The number belongs to another process by now: name and limits would be those of the former one.
        let known = state.threads.get_mut(&asked.tid);
        if known.is_some_and(|thread| thread.is_another(now)) {
            self.sweep(state, now);
        }
        state.know(&self.ledger, asked.tid, now, self.room);
        state.end_exec(asked.tid);
        if matches!(asked.nr, EXECVE | EXECVEAT) {
            state.begin_exec(&self.ledger, asked.tid, now);
        }
        if self.resume(state, asked, now) {
            return;
        }
        let Some((drawn, by_others)) = self.entry(state, asked, first) else {
            return;
        };
        let moves = if drawn.counts_bytes() {
            amount(asked.nr, &asked.args)
        } else {
            Amount::None
        };
        // Nothing at all, whatever its ends are.
        let none = match asked.nr {
            275 => asked.args[4] == 0,
            276 => asked.args[2] == 0,
            _ => false,
        };
        let by_pieces = asked.nr == 1 && self.goes_by_pieces(state, asked, (drawn, moves));
        if (by_others && !none) || by_pieces || must_be_performed(asked.nr, moves) {
            if matches!(asked.nr, 310 | 311) {
                drop(guard);
                return self.refuse(asked, Refused::OthersMemory);
            }
            drop(guard);
            return Performers::take(self, *asked, first);
        }
        self.admit(state, asked, drawn, moves, now);
    }

    /// Admits a call whose descriptor may be of any kind by now: it is charged to all of them, and counted as `entry`. `read` bytes
    /// move, where the registers do not say it.
    pub(crate) fn admit_as_any(&self, asked: &Asked, entry: CallId, read: u64) {
        let drawn = Drawn::by_any(&self.ledger, entry);
        let moves = match amount(asked.nr, &asked.args) {
            _ if !drawn.counts_bytes() => Amount::None,
            Amount::InMemory => Amount::AtMost(read),
            moves => moves,
        };
        self.admit(&mut self.state(), asked, drawn, moves, monotonic_ns());
    }

    /// Whether a write may move much less than requested, so that it is charged in chunks: a large non-blocking write to a pipe or
    /// socket. Files take all of it, and blocking writes go on until all is written.
    fn goes_by_pieces(
        &self,
        state: &mut State,
        asked: &Asked,
        (drawn, moves): (Drawn, Amount),
    ) -> bool {
        let Amount::AtMost(bytes) = moves else {
            return false;
        };
        bytes > drawn.most_at_once(&self.ledger)
            && look::waits_not(asked.tid, asked.args[0])
            && self
                .kind_of(state, asked, true)
                .is_some_and(|kind| kind != Fd::File)
    }

    /// What the descriptor of a call is; where it is not `wanted` for sure, it is for sockets only. `None` if it may not be seen.
    fn kind_of(&self, state: &mut State, asked: &Asked, wanted: bool) -> Option<Fd> {
        let keeps = state.kept < self.room;
        let thread = state.threads.get_mut(&asked.tid)?;
        let kept = thread.kept();
        let kind = thread.kind(asked.args[0], wanted, keeps);
        state.kept = (state.kept + thread.kept()).saturating_sub(kept);
        kind
    }

    /// Which entry a call is, and whether it has to be made by us because its
    /// descriptor may become another one after a look. `None` if it has been answered.
    fn entry(&self, state: &mut State, asked: &Asked, first: CallId) -> Option<(Drawn, bool)> {
        let drawn = Drawn::by(&self.ledger, first);
        if CALLS[usize::from(first)].fd == Fd::Any {
            return Some((drawn, false));
        }
        let others =
            [Fd::Socket, Fd::Other].map(|kind| Drawn::by(&self.ledger, entry_on(first, kind)));
        if others.iter().all(|other| other.mask == drawn.mask) {
            return Some((drawn, false));
        }
        let bytes = drawn.counts_bytes() || others.iter().any(Drawn::counts_bytes);
        let plain = matches!(asked.nr, 0 | 1 | 19 | 20);
        if state.shared || !plain || (bytes && !matches!(asked.nr, 0 | 1)) {
            return Some((drawn, true));
        }
        let wanted = others[1].mask != drawn.mask;
        let found = match self.kind_of(state, asked, wanted) {
            Some(Fd::Socket) => others[0],
            Some(Fd::Other) => others[1],
            Some(_) => drawn,
            // It may not be looked at, so it is charged to all that it might be.
            None => Drawn::by_any(&self.ledger, entry_on(first, Fd::Other)),
        };
        Some((found, false))
    }

    /// A thread that asks again was interrupted: the same call keeps its place in line,
    /// and gets what was done for it. True if that is all there is to do.
    fn resume(&self, state: &mut State, asked: &Asked, now: u64) -> bool {
        let Some(thread) = state.threads.get_mut(&asked.tid) else {
            return false;
        };
        if let Some((nr, args, result)) = thread.done.take()
            && (nr, args) == (asked.nr, asked.args)
        {
            self.listener.end_with(asked.id, result);
            return true;
        }
        if let Some(job) = thread.job.take() {
            if (job.nr, job.args) == (asked.nr, asked.args) {
                let is_timed = job.is_timed.load(Ordering::Relaxed);
                let is_told = is_timed && !filter::waits_killable();
                if is_told && !job.told.fetch_xor(true, Ordering::Relaxed) {
                    self.listener.end_with(asked.id, -i64::from(libc::EINTR));
                } else {
                    job.id.store(asked.id, Ordering::Relaxed);
                }
                thread.job = Some(job);
                return true;
            }
            job.cancelled.store(true, Ordering::Relaxed);
        }
        let Some(mut wait) = thread.wait.take() else {
            return false;
        };
        if (wait.asked.nr, wait.asked.args) != (asked.nr, asked.args) {
            thread.note_end(&self.ledger, wait.entry, now.saturating_sub(wait.since));
            self.ledger.refund(&wait.tickets, wait.paid, 1);
            state.ahead -= wait.credit;
            return false;
        }
        wait.asked.id = asked.id;
        wait.told =
            !wait.told && !filter::waits_killable() && interruption::ends(asked, thread.pid);
        if wait.told {
            self.listener.end_with(asked.id, -i64::from(libc::EINTR));
            thread.wait = Some(wait);
            return true;
        }
        thread.wait = Some(wait);
        self.look(state, asked.tid, now);
        true
    }

    /// Takes tickets for a call whose bytes its registers say, and lets it go when they
    /// are due.
    fn admit(&self, state: &mut State, asked: &Asked, drawn: Drawn, moves: Amount, now: u64) {
        let entry = drawn.entry;
        self.settle_before(state, asked, drawn, moves, now);
        let is_counted = !state.may_be_replaced(asked.tid);
        let Some(thread) = state.threads.get_mut(&asked.tid) else {
            return;
        };
        let bytes = match moves {
            Amount::AtMost(bytes) => bytes,
            _ => 0,
        };
        let is_in = CALLS[usize::from(entry)].shape == Shape::In;
        let credited = is_in
            && is_counted
            && settles(asked.nr)
            && thread.has_io()
            && bytes <= AHEAD.saturating_sub(state.ahead);
        let paid = if credited { 0 } else { bytes };
        let Some(tickets) = self
            .ledger
            .take(drawn.mask, drawn.byte_buckets, paid, 1, now)
        else {
            self.listener.end_with(asked.id, -i64::from(libc::EAGAIN));
            return;
        };
        let credit = bytes - paid;
        state.ahead += credit;
        state.next_alarm += 1;
        thread.wait = Some(Waiting {
            asked: *asked,
            entry,
            any: drawn.any,
            told: false,
            tickets,
            paid,
            credit,
            since: now,
            alarm: state.next_alarm,
            bytes: match amount(asked.nr, &asked.args) {
                // Limits may come while it waits.
                Amount::AtMost(bytes) => bytes,
                _ => bytes,
            },
        });
        self.look(state, asked.tid, now);
    }

    /// Before calls of a thread are let through that make its counters ambiguous, and
    /// from time to time: what it has moved so far.
    fn settle_before(
        &self,
        state: &mut State,
        asked: &Asked,
        drawn: Drawn,
        moves: Amount,
        now: u64,
    ) {
        let Some(thread) = state.threads.get_mut(&asked.tid) else {
            return;
        };
        let crowded = match moves {
            Amount::AtMost(bytes) => state.ahead + bytes > AHEAD,
            _ => false,
        };
        let ripe = |thread: &Thread, direction| {
            thread.is_ripe(direction, drawn, now)
                || (direction == IN && crowded && thread.open[IN].asked > 0)
        };
        if !ripe(thread, IN) && !ripe(thread, OUT) {
            return;
        }
        let counted = thread.counted();
        state.ahead -= thread.settle(&self.ledger, IN, counted, now);
        thread.settle(&self.ledger, OUT, counted, now);
    }

    /// Lets a thread's call go if it is due; otherwise sets an alarm.
    pub(super) fn look(&self, state: &mut State, tid: u32, now: u64) {
        let Some(thread) = state.threads.get_mut(&tid) else {
            return;
        };
        let Some(wait) = thread.wait.as_mut() else {
            return;
        };
        if self.ledger.stale(&wait.tickets) {
            self.ledger.refund(&wait.tickets, wait.paid, 1);
            let drawn = Drawn::again(&self.ledger, wait.entry, wait.any);
            match self
                .ledger
                .take(drawn.mask, drawn.byte_buckets, wait.paid, 1, now)
            {
                Some(tickets) => wait.tickets = tickets,
                None => wait.tickets = Tickets::none(),
            }
        }
        let due = self.ledger.due_last(&wait.tickets, now);
        if due.0 > now {
            let (entry, since, alarm) = (wait.entry, wait.since, wait.alarm);
            thread.note(&self.ledger, entry, since, due, now);
            let first = state
                .alarms
                .peek()
                .is_none_or(|Reverse(first)| due.0 < first.0);
            state.alarms.push(Reverse((due.0, alarm, tid)));
            if first {
                self.alarm.notify_one();
            }
            return;
        }
        if let Some(wait) = thread.wait.take() {
            self.go(state, tid, wait, now);
        }
    }

    fn go(&self, state: &mut State, tid: u32, wait: Waiting, now: u64) {
        let is_counted = !state.may_be_replaced(tid);
        let Some(thread) = state.threads.get_mut(&tid) else {
            return;
        };
        let drawn = Drawn::again(&self.ledger, wait.entry, wait.any);
        let asked = if drawn.counts_bytes() { wait.bytes } else { 0 };
        let call = &CALLS[usize::from(wait.entry)];
        let direction = if call.shape == Shape::In { IN } else { OUT };
        let settled_later = is_counted && asked > 0 && settles(wait.asked.nr) && thread.has_io();
        let mut base = 0;
        if settled_later && thread.open[direction].asked == 0 {
            // What it has moved before this call; it cannot move while it waits.
            let counted = thread.counted().unwrap_or_default();
            base = if direction == IN {
                counted.read
            } else {
                counted.written
            };
        }
        if !self.listener.go_on(wait.asked.id) {
            // A signal came first: the same call keeps what was earned for it.
            thread.wait = Some(wait);
            return;
        }
        state.ahead -= wait.credit;
        let waited = now.saturating_sub(wait.since);
        if waited > 0 {
            thread.note_end(&self.ledger, wait.entry, waited);
        }
        if settled_later {
            let paid = wait.paid.min(asked);
            thread.let_through(direction, drawn, (asked, paid), (base, now));
            if direction == IN {
                state.ahead += asked - paid;
            }
            thread.count(&self.ledger, wait.entry, 1, 0);
        } else {
            thread.count(&self.ledger, wait.entry, 1, asked);
            if asked > wait.paid {
                // The number of bytes that move will not be known.
                drawn.owe(&self.ledger, asked - wait.paid, now);
            }
        }
    }

    fn refuse(&self, asked: &Asked, why: Refused) {
        self.listener.end_with(asked.id, -i64::from(why.errno()));
        self.state().refused[why as usize] += 1;
    }

    pub(crate) fn count_refused(&self, why: Refused) {
        self.state().refused[why as usize] += 1;
    }
}

/// Whether a thread names itself or its process, by the numbers of its own namespace.
fn is_itself(asked: &Asked) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the kernel takes 32 bits")]
    let named = (asked.args[0] as u32).to_string();
    text_of(&format!("/proc/{}/status", asked.tid)).is_ok_and(|status| {
        status
            .lines()
            .filter(|line| line.starts_with("NStgid:") || line.starts_with("NSpid:"))
            .any(|line| line.split_whitespace().next_back() == Some(&named))
    })
}

/// Calls whose bytes the kernel counts by thread, however they end; `readv`, `preadv` and `preadv2`, where they are let through, too.
fn settles(nr: u32) -> bool {
    matches!(nr, 0 | 1 | 17 | 18 | 19 | 295 | 327)
}

/// Calls that we make in the program's place: what their registers say is not what they
/// move, or far from it.
fn must_be_performed(nr: u32, moves: Amount) -> bool {
    match moves {
        Amount::None => false,
        Amount::AtMost(0) if matches!(nr, 275 | 276) => false,
        Amount::InMemory => true,
        // sendto, recvfrom, sendfile, splice, tee, copy_file_range.
        Amount::AtMost(_) => matches!(nr, 40 | 44 | 45 | 275 | 276 | 326),
    }
}
