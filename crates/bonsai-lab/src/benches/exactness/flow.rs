//! Greedy programs, bare or in a service.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::child::Running;
use crate::context::Context;
use crate::service::{Service, monotonic_ns};

/// The width of a bin in `flow.c`.
pub(crate) const BIN_NS: u64 = 10_000_000;

/// What the calls do.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    /// `write` to `/dev/null`: a device takes what it is given at a time, so that
    /// large calls are never split.
    Write,
    /// `pwrite` to a file in memory.
    WriteFile,
    /// `read` of `/dev/zero`: never split.
    Read,
    /// `pread` of a file in the page cache.
    ReadFile,
}

/// Programs that want more than they get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) operation: Operation,
    /// Bytes of a call.
    pub(crate) size: u64,
    /// Threads of each process.
    pub(crate) threads: u32,
    pub(crate) processes: u32,
    /// Before the measurement.
    pub(crate) warm: Duration,
    /// Of the measurement.
    pub(crate) length: Duration,
    /// Between two looks at the kernel's counters; zero for none.
    pub(crate) sample: Duration,
}

/// What one process did: see `flow.c`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Answer {
    pub(crate) calls: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) nivcsw: i64,
    pub(crate) late_ns: u64,
    /// Bytes by the instant of return, in bins of [`BIN_NS`].
    pub(crate) bins: Vec<u64>,
    /// Instant since the start, ns, and bytes counted by the kernel.
    pub(crate) kernel: Vec<(u64, u64)>,
}

impl Operation {
    /// The class that limits it.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Write | Self::WriteFile => "write",
            Self::Read | Self::ReadFile => "read",
        }
    }

    fn path(self, context: &Context, size: u64) -> anyhow::Result<PathBuf> {
        Ok(match self {
            Self::Write => "/dev/null".into(),
            Self::Read => "/dev/zero".into(),
            Self::WriteFile => context.file_in_memory(usize::try_from(size)?)?,
            Self::ReadFile => context.file(usize::try_from(size.max(1 << 20))?)?,
        })
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::WriteFile => "pwrite",
            Self::Read => "read",
            Self::ReadFile => "pread",
        })
    }
}

/// Runs a flow to its end.
///
/// # Errors
/// A process fails.
pub(crate) fn run_flow(
    context: &mut Context,
    flow: &Flow,
    service: Option<&Service>,
) -> anyhow::Result<Vec<Answer>> {
    let (_, running) = start_flow(context, flow, service)?;
    finish_flow(flow, running)
}

/// Starts a flow; returns the instant (monotonic clock, ns) at which it begins.
///
/// # Errors
/// A process cannot be started.
pub(crate) fn start_flow(
    context: &mut Context,
    flow: &Flow,
    service: Option<&Service>,
) -> anyhow::Result<(u64, Vec<Running>)> {
    let path = flow.operation.path(context, flow.size)?;
    let ns = |time: Duration| time.as_nanos().to_string();
    let mut running = Vec::new();
    for _ in 0..flow.processes {
        let mut command = context.program("flow")?;
        let direction = flow.operation.class();
        command
            .args([direction, &flow.size.to_string(), &flow.threads.to_string()])
            .args([
                ns(flow.warm),
                ns(flow.length),
                flow.sample.as_millis().to_string(),
            ])
            .arg(&path);
        if let Some(service) = service {
            service.enter(&mut command);
        }
        running.push(Running::start(&mut command)?);
    }
    for process in &mut running {
        let word = process.line(Duration::from_secs(20))?;
        anyhow::ensure!(word == "ready", "a flow said {word:?}");
    }
    let start = monotonic_ns() + 20_000_000;
    for process in &mut running {
        process.tell(&start.to_string())?;
    }
    Ok((start, running))
}

/// Waits for the end of a flow.
///
/// # Errors
/// A process fails.
pub(crate) fn finish_flow(flow: &Flow, running: Vec<Running>) -> anyhow::Result<Vec<Answer>> {
    let patience = flow.warm + flow.length + Duration::from_secs(20);
    let finish = |process: Running| Ok(serde_json::from_str(&process.finish(patience)?)?);
    running.into_iter().map(finish).collect()
}
