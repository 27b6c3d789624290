use super::need::BESIDE;
use super::*;
use crate::clip::Clip;
use crate::clip::sketch::{Sketch, picture};
use crate::packets::{How, h264};

const NEED: Need = Need([100, 60, 20]);

#[test]
fn pictures_are_left_out_step_by_step_and_come_back() {
    let mut load = Load::new(WhenBehind::DropPictures, 50);
    let mut now = 0;
    let mut judge = |load: &mut Load, late: u64| {
        load.note(late);
        now += WINDOW;
        load.judge(now)
    };
    assert_eq!(judge(&mut load, 50), None);
    assert!(!load.drops(|| Some(true)));
    assert_eq!(judge(&mut load, 51), Some(1));
    assert!(load.drops(|| Some(true)) && load.admit(NEED).is_ok());
    assert!(!load.drops(|| Some(false)) && !load.drops(|| None));
    assert_eq!(load.within(1000), 1000);
    assert_eq!(judge(&mut load, 51), Some(2));
    assert_eq!(load.within(1000), 0);
    assert_eq!(load.admit(NEED), Err(Full::Behind));
    assert_eq!(judge(&mut load, 51), None);
    let steps: Vec<u8> = (0..40).filter_map(|_| judge(&mut load, 0)).collect();
    assert_eq!(steps, [1, 0]);
    assert!(load.admit(NEED).is_ok());
}

#[test]
fn whoever_refuses_drops_nothing() {
    let mut load = Load::new(WhenBehind::Refuse, 50);
    load.note(1000);
    assert_eq!(load.judge(WINDOW), None);
    assert!(load.admit(NEED) == Err(Full::Behind) && !load.drops(|| Some(true)));
    load.judge(2 * WINDOW);
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
    for (allotted, level, within) in [
        (2000, 0, 1000),
        // A twentieth is left free.
        (1000, 1, 1000),
        (640, 1, 1000),
        // 475, of which 200 are for what decoding begins with: 275 of the other 800.
        (500, 2, 343),
        (210, 2, 0),
        (0, 2, 0),
    ] {
        let load = playing(10, allotted);
        assert_eq!(
            (load.level(), load.within(1000)),
            (level, within),
            "{allotted}"
        );
    }
}

#[test]
fn all_that_is_sent_fits_in_what_is_allotted() {
    for allotted in (0..1500).step_by(7) {
        let load = playing(10, allotted);
        let sent = match load.level() {
            2 => 200 + load.within(800),
            level => 10 * NEED.at(level),
        };
        assert!(sent <= allotted.max(200), "{sent} of {allotted}");
    }
}

#[test]
fn a_rate_that_changes_is_followed_up_at_once_and_down_in_a_second() {
    let mut load = playing(10, 2000);
    load.judge(0);
    load.allot(Some(500), 100);
    assert_eq!(load.judge(100), Some(2));
    // Above the need of all by less than what is to be free.
    load.allot(Some(1060), 200);
    assert_eq!(load.judge(200 + SETTLED - 1), None);
    assert_eq!(load.judge(200 + SETTLED), Some(1));
    assert_eq!(load.judge(200 + 3 * SETTLED), None);
    let mut load = playing(10, 500);
    load.judge(0);
    load.allot(Some(2000), SECOND);
    assert_eq!(load.judge(SECOND + 1), None);
    // A rate that is back for an instant only.
    load.allot(Some(500), 2 * SECOND - 1);
    load.allot(Some(2000), 2 * SECOND);
    assert_eq!(load.judge(3 * SECOND - 1), None);
    assert_eq!(load.judge(3 * SECOND), Some(0));
    // Nobody says any more.
    load.allot(Some(500), 4 * SECOND);
    load.allot(None, 4 * SECOND);
    assert_eq!(load.level(), 0);
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
    for turn in 10..12 {
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
    assert_eq!(load.level(), 0);
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
    // Two seconds of pictures: each tenth begins, and each other one is disposable.
    let expected = [
        sum(&|_| true) / 2,
        sum(&|number| number % 2 == 0) / 2,
        sum(&|number| number % 10 == 0) / 2,
    ];
    for (need, expected) in needs[0].0.iter().zip(expected) {
        assert!(need.abs_diff(expected) <= 1, "{need} {expected}");
    }
    assert!(needs[1].at(0) > 9_000 && needs[1].at(0) == needs[1].at(2));
}
