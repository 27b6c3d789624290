//! Streams through parts that a program brings.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use bonsai_stream::serve::{
    Codec, Format, PaceView, Pacer, Packetiser, Payloads, QualityView, Selector, Source, Wanted,
    Whole,
};

use crate::parts::{Seen, pictures, served};
use crate::serve::{set_up, status};
use crate::support::{Viewer, clip};

/// What they carry.
fn payloads(packets: &[Vec<u8>]) -> Vec<&[u8]> {
    packets.iter().map(|packet| &packet[12..]).collect()
}

/// Pictures with a byte before each, a few hundred bytes at a time.
#[derive(Debug)]
struct Wrapped(u8);

impl Packetiser for Wrapped {
    fn takes(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::H264 { .. })
    }

    fn announce(&self, _: &Codec, format: &mut Format) {
        format.encoding = format.encoding.replace("H264", "x-wrapped");
    }

    fn payloads(&self, sample: &Whole<'_>, payloads: &mut Payloads) -> Result<(), String> {
        for part in sample.bytes.chunks(sample.most - 1) {
            payloads.push(&[&[self.0], part]);
        }
        Ok(())
    }
}

/// Bytes of a file that were written otherwise.
#[derive(Debug)]
struct Inverted;

impl Source for Inverted {
    fn read(&mut self, wanted: &Wanted<'_>, bytes: &mut [u8]) -> io::Result<()> {
        assert!(wanted.at as usize + bytes.len() <= wanted.size as usize);
        let at = wanted.offset + u64::from(wanted.at);
        wanted.file.read_exact_at(bytes, at)?;
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(())
    }
}

/// Half of the way through a sample, as late as there is room.
#[derive(Debug)]
struct Half(Arc<Mutex<BTreeSet<u32>>>);

impl Pacer for Half {
    fn at(&mut self, sample: &PaceView) -> u64 {
        assert!(sample.sent > 0 && sample.sent < sample.bytes && sample.packets > 1);
        self.0.lock().expect("one thread").insert(sample.sent);
        match sample.sent < sample.bytes / 2 {
            true => 0,
            false => u64::MAX,
        }
    }
}

#[derive(Debug)]
struct Same;

impl Selector for Same {
    fn quality(&mut self, view: &QualityView<'_>) -> usize {
        view.current
    }
}

/// Turns the bytes of a clip's samples, all of which are in its box `mdat`.
fn invert(path: &Path) {
    let mut bytes = std::fs::read(path).expect("a clip");
    let mut at = 0;
    while at < bytes.len() {
        let size = bytes[at..at + 4].try_into().expect("four");
        let end = at + u32::from_be_bytes(size) as usize;
        if &bytes[at + 4..at + 8] == b"mdat" {
            bytes[at + 8..end]
                .iter_mut()
                .for_each(|byte| *byte = !*byte);
        }
        at = end;
    }
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn parts_that_a_program_brings_are_used_by_their_names() {
    const TEST: &str = "parts_that_a_program_brings_are_used_by_their_names";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let turned = folder.path().join("turned.mp4");
    std::fs::copy(&path, &turned).expect("copied");
    invert(&turned);
    for source in ["packet", "sample"] {
        let way = format!(
            "[[pipeline]]\nclips = [\"turned.mp4\"]\nsource = [\"{source}\", \"inverted\"]\n\
             packetiser = \"wrapped=7\"\npacer = \"half\"\nsink = [\"tcp\", \"seen\"]\nselector = \"same\"\n"
        );
        let (seen, sent) = (Seen::default(), Arc::default());
        let served = served(folder.path(), &way, |plan| {
            let (seen, sent) = (seen.clone(), Arc::clone(&sent));
            let parts = &mut plan.parts;
            parts.register_source("inverted", |_| Ok(Arc::new(|_| Ok(Box::new(Inverted)))));
            parts.register_packetiser("wrapped", |value| {
                let byte = value
                    .parse()
                    .map_err(|_| "wrapped: write a byte".to_owned())?;
                Ok(Arc::new(Wrapped(byte)))
            });
            parts.register_pacer("half", move |_| {
                let sent = Arc::clone(&sent);
                Ok(Arc::new(move |_| Ok(Box::new(Half(Arc::clone(&sent))))))
            });
            parts.register_sink("seen", move |_| {
                let seen = seen.clone();
                Ok(Arc::new(move |_| Ok(Box::new(seen.clone()))))
            });
            parts.register_selector("same", |_| Ok(Arc::new(|_| Ok(Box::new(Same)))));
        });
        let answer =
            Viewer::new(served.at).ask(&format!("DESCRIBE {}", served.url("turned.mp4")), "");
        assert!(answer.contains("96 x-wrapped/90000"), "{answer}");
        let got = pictures(served.at, "turned.mp4");
        served.end();
        let copies = seen.packets.lock().expect("one thread");
        let copies: Vec<Vec<u8>> = copies.iter().map(|(.., bytes)| bytes.clone()).collect();
        assert_eq!(copies, got);
        assert!(payloads(&got).iter().all(|payload| payload[0] == 7));
        assert!(sent.lock().expect("one thread").len() > 4);
        // All of what ffmpeg reads in the clip that was not turned.
        let raw = Command::new("ffmpeg")
            .args(["-v", "error", "-i"])
            .arg(&path)
            .args(["-map", "0:v", "-c", "copy", "-f", "data", "-"])
            .output()
            .expect("ffmpeg");
        let carried: Vec<u8> = payloads(&got)
            .iter()
            .flat_map(|of| of[1..].to_vec())
            .collect();
        assert!(
            carried == raw.stdout,
            "{} and {} bytes",
            carried.len(),
            raw.stdout.len()
        );
    }
}

#[test]
fn what_a_program_makes_wrong_ends_its_stream_and_no_other() {
    #[derive(Debug)]
    struct Wrong;
    impl Packetiser for Wrong {
        fn takes(&self, _: &Codec) -> bool {
            true
        }
        fn payloads(&self, sample: &Whole<'_>, payloads: &mut Payloads) -> Result<(), String> {
            payloads.push(&[&vec![0; sample.most + 1]]);
            Ok(())
        }
    }
    #[derive(Debug)]
    struct Gone;
    impl Source for Gone {
        fn read(&mut self, wanted: &Wanted<'_>, _: &mut [u8]) -> io::Result<()> {
            Err(io::Error::other(format!("{} is elsewhere", wanted.clip)))
        }
    }
    const TEST: &str = "what_a_program_makes_wrong_ends_its_stream_and_no_other";
    const WAY: &str = "[[pipeline]]\nclips = [\"one.mp4\"]\npacketiser = \"wrong\"\n\
                       [[pipeline]]\nclips = [\"two.mp4\"]\nsource = [\"sample\", \"gone\"]\n\
                       [[pipeline]]\nclips = [\"three.mp4\"]\npacer = \"none\"\n";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    for name in ["one.mp4", "two.mp4", "three.mp4"] {
        std::fs::copy(&path, folder.path().join(name)).expect("copied");
    }
    let served = served(folder.path(), WAY, |plan| {
        let parts = &mut plan.parts;
        parts.register_packetiser("wrong", |_| Ok(Arc::new(Wrong)));
        parts.register_source("gone", |_| Ok(Arc::new(|_| Ok(Box::new(Gone)))));
        parts.register_pacer("none", |_| {
            Ok(Arc::new(|_| Err("there is no pacer today".to_owned())))
        });
    });
    for (name, why) in [
        ("one.mp4", "made a payload of 1389 bytes, where 1 to 1388"),
        ("two.mp4", "two.mp4 is elsewhere"),
    ] {
        let url = served.url(name);
        let mut viewer = Viewer::new(served.at);
        let name = set_up(&mut viewer, &url);
        assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
        served.wait_for(why);
    }
    let line = format!("SETUP {}/track1", served.url("three.mp4"));
    let answer = Viewer::new(served.at).ask(&line, crate::serve::TCP);
    assert_eq!(status(&answer), 500, "{answer}");
    served.wait_for("there is no pacer today");
    assert_eq!(
        pictures(served.at, "clip.mp4")
            .iter()
            .filter(|of| of[1] & 0x80 != 0)
            .count(),
        100
    );
}

/// The lowest there is.
#[derive(Debug)]
struct Lowest;

impl Selector for Lowest {
    fn quality(&mut self, view: &QualityView<'_>) -> usize {
        let [best, lower] = view.bits_per_sec else {
            panic!("{view:?}");
        };
        assert!(best > lower && view.server == 0, "{view:?}");
        usize::MAX
    }
}

#[test]
fn a_selector_says_which_quality_is_sent() {
    const TEST: &str = "a_selector_says_which_quality_is_sent";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-i"])
        .arg(&path)
        .args([
            "-c:v", "libx264", "-g", "25", "-b:v", "150k", "-c:a", "copy",
        ])
        .arg(folder.path().join("clip-low.mp4"))
        .status();
    assert!(made.expect("ffmpeg").success());
    for selector in ["lowest", "fixed=1"] {
        let way = format!(
            "[[pipeline]]\nclips = [\"clip.mp4\"]\nlower = [\"{{}}-low.mp4\"]\nselector = \"{selector}\"\n"
        );
        let served = served(folder.path(), &way, |plan| {
            let parts = &mut plan.parts;
            parts.register_selector("lowest", |_| Ok(Arc::new(|_| Ok(Box::new(Lowest)))));
        });
        let at = served.at;
        let other = std::thread::spawn(move || pictures(at, "clip-low.mp4"));
        let seen = pictures(at, "clip.mp4");
        let other = other.join().expect("it is seen");
        assert!(payloads(&seen) == payloads(&other), "{selector}");
        served.end();
    }
}
