use super::need::BESIDE;
use super::*;
use crate::clip::Clip;
use crate::clip::sketch::{Sketch, picture};
use crate::packets::{How, h264};

const NEED: Need = Need::new(100, 60, 20);

#[test]
fn pictures_are_left_out_step_by_step_and_come_back() {
    use Pictures::{All, Keys, Needed};
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    load.plays(NEED, Need::default(), 0);
    let mut now = 0;
    let mut judge = |load: &mut Load, late: u64| {
        load.note(late);
        now += WINDOW;
        load.judge(now)
    };
    assert_eq!(judge(&mut load, 50), None);
    assert!(!load.drops(|| Some(true)));
    assert_eq!(judge(&mut load, 51), None, "it may be over");
    assert_eq!(judge(&mut load, 51), Some((0, Needed)));
    assert!(load.drops(|| Some(true)) && load.admit(NEED).is_ok());
    assert!(!load.drops(|| Some(false)) && !load.drops(|| None));
    assert_eq!(load.within(1000), 1000);
    assert_eq!(judge(&mut load, 51), Some((0, Keys)));
    assert_eq!(load.admit(NEED), Err(Full::Behind));
    let mut within = vec![load.within(1000)];
    while within.last() > Some(&0) {
        assert_eq!(judge(&mut load, 51), None);
        within.push(load.within(1000));
    }
    assert_eq!(within, [750, 562, 421, 312, 234, 171, 125, 0]);
    let steps: Vec<_> = (0..40).filter_map(|_| judge(&mut load, 0)).collect();
    assert_eq!(steps, [(0, Needed), (0, All)]);
    assert_eq!(load.within(1000), 1000);
    assert!(load.admit(NEED).is_ok());
}

/// A server that stood still sends what became due meanwhile at once, and is in time again.
#[test]
fn a_hiccup_of_any_length_changes_nothing() {
    for when_behind in [WhenBehind::DropPictures, WhenBehind::Refuse] {
        for hiccup in [50, 100, 300, 1000, 10_000] {
            let mut load = Load::new(when_behind, 100);
            load.plays(NEED, Need::default(), 0);
            for turn in 1..20 {
                for late in (0..hiccup).rev().step_by(40) {
                    load.note(late * u64::from(turn % 3 == 0));
                }
                load.note(0);
                assert_eq!(load.judge(turn * WINDOW), None, "{hiccup}");
                assert_eq!(load.admit(NEED), Ok(()), "{hiccup}");
            }
        }
    }
}

/// A server that works off more in each window than becomes due sends all of it.
#[test]
fn lateness_that_becomes_less_by_itself_is_left_alone() {
    let mut load = Load::new(WhenBehind::DropPictures, 100);
    load.plays(NEED, Need::default(), 0);
    let mut late = 5000;
    for turn in 1..40 {
        load.note(late);
        load.note(late + 400);
        assert_eq!(load.judge(turn * WINDOW), None, "{late}");
        late = late * 4 / 5;
    }
    // Where it stays, it is a lack.
    load.note(200);
    load.judge(40 * WINDOW);
    load.note(200);
    assert!(load.judge(41 * WINDOW).is_some());
}

/// A level that has to be taken again each time it is left is left more seldom.
#[test]
fn a_lack_that_lasts_makes_a_level_last() {
    let mut load = Load::new(WhenBehind::DropPictures, 100);
    load.plays(NEED, Need::default(), 0);
    let mut changes = Vec::new();
    for turn in 1..1000 {
        let lacks = load.level() == Level::BEST;
        load.note(if lacks { 300 } else { 0 });
        load.note(if lacks { 200 } else { 0 });
        changes.extend(load.judge(turn * WINDOW).map(|_| turn));
    }
    let lasts: Vec<u64> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(lasts.iter().step_by(2).is_sorted(), "{lasts:?}");
    assert!(lasts.iter().max() > Some(&30), "{lasts:?}");
    assert!(changes.len() < 80, "{changes:?}");
}

#[test]
fn whoever_refuses_drops_nothing() {
    let mut load = Load::new(WhenBehind::Refuse, 50);
    for turn in 1..3 {
        load.note(1000);
        assert_eq!(load.judge(turn * WINDOW), None);
    }
    assert!(load.admit(NEED) == Err(Full::Behind) && !load.drops(|| Some(true)));
    load.judge(3 * WINDOW);
    assert!(load.admit(NEED).is_ok());
}

#[test]
fn whoever_waits_does_nothing() {
    let mut load = Load::new(WhenBehind::Wait, 50);
    load.allot(Some(1), 0);
    load.plays(NEED, Need::default(), 0);
    load.note(10 * SECOND);
    assert_eq!(load.judge(WINDOW), None);
    assert!(load.admit(NEED).is_ok() && !load.drops(|| Some(true)));
    assert_eq!(load.within(1000), 1000);
}

/// One with so many streams that play, and what each of them is sent of 1000 bytes.
fn playing(streams: u64, allotted: u64) -> Load {
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    load.allot(Some(allotted), 0);
    for _ in 0..streams {
        load.promise(NEED);
        load.plays(NEED, Need::default(), 0);
    }
    load
}

#[test]
fn a_rate_that_does_not_suffice_is_kept_to_before_anything_is_late() {
    use Pictures::{All, Keys, Needed};
    for (allotted, pictures, within) in [
        (2000, All, 1000),
        // A twentieth is left free.
        (1000, Needed, 1000),
        (640, Needed, 1000),
        // 475, of which 200 are for what decoding begins with: 275 of the other 800.
        (500, Keys, 343),
        (210, Keys, 0),
        (0, Keys, 0),
    ] {
        let load = playing(10, allotted);
        assert_eq!(
            (load.level().pictures(), load.within(1000)),
            (pictures, within),
            "{allotted}"
        );
    }
}

#[test]
fn all_that_is_sent_fits_in_what_is_allotted() {
    for allotted in (0..1500).step_by(7) {
        let load = playing(10, allotted);
        let sent = match load.level() {
            Level::HIGHEST => 200 + load.within(800),
            level => 10 * NEED.at(level),
        };
        assert!(sent <= allotted.max(200), "{sent} of {allotted}");
    }
}

#[test]
fn a_rate_that_changes_is_followed_up_at_once_and_down_in_a_second() {
    use Pictures::{All, Keys, Needed};
    let mut load = playing(10, 2000);
    load.judge(0);
    load.allot(Some(500), 100);
    assert_eq!(load.judge(100), Some((0, Keys)));
    // Above the need of all by less than what is to be free.
    load.allot(Some(1060), 200);
    assert_eq!(load.judge(200 + SETTLED - 1), None);
    assert_eq!(load.judge(200 + SETTLED), Some((0, Needed)));
    assert_eq!(load.judge(200 + 3 * SETTLED), None);
    let mut load = playing(10, 500);
    load.judge(0);
    load.allot(Some(2000), SECOND);
    assert_eq!(load.judge(SECOND + 1), None);
    // A rate that is back for an instant only.
    load.allot(Some(500), 2 * SECOND - 1);
    load.allot(Some(2000), 2 * SECOND);
    assert_eq!(load.judge(3 * SECOND - 1), None);
    assert_eq!(load.judge(3 * SECOND), Some((0, All)));
    // Nobody says any more.
    load.allot(Some(500), 4 * SECOND);
    load.allot(None, 4 * SECOND);
    assert_eq!(load.level(), Level::BEST);
}

#[test]
fn who_knows_the_rate_takes_no_burst_for_a_lack_of_something_else() {
    let mut load = playing(10, 500);
    load.judge(0);
    load.note(IN_STEP);
    assert_eq!(load.judge(WINDOW), None);
    // What is not needed at the least is trimmed, and comes back.
    assert_eq!(load.within(1000), 257);
    for turn in 2..10 {
        load.judge(turn * WINDOW);
    }
    assert_eq!(load.within(1000), 343);
    for turn in 10..30 {
        load.note(IN_STEP + 1);
        load.judge(turn * WINDOW);
    }
    assert_eq!(load.within(1000), 0);
    assert_eq!(load.admit(NEED), Err(Full::Behind));
}

#[test]
fn who_would_not_fit_is_not_let_in() {
    let load = playing(4, 500);
    load.admit(NEED).expect("on the highest level");
    let mut load = Load::new(WhenBehind::Refuse, 50);
    load.allot(Some(500), 0);
    for _ in 0..4 {
        load.admit(NEED).expect("room");
        load.promise(NEED);
    }
    let full = load.admit(NEED).expect_err("475 and not 500");
    assert_eq!(
        full.to_string(),
        "with one more, 500 bytes/s would be sent, of 475 that the server is allotted"
    );
    load.release(NEED);
    load.admit(NEED).expect("room again");
    assert_eq!(load.level(), Level::BEST);
    let load = playing(24, 500);
    load.admit(NEED)
        .expect_err("not even what decoding begins with");
}

#[test]
fn a_clip_needs_what_is_in_it() {
    let sketch = Sketch::new();
    let bytes = u64::try_from(sketch.file.len()).expect("small");
    let clip = Clip::read(&sketch.movie, bytes).expect("a clip");
    let needs = clip.needs(1388, |track, sample| {
        let How::H264 { length_size } = track.how() else {
            panic!("sound is not asked for");
        };
        let from = usize::try_from(sample.offset).expect("small");
        h264::is_disposable(&sketch.file[from..from + 128], length_size)
    });
    let size = |number: u32| u64::try_from(picture(number).len()).expect("small");
    let sent = |number: u32| size(number) + size(number).div_ceil(1388) * BESIDE;
    let sum = |of: &dyn Fn(&u32) -> bool| (0..50).filter(of).map(sent).sum::<u64>();
    // Pictures of 1.96 s (the last two are shown at one time): each tenth begins, and each other one is disposable.
    let (needed, keys) = (
        sum(&|number| number % 2 == 0) * 100 / 196,
        sum(&|number| number % 10 == 0) * 100 / 196,
    );
    let expected = Need::of([Need::new(sum(&|_| true) * 100 / 196, needed, keys)]);
    for level in Level::all() {
        let (need, expected) = (needs[0].at(level), expected.at(level));
        assert!(need.abs_diff(expected) <= 1, "{need} {expected}");
    }
    let sound = needs[1].at(Level::BEST);
    assert!(sound > 9_000 && sound == needs[1].at(Level::HIGHEST));
}

/// A stream with three qualities, and one with two.
fn layered() -> [Need; 2] {
    let best = Need::new(1000, 900, 500);
    let lower = Need::new(400, 300, 100);
    let lowest = Need::new(200, 180, 40);
    [Need::of([best, lower, lowest]), Need::of([best, lower])]
}

#[test]
fn what_is_needed_is_summed_level_by_level() {
    let [three, two] = layered();
    let sum: Vec<u64> = Level::all().map(|level| (three + two).at(level)).collect();
    // A clip with fewer stays at its lowest.
    assert_eq!(sum, [2000, 800, 600, 600, 600, 600, 480, 140]);
    let left: Vec<u64> = Level::all()
        .map(|of| (three + two - three).at(of))
        .collect();
    assert_eq!(left, [1000, 400, 400, 400, 400, 400, 300, 100]);
    let one = Need::new(100, 60, 20);
    assert_eq!(Need::of([one]), one);
    // Those beyond what there are levels for are not sent.
    let many = Need::of((0..20).map(|at| Need::new(1000 - at, 500 - at, 100 - at)));
    let levels: Vec<u64> = Level::all().map(|level| many.at(level)).collect();
    assert_eq!(levels, [1000, 999, 998, 997, 996, 995, 495, 95]);
}

#[test]
fn lower_qualities_are_gone_to_by_the_rate_before_pictures_are_left_out() {
    use Pictures::{All, Keys, Needed};
    let [three, two] = layered();
    for (allotted, expected) in [
        (3000, None),
        (2000, Some((1, All))),
        (800, Some((2, All))),
        (600, Some((2, Needed))),
        (300, Some((2, Keys))),
    ] {
        let mut load = Load::new(WhenBehind::DropPictures, 50);
        load.plays(three + two, Need::default(), 0);
        load.allot(Some(allotted), 0);
        assert_eq!(load.judge(0), expected, "{allotted}");
        let least = load.admit(Need::default());
        assert!(least.is_ok(), "{allotted}: 140 are needed at the least");
    }
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    load.allot(Some(1000), 0);
    // 950, and 100 each at the least.
    for turn in 0..9 {
        assert_eq!(load.admit(two), Ok(()), "{turn}");
        load.promise(two);
    }
    load.admit(two).expect_err("full");
    // Of the pictures of the lowest quality, what is behind each that decoding can begin with.
    load.plays(three + two, Need::default(), 0);
    load.allot(Some(400), 0);
    assert_eq!(load.level(), Level::HIGHEST);
    assert_eq!(load.within(460), 240, "380 of 600, of which 140 are needed");
}

#[test]
fn what_streams_are_not_sent_for_want_of_rate_is_free() {
    let [three, _] = layered();
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    load.plays(three, Need::default(), 0);
    assert_eq!(load.claimed(), 1000);
    for (allotted, claimed) in [
        (2000, 1000),
        // The lower quality fits, and then the lowest with fewer pictures.
        (800, 400),
        (195, 180),
        // Of the rest, as many pictures as there is a rate for.
        (100, 200),
    ] {
        let mut load = load.clone();
        load.allot(Some(allotted), 0);
        assert_eq!(load.claimed(), claimed, "{allotted}");
    }
    // That it is late frees nothing.
    for turn in 1..3 {
        load.note(51);
        load.judge(turn * WINDOW);
    }
    assert_eq!((load.level().quality(), load.claimed()), (1, 1000));
    let mut load = Load::new(WhenBehind::Wait, 50);
    load.plays(three, Need::default(), 0);
    load.allot(Some(100), 0);
    assert_eq!(load.claimed(), 1000);
}

#[test]
fn levels_that_save_nothing_are_passed_over_when_it_is_late() {
    use Pictures::{All, Keys, Needed};
    let [three, two] = layered();
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    load.plays(two, Need::default(), 0);
    let late = |load: &mut Load, now: u64| {
        load.note(51);
        load.judge(now)
    };
    late(&mut load, 1);
    assert_eq!(late(&mut load, WINDOW + 1), Some((1, All)));
    // Streams go over to it at their next picture that decoding can begin with.
    assert_eq!(late(&mut load, 2 * WINDOW + 1), None);
    assert_eq!(late(&mut load, WINDOW + TURNED + 1), Some((1, Needed)));
    assert_eq!(late(&mut load, 2 * WINDOW + TURNED + 1), Some((1, Keys)));
    assert_eq!(load.admit(two), Err(Full::Behind));
    // Somebody comes who has a lower one.
    load.plays(three, Need::default(), 0);
    let mut steps = Vec::new();
    for turn in 6..80 {
        steps.extend(load.judge(turn * WINDOW + TURNED));
    }
    assert_eq!(
        steps,
        [(2, Keys), (2, Needed), (2, All), (1, All), (0, All)]
    );
    // Sound alone has one level, and the highest.
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    load.plays(Need::new(9, 9, 9), Need::default(), 0);
    late(&mut load, 1);
    assert_eq!(late(&mut load, WINDOW + 1), Some((0, Keys)));
}

#[test]
fn whoever_refuses_sends_no_lower_quality() {
    let [three, _] = layered();
    let mut load = Load::new(WhenBehind::Refuse, 50);
    load.plays(three, Need::default(), 0);
    load.allot(Some(100), 0);
    load.note(1000);
    assert_eq!(load.judge(WINDOW), None);
    assert_eq!((load.level(), load.level().quality()), (Level::BEST, 0));
    load.admit(three).expect_err("it does not fit");
}
