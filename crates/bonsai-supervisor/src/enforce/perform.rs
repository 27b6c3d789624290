//! Calls that the supervisor makes in the program's place: those whose amount stands in
//! memory, and those whose registers say much more than they move.
//!
//! # How a job goes
//! What the call points to is copied, its descriptor becomes one of ours, and from then on
//! nothing of it can change. Bytes that go out are paid for piece by piece; bytes that
//! come in when they are here, one piece at a time for the whole service. An attempt never
//! waits; a job that has to is parked, and there is no thread for it meanwhile.
//!
//! # Signals
//! A thread that is interrupted asks again. While its job has done nothing, it is dropped
//! or taken over by the same call; what was done is its answer.

mod address;
mod attempt;
mod control;
mod job;
mod local;
mod park;
mod payment;
mod plan;
mod refused;
mod transfer;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bonsai_calls::CallId;
use rustix::fs::FileType;

use self::attempt::{Came, Ends};
pub(crate) use self::job::{Handle, time_limit};
use self::job::{Job, LEAST};
use self::payment::{Payment, Turn};
use self::plan::Plan;
use super::drawn::Drawn;
use super::filter::{self, Refused};
use super::listener::Asked;
use super::pending;
use super::rights::{self, Rights};
use super::serve::{Enforcer, monotonic_ns};
use super::threads::process;

/// Threads that make calls which may wait for a device: a call that hangs keeps one.
const WORKERS: usize = 256;

/// Parked jobs are looked at so often: their thread may have gone, or be about to take a signal.
const LOOK: Duration = Duration::from_millis(20);

/// What is due is kept so long for a descriptor that is not ready yet. Then it goes back:
/// whoever waits with what is due would be over the rate when all of them go on.
const KEPT_NS: u64 = 10_000_000;

/// A thread that a signal has interrupted, and that asks again within this, keeps its place
/// in line: where signals come often, it would never get to the front otherwise.
const AWAY_NS: u64 = 250_000_000;

/// Whose turn it is while it is away is looked for so often.
const AWAY_LOOK_NS: u64 = 200_000;

/// Whoever has to wait sleeps at least so long.
const LEAST_WAIT_NS: u64 = 50_000;

/// What is next for a job.
enum Next {
    End(i64),
    /// Until an instant.
    At(u64),
    /// Until a descriptor is ready.
    Ready(RawFd, i16),
    /// By a worker.
    Elsewhere,
}

#[derive(Debug)]
struct Parked {
    job: Job,
    at: u64,
    fd: Option<(RawFd, i16)>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    workers: usize,
}

/// Who makes the calls.
#[derive(Debug)]
pub(crate) struct Performers {
    queue: Mutex<Queue>,
    ready: Condvar,
    parked: Mutex<Vec<Parked>>,
    /// Jobs that are parked no more, and not tried yet.
    due: Mutex<VecDeque<Job>>,
    bell: OwnedFd,
    /// Taken from the moment at which nothing is owed until what came in is charged.
    turn: Turn,
    /// The same of those who may wait: bytes that come in before they are charged, at most.
    ahead: AtomicU64,
    /// Bytes of copies that are longer than a piece.
    large: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Performers {
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self {
            queue: Mutex::default(),
            ready: Condvar::new(),
            parked: Mutex::default(),
            due: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            turn: Turn::default(),
            ahead: AtomicU64::new(0),
            large: AtomicU64::new(0),
        })
    }

    /// Has parked jobs looked at.
    pub(crate) fn ring(&self) {
        // A full counter rings as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_le_bytes());
    }

    /// Makes a call in a thread's place.
    pub(crate) fn take(own: &Arc<Enforcer>, asked: Asked, first: CallId) {
        let now = monotonic_ns();
        let handle = Arc::new(Handle {
            nr: asked.nr,
            args: asked.args,
            id: AtomicU64::new(asked.id),
            cancelled: AtomicBool::new(false),
            is_timed: AtomicBool::new(false),
            told: AtomicBool::new(false),
        });
        let (pid, kept, rights) = match own.state().threads.get_mut(&asked.tid) {
            Some(thread) => {
                thread.job = Some(Arc::clone(&handle));
                (thread.pid, thread.process(), thread.rights.clone())
            }
            None => (asked.tid, None, None),
        };
        let rights = match rights {
            None if rights::are_more() => match own.learn_rights(asked.tid) {
                Ok(rights) => Some(rights),
                Err(error) => return own.answer_error(&asked, &handle, &error),
            },
            rights => rights,
        };
        let make = |process| {
            let mut made = Job::new(asked, Arc::clone(&handle), (pid, process), first, now)?;
            made.rights.clone_from(&rights);
            Ok(made)
        };
        let made = match kept.map(&make) {
            Some(made) if !is_gone(&made) => made,
            // None is kept, or of a thread that had this number before.
            _ => process(asked.tid, pid).and_then(|process| {
                let process = Arc::new(process);
                let mut state = own.state();
                if state.kept < own.room {
                    state.keep_process(asked.tid, &process);
                }
                drop(state);
                make(process)
            }),
        };
        match made {
            Err(error) => own.answer_error(&asked, &handle, &error),
            Ok(job) if job.is_unfit() => {
                if let Some(thread) = own.state().threads.get_mut(&asked.tid) {
                    thread.job = None;
                }
                let (entry, total) = (job.entry, job.total());
                drop(job);
                own.admit_as_any(&asked, entry, total);
            }
            Ok(job) => own.performers.dispatch(own, job),
        }
    }

    /// What waits for a device is made by a worker, everything else here: that is known
    /// once it was tried. Long pieces of files are for workers at once.
    fn dispatch(&self, own: &Arc<Enforcer>, mut job: Job) {
        let streams = matches!(job.kind, FileType::Socket | FileType::Fifo);
        let short = job.plan.len() <= LEAST;
        if job.other.is_none() && !job.slow && (streams || short) {
            let next = own.step(&mut job);
            if !matches!(next, Next::Elsewhere) {
                return self.go_on(own, job, &next);
            }
            job.slow = true;
        }
        let mut queue = locked(&self.queue);
        queue.jobs.push_back(job);
        if queue.idle == 0 && queue.workers < WORKERS {
            let own = Arc::clone(own);
            let worker = std::thread::Builder::new().name("worker".to_owned());
            // Without one now, those there are come to it.
            if worker.spawn(move || own.performers.work(&own)).is_ok() {
                queue.workers += 1;
            }
        }
        drop(queue);
        self.ready.notify_one();
    }

    fn go_on(&self, own: &Arc<Enforcer>, job: Job, next: &Next) {
        let (at, fd) = match *next {
            Next::End(result) => return own.end(job, result),
            Next::At(at) => (at, None),
            Next::Ready(fd, events) => (job.deadline, Some((fd, events))),
            // Of a worker, who tries everything.
            Next::Elsewhere => (0, None),
        };
        locked(&self.parked).push(Parked { job, at, fd });
        self.ring();
    }

    fn work(&self, own: &Arc<Enforcer>) {
        loop {
            let mut queue = locked(&self.queue);
            queue.idle += 1;
            while queue.jobs.is_empty() {
                queue = self
                    .ready
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            queue.idle -= 1;
            let job = queue.jobs.pop_front();
            drop(queue);
            if let Some(mut job) = job {
                job.slow = true;
                job.shorten();
                let next = own.step(&mut job);
                self.go_on(own, job, &next);
            }
        }
    }
}

fn is_file(kind: FileType) -> bool {
    matches!(kind, FileType::RegularFile | FileType::BlockDevice)
}

/// Whether a job could not be made because its thread is not who is kept.
fn is_gone(made: &io::Result<Job>) -> bool {
    let error = made.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(error, Some(libc::ESRCH | libc::EBADF))
}

impl Enforcer {
    /// Whose rights a thread's calls have; it waits for an answer, and cannot change them meanwhile.
    fn learn_rights(&self, tid: u32) -> io::Result<Arc<Rights>> {
        let rights = Rights::of(tid)?;
        if rights.names.are_final()
            && let Some(thread) = self.state().threads.get_mut(&tid)
        {
            thread.rights = Some(Arc::clone(&rights));
        }
        Ok(rights)
    }

    /// Whether nobody waits for a parked job. If its thread is to take a signal, it is let go for that, unless something was done
    /// for it already: that is its answer then.
    fn is_left(&self, job: &Job) -> bool {
        let id = job.handle.id.load(Ordering::Relaxed);
        if !self.listener.is_valid(id) {
            return true;
        }
        let answer = match filter::waits_killable() {
            true => pending::answer(&job.asked, job.pid, || job.entry),
            false => None,
        };
        let Some(answer) = answer else {
            return false;
        };
        if job.has_moved() {
            job.handle.cancelled.store(true, Ordering::Relaxed);
            return true;
        }
        self.listener.end_with(id, answer)
    }

    /// Brings a job on as far as it gets without waiting.
    fn step(&self, job: &mut Job) -> Next {
        let next = self.step_on(job);
        if matches!(next, Next::End(_)) {
            self.give_back(job);
        }
        next
    }

    fn step_on(&self, job: &mut Job) -> Next {
        loop {
            let now = monotonic_ns();
            if let Some(since) = job.limited_since.take() {
                job.waited += now.saturating_sub(since);
            }
            // Bytes that go out are looked after once they are copied.
            let is_new = job.paid.is_none() && job.done == 0 && job.messages == 0;
            let later = is_new && matches!(job.plan, Plan::Write { .. } | Plan::Send(_));
            if job.handle.cancelled.load(Ordering::Relaxed)
                || !later
                    && !self
                        .listener
                        .is_valid(job.handle.id.load(Ordering::Relaxed))
            {
                return self.interrupted(job, now);
            }
            (job.away_since, job.turn_since) = (None, None);
            let drawn = Drawn::by(&self.ledger, job.entry);
            let is_in = job.plan.is_in();
            let piece = match &job.paid {
                Some(paid) if paid.bytes > 0 => paid.bytes,
                _ => job.piece(self, drawn),
            };
            let payment = self.performers.payment(job, drawn, piece);
            let owes = is_in && !matches!(payment, Payment::First);
            let is_unpaid = || job.paid.as_ref().is_some_and(|paid| paid.bytes == 0);
            if is_in && !owes && piece > 0 && drawn.counts_bytes() && is_unpaid() {
                self.give_back(job);
            }
            if let Some(next) = self.pay(job, drawn, if owes { 0 } else { piece }, now) {
                return next;
            }
            if owes && let Some(line) = self.ledger.line(drawn.mask & drawn.byte_buckets, now) {
                // Others have come in since our tickets were due, which are for nothing.
                job.limited_since = Some(now);
                return Next::At(now + line.max(LEAST_WAIT_NS));
            }
            let (piece, _copy) = self.performers.copy(piece);
            match self.attempt(job, piece) {
                Ok(Came::Bytes(moved)) => {
                    self.use_up(job, drawn, (moved, owes), now);
                    let more = moved > 0 && moved == piece && job.done < job.plan.len();
                    let rest = moved > 0 && !is_in && job.done < job.plan.len() && job.blocks();
                    let cut = !job.slow && moved > 0 && moved < piece && is_file(job.kind);
                    if cut && job.done < job.plan.len() {
                        // What went without waiting; the rest waits, or there is none.
                        return Next::Elsewhere;
                    }
                    let once =
                        job.whole || job.other.is_some() || matches!(job.plan, Plan::Receive(_));
                    let is_left = moved > 0 && job.done < job.plan.len();
                    if !once && (more || rest) || is_left && job.waits_for_all() {
                        continue;
                    }
                    if !Self::next_of_list(job) {
                        return Next::End(Self::result(job));
                    }
                }
                Ok(Came::Elsewhere) => return Next::Elsewhere,
                Ok(Came::NotYet(fd, events)) => {
                    let any = job.done > 0 || job.messages > 0;
                    let now_only = matches!(&job.plan, Plan::Receive(message)
                        if message.flags & libc::MSG_DONTWAIT != 0);
                    let partly = job.done > 0 && is_in && !job.waits_for_all();
                    if any && (partly || !job.blocks() || now_only) {
                        return Next::End(Self::result(job));
                    }
                    if !job.blocks() || now >= job.deadline {
                        return Next::End(-i64::from(libc::EAGAIN));
                    }
                    return Next::Ready(fd, events);
                }
                // A signal came in the middle: whether its thread is away shows above.
                Err(error) if error.kind() == io::ErrorKind::Interrupted && !job.has_moved() => {}
                Err(error) => return Next::End(self.failure(job, &error)),
            }
        }
    }

    /// Nobody waits for a job: it ends, unless its thread may soon be back for it.
    fn interrupted(&self, job: &mut Job, now: u64) -> Next {
        let away_since = *job.away_since.get_or_insert(now);
        let due = job
            .paid
            .as_ref()
            .map_or(0, |paid| self.ledger.due_last(&paid.tickets, now).0);
        let (next, end) = if due > now {
            (due, away_since + AWAY_NS)
        } else {
            let turn_since = *job.turn_since.get_or_insert(now);
            (now + AWAY_LOOK_NS, turn_since + KEPT_NS)
        };
        if now >= end || job.has_moved() || job.handle.cancelled.load(Ordering::Relaxed) {
            let error = io::Error::from_raw_os_error(libc::EINTR);
            return Next::End(self.failure(job, &error));
        }
        job.limited_since = (due > now).then_some(now);
        Next::At(next)
    }

    /// What a call returns: bytes, or messages.
    fn result(job: &Job) -> i64 {
        match job.asked.nr {
            // A stream may have taken a part of the last.
            299 | 307 => (job.messages + u64::from(job.done > 0)).cast_signed(),
            _ => job.done.cast_signed(),
        }
    }

    /// Goes on with the next message of a list, if there is one.
    fn next_of_list(job: &mut Job) -> bool {
        if !matches!(job.asked.nr, 299 | 307) || matches!(job.plan, Plan::Nothing) {
            return false;
        }
        job.messages += 1;
        job.before += job.done;
        job.done = 0;
        match plan::next_message(&job.asked, job.messages) {
            Some(Ok(plan)) => {
                job.plan = plan;
                // Each is a call of its own to whoever counts messages; this is one call.
                true
            }
            // What cannot be read is the next call's error.
            Some(Err(_)) | None => false,
        }
    }

    fn failure(&self, job: &Job, error: &io::Error) -> i64 {
        if job.has_moved() {
            return Self::result(job);
        }
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        let sends = matches!(
            job.plan,
            Plan::Write { .. } | Plan::Send(_) | Plan::Transfer { .. }
        );
        if code == libc::EPIPE && sends && !job.no_signal {
            // As the call would have done.
            // SAFETY: plain numbers.
            unsafe { libc::syscall(libc::SYS_tgkill, job.pid, job.asked.tid, libc::SIGPIPE) };
        }
        let is_confined = code == libc::EPERM && self.confined.load(Ordering::Relaxed);
        if (code == libc::EXDEV || is_confined)
            && matches!(&job.plan, Plan::Send(m) if address::is_named(&m.name))
        {
            self.count_refused(Refused::Elsewhere);
        }
        if code == libc::EOPNOTSUPP && matches!(&job.plan, Plan::Send(m) if !m.control.is_empty()) {
            self.count_refused(Refused::ControlData);
        }
        -i64::from(code)
    }

    fn attempt(&self, job: &Job, piece: u64) -> io::Result<Came> {
        let give = |ours: &OwnedFd, closes: bool| {
            self.listener
                .give(job.handle.id.load(Ordering::Relaxed), ours, closes)
        };
        let ends = Ends {
            tid: job.asked.tid,
            pid: job.pid,
            nr: job.asked.nr,
            args: job.asked.args,
            fd: &job.fd,
            other: job.other.as_ref(),
            process: &job.process,
            rights: job.rights.as_ref(),
            is_unix: job.domain == libc::AF_UNIX,
            is_confined: self.confined.load(Ordering::Relaxed),
            kind: job.kind,
            other_kind: job.other_kind,
            hurries: !job.slow,
            waits: &|| {
                self.listener
                    .is_valid(job.handle.id.load(Ordering::Relaxed))
            },
            give: &give,
        };
        ends.attempt(&job.plan, job.done, piece)
    }

    /// Answers a call, after the supervisor's descriptors for it are closed: once the thread closes its own, an address, a lock or a
    /// program's file must be free, and the other end of a pipe must see the end.
    fn end(&self, job: Job, result: i64) {
        let job = job.closed();
        let mut state = self.state();
        let delivered = self
            .listener
            .end_with(job.handle.id.load(Ordering::Relaxed), result);
        let Some(thread) = state.threads.get_mut(&job.asked.tid) else {
            return;
        };
        thread.count(&self.ledger, job.entry, 1, job.moved);
        if job.waited > 0 {
            thread.note_end(&self.ledger, job.entry, job.waited);
        }
        if thread
            .job
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, &job.handle))
        {
            thread.job = None;
        }
        if !delivered && job.has_moved {
            thread.done = Some((job.asked.nr, job.asked.args, result));
        }
    }

    fn answer_error(&self, asked: &Asked, handle: &Arc<Handle>, error: &io::Error) {
        let mut state = self.state();
        if let Some(thread) = state.threads.get_mut(&asked.tid) {
            thread.job = None;
        }
        drop(state);
        let code = match error.raw_os_error() {
            // It may not be looked into, so it has to do without.
            Some(libc::EPERM | libc::EACCES) => {
                self.count_refused(Refused::Closed);
                libc::EPERM
            }
            code => code.unwrap_or(libc::EIO),
        };
        self.listener
            .end_with(handle.id.load(Ordering::Relaxed), -i64::from(code));
    }
}
