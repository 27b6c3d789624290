//! A clip whose rate varies: its viewers' meters go by its own clock, and not by bytes.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bonsai_media::clip::{Clip, Finder};
use bonsai_media::meter::{Criterion, Meter, Packet, Thresholds};
use bonsai_media::timeline::{Next, Timeline};

use crate::support::skip;

const SECOND: u64 = 1_000_000_000;
/// Of each packet.
const PAYLOAD: u32 = 1_400;

/// Eight seconds, of which two are noise, in even quality; `None`, and the reason in the log, without ffmpeg.
fn uneven(test: &str, folder: &Path) -> Option<PathBuf> {
    let path = folder.join("uneven.mp4");
    let pictures = "testsrc2=size=320x240:rate=25:duration=8,\
                    noise=alls=80:allf=t:enable='between(t,3,5)'";
    let sound = "sine=frequency=440:sample_rate=48000:duration=8";
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", pictures])
        .args(["-f", "lavfi", "-i", sound])
        .args(["-c:v", "libx264", "-preset", "veryfast", "-crf", "26"])
        .args(["-g", "50", "-bf", "3", "-pix_fmt", "yuv420p", "-c:a", "aac"])
        .arg(&path)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        skip(test, "ffmpeg is not installed, or has no x264");
        return None;
    }
    Some(path)
}

fn read(path: &Path) -> Clip {
    let file = std::fs::File::open(path).expect("a file");
    let bytes = file.metadata().expect("its length").len();
    let mut finder = Finder::new(bytes);
    let (at, length) = loop {
        let (at, length) = finder.wants();
        let mut header = vec![0; length];
        file.read_exact_at(&mut header, at).expect("read");
        if let Some(found) = finder.found(&header).expect("boxes") {
            break found;
        }
    };
    let mut movie = vec![0; length];
    file.read_exact_at(&mut movie, at).expect("read");
    Clip::read(&movie, bytes).expect("a clip")
}

/// All packets of a clip, each when it is due, with its line.
fn packets(clip: &Arc<Clip>) -> Vec<(usize, Packet)> {
    let mut timeline = Timeline::new(clip.clone());
    for track in 0..clip.tracks.len() {
        timeline.add(track, 7, 65_500, 0xffff_0000);
    }
    timeline.play(None, None, SECOND);
    let mut packets = Vec::new();
    while let Some((at_ns, next)) = timeline.next() {
        match next {
            Next::Sample(line) => {
                let size = timeline.sample(line).expect("it is due").size();
                let count = size.div_ceil(PAYLOAD);
                for number in 0..u16::try_from(count).expect("small") {
                    let header = timeline.header(line, number, false);
                    let payload = PAYLOAD.min(size - u32::from(number) * PAYLOAD);
                    let (sequence, timestamp) = (header.sequence, header.timestamp);
                    packets.push((
                        line,
                        Packet {
                            at_ns,
                            ssrc: 7,
                            sequence,
                            timestamp,
                            payload,
                        },
                    ));
                }
                timeline.sent(line, u16::try_from(count).expect("small"), 0);
                timeline.advance(line, at_ns);
            }
            Next::Report => {
                timeline.report(0, at_ns, at_ns);
            }
            Next::End => break,
        }
    }
    packets
}

fn meters(clip: &Clip) -> Vec<Meter> {
    let tracks = clip.tracks.iter();
    tracks
        .map(|track| Meter::new(track.clock_rate, SECOND))
        .collect()
}

#[test]
fn a_clip_whose_rate_varies_is_on_time_in_each_of_its_parts() {
    const TEST: &str = "a_clip_whose_rate_varies_is_on_time_in_each_of_its_parts";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = uneven(TEST, folder.path()) else {
        return;
    };
    let clip = Arc::new(read(&path));
    let packets = packets(&clip);
    let bits = |from: u64, to: u64| -> u64 {
        let within = packets.iter().filter(|(line, packet)| {
            *line == 0 && (from * SECOND..to * SECOND).contains(&packet.at_ns)
        });
        within
            .map(|(_, packet)| u64::from(packet.payload) * 8)
            .sum()
    };
    // It is what the test is of: noise takes several times as much.
    assert!(
        bits(4, 6) > 3 * bits(2, 4),
        "{} and {}",
        bits(4, 6),
        bits(2, 4)
    );
    let mut meters = meters(&clip);
    let mut looks = (15..85).map(|tenth| tenth * SECOND / 10).peekable();
    for (line, packet) in &packets {
        while let Some(at) = looks.next_if(|at| *at < packet.at_ns) {
            for (track, meter) in clip.tracks.iter().zip(&meters) {
                let report = meter.report(at);
                let kind = track.kind();
                assert!(
                    (report.pace - 1.0).abs() < 0.01,
                    "{kind} at {at}: {report:?}"
                );
                assert!(report.lag_ns.abs() < 10e6, "{kind} at {at}: {report:?}");
            }
        }
        meters[*line].arrive(packet);
    }
    for (track, meter) in clip.tracks.iter().zip(&meters) {
        let report = meter.report(meter.last_ns().expect("some"));
        let verdict = Thresholds::default().judge(&report);
        // By both readings of RFC 3550, the order that pictures are sent in is jitter.
        let broken = verdict.broken.iter().filter(|of| **of != Criterion::Jitter);
        assert_eq!(broken.count(), 0, "{}: {report:?}", track.kind());
        // What the server announces is the mean of all of it, and so is what came over what it plays.
        let rate = report.bytes as f64 * 8e9 / report.covered_ns;
        let announced = track.bits_per_sec as f64;
        assert!(
            (rate / announced - 1.0).abs() < 0.02,
            "{}: {rate} and {announced}",
            track.kind()
        );
    }
}

#[test]
fn a_clip_whose_rate_varies_is_late_where_it_is_held_to_its_mean() {
    const TEST: &str = "a_clip_whose_rate_varies_is_late_where_it_is_held_to_its_mean";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = uneven(TEST, folder.path()) else {
        return;
    };
    let clip = Arc::new(read(&path));
    let packets = packets(&clip);
    let bytes: u64 = packets
        .iter()
        .map(|(_, packet)| u64::from(packet.payload))
        .sum();
    let mut meters = meters(&clip);
    // One after the other, and each takes as long as it has at that rate.
    let mut free = 0;
    for (line, packet) in &packets {
        let at_ns = packet.at_ns.max(free);
        free = at_ns + u64::from(packet.payload) * clip.length_ns / bytes;
        meters[*line].arrive(&Packet { at_ns, ..*packet });
    }
    let report = meters[0].report(meters[0].last_ns().expect("some"));
    let verdict = Thresholds::default().judge(&report);
    assert_eq!(report.lost, 0);
    assert!(verdict.broken.contains(&Criterion::Lag), "{report:?}");
}
