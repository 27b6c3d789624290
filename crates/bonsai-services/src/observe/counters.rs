//! The counters of a service: by call, by class, and of what went unshaped.

use bonsai_calls::{CALLS, CLASSES, Call, Class, Selection};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{CallTotals, Ledger, Unshaped};
use bonsai_stats::LogHistogram;

use super::{CallView, ClassView, UnshapedView, Waits, kind};

/// The waits of all entries for which `which` holds.
pub(super) fn sum_waits(
    totals: &[CallTotals],
    which: impl Fn(&Call) -> bool,
) -> (LogHistogram, u64) {
    let mut delays = LogHistogram::default();
    let mut waited = 0_u64;
    for total in totals.iter().filter(|total| which(&CALLS[total.call])) {
        delays.merge(&total.delays);
        waited = waited.saturating_add(total.waited_ns);
    }
    (delays, waited)
}

/// What was counted for each entry that was called at least once.
pub fn calls_of(totals: &[CallTotals], longest_ns: u64) -> Vec<CallView> {
    let used = totals
        .iter()
        .filter(|total| total.calls > 0 || !total.delays.is_empty());
    used.map(|total| {
        let call = &CALLS[total.call];
        CallView {
            call: call.name,
            kind: kind(call.fd),
            number: call.nr,
            calls: total.calls,
            bytes: call.moves_bytes().then_some(total.bytes),
            waits: Waits::with_histogram(&total.delays, total.waited_ns).at_most(longest_ns),
        }
    })
    .collect()
}

/// The same by class, for each class that was used.
pub fn classes_of(totals: &[CallTotals], longest_ns: u64) -> Vec<ClassView> {
    let class_view = |class: Class| {
        let within = || {
            totals
                .iter()
                .filter(|total| CALLS[total.call].classes.contains(class))
        };
        let (delays, waited) = sum_waits(totals, |call| call.classes.contains(class));
        ClassView {
            class: class.name(),
            calls: within().fold(0, |sum, total| total.calls.saturating_add(sum)),
            bytes: Selection::Class(class)
                .moves_bytes()
                .then(|| within().fold(0, |sum, total| total.bytes.saturating_add(sum))),
            waits: Waits::of(&delays, waited).at_most(longest_ns),
        }
    };
    let views = CLASSES.iter().map(|(class, _, _)| class_view(*class));
    views.filter(|view| view.calls > 0).collect()
}

/// Why calls may have gone through without a decision: for scripts, and in words.
const UNSHAPED: [(Unshaped, &str, &str); 9] = [
    (
        Unshaped::Early,
        "early",
        "made before the library had found the ledger",
    ),
    (
        Unshaped::WaitFailed,
        "wait_failed",
        "the kernel refused the wait",
    ),
    (
        Unshaped::TooManyLimits,
        "too_many_limits",
        "under more limits than can be waited for together",
    ),
    (
        Unshaped::OtherNumber,
        "other_number",
        "a call site of libc was used for another call",
    ),
    (
        Unshaped::NotExtended,
        "not_extended",
        "made where the extension could not be loaded that decides on them",
    ),
    (
        Unshaped::NoStream,
        "no_stream",
        "under a limit per stream, with no room for a bucket of its stream",
    ),
    (
        Unshaped::NoPath,
        "no_path",
        "under a limit for paths, with a path that /proc does not tell",
    ),
    (
        Unshaped::NoGroup,
        "no_group",
        "the group could not be opened, or the service's place in it went to another",
    ),
    (
        Unshaped::Ring,
        "ring",
        "made through a ring that could not be looked into, or a command to a device in one",
    ),
];

/// Calls of a service that went through without a decision.
pub fn unshaped_of(ledger: &Ledger) -> Vec<UnshapedView> {
    let counters = &ledger.header.unshaped;
    let count = |i: usize| counters[i].load(Ordering::Relaxed);
    let known = UNSHAPED.map(|(why, reason, about)| UnshapedView {
        reason,
        about,
        calls: count(why as usize),
    });
    let is_known = |i: &usize| UNSHAPED.iter().any(|(why, _, _)| *why as usize == *i);
    let others = UnshapedView {
        reason: "other",
        about: "for a reason that this version of bonsai does not know",
        calls: (0..counters.len())
            .filter(|i| !is_known(i))
            .map(count)
            .fold(0, u64::saturating_add),
    };
    known
        .into_iter()
        .chain([others])
        .filter(|view| view.calls > 0)
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bonsai_calls::{READ_FILE, WRITE_FILE};

    /// Totals with these calls and bytes, and a wait of 1 ms for each entry named.
    pub(in crate::observe) fn totals(of: &[(u8, u64, u64)]) -> Vec<CallTotals> {
        let mut totals: Vec<CallTotals> = (0..CALLS.len())
            .map(|call| CallTotals {
                call,
                calls: 0,
                bytes: 0,
                delays: LogHistogram::default(),
                waited_ns: 0,
            })
            .collect();
        for (call, calls, bytes) in of {
            let total = &mut totals[usize::from(*call)];
            (total.calls, total.bytes) = (*calls, *bytes);
            total.delays.record(1_000_000);
            total.waited_ns = 1_000_000;
        }
        totals
    }

    #[test]
    fn classes_sum_their_calls_and_none_is_made_up() {
        let views = classes_of(
            &totals(&[(READ_FILE, 3, 600), (WRITE_FILE, 2, 50)]),
            u64::MAX,
        );
        let found: Vec<_> = views.iter().map(|v| (v.class, v.calls, v.bytes)).collect();
        let wanted = [
            ("all", 5, Some(650)),
            ("read", 3, Some(600)),
            ("write", 2, Some(50)),
            ("disk", 5, Some(650)),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn every_reason_has_its_own_words() {
        let mut numbers: Vec<usize> = UNSHAPED.iter().map(|(why, _, _)| *why as usize).collect();
        numbers.dedup();
        assert_eq!(numbers, (0..UNSHAPED.len()).collect::<Vec<_>>());
    }
}
