//! Clips of several qualities: all viewers are sent the same, by what the server is allotted.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower as By, Url};
use bonsai_stream::serve::{Allotted, Engine, Lower, Plan};
use bonsai_stream::watch::{self, Arrivals, Video};

use crate::programs::python;
use crate::serve::{is_bye, set_up, status};
use crate::support::{Served, Viewer, plan, skip};

/// Seconds of the film, and its pictures.
const SECONDS: u64 = 12;
const PICTURES: usize = 300;

/// Sizes, rates, and pictures from one that decoding can begin with to the next.
pub(crate) const QUALITIES: [(&str, &str, &str, &str); 3] = [
    ("clip.mp4", "320x240", "800k", "25"),
    ("clip-1.mp4", "240x180", "250k", "20"),
    ("clip-2.mp4", "160x120", "80k", "15"),
];

/// A film of three qualities, of which the best has sound; bytes a second of each, or `None` and the
/// reason in the log.
pub(crate) fn film(test: &str, folder: &Path) -> Option<[u64; 3]> {
    film_of(test, folder, SECONDS)
}

/// The same of another length, seconds.
pub(crate) fn film_of(test: &str, folder: &Path, seconds: u64) -> Option<[u64; 3]> {
    let mut rates = [0; 3];
    for (rate, (name, size, bits, keys)) in rates.iter_mut().zip(QUALITIES) {
        let pictures = format!("testsrc2=size={size}:rate=25:duration={seconds}");
        let sound = format!("sine=frequency=440:sample_rate=48000:duration={seconds}");
        let mut command = Command::new("ffmpeg");
        command.args(["-v", "error", "-f", "lavfi", "-i", &pictures]);
        if name == "clip.mp4" {
            command.args(["-f", "lavfi", "-i", &sound, "-c:a", "aac"]);
        }
        command.args([
            "-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p",
        ]);
        command.args(["-g", keys, "-bf", "2", "-b:v", bits, "-y"]);
        let path = folder.join(name);
        match command.arg(&path).stdin(Stdio::null()).status() {
            Ok(made) if made.success() => {}
            Ok(_) => {
                skip(test, "ffmpeg has no libx264");
                return None;
            }
            Err(_) => {
                skip(test, "there is no ffmpeg");
                return None;
            }
        }
        *rate = std::fs::metadata(&path).expect("made").len() / seconds;
    }
    Some(rates)
}

pub(crate) fn layered(folder: &Path, engine: Engine) -> Plan {
    Plan {
        lower: Lower::list(&["{}-1.mp4", "{}-2.mp4"]).expect("right"),
        ..plan(folder, engine)
    }
}

/// Packets of pictures, in the order that they came in.
pub(crate) fn pictures(viewer: &Viewer) -> Vec<&[u8]> {
    let packets = viewer.packets.iter();
    let packets = packets.filter(|(channel, _)| *channel == 0);
    packets.map(|(_, bytes)| &bytes[..]).collect()
}

/// Parameter sets, which go before each picture that decoding can begin with, where they change.
fn sets(viewer: &Viewer) -> Vec<&[u8]> {
    let packets = pictures(viewer).into_iter();
    let mut sets: Vec<&[u8]> = packets
        .filter(|of| of[12] & 0x1f == 24)
        .map(|of| &of[12..])
        .collect();
    sets.dedup();
    sets
}

/// Sender's reports of pictures.
pub(crate) fn reports(viewer: &Viewer) -> usize {
    let packets = viewer.packets.iter();
    packets.filter(|(channel, _)| *channel == 1).count()
}

fn timestamp(packet: &[u8]) -> u32 {
    u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]])
}

/// That its numbers go on, each picture comes once, and what a quality begins with is behind all that was
/// before it. How many pictures there are.
fn check(viewer: &Viewer) -> usize {
    let packets = pictures(viewer);
    let number = |of: &[u8]| u16::from_be_bytes([of[2], of[3]]);
    let senders: BTreeSet<&[u8]> = packets.iter().map(|of| &of[8..12]).collect();
    assert_eq!(senders.len(), 1);
    let first = timestamp(packets[0]);
    let since = |of: &[u8]| timestamp(of).wrapping_sub(first);
    let (mut times, mut latest, mut not_before, mut set) = (BTreeSet::new(), 0, 0, &[][..]);
    for two in packets.windows(2) {
        assert_eq!(number(two[1]), number(two[0]).wrapping_add(1));
        // The last of a picture is marked.
        assert_eq!(
            two[0][1] & 0x80 != 0,
            timestamp(two[0]) != timestamp(two[1])
        );
    }
    for packet in packets {
        let at = since(packet);
        if packet[12] & 0x1f == 24 && &packet[12..] != set {
            assert!(at >= latest, "{at} behind {latest}");
            (set, not_before) = (&packet[12..], at);
        }
        assert!(at >= not_before, "{at} is before {not_before}");
        assert!(
            times.contains(&at) || at % 3_600 < 2 || at % 3_600 > 3_598,
            "{at}"
        );
        times.insert(at);
        latest = latest.max(at);
    }
    times.len()
}

/// Watches pictures to the end, and takes what comes when it comes.
fn watches(served: &Served, url: &str) -> std::thread::JoinHandle<Viewer> {
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    std::thread::spawn(move || {
        while !viewer.packets.iter().any(is_bye) {
            assert_eq!(viewer.next(), None);
        }
        viewer
    })
}

/// Lowers the rate to one at which that is sent, and raises it again, while somebody watches.
fn change(served: &Served, allotted: &Allotted, (rate, down): (u64, &str), up: Option<u64>) {
    served.wait_for("Began");
    std::thread::sleep(Duration::from_secs(2));
    allotted.set(Some(rate));
    served.wait_for(down);
    std::thread::sleep(Duration::from_secs(3));
    allotted.set(up);
    served.wait_for("Level { quality: 0, pictures: All }");
}

/// A rate for so many viewers of the lowest quality of three, with sound.
fn for_lowest([_, lower, lowest]: [u64; 3], viewers: u64) -> (u64, &'static str) {
    let rate = viewers * ((lower + lowest) / 2 + 10_000);
    (rate, "Level { quality: 2, pictures: All }")
}

pub(crate) fn read_until(viewer: &mut Viewer, enough: impl Fn(&Viewer) -> bool) {
    while !enough(viewer) {
        assert!(!viewer.packets.iter().any(is_bye), "it is over before that");
        assert_eq!(viewer.next(), None);
    }
}

#[test]
fn all_viewers_go_to_a_lower_quality_and_back_with_the_rate() {
    const TEST: &str = "all_viewers_go_to_a_lower_quality_and_back_with_the_rate";
    let folder = tempfile::tempdir().expect("a folder");
    let Some([best, lower, _]) = film(TEST, folder.path()) else {
        return;
    };
    for engine in [Engine::Classic, Engine::Fast] {
        let plan = layered(folder.path(), engine);
        let allotted = plan.allotted.clone();
        let served = Served::new(plan);
        let url = served.url("clip.mp4");
        let viewers: Vec<_> = (0..3).map(|_| watches(&served, &url)).collect();
        let down = "Level { quality: 1, pictures: All }";
        change(
            &served,
            &allotted,
            (3 * lower * 5 / 4, down),
            Some(3 * best * 2),
        );
        for viewer in viewers {
            let viewer = &viewer.join().expect("it watches");
            let sets = sets(viewer);
            assert_eq!(sets.len(), 3, "{engine:?}");
            assert!(sets[0] == sets[2] && sets[0] != sets[1]);
            let pictures = check(viewer);
            println!("{engine:?}: {pictures} pictures of {PICTURES}");
            // Each time those are left out that are predicted from one that is shown behind the change.
            assert!((PICTURES - 4..=PICTURES).contains(&pictures), "{pictures}");
        }
        let summary = served.end();
        assert_eq!((summary.switched, summary.dropped), (6, 0), "{summary:?}");
    }
}

#[test]
fn what_is_sent_of_a_lower_quality_fits_in_the_rate() {
    const TEST: &str = "what_is_sent_of_a_lower_quality_fits_in_the_rate";
    let folder = tempfile::tempdir().expect("a folder");
    let Some([_, lower, lowest]) = film(TEST, folder.path()) else {
        return;
    };
    // The first has room for all of it, the other for a part of the lowest.
    for (allotted, level) in [
        (2 * lower * 5 / 4, "Level { quality: 1, pictures: All }"),
        (lowest, "Level { quality: 2, pictures: "),
    ] {
        let plan = layered(folder.path(), Engine::Classic);
        let rate = plan.allotted.clone();
        let served = Served::new(plan);
        let url = served.url("clip.mp4");
        let mut viewers: Vec<Viewer> = (0..2).map(|_| Viewer::new(served.at)).collect();
        // Who is let in may ask for sound, too, for which there is no rate then.
        let names: Vec<String> = viewers.iter_mut().map(|of| set_up(of, &url)).collect();
        rate.set(Some(allotted));
        std::thread::sleep(Duration::from_millis(500));
        for (viewer, name) in viewers.iter_mut().zip(names) {
            assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
        }
        served.wait_for(level);
        let mut bytes = 0;
        for viewer in &mut viewers {
            while !viewer.packets.iter().any(is_bye) {
                assert_eq!(viewer.next(), None);
            }
            assert_eq!(sets(viewer).len(), 1, "it begins in the quality that fits");
            let sent: usize = pictures(viewer).iter().map(|of| of.len()).sum();
            bytes += u64::try_from(sent).expect("small");
        }
        // A part of it may need more than its mean.
        let most = allotted * SECONDS * 5 / 4;
        assert!(bytes < most, "{bytes} of {most}");
        served.end();
    }
}

#[test]
fn a_place_in_the_clip_is_gone_to_in_a_lower_quality() {
    const TEST: &str = "a_place_in_the_clip_is_gone_to_in_a_lower_quality";
    let folder = tempfile::tempdir().expect("a folder");
    let Some([_, lower, _]) = film(TEST, folder.path()) else {
        return;
    };
    let plan = layered(folder.path(), Engine::Fast);
    let allotted = plan.allotted.clone();
    let served = Served::new(plan);
    let url = served.url("clip.mp4");
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    allotted.set(Some(lower * 5 / 4));
    served.wait_for("Level { quality: 1");
    read_until(&mut viewer, |viewer| sets(viewer).len() == 2);
    assert_eq!(status(&viewer.ask(&format!("PAUSE {url}"), &name)), 200);
    let before = pictures(&viewer).len();
    // Key pictures are 0.8 s apart there, and 1 s in the best.
    let play = viewer.ask(
        &format!("PLAY {url}"),
        &format!("{name}Range: npt=8.5-\r\n"),
    );
    assert!(play.contains("Range: npt=8.000-"), "{play}");
    read_until(&mut viewer, |viewer| pictures(viewer).len() > before + 20);
    assert_eq!(sets(&viewer).len(), 2);
    let first = pictures(&viewer)[before];
    let number = u16::from_be_bytes([first[2], first[3]]);
    let expected = format!(";seq={number};rtptime={}\r\n", timestamp(first));
    assert!(play.contains(&expected), "{play} {expected}");
}

#[test]
fn a_clip_that_is_refused_no_more_viewers_is_sent_in_no_lower_quality() {
    const TEST: &str = "a_clip_that_is_refused_no_more_viewers_is_sent_in_no_lower_quality";
    let folder = tempfile::tempdir().expect("a folder");
    let Some([best, ..]) = film(TEST, folder.path()) else {
        return;
    };
    let mut plan = layered(folder.path(), Engine::Classic);
    plan.when_behind = bonsai_stream::serve::WhenBehind::Refuse;
    let allotted = plan.allotted.clone();
    allotted.set(Some(best * 5 / 4));
    let served = Served::new(plan);
    let url = served.url("clip.mp4");
    let mut viewer = Viewer::new(served.at);
    let name = set_up(&mut viewer, &url);
    assert_eq!(status(&viewer.ask(&format!("PLAY {url}"), &name)), 200);
    let line = format!("SETUP {url}/track1");
    let answer = Viewer::new(served.at).ask(&line, crate::serve::TCP);
    assert_eq!(status(&answer), 453);
    allotted.set(Some(best / 4));
    read_until(&mut viewer, |viewer| pictures(viewer).len() > 300);
    assert_eq!(sets(&viewer).len(), 1);
    assert_eq!(served.end().switched, 0);
}

#[test]
fn ffmpeg_decodes_over_a_change_of_quality_without_an_error() {
    const TEST: &str = "ffmpeg_decodes_over_a_change_of_quality_without_an_error";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rates) = film(TEST, folder.path()) else {
        return;
    };
    for (engine, transport) in [(Engine::Classic, "tcp"), (Engine::Fast, "udp")] {
        let plan = layered(folder.path(), engine);
        let allotted = plan.allotted.clone();
        let served = Served::new(plan);
        let mut player = Command::new("timeout");
        player.args([
            "90",
            "ffmpeg",
            "-v",
            "error",
            "-xerror",
            "-rtsp_transport",
            transport,
        ]);
        player.arg("-i").arg(served.url("clip.mp4"));
        player.args([
            "-map",
            "0:v",
            "-vsync",
            "passthrough",
            "-f",
            "framecrc",
            "-",
        ]);
        let player = player.stdin(Stdio::null()).stdout(Stdio::piped());
        let player: Child = player.stderr(Stdio::piped()).spawn().expect("ffmpeg");
        // Sound is sent, too.
        change(&served, &allotted, for_lowest(rates, 1), None);
        let output = player.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "", "{engine:?}");
        let frames = String::from_utf8_lossy(&output.stdout);
        let frames = frames.lines().filter(|line| !line.starts_with('#')).count();
        println!("{engine:?} {transport}: {frames} pictures of {PICTURES}");
        assert!((PICTURES - 5..=PICTURES).contains(&frames), "{frames}");
        assert_eq!(served.end().switched, 2);
    }
}

#[test]
fn our_own_viewers_lose_nothing_over_a_change_of_quality() {
    const TEST: &str = "our_own_viewers_lose_nothing_over_a_change_of_quality";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rates) = film(TEST, folder.path()) else {
        return;
    };
    let plan = layered(folder.path(), Engine::Fast);
    let allotted = plan.allotted.clone();
    let served = Served::new(plan);
    let wanted = watch::Plan {
        videos: vec![Video {
            url: Url::parse(&served.url("clip.mp4")).expect("an address"),
            server: served.at,
        }],
        lower: By::Udp,
        viewers: 4,
        arrivals: Arrivals::Crowd,
        length: Duration::from_secs(30),
        step: Duration::from_secs(10),
        threads: 1,
        seed: 1,
        thresholds: Thresholds::default(),
    };
    let watching = std::thread::spawn(move || watch::watch(&wanted, &|_, _| ()));
    change(&served, &allotted, for_lowest(rates, 4), None);
    let outcome = watching.join().expect("watched").expect("they watch");
    for viewer in &outcome.viewers {
        assert_eq!(viewer.failure, None);
        for track in &viewer.tracks {
            let of = &track.stream;
            let counts = (of.lost, of.duplicates, of.reordered, of.restarts);
            assert_eq!(counts, (0, 0, 0, 0), "{of:?}");
            assert!(of.pace < 1.05, "{of:?}");
        }
    }
    assert_eq!(served.end().switched, 8);
}

const PLAYER: &str = r#"
import sys, gi
gi.require_version("Gst", "1.0")
from gi.repository import Gst
Gst.init(None)
pictures, sizes = [0], []
pipe = Gst.Pipeline()
src = Gst.ElementFactory.make("rtspsrc")
src.set_property("location", sys.argv[1])
src.set_property("protocols", int(sys.argv[2]))
src.set_property("latency", 500)
pipe.add(src)
def changed(pad, info):
    event = info.get_event()
    if event.type == Gst.EventType.CAPS:
        of = event.parse_caps().get_structure(0)
        sizes.append("%sx%s" % (of.get_value("width"), of.get_value("height")))
    return Gst.PadProbeReturn.OK
def added(_, pad):
    is_video = pad.get_current_caps().get_structure(0).get_string("media") == "video"
    names = ["rtph264depay", "h264parse", "identity", "fakesink"] if is_video else ["fakesink"]
    elements = [Gst.ElementFactory.make(name) for name in names]
    for element in elements:
        pipe.add(element)
    for one, other in zip(elements, elements[1:]):
        one.link(other)
    sink = elements[-1]
    sink.set_property("sync", False)
    if is_video:
        def got(*_):
            pictures[0] += 1
        # Before the sink, which leaves out what is shown after the end of the segment by the player's own clock.
        elements[-2].connect("handoff", got)
        sink.get_static_pad("sink").add_probe(Gst.PadProbeType.EVENT_DOWNSTREAM, changed)
    pad.link(elements[0].get_static_pad("sink"))
    for element in elements:
        element.sync_state_with_parent()
src.connect("pad-added", added)
pipe.set_state(Gst.State.PLAYING)
message = pipe.get_bus().timed_pop_filtered(60 * Gst.SECOND, Gst.MessageType.EOS | Gst.MessageType.ERROR)
pipe.set_state(Gst.State.NULL)
if message is None or message.type == Gst.MessageType.ERROR:
    print(message and message.parse_error())
    sys.exit(1)
print(pictures[0], *[one for one, other in zip(sizes, [None] + sizes) if one != other])
"#;

#[test]
fn gstreamer_goes_on_over_a_change_of_the_size_of_pictures() {
    const TEST: &str = "gstreamer_goes_on_over_a_change_of_the_size_of_pictures";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(python) = python(folder.path(), "h264parse") else {
        return skip(
            TEST,
            "there is no GStreamer with python3-gi, rtspsrc and h264parse",
        );
    };
    let Some(rates) = film(TEST, folder.path()) else {
        return;
    };
    let plan = layered(folder.path(), Engine::Classic);
    let allotted = plan.allotted.clone();
    let served = Served::new(plan);
    let url = served.url("clip.mp4");
    // GST_RTSP_LOWER_TRANS_TCP.
    let mut player = Command::new(python);
    player.args(["-c", PLAYER, &url, "4"]).stdin(Stdio::null());
    let player = player.stdout(Stdio::piped()).stderr(Stdio::piped());
    let player = player.spawn().expect("python");
    change(&served, &allotted, for_lowest(rates, 1), None);
    let output = player.wait_with_output().expect("it ends");
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let (seen, sizes) = out
        .trim()
        .split_once(' ')
        .unwrap_or_else(|| panic!("{out}{error}"));
    assert_eq!(sizes, "320x240 160x120 320x240", "{out}{error}");
    let seen: usize = seen.parse().expect("a number");
    assert!((PICTURES - 5..=PICTURES).contains(&seen), "{out}{error}");
}
