//! Leases of streams: what a stream may be ahead, and what is counted of it.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_ledger::{Ledger, ProcessId, Scope, Wanted};
use common::{Random, S, Scratch, select};

const IDENTITY: u64 = 77;

/// The process that uses a stream first.
const FIRST: ProcessId = ProcessId {
    pid: 1,
    namespace: 0,
};

/// Sets a limit per stream, in bytes, at `now`; the epoch from then on.
fn set(ledger: &Ledger, rate: u64, burst: u64, now: u64) -> u32 {
    let mut editor = ledger.edit(now).expect("the lock");
    let wanted = Wanted {
        name: "send/stream",
        selection: select("send"),
        bytes: true,
        rate_milli: rate * 1000,
        burst,
        per_stream: true,
        scope: Scope::default(),
    };
    editor.put(&wanted).expect("a limit per stream");
    editor.commit()
}

/// A stream's line under the first limit.
fn line(ledger: &Ledger, now: u64) -> (usize, u8) {
    let line = ledger.stream(IDENTITY, 0, (FIRST, 3), now, |_| true);
    (line.expect("room for it"), 0)
}

/// Takes units as a call does: of the lease, with a new one, or without; false for none.
fn take(ledger: &Ledger, line: (usize, u8), units: u64, epoch: u32, now: u64) -> bool {
    if ledger.use_stream_lease(line.0, epoch, units)
        || ledger.take_stream_lease(line, units, (epoch, now))
    {
        return true;
    }
    let is_due = ledger.take_stream_due(line, units, now);
    if is_due {
        ledger.streams[line.0].note(units, 0);
    }
    is_due
}

fn used(ledger: &Ledger, now: u64) -> u64 {
    ledger
        .streams(0, now)
        .iter()
        .map(|stream| stream.used)
        .sum()
}

/// Whatever a stream asks for, and whenever: over no window is it further ahead than by its
/// burst, and what is counted is what went through.
#[test]
fn no_window_of_a_stream_has_more_than_its_burst_and_its_rate() {
    for seed in 0..40 {
        let random = &mut Random(seed);
        let scratch = Scratch::new();
        let ledger = &scratch.ledger;
        let (rate, burst) = (
            1_000_000 + random.below(9_000_000),
            10_000 + random.below(90_000),
        );
        let epoch = set(ledger, rate, burst, S);
        let mut now = S;
        let line = line(ledger, now);
        let mut went: Vec<(u64, u64)> = Vec::new();
        for _ in 0..400 {
            now += match random.below(4) {
                0 => 0,
                1 => random.below(20_000_000),
                _ => random.below(300_000),
            };
            let most = [burst, 600, 600][usize::try_from(random.below(3)).expect("below 3")];
            let units = 1 + random.below(most);
            if take(ledger, line, units, epoch, now) {
                // Some of it may come back, as of a short call.
                let back = if random.below(4) == 0 {
                    random.below(units)
                } else {
                    0
                };
                if back > 0 {
                    ledger.return_to_stream(line.0, back);
                }
                went.push((now, units - back));
            }
        }
        let total: u64 = went.iter().map(|(_, units)| units).sum();
        assert_eq!(used(ledger, now), total, "seed {seed}");
        for (i, (from, _)) in went.iter().enumerate() {
            let mut sum = 0;
            for (at, units) in &went[i..] {
                sum += units;
                let most = u128::from(rate) * u128::from(at - from) / u128::from(S);
                let most = most + u128::from(burst) + 1;
                assert!(u128::from(sum) <= most, "seed {seed}: {sum} > {most}");
            }
        }
    }
}

#[test]
fn a_lease_ends_with_its_limits_and_is_not_counted_as_used() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let before = set(ledger, 10_000_000, 200_000, S);
    let now = 2 * S;
    let line = line(ledger, now);
    assert!(ledger.take_stream_lease(line, 1000, (before, now)));
    let lease = ledger.stream_lease(line, IDENTITY, before);
    assert!((1000..=100_000).contains(&lease), "{lease}");
    assert_eq!(used(ledger, now), 1000);
    assert!(ledger.use_stream_lease(line.0, before, 500));
    assert_eq!(used(ledger, now), 1500);
    assert_eq!(
        ledger.stream_lease(line, IDENTITY + 1, before),
        0,
        "another's"
    );

    let after = set(ledger, 9_000_000, 200_000, now);
    assert_eq!(ledger.stream_lease(line, IDENTITY, after), 0);
    assert!(!ledger.use_stream_lease(line.0, after, 1));
    assert!(
        !ledger.take_stream_lease(line, 1000, (before, now)),
        "an old epoch"
    );
    let later = now + S;
    assert!(ledger.take_stream_lease(line, 1000, (after, later)));
    assert_eq!(
        used(ledger, later),
        2500,
        "what was left of the old one was not used"
    );
}

#[test]
fn a_stream_that_is_held_back_has_no_lease() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    let epoch = set(ledger, 1_000_000, 20_000, S);
    let now = 2 * S;
    let line = line(ledger, now);
    assert!(
        ledger.take_stream_due(line, 9_000, now),
        "nearly all there is"
    );
    assert!(!ledger.take_stream_lease(line, 500, (epoch, now)));
    assert_eq!(ledger.stream_lease(line, IDENTITY, epoch), 0);
    assert!(ledger.take_stream_due(line, 500, now), "nothing was taken");
}
