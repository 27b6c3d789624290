//! What a benchmark runs in.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use bonsai_stats::SplitMix64;
use clap::ValueEnum;
use serde::Serialize;
use tempfile::TempDir;

use crate::child;
use crate::load::Conditions;
use crate::programs::Programs;
use crate::record::{Line, Recorder};
use crate::service::{Doors, Service, shared_memory};

/// How much time to spend.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum Effort {
    /// Seven minutes for everything: does it work, and roughly how well.
    Quick,
    /// About forty minutes: what the promises are judged by.
    Normal,
    /// An hour: every combination.
    Full,
}

impl Effort {
    /// One of three values.
    pub(crate) fn of<T>(self, quick: T, normal: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Normal => normal,
            Self::Full => full,
        }
    }
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// How much time to spend.
    pub(crate) effort: Effort,
    /// Of the combinations of a benchmark, those with this text.
    pub(crate) only: Option<String>,
    /// Where a figure is to be written.
    pub(crate) figure: Option<PathBuf>,
}

/// Whether a signal has asked the run to end.
#[derive(Clone, Debug)]
pub(crate) struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    /// Listens to the signals that ask a program to end.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        child::watch(Arc::clone(&flag));
        Ok(Self(flag))
    }

    /// An error if a signal came.
    ///
    /// # Errors
    /// A signal came.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.0.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }
}

/// What a benchmark runs in.
#[derive(Debug)]
pub(crate) struct Context {
    /// How much time to spend.
    pub(crate) effort: Effort,
    /// The source of every random order.
    pub(crate) random: SplitMix64,
    /// The preload library.
    pub(crate) library: PathBuf,
    /// Where a figure is to be written, if one was asked for.
    pub(crate) figure: Option<PathBuf>,
    /// The record.
    pub(crate) recorder: Recorder,
    only: Option<String>,
    bench: &'static str,
    programs: Programs,
    scratch: TempDir,
    memory: TempDir,
    interrupted: Interrupted,
}

impl Context {
    /// A context whose random orders come from `seed`.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub(crate) fn new(
        choice: Choice,
        seed: u64,
        library: PathBuf,
        recorder: Recorder,
        interrupted: Interrupted,
    ) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("bonsai-bench-")
            .tempdir()
            .context("no temporary folder can be made")?;
        let memory = tempfile::Builder::new()
            .prefix("bonsai-bench-")
            .tempdir_in(shared_memory())
            .context("no folder in shared memory can be made")?;
        let programs = Programs::unpack(scratch.path().to_owned())?;
        Ok(Self {
            effort: choice.effort,
            only: choice.only,
            random: SplitMix64::new(seed),
            library,
            figure: choice.figure,
            recorder,
            bench: "",
            programs,
            scratch,
            memory,
            interrupted,
        })
    }

    /// Says which benchmark runs from now on.
    pub(crate) fn begin(&mut self, bench: &'static str) {
        self.bench = bench;
    }

    /// Whether a combination is to be measured.
    pub(crate) fn is_wanted(&self, description: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| description.contains(only))
    }

    /// A folder on disk that ends with the run.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A command for one of the measured programs.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub(crate) fn program(&mut self, name: &'static str) -> anyhow::Result<Command> {
        Ok(Command::new(self.programs.get(name)?))
    }

    /// The file of a measured program.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub(crate) fn program_path(&mut self, name: &'static str) -> anyhow::Result<PathBuf> {
        self.programs.get(name)
    }

    /// The program `bonsai`, beside the library.
    ///
    /// # Errors
    /// It is not built.
    pub(crate) fn bonsai(&self) -> anyhow::Result<PathBuf> {
        let bonsai = self.library.with_file_name("bonsai");
        anyhow::ensure!(
            bonsai.is_file(),
            "{} is not there: run make build",
            bonsai.display()
        );
        Ok(bonsai)
    }

    /// A source in `bench/` that is run as it is.
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.programs.source(name)
    }

    /// A file of so many bytes that are not zero, in the page cache.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn file(&self, bytes: usize) -> anyhow::Result<PathBuf> {
        let path = self.scratch.path().join(format!("{bytes}.bin"));
        if !path.exists() {
            std::fs::write(&path, vec![b'x'; bytes])
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(path)
    }

    /// A file of so many bytes in memory, to be written to.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn file_in_memory(&self, bytes: usize) -> anyhow::Result<PathBuf> {
        let path = self.memory.path().join(format!("{bytes}.bin"));
        if !path.exists() {
            std::fs::write(&path, vec![b'x'; bytes])
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(path)
    }

    /// A service with the library under test.
    ///
    /// # Errors
    /// As [`Service::new`].
    pub(crate) fn service<S: AsRef<str>>(
        &self,
        doors: Doors,
        limits: &[S],
    ) -> anyhow::Result<Service> {
        Service::new(&self.library, doors, limits)
    }

    /// Writes a sample into the record.
    ///
    /// # Errors
    /// The record cannot be written, or a signal asks the run to end.
    pub(crate) fn sample(
        &mut self,
        conditions: Conditions,
        data: &impl Serialize,
    ) -> anyhow::Result<()> {
        let data = serde_json::to_value(data)?;
        let bench = self.bench.to_owned();
        self.recorder.write(&Line::Sample {
            bench,
            conditions,
            data,
        })?;
        self.check()
    }

    /// Writes into the record what is not measured, and says so.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn skip(
        &mut self,
        what: impl Into<String>,
        why: impl Into<String>,
    ) -> anyhow::Result<()> {
        let (what, why) = (what.into(), why.into());
        self.progress(&format!("{what} skipped: {why}\n"));
        let bench = self.bench.to_owned();
        self.recorder.write(&Line::Skip { bench, what, why })
    }

    /// An error if a signal asks the run to end.
    ///
    /// # Errors
    /// A signal does.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.interrupted.check()
    }

    /// Says what happens now, on standard error.
    pub(crate) fn progress(&self, text: &str) {
        let mut out = std::io::stderr();
        // Whoever closed it does not want to know.
        let _ = writeln!(out, "{}: {}", self.bench, text.trim_end());
    }

    /// Puts things into a random order.
    pub(crate) fn shuffle<T>(&mut self, things: &mut [T]) {
        for i in (1..things.len()).rev() {
            let below = u64::try_from(i + 1).unwrap_or(u64::MAX);
            let j = usize::try_from(self.random.below(below)).unwrap_or(0);
            things.swap(i, j);
        }
    }
}
