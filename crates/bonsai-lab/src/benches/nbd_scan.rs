//! How fast the block server goes over an image: CPU time of the thread that does it.
//!
//! The image is in the page cache. The bare operation is to read it in the same pieces; in between stands reading with a
//! fingerprint for each block, which is what no scan can do without.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bonsai_nbd::image::Image;
use bonsai_nbd::sharing::{Guarding, Secret, Sharing};
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::thread_cpu_ns;
use crate::study::{Pairing, estimate, with_interval};

/// The benchmark "nbd-scan".
#[derive(Debug)]
pub(crate) struct NbdScan;

const IMAGE_BYTES: u64 = 512 << 20;
const PIECE: usize = 1 << 20;
const BLOCK: usize = 4096;
/// GB/s of a core, as promised.
const LEAST: f64 = 1.5;

/// CPU time of one turn of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    read_ns: u64,
    hashed_ns: u64,
    scan_ns: u64,
}

impl Benchmark for NbdScan {
    fn name(&self) -> &'static str {
        "nbd-scan"
    }

    fn about(&self) -> &'static str {
        "how fast the block server goes over an image"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let path = context.scratch().join("image.raw");
        fill(&path, context.random.next_u64())?;
        for _ in 0..context.effort.of(4, 9, 25) {
            let before = Moment::now();
            let mut order = [0, 1, 2];
            context.shuffle(&mut order);
            let mut ns = [0; 3];
            for what in order {
                ns[what] = match what {
                    0 => read(&path, |_| {})?,
                    1 => hashed(&path)?,
                    _ => scan(&path)?,
                };
            }
            let [read_ns, hashed_ns, scan_ns] = ns;
            let measured = Measured {
                read_ns,
                hashed_ns,
                scan_ns,
            };
            context.sample(before.until_now(), &measured)?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// Blocks of numbers, each of four the same as another.
fn fill(path: &Path, seed: u64) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    for first in (0..IMAGE_BYTES / BLOCK as u64).step_by(PIECE / BLOCK) {
        let blocks = first..first + (PIECE / BLOCK) as u64;
        let content = |block: u64| match block % 4 {
            0 => block % 1024,
            _ => block,
        };
        let words = |block: u64| (0..512).map(move |word| content(block) * 512 + word);
        let words = blocks.flat_map(words);
        let bytes: Vec<u8> = words.flat_map(|word| (word ^ seed).to_le_bytes()).collect();
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

fn read(path: &Path, mut each: impl FnMut(&[u8])) -> anyhow::Result<u64> {
    let file = File::open(path)?;
    let mut bytes = vec![0; PIECE];
    let start = thread_cpu_ns();
    for at in (0..IMAGE_BYTES).step_by(PIECE) {
        file.read_exact_at(&mut bytes, at)?;
        each(&bytes);
    }
    Ok(thread_cpu_ns() - start)
}

fn hashed(path: &Path) -> anyhow::Result<u64> {
    let mut all = 0;
    let ns = read(path, |bytes| {
        for block in bytes.chunks(BLOCK) {
            all ^= blake3::keyed_hash(&[7; 32], block).as_bytes()[0];
        }
    })?;
    std::hint::black_box(all);
    Ok(ns)
}

fn scan(path: &Path) -> anyhow::Result<u64> {
    let image = Arc::new(Image::open(path, true)?);
    let sharing = Sharing::new(64 << 20, false, Secret::random()?)?;
    let member = sharing.member(&image, "g", Guarding::Lease)?;
    let start = thread_cpu_ns();
    let scanned = member.scan(|| false)?.unwrap_or_default();
    let ns = thread_cpu_ns() - start;
    anyhow::ensure!(
        scanned.read == IMAGE_BYTES && member.extent().known_blocks == IMAGE_BYTES / BLOCK as u64,
        "not all of the image was gone over"
    );
    Ok(ns)
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "An image of 512 MiB in the page cache, a quarter of its blocks duplicates; GB/s of CPU time of one thread, and \
         its time over that of reading alone, within a round.",
    );
    let mut table = Table::new(&["", "GB/s", "over reading", "doubt"]);
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    type Time = fn(&Measured) -> u64;
    let rows: [(&str, Time); 3] = [
        ("reading", |of| of.read_ns),
        ("with a fingerprint a block", |of| of.hashed_ns),
        ("scan", |of| of.scan_ns),
    ];
    for (name, ns) in rows {
        let speed: Vec<f64> = samples
            .iter()
            .map(|sample| IMAGE_BYTES as f64 / ns(&sample.data) as f64)
            .collect();
        let pairs: Vec<_> = samples
            .iter()
            .map(|sample| (sample.data.read_ns as f64, ns(&sample.data) as f64))
            .collect();
        let (Some(speed), Some(pairing)) = (estimate(&speed, seed), Pairing::of(&pairs, seed))
        else {
            continue;
        };
        table.row(vec![
            name.to_owned(),
            with_interval(&speed, 2),
            with_interval(&pairing.ratio, 2),
            doubt.clone().unwrap_or_default(),
        ]);
        if name == "scan" {
            section.promise(
                "scan of an image in the page cache".to_owned(),
                format!("{LEAST} GB/s of a core"),
                with_interval(&speed, 2),
                Verdict::at_least(&speed, LEAST, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}
