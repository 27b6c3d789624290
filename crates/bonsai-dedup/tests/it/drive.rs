//! The DRIVE map beside a model of plain lists.

use std::collections::BTreeMap;

use bonsai_dedup::drive::{
    Config, Content, DriveMap, Group, How, Learned, MIN_BYTES, Source, Volume, Walk, Why,
};
use proptest::prelude::*;

/// What the thesis says, in lists: contents with their stacks, the leader last.
#[derive(Default)]
struct Model {
    stacks: BTreeMap<(u32, u32), Vec<(usize, u64)>>,
    known: BTreeMap<(usize, u64), (u32, Option<u32>)>,
}

impl Model {
    fn forget(&mut self, at: (usize, u64)) {
        if let Some((group, Some(key))) = self.known.remove(&at) {
            let stack = self.stacks.get_mut(&(group, key)).unwrap();
            stack.retain(|&other| other != at);
            if stack.is_empty() {
                self.stacks.remove(&(group, key));
            }
        }
    }

    fn learn(&mut self, at: (usize, u64), group: u32, key: Option<u32>) {
        if self.known.get(&at) == Some(&(group, key)) {
            return;
        }
        self.forget(at);
        self.known.insert(at, (group, key));
        if let Some(key) = key {
            self.stacks.entry((group, key)).or_default().push(at);
        }
    }

    fn source(&self, at: (usize, u64)) -> Option<(usize, u64)> {
        match self.known.get(&at) {
            None => Some(at),
            Some((_, None)) => None,
            Some(&(group, Some(key))) => self.stacks[&(group, key)].last().copied(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Read(usize, u64),
    Learn(usize, u64, Option<u32>),
    Write(usize, u64),
    Trim(usize, u64),
    Remove(usize),
    Forget(usize),
    /// A range becomes zeroes, or is trimmed.
    Range(usize, u64, u64, bool),
    Reclaim,
}

fn apply(map: &mut DriveMap<u32>, volumes: &mut [Volume], event: Event) -> Option<Learned> {
    let content = |key: Option<u32>| key.map_or(Content::Zero, Content::Key);
    match event {
        Event::Read(volume, block) => {
            map.read(volumes[volume], block);
        }
        Event::Learn(volume, block, key) => {
            return Some(map.learn(volumes[volume], block, content(key), How::Read));
        }
        Event::Write(volume, block) => {
            let stamps = map.stamps(volumes[volume]).expect("room");
            let change = stamps.begin(block..block + 1, false);
            let blocks = block..block + 1;
            assert!(map.forget_range(volumes[volume], blocks, 1) > block);
            assert!(stamps.end(change).stamp(block).is_some());
        }
        Event::Range(volume, start, count, zeroes) => {
            let volume = volumes[volume];
            let stamps = map.stamps(volume).expect("room");
            let blocks = start..start + count;
            let change = stamps.begin(blocks.clone(), true);
            let known = blocks.clone().any(|at| map.content(volume, at).is_some());
            assert!(map.knows_any(volume, blocks.clone()) || !known);
            let mut at = start;
            while at < blocks.end {
                at = map.forget_range(volume, at..blocks.end, 3);
            }
            let known = (start..blocks.end).any(|at| map.content(volume, at).is_some());
            assert!(!known);
            let ended = stamps.end(change);
            let mut from = zeroes.then_some(start);
            while let Some(at) = from {
                from = map.learned_zeroes(volume, &ended, at..blocks.end, 3);
            }
        }
        Event::Forget(volume) => map.forget_volume(volumes[volume]),
        Event::Reclaim => {
            map.reclaim(5);
        }
        Event::Trim(volume, block) => map.trimmed(volumes[volume], block),
        Event::Remove(volume) => {
            map.remove_volume(volumes[volume]);
            volumes[volume] = map.add_volume(Group(group(volume))).unwrap();
        }
    }
    None
}

/// Volumes 0 and 1 share, 2 is by itself.
fn group(volume: usize) -> u32 {
    if volume < 2 { 7 } else { 9 }
}

fn with_volumes(config: Config) -> (DriveMap<u32>, Vec<Volume>) {
    let mut map = DriveMap::new(config);
    let volumes = (0..3).map(|v| map.add_volume(Group(group(v))).unwrap());
    let volumes = volumes.collect();
    (map, volumes)
}

fn tell(model: &mut Model, event: Event) {
    match event {
        Event::Read(..) | Event::Reclaim => (),
        Event::Range(volume, start, count, zeroes) => {
            for block in start..start + count {
                model.forget((volume, block));
                if zeroes {
                    model.learn((volume, block), group(volume), None);
                }
            }
        }
        Event::Learn(volume, block, key) => model.learn((volume, block), group(volume), key),
        Event::Write(volume, block) | Event::Trim(volume, block) => model.forget((volume, block)),
        Event::Remove(volume) | Event::Forget(volume) => {
            let blocks: Vec<_> = model.known.range((volume, 0)..(volume + 1, 0)).collect();
            let blocks: Vec<_> = blocks.into_iter().map(|(at, _)| *at).collect();
            blocks.into_iter().for_each(|at| model.forget(at));
        }
    }
}

fn agrees(map: &DriveMap<u32>, volumes: &[Volume], model: &Model, at: (usize, u64)) {
    let place = |volume: Volume| volumes.iter().position(|v| *v == volume).unwrap();
    let seen = match map.peek(volumes[at.0], at.1) {
        Source::Itself(why) => {
            assert_eq!(why.is_known(), model.known.contains_key(&at), "{why:?}");
            Some(at)
        }
        Source::Leader { volume, block } => Some((place(volume), block)),
        Source::Zero => None,
    };
    assert_eq!(seen, model.source(at), "at {at:?}");
}

fn events(blocks: u64, keys: u32) -> impl Strategy<Value = Event> {
    let at = move || (0..3_usize, 0..blocks);
    prop_oneof![
        4 => at().prop_map(|(v, b)| Event::Read(v, b)),
        8 => (at(), prop::option::weighted(0.9, 0..keys)).prop_map(|((v, b), k)| Event::Learn(v, b, k)),
        3 => at().prop_map(|(v, b)| Event::Write(v, b)),
        1 => at().prop_map(|(v, b)| Event::Trim(v, b)),
        1 => (0..3_usize).prop_map(Event::Remove),
        1 => (0..3_usize).prop_map(Event::Forget),
        2 => (at(), 1..900_u64, any::<bool>()).prop_map(|((v, b), n, z)| Event::Range(v, b, n, z)),
        1 => Just(Event::Reclaim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn does_what_the_lists_do(all in prop::collection::vec(events(600, 12), 1..200)) {
        let (mut map, mut volumes) = with_volumes(Config::UNBOUNDED);
        let mut model = Model::default();
        for event in all {
            apply(&mut map, &mut volumes, event);
            tell(&mut model, event);
            map.check_invariants();
            if let Event::Read(v, b) | Event::Learn(v, b, _) | Event::Write(v, b) | Event::Trim(v, b) = event {
                agrees(&map, &volumes, &model, (v, b));
            }
        }
        let known: Vec<_> = model.known.keys().copied().collect();
        for at in known {
            agrees(&map, &volumes, &model, at);
        }
        for (v, volume) in volumes.iter().enumerate() {
            let mut slices = Vec::new();
            let mut from = Some(0);
            while let Some(at) = from {
                from = map.known_slice(*volume, at, 50, &mut slices);
            }
            let kept: Vec<_> = slices.iter().flat_map(|of| {
                (of.first..of.first + of.blocks).map(move |block| (block, of.content))
            }).collect();
            let of = |key: Option<u32>| key.map_or(Content::Zero, Content::Key);
            let wanted = model.known.range((v, 0)..(v + 1, 0));
            let wanted: Vec<_> = wanted.map(|(at, known)| (at.1, of(known.1))).collect();
            prop_assert_eq!(kept, wanted);
        }
        let mut walked = BTreeMap::<u32, Vec<(usize, u64)>>::new();
        let mut walk = Walk::new(1);
        while map.walk(&mut walk, 3, |content, volume, block| {
            let volume = volumes.iter().position(|v| *v == volume).unwrap();
            walked.entry(content).or_default().push((volume, block));
        }) {}
        // The leader comes first.
        let mut walked: Vec<_> = walked.into_values().collect();
        walked.iter_mut().for_each(|stack| stack.reverse());
        walked.sort();
        let mut stacks: Vec<_> = model.stacks.into_values().collect();
        stacks.sort();
        prop_assert_eq!(walked, stacks);
    }

    /// With little room and short walks it forgets, and never redirects to another content.
    #[test]
    fn forgets_and_never_lies(
        all in prop::collection::vec(events(100_000, 3_000), 1..120), max_walk in 0_u32..4, seed: u64,
    ) {
        let (mut map, mut volumes) = with_volumes(Config { max_bytes: MIN_BYTES, max_walk });
        let mut model = Model::default();
        fill(&mut map, &volumes, &mut model, seed);
        let mut walk = Walk::new(1);
        for event in all {
            walk_on(&map, &mut walk);
            let learned = apply(&mut map, &mut volumes, event);
            if learned != Some(Learned::Refused) {
                tell(&mut model, event);
            }
            map.check_invariants();
            if let Event::Read(v, b) | Event::Learn(v, b, _) = event {
                is_true(&map, &volumes, &model, (v, b));
            }
        }
    }
}

/// What is told of a walk is true then, and blocks of one number have one content.
fn walk_on(map: &DriveMap<u32>, walk: &mut Walk) {
    let mut told = Vec::new();
    let more = map.walk(walk, 200, |content, volume, block| {
        told.push((content, map.content(volume, block)));
    });
    assert!(told.len() <= 200);
    for pair in told.windows(2) {
        assert!(matches!(pair[0].1, Some(Content::Key(_))), "{pair:?}");
        assert!(pair[0].0 != pair[1].0 || pair[0].1 == pair[1].1, "{pair:?}");
    }
    if !more {
        *walk = Walk::new(3);
    }
}

/// More than there is room for.
fn fill(map: &mut DriveMap<u32>, volumes: &[Volume], model: &mut Model, seed: u64) {
    let mut x = seed | 1;
    for _ in 0..6_000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let volume = (x >> 8) as usize % 3;
        let event = Event::Learn(volume, (x >> 16) % 100_000, Some((x >> 40) as u32 % 3_000));
        apply(map, &mut volumes.to_vec(), event);
        tell(model, event);
    }
    assert!(map.counters().pages_evicted > 0);
}

fn is_true(map: &DriveMap<u32>, volumes: &[Volume], model: &Model, at: (usize, u64)) {
    match map.peek(volumes[at.0], at.1) {
        Source::Leader { volume, block } => {
            let leader = (volumes.iter().position(|v| *v == volume).unwrap(), block);
            assert_eq!(model.known[&leader], model.known[&at]);
        }
        Source::Zero => assert_eq!(model.known[&at].1, None),
        Source::Itself(_) => (),
    }
}

/// All sequences of five events on two volumes of one group, one block each, and one of another.
#[test]
fn all_short_histories() {
    let mut alphabet = Vec::new();
    for volume in 0..3 {
        for block in 0..2 {
            alphabet.extend([
                Event::Learn(volume, block, Some(1)),
                Event::Write(volume, block),
            ]);
        }
        alphabet.push(Event::Learn(volume, 0, Some(2)));
    }
    alphabet.push(Event::Learn(0, 1, None));
    alphabet.push(Event::Remove(0));
    let kinds = alphabet.len();
    for history in 0..kinds.pow(4) {
        let (mut map, mut volumes) = with_volumes(Config::UNBOUNDED);
        let mut model = Model::default();
        let mut rest = history;
        for _ in 0..4 {
            let event = alphabet[rest % kinds];
            rest /= kinds;
            apply(&mut map, &mut volumes, event);
            tell(&mut model, event);
        }
        map.check_invariants();
        for at in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
            agrees(&map, &volumes, &model, at);
        }
    }
}

fn one() -> (DriveMap<u32>, Volume) {
    let mut map = DriveMap::new(Config::bounded(1 << 20));
    let volume = map.add_volume(Group(0)).unwrap();
    (map, volume)
}

#[test]
fn a_stamp_is_void_after_a_write_began_and_after_it_ended() {
    let (mut map, volume) = one();
    let stamps = map.stamps(volume).unwrap();
    let before = map.stamp(volume, 5).unwrap();
    let write = stamps.begin(5..6, false);
    assert_eq!(map.stamp(volume, 5), None);
    assert_eq!(
        map.learned(volume, 5, Content::Key(1), How::Read, before),
        Learned::Stale
    );
    let after = stamps.end(write).stamp(5).unwrap();
    assert!(!map.holds(volume, 5, before));
    assert_eq!(
        map.learned(volume, 5, Content::Key(2), How::Write, after),
        Learned::New
    );
    assert_eq!(map.counters().stale, 1);
}

/// Of two writes at once nobody knows whose bytes are on the disk, whichever is answered last.
#[test]
fn writes_that_overlap_teach_nothing() {
    for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
        for inner_ends_first in [false, true] {
            let (mut map, volume) = one();
            let stamps = map.stamps(volume).unwrap();
            let outer = stamps.begin(0..1_000, first);
            let inner = stamps.begin(300..900, second);
            let (outer, inner) = if inner_ends_first {
                let inner = stamps.end(inner);
                (stamps.end(outer), inner)
            } else {
                let outer = stamps.end(outer);
                (outer, stamps.end(inner))
            };
            for ended in [&outer, &inner] {
                assert_eq!(ended.stamp(500), None);
                while map.learned_zeroes(volume, ended, 0..1_000, 10).is_some() {}
            }
            assert_eq!(map.peek(volume, 500), Source::Itself(Why::Unknown));
            map.check_invariants();
            let alone = stamps.begin(0..1_000, true);
            let alone = stamps.end(alone);
            while map.learned_zeroes(volume, &alone, 0..1_000, 10).is_some() {}
            assert_eq!(map.peek(volume, 500), Source::Zero);
        }
    }
}

#[test]
fn a_range_that_was_written_since_is_not_zeroes() {
    let (mut map, volume) = one();
    let stamps = map.stamps(volume).unwrap();
    for wide in [false, true] {
        let zeroing = stamps.begin(0..9_000, true);
        let zeroing = stamps.end(zeroing);
        let write = stamps.begin(700..701, wide);
        let write = stamps.end(write);
        while map.learned_zeroes(volume, &zeroing, 0..9_000, 10).is_some() {}
        assert_eq!(map.peek(volume, 700), Source::Itself(Why::Unknown));
        assert_eq!(map.peek(volume, 8_500), Source::Zero, "of another region");
        drop(write);
    }
}

/// What reads planned by the old content must not be given away.
#[test]
fn another_content_without_a_write_voids_stamps() {
    let (mut map, volume) = one();
    map.stamps(volume).unwrap();
    map.learn(volume, 5, Content::Key(1), How::Read);
    let stamp = map.stamp(volume, 5).unwrap();
    map.learn(volume, 5, Content::Key(1), How::Read);
    assert!(map.holds(volume, 5, stamp), "nothing new");
    map.learn(volume, 5, Content::Key(2), How::Read);
    assert!(!map.holds(volume, 5, stamp));
}

#[test]
fn a_volume_that_is_forgotten_keeps_its_writes_under_way() {
    let (mut map, volume) = one();
    let stamps = map.stamps(volume).unwrap();
    for block in [5, 700, 100_000] {
        map.learn(volume, block, Content::Key(1), How::Read);
    }
    map.learn(volume, 6, Content::Zero, How::Scan);
    let before = map.stamp(volume, 700).unwrap();
    let write = stamps.begin(5..6, false);
    map.forget_volume(volume);
    map.check_invariants();
    assert_eq!(map.known_blocks(), 0);
    assert_eq!(map.peek(volume, 6), Source::Itself(Why::Unknown));
    assert_eq!(
        map.learned(volume, 700, Content::Key(1), How::Read, before),
        Learned::Stale,
        "read before it was forgotten"
    );
    assert_eq!(map.stamp(volume, 5), None, "its write is under way");
    while map.reclaim(1) {
        map.check_invariants();
    }
    assert_eq!(map.contents(), 0);
    assert_eq!(stamps.end(write).stamp(5), None, "forgotten meanwhile");
}

#[test]
fn says_why_a_read_is_not_redirected() {
    let (mut map, volume) = one();
    let why = |map: &mut DriveMap<u32>, block| match map.read(volume, block) {
        Source::Itself(why) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&mut map, 0), Why::Unknown);
    map.learn(volume, 0, Content::Key(1), How::Read);
    assert_eq!(why(&mut map, 0), Why::Alone);
    map.learn(volume, 9, Content::Key(1), How::Scan);
    assert_eq!(why(&mut map, 9), Why::Leads);
    assert_eq!(map.read(volume, 0), Source::Leader { volume, block: 9 });
    map.learn(volume, 0, Content::Key(1), How::Read);
    assert_eq!(
        map.read(volume, 0),
        Source::Leader { volume, block: 9 },
        "nothing new"
    );
    map.overwrite(volume, 9);
    assert_eq!(why(&mut map, 9), Why::Written);
    assert_eq!(why(&mut map, 0), Why::Alone);
    map.learn(volume, 9, Content::Zero, How::Write);
    assert_eq!(map.read(volume, 9), Source::Zero);
    let c = map.counters();
    assert_eq!(
        (c.unknown, c.alone, c.leads, c.redirected, c.written, c.zero),
        (1, 2, 1, 2, 1, 1)
    );
    assert_eq!(c.reads(), 8);
    assert_eq!((c.by_read, c.by_scan, c.by_write), (1, 1, 1));
}

/// 20 bytes a known block where sharing is as on real guests (0.575 contents a block), and never more than allowed.
#[test]
fn who_led_before_is_the_next_of_the_stack() {
    let mut map = DriveMap::new(Config::bounded(1 << 20));
    let volume = map.add_volume(Group(0)).unwrap();
    let content = Content::Key(7_u32);
    map.learn(volume, 1, content, How::Read);
    assert_eq!(map.led_before(volume, 1), None);
    map.learn(volume, 2, content, How::Read);
    map.learn(volume, 3, content, How::Read);
    assert_eq!(map.led_before(volume, 3), Some((volume, 2)));
    // Who does not lead led before nobody.
    assert_eq!(map.led_before(volume, 2), None);
    map.overwrite(volume, 2);
    assert_eq!(map.led_before(volume, 3), Some((volume, 1)));
    assert_eq!(map.led_before(volume, 4), None);
}

#[test]
fn stays_within_its_bytes() {
    let mut map = DriveMap::<[u32; 3]>::new(Config::bounded(4 << 20));
    let volume = map.add_volume(Group(0)).unwrap();
    let mut most = 0;
    for block in 0..600_000_u32 {
        let key = [block / 2, 0, (block / 2).wrapping_mul(77)];
        map.learn(volume, block.into(), Content::Key(key), How::Scan);
        most = most.max(map.bytes());
    }
    map.check_invariants();
    assert!(most <= 4 << 20, "{most}");
    assert!(map.bytes() as f64 / map.known_blocks() as f64 <= 20.0);
    assert!(map.counters().contents_evicted + map.counters().pages_evicted > 0);
    assert_eq!(
        map.read(volume, 599_998),
        Source::Leader {
            volume,
            block: 599_999
        }
    );
}
