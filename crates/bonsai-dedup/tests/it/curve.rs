//! One pass for all sizes beside LRU at each size, and samples beside the truth.

use bonsai_dedup::cache::{Policy, hits};
use bonsai_dedup::curve::{Mattson, Shards};
use bonsai_dedup::distance::Distances;
use proptest::prelude::*;

fn naive(ids: &[u32]) -> Vec<Option<u32>> {
    let mut stack: Vec<u32> = Vec::new();
    let distances = ids.iter().map(|&id| {
        let found = stack.iter().rev().position(|&other| other == id);
        stack.retain(|&other| other != id);
        stack.push(id);
        found.map(|at| u32::try_from(at).unwrap())
    });
    distances.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// 700 blocks in 2,800 slots: they move together several times.
    #[test]
    fn distances_are_those_of_a_stack(ids in prop::collection::vec(prop_oneof![0_u32..700, 0_u32..30], 1..9_000)) {
        let mut distances = Distances::new(700);
        let seen: Vec<_> = ids.iter().map(|&id| distances.access(id)).collect();
        prop_assert_eq!(seen, naive(&ids));
    }

    #[test]
    fn a_curve_is_lru_at_each_size(ids in prop::collection::vec(0_u32..50, 1..600)) {
        let mut mattson = Mattson::new(50);
        mattson.access_all(&ids, |at| at % 3 == 0);
        let curve = mattson.finish();
        for size in 1..=51 {
            let at = curve.at(u64::from(size));
            prop_assert_eq!(at.reads + at.writes, hits(Policy::Lru, size, 50, &ids));
        }
        prop_assert_eq!(curve.at(0).reads, 0);
        prop_assert_eq!(curve.reads + curve.writes, ids.len() as u64);
    }
}

/// Ids by a power law of exponent one, by inverting its sum.
fn skewed(count: usize, ids: u32, seed: u64) -> Vec<u32> {
    let mut x = seed;
    let each = (0..count).map(|_| {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let unit = (x >> 11) as f64 / (1_u64 << 53) as f64;
        let id = f64::from(ids).powf(unit);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "below ids"
        )]
        let id = id as u32 - 1;
        id.wrapping_mul(2_654_435_761) % ids
    });
    each.collect()
}

/// Hot blocks outweigh the rest here: what SHARDS is known to get wrong without its adjustment.
#[test]
fn samples_are_near_the_truth_and_know_how_near() {
    const IDS: u32 = 1 << 18;
    let ids = skewed(3_000_000, IDS, 7);
    let mut mattson = Mattson::new(IDS);
    mattson.access_all(&ids, |_| false);
    let truth = mattson.finish();
    let mut shards = Shards::new(IDS, 20);
    shards.access_all(&ids, |_| false);
    let sampled = shards.finish();
    let mut within = 0;
    for size in 1..=40 {
        let blocks = size * 5_000;
        let wanted = truth.at(blocks).reads as f64 / truth.reads as f64;
        let found = sampled.reads_at(blocks);
        let off = (found.ratio - wanted).abs();
        assert!(off < 0.01, "{blocks}: {found:?}, not {wanted}");
        within += u32::from(off <= found.error);
    }
    assert!(within >= 30, "{within} of 40 within their bounds");
}
