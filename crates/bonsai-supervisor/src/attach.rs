//! Putting a process that runs already under limits, and out of them again.
//!
//! ```text
//!   stop all threads (ptrace), and again, as long as one is on its     held.rs,
//!   way home that somebody had borrowed who was killed                 borrowed.rs
//!     borrow one of them: map the engine and the ledger,               runner.rs
//!     run the engine, which finds sites and writes down what they      shared.rs
//!     are to become
//!     threads in the middle of a site, and signal frames that go       sites.rs,
//!     back there, get a place that means the same                      frames.rs
//!     replace the sites, one by one
//!   let go of all
//! ```
//!
//! # Invariants
//! 1. This may be killed at any instant, and the process goes on: a borrowed thread
//!    finds its own way home, and nobody else uses that way or the engine's stack until
//!    it is there; no thread and no frame is left in the middle of a site when
//!    the first one is replaced, and each site is either as it was or leads to something
//!    complete.
//! 2. If anything fails before the first site is replaced, what was mapped is removed.
//! 3. What was mapped stays after a detach: threads may still be in there.

mod borrowed;
mod fill;
mod frames;
mod held;
mod maps;
mod runner;
mod shared;
mod sites;
mod why;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use nix::unistd::Pid;

use self::fill::{empty, fill, remove, reserve};
use self::held::Held;
use self::maps::{Mapping, Object};
use self::runner::{Runner, STUB};
use self::shared::{Patch, Shared, Want};
use self::sites::{Sites, TWIN};
use self::why::refused;
pub use self::why::{AttachError, check, may_trace};
use crate::engine::Engine;
use crate::text;

const PAGE: u64 = 4096;
/// Room for the engine's stack, where it runs to enter and to leave.
const STACK: u64 = 0x4_0000;

/// Room for the twins of all sites.
const TWINS: u64 = (shared::SITES as u64 * TWIN).next_multiple_of(PAGE);

/// Room for the instructions of sites that are moved: 72 bytes each, and pages of each
/// library's own.
const ENTRIES: u64 = 0x4_0000;

/// The file name of the engine, and those of the library that does the same from a
/// process's start.
const ENGINE: &str = "libbonsai_engine.so";
const LIBRARY: &str = "libbonsai_preload.so";

/// What has become of a process.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// Sites replaced.
    pub sites: usize,
    /// The number of a `bonsai_ledger::Reason` for what is not covered.
    pub reason: u32,
}

/// Puts a process under the limits of a ledger.
///
/// # Errors
/// Why not; then it goes on as before.
pub fn attach(pid: i32, engine: &Engine, ledger: &Path) -> Result<Attached, AttachError> {
    check(pid)?;
    stopped(pid, |process| enter(process, engine, ledger))
}

/// Takes the limits off a process: its instructions are as they were. False if it was not
/// put under any by us.
///
/// # Errors
/// Why not.
pub fn detach(pid: i32) -> Result<bool, AttachError> {
    if !is_attached(pid) {
        return Ok(false);
    }
    // What is left to do may be done meanwhile, by a thread that a killed one borrowed.
    stopped(pid, leave).map(|()| true)
}

/// Stops all threads of a process, and does something with it.
fn stopped<T: Send>(
    pid: i32,
    what: impl FnOnce(Process) -> Result<T, AttachError> + Send,
) -> Result<T, AttachError> {
    // The kernel lets go of what is traced when the thread that traces ends.
    within_thread(|| borrowed::none(Pid::from_raw(pid)).and_then(what))
}

/// Whether the engine is in a process, and in use: all of its sites are patched, or some,
/// if whoever did that has been killed.
#[must_use]
pub fn is_attached(pid: i32) -> bool {
    let look = || {
        let maps = maps::of(pid).ok()?;
        let memory = Arc::new(File::open(format!("/proc/{pid}/mem")).ok()?);
        in_use(&memory, &maps).pop()
    };
    look().is_some()
}

fn within_thread<T: Send>(
    what: impl FnOnce() -> Result<T, AttachError> + Send,
) -> Result<T, AttachError> {
    std::thread::scope(|scope| {
        let done = std::thread::Builder::new().spawn_scoped(scope, what);
        let done = done.map_err(|error| AttachError::system("a thread to trace it with", error))?;
        done.join().unwrap_or(Err(AttachError::Gone))
    })
}

/// All engines in a process, with what they share.
fn engines(memory: &Arc<File>, maps: &[Mapping]) -> Vec<Shared> {
    let data = maps
        .iter()
        .filter(|map| map.writable && map.name() == ENGINE);
    data.filter_map(|map| Shared::find(memory, map.at.clone()))
        .collect()
}

/// Those that are in use: one, or what killed attachers have left.
fn in_use(memory: &Arc<File>, maps: &[Mapping]) -> Vec<Shared> {
    let mut all = engines(memory, maps);
    all.retain(|shared| shared.is_in_use().unwrap_or(false));
    all
}

/// A process whose threads are stopped.
struct Process {
    held: Held,
    memory: Arc<File>,
    maps: Vec<Mapping>,
    objects: Vec<Object>,
}

impl Process {
    fn look(held: Held) -> Result<Self, AttachError> {
        let pid = held.pid;
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map_err(|error| AttachError::system("its memory", error))?;
        let maps = maps::of(pid.as_raw()).map_err(|e| AttachError::system("its memory", e))?;
        let objects = maps::objects(&maps, &memory);
        Ok(Self {
            held,
            memory: Arc::new(memory),
            maps,
            objects,
        })
    }

    /// A thread to be borrowed, best one in a system call: it is in no sequence of
    /// instructions that has to be begun anew after an interruption (`rseq`).
    fn borrow(&self) -> Result<Runner, AttachError> {
        let mut best = None;
        for tid in &self.held.threads {
            let calls = Held::registers(*tid)?.orig_rax.cast_signed() >= 0;
            if best.is_none() || calls {
                best = Some(*tid);
            }
            if calls {
                break;
            }
        }
        let stub = maps::idle_code(&self.maps, &self.objects, STUB as u64).max();
        let stub = stub.ok_or(AttachError::NoIdleCode)?;
        Runner::new(best.ok_or(AttachError::Gone)?, &self.memory, stub)
    }

    /// The value of an entry of its auxiliary vector.
    fn auxiliary(&self, kind: u64) -> Result<Option<u64>, AttachError> {
        let auxiliary = std::fs::read(format!("/proc/{}/auxv", self.held.pid))
            .map_err(|error| AttachError::system("its auxiliary vector", error))?;
        Ok(why::auxiliary(&auxiliary, kind))
    }

    /// Whether it may read the base of `fs`, as the kernel has told it.
    fn reads_base(&self) -> Result<bool, AttachError> {
        const HWCAP2_FSGSBASE: u64 = 2;
        let bits = self.auxiliary(why::AT_HWCAP2)?;
        Ok(bits.unwrap_or(0) & HWCAP2_FSGSBASE != 0)
    }

    /// The program first, and what it has loaded, if there is a loader.
    fn all_objects(&self) -> Result<Vec<Object>, AttachError> {
        let headers = self.auxiliary(why::AT_PHDR)?;
        let is_program = |object: &&Object| Some(object.headers) == headers;
        let program = self.objects.iter().find(is_program);
        let program = program.ok_or(AttachError::NoProgram)?;
        let mut all = vec![program.clone()];
        if program.has_loader {
            let others = self.objects.iter().filter(|object| !is_program(object));
            all.extend(others.filter(|o| o.name != "[vdso]").cloned());
        }
        Ok(all)
    }

    /// Lets all threads go on where nothing is to be patched: those that sites cover,
    /// and signal frames.
    fn move_threads(&self, runner: &mut Runner, sites: &Sites) -> Result<(), AttachError> {
        for tid in &self.held.threads {
            let borrowed = *tid == runner.tid;
            let registers = if borrowed {
                runner.home
            } else {
                Held::registers(*tid)?
            };
            let frames = frames::covered(&self.memory, &self.maps, registers.rsp, sites);
            for (place, instead) in frames {
                self.write(place, &instead.to_le_bytes())?;
            }
            let instead = sites.instead_of(registers.rip);
            let Some(rip) = instead else { continue };
            let registers = nix::libc::user_regs_struct { rip, ..registers };
            if borrowed {
                runner.leads_to(registers)?;
            } else {
                Held::set(*tid, registers)?;
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), AttachError> {
        let written = text::write(&self.memory, self.held.threads.iter().copied(), at, bytes);
        written.map_err(|error| AttachError::system("its memory", error))
    }

    /// Replaces what stands at a site, if it is what is expected.
    fn exchange(&self, at: u64, from: [u8; 8], to: [u8; 8]) -> Result<bool, AttachError> {
        let mut here = [0; 8];
        // A library may have gone since.
        if self.memory.read_exact_at(&mut here, at).is_err() || here != from {
            return Ok(false);
        }
        self.write(at, &to)?;
        Ok(true)
    }
}

/// Whether it is the C library.
fn is_libc(object: &Object) -> bool {
    ["libc.so", "libc-2.", "ld-musl"]
        .iter()
        .any(|name| object.name.starts_with(name))
}

fn enter(mut process: Process, engine: &Engine, ledger: &Path) -> Result<Attached, AttachError> {
    let (memory, maps) = (&process.memory, &process.maps);
    if let Some(map) = maps.iter().find(|map| map.name() == LIBRARY) {
        return Err(AttachError::Already(map.path.clone()));
    }
    let left = in_use(memory, maps);
    if left
        .iter()
        .any(|shared| shared.is_patched().unwrap_or(true))
    {
        return Err(AttachError::Already(ENGINE.to_owned()));
    }
    let objects = process.all_objects()?;
    for tid in &process.held.threads {
        why::check_thread(*tid, &Held::registers(*tid)?, &objects)?;
    }
    let name = ledger.to_string_lossy();
    let same = |shared: &Shared| {
        let at = shared.segment().unwrap_or(0);
        let mapped = |map: &Mapping| map.at.contains(&at) && map.path == name;
        maps.iter().any(mapped) && shared.has_looked().unwrap_or(false)
    };
    let before = engines(memory, maps).into_iter().find(same);
    let mut runner = process.borrow()?;
    let mut entered = Ok(());
    for shared in left {
        entered = entered.and_then(|()| run(&runner, &shared, Want::Detach));
    }
    let entered = entered.and_then(|()| match before {
        Some(shared) => again(&process, &mut runner, &shared),
        None => anew(&process, &mut runner, engine, ledger, &objects),
    });
    runner.end(&mut process.held)?;
    entered
}

fn run(runner: &Runner, shared: &Shared, what: Want) -> Result<(), AttachError> {
    let stack = shared.stack()?;
    runner.run(shared.entry()?, stack, what as u64)?;
    empty(runner, stack);
    Ok(())
}

/// Puts a process under the limits again that it had been under.
fn again(process: &Process, runner: &mut Runner, shared: &Shared) -> Result<Attached, AttachError> {
    run(runner, shared, Want::Again)?;
    replace(process, runner, shared)
}

/// Maps the engine and the ledger, lets the engine find what is to be replaced, and
/// replaces it.
fn anew(
    process: &Process,
    runner: &mut Runner,
    engine: &Engine,
    ledger: &Path,
    objects: &[Object],
) -> Result<Attached, AttachError> {
    let near = objects.iter().find(|object| is_libc(object));
    let near = near.or(objects.first()).and_then(|object| {
        let starts = object.code.iter().map(|code| code.start).min()?;
        let ends = object.code.iter().map(|code| code.end).max()?;
        Some(starts..ends)
    });
    let near = near.ok_or(AttachError::NoProgram)?;
    let len = engine.len.next_multiple_of(PAGE) + TWINS + ENTRIES + STACK;
    let at = maps::place(&process.maps, &near, len).ok_or(AttachError::NoRoom)?;
    if !reserve(runner, at, len)? {
        return Err(AttachError::NoRoom);
    }
    let mut mapped = vec![(at, len)];
    let done = fill(process, runner, engine, ledger, at, &mut mapped)
        .and_then(|shared| {
            let program = objects.first().map_or("", |program| &program.name);
            shared.give(ledger, program, objects, process.reads_base()?)?;
            run(runner, &shared, Want::Attach)?;
            Ok(shared)
        })
        .and_then(|shared| match replace(process, runner, &shared) {
            Err(error @ AttachError::NoSites(_)) => {
                // Nothing leads there.
                run(runner, &shared, Want::Detach)?;
                Err(error)
            }
            Err(error) => {
                mapped.clear();
                Err(error)
            }
            done => done,
        });
    if done.is_err() {
        for (at, len) in mapped {
            remove(runner, at, len);
        }
    }
    done
}

/// Replaces the sites that the engine has found.
fn replace(
    process: &Process,
    runner: &mut Runner,
    shared: &Shared,
) -> Result<Attached, AttachError> {
    let patches = shared.patches()?;
    if patches.is_empty() {
        return Err(AttachError::NoSites(shared.reason()?));
    }
    let twins = shared.twins()?;
    process.write(twins, &Sites::twins(&patches))?;
    process.move_threads(runner, &Sites::new(&patches, twins))?;
    // Before the first one: whoever takes the limits off has to look at all of them.
    shared.set_patched(true)?;
    let mut sites = 0;
    for patch in &patches {
        match process.exchange(patch.at, patch.old, patch.new) {
            Ok(true) => sites += 1,
            Ok(false) => {}
            Err(error) => {
                restore(process, &patches)?;
                shared.set_patched(false)?;
                return Err(error);
            }
        }
    }
    Ok(Attached {
        sites,
        reason: shared.reason()?,
    })
}

/// Puts back what was there. Whoever is on the way to a decision, or in a call, comes
/// back behind the site, where nothing has changed.
fn restore(process: &Process, patches: &[Patch]) -> Result<(), AttachError> {
    for patch in patches {
        process.exchange(patch.at, patch.new, patch.old)?;
    }
    Ok(())
}

fn leave(mut process: Process) -> Result<(), AttachError> {
    let left = in_use(&process.memory, &process.maps);
    if left.is_empty() {
        return Ok(());
    }
    for shared in &left {
        restore(&process, &shared.patches()?)?;
        shared.set_patched(false)?;
    }
    let runner = process.borrow()?;
    let done = left
        .iter()
        .try_for_each(|shared| run(&runner, shared, Want::Detach));
    runner.end(&mut process.held)?;
    done
}
