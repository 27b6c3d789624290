//! Media servers, bare or as services: what a user starts.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::clip::{NAME, Shelf};
use crate::benches::web::{Wrap, tree_cpu_ms};
use crate::child::{Running, is_installed};
use crate::context::Context;
use crate::net::rooms::Room;

/// How long a server may take until it listens, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of nobody.
const NOBODY: u32 = 65_534;
/// The Python that GStreamer is known to: a version manager's is another.
const PYTHON: &str = "/usr/bin/python3";

/// Which server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// `bonsai serve`, a read and a send for each packet.
    Classic,
    /// The same, a call of each kind for each picture.
    Fast,
    /// The classic one, that leaves pictures out when it is behind.
    Dropping,
    /// GStreamer's, as it is packaged.
    Gstreamer,
    /// VLC's video on demand, the server of 002.
    Vlc,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Classic => "bonsai serve",
            Self::Fast => "bonsai serve, fast",
            Self::Dropping => "bonsai serve, dropping",
            Self::Gstreamer => "GStreamer",
            Self::Vlc => "VLC",
        }
    }

    /// Whether it is Bonsai's own.
    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::Classic | Self::Fast | Self::Dropping)
    }

    /// Why it cannot run here.
    pub(super) fn missing(self) -> Option<&'static str> {
        match self {
            Self::Vlc if !is_installed("cvlc") => {
                Some("VLC is not installed (vlc-bin, vlc-plugin-base)")
            }
            Self::Gstreamer if !is_installed(PYTHON) => Some("python3 is not installed"),
            _ => None,
        }
    }
}

/// Where and as what a server is started.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) kind: Kind,
    pub(super) shelf: &'a Shelf,
    /// Options of `bonsai run`; `None` for a program without Bonsai.
    pub(super) service: Option<Vec<String>>,
    pub(super) core: Option<usize>,
    /// The room, and the address there; else the loopback.
    pub(super) room: Option<(&'a Room, Ipv4Addr)>,
}

/// A server that listens.
#[derive(Debug)]
pub(super) struct Server {
    running: Running,
    kind: Kind,
    pub(super) at: SocketAddr,
}

/// What `bonsai serve` says at its end.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Served {
    /// Samples sent, and left out.
    pub(super) samples: u64,
    pub(super) dropped: u64,
    /// How late samples were sent, ns.
    pub(super) late_p99_ns: u64,
    pub(super) late_max_ns: u64,
    /// Processor time, s.
    pub(super) cpu_s: f64,
}

/// The words before a program that is to run in a room.
pub(super) fn place(room: &Room) -> Vec<String> {
    let own = std::process::id();
    let net = format!("--net=/proc/{own}/fd/{}", room.namespace().as_raw_fd());
    vec!["nsenter".to_owned(), net, "--".to_owned()]
}

impl Start<'_> {
    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn start(&self, context: &mut Context) -> anyhow::Result<Server> {
        let address = self
            .room
            .map_or(Ipv4Addr::LOCALHOST, |(_, address)| address);
        // Free now; who takes it in the next millisecond makes the server fail loudly.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let at = SocketAddr::from((address, port));
        let log = context.scratch().join(format!("server-{port}.log"));
        let mut command = self.command(context, at)?;
        command.stderr(File::create(&log)?);
        let running = Running::start(&mut command)?;
        let kind = self.kind;
        let mut server = Server { running, kind, at };
        let listens = match kind {
            // It chooses its port by itself.
            Kind::Gstreamer => server.asked_port(),
            _ => self.listens(context, &mut server),
        };
        let said = || fs::read_to_string(&log).unwrap_or_default();
        listens.with_context(|| {
            let said = said();
            let last = said.lines().last().unwrap_or("it says nothing");
            format!("{}: {last}", kind.name())
        })?;
        Ok(server)
    }

    /// Waits until somebody answers there.
    fn listens(&self, context: &Context, server: &mut Server) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let at = server.at;
            let connect = || TcpStream::connect(at).is_ok();
            let is_there = match self.room {
                Some((room, _)) => room.within(connect)?,
                None => connect(),
            };
            if is_there {
                return Ok(());
            }
            anyhow::ensure!(
                server.running.is_alive(),
                "it has ended right after its start"
            );
            anyhow::ensure!(Instant::now() < end, "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
            context.check()?;
        }
    }

    fn command(&self, context: &mut Context, at: SocketAddr) -> anyhow::Result<Command> {
        // VLC refuses to run as root.
        let is_nobody = self.kind == Kind::Vlc && rustix::process::geteuid().is_root();
        let run = self
            .shelf
            .subfolder(if is_nobody { "nobody" } else { "run" }, 0o700)?;
        let mut words = Vec::new();
        if is_nobody {
            chown(&run, Some(NOBODY), Some(NOBODY))?;
            words = nobody();
        }
        if let Some(options) = &self.service {
            let bonsai = match is_nobody {
                true => self.readable(context)?,
                false => context.library.with_file_name("bonsai"),
            };
            words.extend([text(&bonsai), "run".to_owned()]);
            words.extend(options.iter().cloned());
            words.push("--".to_owned());
        }
        words.extend(self.program(context, at)?);
        let wrap = Wrap {
            place: self.room.map(|(room, _)| place(room)).unwrap_or_default(),
            environment: vec![
                ("BONSAI_RUNTIME_DIR".to_owned(), run.clone().into()),
                ("HOME".to_owned(), run.into()),
            ],
            cpu: self.core,
            ..Wrap::default()
        };
        wrap.command(context, None, &words)
    }

    fn program(&self, context: &Context, at: SocketAddr) -> anyhow::Result<Vec<String>> {
        let clip = text(&self.shelf.path().join(NAME));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Ok(match self.kind {
            Kind::Classic | Kind::Fast | Kind::Dropping => {
                let bonsai = text(&context.library.with_file_name("bonsai"));
                let (folder, at) = (text(self.shelf.path()), at.to_string());
                let engine = if self.kind == Kind::Fast {
                    "fast"
                } else {
                    "classic"
                };
                // All viewers come from one address; how late it is, the viewers say.
                let behind: &[&str] = match self.kind {
                    Kind::Dropping => &["--behind", "drop"],
                    _ => &["--behind", "wait"],
                };
                let own = [&bonsai, "serve", &folder, "--rtsp", &at, "--engine", engine];
                let more = ["--json", "--per-address", "4000"];
                words(&[&own[..], behind, &more].concat())
            }
            Kind::Gstreamer => {
                let script = text(&context.source("rtsp.py"));
                words(&[PYTHON, &script, "serve", &clip, "sound"])
            }
            Kind::Vlc => {
                let list = self.shelf.path().join("clips.vlm");
                fs::write(
                    &list,
                    self.shelf
                        .names()?
                        .iter()
                        .map(|name| self.listed(name))
                        .collect::<String>(),
                )?;
                let (list, port) = (text(&list), at.port().to_string());
                words(&["cvlc", "--vlm-conf", &list, "--rtsp-port", &port])
            }
        })
    }

    /// A clip in VLC's list.
    fn listed(&self, name: &str) -> String {
        let (path, name) = (text(&self.shelf.path().join(name)), bare(name));
        format!("new {name} vod enabled\nsetup {name} input \"{path}\"\n")
    }

    /// `bonsai` and its libraries where nobody may read them.
    fn readable(&self, context: &Context) -> anyhow::Result<PathBuf> {
        let folder = self.shelf.subfolder("programs", 0o755)?;
        for name in [
            "bonsai",
            "libbonsai_preload.so",
            "libbonsai_engine.so",
            "libbonsai_extension.so",
        ] {
            let (from, to) = (context.library.with_file_name(name), folder.join(name));
            if !to.exists() {
                fs::copy(&from, &to)
                    .with_context(|| format!("{}: cannot be copied", from.display()))?;
            }
        }
        Ok(folder.join("bonsai"))
    }
}

/// The words that make a program nobody's.
fn nobody() -> Vec<String> {
    let id = NOBODY;
    let words = [
        "setpriv".to_owned(),
        format!("--reuid={id}"),
        format!("--regid={id}"),
        "--clear-groups".to_owned(),
        // It is forgotten with the rights.
        "--pdeathsig=TERM".to_owned(),
        "--".to_owned(),
    ];
    words.into()
}

/// A clip's name without what kind of file it is.
fn bare(name: &str) -> &str {
    name.strip_suffix(".mp4").unwrap_or(name)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Server {
    fn asked_port(&mut self) -> anyhow::Result<()> {
        let line = self.running.line(PATIENCE)?;
        let port = line
            .parse()
            .with_context(|| format!("{line:?} instead of its port"))?;
        self.at.set_port(port);
        Ok(())
    }

    /// The address of a clip.
    pub(super) fn url(&self, clip: &str) -> String {
        let clip = match self.kind {
            Kind::Gstreamer => "film",
            Kind::Vlc => bare(clip),
            _ => clip,
        };
        format!("rtsp://{}/{clip}", self.at)
    }

    /// CPU time of it and of all that it has started so far, ms.
    pub(super) fn cpu_ms(&self) -> u64 {
        tree_cpu_ms(self.running.pid())
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Ends it; what it says then, where it is one that says something.
    ///
    /// # Errors
    /// It does not end, or says something else.
    pub(super) fn end(self) -> anyhow::Result<Option<Served>> {
        if !self.kind.is_ours() {
            return Ok(None);
        }
        let said = self.running.end(PATIENCE)?;
        served(&said).map(Some)
    }
}

fn served(said: &str) -> anyhow::Result<Served> {
    let mut said: serde_json::Value =
        serde_json::from_str(said).with_context(|| format!("bonsai serve says {said:?}"))?;
    Ok(serde_json::from_value(said["served"].take())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_at_its_end_is_read() {
        let text = r#"{"schema":1,"served":{"sessions":2,"samples":7,"dropped":1,"late_p50_ns":1,
            "late_p99_ns":2000,"late_max_ns":3000,"cpu_s":0.5,"elapsed_s":2.0}}"#;
        let found = served(text).expect("read");
        assert_eq!((found.samples, found.dropped), (7, 1));
        assert_eq!((found.late_p99_ns, found.late_max_ns), (2_000, 3_000));
        for bad in ["", "{}", "rtsp://127.0.0.1:1/"] {
            served(bad).expect_err("no summary");
        }
    }
}
