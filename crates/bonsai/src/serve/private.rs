//! Files with secrets in them, which other users must neither read nor change.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use bonsai_stream::folder::Stamp;
use rustix::fs::OFlags;

/// Bytes of such a file at most.
const LONGEST: u64 = 1 << 20;

/// The state of a file, which is another one when it is written or replaced.
///
/// # Errors
/// The file cannot be opened, in words.
pub(super) fn stamp(path: &Path) -> Result<Stamp, String> {
    of(&open(path)?)
}

/// The text of a file, and its state.
///
/// # Errors
/// The file is a link or no file, others can read it, or it cannot be read, in words.
pub(super) fn read(path: &Path) -> Result<(String, Stamp), String> {
    let file = open(path)?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is no file".into());
    }
    let mode = meta.mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(format!(
            "it has mode {mode:03o}, by which others can read or change it: chmod 640 or 600 is right"
        ));
    }
    let stamp = of(&file)?;
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text);
    if read.map_err(|error| bonsai_host::sentence(&error))? as u64 > LONGEST {
        return Err("it is larger than 1 MiB".into());
    }
    Ok((text, stamp))
}

fn open(path: &Path) -> Result<File, String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    let options = options.read(true).custom_flags(flags.bits().cast_signed());
    options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
                "it is a link, which could lead elsewhere tomorrow: name the file itself".to_owned()
            }
            _ => bonsai_host::sentence(&error),
        })
}

fn of(file: &File) -> Result<Stamp, String> {
    Stamp::of(file).map_err(|error| bonsai_host::sentence(&error))
}
