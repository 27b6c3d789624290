//! Segments as files: making, opening and checking them.

use crate::layout::{FIXED_LEN, MAGIC, Segment, TOTAL_LEN, VERSION};
use crate::sync::{AtomicU64, Ordering};
use bonsai_calls::CALLS;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Why a segment cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be made or opened.
    #[error("{path}: {what}: {source}")]
    File {
        /// The segment's file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// There is no room for it.
    #[error(
        "{path}: no room for the {} KiB of a service's ledger in shared memory: free some, \
         or point BONSAI_RUNTIME_DIR at a folder on another tmpfs",
        FIXED_LEN / 1024
    )]
    NoSpace {
        /// The segment's file.
        path: PathBuf,
    },
    /// The limit of file sizes is too low.
    #[error(
        "{path}: the limit of file sizes is {most} bytes, and this takes {len}: raise it (ulimit -f, LimitFSIZE= of a unit)"
    )]
    FileSize {
        /// The segment's file.
        path: PathBuf,
        /// The limit.
        most: u64,
        /// Bytes of the segment.
        len: u64,
    },
    /// It is no segment at all.
    #[error("{path}: not a ledger of Bonsai (wrong magic): remove it if nothing else needs it")]
    Foreign {
        /// The segment's file.
        path: PathBuf,
    },
    /// It has another layout.
    #[error(
        "{path}: ledger version {found}, this program reads version {VERSION}: use the bonsai that made it, or restart the service"
    )]
    Version {
        /// The segment's file.
        path: PathBuf,
        /// The version it says.
        found: u32,
    },
    /// It is too short or contradicts itself.
    #[error("{path}: damaged ledger ({what}): restart the service")]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It belongs to someone else.
    #[error("{path}: ledger owned by user {owner}, not by you ({uid}): refused")]
    NotYours {
        /// The segment's file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who asks.
        uid: u32,
    },
    /// Somebody else changes it, and it is not waited for.
    #[error("{path}: its lock is held by somebody else")]
    Locked {
        /// The segment's file.
        path: PathBuf,
    },
    /// A limit cannot be set.
    #[error("{0}")]
    Limit(String),
}

/// Sets the length of a file, and allocates its first bytes.
pub(crate) fn reserve(path: &Path, fd: &OwnedFd, len: u64, first: u64) -> Result<(), LedgerError> {
    let room = |e| match e {
        Errno::NOSPC | Errno::DQUOT => LedgerError::NoSpace { path: path.into() },
        e => file(path, "reserve memory", e),
    };
    // Beyond the limit the kernel sends SIGXFSZ; ignoring it would be inherited by the programs.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(most) = limit.filter(|most| *most < len) {
        let path = path.into();
        return Err(LedgerError::FileSize { path, most, len });
    }
    rustix::fs::ftruncate(fd, len).map_err(room)?;
    // Without this, a full tmpfs would end the first process to touch a page.
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, first).map_err(room)
}

/// A mapped segment.
#[derive(Debug)]
pub struct Ledger {
    base: *mut core::ffi::c_void,
    fd: OwnedFd,
    path: PathBuf,
    /// Whether a change waits for another one to end.
    waits: bool,
}

// SAFETY: the segment behind `base` consists of atomics only and stays mapped
// as long as the value lives.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Deref for Ledger {
    type Target = Segment;
    fn deref(&self) -> &Segment {
        // SAFETY: mapped with TOTAL_LEN bytes, page-aligned, checked by `open`
        // or made by `create`; all fields are atomics, valid for any bits.
        unsafe { &*self.base.cast::<Segment>() }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; `self` is the only handle.
        let _ = unsafe { rustix::mm::munmap(self.base, TOTAL_LEN) };
    }
}

impl Ledger {
    /// Makes the segment of a new service: a file of mode 0600 that must not
    /// exist yet, with room for everything but the pages of threads.
    ///
    /// # Errors
    /// The file cannot be made, or there is no room.
    pub fn create(path: &Path, name: &str) -> Result<Self, LedgerError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| file(path, "make", e))?;
        let made = Self::fill(path, fd, name);
        if made.is_err() {
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Says where the extension is. Before any process attaches.
    ///
    /// # Errors
    /// The path is too long.
    pub fn set_extension(&self, path: &Path) -> Result<(), LedgerError> {
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = path.as_os_str().as_bytes();
        let words = &self.header.extension;
        if bytes.len() >= 8 * words.len() {
            return Err(file(
                path,
                "name the extension",
                rustix::io::Errno::NAMETOOLONG,
            ));
        }
        store_bytes(words, bytes);
        Ok(())
    }

    /// Whether it is said where the extension is.
    #[must_use]
    pub fn has_extension(&self) -> bool {
        let first = self.header.extension.first();
        first.is_some_and(|word| word.load(crate::sync::Ordering::Relaxed) != 0)
    }

    /// Makes the segment of a service whose processes must not reach it: memory
    /// without a name, which [`Ledger::open_held`] finds with its holder.
    ///
    /// # Errors
    /// There is no room.
    pub fn create_unnamed(name: &str) -> Result<Self, LedgerError> {
        let made = rustix::fs::memfd_create("bonsai-ledger", rustix::fs::MemfdFlags::CLOEXEC);
        let fd = made.map_err(|e| file(Path::new("memory"), "make", e))?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let path = PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
        Self::fill(&path, fd, name)
    }

    /// Makes sure that a page of counters exists: whoever counts in it cannot be ended
    /// by a lack of memory.
    #[must_use]
    pub fn reserve_page(&self, page: usize) -> bool {
        let at = FIXED_LEN + page * size_of::<crate::layout::ThreadPage>();
        let len = size_of::<crate::layout::ThreadPage>() as u64;
        rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), at as u64, len).is_ok()
    }

    /// Says where its group's segment is. Before any process attaches.
    ///
    /// # Errors
    /// The path is too long.
    pub fn set_group(&self, path: &Path) -> Result<(), LedgerError> {
        use std::os::unix::ffi::OsStrExt as _;
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= 8 * self.header.group.len() {
            return Err(file(path, "name the group", rustix::io::Errno::NAMETOOLONG));
        }
        store_bytes(&self.header.group, bytes);
        Ok(())
    }

    /// Where its group's segment is, if it is in one.
    #[must_use]
    pub fn group(&self) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStringExt as _;
        let words = self.header.group.iter();
        let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let path: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        (!path.is_empty()).then(|| std::ffi::OsString::from_vec(path).into())
    }

    fn fill(path: &Path, fd: OwnedFd, name: &str) -> Result<Self, LedgerError> {
        reserve(path, &fd, TOTAL_LEN as u64, FIXED_LEN as u64)?;
        let ledger = Self::map(path, fd)?;
        let header = &ledger.header;
        store_text(&header.name, name);
        header.version.store(VERSION, Ordering::Relaxed);
        header
            .calls
            .store(u32::try_from(CALLS.len()).unwrap_or(0), Ordering::Relaxed);
        header.lengths[0].store(FIXED_LEN as u64, Ordering::Relaxed);
        header.lengths[1].store(TOTAL_LEN as u64, Ordering::Relaxed);
        header.creator.store(std::process::id(), Ordering::Relaxed);
        let namespace = crate::namespaces::own_namespace();
        header.namespace.store(namespace.into(), Ordering::Relaxed);
        header
            .uid
            .store(rustix::process::geteuid().as_raw(), Ordering::Relaxed);
        let wall = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        header.created_ns.store(
            u64::try_from(wall.as_nanos()).unwrap_or(0),
            Ordering::Relaxed,
        );
        header.epoch.0.store(2, Ordering::Relaxed);
        ledger.configs[0].mark(&crate::control::ALWAYS_SPECIAL);
        header.check.store(ledger.checksum(), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(ledger)
    }

    /// Opens the segment of a running service of the calling user.
    ///
    /// # Errors
    /// It does not exist, belongs to someone else, is foreign, damaged or of
    /// another version.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        Self::open_with(path, OFlags::NOFOLLOW)
    }

    /// Opens the segment that a process holds as descriptor `number`, made by
    /// [`Ledger::create_unnamed`].
    ///
    /// # Errors
    /// As [`Ledger::open`]; and whoever may not look into that process cannot open it.
    pub fn open_held(pid: u32, number: i32) -> Result<Self, LedgerError> {
        let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
        Self::open_with(&path, OFlags::empty())
    }

    pub(crate) fn open_with(path: &Path, more: OFlags) -> Result<Self, LedgerError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | more;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| file(path, "open", e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| file(path, "examine", e))?;
        Self::check_file(path, &fd, &stat)?;
        let ledger = Self::map(path, fd)?;
        if ledger.header.check.load(Ordering::Relaxed) != ledger.checksum() {
            return Err(LedgerError::Damaged {
                path: path.into(),
                what: "header checksum",
            });
        }
        Ok(ledger)
    }

    /// Checks whose a file is, and that it is a segment of this layout, before anything is
    /// mapped.
    pub(crate) fn check_file(
        path: &Path,
        fd: &OwnedFd,
        stat: &rustix::fs::Stat,
    ) -> Result<(), LedgerError> {
        let uid = rustix::process::geteuid().as_raw();
        if stat.st_uid != uid && uid != 0 {
            return Err(LedgerError::NotYours {
                path: path.into(),
                owner: stat.st_uid,
                uid,
            });
        }
        if u64::try_from(stat.st_size).unwrap_or(0) < 4096 {
            return Err(LedgerError::Damaged {
                path: path.into(),
                what: "too short",
            });
        }
        Self::check_head(path, fd, u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Looks at the header through the file, before anything is mapped.
    fn check_head(path: &Path, fd: &OwnedFd, len: u64) -> Result<(), LedgerError> {
        let mut head = [0_u8; 32];
        let got = rustix::io::pread(fd, &mut head, 0).map_err(|e| file(path, "read", e))?;
        let word = |at: usize| {
            let mut bytes = [0_u8; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        if got < head.len() || word(0) != MAGIC {
            return Err(LedgerError::Foreign { path: path.into() });
        }
        let found = (word(8) & 0xffff_ffff) as u32;
        if found != VERSION {
            return Err(LedgerError::Version {
                path: path.into(),
                found,
            });
        }
        if word(16) != FIXED_LEN as u64 || word(24) != TOTAL_LEN as u64 || len != TOTAL_LEN as u64 {
            return Err(LedgerError::Damaged {
                path: path.into(),
                what: "wrong length",
            });
        }
        Ok(())
    }

    fn map(path: &Path, fd: OwnedFd) -> Result<Self, LedgerError> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of a file of TOTAL_LEN bytes at an address of the
        // kernel's choice.
        let base =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), TOTAL_LEN, prot, flags, &fd, 0) }
                .map_err(|e| file(path, "map", e))?;
        Ok(Self {
            base,
            fd,
            path: path.into(),
            waits: true,
        })
    }

    /// The same, whose changes are refused with [`LedgerError::Locked`] where they would wait for
    /// somebody else's: who owns the file may hold its lock for ever.
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.waits = false;
        self
    }

    /// Whether a change waits for another one to end.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// The segment's file, for the lock that serialises writers.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The number of the descriptor by which it is held, for [`Ledger::open_held`].
    #[must_use]
    pub fn number(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.fd)
    }

    /// Where the segment's file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The service's name.
    #[must_use]
    pub fn name(&self) -> String {
        load_text(&self.header.name)
    }

    /// FNV-1a over the fields that never change.
    fn checksum(&self) -> u64 {
        let h = &self.header;
        let fixed = [
            u64::from(h.version.load(Ordering::Relaxed)),
            u64::from(h.calls.load(Ordering::Relaxed)),
            h.lengths[0].load(Ordering::Relaxed),
            h.lengths[1].load(Ordering::Relaxed),
            u64::from(h.creator.load(Ordering::Relaxed)),
            u64::from(h.uid.load(Ordering::Relaxed)),
            h.created_ns.load(Ordering::Relaxed),
        ];
        let name = h.name.iter().map(|w| w.load(Ordering::Relaxed));
        fixed
            .into_iter()
            .chain(name)
            .flat_map(u64::to_le_bytes)
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

fn file(path: &Path, what: &'static str, source: rustix::io::Errno) -> LedgerError {
    LedgerError::File {
        path: path.into(),
        what,
        source,
    }
}

/// Writes text into words, cut to their size and padded with zeros.
pub(crate) fn store_text(words: &[AtomicU64], text: &str) {
    store_bytes(words, text.as_bytes());
}

fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let mut bytes = bytes.iter().copied().chain(std::iter::repeat(0));
    for word in words {
        let mut eight = [0_u8; 8];
        eight.fill_with(|| bytes.next().unwrap_or(0));
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
}

/// Reads text back; bytes that are not UTF-8 are replaced.
pub(crate) fn load_text(words: &[AtomicU64]) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes())
        .take_while(|b| *b != 0)
        .collect();
    // A member can write anything there, and names are shown on terminals.
    let shown = |c: char| if c.is_control() { '?' } else { c };
    String::from_utf8_lossy(&bytes).chars().map(shown).collect()
}
