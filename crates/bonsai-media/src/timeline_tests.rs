use super::*;
use crate::clip::sketch::{FRAMES, PICTURES, Sketch};

const MS: u64 = 1_000_000;

fn clip() -> Arc<Clip> {
    let sketch = Sketch::new();
    let bytes = u64::try_from(sketch.file.len()).expect("small");
    Arc::new(Clip::read(&sketch.movie, bytes).expect("a clip"))
}

fn timeline() -> Timeline {
    let mut timeline = Timeline::new(clip());
    assert_eq!(timeline.add(0, 7, 65_530, 0xffff_ff00), 0);
    assert_eq!(timeline.add(1, 8, 10, 1000), 1);
    timeline
}

/// Sends all that is due up to that time, each when it is due: time, line and timestamp.
fn send(timeline: &mut Timeline, until: u64) -> Vec<(u64, usize, u32)> {
    let mut sent = Vec::new();
    while let Some((at, next)) = timeline.next() {
        if at > until {
            break;
        }
        match next {
            Next::Sample(line) => {
                sent.push((at, line, timeline.header(line, 0, true).timestamp));
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

#[test]
fn samples_are_due_by_the_clock_of_the_media() {
    let mut timeline = timeline();
    assert_eq!(timeline.next(), None);
    let started = timeline.play(None, None, 1000 * MS);
    assert_eq!((started.from_ns, started.until_ns), (0, 1984 * MS));
    assert_eq!(started.lines, [(0, 65_530, 0xffff_ff00), (1, 10, 1000)]);
    let sent = send(&mut timeline, u64::MAX);
    let of = |line: usize| sent.iter().filter(move |(_, of, _)| *of == line);
    let times: Vec<u64> = of(0).map(|(at, ..)| *at).collect();
    let expected: Vec<u64> = (0..u64::from(PICTURES))
        .map(|at| (1000 + 40 * at) * MS)
        .collect();
    assert_eq!(times, expected);
    // Pictures are decoded 80 ms before the clip begins, and its first frame of sound 21 ms before.
    let first = of(1).next().expect("sound").0;
    assert_eq!(first, 1000 * MS + 80 * MS - 21_333_334);
    assert_eq!(of(1).count(), usize::try_from(FRAMES).expect("small"));
    // Shown at 0, 0, 80 ms, in ticks of 90,000.
    let shown: Vec<u32> = of(0).take(3).map(|(.., shown)| *shown).collect();
    assert_eq!(
        shown,
        [0xffff_ff00, 0xffff_ff00, 0xffff_ff00_u32.wrapping_add(7200)]
    );
    assert_eq!(of(1).nth(1).expect("sound").2, 1000);
    // It ends after the last sample, and not at once.
    let (at, next) = timeline.next().expect("it plays");
    assert_eq!(next, Next::End);
    assert!(at > sent.last().expect("one").0 + 200 * MS, "{at}");
    assert!(at < 1000 * MS + 2400 * MS);
}

#[test]
fn whoever_is_late_catches_up_without_a_burst() {
    let mut timeline = Timeline::new(clip());
    timeline.add(0, 7, 0, 0);
    timeline.play(None, None, 0);
    // Nothing was sent for a second.
    let mut now = 1000 * MS;
    let mut before = 0;
    for number in 0..40 {
        let (at, next) = timeline.next().expect("it plays");
        if next == Next::Report {
            timeline.report(0, now, now);
            continue;
        }
        now = now.max(at);
        assert!(number == 0 || now - before >= 20 * MS, "{number}");
        before = now;
        timeline.advance(0, now);
    }
    assert!(
        timeline.late(0, now) < 300 * MS,
        "{}",
        timeline.late(0, now)
    );
}

#[test]
fn numbers_and_timestamps_go_on_over_a_pause_and_another_place() {
    let mut timeline = timeline();
    timeline.play(None, None, 0);
    send(&mut timeline, 500 * MS);
    let number = timeline.header(0, 0, false).sequence;
    timeline.pause(500 * MS);
    assert_eq!((timeline.next(), timeline.is_playing()), (None, false));
    // On from there: nothing is sent twice, nothing is left out.
    let next = timeline.sample(0).copied();
    let started = timeline.play(None, None, 9000 * MS);
    assert_eq!(
        (timeline.sample(0).copied(), started.lines[0].1),
        (next, number)
    );
    assert!(
        (400 * MS..600 * MS).contains(&started.from_ns),
        "{}",
        started.from_ns
    );
    let sent = send(&mut timeline, 9200 * MS);
    let before = sent
        .iter()
        .rfind(|(_, line, _)| *line == 0)
        .expect("a picture")
        .2;
    // At another place, from a picture that can be decoded.
    let started = timeline.play(Some(1_300 * MS), None, 9200 * MS);
    assert_eq!(started.from_ns, 1_200 * MS);
    let (_, _, base) = started.lines[0];
    let first = timeline.header(0, 0, false).timestamp;
    assert_eq!(
        first, base,
        "the first picture is that of the time it was begun from"
    );
    let step = first.wrapping_sub(before);
    assert!(step < 90_000 / 5, "{step} ticks");
    let rest = send(&mut timeline, u64::MAX);
    assert_eq!(rest.iter().filter(|(_, line, _)| *line == 0).count(), 20);
}

#[test]
fn a_range_ends_where_it_says() {
    let mut timeline = timeline();
    let started = timeline.play(Some(400 * MS), Some(800 * MS), 0);
    assert_eq!((started.from_ns, started.until_ns), (400 * MS, 800 * MS));
    let sent = send(&mut timeline, u64::MAX);
    // Decoded from 320 ms to 800 ms, each 40 ms.
    assert_eq!(sent.iter().filter(|(_, line, _)| *line == 0).count(), 12);
}

#[test]
fn reports_tell_the_same_time_of_all_lines() {
    let mut timeline = timeline();
    timeline.play(Some(0), None, 100 * MS);
    let (at, next) = timeline.next().expect("it plays");
    assert_eq!((at, next), (100 * MS, Next::Sample(0)));
    send(&mut timeline, 600 * MS);
    let [one, other] = [0, 1].map(|line| timeline.report(line, 600 * MS, 77 * SECOND));
    // 500 ms after it began, which was 80 ms before the beginning of the clip.
    assert_eq!(one.timestamp.wrapping_sub(0xffff_ff00), 420 * 90);
    assert_eq!(other.timestamp - 1000, 420 * 48);
    assert_eq!((one.packets, one.bytes), (13, 1300));
    assert_eq!((one.ntp, one.ntp >> 32), (other.ntp, 77 + 2_208_988_800));
    let (at, _) = timeline.next().expect("it plays");
    assert!(at < 5600 * MS, "samples go on");
}

#[test]
fn a_sample_that_is_held_lets_other_lines_go_and_is_no_later_for_it() {
    let mut timeline = timeline();
    timeline.play(None, None, 1000 * MS);
    timeline.report(0, 1000 * MS, 0);
    assert_eq!(timeline.next(), Some((1000 * MS, Next::Sample(0))));
    timeline.hold(0, 1090 * MS);
    // The first frame of sound is due before the rest of the picture.
    let Some((at, Next::Sample(1))) = timeline.next() else {
        panic!("{:?}", timeline.next());
    };
    timeline.advance(1, at);
    let mut next = timeline.next();
    while let Some((at, Next::Sample(1))) = next {
        timeline.advance(1, at);
        next = timeline.next();
    }
    assert_eq!(next, Some((1090 * MS, Next::Sample(0))));
    assert_eq!(timeline.late(0, 1001 * MS), MS);
    // The next picture is due by when that was begun.
    timeline.advance(0, 1000 * MS);
    assert_eq!(timeline.next(), Some((1040 * MS, Next::Sample(0))));
}
