//! The secret that keys of groups are made of.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::files::{open_beside, sync_folder_of};

/// What separates keys of groups from all else that is derived from the secret.
const CONTEXT: &str = "bonsai 2026-11 drive key of a group";

/// Without it, no fingerprint can be made up or compared.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// One that ends with the process.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    /// The one of a file, which is made where there is none, readable for its owner alone. Of two that make it at once,
    /// both have the same.
    ///
    /// # Errors
    /// Those of the system; a file of another length, of another user, or which others can read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        match open_beside(path, false) {
            Ok(file) => return read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let fresh = Self::random()?;
        let draft = path.with_extension(format!("{}.part", std::process::id()));
        let made = write(&draft, &fresh)
            // Where another was faster, that one is taken.
            .and_then(|()| std::fs::hard_link(&draft, path))
            // Files that need it are written after it is there.
            .and_then(|()| sync_folder_of(path));
        // It is of no use whether it was linked or not.
        let _ = std::fs::remove_file(&draft);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => read(open_beside(path, false)?),
        }
    }

    /// The key of a group, by its name.
    #[must_use]
    pub fn group(&self, name: &str) -> [u8; 32] {
        let mut material = blake3::Hasher::new_derive_key(CONTEXT);
        material.update(&self.0).update(name.as_bytes());
        *material.finalize().as_bytes()
    }
}

fn write(path: &Path, secret: &Secret) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&secret.0)?;
    file.sync_all()
}

fn read(mut file: File) -> io::Result<Secret> {
    let meta = file.metadata()?;
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return refused("the secret belongs to another user");
    }
    if meta.mode() & 0o077 != 0 {
        return refused(
            "the secret can be read by others; chmod 600 mends it, or remove it for a new one",
        );
    }
    let mut bytes = [0; 32];
    match file.read_exact(&mut bytes) {
        Ok(()) if meta.len() == 32 => Ok(Secret(bytes)),
        Ok(()) => refused("the secret has more than 32 bytes; remove it for a new one"),
        Err(_) => refused("the secret has less than 32 bytes; remove it for a new one"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests may panic")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_made_once_for_its_owner_alone_and_keys_differ_by_group_and_by_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let first = Secret::of_file(&path).unwrap();
        let again = Secret::of_file(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
        assert_eq!(first.group("a"), again.group("a"));
        assert_ne!(first.group("a"), first.group("b"));
        assert_ne!(first.group("a"), Secret::random().unwrap().group("a"));
    }

    #[test]
    fn a_secret_that_others_can_read_or_that_is_cut_short_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        Secret::of_file(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(
            Secret::of_file(&path)
                .unwrap_err()
                .to_string()
                .contains("read by others")
        );
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        Secret::of_file(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [1; 31]).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(
            Secret::of_file(&path)
                .unwrap_err()
                .to_string()
                .contains("less than 32")
        );
    }
}
