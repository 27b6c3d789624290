//! Following one process through its exec, and entering the program.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use bonsai_ledger::{AskedFor, ProcessId, Segment, identity_of, number_of, read_proc};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use object::elf::{PT_DYNAMIC, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::asking::{Until, ends_with_us, is_strict, not_covered};
use crate::engine::Engine;
use crate::patience::Patience;
use crate::tracee::Tracee;

/// Why a program was not entered.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The system refuses something.
    #[error("{what} cannot be reached")]
    System {
        /// What was wanted.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// The process does not want it any more: its exec failed.
    #[error("it runs no other program")]
    Cancelled,
    /// The process has ended.
    #[error("it has ended")]
    Gone,
    /// The named process does not belong to the service.
    #[error("process {} asks to be entered, and does not belong to the service", .0.pid)]
    Stranger(ProcessId),
    /// The named process is of another pid namespace and is not found in `/proc`.
    #[error("process {} of another pid namespace asks to be entered, and is not in /proc", .0.pid)]
    NotFound(ProcessId),
    /// There is no room for the engine where jumps from the program reach it.
    #[error("no room near its code")]
    NoRoom,
}

impl EnterError {
    pub(crate) fn system(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::System {
            what,
            source: source.into(),
        }
    }
}

const PAGE: u64 = 4096;
const PROT_RX: u64 = 5;
const PROT_RW: u64 = 3;
const MAP_PRIVATE: u64 = 2;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const SYS_OPEN: u64 = 2;
const SYS_CLOSE: u64 = 3;
const SYS_MMAP: u64 = 9;
const SYS_MUNMAP: u64 = 11;
const O_CLOEXEC: u64 = 0o2_000_000;

/// How long a process that has been seized may take to get to its exec.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait for a stop before a look whether the exec has failed, which nothing tells.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Answers what a process has asked for in the ledger: enters the program that it
/// runs next. Members can write any process id into the ledger, and the helper may have more rights: the id is read once,
/// its number is looked for in `/proc`, and the process must have this id and be a member before it is seized and while it
/// is, when its id cannot be reused.
///
/// # Errors
/// Why nothing was entered.
pub fn enter(
    segment: &Segment,
    number: usize,
    engine: &Engine,
    is_member: impl Fn(u32) -> bool,
) -> Result<(), EnterError> {
    let asked = segment.asked(number).ok_or(EnterError::Gone)?;
    let result = answer(segment, &asked, engine, is_member);
    if !matches!(
        result,
        Ok(()) | Err(EnterError::Cancelled | EnterError::Gone | EnterError::Stranger(_))
    ) {
        not_covered(segment, asked.asker());
    }
    result
}

fn answer(
    segment: &Segment,
    asked: &AskedFor<'_>,
    engine: &Engine,
    is_member: impl Fn(u32) -> bool,
) -> Result<(), EnterError> {
    let mut futex = Until::within(PATIENCE);
    let asker = asked.asker();
    let Some(number) = number_of(asker) else {
        asked.refuse(&mut futex);
        return Err(EnterError::NotFound(asker));
    };
    let stranger = || match is_member(number) && is(number, asker) {
        true => Ok(()),
        false => Err(EnterError::Stranger(asker)),
    };
    stranger().inspect_err(|_| asked.refuse(&mut futex))?;
    let pid = i32::try_from(number).map_or(Pid::from_raw(0), Pid::from_raw);
    // Stops of the tracee are waited for with `sigtimedwait`.
    let _ = SigSet::from_iter([Signal::SIGCHLD]).thread_block();
    // In a strict service, a program ends with its helper rather than run without limits.
    let strict = is_strict(segment);
    let mut options = Options::PTRACE_O_TRACEEXEC;
    options.set(Options::PTRACE_O_EXITKILL, strict || ends_with_us(segment));
    // Without Yama nothing has to be allowed, which takes both sides longer than all the rest here.
    let at_once = !is_restricted() && {
        asked.name(std::process::id());
        ptrace::seize(pid, options).is_ok()
    };
    if !at_once {
        if !asked.wait_until_allowed(std::process::id(), &mut futex) {
            return Err(EnterError::Cancelled);
        }
        if let Err(error) = ptrace::seize(pid, options) {
            asked.seized(false, &mut futex);
            return Err(EnterError::system("the process", error));
        }
    }
    if let Err(error) = stranger() {
        leave(pid);
        if at_once {
            asked.refuse(&mut futex);
        } else {
            asked.seized(false, &mut futex);
        }
        return Err(error);
    }
    let told = match at_once {
        true => asked.seized_at_once(&mut futex),
        false => asked.seized(true, &mut futex),
    };
    if !told {
        leave(pid);
        return Err(EnterError::Cancelled);
    }
    let mut stopped = None;
    let result = follow(pid, asked, &mut stopped)
        .and_then(|pid| enter_program(pid, engine, strict, stopped));
    asked.done();
    result
}

/// True where the kernel (Yama) lets processes trace others only where these allow it, and logs each attempt.
fn is_restricted() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() != "0")
}

/// True where a number in `/proc` is that of a process or thread, as far as its namespace is known.
fn is(number: u32, asker: ProcessId) -> bool {
    identity_of(number).is_some_and(|found| match asker.namespace {
        0 => found.pid == asker.pid,
        _ => found == asker,
    })
}

/// Waits for the stop at the end of its exec. A signal that stops it meanwhile is kept
/// for later: it cannot be entered before it has got there.
fn follow(pid: Pid, asked: &AskedFor<'_>, stopped: &mut Option<Signal>) -> Result<Pid, EnterError> {
    let mut patience = Patience::of(PATIENCE);
    loop {
        let status = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
        match status.map_err(|error| EnterError::system("the process", error))? {
            WaitStatus::PtraceEvent(pid, _, event)
                if event == ptrace::Event::PTRACE_EVENT_EXEC as i32 =>
            {
                return Ok(pid);
            }
            WaitStatus::PtraceEvent(pid, signal, _) => {
                if signal != Signal::SIGTRAP {
                    *stopped = Some(signal);
                }
                let _ = ptrace::cont(pid, None);
            }
            WaitStatus::Stopped(pid, signal) => {
                if signal == Signal::SIGCONT {
                    *stopped = None;
                }
                let _ = ptrace::cont(pid, signal);
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Err(EnterError::Gone),
            _ => {
                if asked.is_cancelled() || patience.is_over() {
                    leave(pid);
                    let _ = stopped.map(|signal| kill(pid, signal));
                    return Err(EnterError::Cancelled);
                }
                wait_for_news();
            }
        }
    }
}

/// Waits for a stop of the tracee (`SIGCHLD`), or a moment.
fn wait_for_news() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: LOOK_AGAIN.subsec_nanos().into(),
    };
    let news = SigSet::from_iter([Signal::SIGCHLD]);
    // SAFETY: waits for a signal that `enter` has blocked in this thread, and writes nothing; where the signal is not
    // sent, because it was ignored when this program was started, it sleeps.
    unsafe { libc::sigtimedwait(news.as_ref(), std::ptr::null_mut(), &raw const time) };
}

/// Detaches from a running process: it has to stop for that.
fn leave(pid: Pid) {
    if ptrace::interrupt(pid).is_ok() {
        let _ = waitpid(pid, Some(WaitPidFlag::__WALL));
        let _ = ptrace::detach(pid, None);
    }
}

/// Maps the engine into the program that has just been loaded, and lets it go on
/// there. A program with a loader is left to that. One that cannot be entered ends in a
/// strict service.
fn enter_program(
    pid: Pid,
    engine: &Engine,
    strict: bool,
    stopped: Option<Signal>,
) -> Result<(), EnterError> {
    // It gets that when it goes on, and stops before the program's first instruction.
    let stop = || stopped.map(|signal| kill(pid, signal));
    if has_loader(pid) {
        stop();
        return ptrace::detach(pid, None).map_err(|error| EnterError::system("it", error));
    }
    // In the middle of this it could not go on.
    let _ = ptrace::setoptions(
        pid,
        Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL,
    );
    let tracee = Tracee::new(pid, path_bytes(&engine.path).len())?;
    let mapped = match tracee.is_filtered() {
        true => map_parts(&tracee, engine).map(|at| (at, 0)),
        false => map_file(&tracee, engine),
    };
    match mapped {
        Ok((at, file)) => {
            stop();
            let arguments = [tracee.start.rip, file, length(engine), strict.into()];
            tracee.release(at + engine.entry, arguments)
        }
        Err(error) => {
            if strict {
                // It is stopped, and does not get any further.
                let _ = kill(pid, Signal::SIGKILL);
            }
            stop();
            tracee.let_go();
            Err(error)
        }
    }
}

/// True for a program that names a loader, or is one, which brings the preload library.
fn has_loader(pid: Pid) -> bool {
    // All headers that a linker writes; the rest may be a hundred megabytes.
    const HEADERS: usize = 1 << 14;
    let mut bytes = vec![0; HEADERS];
    let Ok(exe) = std::fs::File::open(format!("/proc/{pid}/exe")) else {
        return false;
    };
    // A file gives all that is there at once.
    let Ok(len) = exe.read_at(&mut bytes, 0) else {
        return false;
    };
    bytes.truncate(len);
    let header = object::elf::FileHeader64::<object::Endianness>::parse(&*bytes);
    let Ok((header, endian)) = header.and_then(|h| Ok((h, h.endian()?))) else {
        return false;
    };
    let Ok(headers) = header.program_headers(endian, &*bytes) else {
        return false;
    };
    let dynamic = headers.iter().find(|h| h.p_type(endian) == PT_DYNAMIC);
    let is_loader = dynamic.is_some_and(|dynamic| {
        let mut entries = vec![
            0;
            usize::try_from(dynamic.p_filesz(endian))
                .unwrap_or(0)
                .min(1 << 14)
        ];
        let read = exe.read_exact_at(&mut entries, dynamic.p_offset(endian));
        read.is_ok() && is_library(&entries)
    });
    is_loader || headers.iter().any(|h| h.p_type(endian) == PT_INTERP)
}

/// True for the dynamic section of a library, as loaders are: it has a name for others to find (`DT_SONAME`), or, as musl's, none of the
/// marks that linkers leave in programs (`DT_DEBUG`, `DF_1_PIE`).
fn is_library(entries: &[u8]) -> bool {
    const DT_SONAME: u64 = 14;
    const DT_DEBUG: u64 = 21;
    const DT_FLAGS_1: u64 = 0x6fff_fffb;
    const DF_1_PIE: u64 = 0x0800_0000;
    let number = |bytes: &[u8]| bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
    let all = || {
        let words = entries
            .chunks_exact(16)
            .map(|entry| (number(entry), number(&entry[8..])));
        words.take_while(|(tag, _)| *tag != 0)
    };
    let is_program = |(tag, value)| tag == DT_DEBUG || tag == DT_FLAGS_1 && value & DF_1_PIE != 0;
    all().any(|(tag, _)| tag == DT_SONAME) || !all().any(is_program)
}

/// Bytes of memory that the engine takes.
fn length(engine: &Engine) -> u64 {
    engine.len.next_multiple_of(PAGE)
}

/// Maps the engine's file as it is, by one stop; the engine puts its own parts in place. Where it is, and its descriptor plus
/// one, which it closes.
fn map_file(tracee: &Tracee, engine: &Engine) -> Result<(u64, u64), EnterError> {
    let failed = |error| EnterError::system("a system call made in it", error);
    let len = length(engine);
    let at = place(tracee, len)?;
    let how = MAP_PRIVATE | MAP_FIXED_NOREPLACE;
    let path = path_bytes(&engine.path);
    let [opened, mapped] = tracee.open_and_map(&path, O_CLOEXEC, [at, len, how])?;
    let fd = opened.map_err(failed)?;
    match mapped {
        Ok(there) if there == at => Ok((at, fd + 1)),
        not => {
            tracee.call(SYS_CLOSE, [fd, 0, 0, 0, 0, 0])?;
            Err(not.err().map_or(EnterError::NoRoom, failed))
        }
    }
}

/// Maps the engine part by part in a process that is under a seccomp filter: a filter of whatever ran there before may
/// trap calls by where they are made, so that they are made in a page of their own. Where the engine is.
fn map_parts(tracee: &Tracee, engine: &Engine) -> Result<u64, EnterError> {
    tracee.settle()?;
    let len = length(engine);
    let at = place(tracee, len + PAGE)?;
    let reserve = [
        at,
        len + PAGE,
        PROT_RX,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
        u64::MAX,
        0,
    ];
    if tracee.call(SYS_MMAP, reserve)? != at {
        return Err(EnterError::NoRoom);
    }
    tracee.call_at(Some(at + len))?;
    let name = path_bytes(&engine.path);
    // Below the stack, whose pages are there: the kernel has just written above.
    let text = (tracee.start.rsp - 1024 - name.len() as u64) & !15;
    tracee.write(text, &name)?;
    let fd = tracee.call(SYS_OPEN, [text, O_CLOEXEC, 0, 0, 0, 0])?;
    for part in &engine.parts {
        let from = at + part.at;
        let protection = if part.code { PROT_RX } else { PROT_RW };
        let in_file = part.file_len.next_multiple_of(PAGE);
        tracee.call(
            SYS_MMAP,
            [
                from,
                in_file,
                protection,
                MAP_PRIVATE | MAP_FIXED,
                fd,
                part.offset,
            ],
        )?;
        if part.code {
            continue;
        }
        // What the file has behind it is not zero.
        let rest = usize::try_from(in_file - part.file_len).unwrap_or(0);
        tracee.write(from + part.file_len, &vec![0; rest])?;
        if part.len > in_file {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            let more = [
                from + in_file,
                part.len - in_file,
                protection,
                flags,
                u64::MAX,
                0,
            ];
            tracee.call(SYS_MMAP, more)?;
        }
    }
    tracee.call(SYS_CLOSE, [fd, 0, 0, 0, 0, 0])?;
    tracee.call_at(None)?;
    tracee.call(SYS_MUNMAP, [at + len, PAGE, 0, 0, 0, 0])?;
    tracee.write(text, &vec![0; name.len()])?;
    for (word, value) in &engine.relocations {
        tracee.write(at + word, &(at + value).to_le_bytes())?;
    }
    Ok(at)
}

pub(crate) fn path_bytes(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// The lowest address that anybody may map (`vm.mmap_min_addr` is below).
const LOWEST: u64 = 0x1_0000 * 4;

/// Room between what is mapped here and the program, for entries of moved sites.
const BESIDE: u64 = 0x8_0000;

/// How far from the program's code jumps certainly reach.
const REACH: u64 = 0x6000_0000;

/// A free place near the program: below it, if there is room, for above it its heap
/// grows.
fn place(tracee: &Tracee, len: u64) -> Result<u64, EnterError> {
    let path = format!("/proc/{}/maps", tracee.pid);
    let maps = read_proc(&path).map_err(|e| EnterError::system("its memory", e))?;
    let maps = String::from_utf8_lossy(&maps);
    let mapped: Vec<(u64, u64)> = maps.lines().filter_map(range).collect();
    let here = mapped
        .iter()
        .position(|(from, to)| (*from..*to).contains(&tracee.start.rip));
    let here = here.ok_or(EnterError::NoRoom)?;
    // The first of the mappings that lie together with the one of its code.
    let first = (0..here)
        .rev()
        .take_while(|i| mapped[*i].1 + PAGE * 16 >= mapped[*i + 1].0)
        .last()
        .unwrap_or(here);
    let start = mapped[first].0;
    let floor = if first == 0 {
        LOWEST
    } else {
        mapped[first - 1].1 + BESIDE
    };
    let below = start.saturating_sub(BESIDE + len) & !(PAGE - 1);
    if below >= floor {
        return Ok(below);
    }
    let code = mapped[here].1;
    let mut gaps = mapped
        .windows(2)
        .filter(|pair| pair[0].1 > code && pair[0].1 < code + REACH);
    gaps.find(|pair| pair[1].0.min(code + REACH) - pair[0].1 > 2 * BESIDE + len)
        .map(|pair| pair[1].0.min(code + REACH) - BESIDE - len)
        .map(|at| at & !(PAGE - 1))
        .ok_or(EnterError::NoRoom)
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
    ))
}
