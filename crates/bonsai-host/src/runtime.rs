use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

/// Why there is no safe directory for the services of this user.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// `BONSAI_RUNTIME_DIR` is a relative path.
    #[error("BONSAI_RUNTIME_DIR must be an absolute path, but it is `{}`", path.display())]
    Relative {
        /// The value of the variable.
        path: PathBuf,
    },
    /// The directory can be neither opened nor created.
    #[error("cannot create the runtime directory `{}`", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something else is in its place.
    #[error(
        "the runtime directory `{}` is a symbolic link or a file, but it must be a directory",
        path.display()
    )]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Someone else owns it.
    #[error(
        "the runtime directory `{}` belongs to user {owner}, but it must belong to user {uid}",
        path.display()
    )]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// The owner's user ID.
        owner: u32,
        /// The effective user ID of this process.
        uid: u32,
    },
    /// Others may enter it, or its owner may not.
    #[error(
        "the runtime directory `{}` has mode {mode:03o}, but it must have mode 700 \
         (`chmod 700` repairs it)",
        path.display()
    )]
    Mode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// The directory that holds the services of this user, created if need be.
///
/// It is `$BONSAI_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/bonsai` if that directory is the user's own,
/// else `/run/bonsai` for root, else `/dev/shm/bonsai-UID`. It is a real directory, owned by the
/// effective user of this process, and nobody else has access. (Root's may be passed through: mode
/// 711.)
///
/// # Errors
///
/// One clear sentence for each way in which it can fail to be that.
pub fn runtime_dir() -> Result<PathBuf, RuntimeDirError> {
    let path = runtime_dir_path()?;
    private_dir(&path)?;
    Ok(path)
}

/// The path that [`runtime_dir`] would give; nothing is created or checked.
///
/// # Errors
///
/// [`RuntimeDirError::Relative`].
pub fn runtime_dir_path() -> Result<PathBuf, RuntimeDirError> {
    if let Some(path) = CHOSEN.get() {
        return Ok(path.clone());
    }
    let uid = rustix::process::geteuid().as_raw();
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    choose(var, uid, |path| owner(path) == Some(uid))
}

/// The path given to [`choose_runtime_dir`].
static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Has [`runtime_dir`] be this from now on, whatever the environment says. The first path given stays.
pub fn choose_runtime_dir(path: PathBuf) {
    let _ = CHOSEN.set(path);
}

/// True where the directory is not the user's usual one: by `$BONSAI_RUNTIME_DIR` or [`choose_runtime_dir`].
#[must_use]
pub fn is_runtime_dir_chosen() -> bool {
    CHOSEN.get().is_some() || std::env::var_os("BONSAI_RUNTIME_DIR").is_some()
}

fn choose(
    var: impl Fn(&str) -> Option<OsString>,
    uid: u32,
    is_own: impl Fn(&Path) -> bool,
) -> Result<PathBuf, RuntimeDirError> {
    if let Some(path) = var("BONSAI_RUNTIME_DIR").map(PathBuf::from) {
        if path.is_relative() {
            return Err(RuntimeDirError::Relative { path });
        }
        return Ok(path);
    }
    // The XDG specification has relative paths ignored. A directory of someone else is left over
    // from before `sudo` or `su`.
    let xdg = var("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(path) = xdg.filter(|path| path.is_absolute() && is_own(path)) {
        return Ok(path.join("bonsai"));
    }
    Ok(if uid == 0 {
        PathBuf::from("/run/bonsai")
    } else {
        PathBuf::from(format!("/dev/shm/bonsai-{uid}"))
    })
}

fn owner(path: &Path) -> Option<u32> {
    rustix::fs::stat(path).ok().map(|stat| stat.st_uid)
}

/// Makes sure that `path` is a directory that only its owner, the effective user of this process,
/// has access to; creates it if it is missing, its parent not.
///
/// # Errors
///
/// As [`runtime_dir`], never [`RuntimeDirError::Relative`].
pub fn private_dir(path: &Path) -> Result<(), RuntimeDirError> {
    let create = |errno: Errno| RuntimeDirError::Create {
        path: path.to_owned(),
        source: errno.into(),
    };
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(create(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stat = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(directory) => rustix::fs::fstat(&directory).map_err(create)?,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            return Err(RuntimeDirError::NotADirectory {
                path: path.to_owned(),
            });
        }
        // Not to be opened, so it belongs to someone else or has a wrong mode: `stat` tells.
        Err(Errno::ACCESS) => rustix::fs::lstat(path).map_err(create)?,
        Err(errno) => return Err(create(errno)),
    };
    check(path, &stat)
}

fn check(path: &Path, stat: &Stat) -> Result<(), RuntimeDirError> {
    let uid = rustix::process::geteuid().as_raw();
    let mode = stat.st_mode & 0o777;
    if stat.st_uid != uid {
        return Err(RuntimeDirError::ForeignOwner {
            path: path.to_owned(),
            owner: stat.st_uid,
            uid,
        });
    }
    // Others pass through root's, to the socket of the machine's daemon, and see nothing.
    if mode != 0o700 && !(uid == 0 && mode == 0o711) {
        return Err(RuntimeDirError::Mode {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use super::{RuntimeDirError, choose};

    fn chosen(vars: &[(&str, &str)], uid: u32, own: &str) -> Result<PathBuf, RuntimeDirError> {
        let var = |name: &str| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        choose(var, uid, |path| path == Path::new(own))
    }

    #[test]
    fn the_first_usable_place_is_chosen() {
        let bonsai = ("BONSAI_RUNTIME_DIR", "/a/b");
        let xdg = ("XDG_RUNTIME_DIR", "/run/user/7");
        let path = |vars: &[_], uid, own| chosen(vars, uid, own).expect("a path");
        assert_eq!(path(&[bonsai, xdg], 7, "/run/user/7"), Path::new("/a/b"));
        assert_eq!(
            path(&[xdg], 7, "/run/user/7"),
            Path::new("/run/user/7/bonsai")
        );
        assert_eq!(
            path(&[xdg], 0, "/"),
            Path::new("/run/bonsai"),
            "left over from sudo"
        );
        assert_eq!(
            path(&[("XDG_RUNTIME_DIR", "x")], 7, "x"),
            Path::new("/dev/shm/bonsai-7")
        );
        assert_eq!(path(&[], 7, "/"), Path::new("/dev/shm/bonsai-7"));
        assert_eq!(path(&[], 0, "/"), Path::new("/run/bonsai"));
    }

    #[test]
    fn a_relative_path_is_refused() {
        let error = chosen(&[("BONSAI_RUNTIME_DIR", "a/b")], 7, "/").expect_err("relative");
        let text = "BONSAI_RUNTIME_DIR must be an absolute path, but it is `a/b`";
        assert_eq!(error.to_string(), text);
    }
}
