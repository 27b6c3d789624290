//! Set-id bits and file capabilities, compared with what the kernel and the loader make of them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bonsai_host::elf::{Caller, Cover, inspect, inspect_for};
use tempfile::{TempDir, tempdir};

use crate::{find_program, is_root, run, set_mode, skip};

/// A user and group that exist everywhere and own nothing.
const NOBODY: u32 = 65534;
const USER: Caller = Caller {
    uid: NOBODY,
    gid: NOBODY,
    no_new_privs: false,
};

/// A copy of `true` in a directory that every user may enter.
fn copy() -> (TempDir, PathBuf) {
    let directory = tempdir().expect("a directory");
    set_mode(directory.path(), 0o755);
    let path = directory.path().join("true");
    fs::copy(find_program("true").expect("true"), &path).expect("a copy");
    (directory, path)
}

/// Whether glibc's loader listens to the environment when `user` starts the program; it is deaf
/// when the kernel marks the program as secure. `None` if the user may not start it at all.
fn may_listen(path: &Path, user: u32) -> Option<bool> {
    let mut command = Command::new(path);
    command.env("LD_SHOW_AUXV", "1").uid(user).gid(user);
    match run(&mut command) {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).contains("AT_SECURE")),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

fn loader_listens(path: &Path, user: u32) -> bool {
    may_listen(path, user).expect("everyone may start it")
}

#[test]
fn set_id_programs() {
    let name = "set_id_programs";
    if !is_root() {
        return skip(name, "only root can give files away");
    }
    let (_directory, path) = copy();
    if !loader_listens(&path, 0) {
        return skip(name, "the loader does not know LD_SHOW_AUXV");
    }
    let nosuid = inspect(&path).expect("readable").privilege.nosuid;
    if nosuid {
        return skip(name, "the temporary directory is mounted nosuid");
    }
    let root = Caller {
        uid: 0,
        gid: 0,
        no_new_privs: false,
    };
    let mut secure = 0;
    for (owner, group, mode) in [
        (0, 0, 0o755),
        (0, 0, 0o4755),
        (NOBODY, 0, 0o4755),
        (NOBODY, NOBODY, 0o4755),
        (0, NOBODY, 0o2755),
        (0, NOBODY, 0o2745),
        (0, 0, 0o2755),
        (NOBODY, NOBODY, 0o6755),
    ] {
        chown(&path, Some(owner), Some(group)).expect("root may");
        set_mode(&path, mode);
        for caller in [root, USER] {
            let program = inspect_for(&path, &caller).expect("readable");
            let what = format!("{owner}:{group} {mode:o} for {}", caller.uid);
            let Some(listens) = may_listen(&path, caller.uid) else {
                continue;
            };
            assert_eq!(
                program.cover.is_enterable(),
                listens,
                "{what}: {}",
                program.cover
            );
            if !listens {
                assert_eq!(program.cover, Cover::SetId, "{what}");
                secure += 1;
                let locked = Caller {
                    no_new_privs: true,
                    ..caller
                };
                let cover = inspect_for(&path, &locked).expect("readable").cover;
                assert_eq!(cover, Cover::Enterable, "{what}: no_new_privs");
            }
        }
    }
    assert!(secure >= 5, "{secure} secure starts");
    // Left set-user-ID to someone else: so it is for this process, which is root.
    chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may");
    set_mode(&path, 0o4755);
    assert_eq!(inspect(&path).expect("readable").cover, Cover::SetId);
}

#[test]
fn file_capabilities() {
    let name = "file_capabilities";
    if !is_root() {
        return skip(name, "only root can set file capabilities");
    }
    let (_directory, path) = copy();
    if !loader_listens(&path, NOBODY) {
        return skip(name, "the loader does not know LD_SHOW_AUXV");
    }
    // Revision 2: CAP_NET_RAW (13) permitted and effective; the same, only inheritable.
    for (words, gives) in [
        ([0x0200_0001_u32, 1 << 13, 0, 0, 0], true),
        ([0x0200_0000, 1 << 13, 0, 0, 0], true),
        ([0x0200_0000, 0, 1 << 13, 0, 0], false),
    ] {
        let value = words.map(u32::to_le_bytes).concat();
        let flags = rustix::fs::XattrFlags::empty();
        if let Err(errno) = rustix::fs::setxattr(&path, "security.capability", &value, flags) {
            return skip(
                name,
                &format!("no extended attributes in the temporary directory: {errno}"),
            );
        }
        let program = inspect_for(&path, &USER).expect("readable");
        assert_eq!(program.privilege.capabilities, gives, "{words:x?}");
        assert_eq!(
            program.cover.is_enterable(),
            loader_listens(&path, NOBODY),
            "{words:x?}"
        );
        assert_eq!(program.cover == Cover::FileCaps, gives, "{words:x?}");
        let for_root = inspect(&path).expect("readable").cover;
        assert_eq!(
            for_root.is_enterable(),
            loader_listens(&path, 0),
            "{words:x?} for root"
        );
    }
}
