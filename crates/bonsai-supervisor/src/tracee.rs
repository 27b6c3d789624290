//! A stopped process, and system calls made in its place.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use bonsai_ledger::read_proc;
use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::enter::EnterError;
use crate::text;

/// `syscall; int3`.
const CALL: [u8; 3] = [0x0f, 0x05, 0xcc];

/// Opens a file and maps it, with one stop for both calls: rdi and rsi are arguments of open(2), r12 is where it is mapped, r13 how
/// many bytes, r10 how. What open has returned is in r8 then. The path stands behind it.
#[rustfmt::skip]
const OPEN_AND_MAP: [u8; 32] = [
    0xb8, 0x02, 0x00, 0x00, 0x00, // mov eax, 2
    0x0f, 0x05,                   // syscall
    0x49, 0x89, 0xc0,             // mov r8, rax
    0x4c, 0x89, 0xe7,             // mov rdi, r12
    0x4c, 0x89, 0xee,             // mov rsi, r13
    0xba, 0x05, 0x00, 0x00, 0x00, // mov edx, PROT_READ | PROT_EXEC
    0x45, 0x31, 0xc9,             // xor r9d, r9d
    0xb8, 0x09, 0x00, 0x00, 0x00, // mov eax, 9
    0x0f, 0x05,                   // syscall
    0xcc,                         // int3
];

const PAGE: u64 = 4096;

/// A process in the stop at the end of its execve, before its program's first instruction.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) pid: Pid,
    memory: File,
    /// As the kernel has set them for the program.
    pub(crate) start: user_regs_struct,
    /// Where the program begins, or so little before that the page does not end within what is written there.
    borrowed: u64,
    /// Bytes that stand there.
    first: Vec<u8>,
    /// Where calls are made.
    place: Cell<u64>,
}

impl Tracee {
    /// A process in which a file is going to be opened whose path has `len` bytes.
    pub(crate) fn new(pid: Pid, len: usize) -> Result<Self, EnterError> {
        let path = format!("/proc/{pid}/mem");
        let open = || File::options().read(true).write(true).open(&path);
        let memory = open().map_err(|error| EnterError::system("its memory", error))?;
        let start = registers(pid)?;
        let mut first = vec![0; OPEN_AND_MAP.len() + len];
        // A path has less than a page (`PATH_MAX`).
        let last = ((start.rip | (PAGE - 1)) + 1).saturating_sub(first.len() as u64);
        let borrowed = start.rip.min(last);
        let read = memory.read_exact_at(&mut first, borrowed);
        read.map_err(|error| EnterError::system("its memory", error))?;
        Ok(Self {
            pid,
            memory,
            start: user_regs_struct { rax: 0, ..start },
            borrowed,
            first,
            place: Cell::new(borrowed),
        })
    }

    /// Lets its execve return, whose result is still to be put into rax: from here on calls can be made one by one.
    pub(crate) fn settle(&self) -> Result<(), EnterError> {
        self.write(self.borrowed, &CALL)?;
        let trap = user_regs_struct {
            rip: self.borrowed + 2,
            ..self.start
        };
        set_registers(self.pid, trap)?;
        self.run_to_trap()
    }

    /// Opens a file, and maps it from its beginning, as code, at `at`. What both calls return, opening first.
    pub(crate) fn open_and_map(
        &self,
        path: &[u8],
        flags: u64,
        [at, len, how]: [u64; 3],
    ) -> Result<[Result<u64, std::io::Error>; 2], EnterError> {
        self.write(self.borrowed, &[&OPEN_AND_MAP, path].concat())?;
        let wanted = user_regs_struct {
            // The kernel must not restart the execve.
            orig_rax: u64::MAX,
            rdi: self.borrowed + OPEN_AND_MAP.len() as u64,
            rsi: flags,
            r10: how,
            r12: at,
            r13: len,
            rip: self.borrowed,
            ..self.start
        };
        set_registers(self.pid, wanted)?;
        self.run_to_trap()?;
        let after = registers(self.pid)?;
        self.write(self.borrowed, &CALL)?;
        Ok([after.r8, after.rax].map(result_of))
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
        let result = result_of(registers(self.pid)?.rax);
        result.map_err(|error| EnterError::system("a system call made in it", error))
    }

    /// Whether it is under a seccomp filter.
    pub(crate) fn is_filtered(&self) -> bool {
        let status = read_proc(&format!("/proc/{}/status", self.pid));
        let is_filter = |line: &[u8]| line == b"Seccomp:\t2";
        status.is_ok_and(|text| text.split(|byte| *byte == b'\n').any(is_filter))
    }

    /// From here on calls are made at `at`, or where the program begins again. A filter of
    /// whatever ran here before may trap calls where that stood.
    pub(crate) fn call_at(&self, at: Option<u64>) -> Result<(), EnterError> {
        if let Some(at) = at {
            self.write(at, &CALL)?;
        }
        self.place.set(at.unwrap_or(self.borrowed));
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

    /// Gives the borrowed place back, and lets it go on at `rip`, with these arguments of a function.
    pub(crate) fn release(
        self,
        rip: u64,
        [rdi, rsi, rdx, rcx]: [u64; 4],
    ) -> Result<(), EnterError> {
        self.write(self.borrowed, &self.first)?;
        let wanted = user_regs_struct {
            rip,
            rdi,
            rsi,
            rdx,
            rcx,
            orig_rax: u64::MAX,
            ..self.start
        };
        set_registers(self.pid, wanted)?;
        ptrace::detach(self.pid, None).map_err(|error| EnterError::system("it", error))
    }

    /// As if nobody had been here.
    pub(crate) fn let_go(self) {
        let start = self.start;
        // It may be gone, and then this is all right as well.
        let _ = self.release(start.rip, [start.rdi, start.rsi, start.rdx, start.rcx]);
    }
}

/// A result as the kernel returns it.
fn result_of(raw: u64) -> Result<u64, std::io::Error> {
    match raw.wrapping_neg() {
        failed @ 1..4096 => {
            let errno = i32::try_from(failed).unwrap_or(0);
            Err(std::io::Error::from_raw_os_error(errno))
        }
        _ => Ok(raw),
    }
}

fn registers(pid: Pid) -> Result<user_regs_struct, EnterError> {
    ptrace::getregs(pid).map_err(|error| EnterError::system("its registers", error))
}

fn set_registers(pid: Pid, wanted: user_regs_struct) -> Result<(), EnterError> {
    ptrace::setregs(pid, wanted).map_err(|error| EnterError::system("its registers", error))
}
