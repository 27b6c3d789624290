//! Buckets of streams.

use super::{CURVE, check, spawn};
use bonsai_bucket::Curve;
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{ProcessId, Segment, model};
use std::sync::Arc;

/// The process that uses a stream first.
const FIRST: ProcessId = ProcessId {
    pid: 1,
    namespace: 0,
};

/// A segment with a limit per stream, in bucket 0, and lines of these streams.
fn with_streams(curve: &Curve, identities: &[u64]) -> Arc<Segment> {
    let segment = model::segment();
    let config = &segment.configs[0];
    config.narrowed[0].store(1, Ordering::Relaxed);
    config.per_stream.store(1, Ordering::Relaxed);
    config.curves[0].store(curve, 0);
    for identity in identities {
        stream(&segment, *identity).expect("room for it");
    }
    Arc::from(segment)
}

fn stream(segment: &Segment, identity: u64) -> Option<usize> {
    segment.stream(identity, 0, (FIRST, 3), 0, |_| true)
}

#[test]
fn streams_that_come_together_have_lines_of_their_own() {
    check(Some(2), || {
        let segment = with_streams(&CURVE, &[]);
        let use_one = |segment: &Segment, identity: u64| {
            let line = stream(segment, identity).expect("two lines");
            // All of it, so that it is not idle.
            assert!(segment.take_stream_due((line, 0), 10, 0));
            line
        };
        let other = spawn(&segment, move |segment| use_one(segment, 6));
        let mine = use_one(&segment, 5);
        let other = other.join().expect("no panic");
        assert_ne!(mine, other);
        assert!(segment.is_stream(mine, 5, 0) && segment.is_stream(other, 6, 0));
        // Both are used up, and nobody else gets one.
        for line in [mine, other] {
            assert!(!segment.take_stream_due((line, 0), 1, 0));
        }
        assert_eq!(stream(&segment, 7), None);
    });
}

#[test]
fn an_idle_line_that_is_given_away_belongs_to_one_stream() {
    check(Some(2), || {
        let segment = with_streams(&CURVE, &[5, 6]);
        let taken = spawn(&segment, |segment| stream(segment, 7));
        let mine = stream(&segment, 5);
        let used = mine.is_some_and(|line| {
            segment.is_stream(line, 5, 0) && segment.take_stream_due((line, 0), 10, 0)
        });
        let theirs = taken.join().expect("no panic").expect("an idle one");
        assert!(segment.is_stream(theirs, 7, 0));
        if let Some(mine) = mine.filter(|mine| *mine != theirs) {
            // Not given away: what was taken from it is gone, and once.
            assert!(segment.is_stream(mine, 5, 0) && used);
            assert!(!segment.take_stream_due((mine, 0), 1, 0));
        }
        // One call's units at most are drawn on a line that was given away meanwhile.
        let left = segment.take_stream_due((theirs, 0), 10, 0);
        assert!(left || mine == Some(theirs));
    });
}

#[test]
fn a_lease_is_used_up_once() {
    check(Some(2), || {
        let segment = with_streams(&CURVE, &[5]);
        segment.configs[0].curves[0].store(&CURVE, 10);
        let epoch = segment.epoch();
        let line = stream(&segment, 5).expect("its line");
        // What the curve gives in a quantum is lent.
        assert!(segment.take_stream_lease((line, 0), 1, (epoch, 1)));
        assert_eq!(segment.stream_lease((line, 0), 5, epoch), 4);
        let other = spawn(&segment, move |segment| {
            segment.use_stream_lease(line, epoch, 3)
        });
        let mine = segment.use_stream_lease(line, epoch, 3);
        let other = other.join().expect("no panic");
        assert!(mine != other, "there is enough for one of them");
        assert_eq!(segment.stream_lease((line, 0), 5, epoch), 1);
        assert_eq!(segment.streams[line].used(), 4);
    });
}
