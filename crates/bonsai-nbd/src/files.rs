//! Opening files in folders that others may write to.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

/// Opens what has a name without any effect on it, to look at it: no device, FIFO or socket is opened.
///
/// # Errors
/// Those of open(2).
pub(crate) fn look_up(path: &Path, follow: bool) -> io::Result<File> {
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    if !follow {
        flags |= OFlags::NOFOLLOW;
    }
    Ok(open(path, flags, Mode::empty())?.into())
}

/// Opens what [`look_up`] found, whatever has its name by now.
///
/// # Errors
/// Those of open(2); `/proc` is not mounted.
pub(crate) fn open_found(found: &File, options: &OpenOptions) -> io::Result<File> {
    options.open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Opens a regular file of this user or root that lies in a folder to which others may write: no link, and nothing whose
/// opening waits or has an effect.
///
/// # Errors
/// Those of open(2), with ELOOP for a link; [`io::ErrorKind::InvalidInput`] for what is no regular file, belongs to
/// another user, or can be written by others.
pub(crate) fn open_beside(path: &Path, write: bool) -> io::Result<File> {
    let found = look_up(path, false)?;
    let meta = found.metadata()?;
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if meta.file_type().is_symlink() {
        return refused("is a symbolic link, not a regular file");
    }
    if !meta.is_file() {
        return refused("is not a regular file");
    }
    if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return refused("belongs to another user");
    }
    if meta.mode() & 0o022 != 0 {
        return refused("can be written by other users");
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(write)
        .custom_flags(libc::O_NONBLOCK);
    open_found(&found, &options)
}

/// Has the names in the folder of a file on the disk: what was linked, renamed or removed there.
///
/// # Errors
/// Those of the system.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_regular_file_of_the_right_owner_is_opened_beside_an_image() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), b"x").expect("written");
        open_beside(&path("file"), true).expect("opened");
        symlink(path("file"), path("link")).expect("linked");
        std::fs::create_dir(path("folder")).expect("made");
        let _socket = UnixListener::bind(path("socket")).expect("bound");
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), fifo, Mode::RWXU, 0).expect("made");
        // Character device 1:7 is full(4); an ordinary user cannot make one.
        let device = rustix::fs::makedev(1, 7);
        let kind = rustix::fs::FileType::CharacterDevice;
        let made = rustix::fs::mknodat(rustix::fs::CWD, path("device"), kind, Mode::RWXU, device);
        let mut others = vec!["link", "folder", "socket", "fifo"];
        others.extend(made.ok().map(|()| "device"));
        for name in others {
            for write in [false, true] {
                let error = open_beside(&path(name), write).expect_err(name);
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
            }
        }
        let mode = std::fs::Permissions::from_mode(0o622);
        std::fs::set_permissions(path("file"), mode).expect("changed");
        open_beside(&path("file"), false).expect_err("others can write to it");
        if rustix::process::geteuid().is_root() {
            std::fs::write(path("theirs"), b"x").expect("written");
            std::os::unix::fs::chown(path("theirs"), Some(65534), None).expect("given away");
            open_beside(&path("theirs"), false).expect_err("it is another user's");
        }
    }
}
