//! All threads of a process, stopped.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{AttachError, refused};
use crate::patience::Patience;

/// How long its threads may take to stop, while the others stand still. One that waits
/// for a vforked child, or for a disk, cannot.
const PATIENCE: Duration = Duration::from_secs(3);

/// `PTRACE_EVENT_STOP`.
const EVENT_STOP: i32 = 128;

/// The threads of a process, each in a ptrace stop; let go when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) pid: Pid,
    pub(crate) threads: BTreeSet<Pid>,
}

impl Held {
    /// Stops them all, also those that are born meanwhile.
    pub(crate) fn all(pid: Pid) -> Result<Self, AttachError> {
        let mut held = Self {
            pid,
            threads: BTreeSet::new(),
        };
        let mut patience = Patience::of(PATIENCE);
        loop {
            let new: Vec<Pid> = tasks(pid)?
                .into_iter()
                .filter(|tid| !held.threads.contains(tid))
                .collect();
            // When all stand still, nobody is left to make another one.
            if new.is_empty() {
                break;
            }
            let mut seized = Vec::new();
            for tid in new {
                match ptrace::seize(tid, Options::PTRACE_O_TRACESYSGOOD) {
                    Ok(()) => {
                        held.threads.insert(tid);
                        seized.push(tid);
                    }
                    // Gone, or about to be.
                    Err(Errno::ESRCH) => {}
                    Err(_) if is_zombie(pid, tid) => {}
                    Err(errno) => return Err(refused(pid, errno)),
                }
            }
            for tid in &seized {
                // It may be gone.
                let _ = ptrace::interrupt(*tid);
            }
            if seized.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            for tid in seized {
                held.wait_for_stop(tid, &mut patience)?;
            }
            if patience.is_over() {
                return Err(AttachError::Restless);
            }
        }
        if held.threads.is_empty() {
            return Err(AttachError::Gone);
        }
        Ok(held)
    }

    /// Waits until a thread is in the stop that it was asked for.
    pub(crate) fn wait_for_stop(
        &mut self,
        tid: Pid,
        patience: &mut Patience,
    ) -> Result<(), AttachError> {
        loop {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
            match waitpid(tid, Some(flags)) {
                Ok(WaitStatus::PtraceEvent(_, _, EVENT_STOP)) => return Ok(()),
                // On its way to a handler: what it gets, it gets.
                Ok(WaitStatus::Stopped(_, signal)) => drop(ptrace::cont(tid, signal)),
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {
                    if patience.is_over() {
                        return Err(AttachError::Stuck {
                            tid: tid.as_raw(),
                            state: state(self.pid, tid).unwrap_or('?'),
                        });
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => {
                    self.threads.remove(&tid);
                    return Ok(());
                }
                Ok(_) => drop(ptrace::cont(tid, None)),
            }
        }
    }

    pub(crate) fn registers(tid: Pid) -> Result<user_regs_struct, AttachError> {
        ptrace::getregs(tid)
            .map_err(|error| AttachError::system("the registers of a thread", error))
    }

    pub(crate) fn set(tid: Pid, registers: user_regs_struct) -> Result<(), AttachError> {
        ptrace::setregs(tid, registers)
            .map_err(|error| AttachError::system("the registers of a thread", error))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for tid in &self.threads {
            // One that is gone needs no more.
            let _ = ptrace::detach(*tid, None);
        }
    }
}

fn tasks(pid: Pid) -> Result<Vec<Pid>, AttachError> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| AttachError::Gone)?;
    let names = folder.flatten().map(|entry| entry.file_name());
    let numbers = names.filter_map(|name| name.to_string_lossy().parse().ok());
    Ok(numbers
        .map(Pid::from_raw)
        .filter(|tid| !is_zombie(pid, *tid))
        .collect())
}

/// The state of a thread, a letter.
fn state(pid: Pid, tid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    // The name before it may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_zombie(pid: Pid, tid: Pid) -> bool {
    matches!(state(pid, tid), None | Some('Z' | 'X'))
}
