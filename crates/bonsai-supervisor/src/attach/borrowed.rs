//! Threads that somebody had borrowed who was killed: each finds its own way home, but
//! where others want the CPU that may last, and it needs the stub and the engine's stack
//! until it is there.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nix::unistd::Pid;

use super::held::Held;
use super::maps::idle_code;
use super::runner::{STUB, leads_home};
use super::{AttachError, PAGE, Process, STACK, engines, frames};
use crate::patience::Patience;

/// How long they may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process, stopped when all of its threads are their own.
pub(super) fn none(pid: Pid) -> Result<Process, AttachError> {
    let mut patience = Patience::of(PATIENCE);
    let mut pause = Duration::from_millis(1);
    loop {
        let process = Process::look(Held::all(pid)?)?;
        if !is_borrowed(&process)? {
            return Ok(process);
        }
        if patience.is_over() {
            return Err(AttachError::Borrowed);
        }
        drop(process);
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Whether a thread is on its way home.
fn is_borrowed(process: &Process) -> Result<bool, AttachError> {
    let (memory, maps) = (&process.memory, &process.maps);
    let stubs: Vec<_> = idle_code(maps, &process.objects, STUB as u64)
        .filter(|at| {
            let mut code = [0; STUB];
            memory.read_exact_at(&mut code, *at).is_ok() && leads_home(&code)
        })
        .map(|at| at..at + STUB as u64)
        .collect();
    let stacks: Vec<_> = engines(memory, maps)
        .iter()
        .filter_map(|engine| engine.stack().ok())
        .filter(|top| *top != 0)
        .map(stack)
        .collect();
    if stubs.is_empty() && stacks.is_empty() {
        return Ok(false);
    }
    let leads = |rip: u64| stubs.iter().any(|stub| stub.contains(&rip));
    for tid in &process.held.threads {
        let registers = Held::registers(*tid)?;
        if leads(registers.rip) || stacks.iter().any(|stack| stack.contains(&registers.rsp)) {
            return Ok(true);
        }
        // A handler may have come in between.
        let saved = || frames::saved(memory, maps, registers.rsp);
        if !stubs.is_empty() && saved().iter().any(|(_, rip)| leads(*rip)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The engine's stack below its top.
pub(super) fn stack(top: u64) -> std::ops::Range<u64> {
    let end = (top & !(PAGE - 1)) + PAGE;
    end - STACK..end
}
