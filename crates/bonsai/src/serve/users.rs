//! A file of users that may ask, read again when it is another one.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use bonsai_media::access::{Guard, Users};
use bonsai_services::refusal::Refusal;
use bonsai_stream::folder::Stamp;
use rustix::fs::OFlags;

use crate::output::say;

/// Maximum length of a file of users, in bytes.
const LONGEST: u64 = 1 << 20;

/// Time between two looks at the file.
const LOOKS: Duration = Duration::from_secs(1);

/// Guards of both ways to the same files.
#[derive(Clone, Debug)]
pub(super) struct Guards {
    pub(super) rtsp: Arc<Guard>,
    pub(super) http: Arc<Guard>,
}

impl Guards {
    /// Reads a file of users, and reads it again for as long as these are there.
    ///
    /// # Errors
    /// The file cannot be read, others may read or write it, or a line is wrong.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let (users, stamp) = read(path)
            .map_err(|why| Refusal::input(format!("--users {}: {why}", path.display())))?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|error| anyhow::anyhow!("there are no random bytes: {error}"))?;
        let guards = Self {
            rtsp: Arc::new(Guard::for_rtsp(users.clone(), secret)),
            http: Arc::new(Guard::for_http(users, secret)),
        };
        let of = [&guards.rtsp, &guards.http].map(Arc::downgrade);
        let path = path.to_owned();
        thread::Builder::new()
            .name("users".to_owned())
            .spawn(move || follow(&path, stamp, &of))?;
        Ok(guards)
    }
}

/// On a thread of its own, as a file system may hang.
fn follow(path: &Path, mut last: Stamp, guards: &[Weak<Guard>; 2]) {
    loop {
        thread::sleep(LOOKS);
        if guards.iter().all(|guard| guard.strong_count() == 0) {
            return;
        }
        // A file that is gone for a moment is being replaced.
        let Ok(now) = open(path).and_then(|file| stamp(&file)) else {
            continue;
        };
        if now == last {
            continue;
        }
        last = now;
        match read(path) {
            Ok((users, now)) => {
                last = now;
                for guard in guards.iter().filter_map(Weak::upgrade) {
                    guard.replace(users.clone());
                }
                say!("bonsai: {}: read again", path.display());
            }
            Err(why) => say!(
                "bonsai: {}: {why}: the users of before stay",
                path.display()
            ),
        }
    }
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

fn stamp(file: &File) -> Result<Stamp, String> {
    Stamp::of(file).map_err(|error| bonsai_host::sentence(&error))
}

fn read(path: &Path) -> Result<(Users, Stamp), String> {
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
    let stamp = stamp(&file)?;
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text);
    if read.map_err(|error| bonsai_host::sentence(&error))? as u64 > LONGEST {
        return Err("it is larger than 1 MiB".into());
    }
    Ok((Users::parse(&text)?, stamp))
}
