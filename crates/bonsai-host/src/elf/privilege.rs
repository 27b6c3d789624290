//! What a program file adds to the rights of whoever starts it.
//!
//! The loader ignores `LD_PRELOAD` in programs that the kernel marks by `AT_SECURE`: those whose
//! user or group is not the caller's, and those whose file capabilities raise the rights of a caller
//! who is not root (`cap_bprm_creds_from_file` in `security/commoncap.c`).

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use crate::Error;

/// Who starts a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Real user ID.
    pub uid: u32,
    /// Real group ID.
    pub gid: u32,
    /// Whether `PR_SET_NO_NEW_PRIVS` is on, under which files add no rights.
    pub no_new_privs: bool,
}

impl Caller {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        Self {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            no_new_privs: rustix::thread::no_new_privs().unwrap_or(false),
        }
    }
}

/// What the file of a program adds to the rights of its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privilege {
    /// The user it runs as, if the set-user-ID bit is set.
    pub set_uid: Option<u32>,
    /// The group it runs as, if the set-group-ID bit is set.
    pub set_gid: Option<u32>,
    /// Whether file capabilities (`security.capability`) give rights.
    pub capabilities: bool,
    /// Whether the file system is mounted `nosuid`, so that none of these counts.
    pub nosuid: bool,
}

impl Privilege {
    /// Whether the program would run as another user or group than its caller.
    #[must_use]
    pub fn changes_id(&self, caller: &Caller) -> bool {
        let other_user = self.set_uid.is_some_and(|uid| uid != caller.uid);
        let other_group = self.set_gid.is_some_and(|gid| gid != caller.gid);
        self.counts(caller) && (other_user || other_group)
    }

    /// Whether file capabilities would raise the rights of the caller. Root has them anyway.
    #[must_use]
    pub fn raises_capabilities(&self, caller: &Caller) -> bool {
        self.counts(caller) && self.capabilities && caller.uid != 0
    }

    fn counts(&self, caller: &Caller) -> bool {
        !self.nosuid && !caller.no_new_privs
    }
}

pub(super) fn read(path: &Path, file: &File) -> Result<Privilege, Error> {
    const SET_UID: u32 = 0o4000;
    // Without the group's execute bit, set-group-ID means something else (mandatory locking).
    const SET_GID_AND_GROUP_EXECUTE: u32 = 0o2010;
    let metadata = file
        .metadata()
        .map_err(|source| Error::read(path, source))?;
    let mount = rustix::fs::fstatvfs(file).map_err(|errno| Error::read(path, errno))?;
    let mode = metadata.mode();
    let set_gid = mode & SET_GID_AND_GROUP_EXECUTE == SET_GID_AND_GROUP_EXECUTE;
    Ok(Privilege {
        set_uid: (mode & SET_UID != 0).then(|| metadata.uid()),
        set_gid: set_gid.then(|| metadata.gid()),
        capabilities: capabilities(path, file)?,
        nosuid: mount.f_flag.contains(StatVfsMountFlags::NOSUID),
    })
}

fn capabilities(path: &Path, file: &File) -> Result<bool, Error> {
    // `struct vfs_ns_cap_data`, the largest revision
    let mut value = [0; 24];
    match rustix::fs::fgetxattr(file, c"security.capability", &mut value[..]) {
        Ok(len) => Ok(value.get(..len).is_some_and(gives_rights)),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(Error::read(path, errno)),
    }
}

/// Whether a `security.capability` value permits anything (`linux/capability.h`): the low byte of
/// the first word holds the effective flag; each further pair of words is permitted, inheritable.
fn gives_rights(value: &[u8]) -> bool {
    let (words, _) = value.as_chunks::<4>();
    let word = |i: usize| words.get(i).map_or(0, |word| u32::from_le_bytes(*word));
    let effective = word(0) & 1 != 0;
    effective || word(1) != 0 || (words.len() >= 5 && word(3) != 0)
}

#[cfg(test)]
mod tests {
    use super::{Caller, Privilege, gives_rights};

    const USER: Caller = Caller {
        uid: 1000,
        gid: 1000,
        no_new_privs: false,
    };
    const ROOT: Caller = Caller {
        uid: 0,
        gid: 0,
        no_new_privs: false,
    };

    #[test]
    fn only_what_changes_counts() {
        let set_uid = Privilege {
            set_uid: Some(0),
            ..Privilege::default()
        };
        assert!(set_uid.changes_id(&USER));
        assert!(!set_uid.changes_id(&ROOT));
        let locked = Caller {
            no_new_privs: true,
            ..USER
        };
        assert!(!set_uid.changes_id(&locked));
        let nosuid = Privilege {
            nosuid: true,
            ..set_uid
        };
        assert!(!nosuid.changes_id(&USER));
        let set_gid = Privilege {
            set_gid: Some(42),
            ..Privilege::default()
        };
        assert!(set_gid.changes_id(&USER) && set_gid.changes_id(&ROOT));
        let capable = Privilege {
            capabilities: true,
            ..Privilege::default()
        };
        assert!(capable.raises_capabilities(&USER));
        assert!(!capable.raises_capabilities(&ROOT));
        assert!(!capable.raises_capabilities(&locked));
    }

    #[test]
    fn capability_values() {
        let value = |words: [u32; 5]| words.map(u32::to_le_bytes).concat();
        assert!(gives_rights(&value([0x0200_0001, 0x2000, 0, 0, 0])));
        assert!(gives_rights(&value([0x0200_0000, 0x2000, 0, 0, 0])));
        assert!(gives_rights(&value([0x0200_0000, 0, 0, 1, 0])));
        assert!(
            !gives_rights(&value([0x0200_0000, 0, 0x2000, 0, 1])),
            "only inheritable"
        );
        assert!(!gives_rights(&[]));
    }
}
