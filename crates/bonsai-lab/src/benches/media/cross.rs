//! The viewer's meter beside a client that nobody here wrote: retina watches a clip, what it is sent is captured on
//! its way, and the meter reads that. Both have seen one and the same stream.

mod tap;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_media::meter::Thresholds;
use bonsai_media::rtsp::Url;
use bonsai_stream::capture::{Capture, Clocks, read};
use futures_util::StreamExt as _;
use retina::client::{PacketItem, PlayOptions, Session, SessionOptions, SetupOptions, Transport};
use serde::{Deserialize, Serialize};

use self::tap::Tap;
use super::super::Benchmark;
use super::clip::{NAME, Shelf};
use super::server::{Kind, Start};
use super::{Cores, pin};
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{estimate, with_interval};

/// The benchmark "media-cross".
#[derive(Debug)]
pub(crate) struct Cross;

/// The longest gaps of the two are no farther apart.
const APART_MS: f64 = 1.0;
/// The clip that retina watches to its end.
const SECONDS: u64 = 10;
/// It has ended when nothing comes for so long.
const SILENCE: Duration = Duration::from_secs(2);

/// A track as both saw it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Seen {
    kind: String,
    /// As retina has it: packets, those that it missed, and the longest time between two, by the times at which it
    /// read them.
    came: u64,
    lost: u64,
    gap_ns: u64,
    /// The same by the meter, of the capture.
    metered: u64,
    metered_lost: u64,
    metered_gap_ns: u64,
}

impl Seen {
    fn is_one(&self) -> bool {
        (self.came, self.lost) == (self.metered, self.metered_lost)
    }

    fn apart_ms(&self) -> f64 {
        self.gap_ns.abs_diff(self.metered_gap_ns) as f64 / 1e6
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    tracks: Vec<Seen>,
}

impl Benchmark for Cross {
    fn name(&self) -> &'static str {
        "media-cross"
    }

    fn about(&self) -> &'static str {
        "the viewer's meter beside retina, of one and the same stream: packets, and the longest gap"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let Ok(tap) = Tap::open() else {
            return context.skip(self.name(), "packets cannot be captured (CAP_NET_RAW)");
        };
        let rounds = context.effort.of(3, 10, 30);
        let shelf = Shelf::make(context, SECONDS)?;
        let cores = Cores::find();
        let server = Start {
            kind: Kind::Classic,
            shelf: &shelf,
            service: None,
            core: cores.server,
            room: None,
        };
        let server = server.start(context)?;
        for round in 1..=rounds {
            context.progress(&format!("round {round} of {rounds}"));
            context.check()?;
            let before = Moment::now();
            let tracks = watched(&server.url(NAME), &tap, cores.viewers)?;
            context.sample(before.until_now(), &Measured { tracks })?;
        }
        server.end()?;
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

/// A track as retina saw it.
struct Theirs {
    kind: String,
    clock_rate: u32,
    payload_type: u8,
    ssrc: Option<u32>,
    came: u64,
    lost: u64,
    last: Option<Instant>,
    gap: Duration,
}

/// Lets retina watch, and captures what it is sent.
fn watched(url: &str, tap: &Tap, core: Option<usize>) -> anyhow::Result<Vec<Seen>> {
    let (file, theirs) = tap.during(|| {
        let watching = || -> anyhow::Result<Vec<Theirs>> {
            pin(core);
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build()?;
            runtime.block_on(by_retina(url))
        };
        // A thread of its own, so that only that one is bound to a processor.
        std::thread::scope(|scope| scope.spawn(watching).join())
            .map_err(|_| anyhow::anyhow!("retina has panicked"))?
    })?;
    let clocks: Clocks = theirs
        .iter()
        .map(|of| (of.payload_type, of.clock_rate))
        .collect();
    let capture = read(&file[..], &clocks, &Thresholds::default())?;
    theirs.iter().map(|of| both(of, &capture)).collect()
}

async fn by_retina(url: &str) -> anyhow::Result<Vec<Theirs>> {
    let url = Url::parse(url)?;
    let mut session = Session::describe(url, SessionOptions::default()).await?;
    for track in 0..session.streams().len() {
        let udp: Transport = "udp".parse()?;
        let options = SetupOptions::default().transport(udp);
        session.setup(track, options).await?;
    }
    let mut session = session.play(PlayOptions::default()).await?;
    let streams = session.streams().iter();
    let mut tracks: Vec<Theirs> = streams
        .map(|of| Theirs {
            kind: of.media().to_owned(),
            clock_rate: of.clock_rate_hz(),
            payload_type: of.rtp_payload_type(),
            ssrc: None,
            came: 0,
            lost: 0,
            last: None,
            gap: Duration::ZERO,
        })
        .collect();
    while let Ok(Some(item)) = tokio::time::timeout(SILENCE, session.next()).await {
        let PacketItem::Rtp(packet) = item? else {
            continue;
        };
        let track = tracks
            .get_mut(packet.stream_id())
            .context("a packet of no track")?;
        let at = packet.ctx().received();
        if let Some(last) = track.last.replace(at) {
            track.gap = track.gap.max(at.saturating_duration_since(last));
        }
        track.ssrc = Some(packet.ssrc());
        track.came += 1;
        track.lost += u64::from(packet.loss());
    }
    Ok(tracks)
}

/// What both saw of a track.
fn both(theirs: &Theirs, capture: &Capture) -> anyhow::Result<Seen> {
    let mut streams = capture.streams.iter();
    let found = streams.find(|of| Some(of.ssrc) == theirs.ssrc);
    let of = &found
        .with_context(|| format!("{}: nothing of it was captured", theirs.kind))?
        .stream;
    Ok(Seen {
        kind: theirs.kind.clone(),
        came: theirs.came,
        lost: theirs.lost,
        gap_ns: u64::try_from(theirs.gap.as_nanos()).unwrap_or(u64::MAX),
        metered: of.received,
        metered_lost: of.lost,
        metered_gap_ns: of.gap_max_ns,
    })
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(
        "retina, a client of RTSP that is not Bonsai's, watches a clip by UDP; the kernel captures what it is sent, and \
         the viewer's meter reads that. retina takes the time when it reads a packet, the meter that of the kernel: \
         they differ by how late retina was woken.",
    );
    let mut table = Table::new(&[
        "round",
        "track",
        "packets",
        "lost",
        "metered",
        "lost",
        "longest gap, ms",
        "metered, ms",
        "apart, ms",
    ]);
    let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    for (round, sample) in (1..).zip(samples) {
        for of in &sample.data.tracks {
            table.row(vec![
                round.to_string(),
                of.kind.clone(),
                of.came.to_string(),
                of.lost.to_string(),
                of.metered.to_string(),
                of.metered_lost.to_string(),
                ms(of.gap_ns),
                ms(of.metered_gap_ns),
                format!("{:.3}", of.apart_ms()),
            ]);
        }
    }
    section.table(table);
    let doubt = doubt_of(samples.iter().map(|sample| &sample.conditions));
    let tracks = || samples.iter().flat_map(|sample| &sample.data.tracks);
    let all = tracks().count();
    let same = tracks().filter(|of| of.is_one()).count();
    if all == 0 {
        return section;
    }
    section.promise(
        "packets and losses of a track",
        "the same",
        format!("{same} of {all} tracks in {} rounds", samples.len()),
        Verdict::of(same == all, doubt.as_ref()),
    );
    let worst = |sample: &Sample<Measured>| {
        let tracks = sample.data.tracks.iter();
        tracks.map(Seen::apart_ms).fold(0.0, f64::max)
    };
    let apart: Vec<f64> = samples.iter().map(worst).collect();
    if let Some(median) = estimate(&apart, seed) {
        let most = apart.iter().copied().fold(0.0, f64::max);
        section.promise(
            "longest gaps apart",
            format!("{APART_MS} ms"),
            format!("{} ms, {most:.3} ms at most", with_interval(&median, 3)),
            Verdict::at_most(&median, APART_MS, doubt.as_ref()),
        );
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_apart_is_said() {
        let seen = Seen {
            kind: "video".to_owned(),
            came: 1_000,
            lost: 0,
            gap_ns: 41_500_000,
            metered: 1_000,
            metered_lost: 0,
            metered_gap_ns: 41_300_000,
        };
        let other = Seen {
            metered: 999,
            ..seen.clone()
        };
        let sample = |tracks| Sample {
            conditions: crate::load::Conditions::default(),
            data: Measured { tracks },
        };
        let samples = [sample(vec![seen.clone()]), sample(vec![seen.clone()])];
        let text = report(&samples, 1).terminal();
        assert!(text.contains("2 of 2 tracks in 2 rounds"), "{text}");
        assert!(text.contains("0.200"), "{text}");
        let samples = [sample(vec![seen]), sample(vec![other])];
        let text = report(&samples, 1).terminal();
        assert!(text.contains("1 of 2 tracks"), "{text}");
    }
}
