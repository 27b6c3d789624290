//! One pass for all sizes beside LRU at each size.

use bonsai_dedup::cache::{Policy, hits};
use bonsai_dedup::curve::Mattson;
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
