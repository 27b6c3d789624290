//! One stopped thread, borrowed to make system calls and to run code of ours.
//!
//! The thread may be released at any instant, because whoever traces it is killed. So
//! it is only ever sent to code that finds its own way back: a few instructions, the
//! *stub*, in bytes behind some object's code that nobody uses, which end by setting
//! all registers to what they were, as numbers in the instructions:
//! ```text
//!   args in rdi..r9, number in eax
//!   syscall
//!   home: its own stack; rt_sigprocmask(its own mask); all registers; jmp to where it was
//! ```
//! No stack is used, for there may be none (Go's, for one). All signals are blocked
//! meanwhile: a handler would run in the middle.
//!
//! It may take its time, where others want the CPU: who comes next must not use the same
//! bytes before it is home ([`leads_home`]).

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::AttachError;
use super::held::Held;
use crate::patience::Patience;
use crate::text;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;

const SYS_GETPID: u64 = 39;

/// As in `bonsai-preload/src/attach/running.rs`.
const OVER: u64 = 0x0b05_a1e7;

/// Where the arguments end and the way home begins.
const HOME: usize = 67;

/// Bytes of the stub.
pub(crate) const STUB: usize = 240;

/// The instruction that the way home begins with: movabs $stack,%rsp.
const SETS_STACK: [u8; 2] = [0x48, 0xbc];
/// And how it goes on: mov $14,%eax (rt_sigprocmask); mov $2,%edi (SIG_SETMASK).
const SETS_MASK: [u8; 10] = [0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0];

/// Whether code is a stub, by which some thread may be on its way home.
pub(crate) fn leads_home(code: &[u8]) -> bool {
    let home = code.get(HOME..).unwrap_or_default();
    home.starts_with(&SETS_STACK)
        && home
            .get(SETS_STACK.len() + 8..)
            .is_some_and(|code| code.starts_with(&SETS_MASK))
}

/// How long a call, or a run, may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A borrowed thread.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) tid: Pid,
    memory: Arc<File>,
    /// Where the stub is, and what was there.
    stub: u64,
    before: [u8; STUB],
    /// As it was when it was stopped, or as it is to go on instead.
    pub(crate) home: user_regs_struct,
    mask: u64,
}

impl Runner {
    pub(crate) fn new(tid: Pid, memory: &Arc<File>, stub: u64) -> Result<Self, AttachError> {
        let home = Held::registers(tid)?;
        let mut before = [0; STUB];
        memory
            .read_exact_at(&mut before, stub)
            .map_err(|error| AttachError::system("its memory", error))?;
        let runner = Self {
            tid,
            memory: Arc::clone(memory),
            stub,
            before,
            home,
            mask: mask(tid)?,
        };
        runner.write_stub(SYS_GETPID, [0; 6])?;
        runner.send(runner.stub)?;
        set_mask(tid, u64::MAX)?;
        Ok(runner)
    }

    fn write_stub(&self, number: u64, args: [u64; 6]) -> Result<(), AttachError> {
        let code = stub(number, args, &going_on(&self.home), self.mask);
        text::write(&self.memory, [self.tid], self.stub, &code)
            .map_err(|error| AttachError::system("its code", error))
    }

    /// Has it go on at `rip`, with nothing to be made again.
    fn send(&self, rip: u64) -> Result<(), AttachError> {
        let registers = user_regs_struct {
            rip,
            orig_rax: u64::MAX,
            ..self.home
        };
        Held::set(self.tid, registers)
    }

    /// Makes a system call.
    pub(crate) fn call(
        &self,
        what: &'static str,
        number: u64,
        args: [u64; 6],
    ) -> Result<u64, AttachError> {
        self.write_stub(number, args)?;
        self.send(self.stub)?;
        self.next_stop()?;
        self.next_stop()?;
        let result = Held::registers(self.tid)?.rax;
        let failed = result.wrapping_neg();
        if (1..4096).contains(&failed) {
            return Err(AttachError::Call {
                what,
                source: std::io::Error::from_raw_os_error(i32::try_from(failed).unwrap_or(0)),
            });
        }
        Ok(result)
    }

    /// Runs code that ends with a `getpid` that says so, and goes home.
    pub(crate) fn run(&self, entry: u64, stack: u64, what: u64) -> Result<(), AttachError> {
        let registers = user_regs_struct {
            rip: entry,
            rsp: stack,
            rdi: what,
            rsi: self.home.eflags,
            rdx: self.stub + HOME as u64,
            orig_rax: u64::MAX,
            ..self.home
        };
        Held::set(self.tid, registers)?;
        loop {
            self.next_stop()?;
            let at = Held::registers(self.tid)?;
            self.next_stop()?;
            if at.orig_rax == SYS_GETPID && at.rdi == OVER {
                return Ok(());
            }
        }
    }

    /// To the beginning of the next system call, or to its end.
    fn next_stop(&self) -> Result<(), AttachError> {
        let mut patience = Patience::of(PATIENCE);
        let go = || {
            ptrace::syscall(self.tid, None)
                .map_err(|e| AttachError::system("one of its threads", e))
        };
        go()?;
        loop {
            match waitpid(self.tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::PtraceSyscall(_)) => return Ok(()),
                // It has been stopped by a signal, all of it, or continued.
                Ok(WaitStatus::PtraceEvent(..)) => go()?,
                Ok(WaitStatus::StillAlive) | Err(nix::Error::EINTR) => {
                    if patience.is_over() {
                        return Err(AttachError::Restless);
                    }
                    std::thread::sleep(Duration::from_micros(10));
                }
                Ok(WaitStatus::Stopped(_, signal)) => {
                    return Err(AttachError::Fault(signal.as_str()));
                }
                Ok(_) => return Err(AttachError::Gone),
                Err(error) => return Err(AttachError::system("one of its threads", error)),
            }
        }
    }

    /// From now on, it goes on with `home`, also if it is released.
    pub(crate) fn leads_to(&mut self, home: user_regs_struct) -> Result<(), AttachError> {
        self.home = home;
        self.write_stub(SYS_GETPID, [0; 6])
    }

    /// Gives the thread back, stopped as it was. If this fails, or is not called, it
    /// finds its way by itself.
    pub(crate) fn end(self, held: &mut Held) -> Result<(), AttachError> {
        let system = |error| AttachError::system("one of its threads", error);
        // First this, so that the kernel looks at what is to be made again, in whatever
        // way the thread goes on.
        ptrace::interrupt(self.tid).map_err(system)?;
        set_mask(self.tid, self.mask)?;
        Held::set(self.tid, self.home)?;
        ptrace::cont(self.tid, None).map_err(system)?;
        held.wait_for_stop(self.tid, &mut Patience::of(PATIENCE))?;
        text::write(&self.memory, [self.tid], self.stub, &self.before)
            .map_err(|error| AttachError::system("its code", error))
    }
}

/// What is to be made again, if a signal has ended a system call: its number, and
/// whether the kernel has to be asked what is left of it.
pub(crate) fn restarts(registers: &user_regs_struct) -> bool {
    let result = registers.rax.wrapping_neg();
    registers.orig_rax.cast_signed() >= 0 && matches!(result, 512..=514 | 516)
}

/// The registers with which it goes on in its program, as the kernel would set them.
pub(crate) fn going_on(registers: &user_regs_struct) -> user_regs_struct {
    const RESTART_BLOCK: u64 = 516;
    const SYS_RESTART_SYSCALL: u64 = 219;
    if !restarts(registers) {
        return *registers;
    }
    let asks = registers.rax.wrapping_neg() == RESTART_BLOCK;
    user_regs_struct {
        rip: registers.rip - 2,
        rax: if asks {
            SYS_RESTART_SYSCALL
        } else {
            registers.orig_rax
        },
        ..*registers
    }
}

/// The code that makes a call and goes home.
fn stub(number: u64, args: [u64; 6], home: &user_regs_struct, mask: u64) -> [u8; STUB] {
    // By the numbers that instructions have for registers.
    const RAX: u8 = 0;
    const RCX: u8 = 1;
    const RDX: u8 = 2;
    const RSI: u8 = 6;
    const RDI: u8 = 7;
    let mut code = Vec::with_capacity(STUB);
    // movabs $value,%register: leaves the flags alone.
    let set = |code: &mut Vec<u8>, register: u8, value: u64| {
        code.extend([0x48 | register >> 3, 0xb8 | (register & 7)]);
        code.extend(value.to_le_bytes());
    };
    for (register, value) in [RDI, RSI, RDX, 10, 8, 9].into_iter().zip(args) {
        set(&mut code, register, value);
    }
    // mov $number,%eax; syscall
    code.push(0xb8);
    code.extend(number.to_le_bytes().iter().take(4));
    code.extend([0x0f, 0x05]);
    debug_assert_eq!(code.len(), HOME);
    // Two words stand behind the code.
    let words = STUB - 16;
    let to = |code: &[u8], word: usize| {
        let distance = words + 8 * word - code.len() - 4;
        u32::try_from(distance).unwrap_or(0).to_le_bytes()
    };
    // Handlers may run from the next call on: on its own stack.
    code.extend(SETS_STACK);
    code.extend(home.rsp.to_le_bytes());
    code.extend(SETS_MASK);
    // lea mask(%rip),%rsi
    code.extend([0x48, 0x8d, 0x35]);
    let distance = to(&code, 0);
    code.extend(distance);
    // mov $0,%edx; mov $8,%r10d; syscall
    code.extend([0xba, 0, 0, 0, 0, 0x41, 0xba, 8, 0, 0, 0, 0x0f, 0x05]);
    for (register, value) in [
        (RAX, home.rax),
        (RCX, home.rcx),
        (RDX, home.rdx),
        (RSI, home.rsi),
        (RDI, home.rdi),
        (8, home.r8),
        (9, home.r9),
        (10, home.r10),
        (11, home.r11),
    ] {
        set(&mut code, register, value);
    }
    // jmp *rip(%rip)
    code.extend([0xff, 0x25]);
    let distance = to(&code, 1);
    code.extend(distance);
    code.resize(words, 0xcc);
    code.extend(mask.to_le_bytes());
    code.extend(home.rip.to_le_bytes());
    let mut all = [0; STUB];
    all.copy_from_slice(&code);
    all
}

fn mask(tid: Pid) -> Result<u64, AttachError> {
    let mut mask = 0_u64;
    // SAFETY: eight bytes of our own are written.
    let got = unsafe { libc::ptrace(PTRACE_GETSIGMASK, tid.as_raw(), 8_usize, &raw mut mask) };
    if got == -1 {
        let error = std::io::Error::last_os_error();
        return Err(AttachError::system("the signals of a thread", error));
    }
    Ok(mask)
}

fn set_mask(tid: Pid, mask: u64) -> Result<(), AttachError> {
    // SAFETY: eight bytes of our own are read.
    let set = unsafe { libc::ptrace(PTRACE_SETSIGMASK, tid.as_raw(), 8_usize, &raw const mask) };
    if set == -1 {
        let error = std::io::Error::last_os_error();
        return Err(AttachError::system("the signals of a thread", error));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_is_known_by_its_way_home() {
        // SAFETY: numbers only.
        let home: user_regs_struct = unsafe { std::mem::zeroed() };
        let mut code = stub(SYS_GETPID, [u64::MAX; 6], &home, u64::MAX);
        assert!(leads_home(&code));
        code[HOME] = 0;
        assert!(!leads_home(&code));
        assert!(!leads_home(&[0; STUB]) && !leads_home(&[]));
    }
}
