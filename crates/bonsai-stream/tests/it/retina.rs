//! A clip as a client sees it that nobody here wrote: retina. Its counts, those of the file, and those of our
//! own meter are one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::{Lower, Url};
use bonsai_stream::serve::Engine;
use bonsai_stream::watch::{Arrivals, Plan, Video, ViewerReport, watch};
use futures_util::StreamExt as _;
use futures_util::future::join4;
use retina::client::{
    PacketItem, PlayOptions, Playing, Session, SessionOptions, SetupOptions, Transport,
};
use retina::codec::CodecItem;
use tokio::time::timeout;

use crate::programs::packets;
use crate::support::{Served, clip, plan, skip};

/// A stream is over that is silent for so long.
const SILENCE: Duration = Duration::from_secs(5);

/// Of pictures and of sound: how many came, and how many were lost.
type Counts = BTreeMap<String, (u64, u64)>;

async fn session(url: &str, transport: &str) -> Session<Playing> {
    let url = Url::parse(url).expect("an address");
    let session = Session::describe(url, SessionOptions::default()).await;
    let mut session = session.expect("described");
    for track in 0..session.streams().len() {
        let transport: Transport = transport.parse().expect("known");
        let options = SetupOptions::default().transport(transport);
        session.setup(track, options).await.expect("set up");
    }
    session
        .play(PlayOptions::default())
        .await
        .expect("it plays")
}

/// All packets of a clip.
async fn all_packets(url: &str, transport: &str) -> Counts {
    let mut session = session(url, transport).await;
    let kinds: Vec<String> = session
        .streams()
        .iter()
        .map(|of| of.media().to_owned())
        .collect();
    let mut counts = Counts::new();
    while let Ok(Some(item)) = timeout(SILENCE, session.next()).await {
        if let PacketItem::Rtp(packet) = item.expect("a packet") {
            let (came, lost) = counts.entry(kinds[packet.stream_id()].clone()).or_default();
            *came += 1;
            *lost += u64::from(packet.loss());
        }
    }
    counts
}

/// All pictures and frames of sound.
async fn all_frames(url: &str, transport: &str) -> Counts {
    let session = session(url, transport).await;
    let mut frames = session.demuxed().expect("it can be taken apart");
    let mut counts = Counts::new();
    while let Ok(Some(item)) = timeout(SILENCE, frames.next()).await {
        let (kind, loss) = match item.expect("a frame") {
            CodecItem::VideoFrame(frame) => ("video", frame.loss()),
            CodecItem::AudioFrame(frame) => ("audio", frame.loss()),
            _ => continue,
        };
        let (came, lost) = counts.entry(kind.to_owned()).or_default();
        *came += 1;
        *lost += u64::from(loss);
    }
    counts
}

/// What our own viewer sees meanwhile.
fn watched(url: &str, server: SocketAddr, lower: Lower) -> ViewerReport {
    let plan = Plan {
        videos: vec![Video {
            url: Url::parse(url).expect("an address"),
            server,
        }],
        lower,
        viewers: 1,
        arrivals: Arrivals::Crowd,
        length: Duration::from_secs(30),
        step: Duration::from_secs(20),
        threads: 1,
        seed: 1,
        thresholds: Thresholds::default(),
    };
    let outcome = watch(&plan, &|_, _| ()).expect("it watches");
    outcome.viewers.into_iter().next().expect("a viewer")
}

/// True where all sound of four seconds came: three frames in a packet, or two where a busy machine is late.
pub(crate) fn is_sound((came, lost): (u64, u64)) -> bool {
    (63..=95).contains(&came) && lost == 0
}

fn counted(viewer: &ViewerReport) -> Counts {
    let tracks = viewer.tracks.iter();
    let counts = tracks.map(|track| {
        let of = &track.stream;
        (track.kind.clone(), (of.received, of.lost))
    });
    counts.collect()
}

#[test]
fn retina_gets_what_the_clip_has_and_what_the_meter_counts() {
    const TEST: &str = "retina_gets_what_the_clip_has_and_what_the_meter_counts";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = clip(TEST, folder.path()) else {
        return;
    };
    if !crate::support::has("ffprobe", "-version") {
        return skip(TEST, "there is no ffprobe");
    }
    let of_file = packets(&path).into_iter();
    let of_file: Counts = of_file
        .map(|(kind, of)| (kind, (u64::try_from(of.len()).expect("small"), 0)))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for engine in [Engine::Classic, Engine::Fast] {
        let served = Served::new(plan(folder.path(), engine));
        let url = &served.url("clip.mp4");
        std::thread::scope(|scope| {
            let ours = [Lower::Udp, Lower::Tcp].map(|lower| {
                let server = served.at;
                scope.spawn(move || watched(url, server, lower))
            });
            let (packets_udp, packets_tcp, frames_udp, frames_tcp) = runtime.block_on(join4(
                all_packets(url, "udp"),
                all_packets(url, "tcp"),
                all_frames(url, "udp"),
                all_frames(url, "tcp"),
            ));
            assert_eq!(frames_udp, of_file, "{engine:?}");
            assert_eq!(frames_tcp, of_file, "{engine:?}");
            let ours = ours.map(|one| one.join().expect("it watches"));
            for (viewer, theirs) in ours.iter().zip([packets_udp, packets_tcp]) {
                assert_eq!(viewer.failure, None);
                assert_eq!(theirs.len(), 2, "pictures and sound: {theirs:?}");
                assert!(
                    theirs.values().all(|(came, lost)| *came > 40 && *lost == 0),
                    "{theirs:?}"
                );
                let ours = counted(viewer);
                assert_eq!(ours["video"], theirs["video"], "{engine:?}");
                // Each has a session of its own: how many frames of sound go in a packet is as late as that is.
                for counts in [&ours, &theirs] {
                    assert!(is_sound(counts["audio"]), "{engine:?}: {counts:?}");
                }
                println!("{engine:?}: {theirs:?}");
            }
        });
        served.end();
    }
}
