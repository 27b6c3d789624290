//! `bonsai trace gen`.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use bonsai_services::refusal::Refusal;
use bonsai_trace::twin::{Knobs, Original, fill, twin};
use bonsai_trace::{BLOCK, Digest, Volume};
use serde_json::json;

use super::files::save;
use super::import::said;
use super::show::trace;
use crate::cli::TraceGen;
use crate::output::{count, print_json, say};

pub(super) fn run(args: &TraceGen) -> anyhow::Result<()> {
    let knobs = knobs(args)?;
    let (mut reader, progress) = trace(&args.like)?;
    let name = args.like.display().to_string();
    let mut original = Original::default();
    let read = reader.for_each(|request| original.add(request));
    progress.done();
    read.map_err(|error| said(&name, error))?;
    if original.is_empty() {
        return Err(Refusal::input(format!(
            "{name}: it has no request, so there can be no twin"
        )));
    }
    let number = args.number.unwrap_or(original.len());
    let volumes = reader.volumes().to_vec();
    let mut held: Vec<(u32, u64, Digest)> = Vec::new();
    let mut hold = |volume, block, digest| held.push((volume, block, digest));
    let written = save(&args.output, |out| {
        let initial: Option<bonsai_trace::twin::Initial<'_>> = match args.content {
            Some(_) => Some(&mut hold),
            None => None,
        };
        let done = twin(&original, &volumes, &knobs, number, out, initial);
        Ok(done.map_err(|error| said(&name, error))?.1)
    })?;
    let images = match &args.content {
        Some(path) => images(path, &volumes, held)?,
        None => Vec::new(),
    };
    if args.json && args.output.as_os_str() != "-" {
        let document = json!({
            "schema": 1,
            "requests": written.requests,
            "contents": written.contents,
            "bytes_written": written.bytes,
            "seed": args.seed,
            "images": images,
        });
        return print_json(&document, false);
    }
    say!(
        "{}, {}; {} bytes",
        count(written.requests, "request", "requests"),
        count(written.contents, "content", "contents"),
        written.bytes
    );
    Ok(())
}

fn knobs(args: &TraceGen) -> anyhow::Result<Knobs> {
    let parts = [
        ("--sharing", Some(args.sharing)),
        ("--reuse", Some(args.reuse)),
        ("--writes", args.writes),
    ];
    for (name, part) in parts {
        if part.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
            return Err(Refusal::input(format!(
                "{name} is a part: write 0 to 1, such as 0.5"
            )));
        }
    }
    for (name, factor) in [("--gaps", args.gaps), ("--pace", args.pace)] {
        if !(0.0..=1e6).contains(&factor) {
            return Err(Refusal::input(format!(
                "{name} is a factor from 0 to 1000000, such as 0.5"
            )));
        }
    }
    if args.window == 0 || args.shuffle == 0 || args.longest_run == Some(0) {
        return Err(Refusal::input(
            "--window, --shuffle and --longest-run are at least 1",
        ));
    }
    if args.longest_run.is_some_and(|longest| longest > 1 << 18) {
        return Err(Refusal::input(
            "--longest-run is at most 262144 blocks, which is 1 GiB",
        ));
    }
    Ok(Knobs {
        seed: args.seed,
        window: args.window,
        shuffle: args.shuffle,
        together: usize::from(args.together),
        sharing: args.sharing,
        reuse: args.reuse,
        writes: args.writes,
        longest_run: args.longest_run,
        gaps: args.gaps,
        pace: args.pace,
    })
}

/// Writes what each volume holds at first: one sparse file, or one for each volume with its name at the end.
fn images(
    path: &Path,
    volumes: &[Volume],
    mut held: Vec<(u32, u64, Digest)>,
) -> anyhow::Result<Vec<PathBuf>> {
    // In order, and each block once: what was read first.
    held.sort_by_key(|(volume, block, _)| (*volume, *block));
    held.dedup_by_key(|(volume, block, _)| (*volume, *block));
    let mut images = Vec::new();
    for (n, volume) in volumes.iter().enumerate() {
        let of: Vec<_> = held
            .iter()
            .filter(|(number, _, _)| *number as usize == n)
            .collect();
        if of.is_empty() {
            continue;
        }
        let path = if volumes.len() == 1 {
            path.to_owned()
        } else {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}", safe(&volume.name)));
            PathBuf::from(name)
        };
        let failed = || format!("{}: cannot be written", path.display());
        image(&path, &of).with_context(failed)?;
        images.push(path);
    }
    Ok(images)
}

/// A device's name, as it stands in names of files.
pub(super) fn safe(device: &str) -> String {
    let plain = |c: char| {
        if c.is_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    device.chars().map(plain).collect()
}

fn image(path: &Path, blocks: &[&(u32, u64, Digest)]) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut bytes = [0; 4096];
    let mut next = 0;
    for (_, block, digest) in blocks {
        if *block != next {
            out.seek(SeekFrom::Start(block * BLOCK))?;
        }
        fill(*digest, &mut bytes);
        out.write_all(&bytes)?;
        next = block + 1;
    }
    out.flush()
}
