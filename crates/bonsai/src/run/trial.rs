//! A program that is tried: what its processes say of themselves, and what was counted.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use bonsai_ledger::{CallTotals, EventLoops, ProcessReport};
use bonsai_services::service::{Services, Wanted};

use super::{Plan, Program, refuse_within_service};
use crate::bounded::wait_at_most;
use crate::cli::Unpatched;
use crate::library;

/// Findings of a trial.
pub(crate) struct Tried {
    /// Reports of its processes.
    pub(crate) processes: Vec<ProcessReport>,
    /// Calls that were counted.
    pub(crate) calls: Vec<CallTotals>,
    /// End of the program; `None` where it had to be killed.
    pub(crate) end: Option<ExitStatus>,
}

impl Tried {
    /// The exit code.
    pub(crate) fn code(&self) -> Option<i32> {
        self.end.and_then(|end| end.code())
    }
}

/// Runs a program that ends by itself, with the C library of a loader, as a service without limits, and no longer than `most`. `set_up`
/// gets the path of the library, too.
///
/// # Errors
/// Whatever keeps it from being started.
pub(crate) fn trial(
    program: &OsStr,
    loader: &Path,
    most: Duration,
    set_up: impl FnOnce(&mut Command, &Path),
) -> anyhow::Result<Tried> {
    refuse_within_service()?;
    let plan = Plan {
        name: None,
        limits: Vec::new(),
        group: None,
        program: Program::find(&[program.into()], false)?.with_loader(loader),
        library: library::find()?,
        engine: None,
        no_patch: false,
        strict: false,
        unpatched: Unpatched::Leave,
        ends: false,
        event_loops: EventLoops::Off,
    };
    let service = Services::open()?.make(&Wanted::Like("doctor"))?;
    let tried = || -> anyhow::Result<Tried> {
        let (ledger, _, mut command) = plan.prepare(&service)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        set_up(&mut command, &service.preload_path());
        let failed = || format!("{} cannot be started", program.display());
        let mut child = command.spawn().with_context(failed)?;
        let end = wait_at_most(&mut child, most).with_context(failed)?;
        Ok(Tried {
            processes: ledger.process_table(),
            calls: ledger.totals(),
            end,
        })
    };
    let tried = tried();
    service.remove()?;
    tried
}
