//! Why a process cannot be put under limits: each reason in one sentence.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::unistd::Pid;

use super::maps::Object;

/// Why a process was not entered, or not left.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No process has this number.
    #[error("there is no such process")]
    Gone,
    /// It is this one.
    #[error("this is bonsai itself")]
    Myself,
    /// It is a thread's number.
    #[error("it is a thread of process {0}: name that")]
    Thread(i32),
    /// It has no program.
    #[error("it is a thread of the kernel")]
    Kernel,
    /// It has ended.
    #[error("it has ended, and its parent has not looked yet")]
    Zombie,
    /// Only other threads than its first one are left.
    #[error("its first thread has ended, and with it what /proc says of its memory")]
    Headless,
    /// Somebody else traces it.
    #[error("process {pid} ({name}) traces it, and there can be one only: end that first")]
    Traced {
        /// Who does.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// Tracing it is forbidden.
    #[error("it may not be traced: {0}")]
    Refused(String),
    /// It is no 64-bit program.
    #[error("it is a 32-bit program, whose system calls are others")]
    Bits,
    /// It has a filter of its own.
    #[error(
        "it runs under a seccomp filter of its own, which may end it at a call that it does not \
         expect: start it with bonsai run"
    )]
    Filtered,
    /// Its system calls are dispatched.
    #[error(
        "thread {0} has its system calls dispatched to itself (prctl PR_SET_SYSCALL_USER_DISPATCH)"
    )]
    Dispatched(i32),
    /// It has no thread pointer.
    #[error("thread {0} has no thread pointer, by which threads are told apart")]
    NoThreadPointer(i32),
    /// It is under limits.
    #[error(
        "it is under Bonsai already ({0} is in it): bonsai status shows its service, bonsai set changes limits"
    )]
    Already(String),
    /// A thread does not stop.
    #[error(
        "its thread {tid} does not stop (state {state}): it may wait for a disk, or for a child that it has just made; try again"
    )]
    Stuck {
        /// The thread.
        tid: i32,
        /// Its state.
        state: char,
    },
    /// It makes threads faster than they can be stopped, or does not come back.
    #[error("its threads do not come to rest; try again")]
    Restless,
    /// Whoever had borrowed a thread was killed, and it is not back.
    #[error(
        "a thread of it, borrowed by a bonsai that was killed, is not back yet (is it stopped?); try again"
    )]
    Borrowed,
    /// Its code has no room for the way in.
    #[error("behind its code, and that of its libraries, there is no room for the way in")]
    NoIdleCode,
    /// There is no room where jumps reach.
    #[error("there is no room for the engine near its code")]
    NoRoom,
    /// Its program is not found.
    #[error("its program is not found in its memory")]
    NoProgram,
    /// The ledger's path is too long.
    #[error("the path of the service's ledger is too long: choose a shorter name")]
    LongPath,
    /// The engine is of another version.
    #[error("the engine is not of this version of bonsai: install both together")]
    OtherEngine,
    /// Nothing can be replaced; the number of a `bonsai_ledger::Reason`.
    #[error("none of its system call instructions can be replaced")]
    NoSites(u32),
    /// A system call made in it failed.
    #[error("it is refused a system call ({what})")]
    Call {
        /// Which one.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// A fault in what runs there.
    #[error("what was to enter it got the signal {0}")]
    Fault(&'static str),
    /// The system refuses something.
    #[error("{what} cannot be reached")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
}

impl AttachError {
    pub(crate) fn system(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::System {
            what,
            source: source.into(),
        }
    }
}

/// What `/proc/PID/status` says.
struct Status(String);

impl Status {
    fn of(pid: i32) -> Option<Self> {
        fs::read_to_string(format!("/proc/{pid}/status"))
            .ok()
            .map(Self)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    }

    fn number(&self, name: &str) -> i32 {
        self.get(name)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }
}

/// Whether the kernel lets this process trace at all: the filter of a container may not.
///
/// # Errors
/// What it says.
pub fn may_trace() -> std::io::Result<()> {
    // No process has this number, which is the last thing that is wrong with it.
    let nobody = Pid::from_raw(i32::MAX);
    match nix::sys::ptrace::seize(nobody, nix::sys::ptrace::Options::empty()) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// What can be said against a process before it is touched.
///
/// # Errors
/// That.
pub fn check(pid: i32) -> Result<(), AttachError> {
    let status = Status::of(pid).ok_or(AttachError::Gone)?;
    if pid == nix::unistd::getpid().as_raw() {
        return Err(AttachError::Myself);
    }
    let leader = status.number("Tgid");
    if leader != pid {
        return Err(AttachError::Thread(leader));
    }
    if status
        .get("State")
        .is_some_and(|s| s.starts_with(['Z', 'X']))
    {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        return Err(if tasks > 1 {
            AttachError::Headless
        } else {
            AttachError::Zombie
        });
    }
    // Only threads of the kernel have no memory of their own.
    if status.get("VmSize").is_none() {
        return Err(AttachError::Kernel);
    }
    let tracer = status.number("TracerPid");
    if tracer != 0 {
        let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return Err(AttachError::Traced {
            pid: tracer,
            name: name.trim().to_owned(),
        });
    }
    let own = Status::of(nix::unistd::getpid().as_raw());
    let filters = |status: &Status| (status.number("Seccomp"), status.number("Seccomp_filters"));
    let (mode, count) = filters(&status);
    // A container's filter is on both, and lets pass what this does all day.
    if mode != 0 && own.is_none_or(|own| filters(&own) != (mode, count)) {
        return Err(AttachError::Filtered);
    }
    let is_long = |head: &[u8]| head.get(4) != Some(&1);
    match fs::File::open(format!("/proc/{pid}/exe")) {
        Ok(file) => {
            let mut head = [0; 5];
            let read = std::os::unix::fs::FileExt::read_at(&file, &mut head, 0);
            if read.is_ok() && !is_long(&head) {
                return Err(AttachError::Bits);
            }
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(refused(Pid::from_raw(pid), Errno::EPERM))
        }
        // Its file may be gone.
        Err(_) => Ok(()),
    }
}

/// Why tracing was refused, as far as that can be told from outside.
pub(crate) fn refused(pid: Pid, errno: Errno) -> AttachError {
    if errno == Errno::ESRCH {
        return AttachError::Gone;
    }
    if errno != Errno::EPERM {
        return AttachError::system("the process", errno);
    }
    let status = Status::of(pid.as_raw());
    let text = |name: &str| status.as_ref().and_then(|s| s.get(name)).map(str::to_owned);
    let tracer = status
        .as_ref()
        .map_or(0, |status| status.number("TracerPid"));
    if tracer != 0 {
        let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return AttachError::Traced {
            pid: tracer,
            name: name.trim().to_owned(),
        };
    }
    let own = rustix::process::geteuid().as_raw();
    let uids = text("Uid").unwrap_or_default();
    let mut uids = uids
        .split_whitespace()
        .filter_map(|uid| uid.parse::<u32>().ok());
    let owner = uids.clone().find(|uid| *uid != own);
    let uid = uids.next().unwrap_or(own);
    let mine = Status::of(nix::unistd::getpid().as_raw());
    let capable = |status: &Option<Status>, what| {
        let set = status
            .as_ref()
            .and_then(|s| u64::from_str_radix(s.get(what)?, 16).ok());
        set.unwrap_or(0)
    };
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let why = if let Some(owner) = owner {
        format!("it belongs to user {owner}, and you are user {own}: be that user, or root")
    } else if scope.trim() == "3" {
        "kernel.yama.ptrace_scope is 3, which forbids tracing until the next boot".to_owned()
    } else if matches!(scope.trim(), "1" | "2") && capable(&mine, "CapEff") & CAP_SYS_PTRACE == 0 {
        format!(
            "kernel.yama.ptrace_scope is {}: be root, or set it to 0 (sysctl \
             kernel.yama.ptrace_scope=0)",
            scope.trim()
        )
    } else if capable(&status, "CapPrm") & !capable(&mine, "CapPrm") != 0 {
        "it has capabilities that you do not have: be root".to_owned()
    } else if fs::metadata(format!("/proc/{pid}/stat")).is_ok_and(|file| file.uid() != uid) {
        "it has asked not to be looked at (it is not dumpable): be root".to_owned()
    } else {
        "a security module, or a name space, forbids it".to_owned()
    };
    AttachError::Refused(why)
}

/// What speaks against one of its threads, which is stopped.
pub(crate) fn check_thread(
    tid: Pid,
    registers: &user_regs_struct,
    objects: &[Object],
) -> Result<(), AttachError> {
    const USER_CODE: u64 = 0x33;
    if registers.cs != USER_CODE {
        return Err(AttachError::Bits);
    }
    if registers.fs_base == 0 && !objects.is_empty() {
        return Err(AttachError::NoThreadPointer(tid.as_raw()));
    }
    if is_dispatched(tid) {
        return Err(AttachError::Dispatched(tid.as_raw()));
    }
    Ok(())
}

/// Whether its system calls come back to itself as signals (Linux 6.4 and later say).
fn is_dispatched(tid: Pid) -> bool {
    const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
    let mut config = [0_u64; 4];
    // SAFETY: struct ptrace_sud_config has 32 bytes, which are our own.
    let got = unsafe {
        let to = &raw mut config;
        libc::ptrace(
            PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG,
            tid.as_raw(),
            32_usize,
            to,
        )
    };
    got == 0 && config[0] != 0
}

/// The entry of the auxiliary vector with the program's headers.
pub(crate) const AT_PHDR: u64 = 3;

/// The one that says what the processor can do, and programs may use.
pub(crate) const AT_HWCAP2: u64 = 26;

/// The value of an entry of an auxiliary vector.
pub(crate) fn auxiliary(bytes: &[u8], kind: u64) -> Option<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words
        .chunks_exact(2)
        .find(|entry| entry[0] == kind)
        .map(|entry| entry[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(pid: i32) -> String {
        check(pid).expect_err("cannot be entered").to_string()
    }

    #[test]
    fn bad_numbers_are_told_apart() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(sentence(own), "this is bonsai itself");
        assert_eq!(sentence(i32::MAX), "there is no such process");
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let pid = i32::try_from(child.id()).expect("a pid");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z"))
            && std::time::Instant::now() < end
        {
            std::thread::yield_now();
        }
        assert_eq!(
            sentence(pid),
            "it has ended, and its parent has not looked yet"
        );
        child.wait().expect("ended");
    }

    #[test]
    fn a_thread_is_no_process() {
        let own = std::process::id();
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw());
        let (send, receive) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(nix::unistd::gettid().as_raw()).expect("sent");
            let _ = wait.recv();
        });
        let text = sentence(receive.recv().expect("a thread"));
        assert_eq!(text, format!("it is a thread of process {own}: name that"));
        drop(end);
        thread.join().expect("joined");
        tid.join().expect("joined");
    }

    #[test]
    fn auxiliary_vectors_are_searched_by_kind() {
        let bytes: Vec<u8> = [3_u64, 7, 9, 8, 0, 0]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert_eq!(auxiliary(&bytes, AT_PHDR), Some(7));
        assert_eq!(auxiliary(&bytes, 9), Some(8));
        assert_eq!(auxiliary(&bytes, 5), None);
    }
}
