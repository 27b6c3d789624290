//! The DRIVE map: any sequence of events, its invariants after each, and every redirect true.
#![no_main]

use std::collections::HashMap;

use bonsai_dedup::drive::{Config, Content, DriveMap, Group, How, Learned, MIN_BYTES, Source, Walk};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else {
        return;
    };
    let mut map = DriveMap::new(Config {
        max_bytes: MIN_BYTES,
        max_walk: u32::from(first),
    });
    let groups = [Group(0), Group(0), Group(1)];
    let mut volumes = groups.map(|group| map.add_volume(group).expect("room for a volume"));
    let mut true_contents = HashMap::new();
    let mut walk = Walk::new(1);
    for event in rest.chunks_exact(4) {
        let v = usize::from(event[0] >> 3) % 3;
        let volume = volumes[v];
        let block = u64::from(event[1]) << (event[0] >> 5) * 2;
        let key = u32::from(event[2]) | u32::from(event[3] & 3) << 8;
        match event[0] & 7 {
            0 => {
                let Some(stamps) = map.stamps(volume) else {
                    continue;
                };
                let change = stamps.begin(block..block + 1, false);
                map.forget_range(volume, block..block + 1, 1);
                true_contents.remove(&(volume, block));
                let stamp = stamps.end(change).stamp(block).expect("it was alone");
                let learned = map.learned(volume, block, Content::Key(key), How::Write, stamp);
                assert_ne!(learned, Learned::Stale);
                true_contents.insert((volume, block), Content::Key(key));
            }
            1 => map.trimmed(volume, block),
            2 if event[3] == 0 => {
                map.remove_volume(volume);
                volumes[v] = map.add_volume(groups[v]).expect("room for a volume");
            }
            2 if event[3] == 1 => {
                map.forget_volume(volume);
                true_contents.retain(|(of, _), _| *of != volume);
            }
            3 => {
                let end = block + u64::from(event[2]) + 1;
                map.enter_zeroes(volume, block..end, How::Read, u32::MAX);
                true_contents.extend((block..end).map(|block| ((volume, block), Content::Zero)));
            }
            _ => {
                map.learn(volume, block, Content::Key(key), How::Scan);
                true_contents.insert((volume, block), Content::Key(key));
            }
        }
        match map.read(volume, block) {
            Source::Leader { volume: v, block: b } => {
                assert_eq!(true_contents[&(v, b)], true_contents[&(volume, block)]);
            }
            Source::Zero => assert_eq!(true_contents[&(volume, block)], Content::Zero),
            Source::Itself(_) => (),
        }
        let mut told = Vec::new();
        if !map.walk(&mut walk, 2, |_, v, b| told.push((v, b))) {
            walk = Walk::new(1);
        }
        for (v, b) in told {
            assert_eq!(Some(true_contents[&(v, b)]), map.content(v, b));
        }
        map.check_invariants();
    }
});
