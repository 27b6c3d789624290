//! A real `bonsai daemon` in a folder of its own, and services below it.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::Value;
use tempfile::TempDir;

use crate::child::Running;
use crate::context::Context;
use crate::service::shared_memory;

/// For what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon that runs as long as the value, once it has been started.
#[derive(Debug)]
pub(crate) struct Daemon {
    running: Option<Running>,
    bonsai: PathBuf,
    folder: TempDir,
}

impl Daemon {
    /// Starts one with a configuration, and waits until it listens. It keeps no history.
    ///
    /// # Errors
    /// There is no `bonsai` beside the library, or it refuses.
    pub(crate) fn start(context: &Context, config: &str) -> anyhow::Result<Self> {
        let config = format!("{config}[history]\nkeep = false\n");
        let mut daemon = Self::new(context, &config)?;
        daemon.run(PATIENCE)?;
        Ok(daemon)
    }

    /// One that does not run yet, so that there may be services before.
    ///
    /// # Errors
    /// There is no `bonsai` beside the library, or no place for its folder.
    pub(crate) fn new(context: &Context, config: &str) -> anyhow::Result<Self> {
        let bonsai = context.bonsai()?;
        let folder = tempfile::Builder::new()
            .prefix("bonsai-bench-")
            .tempdir_in(shared_memory())
            .context("shared memory: no folder for a daemon can be made")?;
        fs::write(folder.path().join("bonsai.toml"), config)?;
        Ok(Self {
            running: None,
            bonsai,
            folder,
        })
    }

    /// Starts it, and waits for so long until it listens; its process.
    ///
    /// # Errors
    /// It refuses, or takes longer.
    pub(crate) fn run(&mut self, patience: Duration) -> anyhow::Result<u32> {
        let mut command = self.command(&["daemon", "--config"]);
        command.arg(self.folder.path().join("bonsai.toml"));
        let mut running = Running::start(&mut command)?;
        let said = running.line(patience)?;
        anyhow::ensure!(said.contains("listens on"), "the daemon says: {said}");
        let pid = running.pid();
        self.running = Some(running);
        Ok(pid)
    }

    /// Where it is asked.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/daemon.sock")
    }

    /// What leads `bonsai` to it.
    pub(crate) fn environment(&self) -> Vec<(String, OsString)> {
        let folder = |name| self.folder.path().join(name).into();
        vec![
            ("BONSAI_RUNTIME_DIR".to_owned(), folder("run")),
            ("BONSAI_STATE_DIR".to_owned(), folder("state")),
        ]
    }

    /// `bonsai`, in its folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.bonsai);
        command.args(args).envs(self.environment());
        command
    }

    /// The words before a program that is to be a service.
    pub(crate) fn service(&self, name: &str) -> Vec<String> {
        let bonsai = self.bonsai.to_string_lossy();
        [&*bonsai, "run", "--name", name, "--"]
            .map(str::to_owned)
            .to_vec()
    }

    /// What a command says.
    ///
    /// # Errors
    /// It fails.
    pub(crate) fn say(&self, args: &[&str]) -> anyhow::Result<String> {
        Running::start(&mut self.command(args))?.finish(PATIENCE)
    }

    /// Waits until services are enforced in a way, `pool` or `limit`, for a resource.
    ///
    /// # Errors
    /// They are not, in the time that it should take.
    pub(crate) fn settled(&self, names: &[&str], resource: &str, way: &str) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let all: Value = serde_json::from_str(&self.say(&["shares", "--json"])?)?;
            let done = |name: &&str| {
                let services = all.as_array().into_iter().flatten();
                let mut resources = services
                    .filter(|service| service["id"] == **name)
                    .flat_map(|service| service["resources"].as_array().into_iter().flatten());
                resources.any(|of| of["resource"] == resource && of["enforced"] == way)
            };
            if names.iter().all(done) {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < end,
                "{} are not enforced by {way}: {all}",
                names.join(" and ")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
