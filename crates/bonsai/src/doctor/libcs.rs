//! C libraries of this host, and whether calls through and inside each of them are seen.
//!
//! A library that the host has installed for itself is run: a small program moves bytes through it by functions and by stdio, on one
//! thread and on a second one, and the ledger has to have counted them all. What came with a container, an app or another user is foreign
//! code and is not run here, least of all by root: its machine code is searched as a process does at its start.

mod roots;
pub(crate) mod scan;
mod seen;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use bonsai_calls::CALLS;
use bonsai_host::libcs::{NO_THREADS, PROBE};
use bonsai_ledger::{Reason, coverage as bits};
use rustix::fs::MemfdFlags;
use serde::Serialize;

use self::roots::Root;
use self::scan::Scanned;
use self::seen::Unseen;
use crate::output::escaped;
use crate::run::{Tried, trial};

/// Longest time that a program may take to move some kilobytes: milliseconds, on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A C library, and what is seen of its calls.
#[derive(Debug, Serialize)]
pub(super) struct LibcView {
    /// File, as the root that it is of has it.
    libc: PathBuf,
    /// The loader by which programs get it.
    loader: PathBuf,
    /// Name of that root; `null` for this host's own.
    root: Option<String>,
    /// `glibc` or `musl`.
    flavour: &'static str,
    /// Version; `null` where its file does not tell.
    version: Option<String>,
    /// `run`, or `code` where its machine code was searched only.
    by: &'static str,
    /// `yes`, `part`, `no` or `unknown`: whether its calls are seen.
    state: &'static str,
    /// Ways to move bytes, and calls, that were not seen on one thread.
    unseen: Vec<String>,
    /// The same on a second thread.
    unseen_threads: Vec<String>,
    /// System call instructions that are replaced.
    sites: Option<usize>,
    /// The answer in one sentence.
    verdict: String,
}

/// Where C libraries are looked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Where<'a> {
    /// On the whole host; nothing is run where programs cannot be tried.
    Host { is_run: bool },
    /// A loader, which is run, or a folder, which is only read.
    At(&'a Path),
}

/// Looks for C libraries, and tries them.
///
/// # Errors
/// A path that was named is not there, or has no C library.
pub(super) fn look(at: Where<'_>) -> anyhow::Result<Vec<LibcView>> {
    let roots = match at {
        Where::Host { is_run } => roots::of_host(is_run),
        Where::At(path) => vec![roots::at(path)?],
    };
    let mut views = Vec::new();
    for (root, found) in roots::look_at(roots) {
        match found {
            Ok(found) => views.extend(found.into_iter().map(|found| view(&root, found))),
            Err(error) => views.push(unknown(&root, &error)),
        }
    }
    if let (Where::At(path), true) = (at, views.is_empty()) {
        let text = format!("{}: there is no C library for 64-bit x86", path.display());
        return Err(bonsai_services::refusal::Refusal::input(text));
    }
    Ok(merged(views))
}

/// A root whose libraries cannot be told.
fn unknown(root: &Root, error: &str) -> LibcView {
    LibcView {
        libc: root.path.clone(),
        loader: root.path.clone(),
        root: root.name.clone(),
        flavour: "unknown",
        version: None,
        by: "code",
        state: "unknown",
        unseen: Vec::new(),
        unseen_threads: Vec::new(),
        sites: None,
        verdict: error.to_owned(),
    }
}

fn view(root: &Root, found: Scanned) -> LibcView {
    let (by, answer) = match (&found.code, found.error.clone()) {
        (Some(code), _) => ("code", seen::by_code(&found.flavour, code)),
        (None, Some(error)) => ("code", seen::Answer::unknown(error)),
        (None, None) => match run(&found) {
            Ok(answer) => ("run", answer),
            Err(error) => {
                let error = bonsai_host::sentence(error.as_ref());
                ("run", seen::Answer::unknown(error))
            }
        },
    };
    let Unseen { one, threads } = answer.unseen;
    LibcView {
        libc: found.libc,
        loader: found.loader,
        root: root.name.clone(),
        flavour: if found.flavour == "musl" {
            "musl"
        } else {
            "glibc"
        },
        version: found.version,
        by,
        state: answer.state,
        unseen: one,
        unseen_threads: threads,
        sites: answer.sites,
        verdict: answer.verdict,
    }
}

/// Libraries of several roots that are the same by name, version and answer, in one: images of containers share them.
fn merged(views: Vec<LibcView>) -> Vec<LibcView> {
    let mut all: Vec<(LibcView, usize)> = Vec::new();
    for view in views {
        let same = all.iter_mut().find(|(other, _)| {
            view.root.is_some()
                && other.root.is_some()
                && other.state != "unknown"
                && (&other.libc, &other.version, &other.verdict, other.sites)
                    == (&view.libc, &view.version, &view.verdict, view.sites)
        });
        match same {
            Some((_, more)) => *more += 1,
            None => all.push((view, 0)),
        }
    }
    let said = |(mut view, more): (LibcView, usize)| {
        if let (Some(root), 1..) = (&mut view.root, more) {
            *root = format!("{root} and {more} more");
        }
        view
    };
    all.into_iter().map(said).collect()
}

/// Runs the probe with a library, once more with the library of threads where that is one of its own.
fn run(found: &Scanned) -> anyhow::Result<seen::Answer> {
    let folder = found.libc.parent().unwrap_or(Path::new("/"));
    let of_threads = folder.join("libpthread.so.0");
    let tried = start(found, folder, None)?;
    let tried = match tried.code() {
        Some(NO_THREADS) if of_threads.exists() => start(found, folder, Some(&of_threads))?,
        _ => tried,
    };
    let Some(status) = tried.end else {
        anyhow::bail!("its loader did not end in {} s", PATIENCE.as_secs());
    };
    let threads = match status.code() {
        Some(0) => true,
        Some(NO_THREADS) => false,
        // As shells and wait(2) count it.
        _ => anyhow::bail!("a program cannot be run with it: {status}"),
    };
    let attached = tried.processes.iter();
    let attached = attached
        .rev()
        .find(|entry| entry.coverage & bits::ATTACHED != 0);
    let Some(entry) = attached else {
        return Ok(seen::Answer::no("the library is not loaded by it"));
    };
    let counted = tried.calls.iter();
    let counted = counted.map(|total| (CALLS[total.call].name, total.bytes));
    let counted: Vec<(&str, u64)> = counted.collect();
    let unseen = seen::unseen(PROBE.len() as u64, threads, &counted);
    let is_patched = entry.coverage & bits::PATCHED != 0 && entry.reason == Reason::None;
    let sites = usize::try_from(entry.sites).ok();
    Ok(seen::by_run(
        unseen,
        threads,
        is_patched,
        entry.reason,
        sites,
    ))
}

/// Starts the probe by a loader.
fn start(found: &Scanned, folder: &Path, also: Option<&Path>) -> anyhow::Result<Tried> {
    let probe = probe().context("the program that tries it cannot be kept in memory")?;
    trial(
        OsStr::new(&found.loader),
        &found.loader,
        PATIENCE,
        |command, preload| {
            let mut preloaded = preload.as_os_str().to_owned();
            if let Some(also) = also {
                preloaded.push(":");
                preloaded.push(also);
            }
            set_up(command, folder, &preloaded, probe);
        },
    )
}

fn set_up(command: &mut Command, folder: &Path, preloaded: &OsStr, probe: OwnedFd) {
    // Nothing of the caller's own for the loader: it may be meant for another library.
    for name in ["LD_LIBRARY_PATH", "LD_AUDIT", "LD_DEBUG", "GCONV_PATH"] {
        command.env_remove(name);
    }
    command
        .arg("--library-path")
        .arg(folder)
        .arg("/proc/self/fd/0");
    command.env("LD_PRELOAD", preloaded).stdin(probe);
}

/// The probe, as a file without a name: a runtime directory may be mounted without the right to execute.
fn probe() -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("bonsai-libc-probe", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(PROBE)?;
    Ok(file.into())
}

impl LibcView {
    /// The row of a table: its state, and what it says.
    pub(super) fn row(&self) -> (&'static str, String) {
        let state = if self.state == "unknown" {
            "?"
        } else {
            self.state
        };
        let whose = self.root.iter().map(|root| format!(" of {root}"));
        let version = self.version.iter().map(|version| format!(" {version}"));
        let detail = format!(
            "{}{}: {}{}: {}",
            self.libc.display(),
            whose.collect::<String>(),
            self.flavour,
            version.collect::<String>(),
            self.verdict
        );
        (state, escaped(&detail))
    }

    /// True where all its calls are seen.
    pub(super) fn is_seen(&self) -> bool {
        self.state == "yes"
    }
}
