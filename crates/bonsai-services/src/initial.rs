//! The limits of a service that no daemon has looked at yet.
//!
//! A daemon looks at its services once a period. What it would give a newcomer until then stands
//! in a file beside the services, and whatever starts or attaches a program puts that into the
//! new ledger before the first call: nothing is asked for and nothing is waited for, so that a
//! daemon that is busy or hangs costs a newcomer nothing.
//!
//! ```text
//! RUNTIME/.initial-limits.json            for services of the daemon's own user
//! RUNTIME/.initial-limits-of-users.json   for those of others, of root's daemon
//! ```
//!
//! The files have a version. One without is of version 1, which has the same fields.
//!
//! # Invariants
//! 1. A newcomer draws on the daemon's pool, or has a plain limit on each resource that is shared
//!    or has a ceiling: never neither. Without a place in the pool it begins with a part so small
//!    that [`NEWCOMERS`] of them together have no more than there is.
//! 2. What a daemon that runs no more has left is passed over. The daemon holds a write lock on
//!    its file, and the kernel drops that with the daemon: so this is known also from another PID
//!    namespace, and where processes of others are hidden. A process that may only read the file
//!    cannot place such a lock. The daemon itself never opens its file again, which would drop it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Group, Ledger, Part, flags};
use bonsai_units::Resource;
use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::{Deserialize, Serialize};

use crate::group::{self, DAEMON_POOL, is_in_pool, join_with, place};
use crate::limits::{BY_DAEMON, BY_SYSTEM, Rates, plain_rates, put_plain};
use crate::observe::monotonic_ns;

/// So many may come at once, without a place in a pool, before the daemon looks.
pub const NEWCOMERS: u64 = 64;

/// Services that find the pool full have so much less than that: its members have all there is until the daemon looks.
const OVERFLOW: u64 = 16;

/// Where the daemon of the whole machine has its runtime directory.
pub const SYSTEM_FOLDER: &str = "/run/bonsai";

const OWN: &str = ".initial-limits.json";
const OF_USERS: &str = ".initial-limits-of-users.json";

/// Maximum length of such a file, in bytes: a hundred thousand services, each with ceilings of its own.
const MOST_BYTES: u64 = 16 << 20;

/// The form of such a file.
const VERSION: u32 = 1;

/// A file as it is written.
#[derive(Serialize)]
struct Published<'a> {
    version: u32,
    #[serde(flatten)]
    limits: &'a InitialLimits,
}

/// The version of a file.
#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    version: u32,
}

/// Initial limits of newcomers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialLimits {
    /// True where services share in the daemon's pool.
    pub pool: bool,
    /// The limit of a service without a place there, for each resource that is shared.
    pub part: Rates,
    /// The most that a service may have of which nothing is configured.
    pub ceiling: Rates,
    /// The same of services by name, of which something else is configured.
    pub named: BTreeMap<String, Rates>,
}

impl InitialLimits {
    /// The limit of a newcomer without a place in a pool, when `others` are there: [`NEWCOMERS`] may
    /// come at once. A power of two, so that it changes seldom.
    #[must_use]
    pub fn part_of(capacity: u64, others: usize) -> u64 {
        let others = (others as u64 + 1).max(NEWCOMERS).next_power_of_two();
        (capacity / others).max(1)
    }

    fn ceilings(&self, service: &str) -> Rates {
        self.named.get(service).copied().unwrap_or(self.ceiling)
    }

    /// The plain limits of a service outside of the pool, or of a pool that shares these.
    fn plain(&self, service: &str, pooled: impl Fn(Resource) -> bool) -> Rates {
        let ceilings = self.ceilings(service);
        let less = if self.pool { OVERFLOW } else { 1 };
        Resource::ALL.map(|resource| {
            let at = resource.index();
            if pooled(resource) {
                return None;
            }
            let part = self.part[at].map(|part| (part / less).max(1));
            match (part, ceilings[at]) {
                (Some(part), Some(ceiling)) => Some(part.min(ceiling)),
                (part, ceiling) => part.or(ceiling),
            }
        })
    }

    /// What of the plain limits of a service is configured, and no part for the time up to the first look.
    fn lasting(&self, service: &str, written: Rates) -> Rates {
        let ceilings = self.ceilings(service);
        Resource::ALL.map(|resource| {
            let at = resource.index();
            written[at].and(ceilings[at])
        })
    }
}

/// A published file, in force for as long as this value lives.
#[derive(Debug)]
pub struct Publication {
    path: PathBuf,
    /// Holds the lock.
    file: File,
}

impl Publication {
    /// True where the file is still the one that is read: it may have been removed or replaced.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let number = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let there = fs::symlink_metadata(&self.path).map(number).ok();
        there.is_some() && there == self.file.metadata().map(number).ok()
    }

    /// Removes the file, unless it is that of another daemon.
    pub fn withdraw(self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Publishes what newcomers begin with, for services of the daemon's own user or of all others.
///
/// # Errors
/// The file cannot be written or locked, or would be longer than what is read.
pub fn publish(folder: &Path, limits: &InitialLimits, of_users: bool) -> io::Result<Publication> {
    let version = VERSION;
    let text = serde_json::to_vec(&Published { version, limits })?;
    if text.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!(
            "{} bytes are more than the {MOST_BYTES} that are read: configure fewer services with \
             ceilings of their own, and more by classes",
            text.len()
        )));
    }
    let path = path(folder, of_users);
    let new = path.with_extension("new");
    // Left by a daemon that was killed; whatever it is, it is not followed.
    let _ = fs::remove_file(&new);
    let mode = if of_users { 0o644 } else { 0o600 };
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&new)?;
    // The umask may have taken something from it.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(&text)?;
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    fs::rename(&new, &path)?;
    Ok(Publication { path, file })
}

fn path(folder: &Path, of_users: bool) -> PathBuf {
    folder.join(if of_users { OF_USERS } else { OWN })
}

/// Reads what a running daemon has published, if the file is that user's.
///
/// # Errors
/// A daemon runs, and what it has published cannot be used: why.
fn read(folder: &Path, of_users: bool, owner: u32) -> Result<Option<InitialLimits>, String> {
    let Some((text, file)) = read_file(folder, of_users, owner) else {
        return Ok(None);
    };
    if !is_held(&file) {
        return Ok(None);
    }
    parsed(&text)
        .map(Some)
        .map_err(|why| format!("{}: {why}", path(folder, of_users).display()))
}

/// The text of a file, also of a daemon that may run no more.
fn read_file(folder: &Path, of_users: bool, owner: u32) -> Option<(Vec<u8>, File)> {
    let mut options = fs::OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = options.read(true).custom_flags(flags.bits().cast_signed());
    let file = flags.open(path(folder, of_users)).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != owner {
        return None;
    }
    let mut text = Vec::new();
    (&file).take(MOST_BYTES).read_to_end(&mut text).ok()?;
    Some((text, file))
}

/// The limits in a file.
fn parsed(text: &[u8]) -> Result<InitialLimits, String> {
    let damaged = |error: serde_json::Error| format!("cannot be read: {error}");
    let Version { version } = serde_json::from_slice(text).map_err(damaged)?;
    if version > VERSION {
        return Err(format!(
            "is of version {version}, and this program knows up to {VERSION}: use the program of the daemon"
        ));
    }
    serde_json::from_slice(text).map_err(damaged)
}

/// True where another process holds a write lock on a file. Only asked: no lock is placed, also for no moment.
fn is_held(file: &File) -> bool {
    matches!(
        fcntl_getlk(file, &Flock::from(FlockType::ReadLock)),
        Ok(Some(_))
    )
}

/// Initial limits that were put into force.
#[derive(Debug, Default)]
pub struct Applied {
    /// Limits for the time up to the daemon's first look, which are to be lifted if that never comes.
    pub provisional: Vec<Provisional>,
    /// Why limits of a daemon that runs are not among them.
    pub missing: Vec<String>,
}

/// Gives a new service, which the calling process keeps and none of whose processes makes calls
/// yet, what the daemons of this user and of the machine let newcomers have.
///
/// # Errors
/// The ledger cannot be changed.
pub fn apply(service: &str, ledger: &Ledger) -> anyhow::Result<Applied> {
    let mut applied = Applied::default();
    let own = own_folder()?;
    let mut of = |read: Result<Option<InitialLimits>, String>| {
        read.unwrap_or_else(|why| {
            applied.missing.push(why);
            None
        })
    };
    let is_elsewhere = std::env::var_os("BONSAI_RUNTIME_DIR").is_some();
    let system = Path::new(SYSTEM_FOLDER);
    let of_own = of(of_own(&own));
    let of_system = (own != system && !is_elsewhere)
        .then(|| of(read(system, true, 0)))
        .flatten();
    if let Some(limits) = of_own {
        let pooled = limits.pool && join_pool(service, ledger, &limits);
        let written = plain(service, ledger, &limits, pooled)?;
        applied.provisional.extend(Provisional::new(
            BY_DAEMON,
            own,
            (service, &limits),
            written,
        ));
    }
    if let Some(limits) = of_system {
        let written = limits.plain(service, |_| false);
        put_plain(ledger, BY_SYSTEM, written, monotonic_ns())?;
        let folder = system.to_owned();
        applied.provisional.extend(Provisional::new(
            BY_SYSTEM,
            folder,
            (service, &limits),
            written,
        ));
    }
    Ok(applied)
}

/// Limits of a newcomer up to the daemon's first look. If the daemon is killed before that, a small part of what the machine has
/// would be all that the service gets for as long as no daemon runs; a ceiling that is configured stays, as all limits of a
/// daemon that was killed do.
#[derive(Debug)]
pub struct Provisional {
    /// See [`put_plain`].
    whose: &'static str,
    folder: PathBuf,
    written: Rates,
    /// Limits without the daemon.
    lasting: Rates,
}

impl Provisional {
    /// The limits that were written; `None` where all of them are configured.
    fn new(
        whose: &'static str,
        folder: PathBuf,
        (service, limits): (&str, &InitialLimits),
        written: Rates,
    ) -> Option<Self> {
        let lasting = limits.lasting(service, written);
        (written != lasting).then_some(Self {
            whose,
            folder,
            written,
            lasting,
        })
    }

    /// Lifts the limits if the daemon runs no more and has not looked. Returns true where nothing
    /// is left to do.
    ///
    /// # Errors
    /// The ledger cannot be changed.
    pub fn look(&self, ledger: &Ledger) -> anyhow::Result<bool> {
        let now_ns = monotonic_ns();
        if plain_rates(ledger, self.whose, now_ns) != self.written {
            return Ok(true);
        }
        let is_there = match self.whose {
            BY_DAEMON => of_own(&self.folder),
            _ => read(&self.folder, true, 0),
        };
        // A daemon that runs will look, whatever it has published since.
        if !matches!(is_there, Ok(None)) {
            return Ok(false);
        }
        put_plain(ledger, self.whose, self.lasting, now_ns)?;
        Ok(true)
    }
}

/// Makes a service a member of a group that a person chose, by `join` ([`group::join`], [`group::join_at_start`]): the
/// service leaves the pool of this user's daemon by that, and gets what it had there as plain limits before, for the time up to the
/// daemon's next look. Returns what `join` says, and these.
///
/// If `join` fails, it is in the pool as before, or will be.
///
/// # Errors
/// The ledger cannot be changed.
pub fn join_out_of_pool<T>(
    service: &str,
    ledger: &Ledger,
    join: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(anyhow::Result<T>, Vec<Provisional>)> {
    let folder = own_folder()?;
    // In no group so far: a daemon may take it into its pool at any moment up to the joining.
    let is_poolable = ledger.membership().is_none() || is_in_pool(ledger);
    let mut provisional = Vec::new();
    if is_poolable
        && let Ok(Some(limits)) = of_own(&folder)
        && limits.pool
    {
        let written = plain(service, ledger, &limits, false)?;
        provisional.extend(Provisional::new(
            BY_DAEMON,
            folder,
            (service, &limits),
            written,
        ));
    }
    let joined = join();
    if joined.is_err() && is_poolable {
        // The daemon does the same at its next look.
        provisional = apply(service, ledger)
            .map(|applied| applied.provisional)
            .unwrap_or_default();
    }
    Ok((joined, provisional))
}

/// True where this user's daemon lets services share in its pool now.
#[must_use]
pub fn is_pool_in_force() -> bool {
    let own = own_folder().ok();
    own.and_then(|own| of_own(&own).ok().flatten())
        .is_some_and(|limits| limits.pool)
}

fn own_folder() -> anyhow::Result<PathBuf> {
    Ok(bonsai_host::runtime_dir()?)
}

fn of_own(folder: &Path) -> Result<Option<InitialLimits>, String> {
    read(folder, false, rustix::process::geteuid().as_raw())
}

/// Writes the plain limits of a service, but for what the pool that it is in shares.
fn plain(
    service: &str,
    ledger: &Ledger,
    limits: &InitialLimits,
    pooled: bool,
) -> anyhow::Result<Rates> {
    let things = group::of(ledger).filter(|_| pooled);
    let things = things.map_or_else(Vec::new, |(group, _)| group.things());
    let is_shared = |resource| things.iter().flatten().any(|t| group::is_of(t, resource));
    let rates = limits.plain(service, is_shared);
    put_plain(ledger, BY_DAEMON, rates, monotonic_ns())?;
    Ok(rates)
}

/// Makes a service a member of the pool, with its ceilings, and otherwise on the terms of one that
/// asks for nothing; whether it is one now. The daemon may have been quicker.
fn join_pool(service: &str, ledger: &Ledger, limits: &InitialLimits) -> bool {
    if is_in_pool(ledger) {
        return true;
    }
    let is_held = ledger.header.flags.load(Ordering::Relaxed) & (flags::ENFORCED | flags::REQUESTS);
    if is_held != 0 || ledger.membership().is_some() {
        return false;
    }
    let Some(pool) = place::own(DAEMON_POOL)
        .ok()
        .and_then(|path| Group::open(&path).ok())
    else {
        return false;
    };
    let ceilings = limits.ceilings(service);
    let joined = join_with(ledger, service, &pool, |thing| {
        let mut all = Resource::ALL.into_iter();
        let resource = all.find(|resource| group::is_of(thing, *resource));
        let ceiling = resource.and_then(|resource| ceilings[resource.index()]);
        Part {
            ceiling_milli: ceiling.unwrap_or(0),
            ..Part::PLAIN
        }
    });
    joined.is_ok() || is_in_pool(ledger)
}

#[cfg(test)]
mod tests;
