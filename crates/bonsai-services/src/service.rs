//! Services on disk: a folder per service below the runtime directory.
//!
//! ```text
//! RUNTIME/            mode 0700; its own lock is held to make and to remove services
//! RUNTIME/NAME/       mode 0700; locked by `bonsai run` for as long as it lives
//!   ledger            the shared segment
//!   preload.so        symbolic link to the library (LD_PRELOAD allows no blanks)
//!   start.json        what `bonsai run` itself had read and written before
//!   enforced.json     of an enforced service, instead of all of these: who holds its
//!                     ledger, which has no name that its processes could find
//! ```
//!
//! # Invariants
//! 1. A service is *in use* while its `bonsai run` holds the folder's lock, or a
//!    process of it lives. The lock goes with its holder, and with the child that
//!    it has forked until that is another program with the service in its
//!    environment: no instant lies between.
//! 2. Folders are made and removed under the runtime directory's lock only, and
//!    removed only when not in use. So a name is never given away twice, and a
//!    service that is half made (its `bonsai run` was killed) is simply dead.
//! 3. The kernel drops both locks when their holder ends, however it ends.

mod enforced;
pub mod members;
mod name;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Ledger, Numbers, ProcessId};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::refusal::{Refusal, before_start};

pub use self::enforced::Enforced;
use self::name::NUMBERS;
pub use self::name::{check_name, name_like};

/// The variable by which the library finds the ledger of its service.
pub const LEDGER_VARIABLE: &str = "BONSAI_LEDGER";

/// All services of the user.
#[derive(Debug)]
pub struct Services {
    folder: PathBuf,
}

/// One service's folder.
#[derive(Debug)]
pub struct Service {
    /// The service's name.
    pub name: String,
    /// Its folder, absolute.
    pub folder: PathBuf,
}

/// A service that this process has made and keeps.
#[derive(Debug)]
pub struct OwnService {
    service: Service,
    services: Services,
    // Held to the end; see invariant 1.
    _alive: OwnedFd,
}

/// The name a service is to have.
#[derive(Debug)]
pub enum Wanted<'a> {
    /// This one and no other.
    Exactly(&'a str),
    /// This one, or with a number if it is in use.
    Like(&'a str),
}

impl Services {
    /// The services of the calling user.
    ///
    /// # Errors
    /// A [`Refusal`]: the runtime directory is not there and cannot be made, or is not safe.
    pub fn open() -> anyhow::Result<Self> {
        let folder = bonsai_host::runtime_dir().map_err(|error| before_start(error.into()))?;
        Ok(Self { folder })
    }

    /// Those of a folder, whosesoever it is: what is in it may be trusted as far as its owner.
    #[must_use]
    pub const fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// When a service was last made or removed.
    #[must_use]
    pub fn changed(&self) -> Option<std::time::SystemTime> {
        fs::metadata(&self.folder)
            .and_then(|meta| meta.modified())
            .ok()
    }

    /// The runtime directory: the folder of all.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The service of that name, whether it is there or not.
    #[must_use]
    pub fn named(&self, name: &str) -> Service {
        self.service(name)
    }

    /// All that have a folder, by name; some may be dead.
    ///
    /// # Errors
    /// The runtime directory cannot be read.
    pub fn all(&self) -> anyhow::Result<Vec<Service>> {
        let unreadable = || format!("{}: cannot be read", self.folder.display());
        let mut services = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && check_name(&name).is_ok() {
                services.push(self.service(&name));
            }
        }
        services.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(services)
    }

    /// All that are in use; the folders of the others are removed.
    ///
    /// # Errors
    /// The runtime directory cannot be read or locked.
    pub fn live(&self) -> anyhow::Result<Vec<Service>> {
        let mut all = self.all()?;
        if all.is_empty() {
            return Ok(all);
        }
        let _lock = self.lock()?;
        let mut dead = Vec::new();
        for service in &all {
            // One that cannot be asked is not known to be dead, and hides no other.
            if !service.has_keeper().unwrap_or(true) {
                dead.push(service.name.clone());
            }
        }
        // After the locks: whoever had one has a program by now. Twice, because a process may
        // hand the service on to a child and end while the others are looked at.
        for _ in 0..2 {
            if dead.is_empty() {
                return Ok(all);
            }
            let living = members::Living::now()?;
            dead.retain(|name| !living.any(&self.service(name)));
        }
        all.retain(|service| {
            let lives = !dead.contains(&service.name);
            if !lives {
                // What cannot be removed now is removed by the next who looks.
                let _ = service.remove_folder();
            }
            lives
        });
        Ok(all)
    }

    /// The service of that name, which is in use.
    ///
    /// # Errors
    /// A [`Refusal`] that names those there are.
    pub fn find(&self, name: &str) -> anyhow::Result<Service> {
        check_name(name)?;
        let live = self.live()?;
        let names: Vec<String> = live.iter().map(|service| service.name.clone()).collect();
        if let Some(found) = live.into_iter().find(|service| service.name == name) {
            return Ok(found);
        }
        let text = if names.is_empty() {
            format!("there is no service {name:?}; none is running")
        } else {
            format!(
                "there is no service {name:?}; running: {}",
                names.join(", ")
            )
        };
        Err(Refusal::input(text))
    }

    /// Makes the folder of a new service, and keeps it until the value is dropped
    /// or [`OwnService::remove`]d.
    ///
    /// # Errors
    /// A [`Refusal`] if the name is in use; otherwise what the system says.
    pub fn make(self, wanted: &Wanted<'_>) -> anyhow::Result<OwnService> {
        if !fits(&self.folder) {
            let text = format!(
                "the runtime directory {} has a blank or a colon in its path, which LD_PRELOAD \
                 cannot hold: set BONSAI_RUNTIME_DIR to one without",
                self.folder.display()
            );
            return Err(Refusal::input(text));
        }
        let lock = self.lock()?;
        let service = match wanted {
            Wanted::Exactly(name) => {
                let service = self.service(name);
                if !service.claim()? {
                    let text = format!(
                        "the name {name:?} is in use by a running service: choose another, or \
                         none (bonsai status {name} shows it)"
                    );
                    return Err(Refusal::input(text));
                }
                service
            }
            Wanted::Like(name) => self.first_free(name)?,
        };
        // The folder is new; at most a `has_keeper` holds its lock for an instant.
        let alive = match open_folder(&service.folder).and_then(|folder| {
            flock(&folder, FlockOperation::LockExclusive)?;
            Ok(folder)
        }) {
            Ok(alive) => alive,
            Err(errno) => {
                let _ = service.remove_folder();
                return Err(errno)
                    .with_context(|| format!("{}: cannot be locked", service.folder.display()));
            }
        };
        drop(lock);
        Ok(OwnService {
            service,
            services: self,
            _alive: alive,
        })
    }

    fn first_free(&self, name: &str) -> anyhow::Result<Service> {
        for number in 1..=NUMBERS {
            let service = match number {
                1 => self.service(name),
                _ => self.service(&format!("{name}-{number}")),
            };
            if service.claim()? {
                return Ok(service);
            }
        }
        anyhow::bail!("{name} and {name}-2 to {name}-{NUMBERS} are all in use: give a --name")
    }

    fn service(&self, name: &str) -> Service {
        Service {
            name: name.to_owned(),
            folder: self.folder.join(name),
        }
    }

    /// Waits for whoever makes or removes services, and keeps others from it.
    fn lock(&self) -> anyhow::Result<OwnedFd> {
        let locked = open_folder(&self.folder).and_then(|folder| {
            flock(&folder, FlockOperation::LockExclusive)?;
            Ok(folder)
        });
        locked.with_context(|| format!("{}: cannot be locked", self.folder.display()))
    }
}

impl Service {
    /// The file of its ledger.
    pub fn ledger_path(&self) -> PathBuf {
        self.folder.join("ledger")
    }

    /// The link to the library that its programs load.
    pub fn preload_path(&self) -> PathBuf {
        self.folder.join("preload.so")
    }

    /// What `bonsai run` had read and written before it started the program.
    pub fn start_path(&self) -> PathBuf {
        self.folder.join("start.json")
    }

    /// Where an enforced service says who enforces it.
    pub fn enforced_path(&self) -> PathBuf {
        self.folder.join("enforced.json")
    }

    /// Who enforces it, and how; `None` if its limits are in its processes.
    pub fn enforced(&self) -> Option<Enforced> {
        let text = fs::read(self.enforced_path()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Opens its ledger.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn ledger(&self) -> anyhow::Result<Ledger> {
        self.ledger_of(self.enforced().as_ref())
    }

    /// Opens its ledger, where [`Service::enforced`] has said before who enforces it.
    ///
    /// # Errors
    /// As [`Ledger::open`].
    pub fn ledger_of(&self, enforced: Option<&Enforced>) -> anyhow::Result<Ledger> {
        Ok(match enforced {
            None => Ledger::open(&self.ledger_path())?,
            Some(enforced) => Ledger::open_held(enforced.supervisor, enforced.ledger)?,
        })
    }

    /// Whether its `bonsai run` lives.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn has_keeper(&self) -> anyhow::Result<bool> {
        let asked = open_folder(&self.folder)
            .and_then(|folder| flock(&folder, FlockOperation::NonBlockingLockShared));
        match asked {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno).with_context(|| format!("{}", self.folder.display())),
        }
    }

    /// Whether anyone lives who needs it.
    fn is_in_use(&self) -> anyhow::Result<bool> {
        Ok(self.has_keeper()? || members::any(self)?)
    }

    /// Makes its folder if it is free, under the runtime directory's lock.
    fn claim(&self) -> anyhow::Result<bool> {
        let make = || rustix::fs::mkdir(&self.folder, Mode::RWXU);
        let context = || format!("{}: cannot be made", self.folder.display());
        match make() {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno).with_context(context),
        }
        if self.is_in_use()? {
            return Ok(false);
        }
        self.remove_folder()
            .with_context(|| format!("{}: cannot be cleaned up", self.folder.display()))?;
        make().with_context(context)?;
        Ok(true)
    }

    fn remove_folder(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl std::ops::Deref for OwnService {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

impl OwnService {
    /// Removes it. To be called when none of its processes lives. The runtime directory may have been removed before.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(self) -> anyhow::Result<()> {
        let _lock = match self.services.lock() {
            Err(error) if error.downcast_ref() == Some(&rustix::io::Errno::NOENT) => return Ok(()),
            locked => locked?,
        };
        self.service
            .remove_folder()
            .with_context(|| format!("{}: cannot be removed", self.service.folder.display()))
    }
}

/// The number in `/proc` of the process that made a service; `None` if it was of a pid namespace that
/// is not seen from here.
#[must_use]
pub fn creator(ledger: &Ledger) -> Option<u32> {
    let header = &ledger.header;
    let namespace = header.namespace.load(Ordering::Relaxed);
    let creator = ProcessId {
        pid: header.creator.load(Ordering::Relaxed),
        namespace: u32::try_from(namespace).unwrap_or(0),
    };
    Numbers::of([creator].into_iter()).number(creator)
}

/// Whether the loader can read this path as one entry of `LD_PRELOAD`, which
/// knows no quotes.
fn fits(path: &Path) -> bool {
    !path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n'))
}

fn open_folder(path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(folder: &tempfile::TempDir) -> Services {
        Services {
            folder: folder.path().to_owned(),
        }
    }

    #[test]
    fn a_name_in_use_is_refused_or_numbered() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = services(&folder).make(&Wanted::Like("a")).expect("a");
        let second = services(&folder).make(&Wanted::Like("a")).expect("a-2");
        assert_eq!((&*first.name, &*second.name), ("a", "a-2"));
        let refused = services(&folder)
            .make(&Wanted::Exactly("a"))
            .expect_err("in use");
        assert!(refused.to_string().contains("\"a\" is in use"), "{refused}");
        first.remove().expect("removed");
        let again = services(&folder)
            .make(&Wanted::Exactly("a"))
            .expect("free again");
        assert_eq!(again.name, "a");
    }

    #[test]
    fn a_half_made_service_is_cleaned_up_and_its_name_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let half = services(&folder).make(&Wanted::Exactly("a")).expect("a");
        fs::write(half.ledger_path(), "half").expect("written");
        assert_eq!(
            services(&folder).live().expect("live").len(),
            1,
            "its maker lives"
        );
        // The kernel drops the lock of a killed process, too.
        drop(half);
        let again = services(&folder)
            .make(&Wanted::Exactly("a"))
            .expect("free again");
        assert!(!again.ledger_path().exists());
        drop(again);
        assert_eq!(services(&folder).live().expect("live").len(), 0);
        assert!(!folder.path().join("a").exists(), "status cleans up");
    }

    #[test]
    fn a_runtime_directory_that_is_gone_needs_no_removal() {
        let folder = tempfile::tempdir().expect("a folder");
        let service = services(&folder).make(&Wanted::Like("a")).expect("a");
        folder.close().expect("removed");
        service.remove().expect("nothing to do");
    }

    #[test]
    fn the_loader_splits_at_blanks_and_colons() {
        assert!(fits(Path::new("/run/bonsai/a-b_c.1/preload.so")));
        for path in ["/a b/c", "/a:b", "/a\tb"] {
            assert!(!fits(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn two_at_once_never_get_the_same_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let made: Vec<OwnService> = std::thread::scope(|scope| {
            let make = || services(&folder).make(&Wanted::Like("a")).expect("a name");
            let all: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            all.into_iter()
                .map(|one| one.join().expect("made"))
                .collect()
        });
        let mut names: Vec<&str> = made.iter().map(|service| &*service.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 8);
    }
}
