//! For which service which limits of disk and CPU were put into force: a file beside the records of
//! what there was before, so that the next process knows which of these are to be given back.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bonsai_cgroup::Target;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::find::wrong;

/// Who has what, beside those records.
const OWNED: &str = "services.json";

const VERSION: u32 = 1;

/// More than a hundred thousand services.
const MOST: u64 = 64 << 20;

/// What was put into force for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owned {
    /// What it is, as it is written.
    pub(super) place: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) disk: Option<OwnedDisk>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<OwnedCpu>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnedDisk {
    pub(super) target: Target,
    /// Bytes per s, read and written.
    pub(super) limits: [Option<u64>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnedCpu {
    pub(super) target: Target,
    /// As they are written.
    pub(super) terms: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    services: BTreeMap<String, Owned>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Owners {
    path: PathBuf,
    /// `None` until it is read.
    all: Option<BTreeMap<String, Owned>>,
}

impl Owners {
    /// That of a folder.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            path: folder.join(OWNED),
            all: None,
        }
    }

    /// All of them, by the names of the services.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub(super) fn all(&mut self) -> Result<&mut BTreeMap<String, Owned>, Error> {
        let read = match self.all.take() {
            Some(read) => read,
            None => read(&self.path)?,
        };
        Ok(self.all.insert(read))
    }

    /// Changes what is written down of a service. One that has nothing is forgotten.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub(super) fn change(
        &mut self,
        id: &str,
        change: impl FnOnce(&mut Owned),
    ) -> Result<(), Error> {
        let all = self.all()?;
        let before = all.get(id).cloned();
        let mut one = before.clone().unwrap_or_default();
        change(&mut one);
        let is_nothing = one.disk.is_none() && one.cpu.is_none();
        let after = (!is_nothing).then_some(one);
        if before == after {
            return Ok(());
        }
        match after {
            Some(one) => all.insert(id.to_owned(), one),
            None => all.remove(id),
        };
        let record = Record {
            version: VERSION,
            services: std::mem::take(all),
        };
        let saved = save(&self.path, &record);
        self.all = Some(record.services);
        saved
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Owned>, Error> {
    let of_file = |source| Error::File {
        path: path.to_owned(),
        source,
    };
    let damaged = |what: String| {
        wrong(format!(
            "{} is damaged: {what}; take it away, and bonsai disk clear and bonsai cpu clear take \
             away what is in force",
            path.display()
        ))
    };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(of_file(error)),
        Ok(meta) if meta.len() > MOST => {
            return Err(damaged(format!("{} bytes are no record", meta.len())));
        }
        Ok(_) => {}
    }
    let bytes = fs::read(path).map_err(of_file)?;
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if record.version != VERSION {
        return Err(damaged(format!(
            "it is of version {}, not {VERSION}",
            record.version
        )));
    }
    Ok(record.services)
}

/// Replaces the file as a whole; it is on disk afterwards.
fn save(path: &Path, record: &Record) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let write = || -> io::Result<()> {
        let bytes = serde_json::to_vec(record)?;
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(folder)?;
        file.write_all(&bytes)?;
        file.as_file().sync_data()?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}
