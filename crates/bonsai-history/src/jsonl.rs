//! The audit trail as a file of JSON lines.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::audit::AuditEntry;
use crate::database::{NO_LINK, beside, restrict};
use crate::error::Error;

/// A file that entries are appended to, one JSON object a line, each on disk when
/// [`append`](Self::append) returns.
///
/// When it would become longer than its bound it gets the name `NAME.1`, that one `NAME.2`,
/// and so on; the last is removed. So all together have at most `(kept + 1) * bound` bytes.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
    kept: u32,
}

impl AuditLog {
    /// Opens the file, or makes it with mode 0600. A last line that was cut off (the machine
    /// lost its power) is ended, so that what follows stands on lines of its own.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, most: u64, kept: u32) -> Result<Self, Error> {
        let (file, bytes) = open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            most,
            kept,
        })
    }

    /// Appends an entry and waits until it is on disk.
    ///
    /// # Errors
    /// What the system says; then nothing of the entry stays in the file.
    pub fn append(&mut self, entry: &AuditEntry) -> Result<(), Error> {
        let mut line =
            serde_json::to_vec(entry).map_err(|error| Error::Encode(error.to_string()))?;
        line.push(b'\n');
        let length = line.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.most {
            self.rotate()?;
        }
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Half a line would be read as damage.
            let _ = self.file.set_len(self.bytes);
            return Err(Error::file(&self.path, error));
        }
        self.bytes += length;
        Ok(())
    }

    fn rotate(&mut self) -> Result<(), Error> {
        let name = |number: u32| match number {
            0 => self.path.clone(),
            n => beside(&self.path, &format!(".{n}")),
        };
        if self.kept == 0 {
            fs::remove_file(&self.path).map_err(|error| Error::file(&self.path, error))?;
        }
        for number in (0..self.kept).rev() {
            let (from, to) = (name(number), name(number + 1));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::file(&from, error));
                }
                _ => {}
            }
        }
        (self.file, self.bytes) = open(&self.path)?;
        Ok(())
    }
}

fn open(path: &Path) -> Result<(File, u64), Error> {
    let failed = |error| Error::file(path, error);
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.custom_flags(NO_LINK);
    let mut file = options.open(path).map_err(failed)?;
    restrict(path, 0o600)?;
    let mut bytes = file.metadata().map_err(failed)?.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1)).map_err(failed)?;
        file.read_exact(&mut last).map_err(failed)?;
        if last != *b"\n" {
            file.write_all(b"\n").map_err(failed)?;
            bytes += 1;
        }
    }
    Ok((file, bytes))
}
