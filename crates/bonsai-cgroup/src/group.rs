use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::file;
use crate::hierarchy::{Controller, Version};

/// A control group in the hierarchy of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    version: Version,
    controller: Controller,
    path: String,
    folder: PathBuf,
}

impl Cgroup {
    pub(crate) const fn new(
        version: Version,
        controller: Controller,
        path: String,
        folder: PathBuf,
    ) -> Self {
        Self {
            version,
            controller,
            path,
            folder,
        }
    }

    /// Its path in its hierarchy, from `/`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where it is seen.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The version of its hierarchy.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The number by which a group is told from one that is made later under the same path: the
    /// kernel gives each a new one.
    ///
    /// # Errors
    /// [`Error::Vanished`].
    pub fn id(&self) -> Result<u64, Error> {
        let found = fs::metadata(&self.folder);
        found.map(|found| found.ino()).map_err(|_| self.vanished())
    }

    /// The processes in it and in the groups below it, once each, sorted.
    ///
    /// # Errors
    /// [`Error::Vanished`]. What vanishes below it is left out.
    pub fn processes(&self) -> Result<Vec<u32>, Error> {
        let mut found = BTreeSet::new();
        let mut next = vec![self.folder.clone()];
        while let Some(folder) = next.pop() {
            let list = match file::read(&folder.join("cgroup.procs")) {
                Ok(list) => list,
                Err(_) if folder != self.folder => continue,
                Err(_) if !self.folder.is_dir() => return Err(self.vanished()),
                Err(source) => {
                    let file = folder.join("cgroup.procs");
                    return Err(Error::File { file, source });
                }
            };
            // Processes of another pid namespace have no number here: 0.
            let pids = list.lines().filter_map(|line| line.parse::<u32>().ok());
            found.extend(pids.filter(|pid| *pid != 0));
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            next.extend(folders.map(|entry| entry.path()));
        }
        Ok(found.into_iter().collect())
    }

    /// The text of one of its files.
    ///
    /// # Errors
    /// It is gone, has not the controller, or cannot be read.
    pub(crate) fn read(&self, name: &str) -> Result<String, Error> {
        let path = self.folder.join(name);
        match file::read(&path) {
            Ok(text) => Ok(text),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Err(self.missing()),
            // A group that is removed while a file of it is open.
            Err(_) if !self.folder.is_dir() => Err(self.vanished()),
            Err(source) => Err(Error::File { file: path, source }),
        }
    }

    /// Writes to one of its files; `what` is said if that is refused.
    ///
    /// # Errors
    /// It is gone, has not the controller, or the kernel refuses.
    pub(crate) fn write(&self, name: &str, line: &str, what: &str) -> Result<(), Error> {
        let path = self.folder.join(name);
        match file::write(&path, line) {
            Ok(()) => Ok(()),
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Err(self.missing()),
            Err(source) => Err(file::refused(source, &path, &self.path, what)),
        }
    }

    pub(crate) fn vanished(&self) -> Error {
        Error::Vanished {
            path: self.path.clone(),
        }
    }

    /// Why a file of the controller is not there.
    fn missing(&self) -> Error {
        if !self.folder.is_dir() {
            return self.vanished();
        }
        let above = self.folder.parent().unwrap_or(&self.folder);
        let file = above.join("cgroup.subtree_control");
        if self.path == "/" || !file.exists() && self.version == Version::V2 {
            return Error::Root;
        }
        match self.version {
            Version::V2 => Error::NotEnabled {
                path: self.path.clone(),
                controller: self.controller.name(Version::V2),
                file,
            },
            // The kernel was built without this part of the controller.
            Version::V1 => Error::NoController {
                controller: self.controller,
            },
        }
    }
}
