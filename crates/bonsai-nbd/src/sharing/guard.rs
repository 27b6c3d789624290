//! Who else may have changed an image: what has to be known before anything that the map says of it is believed.
//!
//! # Story
//! An image is *guarded* while the server holds a lease of it (see `image/lease.rs`). Only then does the map say where
//! its reads go, and only then does another image's read go to it. When another program opens the image, the kernel
//! holds that program up and sends a signal; a thread marks the image as unguarded and releases the lease. It tries to
//! have the lease back, at first after 20 ms and then each second. Then all that was known is forgotten: another program
//! may have written to the image, and times of change do not show each way of writing (a memory map on tmpfs, file handles
//! on XFS, whole seconds on old ext3).
//!
//! The operator can vouch for images instead ([`Guarding::Trust`]), where there is no lease: devices, file systems of a
//! network. Then the kernel's reports (fanotify) and times are all that there is, and neither sees every writer.
//!
//! # Invariants
//! 1. What a plan says is used only if each image in it was guarded from before the map was asked until after the bytes
//!    were read: the kernel says that the lease is held, and it was taken before the plan began.
//! 2. An image is marked as unguarded before its lease is released, and before a lease that the kernel took away is taken
//!    again. It is guarded again only after what was known of it is forgotten.
//!
//! Times are those of a [`Clock`], which goes on with each lease that is taken.

use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{io, mem};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::Pid;

use super::State;
use super::known::Known;
use crate::image::{Image, LeaseError, Watch};

/// The first wait before a lease is tried again; it doubles up to [`LAST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LAST_WAIT: Duration = Duration::from_secs(1);

/// What vouches for images that share.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Guarding {
    /// A lease; without one, an image neither leads nor is led.
    #[default]
    Lease,
    /// The operator's word; the kernel's reports of changes, and times, are looked at.
    Trust,
}

/// One image's guard.
#[derive(Debug)]
pub(super) enum Guard {
    Lease(Lease),
    /// Held while what it reports is acted on, so that the map is not believed in between. `None` where the kernel
    /// reports nothing.
    Trust(Mutex<Option<Watch>>),
}

#[derive(Debug, Default)]
pub(super) struct Lease {
    /// When it was taken; 0 while it is not held.
    since: AtomicU64,
    attempts: Mutex<Attempts>,
}

/// Leases that were taken, of all images.
#[derive(Debug, Default)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// How the lease is tried again.
#[derive(Debug, Default)]
struct Attempts {
    /// The lease was held before.
    had: bool,
    wait: Duration,
    next: Option<Instant>,
    problem: Option<String>,
}

impl Guard {
    pub(super) fn of(image: &Image, guarding: Guarding) -> Self {
        match guarding {
            Guarding::Lease => Self::Lease(Lease::default()),
            Guarding::Trust => Self::Trust(Mutex::new(Watch::new(image.file().as_fd()).ok())),
        }
    }

    /// Whether the image is guarded, as far as this process knows.
    pub(super) fn is_up(&self) -> bool {
        self.is_up_since(u64::MAX)
    }

    /// From when on it is; a lease that was taken again has another time.
    pub(super) fn since(&self) -> Option<u64> {
        match self {
            Self::Lease(lease) => match lease.since.load(Ordering::SeqCst) {
                0 => None,
                since => Some(since),
            },
            Self::Trust(_) => Some(u64::MAX),
        }
    }

    /// The same, and has been since then.
    pub(super) fn is_up_since(&self, then: u64) -> bool {
        match self {
            Self::Lease(lease) => (1..=then).contains(&lease.since.load(Ordering::SeqCst)),
            Self::Trust(_) => true,
        }
    }

    /// Whether the image has been guarded from then until now, by the kernel's word.
    pub(super) fn is_unbroken_since(&self, image: &Image, then: u64) -> bool {
        match self {
            // The kernel first: a lease that was broken and taken again before it was asked has another time by now.
            Self::Lease(_) => image.is_leased() && self.is_up_since(then),
            Self::Trust(_) => true,
        }
    }

    /// Why the image is not guarded.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Self::Lease(lease) if !self.is_up() => {
                let attempts = lease
                    .attempts
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                Some(attempts.problem.clone().unwrap_or_default())
            }
            _ => None,
        }
    }

    /// Whether the kernel reports that another process wrote (with [`Guarding::Trust`]). The report is acted on before
    /// another thread can ask.
    pub(super) fn act_on_report(&self, act: impl FnOnce()) -> bool {
        let Self::Trust(watch) = self else {
            return false;
        };
        let watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = watch.as_ref().is_some_and(Watch::is_changed);
        if changed {
            act();
        }
        changed
    }
}

impl Lease {
    /// Takes the lease, and forgets what was known of the image before.
    ///
    /// # Errors
    /// [`LeaseError`]; one that is temporary is tried again by the keeper.
    pub(super) fn take(&self, known: &Known, state: &State, owner: Pid) -> Result<(), LeaseError> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = known.image.take_lease(owner, signal()) {
            attempts.problem = Some(error.to_string());
            attempts.wait = (attempts.wait * 2).clamp(FIRST_WAIT, LAST_WAIT);
            attempts.next = error.is_temporary().then(|| Instant::now() + attempts.wait);
            return Err(error);
        }
        // Also the first time: a program may have had the image open until now, and what guests did meanwhile may be
        // on its way to the map.
        match std::mem::replace(&mut attempts.had, true) {
            true => known.forget_changed(state),
            false => known.forget(state),
        }
        attempts.wait = Duration::ZERO;
        attempts.next = None;
        self.since.store(state.clock.tick(), Ordering::SeqCst);
        Ok(())
    }

    /// Releases a lease that another program breaks.
    fn release(&self, image: &Image) {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        self.since.store(0, Ordering::SeqCst);
        image.release_lease();
        attempts.problem = Some(LeaseError::Busy.to_string());
        attempts.wait = FIRST_WAIT;
        attempts.next = Some(Instant::now() + FIRST_WAIT);
    }

    /// When the lease is to be tried again.
    fn next(&self) -> Option<Instant> {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.next
    }
}

/// The signal of broken leases: a real-time one, which is queued.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// The thread that releases broken leases, and takes them again.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    /// Its number, to which the kernel sends signals.
    owner: Pid,
    wake: Arc<OwnedFd>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LeaseKeeper {
    /// # Errors
    /// There is no thread or descriptor for it.
    pub(super) fn start(state: Arc<State>) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags)?);
        let ended = Arc::new(AtomicBool::new(false));
        let (tell, told) = sync_channel(1);
        let (own_wake, own_ended) = (Arc::clone(&wake), Arc::clone(&ended));
        let thread = thread::Builder::new().name("nbd-leases".to_owned());
        let thread = thread.spawn(move || {
            let signals = block_signals();
            let ready = signals.as_ref().map(|_| rustix::thread::gettid());
            let ready = ready.map_err(|error| io::Error::new(error.kind(), error.to_string()));
            if tell.send(ready).is_err() {
                return;
            }
            let Ok(signals) = signals else {
                return;
            };
            while !own_ended.load(Ordering::SeqCst) {
                let next = keep(&state);
                wait(&signals, &own_wake, next);
            }
        })?;
        let owner = told.recv().map_err(io::Error::other)?;
        let owner = owner.map_err(|error| {
            let why = format!("cannot wait for signals of broken leases (signalfd): {error}");
            io::Error::new(error.kind(), why)
        })?;
        Ok(Self {
            owner,
            wake,
            ended,
            thread: Some(thread),
        })
    }

    pub(super) const fn owner(&self) -> Pid {
        self.owner
    }

    /// Has the thread look at the leases that are to be tried again.
    pub(super) fn wake(&self) {
        // It cannot fail but for a counter that is full, and then the thread wakes up.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

/// Releases what is broken and takes what is due; gives the time of the next attempt.
fn keep(state: &State) -> Option<Instant> {
    let images = state.images();
    let leases = images.iter().filter_map(|known| match &known.guard {
        Guard::Lease(lease) => Some((known, lease)),
        Guard::Trust(_) => None,
    });
    let mut earliest: Option<Instant> = None;
    for (known, lease) in leases {
        if known.guard.is_up() && !known.image.is_leased() {
            lease.release(&known.image);
        }
        if lease.next().is_some_and(|at| at <= Instant::now()) {
            let owner = rustix::thread::gettid();
            // What is not granted now is tried again later.
            let _ = lease.take(known, state, owner);
        }
        earliest = earliest.into_iter().chain(lease.next()).min();
    }
    earliest
}

/// Blocks the signal of broken leases for this thread, and gives a descriptor that it comes from. SIGIO as well: it comes
/// in place of a signal for which there is no room in the queue.
fn block_signals() -> io::Result<OwnedFd> {
    // SAFETY: a set of signals is plain memory, which sigemptyset fills in.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set lives during all calls; a null pointer asks for no earlier mask.
    let (masked, signals) = unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        libc::sigaddset(&raw mut set, libc::SIGIO);
        let masked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        (masked, libc::signalfd(-1, &raw const set, flags))
    };
    if masked != 0 {
        return Err(io::Error::from_raw_os_error(masked));
    }
    if signals == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(signals) })
}

/// Waits for a signal, a wake-up or a time.
fn wait(signals: &OwnedFd, wake: &OwnedFd, until: Option<Instant>) {
    let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
    let timeout = timeout.and_then(|wait| Timespec::try_from(wait).ok());
    let mut fds = [signals, wake].map(|fd| PollFd::new(fd, PollFlags::IN));
    // However it ends, all leases are looked at.
    let _ = poll(&mut fds, timeout.as_ref());
    let mut bytes = [0; 4096];
    for fd in [signals.as_raw_fd(), wake.as_raw_fd()] {
        // SAFETY: both descriptors are open here, and the kernel writes no more than the buffer has.
        while unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
    }
}
