//! Credentials of performed calls: those of the program, and no others.
//!
//! A supervisor with more rights than its program would lend them with every call that it performs: to the kernel
//! (capabilities, the owner of files), and to peers that read credentials. So the thread that makes a call takes the program's
//! users and groups, and for the call alone its capabilities (credentials(7), capabilities(7)). It keeps what it needs to come
//! back: the saved user and the permitted capabilities, which give no right by themselves and keep debuggers away.
//!
//! With the program's real user, the thread can be sent signals by the program where no Landlock domain keeps it from that: it may
//! end its supervisor and, with that, itself.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, OnceLock};

use super::names::{Names, Who, innermost_of, text_of};

const SYS_ADMIN: u32 = 21;
/// `CAP_SETGID` and `CAP_SETUID`.
const SET_GROUP: u32 = 6;
const SET_USER: u32 = 7;

/// Capabilities for sending checked credentials of another process (`scm_check_creds` in `net/core/scm.c`).
pub(crate) const TO_SAY_WHO: u64 = 1 << SYS_ADMIN | 1 << SET_USER | 1 << SET_GROUP;

/// A user or a group: real, effective, saved, and as far as files are concerned.
type Ids = [u32; 4];

/// The rights of a thread, as the kernel says them (proc_pid_status(5)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    users: Ids,
    groups: Ids,
    others: Vec<u32>,
    effective: u64,
    permitted: u64,
    /// Its process, as it sees itself.
    inner: u32,
    pub(crate) names: Names,
}

/// Credentials of the supervisor; `None` without capabilities, when it has no rights beyond those of its programs.
static OURS: OnceLock<Option<Rights>> = OnceLock::new();

fn ours() -> Option<&'static Rights> {
    OURS.get()?.as_ref()
}

/// Reads the credentials of the supervisor, before any thread takes others. Without them, rights would be lent unnoticed.
///
/// # Errors
/// `/proc/self` cannot be read.
pub(crate) fn learn_ours() -> io::Result<()> {
    if OURS.get().is_none() {
        let read = Rights::read("/proc/self")?;
        let _ = OURS.set((read.effective != 0).then_some(read));
    }
    Ok(())
}

/// Whether the supervisor has rights that a program may lack.
pub(crate) fn are_more() -> bool {
    ours().is_some()
}

impl Rights {
    /// Reads the credentials of a thread.
    ///
    /// # Errors
    /// The thread has ended, or `/proc` denies access.
    pub(crate) fn of(tid: u32) -> io::Result<Arc<Self>> {
        Self::read(&format!("/proc/{tid}")).map(Arc::new)
    }

    fn read(folder: &str) -> io::Result<Self> {
        let text = text_of(&format!("{folder}/status"))?;
        let found = parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let names = Names::read(folder)?;
        Ok(Self { names, ..found })
    }

    /// Capabilities for performed calls: those of another user namespace cannot be held outside of it.
    const fn lent(&self) -> u64 {
        if self.names.are_foreign() {
            0
        } else {
            self.effective
        }
    }

    /// Real user and group, which receivers of messages see.
    pub(crate) const fn who(&self) -> (u32, u32) {
        (self.users[0], self.groups[0])
    }

    /// Translates and checks the credentials that process `pid` sends explicitly.
    ///
    /// # Errors
    /// `EPERM` for credentials that it may not claim, `EINVAL` and `ESRCH` where there is no such user or process, as `__scm_send`.
    pub(crate) fn may_say(&self, pid: u32, said: Who) -> io::Result<Who> {
        let error = |code| Err(io::Error::from_raw_os_error(code));
        let has = |capability: u32| self.effective >> capability & 1 == 1;
        let Some([user, group]) = self.names.ours([said.1, said.2]) else {
            return error(libc::EINVAL);
        };
        let is_own = |ids: &Ids, id: u32| ids[..3].contains(&id);
        let is_user = is_own(&self.users, user) || has(SET_USER);
        let is_group = is_own(&self.groups, group) || has(SET_GROUP);
        let is_process = said.0 == self.inner;
        let may_name = is_process || has(SYS_ADMIN) && self.names.rule_processes();
        if !is_user || !is_group || !may_name {
            return error(libc::EPERM);
        }
        let process = match is_process {
            true => pid,
            false => self.names.process(said.0, pid)?,
        };
        Ok((process, user, group))
    }
}

fn parse(status: &str) -> Option<Rights> {
    let line = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let words = line(name)?.split_whitespace();
        words.map(|word| word.parse().ok()).collect()
    };
    let ids = |name: &str| Ids::try_from(numbers(name)?).ok();
    let set = |name: &str| u64::from_str_radix(line(name)?.trim(), 16).ok();
    Some(Rights {
        users: ids("Uid")?,
        groups: ids("Gid")?,
        others: numbers("Groups")?,
        effective: set("CapEff")?,
        permitted: set("CapPrm")?,
        inner: innermost_of(status)?,
        ..Rights::default()
    })
}

thread_local! {
    /// The users and groups that this thread has.
    static WORN: RefCell<Option<Arc<Rights>>> = const { RefCell::new(None) };
}

/// Runs a call with the given credentials, plus the capabilities `more`; `None` keeps the supervisor's own.
///
/// # Errors
/// What the call says, or that the rights cannot be had.
pub(crate) fn with<T>(
    rights: Option<&Arc<Rights>>,
    more: u64,
    call: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let (Some(rights), Some(ours)) = (rights, ours()) else {
        return call();
    };
    take_on(rights, ours)?;
    let during = (rights.lent() | more) & ours.effective;
    if during == ours.effective {
        return call();
    }
    set_effective(during, ours)?;
    let result = call();
    if set_effective(ours.effective, ours).is_err() {
        // Unreachable: the set is permitted. Without it, later answers would be wrong.
        std::process::abort();
    }
    result
}

/// Takes users and groups for this thread, and keeps all capabilities.
fn take_on(rights: &Arc<Rights>, ours: &Rights) -> io::Result<()> {
    WORN.with_borrow_mut(|worn| {
        let have = match worn.take() {
            Some(have) => have,
            // Threads inherit the credentials of the thread that started them.
            None => Arc::new(Rights::read("/proc/thread-self")?),
        };
        let same =
            |one: &Ids, other: &Ids| (one[0], one[1], one[3]) == (other[0], other[1], other[3]);
        if !Arc::ptr_eq(&have, rights) {
            if have.others != rights.others {
                set_groups(&rights.others)?;
            }
            if !same(&have.groups, &rights.groups) {
                set_ids([libc::SYS_setresgid, libc::SYS_setfsgid], &rights.groups)?;
            }
            if !same(&have.users, &rights.users) {
                set_ids([libc::SYS_setresuid, libc::SYS_setfsuid], &rights.users)?;
                // A user who is not root has none until it says so.
                set_effective(ours.effective, ours)?;
            }
        }
        *worn = Some(Arc::clone(rights));
        Ok(())
    })
}

fn checked(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the list lives during the call, which gets its length; the raw call concerns this thread only.
    checked(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

/// Sets all but the saved one.
fn set_ids([all, of_files]: [libc::c_long; 2], ids: &Ids) -> io::Result<()> {
    const KEPT: u32 = u32::MAX;
    // SAFETY: plain numbers; the raw calls concern this thread only.
    checked(unsafe { libc::syscall(all, ids[0], ids[1], KEPT) })?;
    // The answer is the one before, whether it was changed or not.
    // SAFETY: as above.
    let set = unsafe {
        libc::syscall(of_files, ids[3]);
        libc::syscall(of_files, KEPT)
    };
    match u32::try_from(set) {
        Ok(set) if set == ids[3] => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

fn set_effective(effective: u64, ours: &Rights) -> io::Result<()> {
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    #[expect(clippy::cast_possible_truncation, reason = "halves")]
    let halves = |set: u64| [set as u32, (set >> 32) as u32];
    let (effective, permitted) = (halves(effective), halves(ours.permitted));
    // Effective, permitted, inheritable: of the lower half, then of the upper one.
    let sets = [effective[0], permitted[0], 0, effective[1], permitted[1], 0];
    // SAFETY: both live during the call, in the layout that the version says.
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\ta\nTgid:\t7\nPid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n\
        NStgid:\t7\t1\nCapInh:\t0000000000000000\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000020\n";

    fn rights() -> Rights {
        let names = Names::read("/proc/thread-self").expect("our own");
        let read = parse(STATUS).expect("a status");
        Rights { names, ..read }
    }

    #[test]
    fn the_kernels_words_are_read() {
        let read = rights();
        assert_eq!((read.users, read.groups), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!((read.others.as_slice(), read.inner), (&[9, 10][..], 1));
        assert_eq!((read.effective, read.permitted), (0x20, 0x1ff_ffff_ffff));
        assert_eq!(parse(&STATUS.replace("CapEff", "CapX")), None);
        assert_eq!(parse(&STATUS.replace("Uid:\t1\t", "Uid:\t")), None);
        let own = Rights::read("/proc/thread-self").expect("our own");
        assert!(!own.names.are_foreign());
    }

    #[test]
    fn who_sends_says_what_it_is_or_what_it_may() {
        let may = |rights: &Rights, said| {
            let found = rights.may_say(70, said).map(|who| who.0);
            found.map_err(|error| error.raw_os_error().unwrap_or(0))
        };
        let plain = rights();
        for user in [1, 2, 3] {
            assert_eq!(may(&plain, (1, user, 5)), Ok(70));
        }
        for said in [(1, 4, 5), (1, 0, 5), (1, 1, 8), (1, 1, 0), (7, 1, 5)] {
            assert_eq!(may(&plain, said), Err(libc::EPERM), "{said:?}");
        }
        let with = |capability: u32| Rights {
            effective: 1 << capability,
            ..rights()
        };
        assert_eq!(may(&with(SET_USER), (1, 0, 5)), Ok(70));
        assert_eq!(may(&with(SET_GROUP), (1, 1, 0)), Ok(70));
        assert_eq!(may(&with(SYS_ADMIN), (9, 1, 5)), Ok(9));
    }
}
