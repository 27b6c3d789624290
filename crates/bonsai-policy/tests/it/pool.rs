//! A flat pool, told guarantees, ceilings and weights, gives what the tree does.

use bonsai_policy::{Grant, Policy};
use proptest::prelude::*;

use crate::cases::{SEND, cases};

/// What a pool gives: guarantees first, then rounds by weight until nothing is left or nobody
/// wants more.
fn pool(grants: &[Grant], capacity: f64) -> Vec<f64> {
    let most = |grant: &Grant| {
        let demand = grant.demand.unwrap_or(u64::MAX) as f64;
        demand.min(grant.ceiling.unwrap_or(u64::MAX) as f64)
    };
    let mut got: Vec<f64> = grants
        .iter()
        .map(|g| most(g).min(g.guarantee as f64))
        .collect();
    // Each round fills somebody, or gives out what is left; some of them for the sake of rounding.
    for _ in 0..2 * grants.len() {
        let left = capacity - got.iter().sum::<f64>();
        let open: Vec<usize> = (0..grants.len())
            .filter(|&i| most(&grants[i]) - got[i] > 1e-6)
            .collect();
        let weights: f64 = open.iter().map(|&i| f64::from(grants[i].weight)).sum();
        if open.is_empty() || left <= 0.0 {
            break;
        }
        let full = |&i: &usize| (most(&grants[i]) - got[i]) / f64::from(grants[i].weight);
        let level = open.iter().map(full).fold(left / weights, f64::min);
        for i in open {
            got[i] += level * f64::from(grants[i].weight);
        }
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_flat_pool_gives_the_shares_of_the_tree(case in cases(4, 10)) {
        let mut policy = Policy::new(case.config()).expect("a good configuration");
        let allocation = policy.decide(&case.observation());
        let grants: Vec<Grant> = allocation.services.iter().map(|s| s.grants[SEND]).collect();
        let capacity = case.capacity as f64;
        for (grant, got) in grants.iter().zip(pool(&grants, capacity)) {
            let share = grant.share.expect("a share") as f64;
            // Weights are whole thousandths of the heaviest, of ten services at most.
            prop_assert!((share - got).abs() <= capacity * 0.01 + 2.0, "{share}, by the pool {got}: {grants:?}");
        }
    }
}
