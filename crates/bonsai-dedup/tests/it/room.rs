//! Who gives way when the map is full, and what zeroes cost.

use bonsai_dedup::drive::{Config, Content, DriveMap, Group, How, Source, Volume, Why};
use proptest::prelude::*;

type Map = DriveMap<[u32; 3]>;

const MOST: usize = 1 << 19;

fn key(of: u64) -> Content<[u32; 3]> {
    let of = of.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let half = |of: u64| u32::try_from(of & 0xffff_ffff).unwrap();
    Content::Key([half(of), half(of >> 32), 7])
}

/// What a guest does that learns without end.
#[derive(Clone, Copy, Debug)]
enum Greed {
    /// Blocks one after the other, each with a content of its own.
    Distinct,
    /// One block in each page.
    Sparse,
    /// One block in each gibibyte.
    Far,
    /// Every second block is zeroes.
    Holes,
    /// One content everywhere.
    Same,
    /// What the other one has, over and over.
    Copies,
    /// All of it in turns.
    All,
}

const GREEDS: [Greed; 7] = [
    Greed::Distinct,
    Greed::Sparse,
    Greed::Far,
    Greed::Holes,
    Greed::Same,
    Greed::Copies,
    Greed::All,
];

impl Greed {
    fn step(self, map: &mut Map, volume: Volume, n: u64) {
        let far = 1 << 40;
        let kind = match self {
            Self::All => GREEDS[usize::try_from(n / 1_000 % 6).unwrap()],
            kind => kind,
        };
        match kind {
            Self::Distinct => map.learn(volume, n, key(far + n), How::Write),
            Self::Sparse => map.learn(volume, n * 256 + n % 256, key(far + n), How::Read),
            Self::Far => map.learn(volume, (n % 16_000) << 18 | n, key(far + n), How::Read),
            Self::Holes => map.learn(volume, 2 * n, Content::Zero, How::Read),
            Self::Same => map.learn(volume, n, key(far), How::Write),
            Self::Copies => map.learn(volume, n, key(n % 1_000), How::Write),
            Self::All => unreachable!("it is one of the others in turns"),
        };
    }
}

/// Others know so much that they hold less than their share: they keep every block.
fn keeps_all(greed: Greed, same_group: bool, greedy: usize, first: u64) {
    let mut map = Map::new(Config::bounded(MOST));
    let quiet = map.add_volume(Group(0)).unwrap();
    let group = |n: usize| {
        if same_group {
            0
        } else {
            u32::try_from(n).unwrap() + 1
        }
    };
    let many: Vec<_> = (0..greedy)
        .map(|n| map.add_volume(Group(group(n))).unwrap())
        .collect();
    let turn = |map: &mut Map, range: std::ops::Range<u64>| {
        for n in range {
            for &volume in &many {
                greed.step(map, volume, n);
            }
        }
    };
    // They have all of it at first, and give it back.
    turn(&mut map, 0..first);
    let share = MOST / (greedy + 1);
    let mut blocks = 0;
    while map.held(quiet) + 8 * Map::page_bytes() < share * 3 / 5 {
        map.learn(quiet, blocks, key(blocks), How::Scan);
        blocks += 1;
    }
    let known = |map: &Map| {
        (0..blocks)
            .filter(|at| map.content(quiet, *at).is_some())
            .count() as u64
    };
    assert_eq!(known(&map), blocks, "{greed:?}: its share is given back");
    turn(&mut map, first..first + 12_000 / greedy as u64);
    map.check_invariants();
    assert_eq!(known(&map), blocks, "{greed:?} costs others nothing");
    assert!(blocks > 500, "{blocks}");
}

#[test]
fn who_learns_without_end_costs_others_nothing() {
    for greed in GREEDS {
        for same_group in [false, true] {
            for first in [0, 8_000] {
                keeps_all(greed, same_group, 1, first);
            }
        }
    }
}

#[test]
fn many_small_volumes_cost_others_nothing() {
    for greed in [Greed::Distinct, Greed::Sparse, Greed::Holes] {
        keeps_all(greed, false, 3, 4_000);
        // Of one group, they have one share together.
        let mut map = Map::new(Config::bounded(MOST));
        let quiet = map.add_volume(Group(0)).unwrap();
        let many: Vec<_> = (0..40).map(|_| map.add_volume(Group(1)).unwrap()).collect();
        let blocks = 0..4_500_u64;
        for block in blocks.clone() {
            map.learn(quiet, block, key(block), How::Scan);
        }
        for n in 0..1_500 {
            many.iter()
                .for_each(|&volume| greed.step(&mut map, volume, n));
        }
        map.check_invariants();
        assert!(
            blocks
                .into_iter()
                .all(|at| map.content(quiet, at).is_some())
        );
    }
}

/// What nobody else wants is lent; when all want more than there is, all have as much.
#[test]
fn shares_are_lent_and_even() {
    let mut map = Map::new(Config::bounded(MOST));
    let volumes: Vec<_> = [0, 1, 1, 2]
        .map(|group| map.add_volume(Group(group)).unwrap())
        .into();
    for n in 0..30_000 {
        Greed::Distinct.step(&mut map, volumes[0], n);
    }
    assert!(
        map.held(volumes[0]) > MOST * 3 / 4,
        "{}",
        map.held(volumes[0])
    );
    for n in 0..30_000 {
        for (volume, greed) in volumes.iter().zip([
            Greed::Distinct,
            Greed::Sparse,
            Greed::Distinct,
            Greed::Distinct,
        ]) {
            greed.step(&mut map, *volume, n);
        }
    }
    map.check_invariants();
    let held: Vec<_> = volumes.iter().map(|of| map.held(*of)).collect();
    let groups = [held[0], held[1] + held[2], held[3]];
    let (least, most) = (groups.iter().min().unwrap(), groups.iter().max().unwrap());
    assert!(most - least < 32 << 10, "{groups:?}");
    assert!(held[1].abs_diff(held[2]) < 16 << 10, "{held:?}");
}

#[test]
fn zeroes_cost_a_bit_each_at_most() {
    let mut map = Map::new(Config::bounded(64 << 20));
    let volume = map.add_volume(Group(0)).unwrap();
    let before = map.bytes();
    let all = 1 << 28;
    // In so many steps, of which one takes some nanoseconds.
    assert_eq!(map.enter_zeroes(volume, 0..all, How::Write, 4_096), all);
    assert_eq!(map.known_blocks(), all);
    assert!(map.bytes() - before < 32 << 10, "{}", map.bytes() - before);
    map.check_invariants();
    // Every second block of 16 GiB is written.
    for block in (0..1 << 22).step_by(2) {
        map.overwrite(volume, block);
    }
    map.check_invariants();
    let bytes = map.bytes() - before;
    assert!(bytes * 8 < 2 * (1 << 22), "{bytes} bytes");
    assert_eq!(map.peek(volume, 2), Source::Itself(Why::Unknown));
    assert_eq!(map.peek(volume, 3), Source::Zero);
    map.forget_volume(volume);
    assert_eq!(map.known_blocks(), 0);
    while map.reclaim(1_000) {}
    map.check_invariants();
    assert!(map.bytes() - before < 32 << 10, "{}", map.bytes() - before);
}

/// Whatever is known, one operation takes a bounded number of steps; here, beside one that knows little.
#[test]
fn what_is_forgotten_is_out_of_sight_at_once_and_goes_in_slices() {
    let mut map = Map::new(Config::bounded(64 << 20));
    let gone = map.add_volume(Group(0)).unwrap();
    let other = map.add_volume(Group(0)).unwrap();
    for block in 0..200_000 {
        map.learn(gone, block, key(block / 2), How::Scan);
    }
    for block in 0..1_000 {
        map.learn(other, block, key(block / 3), How::Scan);
        map.learn(gone, block, key(block / 3), How::Scan);
    }
    let known = map.known_blocks();
    map.forget_volume(gone);
    assert_eq!(map.known_blocks(), known - 200_000);
    let check = |map: &Map| {
        for block in 0..1_000 {
            match map.peek(other, block) {
                Source::Leader { volume, block } => assert!(volume == other || block >= 300_000),
                Source::Itself(why) => assert!(why.is_known()),
                Source::Zero => panic!("no zeroes"),
            }
            assert_eq!(map.content(other, block), Some(key(block / 3)));
            assert_eq!(map.peek(gone, block), Source::Itself(Why::Unknown));
        }
    };
    check(&map);
    let mut slices = 0;
    while map.reclaim(1_000) {
        slices += 1;
        if slices % 50 == 0 {
            check(&map);
            map.check_invariants();
        }
        // It can be known again meanwhile.
        map.learn(gone, 300_000 + slices, key(slices), How::Read);
    }
    assert!(slices > 50, "{slices}");
    map.check_invariants();
}

/// A content that is everywhere, whose blocks leave it from the bottom.
#[test]
fn a_content_with_too_many_blocks_is_forgotten_in_slices() {
    let mut map = Map::new(Config::bounded(64 << 20));
    let volume = map.add_volume(Group(0)).unwrap();
    for block in 0..100_000 {
        map.learn(volume, block, key(1), How::Scan);
    }
    map.overwrite(volume, 0);
    assert_eq!(map.counters().too_long, 1);
    assert_eq!(map.content(volume, 99_999), None);
    assert_eq!(map.peek(volume, 50_000), Source::Itself(Why::Evicted));
    map.check_invariants();
    assert!(map.blocks_with_contents() > 99_000, "not at once");
    assert_eq!(map.contents(), 0);
    let mut learned = 0;
    while map.blocks_with_contents() > learned + 1_000 {
        map.learn(volume, 200_000 + learned, key(learned), How::Read);
        learned += 1;
    }
    assert!((1_000..3_000).contains(&learned), "{learned}");
    while map.reclaim(100) {}
    map.check_invariants();
    map.learn(volume, 5, key(5), How::Read);
    assert_eq!(map.content(volume, 5), Some(key(5)));
}

/// Numbers of contents are given back while one of them has too many blocks for that to be done at once, or at all.
#[test]
fn numbers_that_are_given_back_in_parts_are_given_out_again() {
    for long in [2_000, 5_200, 9_000] {
        let mut map = Map::new(Config::bounded(64 << 20));
        let volume = map.add_volume(Group(0)).unwrap();
        let mut block = 0;
        let mut learn = |map: &mut Map, content, times| {
            let first = block;
            for _ in 0..times {
                map.learn(volume, block, key(content), How::Write);
                block += 1;
            }
            first
        };
        let deep = learn(&mut map, 1, long) + long / 2;
        let unique = learn(&mut map, 2, 1);
        for content in 3..6_145 {
            learn(&mut map, content, 1);
        }
        for content in 10_000..10_512 {
            learn(&mut map, content, 40);
        }
        for at in unique..unique + 6_143 {
            map.trimmed(volume, at);
        }
        map.check_invariants();
        map.overwrite(volume, deep);
        for content in 20_000..40_000 {
            learn(&mut map, content, 1);
            if content % 997 == 0 {
                map.check_invariants();
            }
        }
        map.check_invariants();
        assert_eq!(map.content(volume, block - 1), Some(key(39_999)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Volumes of random groups do random things; one of them stays below its share, and keeps every block.
    #[test]
    fn below_its_share_a_volume_keeps_every_block(
        groups in prop::collection::vec(0..3_u32, 1..5),
        steps in prop::collection::vec((0..5_usize, 0..7_usize, 1..3_000_u64), 5..20),
    ) {
        let mut map = Map::new(Config::bounded(MOST));
        let quiet = map.add_volume(Group(0)).unwrap();
        let others: Vec<_> = groups.iter().map(|g| map.add_volume(Group(*g)).unwrap()).collect();
        let all: std::collections::BTreeSet<_> = groups.iter().chain([&0]).collect();
        let inside = groups.iter().filter(|g| **g == 0).count() + 1;
        let share = MOST / all.len() / inside;
        let mut blocks = 0;
        let mut n = 0;
        for (volume, greed, count) in steps {
            for _ in 0..count {
                n += 1;
                GREEDS[greed].step(&mut map, others[volume % others.len()], n);
            }
            for _ in 0..count / 8 {
                if map.held(quiet) + 8 * Map::page_bytes() < share * 3 / 5 {
                    map.learn(quiet, blocks, key(blocks), How::Scan);
                    blocks += 1;
                }
            }
            let known = (0..blocks).filter(|at| map.content(quiet, *at).is_some()).count();
            prop_assert_eq!(known as u64, blocks);
        }
        map.check_invariants();
    }
}
