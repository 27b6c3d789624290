//! A server in this process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bonsai_nbd::export::{Export, Options};
use bonsai_nbd::image::Image;
use bonsai_nbd::server::{EndError, Event, OnEvent, Plan, Server, Stop};
use bonsai_nbd::sharing::{self, Guarding, Secret};

/// How images are shared.
pub(crate) struct Sharing {
    pub(crate) guarding: fn(&Image) -> Guarding,
    pub(crate) verify: bool,
    pub(crate) secret: Secret,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            guarding: House::guarding,
            verify: true,
            secret: Secret::random().unwrap(),
        }
    }
}

pub(crate) struct House {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) exports: Vec<Arc<Export>>,
    /// What the server said, but for clients that come and go without a fault.
    pub(crate) events: Arc<Mutex<Vec<String>>>,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), EndError>>>,
}

impl House {
    /// Images of that size, of one group, which are verified.
    pub(crate) fn new(names: &[&str], size: u64) -> Self {
        Self::with(names, size, |_| {})
    }

    pub(crate) fn with(names: &[&str], size: u64, change: impl FnOnce(&mut Plan)) -> Self {
        Self::over(tempfile::tempdir().unwrap(), names, size, change)
    }

    /// Each of a group of its own.
    pub(crate) fn apart(names: &[&str], size: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::grouped(
            folder,
            (names, size),
            |name| name,
            &Sharing::default(),
            |_| {},
        )
    }

    /// Images of one group, shared in another way.
    pub(crate) fn sharing(names: &[&str], size: u64, how: &Sharing) -> Self {
        Self::sharing_over(tempfile::tempdir().unwrap(), names, size, how)
    }

    pub(crate) fn sharing_over(
        folder: tempfile::TempDir,
        names: &[&str],
        size: u64,
        how: &Sharing,
    ) -> Self {
        Self::grouped(folder, (names, size), |_| "g", how, |_| {})
    }

    /// An image in a folder that stays, with a secret for what is kept beside it.
    pub(crate) fn around(folder: &Path, name: &str, secret: &Secret) -> Self {
        let own = tempfile::tempdir_in(folder.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(folder.join(name), own.path().join(name)).unwrap();
        let kept = format!("{name}.drive");
        std::fs::rename(folder.join(&kept), own.path().join(&kept)).unwrap();
        let how = Sharing {
            secret: secret.clone(),
            ..Sharing::default()
        };
        Self::grouped(own, (&[name], 0), |_| "g", &how, |_| {})
    }

    /// Devices and files on FUSE have no lease.
    pub(crate) fn guarding(image: &Image) -> Guarding {
        // linux/magic.h
        const FUSE: i64 = 0x6573_5546;
        let fuse = || rustix::fs::fstatfs(image.file()).is_ok_and(|of| of.f_type == FUSE);
        match image.is_device() || fuse() {
            true => Guarding::Trust,
            false => Guarding::Lease,
        }
    }

    /// The same in a folder where some of them may be already, or links to where they are.
    pub(crate) fn over(
        folder: tempfile::TempDir,
        names: &[&str],
        size: u64,
        change: impl FnOnce(&mut Plan),
    ) -> Self {
        Self::grouped(folder, (names, size), |_| "g", &Sharing::default(), change)
    }

    fn grouped(
        folder: tempfile::TempDir,
        (names, size): (&[&str], u64),
        group: impl Fn(&str) -> &str,
        how: &Sharing,
        change: impl FnOnce(&mut Plan),
    ) -> Self {
        let secret = how.secret.clone();
        let sharing = sharing::Sharing::new(4 << 20, how.verify, secret).unwrap();
        let exports: Vec<_> = names
            .iter()
            .map(|name| {
                let path = folder.path().join(name);
                if !path.exists() {
                    File::create(&path).unwrap().set_len(size).unwrap();
                }
                let image = Arc::new(Image::open(&path, false).unwrap());
                let member = sharing
                    .member(&image, group(name), (how.guarding)(&image))
                    .unwrap();
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
            buffer_bytes: 64 << 20,
            negotiation: Duration::from_secs(10),
            rings: true,
        };
        change(&mut plan);
        let server = Server::bind(plan).unwrap();
        let stop = Stop::new().unwrap();
        let asked = stop.clone();
        let events = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&events);
        let thread = std::thread::spawn(move || {
            let on_event: Arc<OnEvent> = Arc::new(move |event| {
                if !matches!(event, Event::Open { .. } | Event::Closed { why: None, .. }) {
                    heard.lock().unwrap().push(format!("{event:?}"));
                }
            });
            server.run(&asked, &on_event)
        });
        Self {
            folder,
            exports,
            events,
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
        self.try_end().expect("all is on the disk");
    }

    /// The same, with what it says at the end.
    pub(crate) fn try_end(&mut self) -> Result<(), EndError> {
        self.stop.stop();
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap())
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

/// nbdfuse, once it has mounted and written its number; `None`, and the reason in the log, where it may not.
pub(crate) fn fused(test: &str, command: &mut Command, pid: &Path) -> Option<Child> {
    let mut nbdfuse = command.stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while !pid.exists() {
        if nbdfuse.try_wait().unwrap().is_some() || Instant::now() > end {
            let _ = nbdfuse.kill();
            nbdfuse.wait().unwrap();
            skip(test, "no FUSE without privileges");
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(nbdfuse)
}
