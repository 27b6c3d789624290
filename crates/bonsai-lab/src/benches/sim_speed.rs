//! How fast caches are simulated, and what they take: CPU time of the thread that does it.
//!
//! A synthetic sequence by a power law. Numbering its blocks (one pass of hashing) is the bare operation: each
//! policy runs beside it in the same round, and the ratio is of both together to the pass alone.

use bonsai_dedup::cache::{Arc, Cache, Clock, Lru, Policy, S3Fifo, Sieve};
use bonsai_dedup::curve::Mattson;
use bonsai_dedup::intern::Interner;
use bonsai_dedup::sample::Shards;
use bonsai_stats::SplitMix64;
use serde::{Deserialize, Serialize};

use super::Benchmark;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::service::thread_cpu_ns;
use crate::study::{estimate, with_interval};

/// The benchmark "sim-speed".
#[derive(Debug)]
pub(crate) struct SimSpeed;

const REQUESTS: usize = 10_000_000;

/// Million requests a second, and bytes a block, as promised.
const LEAST_LRU: f64 = 20.0;
const LEAST_CURVE: f64 = 8.0;
const MOST_BYTES: f64 = 40.0;

/// Ids, blocks in the cache, exponent, and what libCacheSim does there: LRU, ARC, S3-FIFO, SIEVE, million requests/s, as
/// measured on another day on a machine of this kind, from files in memory.
const CELLS: [(u32, u32, f64, [Option<f64>; 4]); 3] = [
    (
        1_000_000,
        100_000,
        0.9,
        [Some(6.3), Some(5.4), Some(2.9), Some(9.1)],
    ),
    (
        10_000_000,
        1_000_000,
        0.8,
        [Some(4.45), Some(3.6), Some(2.2), None],
    ),
    (
        10_000_000,
        5_000_000,
        0.8,
        [Some(4.17), Some(3.4), Some(2.8), None],
    ),
];

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    cell: usize,
    /// Different blocks in the sequence.
    blocks: u32,
    intern_ns: u64,
    intern_bytes: u64,
    /// The same pass, when all blocks are known.
    lookup_ns: u64,
    runs: Vec<Ran>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Ran {
    what: String,
    cpu_ns: u64,
    bytes: u64,
    /// Its result, so that a run that goes wrong is seen.
    hit_ratio: f64,
}

impl Benchmark for SimSpeed {
    fn name(&self) -> &'static str {
        "sim-speed"
    }

    fn about(&self) -> &'static str {
        "requests a second and bytes a block of simulated caches and curves"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let rounds = context.effort.of(2, 5, 15);
        for (cell, (ids, ..)) in CELLS.iter().enumerate() {
            let what = describe(cell);
            if !context.is_wanted(&what) {
                continue;
            }
            context.progress(&what);
            let keys = sequence(*ids, CELLS[cell].2, context.random.next_u64());
            for _ in 0..rounds {
                let before = Moment::now();
                let measured = measure(cell, CELLS[cell].1, &keys)?;
                context.sample(before.until_now(), &measured)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn describe(cell: usize) -> String {
    let (ids, blocks, exponent, _) = CELLS[cell];
    format!("{blocks} blocks of {ids}, exponent {exponent}")
}

/// Ranks by a power law, by the inverse of its sum, at addresses that have nothing to do with them.
fn sequence(ids: u32, exponent: f64, seed: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    let rest = 1.0 - exponent;
    let most = f64::from(ids).powf(rest);
    let each = (0..REQUESTS).map(|_| {
        let unit = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below ids"
        )]
        let rank = (most * unit).powf(1.0 / rest) as u64;
        rank.min(u64::from(ids) - 1).wrapping_mul(0x9e37_79b1) % (1 << 40)
    });
    each.collect()
}

fn timed<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = thread_cpu_ns();
    let result = work();
    (thread_cpu_ns() - before, result)
}

fn measure(cell: usize, capacity: u32, keys: &[u64]) -> anyhow::Result<Measured> {
    let mut blocks = Interner::default();
    let mut ids = Vec::with_capacity(keys.len());
    let (intern_ns, numbered) = timed(|| blocks.number(keys, &mut ids));
    numbered?;
    let mut again = Vec::with_capacity(keys.len());
    let (lookup_ns, numbered) = timed(|| blocks.number(keys, &mut again));
    numbered?;
    anyhow::ensure!(ids == again, "a block has one number");
    drop(again);
    let n = blocks.len();
    let mut runs: Vec<Ran> = Policy::ALL
        .into_iter()
        .map(|policy| match policy {
            Policy::Lru => simulated(policy, &ids, || Lru::new(capacity, n)),
            Policy::Arc => simulated(policy, &ids, || Arc::new(capacity, n)),
            Policy::Clock => simulated(policy, &ids, || Clock::new(capacity, n)),
            Policy::S3Fifo => simulated(policy, &ids, || S3Fifo::new(capacity, n)),
            Policy::Sieve => simulated(policy, &ids, || Sieve::new(capacity, n)),
        })
        .collect();
    runs.push(curve(&ids, n, capacity));
    runs.push(sample(&ids, n, capacity));
    Ok(Measured {
        cell,
        blocks: n,
        intern_ns,
        intern_bytes: blocks.bytes() as u64,
        lookup_ns,
        runs,
    })
}

fn simulated<C: Cache>(policy: Policy, ids: &[u32], make: impl FnOnce() -> C) -> Ran {
    let (cpu_ns, (hits, bytes)) = timed(|| {
        let mut cache = make();
        let mut hits = 0_u64;
        cache.access_all(ids, |_, hit| hits += u64::from(hit));
        (hits, cache.bytes())
    });
    Ran {
        what: policy.to_string(),
        cpu_ns,
        bytes: bytes as u64,
        hit_ratio: hits as f64 / ids.len() as f64,
    }
}

fn curve(ids: &[u32], blocks: u32, capacity: u32) -> Ran {
    let (cpu_ns, (curve, bytes)) = timed(|| {
        let mut mattson = Mattson::new(blocks);
        mattson.access_all(ids, |_| false);
        let bytes = mattson.bytes();
        (mattson.finish(), bytes)
    });
    Ran {
        what: "curve, all sizes".to_owned(),
        cpu_ns,
        bytes: bytes as u64,
        hit_ratio: curve.at(capacity.into()).reads as f64 / ids.len() as f64,
    }
}

fn sample(ids: &[u32], blocks: u32, capacity: u32) -> Ran {
    let (cpu_ns, sampled) = timed(|| {
        let mut shards = Shards::new(blocks, 100, 1, &[capacity.into()]);
        shards.access_all(ids, |_| false);
        shards.finish()
    });
    Ran {
        what: "curve, sample of 1 %".to_owned(),
        cpu_ns,
        bytes: 0,
        hit_ratio: sampled[0].all.ratio,
    }
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "Million requests/s of CPU time of one thread: the medians of rounds with their intervals. \"With numbering\" counts \
         the pass that gives blocks their numbers, once for each run, though a trace needs it only once. Bytes are for each \
         different block of the trace, with its number. libCacheSim (October 2024) as measured before, from files in memory.",
    );
    for cell in 0..CELLS.len() {
        let of: Vec<_> = samples
            .iter()
            .filter(|sample| sample.data.cell == cell)
            .collect();
        if !of.is_empty() {
            one(&mut section, cell, &of, seed);
        }
    }
    section
}

fn one(section: &mut Section, cell: usize, of: &[&Sample<Measured>], seed: u64) {
    let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
    let per_us = |ns: f64| REQUESTS as f64 * 1e3 / ns;
    let mut table = Table::new(&[
        "",
        "M/s",
        "with numbering, M/s",
        "of numbering alone",
        "B a block",
        "hits, %",
        "libCacheSim, M/s",
    ]);
    let names: Vec<String> = of[0].data.runs.iter().map(|run| run.what.clone()).collect();
    for (n, name) in names.iter().enumerate() {
        let each = |value: &dyn Fn(&Measured, &Ran) -> f64| -> Vec<f64> {
            of.iter()
                .map(|sample| value(&sample.data, &sample.data.runs[n]))
                .collect()
        };
        let alone = each(&|_, ran| per_us(ran.cpu_ns as f64));
        let both = each(&|all, ran| per_us((ran.cpu_ns + all.intern_ns) as f64));
        let part = each(&|all, ran| all.intern_ns as f64 / (ran.cpu_ns + all.intern_ns) as f64);
        let (Some(alone), Some(both), Some(part)) = (
            estimate(&alone, seed),
            estimate(&both, seed),
            estimate(&part, seed),
        ) else {
            continue;
        };
        let data = &of[0].data;
        let bytes = (data.runs[n].bytes + data.intern_bytes) as f64 / f64::from(data.blocks);
        let place = ["lru", "arc", "s3fifo", "sieve"]
            .iter()
            .position(|known| known == name);
        let theirs = place.and_then(|at| CELLS[cell].3[at]);
        table.row(vec![
            name.clone(),
            with_interval(&alone, 1),
            with_interval(&both, 1),
            with_interval(&part, 2),
            if data.runs[n].bytes == 0 {
                String::new()
            } else {
                format!("{bytes:.1}")
            },
            format!("{:.2}", 100.0 * data.runs[n].hit_ratio),
            theirs.map(|theirs| format!("{theirs}")).unwrap_or_default(),
        ]);
        let least = match name.as_str() {
            "lru" => LEAST_LRU,
            "curve, all sizes" => LEAST_CURVE,
            _ => continue,
        };
        let what = |more: &str| format!("{name}, {}, {more}", describe(cell));
        for (value, more) in [(&alone, "alone"), (&both, "with numbering")] {
            section.promise(
                what(more),
                format!("{least} M/s"),
                format!("{} M/s", with_interval(value, 1)),
                Verdict::at_least(value, least, doubt.as_ref()),
            );
        }
        section.promise(
            what("bytes a block"),
            format!("{MOST_BYTES}"),
            format!("{bytes:.1}"),
            Verdict::of(bytes <= MOST_BYTES, None),
        );
    }
    let numbering: Vec<f64> = of.iter().map(|s| per_us(s.data.intern_ns as f64)).collect();
    let known: Vec<f64> = of.iter().map(|s| per_us(s.data.lookup_ns as f64)).collect();
    if let (Some(numbering), Some(known)) = (estimate(&numbering, seed), estimate(&known, seed)) {
        section.text(format!(
            "{}, {} different ones: numbering alone {} M/s, {} where all are known{}",
            describe(cell),
            of[0].data.blocks,
            with_interval(&numbering, 1),
            with_interval(&known, 1),
            doubt.map(|doubt| format!(" ({doubt})")).unwrap_or_default()
        ));
    }
    section.table(table);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_and_curve_is_measured() {
        let keys: Vec<u64> = (0..20_000_u64).map(|n| n * n % 3_001).collect();
        let measured = measure(0, 500, &keys).expect("measured");
        assert_eq!(measured.runs.len(), 7);
        let lru = &measured.runs[0];
        let curve = &measured.runs[5];
        assert_eq!((lru.what.as_str(), lru.hit_ratio), ("lru", curve.hit_ratio));
        let sample = Sample {
            conditions: crate::load::Conditions::default(),
            data: measured,
        };
        let text = report(&[sample.clone(), sample], 1).terminal();
        assert!(text.contains("curve, all sizes"), "{text}");
    }
}
