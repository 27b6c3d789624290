//! Streams through the parts that there are.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower, Url};
use bonsai_stream::serve::{Engine, PacketView, Pipelines, Plan, ReportView, Sink};
use bonsai_stream::watch::{Arrivals, Plan as Watch, Video, watch};

use crate::serve::{has_bye, is_bye, set_up, status};
use crate::support::{Served, Viewer, clip, plan};

pub(crate) fn served(root: &Path, ways: &str, change: impl FnOnce(&mut Plan)) -> Served {
    let mut plan = plan(root, Engine::Classic);
    change(&mut plan);
    let read = Pipelines::read(ways, plan.engine, &plan.parts);
    plan.pipelines = read.expect("right");
    Served::new(plan)
}

/// All packets of a clip's pictures, as they come in the connection, to the farewell.
pub(crate) fn pictures(at: SocketAddr, clip: &str) -> Vec<Vec<u8>> {
    let url = format!("rtsp://{at}/{clip}");
    let mut viewer = Viewer::new(at);
    let name = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    while !viewer.packets.iter().any(is_bye) {
        assert_eq!(viewer.next(), None);
    }
    let packets = viewer.packets.into_iter();
    let of = packets.filter(|(channel, _)| *channel == 0);
    of.map(|(_, bytes)| bytes).collect()
}

/// The pictures of a file or a stream, as ffmpeg decodes them.
fn decoded(input: &str) -> Command {
    let mut player = Command::new("timeout");
    player.args(["120", "ffmpeg", "-v", "error"]);
    if input.starts_with("rtsp:") {
        player.args(["-rtsp_transport", "tcp"]);
    }
    player.args(["-i", input, "-map", "0:v", "-fps_mode", "passthrough"]);
    player.args(["-f", "framemd5", "-"]);
    player
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    player
}

fn sums(output: &std::process::Output) -> Vec<String> {
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let last = |line: &str| {
        line.rsplit(',')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    lines.map(last).collect()
}

/// The clip again, with units that fit in a packet each.
fn sliced(folder: &Path) {
    let status = Command::new("ffmpeg")
        .args(["-v", "error", "-i"])
        .arg(folder.join("clip.mp4"))
        .args(["-c:v", "libx264", "-preset", "veryfast", "-g", "25"])
        .args(["-x264-params", "slice-max-size=1200", "-c:a", "copy", "-y"])
        .arg(folder.join("single.mp4"))
        .status();
    assert!(status.expect("ffmpeg").success());
}

const WAYS: &str = r#"
    [[pipeline]]
    clips = ["spread.mp4"]
    source = "sample"
    pacer = "spread=0.8"

    [[pipeline]]
    clips = ["apart.mp4"]
    source = "packet"
    pacer = "spread"

    [[pipeline]]
    clips = ["together.mp4"]
    source = "sample"
    packetiser = "together=600"

    [[pipeline]]
    clips = ["single.mp4"]
    packetiser = "single=1300"

    [[pipeline]]
    clips = ["memory.mp4"]
    source = ["sample", "memory=16MiB"]

    [[pipeline]]
    clips = ["kept.mp4"]
    source = ["packet", "memory=16MiB"]

    [[pipeline]]
    clips = ["all.mp4"]
    source = ["sample", "memory=1MiB"]
    packetiser = "together"
    pacer = "spread=1"
    sink = ["udp", "tcp", "udp-to=127.0.0.1:9"]
    selector = "fixed=0"
"#;

const CLIPS: [&str; 7] = [
    "spread.mp4",
    "apart.mp4",
    "together.mp4",
    "single.mp4",
    "memory.mp4",
    "kept.mp4",
    "all.mp4",
];

/// The clips that [`WAYS`] are for.
fn clips(test: &str, folder: &Path) -> bool {
    let Some(path) = clip(test, folder) else {
        return false;
    };
    for name in CLIPS.into_iter().filter(|name| *name != "single.mp4") {
        std::fs::copy(&path, folder.join(name)).expect("copied");
    }
    sliced(folder);
    true
}

#[test]
fn ffmpeg_decodes_the_same_through_each_part() {
    const TEST: &str = "ffmpeg_decodes_the_same_through_each_part";
    let folder = tempfile::tempdir().expect("a folder");
    if !clips(TEST, folder.path()) {
        return;
    }
    let served = served(folder.path(), WAYS, |_| ());
    let players = CLIPS.map(|name| {
        let player = decoded(&served.url(name)).spawn();
        (name, player.expect("ffmpeg"))
    });
    let whole = sums(
        &decoded(&folder.path().join("clip.mp4").to_string_lossy())
            .output()
            .expect("ffmpeg"),
    );
    let small = sums(
        &decoded(&folder.path().join("single.mp4").to_string_lossy())
            .output()
            .expect("ffmpeg"),
    );
    assert_eq!((whole.len(), small.len()), (100, 100));
    for (name, player) in players {
        let seen = sums(&player.wait_with_output().expect("it ends"));
        let expected = if name == "single.mp4" { &small } else { &whole };
        assert_eq!(&seen, expected, "{name}");
    }
    let summary = served.end();
    assert_eq!((summary.dropped, summary.unsent), (0, 0));
}

#[test]
fn viewers_lose_nothing_through_each_part() {
    const TEST: &str = "viewers_lose_nothing_through_each_part";
    let folder = tempfile::tempdir().expect("a folder");
    if !clips(TEST, folder.path()) {
        return;
    }
    let served = served(folder.path(), WAYS, |_| ());
    std::thread::scope(|scope| {
        for (seed, name) in (1..).zip(CLIPS) {
            let (url, server) = (served.url(name), served.at);
            scope.spawn(move || {
                let outcome = watch(
                    &Watch {
                        videos: vec![Video {
                            url: Url::parse(&url).expect("an address"),
                            server,
                        }],
                        lower: Lower::Udp,
                        viewers: 2,
                        arrivals: Arrivals::Crowd,
                        length: Duration::from_secs(30),
                        step: Duration::from_secs(20),
                        threads: 1,
                        seed,
                        thresholds: Thresholds::default(),
                    },
                    &|_, _| (),
                )
                .expect("they watch");
                for viewer in &outcome.viewers {
                    assert_eq!((&viewer.failure, viewer.tracks.len()), (&None, 2), "{name}");
                    for track in &viewer.tracks {
                        let stream = &track.stream;
                        let counts = (stream.lost, stream.duplicates, stream.reordered);
                        assert_eq!(counts, (0, 0, 0), "{name}: {stream:?}");
                        assert!(
                            stream.received > 40 && stream.pace < 1.05,
                            "{name}: {stream:?}"
                        );
                    }
                }
            });
        }
    });
    let summary = served.end();
    assert_eq!(
        (summary.sessions, summary.dropped, summary.unsent),
        (14, 0, 0)
    );
}

#[test]
fn a_clip_is_described_as_its_packets_are() {
    const TEST: &str = "a_clip_is_described_as_its_packets_are";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    std::fs::copy(
        folder.path().join("clip.mp4"),
        folder.path().join("single.mp4"),
    )
    .expect("copied");
    let served = served(folder.path(), WAYS, |_| ());
    for (name, mode) in [("clip.mp4", 1), ("single.mp4", 0)] {
        let answer = Viewer::new(served.at).ask(&format!("DESCRIBE {}", served.url(name)), "");
        let said = format!("packetization-mode={mode};");
        assert!(answer.contains(&said), "{answer}");
    }
    // Its units are none that go alone.
    let url = served.url("single.mp4");
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    let told = served.wait_for("Ended");
    assert!(told.contains("its packetiser: a unit of"), "{told}");
    assert!(told.contains("slice-max-size=1300"), "{told}");
    // Others go on.
    let answer = Viewer::new(served.at).ask(&format!("DESCRIBE {}", served.url("clip.mp4")), "");
    assert_eq!(status(&answer), 200);
}

/// A packet that a sink has seen: when, of which track, and its bytes.
pub(crate) type Packet = (u64, usize, Vec<u8>);

/// What a sink has seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) packets: Arc<Mutex<Vec<Packet>>>,
    reports: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Sink for Seen {
    fn packet(&mut self, packet: &PacketView<'_>) -> io::Result<()> {
        let bytes = [packet.head, packet.body].concat();
        let mut packets = self.packets.lock().expect("one thread");
        packets.push((packet.now_ns, packet.track, bytes));
        Ok(())
    }

    fn report(&mut self, report: &ReportView<'_>) -> io::Result<()> {
        let bytes = report.bytes.to_vec();
        self.reports.lock().expect("one thread").push(bytes);
        Ok(())
    }
}

/// The time before a clip is played, both tracks of it, and its packets.
fn played(folder: &Path, way: &str) -> (u64, Vec<Packet>) {
    let seen = Seen::default();
    let served = served(folder, way, |plan| {
        let seen = seen.clone();
        plan.parts.register_sink("seen", move |_| {
            let seen = seen.clone();
            Ok(Arc::new(move |_| Ok(Box::new(seen.clone()))))
        });
    });
    let url = served.url("clip.mp4");
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, &url);
    let other = "Transport: RTP/AVP/TCP;unicast;interleaved=2-3\r\n";
    let answer = viewer.ask(&format!("SETUP {url}/track2"), &format!("{name}{other}"));
    assert_eq!(status(&answer), 200, "{answer}");
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let before = u64::try_from(clock.tv_sec * 1_000_000_000 + clock.tv_nsec).expect("positive");
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    while !viewer.packets.iter().any(is_bye) {
        assert_eq!(viewer.next(), None);
    }
    served.end();
    let reports = seen.reports.lock().expect("one thread");
    let last = reports.last().expect("reports");
    assert!(has_bye(last));
    let packets = seen.packets.lock().expect("one thread").clone();
    (before, packets)
}

/// How many packets of sound are sent while a picture is.
fn within(packets: &[Packet]) -> usize {
    let (mut count, mut is_within) = (0, false);
    for (_, track, bytes) in packets {
        match track {
            // The marker is on the last of a picture.
            0 => is_within = bytes[1] & 0x80 == 0,
            _ => count += usize::from(is_within),
        }
    }
    count
}

/// Packets of pictures of a clip with 25 a second are never sent before they are due, if each is spread over
/// all of the time to the next.
fn are_spread(before: u64, packets: &[Packet]) {
    const EACH: u64 = 40_000_000;
    let of: Vec<&Packet> = packets.iter().filter(|(_, track, _)| *track == 0).collect();
    let pictures = of.split_inclusive(|(.., bytes)| bytes[1] & 0x80 != 0);
    let (mut count, mut most) = (0, 0);
    for (number, packets) in (0_u64..).zip(pictures) {
        // Parameter sets go before it, and words about it may be shorter than other packets.
        let of = packets.iter().filter(|(.., bytes)| bytes[12] & 0x1f != 24);
        let times: Vec<u64> = of.map(|(at, ..)| *at).collect();
        let all = times.len() as u64;
        for (index, at) in (0_u64..).zip(&times).skip(2) {
            let due = before + number * EACH + EACH * (index - 2) / all;
            assert!(*at >= due, "{index} of {all} of picture {number}");
        }
        (count, most) = (count + 1, most.max(all));
    }
    assert_eq!(count, 100);
    assert!(most > 15, "a picture is large: {most}");
}

#[test]
fn packets_of_a_picture_that_is_spread_go_one_by_one() {
    const TEST: &str = "packets_of_a_picture_that_is_spread_go_one_by_one";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    for source in ["packet", "sample"] {
        let way = |pacer: &str| {
            format!(
                "[[pipeline]]\nclips = [\"**\"]\nsource = \"{source}\"\npacketiser = 300\n\
                 pacer = \"{pacer}\"\nsink = [\"tcp\", \"seen\"]\n"
            )
        };
        // Sound is due at times of its own: some of it falls between packets that do not go at once. Those of
        // a picture do, but where a busy machine is late: then it goes in turns of four packets.
        let (_, packets) = played(folder.path(), &way("media"));
        let at_once = within(&packets);
        assert!(packets.len() > 200, "{source}: {}", packets.len());
        let (before, packets) = played(folder.path(), &way("spread=1"));
        let between = within(&packets);
        assert!(
            between > at_once + 5,
            "{source}: {between}, at once {at_once}"
        );
        are_spread(before, &packets);
    }
}

#[test]
fn a_picture_that_a_pause_comes_into_is_sent_once() {
    const TEST: &str = "a_picture_that_a_pause_comes_into_is_sent_once";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    for (source, packetiser) in [
        ("packet", "300"),
        ("sample", "300"),
        ("sample", "\"together=300\""),
    ] {
        let way = format!(
            "[[pipeline]]\nclips = [\"**\"]\nsource = \"{source}\"\npacketiser = {packetiser}\n\
             pacer = \"spread=1\"\n"
        );
        let served = served(folder.path(), &way, |_| ());
        let whole = pictures(served.at, "clip.mp4");
        let url = served.url("clip.mp4");
        let mut viewer = Viewer::new(served.at);
        let name = set_up(&mut viewer, &url);
        let mut pauses = 0;
        while pauses < 10 {
            assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
            let before = viewer.packets.len() + 5;
            while viewer.packets.len() < before {
                assert_eq!(viewer.next(), None);
            }
            assert_eq!(status(&viewer.ask(&format!("PAUSE {url}"), &name)), 200);
            pauses += 1;
        }
        assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
        while !viewer.packets.iter().any(is_bye) {
            assert_eq!(viewer.next(), None);
        }
        let of = viewer.packets.iter().filter(|(channel, _)| *channel == 0);
        let paused: Vec<&[u8]> = of.map(|(_, bytes)| &bytes[..]).collect();
        // The same, and pictures end where they did.
        let body = |of: &[u8]| (of[1], of[12..].to_vec());
        let expected: Vec<_> = whole.iter().map(|of| body(of)).collect();
        let seen: Vec<_> = paused.iter().map(|of| body(of)).collect();
        assert!(
            seen == expected,
            "{source} {packetiser}: {} of {}",
            seen.len(),
            expected.len()
        );
        let pictures = paused.split_inclusive(|of| of[1] & 0x80 != 0);
        for picture in pictures {
            let times: Vec<&[u8]> = picture.iter().map(|of| &of[4..8]).collect();
            assert!(times.iter().all(|of| *of == times[0]), "{times:?}");
        }
        served.end();
    }
}

#[test]
fn copies_go_to_an_address_whatever_becomes_of_them() {
    const TEST: &str = "copies_go_to_an_address_whatever_becomes_of_them";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    let patience = Duration::from_secs(20);
    let ports = (21_000..29_000).step_by(2).find_map(|port: u16| {
        let packets = UdpSocket::bind(("127.0.0.1", port)).ok()?;
        let reports = UdpSocket::bind(("127.0.0.1", port + 1)).ok()?;
        Some((port, packets, reports))
    });
    let (port, packets, reports) = ports.expect("two ports");
    for socket in [&packets, &reports] {
        socket.set_read_timeout(Some(patience)).expect("set");
    }
    for source in ["packet", "sample"] {
        // To all machines nobody may send who did not say that it wants to.
        let way = format!(
            "[[pipeline]]\nclips = [\"**\"]\nsource = \"{source}\"\n\
             sink = [\"tcp\", \"udp-to=255.255.255.255:5004\", \"udp-to=127.0.0.1:{port}\"]\n"
        );
        let served = served(folder.path(), &way, |_| ());
        let at = served.at;
        let copies = std::thread::scope(|scope| {
            let viewer = scope.spawn(move || pictures(at, "clip.mp4"));
            let mut copies = Vec::new();
            let mut buffer = [0; 2000];
            let mut lasts = 0;
            while lasts < 100 {
                let came = packets.recv(&mut buffer).expect("a copy");
                copies.push(buffer[..came].to_vec());
                // The marker is on the last of a picture.
                lasts += i32::from(buffer[1] & 0x80 != 0);
            }
            let sent = viewer.join().expect("it is seen");
            assert_eq!(copies, sent);
            copies
        });
        let mut buffer = [0; 2000];
        let mut is_over = false;
        while !is_over {
            let came = reports.recv(&mut buffer).expect("a report");
            assert_eq!(buffer[1], 200);
            is_over = has_bye(&buffer[..came]);
        }
        let summary = served.end();
        let expected = u64::try_from(copies.len()).expect("small");
        assert!(summary.uncopied > expected, "{summary:?}");
        assert_eq!((summary.samples, summary.packets), (100, expected));
    }
}
