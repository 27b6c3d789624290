//! Root file systems that have C libraries of their own: the host's, those of processes in containers, snaps, AppImages and Flatpaks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_services::refusal::Refusal;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::scan::Scanned;
use crate::bounded::wait_at_most;

/// Roots that are looked at; of more, their number is said.
const MOST: usize = 32;

/// Time for all looks together, which are made at once: some milliseconds of processor time for each library, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A root file system.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    /// Name for people; `None` for the host's own.
    pub(super) name: Option<String>,
    /// Libraries that the host has installed there for itself are run.
    is_run: bool,
    /// A loader that is the only one of interest, and is run.
    loader: Option<PathBuf>,
}

/// All roots of this host that can be found without a look into files.
pub(super) fn of_host(is_run: bool) -> Vec<Root> {
    let mut roots = vec![Root {
        path: "/".into(),
        name: None,
        is_run,
        loader: None,
    }];
    let read = |(path, name)| Root {
        path,
        name: Some(name),
        // Foreign code.
        is_run: false,
        loader: None,
    };
    roots.extend(apps().into_iter().chain(processes()).map(read));
    roots
}

/// The one that is named by a loader, or by a folder.
///
/// # Errors
/// There is no such file.
pub(super) fn at(path: &Path) -> anyhow::Result<Root> {
    let refused = |error| Refusal::input(format!("{}: {error}", path.display()));
    let whole = path.canonicalize().map_err(refused)?;
    let is_folder = whole.is_dir();
    let folder = if is_folder {
        &*whole
    } else {
        whole.parent().unwrap_or(Path::new("/"))
    };
    Ok(Root {
        path: folder.to_owned(),
        name: is_folder.then(|| whole.display().to_string()),
        is_run: false,
        loader: (!is_folder).then(|| whole.clone()),
    })
}

/// Snaps, AppImages and Flatpak's runtimes that are mounted.
fn apps() -> Vec<(PathBuf, String)> {
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.take(1000).map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let mut found = Vec::new();
    for folder in ["/snap", "/var/lib/snapd/snap"].map(Path::new) {
        for snap in entries(folder) {
            for revision in entries(&snap).into_iter().filter(|path| !path.is_symlink()) {
                let whose = format!("the snap {} ({})", name(&snap), name(&revision));
                found.push((revision, whose));
            }
        }
    }
    for folder in [std::env::temp_dir(), "/tmp".into()] {
        let mounts = entries(&folder).into_iter();
        for mount in mounts.filter(|path| name(path).starts_with(".mount_")) {
            if !found.iter().any(|(path, _)| *path == mount) {
                let whose = format!("the AppImage at {}", mount.display());
                found.push((mount, whose));
            }
        }
    }
    for runtime in entries(Path::new("/var/lib/flatpak/runtime")) {
        for branch in entries(&runtime.join("x86_64")) {
            let whose = format!("the Flatpak {} {}", name(&runtime), name(&branch));
            found.push((branch.join("active/files"), whose));
        }
    }
    found
}

/// Roots of processes that have another one than this, each once. Nothing is asked of their file systems.
fn processes() -> Vec<(PathBuf, String)> {
    let root_of = |path: &Path| {
        let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
        Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
    };
    let mut seen: BTreeSet<_> = root_of(Path::new("/")).into_iter().collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        let path = PathBuf::from(format!("/proc/{pid}/root"));
        // Refused for processes that the caller may not trace.
        if root_of(&path).is_some_and(|root| seen.insert(root)) {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push((path, format!("process {pid} ({})", comm.trim_end())));
        }
    }
    found
}

/// Looks at all of them at once; each with what was found, or why nothing could be.
pub(super) fn look_at(mut roots: Vec<Root>) -> Vec<(Root, Result<Vec<Scanned>, String>)> {
    let more = roots.split_off(roots.len().min(MOST));
    let started: Vec<_> = roots.into_iter().map(|root| (start(&root), root)).collect();
    let end = Instant::now() + PATIENCE;
    let mut all = Vec::new();
    for (started, root) in started {
        let left = end.saturating_duration_since(Instant::now());
        let found = started.and_then(|look| finish(look, left));
        let only = |found: &Scanned| root.loader.as_ref().is_none_or(|of| found.loader == *of);
        let found = found.map(|found| found.into_iter().filter(only).collect());
        all.push((root, found));
    }
    if let Some(first) = more.first() {
        let text = format!(
            "{} more roots, from this one on, were not looked at",
            more.len()
        );
        all.push((first.clone(), Err(text)));
    }
    all
}

/// A process that looks at a root, and the file for what it finds.
struct Look {
    child: Child,
    found: File,
}

fn start(root: &Root) -> Result<Look, String> {
    let failed = |error: std::io::Error| format!("it cannot be looked at: {error}");
    let found = tempfile::tempfile().map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("scan-libcs").arg(&root.path);
    command.args(root.loader.as_ref().map(|_| "--named"));
    command.args(root.is_run.then_some("--own"));
    let output = found.try_clone().map_err(failed)?;
    command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null());
    let child = command.process_group(0).spawn().map_err(failed)?;
    Ok(Look { child, found })
}

fn finish(mut look: Look, left: Duration) -> Result<Vec<Scanned>, String> {
    let ended = wait_at_most(&mut look.child, left).map_err(|error| error.to_string())?;
    match ended {
        None => {
            return Err(format!(
                "its files did not answer in {} s",
                PATIENCE.as_secs()
            ));
        }
        Some(status) if !status.success() => {
            return Err(format!("its files cannot be looked at: {status}"));
        }
        Some(_) => {}
    }
    let mut text = String::new();
    let read = look
        .found
        .rewind()
        .and_then(|()| look.found.read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    let lines = text.lines().map(serde_json::from_str);
    lines
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}
