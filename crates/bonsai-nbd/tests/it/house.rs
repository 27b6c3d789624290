//! A server in this process.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bonsai_nbd::export::{Export, Options};
use bonsai_nbd::image::Image;
use bonsai_nbd::server::{OnEvent, Plan, Server, Stop};
use bonsai_nbd::sharing::Sharing;

pub(crate) struct House {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) exports: Vec<Arc<Export>>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl House {
    /// Images of that size, of one group, which are verified.
    pub(crate) fn new(names: &[&str], size: u64) -> Self {
        Self::with(names, size, |_| {})
    }

    pub(crate) fn with(names: &[&str], size: u64, change: impl FnOnce(&mut Plan)) -> Self {
        Self::grouped(names, size, |_| "g", change)
    }

    /// Each of a group of its own.
    pub(crate) fn apart(names: &[&str], size: u64) -> Self {
        Self::grouped(names, size, |name| name, |_| {})
    }

    fn grouped(
        names: &[&str],
        size: u64,
        group: impl Fn(&str) -> &str,
        change: impl FnOnce(&mut Plan),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sharing = Sharing::new(4 << 20, true).unwrap();
        let exports: Vec<_> = names
            .iter()
            .map(|name| {
                let path = folder.path().join(name);
                if !path.exists() {
                    File::create(&path).unwrap().set_len(size).unwrap();
                }
                let image = Arc::new(Image::open(&path, false).unwrap());
                let member = sharing.member(&image, group(name)).unwrap();
                let options = Options {
                    name: (*name).to_owned(),
                    workers: 4,
                };
                Arc::new(Export::new(image, Some(member), &options))
            })
            .collect();
        let mut plan = Plan {
            exports: exports.clone(),
            unix: Some(folder.path().join("socket")),
            tcp: None,
            tls: None,
            connections: 32,
            negotiation: Duration::from_secs(10),
        };
        change(&mut plan);
        let server = Server::bind(plan).unwrap();
        let stop = Stop::new().unwrap();
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            let nothing: Arc<OnEvent> = Arc::new(|_| {});
            server.run(&asked, &nothing).unwrap();
        });
        Self {
            folder,
            exports,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Ends the server, as a signal does.
    pub(crate) fn end(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end();
        }
    }
}

/// Whether a program is there; if not, that is noted.
pub(crate) fn has(test: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !there {
        skip(test, &format!("{program} is not installed"));
    }
    there
}

pub(crate) fn skip(test: &str, reason: &str) {
    use std::io::Write as _;
    let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") else {
        return;
    };
    let file = File::options().append(true).create(true).open(log);
    writeln!(file.unwrap(), "{test}: {reason}").unwrap();
}
