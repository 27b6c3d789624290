use std::sync::Arc;

use proptest::prelude::*;

use super::super::{Next, SECOND, Timeline};
use crate::clip::Clip;
use crate::clip::sketch::{Order, Shape, Sketch};

const MS: u64 = 1_000_000;

/// A picture, nanoseconds and ticks of RTP.
const PICTURE: u64 = 40 * MS;
const TICKS: u32 = 3_600;

fn clip(shape: &Shape) -> Arc<Clip> {
    let sketch = Sketch::of(shape);
    let bytes = u64::try_from(sketch.file.len()).expect("small");
    Arc::new(Clip::read(&sketch.movie, bytes).expect("a clip"))
}

/// Three qualities of ten seconds: `keys` pictures from one that decoding can begin with to the next.
fn film(orders: [Order; 3], keys: [u32; 3]) -> Timeline {
    let clips = [(0, 512, 4000), (1, 3600, 2000), (2, 1001, 1000)].map(|(quality, ticks, key)| {
        let shape = Shape {
            pictures: 250,
            keys: keys[quality],
            ticks,
            order: orders[quality],
            bytes: (key, key / 4),
        };
        clip(&shape)
    });
    let [best, lower @ ..] = clips;
    let mut timeline = Timeline::with_lower(best, lower.into());
    assert_eq!(timeline.add(0, 7, 65_000, 0xffff_ff00), 0);
    assert_eq!(timeline.qualities(0), 3);
    timeline
}

/// A picture that was sent: when, in which quality, whether decoding can begin with it, its number and
/// its timestamp from that of the clip's beginning on.
#[derive(Clone, Copy, Debug)]
struct Picture {
    at: u64,
    quality: usize,
    is_sync: bool,
    number: u16,
    shown: u32,
    late: u64,
}

/// Sends up to a time, and asks for qualities at times before that.
fn send(timeline: &mut Timeline, until: u64, asked: &[(u64, usize)]) -> Vec<Picture> {
    let mut asked = asked.iter().peekable();
    let mut sent = Vec::new();
    while let Some((at, next)) = timeline.next() {
        if at > until {
            break;
        }
        match next {
            Next::Sample(line) => {
                while let Some((_, quality)) = asked.next_if(|(from, _)| *from <= at) {
                    timeline.switch(line, *quality);
                }
                let (at, next) = timeline.next().expect("it plays");
                if next != Next::Sample(line) || at > until {
                    continue;
                }
                let header = timeline.header(line, 0, true);
                sent.push(Picture {
                    at,
                    quality: timeline.quality(line),
                    is_sync: timeline.sample(line).expect("it is next").is_sync(),
                    number: header.sequence,
                    shown: header.timestamp.wrapping_sub(0xffff_ff00),
                    late: timeline.late(line, at),
                });
                timeline.sent(line, 1, 100);
                timeline.advance(line, at);
            }
            Next::Report => {
                timeline.report(0, at, at);
            }
            Next::End => break,
        }
    }
    sent
}

/// That decoders can make sense of it: numbers go on, each quality begins with a picture that decoding
/// can begin with, behind all that was sent before, and nothing of what was sent before comes again. How
/// often it went over.
fn check(sent: &[Picture]) -> usize {
    let mut turns = 0;
    let mut not_before = 0;
    for two in sent.windows(2) {
        let [one, other] = two else { continue };
        assert_eq!(other.number, one.number.wrapping_add(1));
        assert!(other.at > one.at, "{one:?} {other:?}");
        if other.quality != one.quality {
            assert!(other.is_sync, "{other:?}");
            let before = sent.iter().filter(|of| of.at <= one.at);
            let latest = before.map(|of| of.shown).max().expect("one");
            assert!(
                other.shown >= latest + TICKS - 2,
                "{latest} and then {other:?}"
            );
            not_before = other.shown;
            turns += 1;
        }
        assert!(other.shown >= not_before, "{other:?}");
    }
    let mut times: Vec<u32> = sent.iter().map(|of| (of.shown + 2) / TICKS).collect();
    times.sort_unstable();
    assert!(times.windows(2).all(|two| two[0] < two[1]), "{times:?}");
    turns
}

#[test]
fn a_lower_quality_goes_on_at_its_next_picture_that_decoding_can_begin_with() {
    let mut timeline = film([Order::Shown; 3], [50, 30, 30]);
    timeline.play(None, None, 0);
    let sent = send(&mut timeline, u64::MAX, &[(SECOND, 1)]);
    assert_eq!((check(&sent), sent.len()), (1, 250));
    // Pictures 0 to 29 of the one, from 30 on of the other: nothing is left out, and each is in time.
    for (number, picture) in (0_u64..).zip(&sent) {
        assert_eq!(picture.quality, usize::from(number >= 30), "{picture:?}");
        assert!(picture.at.abs_diff(number * PICTURE) < 1000, "{picture:?}");
        assert_eq!(
            u64::from(picture.shown + 1) / u64::from(TICKS),
            number,
            "{picture:?}"
        );
    }
}

#[test]
fn up_and_down_again_with_pictures_that_are_decoded_in_another_order() {
    let mut timeline = film([Order::Pairs; 3], [25, 30, 7]);
    timeline.play(None, None, 0);
    let asked = [
        (SECOND, 2),
        (3 * SECOND, 0),
        (5 * SECOND, 1),
        (7 * SECOND, 9),
    ];
    let sent = send(&mut timeline, u64::MAX, &asked);
    assert_eq!(check(&sent), 4);
    let qualities: Vec<usize> = sent
        .chunk_by(|a, b| a.quality == b.quality)
        .map(|of| of[0].quality)
        .collect();
    assert_eq!(qualities, [0, 2, 0, 1, 2]);
    // Each time one picture at most is left out: one that is predicted from another that is shown later.
    assert!(sent.len() >= 246, "{}", sent.len());
}

#[test]
fn what_is_taken_back_before_it_came_to_it_changes_nothing() {
    let mut timeline = film([Order::Pairs; 3], [25, 50, 50]);
    timeline.play(None, None, 0);
    let sent = send(
        &mut timeline,
        u64::MAX,
        &[(100 * MS, 2), (200 * MS, 1), (300 * MS, 0)],
    );
    assert_eq!((check(&sent), sent.len()), (0, 250));
}

#[test]
fn where_no_picture_can_be_begun_with_it_stays_as_it_is() {
    let mut timeline = film([Order::Shown; 3], [25, 250, 25]);
    timeline.play(None, None, 0);
    let sent = send(&mut timeline, u64::MAX, &[(SECOND, 1)]);
    assert_eq!((check(&sent), sent.len()), (0, 250));
    assert!(timeline.is_turning(0));
    assert_eq!(timeline.until_lower(0), None);
}

#[test]
fn it_is_known_how_long_a_better_quality_is_still_sent() {
    let mut timeline = film([Order::Shown; 3], [50, 30, 30]);
    timeline.play(None, None, 0);
    send(&mut timeline, SECOND, &[]);
    assert_eq!(timeline.until_lower(0), None);
    timeline.switch(0, 1);
    // From picture 26 to picture 30.
    assert_eq!(timeline.until_lower(0), Some(4 * PICTURE));
    send(&mut timeline, 2 * SECOND, &[]);
    timeline.switch(0, 0);
    assert!(timeline.is_turning(0));
    assert_eq!(timeline.until_lower(0), None, "what follows is better");
}

#[test]
fn a_lower_quality_behind_the_end_of_what_is_played_does_not_follow() {
    for (until, expected) in [(1200 * MS, None), (1300 * MS, Some(4 * PICTURE))] {
        let mut timeline = film([Order::Shown; 3], [50, 30, 30]);
        timeline.play(None, Some(until), 0);
        send(&mut timeline, SECOND, &[]);
        timeline.switch(0, 1);
        assert_eq!(timeline.until_lower(0), expected, "{until}");
        let sent = send(&mut timeline, u64::MAX, &[]);
        assert!(sent.iter().all(|of| of.at < until));
        assert_eq!(check(&sent), usize::from(expected.is_some()));
    }
}

#[test]
fn another_place_and_a_pause_are_in_the_quality_that_is_asked_for() {
    let mut timeline = film([Order::Pairs; 3], [25, 30, 30]);
    timeline.switch(0, 1);
    timeline.play(None, None, 0);
    assert_eq!(timeline.quality(0), 1);
    let first = send(&mut timeline, SECOND, &[]);
    timeline.pause(SECOND);
    timeline.switch(0, 2);
    // On from there, and over to the other at its next.
    let started = timeline.play(None, None, 10 * SECOND);
    assert_eq!(timeline.quality(0), 1);
    assert!(started.from_ns.abs_diff(SECOND) < 100 * MS, "{started:?}");
    let more = send(&mut timeline, 12 * SECOND, &[]);
    let all = [first, more].concat();
    let numbers: Vec<u16> = all.iter().map(|of| of.number).collect();
    assert!(
        numbers
            .windows(2)
            .all(|two| two[1] == two[0].wrapping_add(1))
    );
    let turned = all.iter().position(|of| of.quality == 2).expect("it does");
    assert!(all[turned].is_sync && all[..turned].iter().all(|of| of.quality == 1));
    // Elsewhere it begins with a picture of the quality that is asked for, by that one's own.
    timeline.switch(0, 0);
    let started = timeline.play(Some(7_900 * MS), None, 20 * SECOND);
    assert_eq!((timeline.quality(0), started.from_ns), (0, 7 * SECOND));
    timeline.switch(0, 1);
    let started = timeline.play(Some(7_900 * MS), Some(9 * SECOND), 30 * SECOND);
    assert_eq!((timeline.quality(0), started.from_ns), (1, 7_200 * MS));
    let rest = send(&mut timeline, u64::MAX, &[]);
    let shown = u64::from(rest.last().expect("some").shown - rest[0].shown) / u64::from(TICKS);
    assert!((43..=46).contains(&shown), "{shown}");
}

#[test]
fn reports_tell_the_clips_time_in_every_quality() {
    let mut timeline = film([Order::Shown; 3], [25, 25, 25]);
    timeline.play(None, None, 0);
    send(&mut timeline, 2 * SECOND, &[(SECOND, 1)]);
    assert_eq!(timeline.quality(0), 1);
    let report = timeline.report(0, 2 * SECOND, 77 * SECOND);
    assert_eq!(report.timestamp.wrapping_sub(0xffff_ff00), 2 * 90_000);
    assert_eq!((report.packets, report.bytes), (51, 5_100));
}

#[test]
fn sound_has_one_quality() {
    let clip = clip(&Shape::default());
    let mut timeline = Timeline::with_lower(clip.clone(), [clip].into());
    assert_eq!((timeline.add(1, 7, 0, 0), timeline.qualities(0)), (0, 1));
    assert!(!timeline.switch(0, 5));
    assert!(!timeline.is_turning(0));
}

fn any_order() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![Order::Shown, Order::Pairs])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_way_through_the_qualities_makes_sense_to_decoders(
        orders in [any_order(), any_order(), any_order()],
        keys in [3..60_u32, 3..60_u32, 3..60_u32],
        times in prop::collection::vec((0..10 * SECOND, 0..3_usize), 0..12),
    ) {
        let mut asked = times;
        asked.sort_unstable();
        let mut timeline = film(orders, keys);
        timeline.play(None, None, 0);
        let sent = send(&mut timeline, u64::MAX, &asked);
        let turns = check(&sent);
        prop_assert!(turns <= asked.len());
        // One picture is left out at each at most, and none is later than those two that are decoded
        // before they are shown.
        prop_assert!(sent.len() + 2 * turns >= 250, "{} of 250, {turns} turns", sent.len());
        for picture in &sent {
            let shown = u64::from(picture.shown) * SECOND / 90_000;
            prop_assert!(picture.at <= shown + 3 * PICTURE, "{picture:?}");
            prop_assert!(picture.late < MS, "{picture:?}");
        }
    }
}
