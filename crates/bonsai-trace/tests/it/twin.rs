//! Twins: like their originals, as far as nobody wants them otherwise.

use std::collections::{BTreeMap, BTreeSet};

use bonsai_stats::SplitMix64;
use bonsai_trace::stat::Stat;
use bonsai_trace::twin::{Knobs, Original, fill, twin};
use bonsai_trace::{Access, Digest, Error, Op, Reader, Request, Volume, Writer};

use crate::stat::{of, real};

fn made(file: &[u8], knobs: &Knobs, number: u64) -> Vec<u8> {
    let mut reader = Reader::new(file).expect("a trace");
    let mut original = Original::default();
    reader
        .for_each(|request| original.add(request))
        .expect("read");
    let volumes = reader.volumes().to_vec();
    let (file, made) = twin(&original, &volumes, knobs, number, Vec::new(), None).expect("made");
    assert_eq!(made.written.requests, number);
    file
}

/// Differences: of curves in points, of distributions by Kolmogorov and Smirnov.
fn apart(one: &Stat, other: &Stat) -> ([f64; 3], [f64; 4]) {
    let mut points = [0.0_f64; 3];
    for cache in (0..400)
        .map(|n| 1.04_f64.powi(n) as u64)
        .take_while(|cache| *cache < 1 << 21)
    {
        let both = one
            .hit_ratios(cache)
            .into_iter()
            .zip(other.hit_ratios(cache));
        for (most, (one, other)) in points.iter_mut().zip(both) {
            *most = most.max((one - other).abs() * 100.0);
        }
    }
    let parts = [
        one.sharing().distance(&other.sharing()),
        one.occurrence().distance(&other.occurrence()),
        one.run_length.distance(&other.run_length),
        one.jump.distance(&other.jump),
    ];
    (points, parts)
}

#[test]
fn the_twin_of_debian4_is_like_it() {
    let Some((file, stat)) = real("twin::the_twin_of_debian4_is_like_it", "debian4.fiu.zst") else {
        return;
    };
    for (number, seed) in [(1_011_983, 1), (1_011_983, 2), (2_023_966, 3)] {
        let knobs = Knobs {
            seed,
            ..Knobs::default()
        };
        let found = apart(&stat, &of(&made(&file, &knobs, number)));
        println!("{number} requests, seed {seed}: {found:?}");
        let (points, parts) = found;
        assert!(points.iter().all(|points| *points <= 1.0), "{points:?}");
        assert!(parts.iter().all(|part| *part <= 0.02), "{parts:?}");
    }
}

/// A trace of two volumes that share contents, with requests of several blocks.
fn small() -> Vec<u8> {
    laid(|block| block)
}

/// The same with gaps: eight places at which requests begin, and then none for a while.
fn spread() -> Vec<u8> {
    laid(|block| block / 8 * 70 + block % 8)
}

fn laid(place: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut random = SplitMix64::new(9);
    let mut writer = Writer::new(Vec::new()).expect("begun");
    for name in ["a", "b"] {
        let name = name.to_owned();
        writer
            .add_volume(&Volume { name, bytes: None })
            .expect("added");
    }
    for n in 0..4_000_u128 {
        writer.add_content(Digest(n.to_le_bytes())).expect("added");
    }
    let mut held: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    for n in 0..20_000 {
        let volume = random.below(2) as u32;
        let block = place(random.below(2_000));
        let length = 1 + random.below(4);
        let op = Op::ALL[usize::from(random.below(5) == 0)];
        let contents: Vec<u32> = (block..block + length)
            .map(|block| {
                let first = (block % 1_500) as u32;
                let held = held.entry((volume, block)).or_insert(first);
                if op == Op::Write {
                    *held = 2_000 + random.below(2_000) as u32;
                }
                *held
            })
            .collect();
        let request = Request {
            time_ns: n * 1_000,
            volume,
            offset: block * 4096,
            length: length as u32 * 4096,
            op,
            contents: &contents,
        };
        writer.push(&request).expect("written");
    }
    writer.finish().expect("finished").0
}

fn accesses(file: &[u8]) -> Vec<Access> {
    let found: Result<_, Error> = Reader::new(file).expect("a trace").accesses().collect();
    found.expect("read")
}

#[test]
fn reads_find_what_was_there() {
    for knobs in [
        Knobs::default(),
        Knobs {
            shuffle: 64,
            window: 3,
            ..Knobs::default()
        },
        Knobs {
            sharing: 0.5,
            longest_run: Some(2),
            ..Knobs::default()
        },
        Knobs {
            reuse: 0.5,
            ..Knobs::default()
        },
        Knobs {
            together: 3,
            ..Knobs::default()
        },
        Knobs {
            gaps: 0.01,
            ..Knobs::default()
        },
        Knobs {
            gaps: 7.3,
            longest_run: Some(2),
            reuse: 0.5,
            ..Knobs::default()
        },
    ] {
        // More than two epochs.
        let file = made(&spread(), &knobs, 50_000);
        let mut disk: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        for access in accesses(&file) {
            let content = access.content.expect("known");
            let held = disk.entry((access.volume, access.block)).or_insert(content);
            if access.op == Op::Write {
                *held = content;
            }
            assert_eq!(*held, content, "{access:?} {knobs:?}");
        }
    }
}

#[test]
fn seeds_and_knobs_change_what_they_say() {
    let original = small();
    let file = |knobs: &Knobs| made(&original, knobs, 20_000);
    let plain = of(&file(&Knobs::default()));
    assert_eq!(file(&Knobs::default()), file(&Knobs::default()));
    assert_ne!(
        file(&Knobs::default()),
        file(&Knobs {
            seed: 2,
            ..Knobs::default()
        })
    );
    let of = |knobs: Knobs| of(&file(&knobs));
    let few = of(Knobs {
        sharing: 0.0,
        ..Knobs::default()
    });
    assert_eq!(few.sharing().max(), 1);
    assert!(plain.sharing().max() > 1);
    let new = of(Knobs {
        reuse: 0.2,
        ..Knobs::default()
    });
    assert!(new.counts.blocks > plain.counts.blocks * 2);
    let part = |stat: &Stat| stat.counts.by_op[1] as f64 / stat.counts.requests as f64;
    for writes in [0.0, 0.1, 0.9] {
        let found = part(&of(Knobs {
            writes: Some(writes),
            ..Knobs::default()
        }));
        assert!((found - writes).abs() < 0.02, "{found} for {writes}");
    }
    let short = of(Knobs {
        longest_run: Some(1),
        ..Knobs::default()
    });
    assert!(short.run_length.below(2) * 100 > short.run_length.count() * 99);
    let slow = of(Knobs {
        pace: 3.0,
        ..Knobs::default()
    });
    assert!(slow.counts.duration_ns > plain.counts.duration_ns * 2);
}

/// Runs of 1 to 8 blocks at places that are far apart.
fn sparse() -> Vec<u8> {
    let mut random = SplitMix64::new(5);
    let mut writer = Writer::new(Vec::new()).expect("begun");
    for name in ["a", "b"] {
        let (name, bytes) = (name.to_owned(), None);
        writer.add_volume(&Volume { name, bytes }).expect("added");
    }
    for n in 0..20_000 {
        let place = random.below(3_000);
        let request = Request {
            time_ns: n,
            volume: u32::try_from(place % 2).expect("small"),
            offset: place * 1_000 * 4096 + 512 * (place % 3),
            length: 4096 * u32::try_from(1 + place % 8).expect("small"),
            op: if place.is_multiple_of(5) {
                Op::Trim
            } else {
                Op::Read
            },
            contents: &[],
        };
        writer.push(&request).expect("written");
    }
    writer.finish().expect("finished").0
}

#[test]
fn gaps_change_jumps_and_nothing_else() {
    let original = sparse();
    let stat = |gaps: f64| {
        let knobs = Knobs {
            gaps,
            ..Knobs::default()
        };
        of(&made(&original, &knobs, 20_000))
    };
    let plain = stat(1.0);
    for factor in [0.01, 0.1, 3.0, 50.0] {
        let other = stat(factor);
        assert_eq!(other.counts, plain.counts);
        for (own, of) in [
            (&other.block_reuse, &plain.block_reuse),
            (&other.run_length, &plain.run_length),
        ] {
            assert!(own.steps().eq(of.steps()), "{factor}");
        }
        for part in [0.1, 0.5, 0.9] {
            let [jump, before] = [&other, &plain].map(|of| of.jump.percentile(part) as f64);
            // Of 2,000 blocks 5 are accessed, and these stay.
            let expected = before * (factor * 1_995.0 + 5.0) / 2_000.0;
            assert!(
                (jump / expected - 1.0).abs() < 0.1,
                "{factor}: {jump} {expected}"
            );
        }
    }
}

#[test]
fn gaps_beyond_all_volumes_are_refused() {
    let knobs = Knobs {
        gaps: 1e18,
        ..Knobs::default()
    };
    let file = sparse();
    let mut read = Original::default();
    let mut reader = Reader::new(&file[..]).expect("a trace");
    reader.for_each(|request| read.add(request)).expect("read");
    let volumes = reader.volumes().to_vec();
    let refused = twin(&read, &volumes, &knobs, 10, Vec::new(), None).expect_err("too far");
    assert!(
        refused.to_string().contains("bytes of a volume"),
        "{refused}"
    );
}

#[test]
fn four_together_are_as_one_in_a_quarter_of_the_cache() {
    let original = small();
    let [one, four] = [1, 4].map(|together| {
        let knobs = Knobs {
            together,
            window: 8,
            ..Knobs::default()
        };
        of(&made(&original, &knobs, 80_000))
    });
    assert_eq!(four.counts.blocks, one.counts.blocks);
    assert_eq!(four.counts.contents, one.counts.contents);
    for cache in [250, 500, 1_000, 2_000, 3_000] {
        let both = one.hit_ratios(cache).into_iter();
        for (one, four) in both.zip(four.hit_ratios(4 * cache)) {
            assert!((one - four).abs() < 0.01, "{cache}: {one} {four}");
        }
        assert!(four.hit_ratios(cache)[0] < 0.7 * one.hit_ratios(cache)[0]);
    }
}

#[test]
fn contents_are_true_to_their_bytes() {
    let mut seen = BTreeSet::new();
    for n in 0..200_u128 {
        let digest = Digest((n * n).to_le_bytes());
        let [mut one, mut other] = [[0; 4096], [1; 4096]];
        fill(digest, &mut one);
        fill(digest, &mut other);
        assert!(one == other);
        let zeros = one[16..].iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 60, "{zeros} zeros");
        assert!(seen.insert(one.to_vec()));
    }
}
