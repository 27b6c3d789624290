//! Personal playlists: the best hits, each from a while before to a while after, in whole segments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::index::Hit;
use crate::video::Video;
use crate::{Clip, Name};

/// How hits are cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How much of what comes before an event is shown.
    pub before: Duration,
    /// How much of what comes after.
    pub after: Duration,
    /// The most in all.
    pub length: Duration,
}

impl Default for Cut {
    fn default() -> Self {
        Self {
            before: Duration::from_secs(6),
            after: Duration::from_secs(6),
            length: Duration::from_secs(120),
        }
    }
}

/// The clips of the best hits that fit in the length, and how many hits are in them.
///
/// Hits come in their order. One that does not fit is passed over, for a shorter one may; segments that are
/// shown already take no time. Videos follow each other as they were imported; in each, time goes forward, and
/// clips that touch are one.
#[must_use]
pub fn cut<'a>(videos: &'a [Video], hits: &[Hit], how: Cut) -> (Vec<Clip<'a>>, usize) {
    let by_name: BTreeMap<&Name, &Video> =
        videos.iter().map(|video| (&video.name, video)).collect();
    let mut order: Vec<&Video> = Vec::new();
    let mut shown: BTreeMap<&Name, BTreeSet<u32>> = BTreeMap::new();
    let (most, before, after) = (ms(how.length), ms(how.before), ms(how.after));
    let (mut length, mut fitted) = (0_u64, 0);
    for hit in hits {
        let Some(video) = by_name.get(&hit.video) else {
            continue;
        };
        let at = hit.event.at_ms;
        let first = video.segment_at(at.saturating_sub(before));
        // What ends with a segment does not need the next one.
        let last = video.segment_at(at.saturating_add(after).saturating_sub(1).max(at));
        let of_video = shown.entry(&video.name).or_default();
        let room = most - length;
        let (mut new, mut more) = (Vec::new(), 0_u64);
        for segment in (first..=last).filter(|segment| !of_video.contains(segment)) {
            more += video.milliseconds(segment, 1);
            new.push(segment);
            // A film may be long, and what is shown of it short.
            if more > room {
                break;
            }
        }
        if more > room {
            continue;
        }
        if of_video.is_empty() {
            order.push(video);
        }
        of_video.extend(new);
        length += more;
        fitted += 1;
    }
    order.sort_by_key(|video| (video.starts_s, &video.name));
    let clips = order.into_iter().flat_map(|video| {
        let segments = shown.get(&video.name).cloned().unwrap_or_default();
        runs(&segments).into_iter().map(move |(first, count)| Clip {
            video,
            first,
            count,
        })
    });
    (clips.collect(), fitted)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Numbers that follow each other: the first of each row, and how many.
fn runs(numbers: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == *number => *count += 1,
            _ => runs.push((*number, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Event;
    use crate::video::tests::video;

    fn hit(video: &str, at_ms: u64) -> Hit {
        Hit {
            video: Name::parse(video).expect("a name"),
            number: 0,
            score: 1.0,
            event: Event {
                at_ms,
                kind: String::new(),
                players: Vec::new(),
                text: String::new(),
                fields: BTreeMap::new(),
            },
        }
    }

    fn clips(hits: &[Hit], seconds: u64) -> (Vec<(String, u32, u32)>, usize) {
        let videos = [video("a"), video("b")];
        let how = Cut {
            before: Duration::from_secs(2),
            after: Duration::from_secs(1),
            length: Duration::from_secs(seconds),
        };
        let (clips, fitted) = cut(&videos, hits, how);
        let clips = clips
            .iter()
            .map(|clip| (clip.video.name.to_string(), clip.first, clip.count));
        (clips.collect(), fitted)
    }

    #[test]
    fn the_best_hits_that_fit_are_shown_in_whole_segments() {
        let hits = [
            hit("b", 9000),
            hit("a", 12_500),
            hit("b", 2500),
            hit("a", 13_500),
            hit("no", 0),
        ];
        let of = |name: &str, first, count| (name.to_owned(), first, count);
        // 7 s to 10 s is segments 3 and 4; 10.5 s to 13.5 s is 5 and 6; 0.5 s to 3.5 s is 0 and 1; and
        // 11.5 s to 14.5 s adds one to what is there.
        let (all, fitted) = clips(&hits, 60);
        assert_eq!(all, [of("a", 5, 3), of("b", 0, 2), of("b", 3, 2)]);
        assert_eq!(fitted, 4);
        // In 10 s the third does not fit, but what the fourth adds does.
        let (some, fitted) = clips(&hits, 10);
        assert_eq!(some, [of("a", 5, 3), of("b", 3, 2)]);
        assert_eq!(fitted, 3);
        assert_eq!(clips(&hits, 1), (Vec::new(), 0));
        assert_eq!(clips(&[hit("a", 18_900)], 60).0, [of("a", 8, 2)]);
        assert_eq!(clips(&[hit("a", 0)], 60).0, [of("a", 0, 1)]);
    }

    proptest! {
        #[test]
        fn a_playlist_is_never_longer_than_asked(
            hits in proptest::collection::vec((0_u64..30_000, any::<bool>()), 0..30),
            most in 0_u64..60,
        ) {
            let videos = [video("a"), video("b")];
            let hits: Vec<Hit> = hits.iter().map(|(at, is_a)| hit(if *is_a { "a" } else { "b" }, *at)).collect();
            let how = Cut { length: Duration::from_secs(most), ..Cut::default() };
            let (clips, fitted) = cut(&videos, &hits, how);
            let length: u64 = clips.iter().map(Clip::milliseconds).sum();
            prop_assert!(length <= most * 1000);
            prop_assert!(fitted <= hits.len());
            let mut seen = BTreeSet::new();
            for clip in &clips {
                prop_assert!(clip.first + clip.count <= clip.video.segments);
                for segment in clip.first..clip.first + clip.count {
                    prop_assert!(seen.insert((clip.video.name.clone(), segment)));
                }
            }
        }
    }
}
