//! One writer for each folder.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::database::NO_LINK;
use crate::error::Error;

/// A lock that the kernel drops with its holder, however that ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Takes it.
    ///
    /// # Errors
    /// Somebody else has it, or there is no room for its file.
    pub(crate) fn take(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("history.lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let opened = options.mode(0o600).custom_flags(NO_LINK).open(&path);
        let mut file = opened.map_err(|error| Error::file(&path, error))?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(Error::file(&path, error));
            }
            let mut text = String::new();
            let _ = (&mut file).take(32).read_to_string(&mut text);
            let holder = text.trim().parse::<u32>();
            return Err(Error::Locked {
                path,
                holder: holder.map_or("another process".to_owned(), |pid| format!("process {pid}")),
            });
        }
        // The number only serves the sentence above: on a full disk it is missing.
        let _ = file.set_len(0);
        let _ = file.rewind();
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self { file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child that another thread is about to start has a copy of the descriptor for a
        // moment, and closing this one alone would leave it the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
