//! What the models of the ledger and of groups have in common.

use bonsai_bucket::Curve;

pub(crate) const S: u64 = 1_000_000_000;

/// A thousand units per second, 10 of them at once.
pub(crate) const CURVE: Curve = Curve {
    rate_milli: 1_000_000,
    burst: 10,
    anchor_units: 0,
    anchor_fraction: 0,
    anchor_ns: 0,
};

/// Lets nothing through, ever.
pub(crate) const SHUT: Curve = Curve {
    rate_milli: 0,
    burst: 0,
    ..CURVE
};

/// Every order in which threads are switched at most `preemptions` times while
/// they could go on; `None` for every order.
pub(crate) fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 5_000;
    builder.check(body);
}
