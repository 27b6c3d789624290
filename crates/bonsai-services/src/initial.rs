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
//! # Invariants
//! 1. A newcomer draws on the daemon's pool, or has a plain limit on each resource that is shared
//!    or has a ceiling: never neither. Without a place in the pool it begins with a part so small
//!    that [`NEWCOMERS`] of them together have no more than there is.
//! 2. What a daemon that runs no more has left is passed over.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Group, Ledger, Part, Who, flags};
use bonsai_units::Resource;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::group::member::is_alive;
use crate::group::{self, DAEMON_POOL, join_with, place};
use crate::limits::{BY_DAEMON, BY_SYSTEM, Rates, put_plain};
use crate::observe::monotonic_ns;

/// So many may come at once, without a place in a pool, before the daemon looks.
pub const NEWCOMERS: u64 = 64;

/// Services that find the pool full have so much less than that: its members have all there is until the daemon looks.
const OVERFLOW: u64 = 16;

/// Where the daemon of the whole machine has its runtime directory.
pub const SYSTEM_FOLDER: &str = "/run/bonsai";

const OWN: &str = ".initial-limits.json";
const OF_USERS: &str = ".initial-limits-of-users.json";

/// More than any such file: a thousand services with a ceiling on each resource.
const MOST_BYTES: u64 = 1 << 20;

/// Initial limits of newcomers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitialLimits {
    /// The daemon's process, and when that was started, clock ticks since the boot.
    daemon: (u32, u64),
    /// True where services share in the daemon's pool.
    pub pool: bool,
    /// The limit of a service without a place there, for each resource that is shared.
    pub part: Rates,
    /// The most that a service may have of which nothing is configured.
    pub ceiling: Rates,
    /// The same of services by name.
    pub named: BTreeMap<String, Rates>,
}

impl InitialLimits {
    /// Those of the calling process, which is the daemon: nothing is limited yet.
    #[must_use]
    pub fn of_this_daemon() -> Self {
        let pid = std::process::id();
        let process = bonsai_host::proc::process(pid).ok().flatten();
        Self {
            daemon: (pid, process.map_or(0, |process| process.start_ticks)),
            ..Self::default()
        }
    }

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

    fn is_current(&self) -> bool {
        let (pid, started) = self.daemon;
        is_alive(&Who {
            name: String::new(),
            pid,
            started,
            uid: 0,
        })
    }
}

/// Publishes what newcomers begin with, for services of the daemon's own user or of all others.
///
/// # Errors
/// The file cannot be written.
pub fn publish(folder: &Path, limits: &InitialLimits, of_users: bool) -> std::io::Result<()> {
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
    file.write_all(&serde_json::to_vec(limits)?)?;
    fs::rename(&new, &path)
}

/// Says that newcomers have no limits any more.
pub fn withdraw(folder: &Path) {
    for of_users in [false, true] {
        let _ = fs::remove_file(path(folder, of_users));
    }
}

fn path(folder: &Path, of_users: bool) -> PathBuf {
    folder.join(if of_users { OF_USERS } else { OWN })
}

/// Reads what a running daemon has published, if the file is that user's.
fn read(folder: &Path, of_users: bool, owner: u32) -> Option<InitialLimits> {
    let mut options = fs::OpenOptions::new();
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = options.read(true).custom_flags(flags.bits().cast_signed());
    let file = flags.open(path(folder, of_users)).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != owner {
        return None;
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    let limits: InitialLimits = serde_json::from_slice(&text).ok()?;
    limits.is_current().then_some(limits)
}

/// Gives a new service, which the calling process keeps and none of whose processes makes calls
/// yet, what the daemons of this user and of the machine let newcomers have.
///
/// # Errors
/// The ledger cannot be changed.
pub fn apply(service: &str, ledger: &Ledger) -> anyhow::Result<()> {
    let own = own_folder()?;
    if let Some(limits) = of_own(&own) {
        let pooled = limits.pool && join_pool(service, ledger, &limits);
        plain(service, ledger, &limits, pooled)?;
    }
    let is_elsewhere = std::env::var_os("BONSAI_RUNTIME_DIR").is_some();
    if own != Path::new(SYSTEM_FOLDER)
        && !is_elsewhere
        && let Some(limits) = read(Path::new(SYSTEM_FOLDER), true, 0)
    {
        let rates = limits.plain(service, |_| false);
        put_plain(ledger, BY_SYSTEM, rates, monotonic_ns())?;
    }
    Ok(())
}

/// Takes a service out of the pool of this user's daemon, if it is in it, for a group that a
/// person chose: what it had there it has as plain limits first. Returns whether it was.
///
/// # Errors
/// The ledger cannot be changed.
pub fn leave_pool(service: &str, ledger: &Ledger) -> anyhow::Result<bool> {
    if !is_in_pool(ledger) {
        return Ok(false);
    }
    if let Some(limits) = of_own(&own_folder()?) {
        plain(service, ledger, &limits, false)?;
    }
    group::leave(ledger)?;
    Ok(true)
}

/// True where a service is in the pool of this user's daemon.
#[must_use]
pub fn is_in_pool(ledger: &Ledger) -> bool {
    let pool = place::own(DAEMON_POOL).ok();
    ledger.membership().is_some() && ledger.group() == pool
}

/// True where this user's daemon lets services share in its pool now.
#[must_use]
pub fn is_pool_in_force() -> bool {
    let own = own_folder().ok();
    own.and_then(|own| of_own(&own))
        .is_some_and(|limits| limits.pool)
}

fn own_folder() -> anyhow::Result<PathBuf> {
    Ok(bonsai_host::runtime_dir()?)
}

fn of_own(folder: &Path) -> Option<InitialLimits> {
    read(folder, false, rustix::process::geteuid().as_raw())
}

/// Writes the plain limits of a service, but for what the pool that it is in shares.
fn plain(
    service: &str,
    ledger: &Ledger,
    limits: &InitialLimits,
    pooled: bool,
) -> anyhow::Result<()> {
    let things = group::of(ledger).filter(|_| pooled);
    let things = things.map_or_else(Vec::new, |(group, _)| group.things());
    let is_shared = |resource| things.iter().flatten().any(|t| group::is_of(t, resource));
    let rates = limits.plain(service, is_shared);
    put_plain(ledger, BY_DAEMON, rates, monotonic_ns())?;
    Ok(())
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
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn what_a_daemon_says_is_read_as_long_as_it_lives() {
        let folder = folder();
        let mut limits = InitialLimits::of_this_daemon();
        limits.part[0] = Some(7);
        publish(folder.path(), &limits, false).expect("a file");
        assert_eq!(read(folder.path(), false, uid()), Some(limits.clone()));
        assert_eq!(read(folder.path(), true, uid()), None, "of others");
        assert_eq!(
            read(folder.path(), false, uid() + 1),
            None,
            "of another user"
        );
        // The same number, and another process.
        limits.daemon.1 += 1;
        publish(folder.path(), &limits, false).expect("a file");
        assert_eq!(read(folder.path(), false, uid()), None);
        withdraw(folder.path());
        assert!(!path(folder.path(), false).exists());
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_waited_for() {
        let folder = folder();
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "{}").expect("a file");
        std::os::unix::fs::symlink(&elsewhere, path(folder.path(), false)).expect("a link");
        assert_eq!(read(folder.path(), false, uid()), None);
        fs::remove_file(path(folder.path(), false)).expect("it was there");
        let pipe = path(folder.path(), false);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a pipe");
        assert_eq!(read(folder.path(), false, uid()), None);
    }

    #[test]
    fn a_newcomer_has_a_limit_on_all_that_is_shared_or_has_a_ceiling() {
        let mut limits = InitialLimits::of_this_daemon();
        let [read, write, send] = [Resource::Read, Resource::Write, Resource::Send];
        limits.part[read.index()] = Some(100);
        limits.part[send.index()] = Some(100);
        limits.ceiling[send.index()] = Some(1000);
        let mut vod = Rates::default();
        vod[send.index()] = Some(50);
        vod[write.index()] = Some(9);
        limits.named.insert("vod".to_owned(), vod);
        let nowhere = |_: Resource| false;
        let other = limits.plain("other", nowhere);
        assert_eq!(other[read.index()], Some(100));
        assert_eq!(other[send.index()], Some(100));
        assert_eq!(other[write.index()], None);
        let vod = limits.plain("vod", nowhere);
        assert_eq!(vod[send.index()], Some(50));
        assert_eq!(vod[write.index()], Some(9));
        limits.pool = true;
        assert_eq!(
            limits.plain("other", nowhere)[read.index()],
            Some(6),
            "the pool is full"
        );
        let pooled = limits.plain("vod", |resource| resource == Resource::Send);
        assert_eq!(pooled[send.index()], None, "the pool holds that");
        assert_eq!(pooled[write.index()], Some(9));
    }

    #[test]
    fn as_many_as_may_come_at_once_have_no_more_than_there_is() {
        for others in [0, 1, 63, 64, 65, 500, 5000] {
            let part = InitialLimits::part_of(1_000_000_000, others);
            assert!(part * NEWCOMERS <= 1_000_000_000, "{others}: {part}");
            assert!(
                part * (others as u64 + 1) <= 1_000_000_000,
                "{others}: {part}"
            );
        }
        assert_eq!(
            InitialLimits::part_of(0, 3),
            1,
            "0 would stand for no limit"
        );
    }
}
