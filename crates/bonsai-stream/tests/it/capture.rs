//! Streams of captures, beside what tshark says of the same files.

use std::process::Command;

use bonsai_media::meter::Thresholds;
use bonsai_stream::capture::{Capture, ClockBy, Clocks, Error, read};

use crate::film::{FROM, Format, SSRC, TO, datagram, file, film, packet};
use crate::support::skip;

const FORMATS: [Format; 3] = [Format::Pcap(false), Format::Pcap(true), Format::PcapNg];

fn streams(file: &[u8]) -> Result<Capture, Error> {
    read(file, &Clocks::from([(96, 90_000)]), &Thresholds::default())
}

#[test]
fn each_format_and_link_gives_the_same_stream() {
    for format in FORMATS {
        for link in [1, 101, 113, 276] {
            let capture = streams(&file(format, link, &film())).expect("read");
            assert_eq!(
                (capture.frames, capture.unread, capture.is_cut_off),
                (498, 0, false)
            );
            let [one] = &capture.streams[..] else {
                panic!("{format:?}, {link}: {capture:#?}");
            };
            assert_eq!((one.from.port(), one.to.port(), one.ssrc), (FROM, TO, SSRC));
            assert_eq!((one.clock_rate, one.clock_by), (90_000, ClockBy::Told));
            let of = &one.stream;
            assert_eq!(
                (of.expected, of.received, of.lost),
                (500, 498, 3),
                "{of:#?}"
            );
            assert_eq!(
                (of.duplicates, of.reordered, of.strays),
                (1, 1, 0),
                "{of:#?}"
            );
            assert_eq!((of.bytes, of.bursts.bursts), (498_000, 1), "{of:#?}");
            let longest = longest(&film());
            assert!(
                longest.abs_diff(of.gap_max_ns) < 1_000,
                "{format:?}: {of:#?}"
            );
        }
    }
}

fn longest(frames: &[(u64, Vec<u8>)]) -> u64 {
    let gaps = frames.windows(2).map(|two| two[1].0 - two[0].0);
    gaps.max().expect("some")
}

#[test]
fn what_is_no_stream_is_none_and_a_clock_is_guessed() {
    let mut frames = film();
    // One packet, and datagrams that look like one but for their numbers.
    frames.push((
        0,
        datagram(53, &[0x80, 0x10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ));
    for number in [7_u8, 9, 200, 3] {
        let bytes = [0x80, 0x21, 0, number, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        frames.push((0, datagram(5_353, &bytes)));
    }
    frames.push((0, datagram(54, b"hello")));
    let bytes = file(Format::Pcap(true), 1, &frames);
    let capture = read(&bytes[..], &Clocks::new(), &Thresholds::default()).expect("read");
    let [one] = &capture.streams[..] else {
        panic!("{capture:#?}");
    };
    assert_eq!((one.clock_rate, one.clock_by), (90_000, ClockBy::Packets));
    assert_eq!(one.stream.lost, 3);
}

#[test]
fn a_capture_that_ends_in_a_frame_is_read_up_to_there_and_what_is_none_is_refused() {
    for format in FORMATS {
        let whole = file(format, 1, &film());
        let cut = streams(&whole[..whole.len() - 500]).expect("read");
        assert!(cut.is_cut_off, "{format:?}");
        assert_eq!(cut.frames, 497, "{format:?}");
        assert!(matches!(
            streams(&file(format, 147, &film())),
            Err(Error::Link(147))
        ));
    }
    for bytes in [&b""[..], b"hello", &[0; 1_000]] {
        assert!(matches!(streams(bytes), Err(Error::Foreign)), "{bytes:?}");
    }
    // A frame longer than any that is written.
    let mut damaged = file(Format::Pcap(false), 1, &[packet(0, 1, 0)]);
    damaged[24 + 8..24 + 12].fill(0xff);
    damaged.resize(2 << 20, 0);
    assert!(matches!(
        streams(&damaged),
        Err(Error::Damaged { frames: 0 })
    ));
}

/// What tshark says of a stream: packets, lost, and the longest time between two, ms.
fn tshark(path: &std::path::Path) -> Option<(u64, i64, f64)> {
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(path)
        .args(["-d", &format!("udp.port=={TO},rtp")]);
    let said = command.args(["-q", "-z", "rtp,streams"]).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("0x12345678"));
    let line = line.unwrap_or_else(|| panic!("a stream: {said:?}"));
    // ... SSRC, payload, packets, "3 (0.6%)", delta min, mean, max, jitter ...
    let mut words = line
        .split_whitespace()
        .skip_while(|word| *word != "0x12345678")
        .skip(2);
    let packets = words.find_map(|word| word.parse().ok()).expect("packets");
    let lost = words
        .next()
        .and_then(|word| word.parse().ok())
        .expect("lost");
    let longest = words.skip(3).find_map(|word| word.parse().ok());
    Some((packets, lost, longest.expect("the longest")))
}

#[test]
fn tshark_counts_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("film.pcap");
    // It counts what came twice or late as it comes, so of those there are none here.
    let mut frames: Vec<_> = film();
    frames.remove(250);
    frames.swap(200, 201);
    let times: Vec<u64> = film()
        .iter()
        .map(|(at, _)| *at)
        .take(frames.len())
        .collect();
    for (frame, at) in frames.iter_mut().zip(times) {
        frame.0 = at;
    }
    std::fs::write(&path, file(Format::Pcap(true), 1, &frames)).expect("written");
    let Some((packets, lost, longest_ms)) = tshark(&path) else {
        return skip("tshark_counts_the_same", "tshark is not installed");
    };
    let capture = streams(&std::fs::read(&path).expect("there")).expect("read");
    let of = &capture.streams[0].stream;
    assert_eq!(
        (of.received, i64::try_from(of.lost).ok()),
        (packets, Some(lost))
    );
    let ours = of.gap_max_ns as f64 / 1e6;
    assert!(
        (ours - longest_ms).abs() < 0.1,
        "{ours} and {longest_ms} ms"
    );
}
