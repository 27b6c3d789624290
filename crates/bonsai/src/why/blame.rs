//! Which limit the waits of a call are to be blamed on. Pure: no clock, no I/O.
//!
//! The ledger counts waits by call. Where one limit is on the call, they are its; of
//! several, they are shared out by which one threads were seen waiting for.

use std::collections::BTreeMap;

use bonsai_calls::CallId;

use super::judge::LimitTime;

/// A limit in force.
#[derive(Clone, Debug)]
pub(crate) struct Blamed {
    /// Its bucket.
    pub(crate) bucket: usize,
    /// Its name.
    pub(crate) name: String,
    /// Its rate for people, without blanks.
    pub(crate) rate: String,
    /// The calls it is on.
    pub(crate) calls: Vec<CallId>,
    /// How long its line is now, s.
    pub(crate) line_s: f64,
}

/// Threads seen waiting with a call for a bucket.
pub(crate) type Sightings = BTreeMap<(CallId, usize), u32>;

/// The time waited for each limit, and for limits that are in force no more, ns.
pub(crate) fn blame(
    waited: &[(CallId, u64)],
    seen: &Sightings,
    limits: &[Blamed],
) -> (Vec<LimitTime>, u64) {
    let mut times: Vec<LimitTime> = limits
        .iter()
        .map(|limit| LimitTime {
            name: limit.name.clone(),
            rate: limit.rate.clone(),
            waited_ns: 0,
        })
        .collect();
    let mut lifted_ns = 0_u64;
    for (call, ns) in waited.iter().filter(|(_, ns)| *ns > 0) {
        let on = |i: &usize| limits[*i].calls.contains(call);
        let candidates: Vec<usize> = (0..limits.len()).filter(on).collect();
        let sightings = |i: usize| seen.get(&(*call, limits[i].bucket)).copied().unwrap_or(0);
        let all: u32 = candidates.iter().map(|i| sightings(*i)).sum();
        if candidates.is_empty() {
            lifted_ns = lifted_ns.saturating_add(*ns);
        } else if all == 0 {
            let longest = |a: &usize, b: &usize| limits[*a].line_s.total_cmp(&limits[*b].line_s);
            if let Some(i) = candidates.into_iter().max_by(longest) {
                times[i].waited_ns = times[i].waited_ns.saturating_add(*ns);
            }
        } else {
            for i in candidates {
                let part = u128::from(*ns) * u128::from(sightings(i)) / u128::from(all);
                let part = u64::try_from(part).unwrap_or(u64::MAX);
                times[i].waited_ns = times[i].waited_ns.saturating_add(part);
            }
        }
    }
    (times, lifted_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonsai_calls::{READ_FILE, READ_SOCKET, WRITE_FILE};

    fn limit(bucket: usize, name: &str, calls: &[CallId], line_s: f64) -> Blamed {
        Blamed {
            bucket,
            name: name.to_owned(),
            rate: "1MB/s".to_owned(),
            calls: calls.to_vec(),
            line_s,
        }
    }

    fn times(waited: &[(CallId, u64)], seen: &[((CallId, usize), u32)]) -> (Vec<u64>, u64) {
        let limits = [
            limit(4, "read", &[READ_FILE], 1.0),
            limit(7, "all", &[READ_FILE, READ_SOCKET], 2.0),
        ];
        let (times, lifted) = blame(waited, &seen.iter().copied().collect(), &limits);
        (times.iter().map(|time| time.waited_ns).collect(), lifted)
    }

    #[test]
    fn waits_go_to_the_limit_that_was_waited_for() {
        // One limit on the call.
        assert_eq!(times(&[(READ_SOCKET, 10)], &[]), (vec![0, 10], 0));
        // Two, and sightings of both; those of other calls do not count.
        let seen = [
            ((READ_FILE, 4), 3),
            ((READ_FILE, 7), 1),
            ((READ_SOCKET, 7), 9),
        ];
        assert_eq!(times(&[(READ_FILE, 100)], &seen), (vec![75, 25], 0));
        // Two, and none: the one with the longer line.
        assert_eq!(times(&[(READ_FILE, 100)], &[]), (vec![0, 100], 0));
        // None any more.
        assert_eq!(
            times(&[(WRITE_FILE, 5), (READ_FILE, 0)], &[]),
            (vec![0, 0], 5)
        );
    }
}
