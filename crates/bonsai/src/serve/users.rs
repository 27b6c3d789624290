//! A file of users that may ask, read again when it is another one.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use bonsai_media::access::{Guard, Users};
use bonsai_services::refusal::Refusal;
use bonsai_stream::folder::Stamp;

use super::private;
use crate::output::say;

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
        let Ok(now) = private::stamp(path) else {
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

fn read(path: &Path) -> Result<(Users, Stamp), String> {
    let (text, stamp) = private::read(path)?;
    Ok((Users::parse(&text)?, stamp))
}
