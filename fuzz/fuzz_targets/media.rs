//! Any bytes as what a server of media sends: messages, descriptions, packets and reports. A viewer's
//! session takes them in any pieces alike, and a meter's numbers belong together.
#![no_main]

use bonsai_media::description::Description;
use bonsai_media::meter::{Meter, Thresholds};
use bonsai_media::rtsp::{Client, Lower, Url};
use bonsai_media::{rtcp, rtp};
use bonsai_stream::capture::{self, Clocks};
use libfuzzer_sys::fuzz_target;

const STEP: u64 = 1_000_000_000;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let url = Url::parse("rtsp://127.0.0.1/clip").expect("an address");
    match first % 5 {
        0 => {
            let whole = session(&url, rest, rest.len().max(1));
            assert_eq!(whole, session(&url, rest, usize::from(first / 5) % 7 + 1));
        }
        1 => {
            if let Ok(read) = Description::read(rest, &url) {
                assert!((1..=16).contains(&read.tracks.len()));
                assert!(read.tracks.iter().all(|track| track.clock_rate > 0));
            }
        }
        2 => packets(rest),
        3 => rtcp::read(rest, |_| {}),
        _ => {
            if let Ok(read) = capture::read(rest, &Clocks::new(), &Thresholds::default()) {
                let packets: u64 = read.streams.iter().map(|of| of.stream.received).sum();
                assert!(packets <= read.frames);
            }
        }
    }
});

/// What a viewer makes of it in pieces of that size: its phase, what it asks, and why it ended.
fn session(url: &Url, bytes: &[u8], size: usize) -> (String, Vec<u8>, usize) {
    let mut client = Client::new(url.clone(), Lower::Tcp, STEP, 0);
    let mut heard = 0;
    for piece in bytes.chunks(size) {
        if let Err(failure) = client.receive(piece, 0, |packet| heard += packet.bytes.len()) {
            return (failure.to_string(), Vec::new(), heard);
        }
        if let Some(track) = client.needs_ports() {
            panic!("ports of track {track} among the messages");
        }
    }
    (format!("{:?}", client.phase()), client.out().clone(), heard)
}

/// Packets of 16 bytes, each with the time since the one before.
fn packets(bytes: &[u8]) {
    let mut meter = Meter::new(90_000, 0);
    let (mut at, mut given) = (0, 0);
    for one in bytes.chunks_exact(16) {
        at += u64::from(u32::from_le_bytes([one[0], one[1], one[2], 0]));
        // A header that can be read, but for its numbers.
        let mut packet = [0x80; 16];
        packet[1] = 96;
        packet[2..12].copy_from_slice(&one[4..14]);
        if let Some(packet) = rtp::read(&packet, at, 96) {
            meter.arrive(&packet);
            given += 1;
        }
    }
    let report = meter.report(at);
    let unique = report.received - report.duplicates;
    assert_eq!(report.expected, unique + report.lost);
    assert_eq!(report.received + report.strays, given);
    assert!((0.0..=1.0).contains(&report.loss) && report.gap_max_ns <= at);
    let verdict = Thresholds::default().judge(&report);
    assert!(!verdict.honest || verdict.paper);
}
