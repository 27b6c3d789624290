//! A stopped process, and system calls made in its place.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::enter::EnterError;
use crate::text;

/// `syscall; int3`.
const CALL: [u8; 3] = [0x0f, 0x05, 0xcc];

/// A process in a stop, before its program's first instruction.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) pid: Pid,
    memory: File,
    /// As the kernel has set them for the program.
    pub(crate) start: user_regs_struct,
    /// What stands where the program begins.
    first: [u8; CALL.len()],
    /// Where calls are made.
    place: Cell<u64>,
}

impl Tracee {
    pub(crate) fn new(pid: Pid) -> Result<Self, EnterError> {
        let path = format!("/proc/{pid}/mem");
        let open = || File::options().read(true).write(true).open(&path);
        let memory = open().map_err(|error| EnterError::system("its memory", error))?;
        let start = registers(pid)?;
        let mut first = [0; CALL.len()];
        let tracee = Self {
            pid,
            memory,
            start,
            first,
            place: Cell::new(start.rip),
        };
        tracee.read(start.rip, &mut first)?;
        // From here on the place is borrowed.
        tracee.write(start.rip, &CALL)?;
        let tracee = Self {
            start: user_regs_struct { rax: 0, ..start },
            first,
            ..tracee
        };
        // The stop is within execve, whose result is still to be put into rax.
        let trap = user_regs_struct {
            rip: start.rip + 2,
            ..start
        };
        set_registers(pid, trap)?;
        tracee.run_to_trap()?;
        Ok(tracee)
    }

    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), EnterError> {
        let read = self.memory.read_exact_at(to, at);
        read.map_err(|error| EnterError::system("its memory", error))
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), EnterError> {
        let written = text::write(&self.memory, [self.pid], at, bytes);
        written.map_err(|error| EnterError::system("its memory", error))
    }

    /// Makes a system call there.
    pub(crate) fn call(&self, number: u64, args: [u64; 6]) -> Result<u64, EnterError> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let wanted = user_regs_struct {
            rax: number,
            // The kernel must not restart the execve.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            rip: self.place.get(),
            ..self.start
        };
        set_registers(self.pid, wanted)?;
        self.run_to_trap()?;
        let result = registers(self.pid)?.rax;
        let failed = result.wrapping_neg();
        if (1..4096).contains(&failed) {
            let errno = i32::try_from(failed).unwrap_or(0);
            let error = std::io::Error::from_raw_os_error(errno);
            return Err(EnterError::system("a system call made in it", error));
        }
        Ok(result)
    }

    /// Whether it is under a seccomp filter.
    pub(crate) fn is_filtered(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|text| text.lines().any(|line| line == "Seccomp:\t2"))
    }

    /// From here on calls are made at `at`, or where the program begins again. A filter of
    /// whatever ran here before may trap calls where that stood.
    pub(crate) fn call_at(&self, at: Option<u64>) -> Result<(), EnterError> {
        if let Some(at) = at {
            self.write(at, &CALL)?;
        }
        self.place.set(at.unwrap_or(self.start.rip));
        Ok(())
    }

    fn run_to_trap(&self) -> Result<(), EnterError> {
        // Signals that arrive meanwhile are delivered when the program runs.
        let mut pending = Vec::new();
        loop {
            ptrace::cont(self.pid, None).map_err(|e| EnterError::system("it", e))?;
            match waitpid(self.pid, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => break,
                Ok(WaitStatus::Stopped(_, signal)) => pending.push(signal),
                Ok(WaitStatus::PtraceEvent(..)) | Err(nix::Error::EINTR) => {}
                Ok(_) => return Err(EnterError::Gone),
                Err(error) => return Err(EnterError::system("it", error)),
            }
        }
        for signal in pending {
            // It is stopped, and so gets them when it goes on.
            let _ = nix::sys::signal::kill(self.pid, signal);
        }
        Ok(())
    }

    /// Gives the borrowed place back, and lets it go on at `rip`, with `rdi`.
    pub(crate) fn release(self, rip: u64, rdi: u64) -> Result<(), EnterError> {
        self.write(self.start.rip, &self.first)?;
        let wanted = user_regs_struct {
            rip,
            rdi,
            orig_rax: u64::MAX,
            ..self.start
        };
        set_registers(self.pid, wanted)?;
        ptrace::detach(self.pid, None).map_err(|error| EnterError::system("it", error))
    }

    /// As if nobody had been here.
    pub(crate) fn let_go(self) {
        let (rip, rdi) = (self.start.rip, self.start.rdi);
        // It may be gone, and then this is all right as well.
        let _ = self.release(rip, rdi);
    }
}

fn registers(pid: Pid) -> Result<user_regs_struct, EnterError> {
    ptrace::getregs(pid).map_err(|error| EnterError::system("its registers", error))
}

fn set_registers(pid: Pid, wanted: user_regs_struct) -> Result<(), EnterError> {
    ptrace::setregs(pid, wanted).map_err(|error| EnterError::system("its registers", error))
}
