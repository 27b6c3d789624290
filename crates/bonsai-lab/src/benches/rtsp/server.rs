//! The server: GStreamer's, started by `bench/rtsp.py`, with its film.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::benches::web::{Kind, Wrap};
use crate::child::Running;
use crate::context::Context;
use crate::service::Service;

/// Encoding takes a quarter of the film's length, where nothing disturbs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server needs.
#[derive(Clone, Debug)]
pub(super) struct Film {
    python: String,
    script: PathBuf,
    file: PathBuf,
}

/// A server that listens.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) running: Running,
    pub(super) port: u16,
}

impl Film {
    /// Encodes a film of so many seconds.
    ///
    /// # Errors
    /// Something that is needed is not installed, as the text says.
    pub(super) fn encode(context: &Context, seconds: u64) -> anyhow::Result<Self> {
        let python = Kind::Python.program().context("python3 is not installed")?;
        let film = Self {
            python,
            script: context.source("rtsp.py"),
            file: context.scratch().join("film.mp4"),
        };
        let mut command = Command::new(&film.python);
        command.arg(&film.script).arg("encode").arg(&film.file);
        command.arg(seconds.to_string());
        let mut running = Running::start(&mut command)?;
        let bytes = running.line(PATIENCE)?;
        running.finish(PATIENCE)?;
        anyhow::ensure!(
            bytes.parse().is_ok_and(|n: u64| n > 0),
            "the encoder of the film says {bytes:?} instead of its bytes"
        );
        Ok(film)
    }

    /// Starts a server, bare or in a service.
    ///
    /// # Errors
    /// It does not say where it listens.
    pub(super) fn serve(
        &self,
        context: &mut Context,
        service: Option<&Service>,
    ) -> anyhow::Result<Server> {
        let environment = service.into_iter().flat_map(Service::environment);
        let wrap = Wrap {
            environment: environment
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            ..Wrap::default()
        };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let words = [
            self.python.clone(),
            text(&self.script),
            "serve".to_owned(),
            text(&self.file),
        ];
        let mut running = Running::start(&mut wrap.command(context, None, &words)?)?;
        let line = running.line(PATIENCE)?;
        let port = line
            .parse()
            .with_context(|| format!("the RTSP server says {line:?} instead of its port"))?;
        Ok(Server { running, port })
    }
}
