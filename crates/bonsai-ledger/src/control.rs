//! Changing the limits of a running service.

mod joined;

pub use joined::Draws;

use crate::config::CLOSING;
use crate::identity::ProcessId;
use crate::layout::{BUCKETS, LIMIT_NAME, flags};
use crate::mapping::{Ledger, LedgerError, load_text, store_text};
use crate::scope::Scope;
use crate::sync::Ordering;
use bonsai_bucket::{Curve, Split};
use bonsai_calls::{self as calls, CALLS, Call, CallId, Class, Fd, Selection, about, ring};
use rustix::fs::FlockOperation;
use std::os::fd::{AsFd, OwnedFd};

/// A rate that drops to less than this part of what it was makes its line start
/// anew: those who wait in it hold tickets with leases and pieces of the old rate,
/// which could take hours under the new one. After smaller changes everybody keeps
/// their place.
const MUCH_LESS: u64 = 2;

/// Calls that the extension decides on whatever the limits are: what a ring is has to be
/// known when a limit comes.
pub(crate) const ALWAYS_SPECIAL: [CallId; 2] = [calls::IO_URING_SETUP, calls::IO_URING_REGISTER];

/// One limit in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The call or class it is for.
    pub name: String,
    /// Whether it counts bytes; otherwise calls.
    pub bytes: bool,
    /// Thousandths of a unit per second.
    pub rate_milli: u64,
    /// Burst in units.
    pub burst: u64,
    /// The bucket it has.
    pub bucket: usize,
    /// Units that could go at once now; negative while calls wait. Of a limit per
    /// stream, those of a stream that has been idle.
    pub level: i64,
    /// Each stream has such a bucket of its own.
    pub per_stream: bool,
    /// The descriptors that it is for.
    pub scope: Scope,
    /// What went through under it: `None` for a limit on all of its calls, which is what
    /// these did.
    pub used: Option<Used>,
}

/// What went through under a limit on some descriptors, or per stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Units.
    pub units: u64,
    /// Waits imposed.
    pub waits: u64,
    /// Their sum, ns.
    pub waited_ns: u64,
}

/// One stream under a limit per stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its number: of a socket or a pipe, its inode.
    pub identity: u64,
    /// The process that used it first.
    pub process: ProcessId,
    /// Its descriptor there.
    pub fd: u32,
    /// Units that went through.
    pub used: u64,
    /// Waits imposed.
    pub waits: u64,
    /// Their sum, ns.
    pub waited_ns: u64,
    /// Units that could go at once; negative while calls wait.
    pub level: i64,
}

/// A limit as it is to be.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// How it was written, without its rate: what it is known by.
    pub name: &'a str,
    /// The calls that it is on.
    pub selection: Selection,
    /// Whether it counts bytes; otherwise calls.
    pub bytes: bool,
    /// Thousandths of a unit per second.
    pub rate_milli: u64,
    /// Burst in units, at least 1.
    pub burst: u64,
    /// Whether each stream has a bucket of its own.
    pub per_stream: bool,
    /// The descriptors that it is for.
    pub scope: Scope,
}

/// Whether calls on descriptors that do not block are refused instead of delayed, and
/// readiness withheld from those who wait for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventLoops {
    /// As soon as there is a limit on some descriptors, or on each.
    #[default]
    Auto,
    /// Under every limit.
    On,
    /// Never.
    Off,
}

/// A change of limits in preparation. Dropping it changes nothing.
#[derive(Debug)]
pub struct Editor<'a> {
    ledger: &'a Ledger,
    // Held to the end: the kernel releases it, also if this process is killed.
    _lock: OwnedFd,
    now: u64,
    next: usize,
    anew: Vec<usize>,
}

impl Ledger {
    /// Starts a change at `now` (monotonic clock, ns). One writer at a time: a
    /// second one waits for the first, or for the kernel to clear up after it, unless the ledger
    /// is one [`Ledger::without_waiting`].
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub fn edit(&self, now: u64) -> Result<Editor<'_>, LedgerError> {
        // Locks belong to the open file, so a fresh one keeps threads apart too.
        let path = self.path();
        let failed = |source| LedgerError::File {
            path: path.into(),
            what: "lock",
            source,
        };
        let again = format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&self.fd().as_fd())
        );
        let lock = rustix::fs::open(
            again,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(failed)?;
        let how = match self.waits() {
            true => FlockOperation::LockExclusive,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        rustix::fs::flock(&lock, how).map_err(|source| match source {
            rustix::io::Errno::WOULDBLOCK => LedgerError::Locked { path: path.into() },
            source => failed(source),
        })?;
        let next = self.begin_change();
        Ok(Editor {
            ledger: self,
            _lock: lock,
            now,
            next,
            anew: Vec::new(),
        })
    }

    /// The limits in force at `now`.
    #[must_use]
    pub fn limits(&self, now: u64) -> Vec<Limit> {
        self.with_config(|config| {
            let used = config.used();
            let bytes = config.byte_buckets.load(Ordering::Relaxed);
            let per_stream = config.per_stream.load(Ordering::Relaxed);
            let narrowed = config.narrowed();
            (0..BUCKETS)
                .filter(|i| used & (1 << i) != 0)
                .map(|i| {
                    let (curve, leases) = config.curves[i].load();
                    Limit {
                        name: load_text(&self.labels[i].name),
                        bytes: bytes & (1 << i) != 0,
                        rate_milli: curve.rate_milli,
                        burst: curve.burst.saturating_add(leases),
                        bucket: i,
                        level: curve.level(
                            self.lines[i]
                                .issued(self.lines[i].generation())
                                .load(Ordering::Relaxed),
                            now,
                        ),
                        per_stream: per_stream & (1 << i) != 0,
                        scope: self.labels[i].scope(),
                        used: (narrowed & (1 << i) != 0)
                            .then(|| self.used(i, per_stream & (1 << i) != 0)),
                    }
                })
                .collect()
        })
        .1
    }

    /// What went through under a limit on some descriptors, and per stream.
    fn used(&self, bucket: usize, per_stream: bool) -> Used {
        let line = &self.lines[bucket];
        let [waited_ns, waits] = &line.waited;
        let mut used = Used {
            units: line.used.load(Ordering::Relaxed),
            waits: waits.load(Ordering::Relaxed),
            waited_ns: waited_ns.load(Ordering::Relaxed),
        };
        if per_stream {
            for stream in self.stream_lines(bucket) {
                used.units = used.units.wrapping_add(stream.used());
                // A member can write anything there.
                let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Relaxed);
                used.waited_ns = used.waited_ns.saturating_add(load(&stream.waited_ns));
                used.waits = used.waits.saturating_add(load(&stream.waits));
            }
        }
        used
    }

    /// The streams that have a bucket of their own under the limit of `bucket` at `now`.
    #[must_use]
    pub fn streams(&self, bucket: usize, now: u64) -> Vec<Stream> {
        let (_, (curve, _)) = self.with_config(|config| config.curves[bucket].load());
        let lines = self.stream_lines(bucket);
        let streams = lines.map(|line| Stream {
            identity: line.identity(),
            process: ProcessId {
                pid: line.pid.load(Ordering::Relaxed),
                namespace: line.namespace.load(Ordering::Relaxed),
            },
            fd: line.fd.load(Ordering::Relaxed),
            used: line.used(),
            waits: line.waits.load(Ordering::Relaxed),
            waited_ns: line.waited_ns.load(Ordering::Relaxed),
            level: curve.level(line.issued.load(Ordering::Relaxed), now),
        });
        streams.collect()
    }
}

impl Editor<'_> {
    fn find(&self, name: &str, bytes: bool) -> Option<usize> {
        let config = &self.ledger.configs[self.next];
        let used = config.used();
        let byte_buckets = config.byte_buckets.load(Ordering::Relaxed);
        (0..BUCKETS).find(|i| {
            used & (1 << i) != 0
                && (byte_buckets & (1 << i) != 0) == bytes
                && load_text(&self.ledger.labels[*i].name) == name
        })
    }

    /// Sets a limit on all calls of a selection; see [`Editor::put`].
    ///
    /// # Errors
    /// As there.
    pub fn set(
        &mut self,
        name: &str,
        selection: Selection,
        bytes: bool,
        rate_milli: u64,
        burst: u64,
    ) -> Result<(), LedgerError> {
        self.put(&Wanted {
            name,
            selection,
            bytes,
            rate_milli,
            burst,
            per_stream: false,
            scope: Scope::default(),
        })
    }

    /// Sets a limit, replacing one of the same name and unit.
    ///
    /// # Errors
    /// The name selects nothing that has this unit, or all buckets are in use.
    pub fn put(&mut self, wanted: &Wanted<'_>) -> Result<(), LedgerError> {
        let Wanted {
            name,
            selection,
            bytes,
            rate_milli,
            burst,
            ..
        } = *wanted;
        if name.len() > LIMIT_NAME {
            return Err(LedgerError::Limit(format!(
                "{name}: a limit's name has at most {LIMIT_NAME} bytes"
            )));
        }
        if bytes && !selection.moves_bytes() {
            return Err(LedgerError::Limit(format!(
                "{name}: moves no bytes, so its limit is in calls, such as {name}=100/s"
            )));
        }
        let ledger = self.ledger;
        let config = &ledger.configs[self.next];
        let split = Split::of(burst.max(1));
        if let Some(i) = self.find(name, bytes) {
            let (curve, _) = config.curves[i].load();
            let line = &ledger.lines[i];
            line.raise(&curve, self.now);
            let retuned = curve.retune(rate_milli, split.curve, self.now);
            config.curves[i].store(&retuned, split.leases);
            if rate_milli < curve.rate_milli / MUCH_LESS || self.anew.contains(&i) {
                ledger.restart(i, &retuned, self.now);
                self.start_anew(i);
            }
            return Ok(());
        }
        // A bucket lifted in this very change still has sleepers that read it.
        let taken = config.used() | ledger.configs[self.next ^ 1].used();
        let Some(i) = (0..BUCKETS).find(|i| taken & (1 << i) == 0) else {
            return Err(LedgerError::Limit(format!(
                "{name}: all {BUCKETS} limits of the service are in use"
            )));
        };
        store_text(&ledger.labels[i].name, name);
        // The other counter: calls that draw on this bucket by an old mask, and what
        // they give back, stay behind in the one it had.
        let issued = ledger.next_counter(i).load(Ordering::Relaxed);
        config.curves[i].store(
            &Curve::empty(rate_milli, split.curve, issued, self.now),
            split.leases,
        );
        ledger.labels[i].set_scope(wanted.scope);
        let line = &ledger.lines[i];
        for word in [&line.used, &line.waited[0], &line.waited[1]] {
            word.store(0, Ordering::Relaxed);
        }
        let set_bit = |word: &crate::sync::AtomicU64, set: bool| {
            let others = word.load(Ordering::Relaxed) & !(1 << i);
            word.store(others | u64::from(set) << i, Ordering::Relaxed);
        };
        set_bit(&config.byte_buckets, bytes);
        set_bit(&config.per_stream, wanted.per_stream);
        let narrowed = wanted.per_stream || wanted.scope.is_narrow();
        let masks = if narrowed {
            &config.narrowed
        } else {
            &config.masks
        };
        for ((mask, call), id) in masks.iter().zip(CALLS).zip(0..) {
            let fits = !narrowed || is_about(wanted, id);
            if fits && selection.contains(call) && (!bytes || call.moves_bytes()) {
                mask.store(mask.load(Ordering::Relaxed) | 1 << i, Ordering::Relaxed);
            }
        }
        self.start_anew(i);
        Ok(())
    }

    /// Says whether event loops are made to wait.
    pub fn event_loops(&self, wanted: EventLoops) {
        let bits = match wanted {
            EventLoops::Auto => 0,
            EventLoops::On => flags::EVENT_LOOPS,
            EventLoops::Off => flags::NO_EVENT_LOOPS,
        };
        self.set_flags(flags::EVENT_LOOPS | flags::NO_EVENT_LOOPS, bits);
    }

    /// Changes the flags of a mask, and leaves the others, which processes of the service set.
    fn set_flags(&self, mask: u32, bits: u32) {
        let flags = &self.ledger.header.flags;
        let change = |said: u32| Some(said & !mask | bits);
        let _ = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Marks the calls that are decided on with a look at their descriptor, and with them
    /// those by which descriptors come and go, and those that wait for them.
    fn mark_special(&self) {
        let config = &self.ledger.configs[self.next];
        let narrowed = |call: usize| config.narrowed[call].load(Ordering::Relaxed) != 0;
        let limited = |call: usize| config.masks[call].load(Ordering::Relaxed) != 0;
        let any = (0..CALLS.len()).any(narrowed);
        let can_be_withheld = |call: &Call| {
            let by_class = [Class::Net, Class::Accept].iter();
            let mut by_class = by_class.map(|class| call.classes.contains(*class));
            by_class.any(|has| has) || call.fd == Fd::Other
        };
        let word = &self.ledger.header.flags;
        let said = word.load(Ordering::Relaxed);
        let needed = (0..CALLS.len()).any(|i| narrowed(i) && can_be_withheld(&CALLS[i]));
        let loops = said & flags::EVENT_LOOPS != 0 || said & flags::NO_EVENT_LOOPS == 0 && needed;
        let seen = loops || said & flags::LOOPS_SEEN != 0;
        let bit = |bit: u32, is: bool| if is { bit } else { 0 };
        let found =
            bit(flags::LOOPS_NOW, loops) | bit(flags::LOOPS_SEEN, seen) | bit(flags::NARROWED, any);
        self.set_flags(
            flags::LOOPS_NOW | flags::LOOPS_SEEN | flags::NARROWED,
            found,
        );
        let mut special = [0_u64; 2];
        for (i, call) in CALLS.iter().enumerate() {
            // Files come and go unseen, but for numbers of which something is known: those who
            // open and close find that out by themselves (`KINDS` of the interposer).
            let comes_or_goes = [Class::Socket, Class::Accept]
                .iter()
                .chain(&[Class::Connect, Class::Dup, Class::Pipe])
                .any(|class| call.classes.contains(*class))
                // A socket's port is known from then on.
                || matches!(call.name, "bind" | "close_range");
            let waits = call.classes.contains(Class::Poll) || call.name == "epoll_ctl";
            let moves = loops && limited(i) && can_be_withheld(call);
            let shares = config.grouped[i / 8].load(Ordering::Relaxed) >> (8 * (i % 8)) & 0xff != 0;
            let goes = (any || seen) && comes_or_goes;
            if narrowed(i) || shares || moves || goes || seen && waits {
                special[i / 64] |= 1 << (i % 64);
            }
        }
        for (word, value) in config.special.iter().zip(special) {
            // Before the flag is read: a process that sets it marks calls after it.
            word.swap(value, Ordering::SeqCst);
        }
        config.mark(&ALWAYS_SPECIAL);
        let limited = |i: usize| narrowed(i) || config.masks[i].load(Ordering::Relaxed) != 0;
        if (0..CALLS.len()).any(|i| ring::reaches(&CALLS[i]) && limited(i)) {
            config.mark(&[calls::IO_URING_ENTER, calls::IO_SUBMIT]);
        }
        if word.load(Ordering::SeqCst) & flags::RINGS != 0 {
            config.mark(&CLOSING);
        }
    }

    /// Makes the tickets of a bucket void with this change; once, however often it
    /// is changed in it.
    fn start_anew(&mut self, bucket: usize) {
        if !self.anew.contains(&bucket) {
            self.anew.push(bucket);
        }
    }

    /// Lifts the limits of that name, in bytes and in calls. Returns whether
    /// there were any.
    pub fn clear(&mut self, name: &str) -> bool {
        let mut found = false;
        for bytes in [true, false] {
            if let Some(i) = self.find(name, bytes) {
                found = true;
                self.ledger.lift(self.next, i, self.now);
                self.start_anew(i);
            }
        }
        found
    }

    /// Puts the change into force, wakes every sleeper, and returns the new epoch.
    pub fn commit(self) -> u32 {
        self.publish()
    }

    /// The same, and starts another change without a moment in which another writer could come.
    #[must_use]
    pub fn commit_and_go_on(self) -> Self {
        self.publish();
        Self {
            next: self.ledger.begin_change(),
            anew: Vec::new(),
            ..self
        }
    }

    fn publish(&self) -> u32 {
        self.mark_special();
        let next = self.ledger.end_change(&self.anew);
        wake(self.ledger);
        next
    }
}

/// Whether a call has what a limit on some descriptors, or per stream, looks at.
fn is_about(wanted: &Wanted<'_>, call: CallId) -> bool {
    let Scope { device, path, .. } = wanted.scope;
    let streams = !wanted.per_stream
        || CALLS[usize::from(call)].moves_bytes() && about::ends(call).one() != about::NO_ARG;
    let sockets = !wanted.scope.is_of_sockets() || about::takes_sockets(call);
    let files = device.is_none() || about::takes_files(call);
    let paths = path.is_none() || about::takes_paths(call);
    streams && sockets && files && paths
}

/// Wakes every thread of the service that sleeps in a wait.
fn wake(ledger: &Ledger) {
    let word = &ledger.header.epoch.0;
    // A failure wakes nobody; sleepers look again within a second by themselves.
    let _ = rustix::thread::futex::wake(
        word,
        rustix::thread::futex::Flags::empty(),
        i32::MAX.unsigned_abs(),
    );
}
