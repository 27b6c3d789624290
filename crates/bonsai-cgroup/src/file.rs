//! Files of control groups: small texts of the kernel.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use rustix::io::Errno;

use crate::error::Error;

/// The most that is read of a file. `io.stat` has 200 bytes a device.
const MOST: u64 = 4 << 20;

/// The text of a file.
pub(crate) fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// The text of a file that has to be there.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn need(file: &Path) -> Result<String, Error> {
    read(file).map_err(|source| Error::File {
        file: file.to_owned(),
        source,
    })
}

/// Writes a line in one call, as the kernel wants it.
///
/// # Errors
/// What the system says.
pub(crate) fn write(file: &Path, line: &str) -> io::Result<()> {
    let mut opened = OpenOptions::new().write(true).open(file)?;
    opened.write_all(line.as_bytes())
}

/// What a failed write to a file of a group means. `what` is what was to be set.
pub(crate) fn refused(source: io::Error, file: &Path, path: &str, what: &str) -> Error {
    let folder = file.parent().unwrap_or(file);
    // The kernel says ENODEV for a group that is being removed, and for a device it does not know.
    if !fs::exists(folder).unwrap_or(true) {
        return Error::Vanished {
            path: path.to_owned(),
        };
    }
    match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::NoRights {
            file: file.to_owned(),
            source,
        },
        _ if Errno::from_io_error(&source) == Some(Errno::NODEV) => Error::NoDevice {
            name: what.to_owned(),
        },
        _ => Error::Refused {
            what: what.to_owned(),
            target: path.to_owned(),
            source,
        },
    }
}
