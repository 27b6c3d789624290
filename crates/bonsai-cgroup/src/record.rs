//! What targets had before, in files that outlive whoever wrote them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::file;

/// The form of a record. One of another form is left alone, and said.
const FORM: u32 = 1;

/// What limits are on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A control group, by its path.
    Cgroup(String),
    /// A systemd unit, by its name.
    Unit(String),
    /// A process, by its number.
    Process(u32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(path) => f.pad(path),
            Self::Unit(unit) => f.pad(unit),
            Self::Process(pid) => f.pad(&format!("process {pid}")),
        }
    }
}

/// Who has set what is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Nobody: there is no limit.
    Nobody,
    /// Bonsai, and it is as it was set.
    Bonsai,
    /// Somebody else, after Bonsai had set something.
    OtherSince,
    /// Somebody else.
    Other,
}

impl Holder {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Bonsai => "Bonsai",
            Self::OtherSince => "others, after Bonsai",
            Self::Other => "others",
        }
    }
}

/// A record of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record<T> {
    form: u32,
    /// The boot that it is of: groups and units begin anew with each.
    boot: String,
    pub(crate) target: Target,
    /// The number of the group, which a later one of the same path has not.
    pub(crate) id: Option<u64>,
    pub(crate) held: T,
}

/// The records of one kind, such as `disk`, in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    folder: PathBuf,
    kind: &'static str,
}

/// As long as it lives, nobody else changes records.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the lock ends with the file")] File);

impl Records {
    /// Those in a folder, which is made if it is missing; its parent is not.
    pub(crate) fn open(folder: &Path, kind: &'static str) -> Result<Self, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let made = fs::DirBuilder::new().mode(0o700).create(folder);
        match made {
            Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::File {
                file: folder.to_owned(),
                source,
            }),
            _ => Ok(Self {
                folder: folder.to_owned(),
                kind,
            }),
        }
    }

    /// Waits until nobody else changes records.
    pub(crate) fn lock(&self) -> Result<Lock, Error> {
        let path = self.folder.join("lock");
        let failed = |source| Error::File {
            file: path.clone(),
            source,
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
        Ok(Lock(file))
    }

    /// A record to begin with.
    pub(crate) fn new_record<T>(&self, target: Target, id: Option<u64>, held: T) -> Record<T> {
        Record {
            form: FORM,
            boot: boot(),
            target,
            id,
            held,
        }
    }

    /// The record of a target, if it is of this boot and of the same group. Others are removed.
    pub(crate) fn load<T: DeserializeOwned>(
        &self,
        target: &Target,
        id: Option<u64>,
    ) -> Result<Option<Record<T>>, Error> {
        let path = self.path(target);
        if !path.exists() {
            return Ok(None);
        }
        let record: Record<T> = read(&path)?;
        if record.target != *target {
            return Err(Error::Unreadable {
                file: path,
                what: format!("this is the record of {}, not of {target}", record.target),
            });
        }
        if record.boot == boot() && record.id == id {
            return Ok(Some(record));
        }
        self.remove(target)?;
        Ok(None)
    }

    /// All records of this boot. What cannot be read is left out.
    pub(crate) fn all<T: DeserializeOwned>(&self) -> Vec<Record<T>> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| {
                name.starts_with(&format!("{}-", self.kind)) && name.ends_with(".json")
            })
        });
        let now = boot();
        let records = paths.filter_map(|path| read::<T>(&path).ok());
        records.filter(|record| record.boot == now).collect()
    }

    /// Writes a record, mode 0600, whole or not at all.
    pub(crate) fn save<T: Serialize>(&self, record: &Record<T>) -> Result<(), Error> {
        let path = self.path(&record.target);
        let failed = |source| Error::File {
            file: path.clone(),
            source,
        };
        let text = serde_json::to_vec_pretty(record).map_err(|error| failed(error.into()))?;
        let mut new = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(&self.folder)
            .map_err(failed)?;
        new.write_all(&text).map_err(failed)?;
        new.as_file().sync_data().map_err(failed)?;
        new.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    pub(crate) fn remove(&self, target: &Target) -> Result<(), Error> {
        let path = self.path(target);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::File { file: path, source })
            }
            _ => Ok(()),
        }
    }

    /// The file of a target. Paths of groups are longer than names of files may be.
    fn path(&self, target: &Target) -> PathBuf {
        let key = match target {
            Target::Cgroup(path) => format!("cgroup {path}"),
            Target::Unit(unit) => format!("unit {unit}"),
            Target::Process(pid) => format!("process {pid}"),
        };
        let name = format!("{}-{:016x}.json", self.kind, fnv(key.as_bytes()));
        self.folder.join(name)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Record<T>, Error> {
    let text = file::need(path)?;
    let wrong = |what: String| Error::Unreadable {
        file: path.to_owned(),
        what,
    };
    #[derive(Deserialize)]
    struct Head {
        form: u32,
    }
    let odd = |error: serde_json::Error| wrong(format!("this is no record ({error}): remove it"));
    let head: Head = serde_json::from_str(&text).map_err(odd)?;
    if head.form != FORM {
        let what = format!(
            "this record has form {}, this Bonsai writes {FORM}: use the Bonsai that wrote it",
            head.form
        );
        return Err(wrong(what));
    }
    serde_json::from_str(&text).map_err(odd)
}

/// Which boot this is (random(4)).
fn boot() -> String {
    let id = file::read(Path::new("/proc/sys/kernel/random/boot_id"));
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// FNV-1a, 64 bits (RFC 9923): names of files, told apart further by what is in them.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(folder: &Path) -> Records {
        Records::open(&folder.join("held"), "disk").expect("a folder")
    }

    #[test]
    fn a_record_is_private_and_read_back_by_the_next_process() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let target = Target::Cgroup("/a".to_owned());
        let first = records(folder.path());
        let record = first.new_record(target.clone(), Some(7), vec![1, 2]);
        first.save(&record).expect("saved");
        let mode = fs::metadata(first.path(&target)).expect("a file");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let next = records(folder.path());
        assert_eq!(next.load(&target, Some(7)).expect("read"), Some(record));
        assert_eq!(next.all::<Vec<u32>>().len(), 1);
        let other = next.load::<Vec<u32>>(&target, Some(8)).expect("read");
        assert_eq!(other, None, "a group that was made later");
        assert!(!next.path(&target).exists());
    }

    #[test]
    fn a_record_of_another_boot_or_form_restores_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = records(folder.path());
        let target = Target::Unit("db.service".to_owned());
        let mut record = records.new_record(target.clone(), None, 1_u32);
        record.boot = "another".to_owned();
        records.save(&record).expect("saved");
        assert_eq!(records.load::<u32>(&target, None).expect("read"), None);
        record.form = 99;
        records.save(&record).expect("saved");
        let error = records.load::<u32>(&target, None).expect_err("refused");
        assert!(error.to_string().contains("form 99"), "{error}");
        fs::write(records.path(&target), b"{\"form\":").expect("written");
        let error = records.load::<u32>(&target, None).expect_err("refused");
        assert!(error.to_string().contains("is no record"), "{error}");
    }
}
