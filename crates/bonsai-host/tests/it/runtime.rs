//! The private directory.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};

use bonsai_host::{RuntimeDirError, private_dir};
use tempfile::tempdir;

use crate::{is_root, set_mode, skip};

#[test]
fn it_is_created_private_and_kept() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("bonsai");
    for _ in 0..2 {
        private_dir(&path).expect("private");
        let metadata = fs::symlink_metadata(&path).expect("there");
        assert!(metadata.is_dir());
        assert_eq!(metadata.mode() & 0o7777, 0o700);
    }
}

#[test]
fn anything_else_in_its_place_is_refused() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("bonsai");
    let target = directory.path().join("target");
    fs::create_dir(&target).expect("a directory");
    set_mode(&target, 0o700);

    symlink(&target, &path).expect("a link");
    let error = private_dir(&path).expect_err("a link");
    assert!(
        matches!(error, RuntimeDirError::NotADirectory { .. }),
        "{error}"
    );
    fs::remove_file(&path).expect("removed");

    fs::write(&path, "").expect("a file");
    let error = private_dir(&path).expect_err("a file");
    assert!(
        matches!(error, RuntimeDirError::NotADirectory { .. }),
        "{error}"
    );

    for mode in [0o755, 0o750, 0o701, 0o000, 0o500] {
        set_mode(&target, mode);
        let error = private_dir(&target).expect_err("a wrong mode");
        let expected = format!("has mode {mode:03o}, but it must have mode 700");
        assert!(error.to_string().contains(&expected), "{error}");
    }

    let error = private_dir(&directory.path().join("missing/bonsai")).expect_err("no parent");
    assert!(matches!(error, RuntimeDirError::Create { .. }), "{error}");
}

#[test]
fn a_directory_of_someone_else_is_refused() {
    if !is_root() {
        return skip(
            "a_directory_of_someone_else",
            "only root can give directories away",
        );
    }
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("bonsai");
    private_dir(&path).expect("private");
    chown(&path, Some(65534), None).expect("root may");
    let error = private_dir(&path).expect_err("foreign").to_string();
    assert!(
        error.contains("belongs to user 65534, but it must belong to user 0"),
        "{error}"
    );

    // Seen from the other side: it cannot even be opened.
    chown(&path, Some(0), None).expect("root may");
    set_mode(directory.path(), 0o755);
    let as_nobody = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        private_dir(&path)
    });
    let error = as_nobody
        .join()
        .expect("no panic")
        .expect_err("foreign")
        .to_string();
    assert!(
        error.contains("belongs to user 0, but it must belong to user 65534"),
        "{error}"
    );
}
