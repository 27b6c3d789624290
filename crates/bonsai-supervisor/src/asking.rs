//! Asking and answering in the ledger, with this system's futex.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bonsai_ledger::sync::{AtomicU32, Ordering};
use bonsai_ledger::{Futex, Ledger, ProcessId, Reason, Segment, coverage, flags, own_namespace};
use rustix::io::Errno;
use rustix::process::{PTracer, Pid, set_ptracer, test_kill_process};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use crate::engine::Engine;
use crate::enter::{EnterError, enter};
use crate::patience::Patience;

/// How long a process waits for a helper.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sleep of the keeper while the resident helper is about to take a question.
const TURN: Duration = Duration::from_micros(500);

/// How long it sleeps before it looks again by itself: whoever should wake it may
/// have been killed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Futexes that end after a time.
#[derive(Debug)]
pub(crate) struct Until(Patience);

impl Until {
    pub(crate) fn within(patience: Duration) -> Self {
        Self(Patience::of(patience))
    }
}

impl Futex for Until {
    fn wait(&mut self, word: &AtomicU32, seen: u32) -> bool {
        sleep(word, seen, LOOK_AGAIN);
        !self.0.is_over()
    }

    fn wake(&mut self, word: &AtomicU32) {
        // Who is not woken looks again by itself.
        let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
    }

    fn is_dead(&mut self, process: ProcessId) -> bool {
        has_ended(process)
    }
}

/// True for a process of this pid namespace that has ended; those of others live.
pub(crate) fn has_ended(process: ProcessId) -> bool {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    process.namespace == own_namespace()
        && pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

fn sleep(word: &AtomicU32, seen: u32, patience: Duration) {
    let time = rustix::fs::Timespec {
        tv_sec: patience.as_secs().try_into().unwrap_or(1),
        tv_nsec: patience.subsec_nanos().into(),
    };
    // Whatever ends it, the caller looks.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&time));
}

/// Makes this process the keeper of a service: whoever asks from now on is answered,
/// by [`answer`].
pub fn keep(ledger: &Ledger) {
    let keeper = &ledger.header.keeper;
    keeper.store(std::process::id(), Ordering::Release);
}

/// Processes that enter programs ([`enter`]).
pub trait Helpers {
    /// Sees to it that a helper waits for questions ([`stay`]), where that can be had. How long it gets to take one.
    fn resident(&mut self) -> Duration;

    /// Starts a helper for one question; false if there is none.
    fn start(&mut self, number: usize) -> bool;
}

/// Waits until processes of a service ask for their programs to be entered. The resident helper takes a question
/// by itself; one that it leaves, because it is busy or stopped, gets a helper of its own. Frees what processes of other pid
/// namespaces leave in the ledger.
pub fn answer(ledger: &Ledger, mut helpers: impl Helpers) -> ! {
    let header = &ledger.header;
    loop {
        let bell = header.bell.load(Ordering::Acquire);
        if ledger.has_questions() {
            let mut patience = Patience::of(helpers.resident());
            while ledger.has_questions() && !patience.is_over() {
                std::thread::sleep(TURN);
            }
        }
        for number in ledger.take_questions() {
            if !helpers.start(number)
                && let Some(asked) = ledger.asked(number)
            {
                asked.refuse(&mut Until::within(PATIENCE));
            }
        }
        ledger.reclaim_left();
        sleep(&header.bell, bell, Duration::from_secs(1));
    }
}

/// Answers questions one after the other until `is_over`, as the resident helper.
///
/// # Errors
/// A program was not entered. The caller has to end then, for the kernel sees to it what becomes of a process that is
/// still held.
pub fn stay(
    ledger: &Ledger,
    engine: &Engine,
    is_member: impl Fn(u32) -> bool,
    is_over: impl Fn() -> bool,
) -> Result<(), EnterError> {
    let header = &ledger.header;
    loop {
        let bell = header.bell.load(Ordering::Acquire);
        for number in ledger.take_questions() {
            enter(ledger, number, engine, &is_member)?;
        }
        if is_over() {
            return Ok(());
        }
        sleep(&header.bell, bell, Duration::from_secs(1));
    }
}

/// Rings the bell of a service: helpers look whether their time is over.
pub fn ring(ledger: &Ledger) {
    let bell = &ledger.header.bell;
    bell.fetch_add(1, Ordering::Release);
    let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX >> 1);
}

/// Whether programs that cannot be entered are not to run.
pub(crate) fn is_strict(segment: &Segment) -> bool {
    segment.header.flags.load(Ordering::Relaxed) & flags::STRICT != 0
}

/// Whether a program ends with whoever enters it.
pub(crate) fn ends_with_us(segment: &Segment) -> bool {
    segment.header.flags.load(Ordering::Relaxed) & flags::ENDS != 0
}

/// Says in the ledger that what a process runs is not covered.
pub(crate) fn not_covered(ledger: &Segment, process: ProcessId) {
    if let Some(entry) = ledger.claim_process(process, has_ended) {
        entry.reason.store(Reason::Static as u32, Ordering::Relaxed);
        entry.coverage.store(coverage::UNCOVERED, Ordering::Release);
    }
}

/// Has a command ask for its program to be entered. In a strict service it is not run
/// (`EPERM`) where nobody enters it.
pub fn ask_before_exec(command: &mut Command, ledger: Arc<Ledger>) {
    use std::os::unix::process::CommandExt as _;
    let namespace = own_namespace();
    let ask = move || {
        let allow = |helper: ProcessId| {
            let pid = i32::try_from(helper.pid).ok().and_then(Pid::from_raw);
            // Refused where Yama does not ask for it.
            let _ = set_ptracer(pid.map_or(PTracer::None, PTracer::ProcessID));
        };
        let pid = std::process::id();
        let (process, mut futex) = (ProcessId { pid, namespace }, Until::within(PATIENCE));
        if ledger.ask_to_enter(process, &mut futex, allow).is_none() {
            if is_strict(&ledger) {
                return Err(std::io::Error::from_raw_os_error(
                    Errno::PERM.raw_os_error(),
                ));
            }
            not_covered(&ledger, process);
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
    unsafe { command.pre_exec(ask) };
}

/// Has a command leave a note that the library or the engine is expected in its program.
pub fn expect_before_exec(command: &mut Command, ledger: Arc<Ledger>) {
    use std::os::unix::process::CommandExt as _;
    let program = std::path::Path::new(command.get_program()).file_name();
    let program = program.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let namespace = own_namespace();
    let note = move || {
        let pid = std::process::id();
        let own = ProcessId { pid, namespace };
        if let Some(entry) = ledger.claim_process(own, has_ended) {
            entry.set_program(&program);
            let now = clock_gettime(ClockId::Monotonic);
            let now = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
            entry.expected_ns.store(now.max(1), Ordering::Release);
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made: no allocation, no lock.
    unsafe { command.pre_exec(note) };
}

/// Takes such a note back where the program does not run.
pub fn expect_nothing(ledger: &Ledger) {
    for entry in &ledger.processes {
        entry.expected_ns.store(0, Ordering::Release);
    }
}

/// Wakes whoever waits for a limit, to look again.
pub fn wake(ledger: &Ledger) {
    let _ = futex::wake(&ledger.header.epoch.0, futex::Flags::empty(), u32::MAX >> 1);
}
