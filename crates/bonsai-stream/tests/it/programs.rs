//! Players that others have written.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower, Url};
use bonsai_stream::serve::Engine;
use bonsai_stream::watch::{Arrivals, Plan, Video, watch};

use crate::support::{Served, clip, has, plan, skip};

const ENGINES: [Engine; 2] = [Engine::Classic, Engine::Fast];

/// Packets of each stream of a file: times of showing in milliseconds, and sizes.
pub(crate) fn packets(path: &Path) -> BTreeMap<String, Vec<(i64, u64)>> {
    let args = [
        "-v",
        "error",
        "-show_entries",
        "packet=codec_type,pts_time,size",
        "-of",
        "csv=p=0",
    ];
    let output = Command::new("ffprobe")
        .args(args)
        .arg(path)
        .output()
        .expect("ffprobe");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut streams: BTreeMap<String, Vec<(i64, u64)>> = BTreeMap::new();
    for line in text.lines() {
        // What else is said of a packet stands behind, and on lines of its own.
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() < 3 {
            continue;
        }
        // Seconds with six digits behind the point.
        let us: i64 = fields[1].replace('.', "").parse().expect("a time");
        let packet = (us / 1000, fields[2].parse().expect("a size"));
        streams
            .entry(fields[0].to_owned())
            .or_default()
            .push(packet);
    }
    streams
}

#[test]
fn ffmpeg_gets_all_of_a_clip_at_its_times() {
    const TEST: &str = "ffmpeg_gets_all_of_a_clip_at_its_times";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let sent = packets(&path);
    for engine in ENGINES {
        let served = Served::new(plan(folder.path(), engine));
        let players: Vec<_> = ["udp", "tcp"]
            .map(|transport| {
                let out = folder.path().join(format!("{engine:?}-{transport}.mp4"));
                let mut player = Command::new("timeout");
                player.args([
                    "60",
                    "ffmpeg",
                    "-v",
                    "error",
                    "-rtsp_transport",
                    transport,
                    "-i",
                ]);
                player
                    .arg(served.url("clip.mp4"))
                    .args(["-c", "copy", "-y"])
                    .arg(&out);
                (player.stdin(Stdio::null()).spawn().expect("ffmpeg"), out)
            })
            .into();
        for (mut player, out) in players {
            assert!(player.wait().expect("it ends").success());
            let got = packets(&out);
            for kind in ["video", "audio"] {
                let (sent, got) = (&sent[kind], &got[kind]);
                assert_eq!(got.len(), sent.len(), "{kind} of {}", out.display());
                // ffmpeg knows no time of a first picture in several packets, whoever sends it.
                let since = |of: &(i64, u64), all: &[(i64, u64)]| of.0 - all[1].0;
                for (index, (one, other)) in sent.iter().zip(got).enumerate().skip(1) {
                    let off = (since(one, sent) - since(other, got)).abs();
                    assert!(
                        off <= 2,
                        "{kind} {index} of {}: {one:?} {other:?}",
                        out.display()
                    );
                }
                for (sent, got) in sent.iter().zip(got) {
                    // Parameter sets come with pictures that decoding can begin with.
                    assert!(got.1 == sent.1 || got.1 > sent.1 && got.1 < sent.1 + 100);
                }
            }
        }
        let summary = served.end();
        assert_eq!(
            (summary.sessions, summary.dropped, summary.unsent),
            (2, 0, 0)
        );
        println!("{engine:?}: {summary:?}");
    }
}

#[test]
fn our_own_viewers_lose_nothing_and_see_it_at_its_pace() {
    const TEST: &str = "our_own_viewers_lose_nothing_and_see_it_at_its_pace";
    let folder = tempfile::tempdir().expect("a folder");
    if clip(TEST, folder.path()).is_none() {
        return;
    }
    for engine in ENGINES {
        let served = Served::new(plan(folder.path(), engine));
        let mut streams = Vec::new();
        for lower in [Lower::Udp, Lower::Tcp] {
            let outcome = watch(
                &Plan {
                    videos: vec![Video {
                        url: Url::parse(&served.url("clip.mp4")).expect("an address"),
                        server: served.at,
                    }],
                    lower,
                    viewers: 4,
                    arrivals: Arrivals::Crowd,
                    length: Duration::from_secs(30),
                    step: Duration::from_secs(10),
                    threads: 1,
                    seed: 1,
                    thresholds: Thresholds::default(),
                },
                &|_, _| (),
            )
            .expect("they watch");
            assert_eq!(outcome.viewers.len(), 4);
            for viewer in &outcome.viewers {
                assert_eq!(viewer.failure, None);
                assert_eq!(viewer.tracks.len(), 2);
                for track in &viewer.tracks {
                    let stream = &track.stream;
                    println!(
                        "{engine:?} {lower:?} {}: {} packets, gap {} us, pace {}, lag {} ms",
                        track.kind,
                        stream.received,
                        stream.gap_max_ns / 1000,
                        stream.pace,
                        stream.lag_max_ns / 1e6
                    );
                    let counts = (
                        stream.lost,
                        stream.duplicates,
                        stream.reordered,
                        stream.restarts,
                    );
                    assert_eq!(counts, (0, 0, 0, 0), "{stream:?}");
                    streams.push(stream.clone());
                }
                let of = |kind: &str| viewer.tracks.iter().find(|track| track.kind == kind);
                // 4 s of 48,000 in frames of 1024, and the first.
                let sound = &of("audio").expect("sound").stream;
                let counts = (sound.received, sound.lost);
                assert!(crate::retina::is_sound(counts), "{counts:?}");
            }
        }
        let summary = served.end();
        assert_eq!((summary.sessions, summary.most_sessions), (8, 4));
        // Never faster than the media: a stream that begins late catches up with as much, and no more.
        for stream in streams {
            let faster_ns = stream.media_ns - stream.media_ns / stream.pace;
            let most_ns = stream.media_ns * 0.05 + summary.late_max_ns as f64;
            assert!(faster_ns < most_ns, "{stream:?} {summary:?}");
        }
    }
}

const PLAYER: &str = r#"
import sys, gi
gi.require_version("Gst", "1.0")
from gi.repository import Gst, GLib
Gst.init(None)
counts = {}
pipe = Gst.Pipeline()
src = Gst.ElementFactory.make("rtspsrc")
src.set_property("location", sys.argv[1])
src.set_property("protocols", int(sys.argv[2]))
src.set_property("latency", 500)
pipe.add(src)
def added(_, pad):
    caps = pad.get_current_caps()
    name = caps.get_structure(0).get_string("media")
    depay = Gst.ElementFactory.make("rtph264depay" if name == "video" else "rtpmp4gdepay")
    # A sink leaves out what is shown after the end of the segment, which counts from the player's own start: on a
    # busy machine the last picture. An identity counts all that the depayloader gives.
    count = Gst.ElementFactory.make("identity")
    sink = Gst.ElementFactory.make("fakesink")
    sink.set_property("sync", False)
    counts[name] = 0
    def got(*_):
        counts[name] += 1
        return Gst.PadProbeReturn.OK
    count.connect("handoff", got)
    for element in (depay, count, sink):
        pipe.add(element)
    count.link(sink)
    if name == "video":
        caps = Gst.Caps.from_string("video/x-h264,stream-format=avc,alignment=au")
        depay.link_filtered(count, caps)
    else:
        depay.link(count)
    pad.link(depay.get_static_pad("sink"))
    for element in (depay, count, sink):
        element.sync_state_with_parent()
src.connect("pad-added", added)
pipe.set_state(Gst.State.PLAYING)
message = pipe.get_bus().timed_pop_filtered(60 * Gst.SECOND, Gst.MessageType.EOS | Gst.MessageType.ERROR)
pipe.set_state(Gst.State.NULL)
if message is None or message.type == Gst.MessageType.ERROR:
    print(message and message.parse_error())
    sys.exit(1)
print(counts.get("video"), counts.get("audio"))
"#;

/// A python that has GStreamer with that element.
pub(crate) fn python(folder: &Path, element: &str) -> Option<&'static str> {
    let probe = folder.join("probe.py");
    let text = format!(
        "import gi\ngi.require_version('Gst', '1.0')\nfrom gi.repository import Gst\nGst.init(None)\n\
         assert Gst.ElementFactory.find('rtspsrc') and Gst.ElementFactory.find('{element}')\n"
    );
    std::fs::write(&probe, text).expect("written");
    // The bindings belong to the system's own python.
    let python = ["/usr/bin/python3", "python3"];
    python
        .into_iter()
        .find(|python| has(python, &probe.to_string_lossy()))
}

#[test]
fn gstreamer_gets_all_of_a_clip() {
    const TEST: &str = "gstreamer_gets_all_of_a_clip";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(python) = python(folder.path(), "rtspsrc") else {
        return skip(TEST, "there is no GStreamer with python3-gi and rtspsrc");
    };
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    let sent = packets(&path);
    let (pictures, frames) = (sent["video"].len(), sent["audio"].len());
    for engine in ENGINES {
        let served = Served::new(plan(folder.path(), engine));
        // GST_RTSP_LOWER_TRANS_UDP and _TCP.
        for transport in ["1", "4"] {
            let url = served.url("clip.mp4");
            let output = Command::new(python)
                .args(["-c", PLAYER, &url, transport])
                .output();
            let output = output.expect("python");
            let (out, error) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
            let out = String::from_utf8_lossy(out);
            let seen = out.trim().split_once(' ');
            let seen = seen.and_then(|(one, other)| Some((one.parse().ok()?, other.parse().ok()?)));
            let (seen, heard): (usize, usize) = seen.unwrap_or_else(|| panic!("{out}{error}"));
            assert_eq!(seen, pictures, "{engine:?} {transport}: {error}");
            assert_eq!(heard, frames, "{engine:?} {transport}: {error}");
        }
        served.end();
    }
}
