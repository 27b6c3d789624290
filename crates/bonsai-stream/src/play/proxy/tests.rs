//! The desk, with a clock and a network that are made up.

use std::sync::Arc;

use bonsai_media::adapt::{Ladder, Rule, Settings};
use hyper::body::Bytes;

use super::Denied;
use super::desk::Desk;
use super::item::Item;
use super::task::{Job, Parcel, Task, Then};

const SECOND: u64 = 1_000_000_000;
const KBPS: [f64; 3] = [500.0, 1_000.0, 2_000.0];
const SEGMENT_MS: f64 = 2_000.0;

/// A desk, and the line to its servers.
struct Rig {
    desk: Desk,
    now: u64,
    kbps: f64,
    /// What was fetched: segment and quality.
    fetched: Vec<(usize, usize)>,
    lease: u64,
}

fn settings(rule: Rule, buffer_ms: f64) -> Settings {
    Settings {
        rule,
        buffer_ms,
        ..Settings::default()
    }
}

impl Rig {
    fn new(segments: usize, sound_ms: &[f64], settings: Settings, memory: u64) -> Self {
        let ladder = Ladder::new(SEGMENT_MS, KBPS.to_vec(), None)
            .and_then(|ladder| ladder.with_durations(vec![SEGMENT_MS; segments]))
            .expect("a ladder");
        let headers = usize::from(!sound_ms.is_empty());
        let mut desk =
            Desk::new(Arc::new(ladder), (sound_ms, headers), settings, memory, 0).expect("a desk");
        let lease = desk.lease();
        Self {
            desk,
            now: 0,
            kbps: 3_000.0,
            fetched: Vec::new(),
            lease,
        }
    }

    fn film(segments: usize) -> Self {
        Self::new(segments, &[], settings(Rule::Davvi, 20_000.0), 1 << 30)
    }

    fn task(&mut self) -> Option<Task> {
        match self.desk.job(self.now) {
            Job::Picture(task) => Some(task),
            Job::Wait(ns) => {
                assert!(ns > 0);
                None
            }
            job => panic!("{job:?}"),
        }
    }

    fn bytes(task: &Task) -> usize {
        let bits = KBPS[task.quality] * SEGMENT_MS;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "of a test"
        )]
        let bytes = (bits / 8.0) as usize;
        bytes
    }

    /// Fetches what is next; `false` if that is nothing.
    fn fetch(&mut self) -> bool {
        let Some(task) = self.task() else {
            return false;
        };
        let size = Self::bytes(&task);
        self.now += 10_000_000;
        self.desk.first_byte(self.now, &task, Some(size as u64));
        // 50 ms at a time, as a connection reads.
        let mut came = 0.0;
        while came < size as f64 {
            self.now += 50_000_000;
            came += self.kbps * 50.0 / 8.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "of a test"
            )]
            let so_far = (came as u64).min(size as u64);
            match self.desk.received(self.now, &task, so_far) {
                Then::GoOn => {}
                Then::GiveUp | Then::Over => return true,
            }
        }
        self.deliver(&task);
        true
    }

    fn deliver(&mut self, task: &Task) {
        self.fetched.push((task.segment, task.quality));
        let header = format!("header of quality {}", task.quality);
        let parcel = Parcel {
            header: Some(header.into()),
            picture: vec![u8::try_from(task.quality).expect("few"); Self::bytes(task)].into(),
            sounds: task
                .sounds
                .iter()
                .map(|of| (*of, Bytes::from_static(b"sound")))
                .collect(),
            bytes: Self::bytes(task) as u64,
            server: 0,
        };
        self.desk.came(self.now, task, parcel);
    }

    fn ask(&mut self, item: Item) -> u64 {
        self.desk.ask(self.now, self.lease, item).expect("asked")
    }

    fn take(&mut self, ticket: u64) -> Option<Result<Bytes, Denied>> {
        self.desk.take(self.now, ticket)
    }

    /// What a player is given that waits for it.
    fn get(&mut self, item: Item) -> Bytes {
        let ticket = self.ask(item);
        for _ in 0..100 {
            if let Some(given) = self.take(ticket) {
                return given.expect("given");
            }
            assert!(self.fetch(), "whoever waits is not held up");
        }
        panic!("{item:?} never came");
    }

    /// Time passes while the player shows what it has; what there is to fetch is fetched.
    fn pass(&mut self, until: u64) {
        while self.now < until {
            if !self.fetch() {
                self.now = until.min(self.now + 100_000_000);
            }
        }
    }

    /// A player that asks for a segment whenever it has less than two of them.
    fn watch(&mut self, segments: std::ops::Range<usize>) {
        let mut empty_at = self.now;
        for segment in segments {
            let due = empty_at.saturating_sub(4 * SECOND);
            self.pass(due);
            let header = self.get(Item::Header(segment));
            let picture = self.get(Item::Picture(segment));
            let quality = picture[0];
            assert_eq!(header, format!("header of quality {quality}"), "{segment}");
            empty_at = empty_at.max(self.now) + 2 * SECOND;
        }
    }
}

#[test]
fn the_quality_follows_the_line_and_segments_come_in_order() {
    for rule in Rule::ALL {
        let mut rig = Rig::new(120, &[], settings(rule, 20_000.0), 1 << 30);
        rig.watch(0..40);
        rig.kbps = 700.0;
        rig.watch(40..80);
        rig.kbps = 4_000.0;
        rig.watch(80..120);
        let segments: Vec<usize> = rig.fetched.iter().map(|(segment, _)| *segment).collect();
        assert_eq!(segments, (0..120).collect::<Vec<_>>(), "{rule}");
        let of = |from: usize, to: usize| {
            let part = &rig.fetched[from..to];
            part.iter().map(|(_, quality)| *quality).collect::<Vec<_>>()
        };
        assert!(of(10, 40).contains(&2), "{rule}: {:?}", of(0, 40));
        assert!(of(50, 80).contains(&0), "{rule}: {:?}", of(40, 80));
        assert!(of(90, 120).contains(&2), "{rule}: {:?}", of(80, 120));
        let (seen, log, waits, seeks) = rig.desk.seen(rig.now);
        assert_eq!((log.len(), waits.given, seeks), (120, 120, 0), "{rule}");
        assert!(log.iter().all(|of| of.waited_ms.is_some()), "{rule}");
        assert_eq!(seen.fetched, 120, "{rule}");
    }
}

#[test]
fn what_is_fetched_ahead_is_no_more_than_the_buffer_and_goes_when_it_is_given() {
    let mut rig = Rig::film(60);
    // Before a player comes it is made ready for one.
    rig.pass(60 * SECOND);
    assert_eq!(rig.desk.kept().len(), 10);
    rig.watch(0..30);
    let kept = rig.desk.kept();
    assert!(kept.len() <= 12 && kept[0] >= 27, "{kept:?}");
    assert!(rig.desk.bytes() <= 12 * 500_000, "{}", rig.desk.bytes());
    let (seen, ..) = rig.desk.seen(rig.now);
    assert_eq!((seen.startup_ms, seen.stalls), (Some(0.0), 0));
}

#[test]
fn a_player_that_pauses_is_not_one_that_stalls() {
    let mut rig = Rig::film(60);
    rig.watch(0..10);
    let before = rig.fetched.len();
    rig.pass(rig.now + 600 * SECOND);
    assert!(rig.fetched.len() <= before + 10, "{}", rig.fetched.len());
    let (seen, ..) = rig.desk.seen(rig.now);
    assert_eq!(seen.stalls, 0);
    assert!(
        seen.paused_ms > 500e3 && seen.played_ms < 20_001.0,
        "{seen:?}"
    );
    rig.watch(10..60);
    assert_eq!(rig.desk.seen(rig.now).0.stalls, 0);
}

#[test]
fn a_player_that_has_to_wait_with_nothing_left_stalls() {
    let mut rig = Rig::film(60);
    rig.watch(0..10);
    // Less than the lowest quality needs.
    rig.kbps = 250.0;
    rig.watch(10..40);
    let (seen, _, waits, _) = rig.desk.seen(rig.now);
    assert!(seen.stalls > 0 && seen.stall_ms > 10_000.0, "{seen:?}");
    assert!(waits.waited > 5 && waits.longest_ms > 1_000.0, "{waits:?}");
}

#[test]
fn a_reader_that_does_not_wait_for_the_clock_is_held_up_by_the_line_alone() {
    let mut rig = Rig::film(60);
    for segment in 0..60 {
        rig.get(Item::Picture(segment));
    }
    assert_eq!(rig.fetched.len(), 60);
    // 120 s of film at 3 Mbit/s, in no quality above 2 Mbit/s.
    assert!(rig.now < 90 * SECOND, "{}", rig.now);
}

#[test]
fn a_player_may_go_anywhere() {
    let mut rig = Rig::film(100);
    rig.watch(0..6);
    // What is under way is for nobody.
    rig.kbps = 100.0;
    rig.pass(rig.now + 30 * SECOND);
    rig.kbps = 3_000.0;
    let old = rig.task();
    let ticket = rig.ask(Item::Picture(80));
    assert_eq!(rig.take(ticket), None);
    if let Some(old) = old {
        assert_eq!(rig.desk.received(rig.now, &old, 1), Then::Over);
        rig.deliver(&old);
        rig.fetched.pop();
    }
    let task = rig.task().expect("it is fetched at once");
    assert_eq!((task.segment, task.quality), (80, 0));
    rig.deliver(&task);
    assert!(matches!(rig.take(ticket), Some(Ok(_))));
    rig.watch(81..100);
    // Back, to what is there no more.
    rig.watch(2..20);
    let (seen, _, _, seeks) = rig.desk.seen(rig.now);
    assert_eq!(seeks, 2);
    assert!(seen.seek_ms > 0.0);
    // A step forward within what has been fetched is none.
    rig.pass(rig.now + 10 * SECOND);
    let before = rig.fetched.len();
    rig.get(Item::Picture(23));
    assert_eq!((rig.desk.seen(rig.now).3, rig.fetched.len()), (2, before));
    // A segment is given twice to whoever asks twice.
    rig.get(Item::Picture(23));
    rig.get(Item::Picture(22));
    assert_eq!(rig.desk.seen(rig.now).3, 2);
}

#[test]
fn a_question_that_was_left_behind_is_answered() {
    let mut rig = Rig::film(100);
    let old = rig.ask(Item::Picture(0));
    let new = rig.ask(Item::Picture(50));
    assert_eq!(rig.take(old), Some(Err(Denied::Elsewhere)));
    assert_eq!(rig.take(new), None);
    rig.desk.gone(rig.now, new);
    assert!(!rig.desk.is_asked());
}

#[test]
fn a_segment_whose_header_was_given_keeps_its_quality() {
    let mut rig = Rig::film(60);
    rig.watch(0..30);
    let of = |rig: &Rig, segment: usize| {
        let mut all = rig.fetched.iter().rev();
        all.find(|(of, _)| *of == segment)
            .map(|(_, quality)| *quality)
    };
    let best = of(&rig, 20);
    assert_eq!(best, Some(2));
    // The rule would take the lowest after a seek.
    rig.kbps = 800.0;
    rig.get(Item::Picture(20));
    assert_eq!(of(&rig, 20), best);
    // And the header itself takes nobody elsewhere.
    let seeks = rig.desk.seen(rig.now).3;
    assert_eq!(
        rig.get(Item::Header(3)),
        format!("header of quality {}", of(&rig, 3).expect("it came"))
    );
    assert_eq!(rig.desk.seen(rig.now).3, seeks);
    // Another player has no headers.
    rig.lease = rig.desk.lease();
    rig.get(Item::Picture(5));
    assert_eq!(of(&rig, 5), Some(0));
}

#[test]
fn the_last_player_that_comes_is_served() {
    let mut rig = Rig::film(60);
    let first = rig.lease;
    rig.watch(0..3);
    // Who only looks at the playlist takes nothing over.
    let second = rig.desk.lease();
    rig.get(Item::Picture(3));
    let waits = rig.ask(Item::Picture(50));
    rig.lease = second;
    rig.get(Item::Picture(0));
    assert_eq!(rig.take(waits), Some(Err(Denied::Another)));
    let asked = rig.desk.ask(rig.now, first, Item::Picture(4));
    assert_eq!(asked, Err(Denied::Another));
    for lease in [0, second + 1] {
        let asked = rig.desk.ask(rig.now, lease, Item::Picture(0));
        assert_eq!(asked, Err(Denied::Nothing));
    }
    for item in [
        Item::Picture(60),
        Item::Header(60),
        Item::Sound(0),
        Item::SoundHeader(0),
    ] {
        let asked = rig.desk.ask(rig.now, second, item);
        assert_eq!(asked, Err(Denied::Nothing), "{item:?}");
    }
}

#[test]
fn memory_holds_fetching_back_and_not_whoever_waits() {
    let memory = 600_000;
    let mut rig = Rig::new(40, &[], settings(Rule::Throughput, 30_000.0), memory);
    for segment in 0..40 {
        rig.get(Item::Picture(segment));
        rig.pass(rig.now + 2 * SECOND);
        assert!(rig.desk.bytes() < memory + 500_001, "{}", rig.desk.bytes());
    }
}

#[test]
fn what_cannot_be_had_is_said_and_tried_anew_when_it_is_asked_for_again() {
    let mut rig = Rig::film(20);
    rig.get(Item::Picture(0));
    let task = rig.task().expect("there is room for more");
    let ticket = rig.ask(Item::Picture(task.segment));
    rig.desk.failed(rig.now, &task);
    rig.desk
        .breaks(Item::Picture(task.segment), "http://a/: it is gone");
    let said = rig.take(ticket);
    assert!(
        matches!(&said, Some(Err(Denied::Upstream(why))) if why.contains("gone")),
        "{said:?}"
    );
    assert_eq!(rig.task(), None, "nobody asks for it");
    rig.get(Item::Picture(task.segment));
}

#[test]
fn sound_comes_with_its_pictures_once_and_by_itself_when_it_is_asked_for() {
    let sound_ms: Vec<f64> = [2_021.3, 1_984.0].repeat(10);
    let mut rig = Rig::new(20, &sound_ms, settings(Rule::Davvi, 20_000.0), 1 << 30);
    let mut sounds = Vec::new();
    for segment in 0..20 {
        let ticket = rig.ask(Item::Picture(segment));
        while rig.take(ticket).is_none() {
            let task = rig.task().expect("somebody waits");
            sounds.extend(task.sounds.clone());
            rig.now += SECOND / 10;
            rig.deliver(&task);
        }
        if segment < 19 {
            rig.get(Item::Sound(segment));
        }
    }
    assert_eq!(sounds, (0..20).collect::<Vec<_>>());
    // Elsewhere it is asked for first.
    let ticket = rig.ask(Item::Sound(4));
    assert_eq!(rig.desk.job(rig.now), Job::Sound(4));
    rig.desk.sound_came(4, Bytes::from_static(b"sound"));
    assert!(matches!(rig.take(ticket), Some(Ok(_))));
    let ticket = rig.ask(Item::SoundHeader(0));
    assert_eq!(rig.desk.job(rig.now), Job::SoundHeader(0));
    rig.desk
        .header_came((None, 0), Bytes::from_static(b"header"));
    assert!(matches!(rig.take(ticket), Some(Ok(_))));
    // And is not fetched again with the pictures.
    let ticket = rig.ask(Item::Picture(4));
    let task = rig.task().expect("somebody waits");
    assert!(!task.sounds.contains(&4), "{task:?}");
    rig.desk.gone(rig.now, ticket);
}

#[test]
fn what_cannot_be_had_is_said_however_much_that_was_before() {
    let sound_ms = vec![SEGMENT_MS; 600];
    let mut rig = Rig::new(600, &sound_ms, settings(Rule::Davvi, 20_000.0), 1 << 30);
    for of in 0..500 {
        rig.desk.breaks(Item::Sound(of), "it is gone");
    }
    let ticket = rig.ask(Item::Sound(550));
    rig.desk.breaks(Item::Sound(550), "it is gone");
    let said = rig.take(ticket);
    assert!(matches!(said, Some(Err(Denied::Upstream(_)))), "{said:?}");
}
