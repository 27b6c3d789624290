//! Files in a folder that a configuration names: read without following a link, and only where no user but the daemon's and
//! root can have written them; replaced as a whole, by a file whose name cannot be foreseen.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use bonsai_services::refusal::Refusal;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

/// The most bytes of a file of the state: more than all bounds of its content together.
const MOST: u64 = 64 << 20;

/// Rights that let others than the owner write.
const WRITABLE: u32 = 0o022;

fn refused(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// The content of a file; none where there is no file.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => {
            return Err(refused("it is a link, and has to be a file".to_owned()));
        }
        Err(errno) => return Err(errno.into()),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(refused("it is no regular file".to_owned()));
    }
    is_trusted(&meta)?;
    let mut bytes = Vec::new();
    if file.take(MOST + 1).read_to_end(&mut bytes)? as u64 > MOST {
        return Err(refused(format!("it has more than {MOST} bytes")));
    }
    Ok(Some(bytes))
}

/// Refuses a file that others than this process' user and root can have written.
fn is_trusted(meta: &fs::Metadata) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(refused(format!("it belongs to user {}", meta.uid())));
    }
    let mode = meta.mode() & 0o7777;
    if mode & WRITABLE != 0 {
        return Err(refused(format!("others may write to it (mode {mode:04o})")));
    }
    Ok(())
}

/// Refuses a folder for files that survive a restart where others than its owner and root write. For root, neither may
/// others put another folder in its place.
pub(crate) fn check_folder(folder: &Path) -> io::Result<()> {
    is_trusted(&fs::metadata(folder)?)?;
    if !rustix::process::geteuid().is_root() || !is_initial_namespace() {
        return Ok(());
    }
    let folder = folder.canonicalize()?;
    for above in folder.ancestors().skip(1) {
        let meta = fs::metadata(above)?;
        let is_sticky = meta.mode() & 0o1000 != 0;
        if meta.uid() != 0 || meta.mode() & WRITABLE != 0 && !is_sticky {
            return Err(refused(format!(
                "users may put another folder in its place, for {} is theirs to write (owner {}, mode {:04o})",
                above.display(),
                meta.uid(),
                meta.mode() & 0o7777
            )));
        }
    }
    Ok(())
}

/// The user namespace that has all users (user_namespaces(7)). In others, folders above are of users without a number.
fn is_initial_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
}

/// Refuses a file of a version that this program does not know; a missing number is the first.
///
/// # Errors
/// A newer version: parts unknown to this program would be lost with the next write.
pub(crate) fn check_version(path: &Path, found: Option<u64>, known: u64) -> anyhow::Result<()> {
    match found {
        Some(found) if found > known => Err(Refusal::input(format!(
            "{}: is of version {found}, and this program knows up to {known}: use the newer program, or move the file away",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Replaces a file as a whole, for its owner alone: whatever happens meanwhile, also to the machine, all of it is there or what
/// was there before.
pub(crate) fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = beside(path, value)?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    folder_of(path).and_then(File::open)?.sync_all()
}

/// The same for what is of no use after a crash of the machine: the disk is not waited for.
pub(crate) fn replace_until_crash(path: &Path, value: &impl Serialize) -> io::Result<()> {
    beside(path, value)?.persist(path)?;
    Ok(())
}

fn folder_of(path: &Path) -> io::Result<&Path> {
    path.parent()
        .ok_or_else(|| refused("it is in no folder".to_owned()))
}

/// The beginning of names of files that are to replace that one.
fn prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.")
}

/// The file that is to replace another.
fn beside(path: &Path, value: &impl Serialize) -> io::Result<tempfile::NamedTempFile> {
    let mut new = tempfile::Builder::new()
        .prefix(&prefix(path))
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder_of(path)?)?;
    new.write_all(&serde_json::to_vec(value)?)?;
    Ok(new)
}

/// Removes what was to replace a file when its writer was killed.
pub(crate) fn sweep(path: &Path) -> io::Result<()> {
    let prefix = prefix(path);
    for entry in fs::read_dir(folder_of(path)?)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(&prefix) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(result: io::Result<Option<Vec<u8>>>) -> String {
        result.expect_err("refused").to_string()
    }

    #[test]
    fn a_file_that_others_can_have_made_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("changes.json");
        assert_eq!(read(&path).expect("nothing"), None);
        let victim = folder.path().join("victim");
        fs::write(&victim, "secret").expect("a file");
        std::os::unix::fs::symlink(&victim, &path).expect("a link");
        assert!(refusal(read(&path)).contains("link"));
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("a folder");
        assert!(refusal(read(&path)).contains("no regular file"));
        fs::remove_dir(&path).expect("removed");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .expect("a pipe");
        assert!(
            refusal(read(&path)).contains("no regular file"),
            "and it is not waited for"
        );
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "x").expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o620)).expect("a mode");
        assert!(refusal(read(&path)).contains("mode 0620"));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
        assert_eq!(read(&path).expect("read").as_deref(), Some(&b"x"[..]));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4711), None).expect("given away");
            assert!(refusal(read(&path)).contains("user 4711"));
        }
    }

    #[test]
    fn a_file_is_replaced_by_none_that_somebody_has_prepared() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("changes.json");
        let victim = folder.path().join("victim");
        fs::write(&victim, "untouched").expect("a file");
        for name in ["changes.json.new", ".changes.json.", "changes.json"] {
            std::os::unix::fs::symlink(&victim, folder.path().join(name)).expect("a link");
        }
        replace(&path, &7).expect("replaced");
        assert_eq!(fs::read_to_string(&victim).expect("text"), "untouched");
        let meta = fs::symlink_metadata(&path).expect("a file");
        assert!(meta.is_file() && meta.mode() & 0o777 == 0o600);
        assert_eq!(read(&path).expect("read").as_deref(), Some(&b"7"[..]));
        // A killed writer leaves one.
        fs::write(folder.path().join(".changes.json.AbCdEf"), "").expect("a file");
        fs::write(folder.path().join(".pages.json.AbCdEf"), "").expect("a file");
        sweep(&path).expect("swept");
        assert!(!folder.path().join(".changes.json.AbCdEf").exists());
        assert!(folder.path().join(".pages.json.AbCdEf").exists());
        assert!(
            folder.path().join(".changes.json.").is_symlink(),
            "no file of ours"
        );
    }

    #[test]
    fn a_folder_of_others_is_not_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        fs::create_dir(&state).expect("a folder");
        check_folder(&state).expect("it is fine");
        for mode in [0o777, 0o770, 0o1777] {
            fs::set_permissions(&state, Permissions::from_mode(mode)).expect("a mode");
            check_folder(&state).expect_err("others write there");
        }
        fs::set_permissions(&state, Permissions::from_mode(0o755)).expect("a mode");
        check_folder(&state).expect("it is fine");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.path(), Some(4711), None).expect("given away");
            let error = check_folder(&state)
                .expect_err("they may replace it")
                .to_string();
            assert!(error.contains("another folder in its place"), "{error}");
            std::os::unix::fs::chown(&state, Some(4711), None).expect("given away");
            let error = check_folder(&state).expect_err("it is theirs").to_string();
            assert!(error.contains("user 4711"), "{error}");
        }
    }
}
