//! Services of other users, for a daemon of root.
//!
//! # Trust
//! All that is below a user's folder is written by that user, and may change at any instant. So
//! nothing is opened by a path through it: each step is opened in the step before, follows no
//! link, and has to belong to that user; whose something is, is said by the kernel of what was
//! opened, never by what is written in it. A user's process can still keep whoever opens a file
//! of theirs waiting (a lock, a file system of their own): look from a thread that nobody waits
//! for. A ledger that its owner cuts short: [`bonsai_host::bus`].

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bonsai_ledger::{Ledger, LedgerError};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, statat};
use rustix::io::Errno;

use crate::service::{Enforced, Service, check_name};

/// Stands for the number of a user in a place.
pub const UID: &str = "{uid}";

/// More than any `enforced.json`.
const MOST_JSON: u64 = 1 << 20;

/// What is held of a folder at a time, at most.
pub const MOST_HELD: usize = 256;

/// The runtime directory of a user.
#[derive(Debug)]
pub struct Home {
    uid: u32,
    path: PathBuf,
    folder: OwnedFd,
    identity: (u64, u64),
}

/// Whether that is a place that has the number of a user in it once, and is absolute.
#[must_use]
pub fn is_place(place: &Path) -> bool {
    let text = place.to_string_lossy();
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    place.is_absolute() && text.matches(UID).count() == 1 && place.components().all(plain)
}

/// The runtime directories that there are at a place such as `/run/user/{uid}/bonsai`, of
/// others than `except`. What belongs to somebody else than its path says is passed over.
#[must_use]
pub fn homes(place: &Path, except: &Path) -> Vec<Home> {
    let mut root = PathBuf::new();
    let mut parts = place.components();
    let pattern = loop {
        match parts.next() {
            Some(part) if part.as_os_str().to_string_lossy().contains(UID) => break part,
            Some(part) => root.push(part),
            None => return Vec::new(),
        }
    };
    let pattern = pattern.as_os_str().to_string_lossy().into_owned();
    let below = parts.as_path();
    let Ok(entries) = fs::read_dir(&root) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let homes = names.filter_map(|name| {
        let uid = number(&pattern, &name)?;
        let path = root.join(&name).join(below);
        (path != except).then(|| Home::open(uid, &root, &name, below).ok())?
    });
    homes.collect()
}

/// The number that a name has where the pattern has [`UID`].
fn number(pattern: &str, name: &str) -> Option<u32> {
    let (before, after) = pattern.split_once(UID)?;
    let digits = name.strip_prefix(before)?.strip_suffix(after)?;
    let uid: u32 = digits.parse().ok()?;
    // 007 and +7 are others than 7.
    (uid.to_string() == digits).then_some(uid)
}

fn folder_in(folder: impl AsFd, name: impl rustix::path::Arg, uid: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(folder, name, flags, Mode::empty())?;
    let stat = fstat(&opened)?;
    if stat.st_uid != uid || stat.st_mode & 0o022 != 0 {
        return Err(Errno::PERM);
    }
    Ok(opened)
}

impl Home {
    fn open(uid: u32, root: &Path, name: &str, below: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = rustix::fs::open(root, flags, Mode::empty())?;
        let mut folder = folder_in(&at, name, uid)?;
        for part in below.components() {
            folder = folder_in(&folder, part.as_os_str(), uid)?;
        }
        let stat = fstat(&folder)?;
        Ok(Self {
            uid,
            path: root.join(name).join(below),
            folder,
            identity: (stat.st_dev, stat.st_ino),
        })
    }

    /// Whose it is.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Device and inode: another one in its place has others.
    #[must_use]
    pub const fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// How many folders there are in it at most.
    #[must_use]
    pub fn folders(&self) -> u64 {
        let links = fstat(&self.folder).map_or(0, |stat| stat.st_nlink);
        #[allow(clippy::useless_conversion, reason = "u32 on some machines")]
        u64::from(links).saturating_sub(2)
    }

    /// When a service in it was last made or removed: seconds, and their ns.
    ///
    /// # Errors
    /// What the system says.
    pub fn changed(&self) -> Result<(i64, i64), Errno> {
        let stat = fstat(&self.folder)?;
        let ns = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
        Ok((stat.st_mtime, ns))
    }

    /// The names of the services in it, in order; of those that have a folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn names(&self) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_str().unwrap_or_default();
            if check_name(name).is_ok() && self.has_folder(name) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// What there is in a folder below it, by name: held and not opened (`O_PATH`), at most [`MOST_HELD`]. Nothing
    /// on the way is a link, or another user's.
    ///
    /// # Errors
    /// What the system says, also where there is no such folder.
    pub fn sockets(&self, folder: &str) -> Result<Vec<(String, OwnedFd)>, Errno> {
        let folder = folder_in(&self.folder, folder, self.uid)?;
        let mut sockets = Vec::new();
        for entry in Dir::read_from(&folder)?.take(MOST_HELD) {
            let entry = entry?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Ok(held) = openat(&folder, entry.file_name(), flags, Mode::empty()) {
                sockets.push((name, held));
            }
        }
        Ok(sockets)
    }

    /// Whether a service of that name has a folder in it.
    #[must_use]
    pub fn has_folder(&self, name: &str) -> bool {
        let stat = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// Opens the ledger of a service in it. Changes of it wait for nobody.
    ///
    /// # Errors
    /// As [`Ledger::open`]; and if anything on the way is a link, or another user's.
    pub fn ledger(&self, name: &str) -> Result<Ledger, LedgerError> {
        let path = self.path.join(name).join("ledger");
        let failed = |source| LedgerError::File {
            path: path.clone(),
            what: "open",
            source,
        };
        let folder = folder_in(&self.folder, name, self.uid).map_err(failed)?;
        let found = match self.enforced(&folder).map_err(failed)? {
            None => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(&folder, "ledger", flags, Mode::empty()).map_err(failed)?
            }
            Some(enforced) => held(&enforced).map_err(failed)?,
        };
        let stat = fstat(&found).map_err(failed)?;
        if !is_file(&stat) || stat.st_uid != self.uid {
            return Err(LedgerError::NotYours {
                path,
                owner: stat.st_uid,
                uid: self.uid,
            });
        }
        // What was looked at is what is opened: it is held.
        let ledger = Ledger::open_held(std::process::id(), found.as_raw_fd())?;
        Ok(ledger.without_waiting())
    }

    /// What an enforced service says of itself.
    fn enforced(&self, folder: &OwnedFd) -> Result<Option<Enforced>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(folder, "enforced.json", flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file?,
        };
        let stat = fstat(&file)?;
        if !is_file(&stat) || stat.st_uid != self.uid {
            return Err(Errno::PERM);
        }
        let mut text = Vec::new();
        let read = fs::File::from(file).take(MOST_JSON).read_to_end(&mut text);
        read.map_err(|_| Errno::IO)?;
        let read = serde_json::from_slice(&text);
        read.map(Some).map_err(|_| Errno::INVAL)
    }

    /// Whether the `bonsai run` of a service lives.
    #[must_use]
    pub fn has_keeper(&self, name: &str) -> bool {
        let Ok(folder) = folder_in(&self.folder, name, self.uid) else {
            return false;
        };
        flock(&folder, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    }

    /// A service in it, by name and path: for what only compares these.
    #[must_use]
    pub fn service(&self, name: &str) -> Service {
        Service {
            name: name.to_owned(),
            folder: self.path.join(name),
        }
    }

    /// Whether that ledger is still the one of the service.
    #[must_use]
    pub fn has(&self, name: &str, identity: (u64, u64)) -> bool {
        let Ok(folder) = folder_in(&self.folder, name, self.uid) else {
            return false;
        };
        if let Ok(Some(enforced)) = self.enforced(&folder) {
            let stat = held(&enforced).and_then(fstat);
            return stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity);
        }
        let stat = statat(&folder, "ledger", AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity)
    }
}

/// The memory that a supervisor says to hold; whose it is has to be looked at. Nothing else is
/// opened, whatever stands behind that number.
fn held(enforced: &Enforced) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/{}/fd/{}", enforced.supervisor, enforced.ledger);
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let own = format!("/proc/self/fd/{}", found.as_raw_fd());
    let name = rustix::fs::readlink(own, Vec::new())?;
    if name.as_bytes() == b"/memfd:bonsai-ledger (deleted)" {
        return Ok(found);
    }
    Err(Errno::PERM)
}

fn is_file(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A place with the runtime directory of this user, and of somebody who is not.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        for uid in [own(), own() + 1] {
            let path = folder.path().join(format!("u{uid}")).join("bonsai");
            fs::create_dir_all(&path).expect("a folder");
        }
        let place = folder.path().join("u{uid}/bonsai");
        (folder, place)
    }

    fn home(place: &Path) -> Home {
        let mut homes = homes(place, Path::new("/"));
        assert_eq!(homes.len(), 1, "one belongs to whom its path says");
        homes.remove(0)
    }

    #[test]
    fn numbers_are_those_of_users() {
        assert_eq!(number("bonsai-{uid}", "bonsai-7"), Some(7));
        for name in [
            "bonsai-07",
            "bonsai-+7",
            "bonsai-",
            "bonsai-x",
            "7",
            "bonsai-4294967296",
        ] {
            assert_eq!(number("bonsai-{uid}", name), None, "{name}");
        }
        assert!(is_place(Path::new("/run/user/{uid}/bonsai")));
        for place in ["{uid}", "/run", "/{uid}/{uid}", "/{uid}/../x"] {
            assert!(!is_place(Path::new(place)), "{place}");
        }
    }

    #[test]
    fn what_belongs_to_another_or_is_open_to_others_is_passed_over() {
        let (_folder, place) = place();
        let home = home(&place);
        assert_eq!(home.uid(), own());
        assert!(homes(&place, home.path()).is_empty(), "the one's own");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).expect("open");
        assert!(homes(&place, Path::new("/")).is_empty());
        // A link in its place.
        let path = home.path().to_owned();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("closed");
        let aside = path.with_file_name("aside");
        fs::rename(&path, &aside).expect("moved");
        symlink(&aside, &path).expect("a link");
        assert!(homes(&place, Path::new("/")).is_empty());
        assert!(!home.has("a", (0, 0)));
    }

    #[test]
    fn what_is_listed_is_what_is_held() {
        let (_folder, place) = place();
        let home = home(&place);
        for name in ["vod", "bulk"] {
            fs::create_dir(home.path().join(name)).expect("a folder");
        }
        symlink("vod", home.path().join("link")).expect("a link");
        fs::write(home.path().join("file"), "").expect("a file");
        assert_eq!(home.names().expect("names"), ["bulk", "vod"]);
        let changed = home.changed().expect("a time");
        // Another's folder in its place.
        let other = tempfile::tempdir().expect("a folder");
        fs::create_dir(other.path().join("secret")).expect("a folder");
        fs::rename(home.path(), home.path().with_file_name("aside")).expect("moved");
        symlink(other.path(), home.path()).expect("a link");
        assert!(home.path().join("secret").exists());
        assert_eq!(home.names().expect("names"), ["bulk", "vod"]);
        assert_eq!(home.changed(), Ok(changed));
        assert!(home.has_folder("vod") && !home.has_folder("secret") && !home.has_folder("link"));
    }

    #[test]
    fn ledgers_are_opened_without_a_link_on_the_way() {
        let (_folder, place) = place();
        let home = home(&place);
        let service = home.path().join("vod");
        fs::create_dir(&service).expect("a folder");
        let made = Ledger::create(&service.join("ledger"), "vod").expect("a ledger");
        let found = home.ledger("vod").expect("it is theirs");
        assert_eq!(found.name(), "vod");
        let held = made.edit(0).expect("the lock");
        let refused = found.edit(0).expect_err("nobody is waited for");
        assert!(matches!(refused, LedgerError::Locked { .. }), "{refused}");
        drop(held);
        found.edit(0).expect("the lock");
        drop(made);
        assert_eq!(home.folders(), 1);
        symlink(&service, home.path().join("link")).expect("a link");
        home.ledger("link").expect_err("a link");
        let other = home.path().join("other");
        fs::create_dir(&other).expect("a folder");
        symlink(service.join("ledger"), other.join("ledger")).expect("a link");
        home.ledger("other").expect_err("a link");
        // Something that would keep whoever opens it waiting.
        let fifo = home.path().join("fifo");
        fs::create_dir(&fifo).expect("a folder");
        for name in ["ledger", "enforced.json"] {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, fifo.join(name), kind, Mode::RUSR, 0)
                .expect("a fifo");
            home.ledger("fifo").expect_err("no file");
        }
        // A descriptor of somebody that is no ledger.
        let text = serde_json::to_string(&Enforced {
            supervisor: std::process::id(),
            ledger: 0,
            ..Enforced::default()
        });
        fs::write(other.join("enforced.json"), text.expect("JSON")).expect("written");
        home.ledger("other").expect_err("not a ledger");
        let held = Ledger::create_unnamed("held").expect("memory");
        let text = serde_json::to_string(&Enforced {
            supervisor: std::process::id(),
            ledger: held.number(),
            ..Enforced::default()
        });
        fs::write(other.join("enforced.json"), text.expect("JSON")).expect("written");
        assert_eq!(home.ledger("other").expect("a ledger").name(), "held");
    }
}
