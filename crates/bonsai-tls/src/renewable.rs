//! A certificate that is renewed while its server runs.
//!
//! # Invariants
//! 1. A configuration that is handed out was read as a whole, and its certificate and key fit together.
//! 2. Files that cannot be used leave the last configuration in its place, and the reason is told once.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;

use crate::files::{Files, ServerTls, TlsError};

/// A further condition on files, such as the permissions of the key.
type Check = fn(&Files, &ServerTls) -> Result<(), TlsError>;

/// Certificate and key of a server, and the files that they come from.
#[derive(Debug)]
pub struct Renewable {
    files: Files,
    check: Check,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    config: Arc<ServerConfig>,
    stamps: Stamps,
    problem: Option<String>,
}

/// Everything that differs when a file is another one, or has been written: device, inode, length, permissions, and the times of
/// content and inode.
type Stamp = Option<(u64, u64, u64, u32, [i64; 4])>;
type Stamps = [Stamp; 3];

/// Outcome of a look at files that are not what they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Read: the next client is shown them.
    Renewed,
    /// Not usable, for this reason.
    Refused(String),
}

impl Renewable {
    /// Reads the files, which have to pass the check now and later.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn open(files: Files, check: Check) -> Result<(Self, ServerTls), TlsError> {
        // Before they are read: a write in between is found by the next look.
        let stamps = stamps(&files);
        let tls = read(&files, check)?;
        let state = State {
            config: Arc::clone(&tls.config),
            stamps,
            problem: None,
        };
        let state = Mutex::new(state);
        let this = Self {
            files,
            check,
            state,
        };
        Ok((this, tls))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration for the next client.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.state().config)
    }

    /// Why the files as they are now are not used.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    /// Reads the files again where they have changed; `None` where they have not. Blocks for as long as the disk does.
    pub fn look(&self) -> Option<Look> {
        let stamps = stamps(&self.files);
        if self.state().stamps == stamps {
            return None;
        }
        let read = read(&self.files, self.check);
        let mut state = self.state();
        state.stamps = stamps;
        Some(match read {
            Ok(tls) => {
                state.config = tls.config;
                state.problem = None;
                Look::Renewed
            }
            // Of two files that are renewed one after the other, the second one ends this.
            Err(error) => {
                let why = error.to_string();
                state.problem = Some(why.clone());
                Look::Refused(why)
            }
        })
    }
}

fn read(files: &Files, check: Check) -> Result<ServerTls, TlsError> {
    let tls = files.read()?;
    check(files, &tls)?;
    Ok(tls)
}

fn stamps(files: &Files) -> Stamps {
    let of = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        let times = [
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ];
        Some((meta.dev(), meta.ino(), meta.len(), meta.mode(), times))
    };
    [
        of(&files.certificate),
        of(&files.key),
        files.client_authorities.as_deref().and_then(of),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    /// A certificate of its own authority, and its key; `None` without openssl.
    fn made(place: &Path) -> Option<[String; 2]> {
        let paths = ["made.pem", "made.key"].map(|name| place.join(name));
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost";
        let mut command = Command::new("openssl");
        command.args(words.split(' ')).arg("-out").arg(&paths[0]);
        let made = command.arg("-keyout").arg(&paths[1]).output();
        if !made.is_ok_and(|made| made.status.success()) {
            return None;
        }
        Some(paths.map(|path| fs::read_to_string(path).expect("made")))
    }

    #[test]
    fn renewed_files_are_used_and_wrong_ones_leave_the_last() {
        let place = tempfile::tempdir().expect("a folder");
        let paths = ["cert.pem", "key.pem"].map(|name| place.path().join(name));
        let write = |index: usize, text: &str| {
            // Another inode each time: clocks of file systems are coarse.
            let new = place.path().join("new");
            fs::write(&new, text).expect("written");
            let mode = fs::Permissions::from_mode(0o644);
            fs::set_permissions(&new, mode).expect("its own");
            fs::rename(new, &paths[index]).expect("in its place");
        };
        let (Some(one), Some(other)) = (made(place.path()), made(place.path())) else {
            return println!(
                "SKIP renewed_files_are_used_and_wrong_ones_leave_the_last: openssl is not installed"
            );
        };
        write(0, &one[0]);
        write(1, &one[1]);
        let [certificate, key] = paths.clone();
        let files = Files {
            certificate,
            key,
            client_authorities: None,
        };
        let refuses = |files: &Files, tls: &ServerTls| match tls.exposed_key() {
            true => Err(TlsError::key_mode(files, tls, 0o600)),
            false => Ok(()),
        };
        let error = Renewable::open(files.clone(), refuses).expect_err("a key that all can read");
        let words = "mode 644, by which others can read it: chmod 600";
        assert!(error.to_string().ends_with(words), "{error}");
        let (renewable, _) = Renewable::open(files, |_, _| Ok(())).expect("right");
        let first = renewable.config();
        assert_eq!(renewable.look(), None);
        write(0, &other[0]);
        let Some(Look::Refused(why)) = renewable.look() else {
            panic!("a key of another certificate");
        };
        assert!(
            why.contains("is not the key of the certificate in"),
            "{why}"
        );
        assert_eq!(renewable.problem(), Some(why));
        assert_eq!(renewable.look(), None, "told once");
        assert!(Arc::ptr_eq(&first, &renewable.config()));
        write(1, &other[1]);
        assert_eq!(renewable.look(), Some(Look::Renewed));
        assert_eq!(renewable.problem(), None);
        let second = renewable.config();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::remove_file(&paths[0]).expect("removed");
        assert!(matches!(renewable.look(), Some(Look::Refused(_))));
        assert!(Arc::ptr_eq(&second, &renewable.config()));
    }
}
