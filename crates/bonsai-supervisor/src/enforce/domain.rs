//! The Landlock domain of an enforced service: its processes cannot look into or change
//! (`ptrace`, `/proc/PID/mem`, `process_vm_writev`, `pidfd_getfd`) any process outside,
//! the supervisor among them, and from version 6 on cannot send signals there.
//!
//! Files stay as they are: the domain restricts none.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

const VERSION: u32 = 1;
/// Moving files between folders: denied in any domain about files that does not name it.
const ACCESS_FS_REFER: u64 = 1 << 13;
const SCOPE_SIGNAL: u64 = 1 << 1;
const RULE_PATH_BENEATH: i32 = 1;
/// The first version in which a domain leaves files as they are.
const LEAST: i32 = 2;
/// The first version that keeps signals inside.
const SIGNALS: i32 = 6;

#[repr(C)]
struct Ruleset {
    fs: u64,
    net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// How far a service's processes can be kept from those outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// They neither look into others nor signal them.
    None,
    /// They can send signals to processes of the same user.
    Signals,
    /// They can do to processes of the same user whatever users can.
    All,
}

/// What the kernel offers.
#[must_use]
pub fn reach() -> Reach {
    reach_of(version())
}

fn reach_of(version: i32) -> Reach {
    match version {
        SIGNALS.. => Reach::None,
        LEAST..SIGNALS => Reach::Signals,
        _ => Reach::All,
    }
}

fn version() -> i32 {
    // SAFETY: without a ruleset, it asks for the version.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<Ruleset>(),
            0,
            VERSION,
        )
    };
    i32::try_from(version).unwrap_or(-1)
}

/// Tries to put a thread of ours into a domain, as a program is: a container may refuse it.
///
/// # Errors
/// What the kernel says.
pub fn confinable() -> io::Result<()> {
    let within = || {
        rustix::thread::set_no_new_privs(true)?;
        enter()
    };
    let thread = std::thread::Builder::new().spawn(within)?;
    let tried = thread.join();
    tried.unwrap_or_else(|_| Err(io::Error::other("not tried")))
}

/// Puts the calling thread into a domain of its own, as far as the kernel can. It must
/// have given up new privileges.
///
/// # Errors
/// What the kernel says.
pub(crate) fn enter() -> io::Result<()> {
    enter_as(version())
}

fn enter_as(version: i32) -> io::Result<()> {
    let ruleset = match reach_of(version) {
        Reach::All => return Ok(()),
        Reach::Signals => files_as_they_are()?,
        Reach::None => create(
            &Ruleset {
                fs: 0,
                net: 0,
                scoped: SCOPE_SIGNAL,
            },
            size_of::<Ruleset>(),
        )?,
    };
    // SAFETY: a descriptor and a number.
    let entered =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    if entered == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn create(ruleset: &Ruleset, len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the ruleset is read during the call, `len` bytes of it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(ruleset),
            len,
            0,
        )
    };
    match i32::try_from(made) {
        // SAFETY: a new descriptor that nobody else has.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A domain that denies nothing: what older versions need to make one at all.
fn files_as_they_are() -> io::Result<OwnedFd> {
    let made = create(
        &Ruleset {
            fs: ACCESS_FS_REFER,
            net: 0,
            scoped: 0,
        },
        size_of::<u64>(),
    )?;
    let root = File::open("/")?;
    let rule = PathBeneath {
        allowed: ACCESS_FS_REFER,
        parent: root.as_raw_fd(),
    };
    // SAFETY: the rule is read during the call.
    let added = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            made.as_raw_fd(),
            RULE_PATH_BENEATH,
            &raw const rule,
            0,
        )
    };
    if added == 0 {
        Ok(made)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, which is in the domain, while its process is not.
    fn within(version: i32, test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                rustix::thread::set_no_new_privs(true).expect("no new privileges");
                enter_as(version).expect("a domain");
                test();
            });
            thread.join().expect("passed");
        });
    }

    #[test]
    fn each_version_keeps_processes_out_and_files_as_they_are() {
        if version() < SIGNALS {
            // What is there is tried in the tests of the command line.
            eprintln!("SKIP: Landlock {} cannot stand for the others", version());
            return;
        }
        for version in [LEAST, SIGNALS] {
            let mut other = std::process::Command::new("/bin/cat")
                .stdin(std::process::Stdio::piped())
                .spawn()
                .expect("cat");
            let pid = other.id().cast_signed();
            let folder = tempfile::tempdir().expect("a folder");
            let (from, to) = (folder.path().join("a"), folder.path().join("b"));
            within(version, || {
                // What root's capabilities let through elsewhere, they do not here.
                std::fs::metadata(format!("/proc/{pid}/fd/0")).expect_err("its descriptor");
                let written = std::fs::OpenOptions::new()
                    .write(true)
                    .open(format!("/proc/{pid}/mem"));
                written.expect_err("its memory");
                // SAFETY: signal 0 does nothing.
                let signalled = unsafe { libc::kill(pid, 0) } == 0;
                assert_eq!(signalled, version < SIGNALS);
                for path in [&from, &to] {
                    std::fs::create_dir(path).expect("a folder");
                }
                std::fs::write(from.join("x"), "x").expect("a file");
                std::fs::rename(from.join("x"), to.join("x")).expect("moved");
            });
            drop(other.stdin.take());
            other.wait().expect("ended");
        }
    }
}
