//! `bonsai trace gen`.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use bonsai_services::refusal::Refusal;
use bonsai_trace::twin::{Knobs, Original, Twin, fill, twin};
use bonsai_trace::{BLOCK, Digest, Volume};
use serde::Serialize;
use serde_json::json;

use super::files::{create_output, output_error, save};
use super::import::said;
use super::show::trace;
use crate::cli::TraceGen;
use crate::output::{count, escaped, print_json, say};

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
            "{name}: it has no requests to generate a trace from"
        )));
    }
    if args.content.as_ref() == Some(&args.output) {
        return Err(Refusal::input(
            "-o and --content name the same file: name two",
        ));
    }
    let number = args.number.unwrap_or(original.len());
    let volumes = reader.volumes().to_vec();
    let mut held: Vec<(u32, u64, Digest)> = Vec::new();
    let (written, images) = save(&args.output, |out| {
        let mut hold = |volume, block, digest| held.push((volume, block, digest));
        let initial: Option<bonsai_trace::twin::Initial<'_>> = match args.content {
            Some(_) => Some(&mut hold),
            None => None,
        };
        let done = twin(&original, &volumes, &knobs, number, out, initial);
        let (_, Twin { written, ends }) = done.map_err(|error| said(&name, error))?;
        let images = match &args.content {
            Some(path) => images(path, &volumes, &ends, held)?,
            None => Vec::new(),
        };
        Ok((written, images))
    })?;
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
    for image in &images {
        say!(
            "{}: {} bytes for volume {}, {} with content",
            escaped(&image.path.display().to_string()),
            image.bytes,
            escaped(&image.volume),
            count(image.blocks, "block", "blocks"),
        );
    }
    if !images.is_empty() && written.contents == 0 {
        say!(
            "{}: it does not say what its blocks hold, so images are all zeroes",
            escaped(&name)
        );
    }
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

/// An image of what a volume holds before the first request.
#[derive(Debug, Serialize)]
struct Image {
    path: PathBuf,
    volume: String,
    bytes: u64,
    /// Blocks that hold something.
    blocks: u64,
}

/// Writes an image of each volume: one sparse file, or one for each volume with its name at the end.
fn images(
    path: &Path,
    volumes: &[Volume],
    ends: &[u64],
    mut held: Vec<(u32, u64, Digest)>,
) -> anyhow::Result<Vec<Image>> {
    // In order, and each block once: what was read first.
    held.sort_by_key(|(volume, block, _)| (*volume, *block));
    held.dedup_by_key(|(volume, block, _)| (*volume, *block));
    let mut made = Vec::new();
    let mut outputs = Vec::new();
    for ((number, volume), name) in (0_u32..).zip(volumes).zip(file_names(volumes)) {
        let first = held.partition_point(|(of, _, _)| *of < number);
        let end = held.partition_point(|(of, _, _)| *of <= number);
        let blocks = &held[first..end];
        let path = if volumes.len() == 1 {
            path.to_owned()
        } else {
            let mut path = path.as_os_str().to_owned();
            path.push(format!(".{name}"));
            PathBuf::from(path)
        };
        let last = ends.get(number as usize).copied().unwrap_or(0);
        // A volume that is only flushed has a block: nothing serves a disk without any.
        let bytes = last.next_multiple_of(BLOCK).max(BLOCK);
        let mut output = create_output(&path)?;
        if !output.is_regular() {
            return Err(Refusal::input(format!(
                "{}: it is no regular file, and an image is written in places",
                path.display()
            )));
        }
        image(output.file(), bytes, blocks).with_context(|| {
            format!(
                "{}: an image of {bytes} bytes cannot be written",
                path.display()
            )
        })?;
        outputs.push(output);
        made.push(Image {
            path,
            volume: volume.name.clone(),
            bytes,
            blocks: blocks.len() as u64,
        });
    }
    outputs
        .into_iter()
        .try_for_each(|output| output.commit().map_err(output_error))?;
    Ok(made)
}

/// What stands for the names of volumes in names of files and exports: _ for all but letters, digits and -. No two are the same.
pub(super) fn file_names(volumes: &[Volume]) -> Vec<String> {
    const LONGEST: usize = 100;
    let mut taken = HashSet::new();
    let plain = |c: char| {
        if c.is_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let names = volumes.iter().map(|volume| {
        let mut name: String = volume.name.chars().map(plain).collect();
        while name.len() > LONGEST {
            name.pop();
        }
        if name.is_empty() {
            name.push('_');
        }
        name
    });
    let names: Vec<String> = names.collect();
    let all: HashSet<&String> = names.iter().collect();
    let unique = names.iter().map(|name| {
        if taken.insert(name.clone()) {
            return name.clone();
        }
        let mut numbered = (2_u64..).map(|n| format!("{name}-{n}"));
        let found = numbered.find(|new| !all.contains(new) && taken.insert(new.clone()));
        found.unwrap_or_else(|| name.clone())
    });
    unique.collect()
}

fn image(file: &mut File, bytes: u64, blocks: &[(u32, u64, Digest)]) -> std::io::Result<()> {
    file.set_len(0)?;
    file.set_len(bytes)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut content = [0; 4096];
    let mut next = 0;
    for (_, block, digest) in blocks {
        if *block != next {
            out.seek(SeekFrom::Start(block * BLOCK))?;
        }
        fill(*digest, &mut content);
        out.write_all(&content)?;
        next = block + 1;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_differ_as_volumes_do() {
        let names = |of: &[&str]| {
            let volumes = of.iter().map(|name| Volume {
                name: (*name).to_owned(),
                bytes: None,
            });
            file_names(&volumes.collect::<Vec<_>>())
        };
        assert_eq!(names(&["6:0", "6:16"]), ["6_0", "6_16"]);
        assert_eq!(
            names(&["a b", "a_b", "a_b-2", "a/b", "", "\u{1b}"]),
            ["a_b", "a_b-3", "a_b-2", "a_b-4", "_", "_-2"]
        );
        let long = "x".repeat(300);
        assert!(names(&[&long])[0].len() <= 100);
    }
}
