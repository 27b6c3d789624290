//! A cell is tried: the program of its kind is put under limits in its way, and asked to
//! begin only then; before it ends, whoever can tell of it is asked.

use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Counters, finish};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use serde_json::Value;

use super::kinds::{open_to_all, set_mode};
use super::{BYTES, Cell, LIMIT};
use crate::probe::PATIENCE;

/// What became of a cell.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// From the first byte on, by our own clock.
    pub(super) took: Duration,
    /// What is in the file.
    pub(super) moved: u64,
    /// Bytes written to files, by the ledger.
    pub(super) counted: u64,
    /// Bytes written that it does not know of, by the audit.
    pub(super) unseen: u64,
    /// What came in by page faults, by the status; `None` where none can wait.
    pub(super) fetched: Option<u64>,
    /// Whether the status names it, and `bonsai run` at its end.
    pub(super) is_named: bool,
    /// Its exit code, by `bonsai run` where that started it.
    pub(super) code: Option<i32>,
    /// What it said.
    pub(super) said: String,
    /// What Bonsai said, without its counters.
    complaints: String,
    /// The same, if it refused, with exit code 2.
    pub(super) refused: Option<String>,
}

/// A process with which one can talk.
struct Talk {
    child: Child,
    /// Its lines, and whether they are complaints.
    lines: Receiver<(bool, String)>,
    said: String,
    complaints: String,
}

fn forward(from: impl Read + Send + 'static, complains: bool, to: Sender<(bool, String)>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send((complains, line)).is_err() {
                return;
            }
        }
    });
}

impl Talk {
    fn start(command: &mut Command) -> Result<Self, String> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| error.to_string())?;
        let (to, lines) = channel();
        forward(child.stdout.take().expect("a pipe"), false, to.clone());
        forward(child.stderr.take().expect("a pipe"), true, to);
        Ok(Self {
            child,
            lines,
            said: String::new(),
            complaints: String::new(),
        })
    }

    /// Listens until it says that; false if it has ended without.
    fn says(&mut self, what: &str) -> Result<bool, String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok((complains, line)) => {
                    let to = if complains {
                        &mut self.complaints
                    } else {
                        &mut self.said
                    };
                    to.push_str(&line);
                    to.push('\n');
                    if line.contains(what) {
                        return Ok(true);
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Ok(false),
                Err(_) => return Err(format!("it hangs: {:?} {:?}", self.said, self.complaints)),
            }
        }
    }

    fn go(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        // It may have ended, which shows later.
        let _ = stdin.write_all(b"x");
    }

    /// Lets it end: its exit code.
    fn ends(&mut self) -> Result<Option<i32>, String> {
        drop(self.child.stdin.take());
        // What nobody says: until there is nothing more to hear.
        self.says("\0")?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        Ok(status.code())
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // One that hangs is not left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of which nothing is in memory; `None` where files stay there, so that no fault
/// waits for storage.
fn cold_file(path: &Path) -> Option<()> {
    let mut file = std::fs::File::create(path).expect("a file");
    set_mode(path, 0o644);
    file.write_all(&vec![1; usize::try_from(BYTES).expect("small")])
        .expect("room");
    file.sync_all().expect("written");
    fadvise(file.as_fd(), 0, None, Advice::DontNeed).expect("advice");
    let file = std::fs::File::open(path).expect("ours");
    let mut bytes = [0; 1];
    let mut bytes = [IoSliceMut::new(&mut bytes)];
    let there = preadv2(&file, &mut bytes, 0, ReadWriteFlags::NOWAIT);
    (there == Err(Errno::AGAIN)).then_some(())
}

fn document(bonsai: &Bonsai, args: &[&str]) -> Option<Value> {
    let said = finish(&mut bonsai.command(args), PATIENCE).ok()?;
    serde_json::from_str(&said.stdout).ok()
}

/// What it wrote to files.
fn counted(counters: &Counters) -> u64 {
    let entries = ["write.file", "writev.file", "pwrite64"];
    entries.iter().map(|entry| counters.of(entry).1).sum()
}

/// Runs the program of a cell in its mode.
pub(super) fn tried(
    bonsai: &Bonsai,
    cell: &Cell,
    program: &Path,
    library: &Path,
) -> Result<Tried, String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("c{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    // Another user writes there, too.
    open_to_all(folder.path());
    let (file, cold) = (folder.path().join("moved"), folder.path().join("cold"));
    let mut tried = Tried::default();
    let mut third = library;
    if cell.calls == "mapped" {
        tried.fetched = cold_file(&cold).map(|()| 0);
        third = &cold;
    }
    let words = |command: &mut Command| {
        command.arg(&cell.calls).args([&file, third]).arg(cell.told);
    };
    let mut attacher = None;
    let mut talk = if cell.mode == "attach" {
        let mut command = bonsai.bare(program);
        words(&mut command);
        Talk::start(&mut command)?
    } else {
        let mode: Vec<&str> = cell.mode.split(' ').collect();
        let mut command = bonsai.command(&mode);
        command.args(["--json", "--name", &name, "--limit", LIMIT, "--"]);
        words(command.arg(program));
        Talk::start(&mut command)?
    };
    if talk.says("ready")? {
        if cell.mode == "attach" {
            let pid = talk.child.id().to_string();
            let args = ["attach", "--name", &name, "--limit", LIMIT, &pid];
            let mut new = Talk::start(&mut bonsai.command(&args))?;
            if !new.says("under limits as the service")? && new.ends()? == Some(2) {
                tried.refused = Some(std::mem::take(&mut new.complaints));
            }
            attacher = Some(new);
        }
        let began = Instant::now();
        talk.go();
        if talk.says("done")? {
            tried.took = began.elapsed();
            ask(bonsai, &name, &mut tried);
        }
    }
    tried.code = talk.ends()?;
    tried.moved = std::fs::metadata(&file).map_or(0, |file| file.len());
    tried.said = std::mem::take(&mut talk.said);
    tried.complaints = std::mem::take(&mut talk.complaints);
    match &mut attacher {
        Some(attacher) if tried.refused.is_none() => match attacher.ends()? {
            Some(0) => {}
            code => return Err(format!("{cell:?}: {code:?}: {}", attacher.complaints)),
        },
        Some(_) => {}
        None => told_at_the_end(&mut tried),
    }
    let said = tried.complaints.lines();
    let said = said.filter(|line| !line.starts_with('{'));
    tried.complaints = said.collect::<Vec<_>>().join("\n");
    Ok(tried)
}

/// What can be asked while it waits to end.
fn ask(bonsai: &Bonsai, name: &str, tried: &mut Tried) {
    let stats = finish(&mut bonsai.command(&["stats", name, "--json"]), PATIENCE);
    if let Some(counters) = stats.ok().and_then(|s| Counters::parse(&s.stdout).ok()) {
        tried.counted = counted(&counters);
    }
    let Some(status) = document(bonsai, &["status", name, "--json"]) else {
        return;
    };
    let service = &status["services"][0];
    let has = |what: &str| service[what].as_array().is_some_and(|all| !all.is_empty());
    tried.is_named = has("uncovered") || has("unshaped");
    if let Some(fetched) = &mut tried.fetched {
        *fetched = service["mapped"]["bytes"].as_u64().unwrap_or(0);
    }
    if let Some(audit) = document(bonsai, &["audit", name, "--json"]) {
        tried.unseen = audit["total"]["written"]["unseen"].as_u64().unwrap_or(0);
    }
}

/// What `bonsai run` says of it: the counters with the last call, which an enforced service
/// has only then, and whether it is named there, too.
fn told_at_the_end(tried: &mut Tried) {
    if tried.code == Some(2) && tried.said.is_empty() {
        // Said before it is tried: what it costs, and what it cannot do.
        let before = ["runs as root", "what cannot be patched is trapped"];
        let sentence =
            |line: &&str| !before.iter().any(|said| line.contains(said)) && !line.starts_with('{');
        let kept: Vec<&str> = tried.complaints.lines().filter(sentence).collect();
        tried.refused = Some(kept.join("\n"));
        return;
    }
    let last = tried.complaints.lines().next_back();
    if let Some(Ok(counters)) = last.map(Counters::parse) {
        tried.counted = counted(&counters);
    }
    let names = ["not covered", "without a decision"];
    tried.is_named &= names.iter().any(|name| tried.complaints.contains(name));
}
