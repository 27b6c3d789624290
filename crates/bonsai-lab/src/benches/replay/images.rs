//! Images of `debian4`, and the reads that find them as they are.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use bonsai_trace::{Op, Reader, Writer};
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::context::Context;

/// What images are called, before the device.
pub(super) const STEM: &str = "disk";

/// Images in a folder of their own, and a trace of reads.
#[derive(Debug)]
pub(super) struct Images {
    folder: TempDir,
    pub(super) trace: PathBuf,
    paths: Vec<PathBuf>,
    /// Of the trace: reads of a block each.
    pub(super) records: u64,
}

/// The trace of four guests, where it is there.
pub(super) fn trace() -> Option<PathBuf> {
    let folder = std::env::var_os("BONSAI_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let path = folder.join("traces/debian4.fiu.zst");
    path.is_file().then_some(path)
}

impl Images {
    /// Makes them, 1.1 GB; with `unique`, each block has a content of its own.
    pub(super) fn make(context: &Context, fiu: &Path, unique: bool) -> anyhow::Result<Self> {
        let bonsai = context.bonsai()?;
        let scratch = context.scratch();
        let [original, twin, trace] =
            ["original.btr", "twin.btr", "reads.btr"].map(|name| scratch.join(name));
        let mut import = Command::new(&bonsai);
        import.args(["trace", "import", "--by-process"]).arg(fiu);
        done(import.arg("-o").arg(&original))?;
        // For servers that serve a folder: nothing else is in it.
        let folder = tempfile::Builder::new()
            .prefix("images-")
            .tempdir_in(scratch)?;
        let mut gen_ = Command::new(&bonsai);
        gen_.args(["trace", "gen", "--shuffle", "1", "--like"])
            .arg(&original)
            .arg("-o")
            .arg(&twin)
            .arg("--content")
            .arg(folder.path().join(STEM));
        if unique {
            gen_.args(["--sharing", "0"]);
        }
        done(&mut gen_)?;
        let records = unchanged(&twin, &trace)?;
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder.path())? {
            let path = entry?.path();
            // Only what is on the disk can be put out of the page cache.
            File::open(&path)?.sync_all()?;
            paths.push(path);
        }
        paths.sort();
        Ok(Self {
            folder,
            trace,
            paths,
            records,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Puts them out of the page cache, and away what a server has kept beside them.
    pub(super) fn forget(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(self.folder.path())? {
            let path = entry?.path();
            if !self.paths.contains(&path) {
                fs::remove_file(path)?;
            }
        }
        for path in &self.paths {
            fadvise(&File::open(path)?, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

fn done(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output()?;
    anyhow::ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Writes a trace of the reads that find what was there before the first request; says how many they are.
fn unchanged(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let failed = || format!("{}: cannot be read", from.display());
    let mut reader = Reader::new(File::open(from)?)
        .with_context(failed)?
        .keeping_fingerprints();
    let mut writer = Writer::new(std::io::BufWriter::new(File::create(to)?))?;
    let (mut volumes, mut contents, mut records) = (0, 0, 0);
    // Blocks of volumes, and what they held at first; nothing of what was written first.
    let mut held: HashMap<(u32, u64), Option<u32>> = HashMap::new();
    while let Some(batch) = reader.next_batch()? {
        let batch = batch.clone();
        while let Some(volume) = reader.volumes().get(volumes) {
            writer.add_volume(volume)?;
            volumes += 1;
        }
        while let Some(digest) = reader.fingerprints().get(contents) {
            writer.add_content(*digest)?;
            contents += 1;
        }
        for request in batch.iter() {
            let is_read = request.op == Op::Read;
            let mut finds = is_read;
            for access in request.accesses() {
                let key = (access.volume, access.block);
                let first = access.content.filter(|_| is_read);
                finds &= *held.entry(key).or_insert(first) == access.content;
            }
            if finds {
                writer.push(&request)?;
                records += 1;
            }
        }
    }
    writer
        .finish()?
        .0
        .into_inner()
        .map_err(|error| error.into_error())?;
    Ok(records)
}
