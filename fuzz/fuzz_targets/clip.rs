//! Any bytes as the file of a clip, any fragments behind a good movie, and any change of its tables: it is refused, or all that is
//! sent of it lies in the file, goes forward in time, and comes to an end, by itself and as a quality of
//! another; and what is cut of it as HLS lies in the file.
#![no_main]

use std::sync::Arc;

use bonsai_media::clip::{Announced, Clip, Finder, Fragment, Fragments};
use bonsai_media::hls::Film;
use bonsai_media::load::Level;
use bonsai_media::timeline::{Next, Timeline};
use libfuzzer_sys::fuzz_target;

/// The body of a small film's movie box.
const MOVIE: &[u8] = include_bytes!("../seeds/movie.bin");

/// Bytes of the file that it is of.
const FILE: u64 = 1 << 20;

/// Steps of a timeline: more are more of the same.
const STEPS: usize = 10_000;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    if first % 4 == 0 {
        return whole(rest);
    }
    if first % 4 == 1 {
        // The movie with an empty mvex behind it.
        let movie = [MOVIE, b"\0\0\0\x08mvex"].concat();
        let fragments = [Fragment {
            at: u64::from(*first),
            body: rest.to_vec(),
        }];
        cut(&movie, &fragments, FILE);
        if let Ok(clip) = Clip::read_with(&movie, &fragments, FILE) {
            play(clip, FILE, u64::from(*first));
        }
        return;
    }
    let mut movie = MOVIE.to_vec();
    for change in rest.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % movie.len();
        movie[at] = change[2];
    }
    cut(&movie, &[], FILE);
    if let Ok(clip) = Clip::read(&movie, FILE) {
        play(clip, FILE, u64::from(*first));
    }
});

/// Cuts a film into segments, of which the first and the last are looked at.
fn cut(movie: &[u8], fragments: &[Fragment], file: u64) {
    let Ok(film) = Film::read(movie, fragments, file) else {
        return;
    };
    let _ = film.master(&|track| track.to_string(), &[]);
    for track in 0.. {
        let (header, cues) = (film.header(track), film.cues(track));
        if header.is_none() && cues.is_none() && film.header(track + 1).is_none() {
            return;
        }
        let list = film.playlist(track, "", &|number| number.to_string());
        let count = list.map_or(0, |list| list.matches("#EXTINF").count());
        for number in [0, count.saturating_sub(1), count] {
            let segment = film.segment(track, number);
            for (offset, bytes) in segment.into_iter().flat_map(|segment| segment.ranges) {
                assert!(offset + bytes <= file);
            }
        }
    }
}

/// As a server finds its way through a file.
fn whole(file: &[u8]) {
    let length = file.len() as u64;
    let mut finder = Finder::new(length);
    loop {
        let (at, len) = finder.wants();
        let Some(header) = usize::try_from(at)
            .ok()
            .and_then(|at| file.get(at..at + len))
        else {
            panic!("it asks for what is not there");
        };
        match finder.found(header) {
            Err(_) => return,
            Ok(None) => {}
            Ok(Some((at, len))) => {
                let at = usize::try_from(at).expect("in the file");
                let movie = &file[at..at + len];
                let fragments = fragments(file, at + len);
                cut(movie, &fragments, length);
                if let Ok(clip) = Clip::read_with(movie, &fragments, length) {
                    play(clip, length, 0);
                }
                return;
            }
        }
    }
}

/// The fragments behind a movie, as a server finds them.
fn fragments(file: &[u8], end: usize) -> Vec<Fragment> {
    let mut walk = Fragments::new(end as u64, file.len() as u64);
    let mut found = Vec::new();
    while let Some((at, len)) = walk.wants() {
        let at = usize::try_from(at).expect("in the file");
        match walk.found(&file[at..at + len]) {
            Err(_) => break,
            Ok(None) => {}
            Ok(Some((at, body, len))) => {
                let body = usize::try_from(body).expect("in the file");
                let body = file[body..body + len].to_vec();
                found.push(Fragment { at, body });
            }
        }
    }
    found
}

fn play(clip: Clip, file: u64, from_s: u64) {
    for track in &clip.tracks {
        let mut before = i64::MIN;
        for sample in track.samples() {
            assert!(sample.offset + u64::from(sample.size()) <= file);
            assert!(track.decoded_ns(sample) >= before);
            before = track.decoded_ns(sample);
        }
    }
    for need in clip.needs(1388, |_, sample| Some(sample.offset % 2 == 0)) {
        let levels: Vec<u64> = Level::all().map(|level| need.at(level)).collect();
        assert!(levels.is_sorted_by(|one, other| one >= other));
    }
    let _ = clip.describe(&Announced {
        name: "clip",
        version: 1,
        address: [127, 0, 0, 1].into(),
    });
    let clip = Arc::new(clip);
    let good = Arc::new(Clip::read(MOVIE, FILE).expect("a clip"));
    for qualities in [vec![&clip], vec![&good, &clip], vec![&clip, &good]] {
        send(&qualities, from_s);
    }
}

/// Sends a clip, and goes over to another of its qualities now and then.
fn send(qualities: &[&Arc<Clip>], from_s: u64) {
    let [best, lower @ ..] = qualities else {
        return;
    };
    let tracks = best.tracks.len();
    let all = qualities.iter().flat_map(|clip| &clip.tracks);
    let samples: usize = all.map(|track| track.samples().len()).sum();
    let lower: Vec<Arc<Clip>> = lower.iter().map(|clip| Arc::clone(clip)).collect();
    let mut timeline = Timeline::with_lower(Arc::clone(best), lower.into());
    for track in 0..tracks {
        timeline.add(track, 7, u16::MAX, u32::MAX);
    }
    timeline.play(Some(from_s * 1_000_000_000), None, 0);
    let (mut now, mut sent) = (0, 0);
    for _ in 0..STEPS {
        let Some((due, next)) = timeline.next() else {
            return;
        };
        now = due.max(now);
        match next {
            Next::Sample(line) => {
                if timeline.switch(line, sent / 7 % qualities.len()) {
                    continue;
                }
                let _ = (timeline.behind(line), timeline.until_lower(line));
                let _ = timeline.header(line, 0, true);
                timeline.sent(line, 1, 100);
                timeline.advance(line, now);
                sent += 1;
                assert!(sent <= samples, "a sample is sent twice");
            }
            Next::Report => {
                for line in 0..tracks {
                    timeline.report(line, now, now);
                }
            }
            Next::End => {
                timeline.pause(now);
                assert!(timeline.next().is_none());
            }
        }
    }
}
