//! The folder of a library, and the videos in it.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::video::Video;
use crate::{Error, Event, Name};

/// What is for the owner alone.
const PRIVATE: &str = ".private";
/// What folders begin with whose video is being imported.
pub(crate) const INCOMING: &str = ".incoming-";
/// The most bytes of a description or of its events.
const MOST_BYTES: u64 = 256 << 20;

/// A library: a folder with a folder for each video.
#[derive(Clone, Debug)]
pub struct Library {
    root: PathBuf,
}

/// What is in a library.
#[derive(Debug, Default)]
pub struct Listed {
    /// By name.
    pub videos: Vec<Video>,
    /// Folders that are none of a video, and why: a sentence each.
    pub problems: Vec<String>,
}

/// Who may read what is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    Owner,
    Everybody,
}

impl Readers {
    pub(crate) const fn file(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Everybody => 0o644,
        }
    }

    pub(crate) const fn folder(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::Everybody => 0o755,
        }
    }
}

impl Library {
    /// Opens one.
    ///
    /// # Errors
    /// There is none.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let found = root.canonicalize().map_err(|error| {
            Error::input(format!(
                "{}: no library: {error} (bonsai davvi import makes one)",
                root.display()
            ))
        })?;
        if !found.join(PRIVATE).is_dir() {
            return Err(Error::input(format!(
                "{}: no library: no video was imported into it",
                root.display()
            )));
        }
        Ok(Self { root: found })
    }

    /// Opens one, or makes it in a folder that is empty or not there.
    ///
    /// # Errors
    /// The folder is of somebody else, or cannot be made.
    pub(crate) fn make(root: &Path, readers: Readers) -> Result<Self, Error> {
        if let Ok(there) = Self::open(root) {
            if readers == Readers::Everybody {
                open_up(&there.root)?;
            }
            return Ok(there);
        }
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(readers.folder())
            .create(root);
        made.map_err(Error::file(root, "cannot be made"))?;
        let root = root
            .canonicalize()
            .map_err(Error::file(root, "cannot be found"))?;
        let mut entries = fs::read_dir(&root).map_err(Error::file(&root, "cannot be read"))?;
        // Nobody's folder of other things becomes a library by a slip.
        if entries.next().is_some() {
            return Err(Error::input(format!(
                "{}: it is neither a library nor empty: name another folder",
                root.display()
            )));
        }
        let private = root.join(PRIVATE);
        let made = fs::DirBuilder::new().mode(0o700).create(&private);
        made.map_err(Error::file(&private, "cannot be made"))?;
        if readers == Readers::Everybody {
            open_up(&root)?;
        }
        Ok(Self { root })
    }

    /// The folder, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The folder of a video.
    #[must_use]
    pub fn folder(&self, name: &Name) -> PathBuf {
        self.root.join(name.as_str())
    }

    /// A file for the owner alone.
    pub(crate) fn private(&self, file: &str) -> PathBuf {
        self.root.join(PRIVATE).join(file)
    }

    /// A folder to import into, and what others see it is in use by. What is there of imports that came
    /// to no end is removed.
    pub(crate) fn incoming(&self) -> Result<Incoming, Error> {
        let path = self.private("lock");
        let lock = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path);
        let lock = lock.map_err(Error::file(&path, "cannot be opened"))?;
        let locked = flock(&lock, FlockOperation::LockExclusive);
        locked.map_err(|error| Error::file(&path, "cannot be locked")(error.into()))?;
        for entry in self.entries()? {
            if entry.starts_with(INCOMING) {
                remove_unless_held(&self.root.join(entry));
            }
        }
        let made = tempfile::Builder::new()
            .prefix(INCOMING)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&self.root);
        let folder = made.map_err(Error::file(&self.root, "cannot be written to"))?;
        let held = hold(folder.path()).map_err(Error::file(folder.path(), "cannot be locked"))?;
        Ok(Incoming {
            folder,
            _held: held,
        })
    }

    fn entries(&self) -> Result<Vec<String>, Error> {
        let failed = || Error::file(&self.root, "cannot be read");
        let entries = fs::read_dir(&self.root).map_err(failed())?;
        let names = entries.map(|entry| Ok(entry.map_err(failed())?.file_name()));
        let names = names.collect::<Result<Vec<_>, Error>>()?;
        let text = names
            .iter()
            .filter_map(|name| OsStr::to_str(name).map(str::to_owned));
        Ok(text.collect())
    }

    /// Whether a video has that name.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.folder(name).symlink_metadata().is_ok()
    }

    /// A video.
    ///
    /// # Errors
    /// There is none of that name, or it is damaged.
    pub fn video(&self, name: &Name) -> Result<Video, Error> {
        if !self.has(name) {
            return Err(Error::input(format!(
                "no video is called {name} (bonsai davvi ls shows them)"
            )));
        }
        Video::parse(&self.read(name, "video.json")?, name)
    }

    /// The events of a video.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn events(&self, name: &Name) -> Result<Vec<Event>, Error> {
        let bytes = self.read(name, "events.json")?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::input(format!("{name}/events.json: {error}")))
    }

    fn read(&self, name: &Name, file: &str) -> Result<Vec<u8>, Error> {
        let path = self.folder(name).join(file);
        let mut bytes = Vec::new();
        let opened = File::open(&path).map_err(Error::file(&path, "cannot be opened"))?;
        let read = opened.take(MOST_BYTES).read_to_end(&mut bytes);
        read.map_err(Error::file(&path, "cannot be read"))?;
        Ok(bytes)
    }

    /// All videos.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<Listed, Error> {
        let mut listed = Listed::default();
        let mut entries = self.entries()?;
        entries.sort();
        for entry in entries.iter().filter(|entry| !entry.starts_with('.')) {
            if !self.root.join(entry).is_dir() {
                continue;
            }
            match Name::parse(entry).and_then(|name| self.video(&name)) {
                Ok(video) => listed.videos.push(video),
                Err(error) => listed.problems.push(error.to_string()),
            }
        }
        Ok(listed)
    }
}

/// A folder that becomes a video, or is removed.
#[derive(Debug)]
pub(crate) struct Incoming {
    folder: tempfile::TempDir,
    _held: File,
}

impl Incoming {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts it where it belongs, once everything in it is on the disk.
    pub(crate) fn publish(self, to: &Path, readers: Readers) -> Result<(), Error> {
        let from = self.folder.path();
        fs::set_permissions(from, Permissions::from_mode(readers.folder()))
            .map_err(Error::file(from, "cannot be changed"))?;
        let synced = File::open(from).and_then(|folder| Ok(rustix::fs::syncfs(&folder)?));
        synced.map_err(Error::file(from, "cannot be brought to the disk"))?;
        // A folder with anything in it is not replaced (rename(2), ENOTEMPTY).
        fs::rename(from, to).map_err(Error::file(to, "cannot be made"))?;
        let parent = to.parent().unwrap_or(to);
        let synced = File::open(parent).and_then(|folder| folder.sync_all());
        let _ = self.folder.keep();
        synced.map_err(Error::file(parent, "cannot be brought to the disk"))
    }
}

/// The lock of an import in its folder: the kernel lets go of it, however the import ends.
fn hold(folder: &Path) -> std::io::Result<File> {
    let file = File::open(folder)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn remove_unless_held(folder: &Path) {
    if hold(folder).is_ok() {
        let _ = fs::remove_dir_all(folder);
    }
}

fn open_up(root: &Path) -> Result<(), Error> {
    fs::set_permissions(root, Permissions::from_mode(Readers::Everybody.folder()))
        .map_err(Error::file(root, "cannot be made readable"))
}

/// Writes a file that is not there yet.
pub(crate) fn write_new(path: &Path, parts: &[&[u8]], readers: Readers) -> Result<(), Error> {
    let written = || -> std::io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(readers.file())
            .open(path)?;
        for part in parts {
            file.write_all(part)?;
        }
        // The umask may have taken more.
        file.set_permissions(Permissions::from_mode(readers.file()))
    };
    written().map_err(Error::file(path, "cannot be written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_other_things_becomes_no_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("library");
        Library::open(&root).expect_err("not there");
        let made = Library::make(&root, Readers::Owner).expect("a library");
        assert_eq!(made.list().expect("listed").videos, []);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&root), mode(&root.join(PRIVATE))), (0o700, 0o700));
        Library::make(&root, Readers::Everybody).expect("the same");
        assert_eq!((mode(&root), mode(&root.join(PRIVATE))), (0o755, 0o700));
        fs::write(folder.path().join("letter.txt"), "dear").expect("written");
        let said = Library::make(folder.path(), Readers::Owner)
            .expect_err("not empty")
            .to_string();
        assert!(said.contains("neither a library nor empty"), "{said}");
        assert!(!folder.path().join(PRIVATE).exists());
    }

    #[test]
    fn what_an_import_left_behind_is_removed_and_what_one_uses_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let library =
            Library::make(&folder.path().join("library"), Readers::Owner).expect("a library");
        let left = library.path().join(".incoming-abcdef");
        fs::create_dir(&left).expect("made");
        fs::write(left.join("00000.mp4"), "half").expect("written");
        let first = library.incoming().expect("a folder");
        assert!(!left.exists());
        let second = library.incoming().expect("another folder");
        assert!(first.path().exists() && second.path().exists());
        let (path, name) = (first.path().to_owned(), Name::parse("a").expect("a name"));
        drop(first);
        assert!(!path.exists());
        second
            .publish(&library.folder(&name), Readers::Owner)
            .expect("there");
        assert!(library.has(&name));
        let listed = library.list().expect("listed");
        assert!(
            listed.videos.is_empty() && listed.problems.len() == 1,
            "{listed:?}"
        );
        let third = library.incoming().expect("a folder");
        let path = third.path().to_owned();
        fs::write(library.folder(&name).join("video.json"), "x").expect("written");
        third
            .publish(&library.folder(&name), Readers::Owner)
            .expect_err("it is there");
        assert!(!path.exists());
    }
}
