//! When viewers come, what each watches, and for how long.

use std::sync::Arc;
use std::time::Duration;

use bonsai_stats::SplitMix64;

use crate::clock::nanos;

/// How viewers come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// All at once: what a server sees when a match begins.
    Crowd,
    /// At equal distances, so many a second.
    Even(f64),
    /// By chance, so many a second on average (Poisson).
    Poisson(f64),
    /// At times that are given, in order.
    Trace(Arc<[Coming]>),
}

/// A viewer whose time is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coming {
    /// When it comes, nanoseconds from the beginning.
    pub at_ns: u64,
    /// Which of the videos it watches, from 0 on; `None` for that whose turn it is.
    pub video: Option<usize>,
    /// For how long, nanoseconds; `None` for as long as others.
    pub length_ns: Option<u64>,
}

/// A viewer of whom all is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    /// When it comes, nanoseconds from the beginning.
    pub(crate) at_ns: u64,
    /// Which of the videos it watches.
    pub(crate) video: usize,
    /// For how long, at most, nanoseconds.
    pub(crate) length_ns: u64,
}

impl Arrivals {
    /// When each comes, nanoseconds from the beginning, in order; of a trace no more than it has.
    #[must_use]
    pub fn times(&self, viewers: u32, seed: u64) -> Vec<u64> {
        let mut random = SplitMix64::new(seed);
        let mut at = 0.0;
        let mut next = |step: f64| {
            let now = at;
            at += step;
            now
        };
        let mut each = |step: &mut dyn FnMut() -> f64| -> Vec<u64> {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "nanoseconds from the beginning on"
            )]
            (0..viewers).map(|_| next(step()) as u64).collect()
        };
        match self {
            Self::Crowd => each(&mut || 0.0),
            Self::Even(per_sec) => each(&mut || 1e9 / per_sec),
            Self::Poisson(per_sec) => each(&mut || -unit(&mut random).ln() * 1e9 / per_sec),
            Self::Trace(trace) => trace
                .iter()
                .zip(0..viewers)
                .map(|(one, _)| one.at_ns)
                .collect(),
        }
    }

    /// Each of them: of so many videos the next viewer watches the next, where a trace does not say which, as long
    /// as is said of all, where it does not say how long. Of no video nobody is a viewer.
    pub(crate) fn guests(
        &self,
        viewers: u32,
        videos: usize,
        length: Duration,
        seed: u64,
    ) -> Vec<Guest> {
        let said = |place: usize| match self {
            Self::Trace(trace) => trace.get(place).copied().unwrap_or_default(),
            _ => Coming::default(),
        };
        let times = self.times(viewers, seed).into_iter().enumerate();
        let guests = times.filter_map(|(place, at_ns)| {
            let said = said(place);
            Some(Guest {
                at_ns,
                video: said
                    .video
                    .filter(|video| *video < videos)
                    .or_else(|| place.checked_rem(videos))?,
                length_ns: said.length_ns.unwrap_or_else(|| nanos(length)),
            })
        });
        guests.collect()
    }
}

/// Those of them that one of so many threads has.
pub(crate) fn part(guests: &[Guest], thread: u32, threads: u32) -> Vec<Guest> {
    let every = usize::try_from(threads).unwrap_or(1).max(1);
    let skip = usize::try_from(thread).unwrap_or(0);
    guests.iter().copied().skip(skip).step_by(every).collect()
}

/// A number above 0 and up to 1.
#[expect(clippy::cast_precision_loss, reason = "it has 53 bits")]
fn unit(random: &mut SplitMix64) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn they_come_as_it_is_said() {
        assert_eq!(Arrivals::Crowd.times(3, 1), [0, 0, 0]);
        assert_eq!(
            Arrivals::Even(4.0).times(3, 1),
            [0, 250_000_000, 500_000_000]
        );
        let times = Arrivals::Poisson(100.0).times(10_001, 1);
        assert!(times.is_sorted() && times[0] == 0);
        let mean = times[10_000] as f64 / 1e4;
        assert!((mean / 1e7 - 1.0).abs() < 0.05, "{mean}");
        assert_eq!(times, Arrivals::Poisson(100.0).times(10_001, 1));
    }

    #[test]
    fn viewers_watch_videos_in_turns() {
        let videos = |viewers, videos| -> Vec<usize> {
            let guests = Arrivals::Crowd.guests(viewers, videos, SECOND, 1);
            guests.iter().map(|guest| guest.video).collect()
        };
        assert_eq!(videos(5, 2), [0, 1, 0, 1, 0]);
        assert_eq!(videos(3, 40), [0, 1, 2]);
        assert!(videos(3, 0).is_empty());
    }

    #[test]
    fn a_trace_says_when_what_and_for_how_long_and_others_say_the_rest() {
        let line = |at_ns, video, length_ns| Coming {
            at_ns,
            video,
            length_ns,
        };
        let trace = [
            line(0, None, None),
            line(5, Some(0), Some(7)),
            line(9, None, None),
        ];
        let trace = Arrivals::Trace(trace.into());
        let guest = |at_ns, video, length_ns| Guest {
            at_ns,
            video,
            length_ns,
        };
        let guests = trace.guests(10, 2, SECOND, 1);
        let second = 1_000_000_000;
        assert_eq!(
            guests,
            [guest(0, 0, second), guest(5, 0, 7), guest(9, 0, second)]
        );
        assert_eq!(trace.guests(2, 2, SECOND, 1), guests[..2]);
        assert_eq!(part(&guests, 1, 2), guests[1..2]);
    }
}
