//! Bytes that come from a program, or go through it: counted where they arrive, by
//! nobody who knows of limits.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::make::{Case, Way};
use crate::child::Running;
use crate::context::Context;

/// How long a program may say nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// More than anybody reads here.
const ENDLESS: u64 = 1 << 44;

/// A program that runs under limits, or bare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start<'a> {
    pub(super) case: &'a Case,
    pub(super) program: &'a Path,
    /// A folder with the file that is served.
    pub(super) folder: &'a Path,
    /// The port of [`serve`].
    pub(super) server: u16,
    /// The name of the service, and the limit.
    pub(super) service: Option<(&'a str, &'a str)>,
}

impl Start<'_> {
    fn command(&self, context: &Context, port: u16, bytes: u64) -> Command {
        let words = self.case.words(self.program, port, bytes, self.folder);
        let mut command;
        if let Some((name, limit)) = self.service {
            command = Command::new(context.library.with_file_name("bonsai"));
            command.args(["run", "--name", name, "--limit", limit, "--"]);
            command.args(words);
        } else {
            command = Command::new(&words[0]);
            command.args(&words[1..]);
        }
        command.stderr(Stdio::null());
        command
    }

    /// Starts it: what comes from it.
    pub(super) fn flow(&self, context: &Context) -> anyhow::Result<Flow> {
        let own = match self.case.way {
            // Free now; who takes it in the next millisecond makes it fail loudly.
            Way::Serves(_) => TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port(),
            _ => self.server,
        };
        let mut running = Running::start(&mut self.command(context, own, ENDLESS))?;
        let from: OwnedFd = match self.case.way {
            Way::SaysPort => {
                let port = running.line(PATIENCE)?.parse()?;
                ask(port, &format!("give?{ENDLESS}"), &mut running)?.into()
            }
            Way::Serves(path) => ask(own, path, &mut running)?.into(),
            _ => running.take_output()?.into(),
        };
        Ok(Flow {
            _running: running,
            from,
        })
    }

    /// Runs it for so many bytes: how many seconds it says that they took.
    pub(super) fn timed(&self, context: &Context, bytes: u64) -> anyhow::Result<f64> {
        let mut running = Running::start(&mut self.command(context, self.server, bytes))?;
        let got = running.line(PATIENCE)?;
        let said = running.line(PATIENCE)?;
        anyhow::ensure!(got == format!("{bytes} <nil>"), "it got {got}");
        let ms = said
            .strip_prefix("# elapsed ")
            .and_then(|s| s.strip_suffix(" ms"));
        let ms: f64 = ms.context("no time")?.parse()?;
        Ok(ms / 1e3)
    }
}

/// Asks a server that may have just begun.
fn ask(port: u16, path: &str, running: &mut Running) -> anyhow::Result<TcpStream> {
    let end = Instant::now() + PATIENCE;
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > end || !running.is_alive() => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )?;
    Ok(stream)
}

/// What comes from a program.
#[derive(Debug)]
pub(super) struct Flow {
    _running: Running,
    from: OwnedFd,
}

impl Flow {
    /// Takes what comes for so long: bytes a second.
    pub(super) fn take(&mut self, context: &Context, time: Duration) -> anyhow::Result<f64> {
        let mut buffer = vec![0; 1 << 18];
        let (begin, mut bytes) = (Instant::now(), 0);
        loop {
            bytes += self.some(&mut buffer)?;
            let so_far = begin.elapsed();
            if so_far >= time {
                return Ok(bytes as f64 / so_far.as_secs_f64());
            }
            context.check()?;
        }
    }

    fn some(&self, buffer: &mut [u8]) -> anyhow::Result<usize> {
        let timeout = Timespec::try_from(PATIENCE)?;
        let ready = poll(
            &mut [PollFd::new(&self.from, PollFlags::IN)],
            Some(&timeout),
        )?;
        anyhow::ensure!(ready == 1, "nothing comes");
        let n = rustix::io::read(&self.from, buffer)?;
        anyhow::ensure!(n > 0, "the program has ended");
        Ok(n)
    }
}

/// A web server that gives as many zeros as the last number of a path says, on this
/// port, as long as this process lives.
pub(super) fn serve() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Whoever has had enough goes away.
            std::thread::spawn(move || give(stream));
        }
    });
    Ok(port)
}

fn give(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut some = [0; 512];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut some)? {
            0 => return Ok(()),
            n => head.extend_from_slice(&some[..n]),
        }
    }
    let line = String::from_utf8_lossy(&head);
    let path = line.split(' ').nth(1).unwrap_or_default();
    let digits = path.trim_start_matches(|c: char| !c.is_ascii_digit());
    let mut left: u64 = digits.parse().unwrap_or(0);
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {left}\r\nConnection: close\r\n\r\n"
    )?;
    let zeros = vec![0; 1 << 16];
    while left > 0 {
        let n = zeros.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&zeros[..n])?;
        left -= n as u64;
    }
    Ok(())
}
