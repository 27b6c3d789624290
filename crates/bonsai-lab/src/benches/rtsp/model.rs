//! What other limiters would make of the packets that came without a limit: the
//! least that any limiter of that rate and burst must do, and the paper's way.

use super::viewer::Arrivals;

/// A packet: whose, when (us), how many bytes.
type Packet = (usize, u64, f64);

/// All viewers' packets by time.
fn merged(viewers: &[Arrivals]) -> Vec<Packet> {
    let mut all: Vec<Packet> = Vec::new();
    for (viewer, arrivals) in viewers.iter().enumerate() {
        let mut at = 0;
        for (us, bytes) in arrivals.us.iter().zip(&arrivals.bytes) {
            at += us;
            all.push((viewer, at, *bytes as f64));
        }
    }
    all.sort_by_key(|(_, at, _)| *at);
    all
}

/// The longest time between two packets of a viewer, ms, where the packets leave at
/// the instants (us) that `leave` says.
fn longest_gap(viewers: &[Arrivals], mut leave: impl FnMut(f64, f64) -> f64) -> f64 {
    let mut last = vec![None; viewers.len()];
    let mut longest = 0.0_f64;
    for (viewer, at, bytes) in merged(viewers) {
        let left = leave(at as f64, bytes);
        if let Some(before) = last[viewer].replace(left) {
            longest = longest.max(left - before);
        }
    }
    longest / 1e3
}

/// A bucket that decides on each packet alone, first come, first served, and is
/// never late. It is full at the start.
pub(super) fn ideal(viewers: &[Arrivals], bytes_per_sec: f64, burst_us: f64) -> f64 {
    let mut due = 0.0_f64;
    longest_gap(viewers, |at, bytes| {
        due = due.max(at) + bytes / bytes_per_sec * 1e6;
        at.max(due - burst_us)
    })
}

/// A bucket that is filled with a second's worth once a second.
pub(super) fn each_second(viewers: &[Arrivals], bytes_per_sec: f64) -> f64 {
    const SECOND: f64 = 1e6;
    let (mut second, mut left) = (0.0_f64, bytes_per_sec);
    longest_gap(viewers, |at, bytes| {
        if at >= second + SECOND {
            second = (at / SECOND).floor() * SECOND;
            left = bytes_per_sec;
        }
        if left < bytes {
            second += SECOND;
            left = bytes_per_sec;
        }
        left -= bytes;
        at.max(second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of 1,000 bytes each 10 ms for `ms`.
    fn steady(ms: u64) -> Arrivals {
        let count = usize::try_from(ms / 10).expect("small");
        Arrivals {
            us: vec![10_000; count],
            bytes: vec![1_000; count],
            ..Arrivals::default()
        }
    }

    fn is(measured: f64, expected: f64) -> bool {
        (measured - expected).abs() < 1e-6
    }

    #[test]
    fn a_limit_above_the_rate_of_a_steady_stream_changes_nothing() {
        let viewers = [steady(3_000)];
        assert!(is(ideal(&viewers, 100_000.0, 0.0), 10.0));
        assert!(is(each_second(&viewers, 100_000.0), 10.0));
    }

    #[test]
    fn below_it_the_stream_is_slow_or_has_holes() {
        // Two of 100 kB/s each at 160 kB/s.
        let both = |ms| [steady(ms), steady(ms)];
        let gap = ideal(&both(5_000), 160_000.0, 0.0);
        assert!(is(gap, 12.5), "{gap}");
        // A second's worth has come after 800 ms; in the next second it is less by what
        // had to wait, and after five nothing is left but what had to wait.
        for (ms, hole) in [(1_500, 200.0), (1_990, 400.0), (6_000, 1_000.0)] {
            let gap = each_second(&both(ms), 160_000.0);
            assert!((hole..=hole + 10.0).contains(&gap), "{ms}: {gap}");
        }
    }

    #[test]
    fn a_burst_passes_what_a_key_frame_needs() {
        let viewers = [Arrivals {
            us: vec![0, 40_000, 0, 0, 0],
            bytes: vec![1_000; 5],
            ..Arrivals::default()
        }];
        assert!(is(ideal(&viewers, 50_000.0, 80_000.0), 40.0));
        assert!(is(ideal(&viewers, 10_000.0, 0.0), 100.0));
        assert!(is(ideal(&viewers, 10_000.0, 460_000.0), 40.0));
    }
}
