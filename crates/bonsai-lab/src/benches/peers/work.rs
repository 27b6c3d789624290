//! The work itself, under one tool at a time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

use super::super::network::Network;
use super::super::web::{self, EMPTY, Kind, Wrap};
use super::tool::{Applied, Tool};
use super::{Measured, RATE, Work};
use crate::child::{Running, is_installed};
use crate::context::Context;

/// What `launch -o` writes.
#[derive(Deserialize)]
struct Ended {
    wall_ns: u64,
    cpu_us: u64,
    code: i32,
    signal: i32,
}

/// What all measurements share.
pub(super) struct Bench<'a> {
    pub(super) context: &'a mut Context,
    folder: PathBuf,
    network: Result<Network, String>,
    /// Bytes of each transfer.
    bytes: u64,
}

/// The files: the whole transfer, and a quarter and a sixteenth of it.
const WHOLE: &str = "whole";
const QUARTER: &str = "quarter";
const SIXTEENTH: &str = "sixteenth";

impl<'a> Bench<'a> {
    pub(super) fn new(context: &'a mut Context) -> anyhow::Result<Self> {
        let seconds = context.effort.of(1, 2, 5);
        let bytes = RATE * seconds;
        let whole = usize::try_from(bytes)?;
        let files = [
            (WHOLE, whole),
            (QUARTER, whole / 4),
            (SIXTEENTH, whole / 16),
        ];
        let folder = web::folder(context, "fetched", &files)?;
        let network = Network::make(RATE).map_err(|error| format!("{error:#}"));
        Ok(Self {
            context,
            folder,
            network,
            bytes,
        })
    }

    /// One measurement, and the CPU of servers that it used besides, ms.
    pub(super) fn measure(&mut self, work: Work, tool: Tool) -> anyhow::Result<(Measured, u64)> {
        match work {
            Work::Wget | Work::Curl | Work::FourWgets | Work::SixteenThreads => {
                self.client(work, tool)
            }
            Work::PythonServer => self.server(work, Kind::Python, tool),
            Work::NginxServer => self.server(work, Kind::Nginx, tool),
            Work::DirectRead | Work::CachedRead | Work::Write => Ok((self.disk(work, tool)?, 0)),
        }
    }

    fn apply(&self, tool: Tool, class: &str, direction: &str) -> anyhow::Result<Applied> {
        match tool {
            Tool::Bonsai => Applied::bonsai(self.context, class, RATE),
            Tool::Trickle => Applied::trickle(direction, RATE),
            Tool::Tc => {
                let network = self
                    .network
                    .as_ref()
                    .map_err(|why| anyhow::anyhow!("{why}"))?;
                Ok(Applied::in_network(network))
            }
            Tool::Blkio => anyhow::bail!("blkio limits no sockets"),
        }
    }

    /// Starts the commands at the same time; returns the time from then until the
    /// last has ended, all CPU, and what went wrong.
    fn run(
        &mut self,
        wrap: &Wrap,
        commands: &[Vec<String>],
    ) -> anyhow::Result<(u64, u64, Vec<String>)> {
        let mut running = Vec::new();
        for (number, words) in commands.iter().enumerate() {
            let outcome = self.context.scratch().join(format!("outcome-{number}"));
            let mut command = wrap.command(self.context, Some(&outcome), words)?;
            running.push((Running::start_silent(&mut command)?, outcome));
        }
        let (mut ns, mut cpu_us, mut failures) = (0, 0, Vec::new());
        for (process, outcome) in running {
            process.wait_for(Duration::from_secs(60))?;
            let text = std::fs::read_to_string(&outcome).context("the program was not started")?;
            std::fs::remove_file(&outcome)?;
            let ended: Ended = serde_json::from_str(&text)?;
            ns = ns.max(ended.wall_ns);
            cpu_us += ended.cpu_us;
            if ended.signal != 0 {
                failures.push(format!("signal {}", ended.signal));
            } else if ended.code != 0 {
                failures.push(format!("exit code {}", ended.code));
            }
        }
        Ok((ns, cpu_us / 1_000, failures))
    }

    fn client(&mut self, work: Work, tool: Tool) -> anyhow::Result<(Measured, u64)> {
        let program = match work {
            Work::Curl => "curl",
            Work::SixteenThreads => "fetch",
            _ => "wget",
        };
        anyhow::ensure!(
            program == "fetch" || is_installed(program),
            "{program} is not installed"
        );
        let applied = self.apply(tool, "recv", "-d")?;
        let beside = Wrap {
            place: applied.wrap.place.clone(),
            ..Wrap::default()
        };
        let server = web::serve(self.context, Kind::Nginx, &self.folder, &beside)?;
        let fetch = self
            .context
            .program_path("fetch")?
            .to_string_lossy()
            .into_owned();
        let words = |file: &str| -> Vec<String> {
            let url = format!("http://127.0.0.1:{}/{file}", server.port);
            let port = server.port.to_string();
            let words: &[&str] = match program {
                "curl" => &["curl", "-s", "-o", "/dev/null", &url],
                "fetch" => &[&fetch, &port, file, "16"],
                _ => &["wget", "-q", "-O", "/dev/null", &url],
            };
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        let commands = match work {
            Work::FourWgets => vec![words(QUARTER); 4],
            Work::SixteenThreads => vec![words(SIXTEENTH)],
            _ => vec![words(WHOLE)],
        };
        let nothing = vec![words(EMPTY); commands.len()];
        let (start_ns, ..) = self.run(&beside, &nothing)?;
        let (ns, cpu_ms, failures) = self.run(&applied.wrap, &commands)?;
        applied.check()?;
        let parts = if work == Work::SixteenThreads { 16 } else { 1 };
        let bytes = match work {
            Work::FourWgets | Work::Wget | Work::Curl => self.bytes,
            _ => self.bytes / parts * parts,
        };
        let measured = Measured {
            work,
            tool,
            bytes,
            ns: ns.saturating_sub(start_ns),
            cpu_ms,
            failures,
        };
        Ok((measured, web::tree_cpu_ms(server.running.pid())))
    }

    fn server(&mut self, work: Work, kind: Kind, tool: Tool) -> anyhow::Result<(Measured, u64)> {
        let applied = self.apply(tool, "send", "-u")?;
        let server = web::serve(self.context, kind, &self.folder, &applied.wrap)?;
        let before = web::tree_cpu_ms(server.running.pid());
        let beside = Wrap {
            place: applied.wrap.place.clone(),
            ..Wrap::default()
        };
        let got = web::fetch(self.context, &beside, server.port, WHOLE, 1, None)?;
        let used = web::tree_cpu_ms(server.running.pid());
        applied.check()?;
        let failures = if got.failures > 0 {
            vec![format!("{} failed answers", got.failures)]
        } else {
            Vec::new()
        };
        let measured = Measured {
            work,
            tool,
            bytes: got.bytes,
            ns: got.ns,
            cpu_ms: used - before,
            failures,
        };
        Ok((measured, used))
    }

    fn disk(&mut self, work: Work, tool: Tool) -> anyhow::Result<Measured> {
        let (source, target) = (self.folder.join(WHOLE), self.folder.join("written"));
        let writes = work == Work::Write;
        let applied = match tool {
            Tool::Blkio => Applied::blkio(&source, writes, RATE)?,
            _ => Applied::bonsai(self.context, if writes { "write" } else { "read" }, RATE)?,
        };
        let dd = |from: &Path, to: &Path, flag: &str| -> Vec<String> {
            let mut words = ["dd", "bs=64k", "status=none"].map(str::to_owned).to_vec();
            words.push(format!("if={}", from.display()));
            words.push(format!("of={}", to.display()));
            words.extend((!flag.is_empty()).then(|| flag.to_owned()));
            words
        };
        let null = Path::new("/dev/null");
        let words = match work {
            Work::DirectRead => {
                // Written pages cannot be read past the cache.
                rustix::fs::fsync(std::fs::File::open(&source)?)?;
                dd(&source, null, "iflag=direct")
            }
            Work::CachedRead => {
                std::fs::read(&source)?;
                dd(&source, null, "")
            }
            _ => dd(&source, &target, ""),
        };
        let nothing = [words.clone(), vec!["count=0".to_owned()]].concat();
        let (start_ns, ..) = self.run(&Wrap::default(), &[nothing])?;
        let (ns, cpu_ms, failures) = self.run(&applied.wrap, &[words])?;
        let ns = ns.saturating_sub(start_ns);
        applied.check()?;
        // What was never moved has not been limited.
        anyhow::ensure!(failures.is_empty(), "dd: {}", failures.join(", "));
        if writes {
            std::fs::remove_file(&target)?;
        }
        Ok(Measured {
            work,
            tool,
            bytes: self.bytes,
            ns,
            cpu_ms,
            failures,
        })
    }
}
