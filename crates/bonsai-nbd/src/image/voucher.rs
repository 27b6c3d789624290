//! The validity of the fingerprints that are kept beside an image (see `sharing/kept.rs`).
//!
//! # Story
//! While the file beside an image is valid, no change of the image may begin: after a power cut the image could have
//! new bytes, and the file would vouch for the old ones. So the first change of an open image makes the file invalid on the disk:
//! it sets the file's state, or else removes the file. This holds for each image that is open for writing, whether it
//! shares or not.
//!
//! # Invariants
//! 1. A change is counted before it looks whether a file is valid; a file becomes valid before changes are counted
//!    again. So of a change and a file that meet, at least one sees the other.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::files::{open_beside, sync_folder_of};

/// The file's first bytes.
pub(crate) const MAGIC: [u8; 8] = *b"BNSDRIVE";
/// Where the state is in the file.
pub(crate) const STATE_AT: usize = 12;
/// The state of a file that may be believed.
pub(crate) const VALID: [u8; 4] = [0; 4];
const INVALID: [u8; 4] = [0xff; 4];

/// The file beside one image.
#[derive(Debug)]
pub(crate) struct Voucher {
    path: PathBuf,
    /// Changes that were begun.
    changes: AtomicU64,
    /// A file is valid: a change has to make it invalid first.
    valid: AtomicBool,
    /// It was when the image was opened.
    was_valid: bool,
    file: Mutex<Option<File>>,
}

/// Where the file is: the image's name, and `.drive`.
fn path_of(image: &Path) -> PathBuf {
    let mut name: OsString = image.as_os_str().to_owned();
    name.push(".drive");
    name.into()
}

impl Voucher {
    /// Of an image that is open and locked. A file that cannot be opened is believed by nobody.
    pub(super) fn new(image: &Path, read_only: bool) -> Self {
        let path = path_of(image);
        let file = match read_only {
            true => None,
            // What cannot be written can still be removed.
            false => open_beside(&path, true)
                .or_else(|_| open_beside(&path, false))
                .ok()
                .filter(is_ours),
        };
        let was_valid = file.as_ref().is_some_and(is_valid);
        Self {
            path,
            changes: AtomicU64::new(0),
            valid: AtomicBool::new(was_valid),
            was_valid,
            file: Mutex::new(file),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a file that no change has made invalid.
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.load(Ordering::SeqCst)
    }

    /// Changes that were begun since the image was opened.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// A change begins; nothing of it may be on its way to the disk before this returns.
    ///
    /// # Errors
    /// The file can neither be made invalid nor removed.
    pub(super) fn begin_change(&self) -> io::Result<()> {
        self.changes.fetch_add(1, Ordering::SeqCst);
        match self.valid.load(Ordering::SeqCst) {
            true => self.invalidate(&mut self.lock()),
            false => Ok(()),
        }
    }

    /// The file, and whether it was valid when the image was opened: a change may have made it invalid since.
    ///
    /// # Errors
    /// Those of [`open_beside`].
    pub(crate) fn open(&self) -> io::Result<(File, bool)> {
        if let Some(file) = self.lock().as_ref() {
            return Ok((file.try_clone()?, self.was_valid));
        }
        let file = open_beside(&self.path, false)?;
        let valid = is_valid(&file);
        Ok((file, valid))
    }

    /// Gives a new file its name, if no change was begun since `changes` were counted and `is_same` says so. It is valid
    /// then.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn put(
        &self,
        (draft, file): (&Path, File),
        changes: u64,
        is_same: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let mut held = self.lock();
        if self.changes() != changes || !is_same() {
            return Ok(false);
        }
        // A file that only has the name is not replaced: it may be another image.
        match open_beside(&self.path, false) {
            Ok(there) if !is_ours(&there) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "is another file, and is not replaced",
                ));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::rename(draft, &self.path)?;
        *held = Some(file);
        self.valid.store(true, Ordering::SeqCst);
        if self.changes() != changes || !is_same() {
            self.invalidate(&mut held)?;
            return Ok(false);
        }
        drop(held);
        sync_folder_of(&self.path)?;
        Ok(true)
    }

    fn invalidate(&self, held: &mut Option<File>) -> io::Result<()> {
        // Another change may have done it.
        if !self.valid.load(Ordering::SeqCst) {
            return Ok(());
        }
        let marked = held.as_ref().map_or(Ok(()), |file| {
            file.write_all_at(&INVALID, STATE_AT as u64)?;
            file.sync_data()
        });
        if marked.is_err() {
            let removed = fs::remove_file(&self.path).and_then(|()| sync_folder_of(&self.path));
            removed.map_err(|error| {
                let path = self.path.display();
                let why = format!("{path}: can neither be written nor removed: {error}");
                io::Error::new(error.kind(), why)
            })?;
        }
        self.valid.store(false, Ordering::SeqCst);
        Ok(())
    }
}

/// Whether it is a file of fingerprints, under this name alone.
pub(crate) fn is_ours(file: &File) -> bool {
    let mut magic = [0; MAGIC.len()];
    let begins = file.read_exact_at(&mut magic, 0).is_ok() && magic == MAGIC;
    begins && file.metadata().is_ok_and(|meta| meta.nlink() == 1)
}

fn is_valid(file: &File) -> bool {
    let mut state = INVALID;
    file.read_exact_at(&mut state, STATE_AT as u64).is_ok() && state == VALID
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file() -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        bytes
    }

    fn beside(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("a.raw");
        fs::write(path_of(&image), bytes).expect("written");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(path_of(&image), mode).expect("changed");
        (folder, image)
    }

    fn state(image: &Path) -> Option<[u8; 4]> {
        let bytes = fs::read(path_of(image)).ok()?;
        bytes.get(12..)?.first_chunk().copied()
    }

    #[test]
    fn the_first_change_makes_the_file_invalid_and_later_ones_leave_it() {
        let (_folder, image) = beside(&file());
        let voucher = Voucher::new(&image, false);
        assert_eq!(state(&image), Some(VALID));
        voucher.begin_change().expect("marked");
        assert_eq!(state(&image), Some(INVALID));
        fs::remove_file(path_of(&image)).expect("removed");
        voucher.begin_change().expect("nothing to do");
    }

    #[test]
    fn a_change_between_counting_and_naming_leaves_no_valid_file() {
        let (folder, image) = beside(&file());
        let draft = folder.path().join("draft");
        let make = || {
            fs::write(&draft, file()).expect("written");
            File::options()
                .read(true)
                .write(true)
                .open(&draft)
                .expect("opened")
        };
        let voucher = Voucher::new(&image, false);
        let changes = voucher.changes();
        voucher.begin_change().expect("marked");
        assert!(
            !voucher
                .put((&draft, make()), changes, || true)
                .expect("refused")
        );
        assert_eq!(state(&image), Some(INVALID));
        // Named, and then it turns out that others wrote.
        let changes = voucher.changes();
        let asked = AtomicU64::new(0);
        let once = || asked.fetch_add(1, Ordering::SeqCst) == 0;
        assert!(
            !voucher
                .put((&draft, make()), changes, once)
                .expect("taken back")
        );
        assert_eq!(state(&image), Some(INVALID));
        assert!(
            voucher
                .put((&draft, make()), changes, || true)
                .expect("named")
        );
        assert_eq!(state(&image), Some(VALID));
        voucher.begin_change().expect("marked");
        assert_eq!(state(&image), Some(INVALID));
    }

    #[test]
    fn a_file_that_cannot_be_marked_is_removed() {
        let (_folder, image) = beside(&file());
        let voucher = Voucher::new(&image, false);
        let read_only = File::open(path_of(&image)).expect("opened");
        *voucher.lock() = Some(read_only);
        voucher.begin_change().expect("removed");
        assert_eq!(state(&image), None);
    }

    #[test]
    fn another_file_of_that_name_is_neither_marked_nor_replaced() {
        let (folder, image) = beside(&[0; 64]);
        let untouched = || fs::read(path_of(&image)).expect("there") == [0; 64];
        let voucher = Voucher::new(&image, false);
        voucher.begin_change().expect("nothing to do");
        assert!(untouched());
        let draft = folder.path().join("draft");
        fs::write(&draft, file()).expect("written");
        let new = File::open(&draft).expect("opened");
        voucher
            .put((&draft, new), voucher.changes(), || true)
            .expect_err("it is another file");
        assert!(untouched());
        // Nor is a second name of one of ours: it may be that of an image.
        fs::write(path_of(&image), file()).expect("written");
        fs::hard_link(path_of(&image), folder.path().join("other")).expect("linked");
        let voucher = Voucher::new(&image, false);
        voucher.begin_change().expect("nothing to do");
        assert_eq!(state(&image), Some(VALID));
    }
}
