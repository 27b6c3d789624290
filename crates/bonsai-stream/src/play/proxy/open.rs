//! What the servers have.

use std::fmt::Write as _;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::Notify;
use url::Url;

use super::super::fetch::{Fetcher, Why};
use super::super::film::{self, Offer, Quality, Track, Unreadable};
use super::super::player::track;
use super::super::shared::Shared;
use super::super::{Arrivals, Film, Video};
use super::desk::Desk;
use super::report::Server;
use super::{Error, Event, Inner, Plan, Teller};
use crate::clock::now;

/// Segments of two servers differ by no more than that, ms: their lists round in their own ways.
const SAME_MS: f64 = 50.0;

/// A server's copy of the film.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// What is said of each of the pictures.
    qualities: Vec<Quality>,
    /// Of each quality, from the lowest on; at least one.
    pub(super) pictures: Vec<Arc<Track>>,
    /// If it is apart.
    pub(super) sound: Option<Arc<Track>>,
}

impl Source {
    /// How another copy differs, if it does.
    pub(super) fn differs(&self, other: &Self) -> Option<String> {
        let counts = |of: &Self| (of.pictures.len(), of.sound.is_some());
        if counts(self) != counts(other) {
            let words = |of: &Self| {
                let sound = if of.sound.is_some() { "" } else { "out" };
                format!("{} qualities with{sound} sound apart", of.pictures.len())
            };
            return Some(format!("it has {}, and not {}", words(other), words(self)));
        }
        let mut qualities = self.qualities.iter().zip(&other.qualities).enumerate();
        let coded = qualities.find_map(|(at, (one, other))| Some((at, coded(one, other)?)));
        if let Some((at, why)) = coded {
            return Some(format!("quality {at} {why}"));
        }
        let tracks = self.pictures.iter().chain(&self.sound);
        let others = other.pictures.iter().chain(&other.sound);
        tracks.zip(others).find_map(|(one, other)| {
            let has_header = |of: &Track| of.segments.iter().any(|of| of.header.is_some());
            if has_header(one) != has_header(other) {
                let out = if has_header(other) { "" } else { "out" };
                return Some(format!("its segments are with{out} headers apart"));
            }
            let (one, other) = (one.durations_ms(), other.durations_ms());
            if one.len() != other.len() {
                return Some(format!(
                    "it has {} segments, and not {}",
                    other.len(),
                    one.len()
                ));
            }
            let mut pairs = one.iter().zip(&other).enumerate();
            let (at, (one, other)) = pairs.find(|(_, (a, b))| (**a - **b).abs() > SAME_MS)?;
            Some(format!(
                "segment {at} lasts {other:.0} ms, and not {one:.0} ms"
            ))
        })
    }
}

/// How another copy's quality is coded otherwise, as far as that is said. Bitrates say nothing: those of HLS are with
/// sound, and those of DASH without.
fn coded(one: &Quality, other: &Quality) -> Option<String> {
    let family = |of: &Quality| film::family(of.codecs.as_deref());
    if family(one).zip(family(other)).is_some_and(|(a, b)| a != b) {
        return Some("is of another codec".to_owned());
    }
    let (one, other) = one.size.zip(other.size).filter(|(a, b)| a != b)?;
    Some(format!(
        "has {}x{} pixels, and not {}x{}",
        other.0, other.1, one.0, one.1
    ))
}

/// What a server is asked by.
pub(super) fn fetcher(plan: &Plan, number: usize) -> (Fetcher, Rc<Shared>) {
    let plan = super::super::Plan {
        videos: vec![plan.servers[number].clone()],
        viewers: 1,
        arrivals: Arrivals::Crowd,
        length: plan.step,
        step: plan.step,
        threads: 1,
        seed: 0,
        settings: plan.settings.clone(),
        keeps_log: false,
    };
    let shared = Rc::new(Shared::new(Arc::new(plan)));
    (Fetcher::new(shared.clone()), shared)
}

/// Reads all lists of a server.
pub(super) async fn load(
    fetcher: &mut Fetcher,
    shared: &Shared,
    url: &Url,
) -> Result<(Arc<Offer>, Source), Why> {
    let document = fetcher.document(url).await?;
    let offer = shared.offer(document);
    let mut pictures: Vec<Arc<Track>> = Vec::new();
    for (_, source) in &offer.qualities {
        pictures.push(track(fetcher, source).await?);
    }
    let count = pictures.first().map_or(0, |lowest| lowest.segments.len());
    if let Some(other) = pictures.iter().find(|of| of.segments.len() != count) {
        return Err(Why::Tracks(format!(
            "one quality has {} segments, and the lowest has {count}: all have to have as many",
            other.segments.len(),
        )));
    }
    let sound = match &offer.sound {
        Some((_, source)) => Some(track(fetcher, source).await?),
        None => None,
    };
    for track in pictures.iter().chain(&sound) {
        let why = match (track.is_encrypted, track.is_webm) {
            (true, _) => "it is encrypted, and keys are not handed on",
            (_, true) => {
                "it is in files of WebM, and those of MP4 and transport streams are played"
            }
            _ => continue,
        };
        return Err(Unreadable::new(why).into());
    }
    let source = Source {
        qualities: offer.qualities.iter().map(|(of, _)| of.clone()).collect(),
        pictures,
        sound,
    };
    Ok((offer, source))
}

fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let mut token = String::new();
    for byte in bytes {
        let _ = write!(token, "{byte:02x}");
    }
    Ok(token)
}

/// Reads what all of them have.
pub(super) fn open(plan: Plan, on_event: Teller) -> Result<Inner, Error> {
    let since = now();
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())?;
    let mut servers: Vec<Server> = Vec::new();
    let mut sources: Vec<Option<Source>> = Vec::new();
    let mut found: Option<(Arc<Offer>, Source, String)> = None;
    let mut failures = Vec::new();
    for (number, Video { url, .. }) in plan.servers.iter().enumerate() {
        let (mut fetcher, shared) = fetcher(&plan, number);
        let mut server = Server {
            url: url.to_string(),
            ..Server::default()
        };
        let loaded = runtime.block_on(load(&mut fetcher, &shared, url));
        let source = match loaded {
            Ok((offer, source)) => {
                let (_, first, at) =
                    found.get_or_insert_with(|| (offer, source.clone(), url.to_string()));
                if let Some(why) = first.differs(&source) {
                    return Err(Error::Other {
                        url: url.to_string(),
                        first: at.clone(),
                        why,
                    });
                }
                Some(source)
            }
            Err(why @ (Why::Unreadable(_) | Why::Tracks(_))) => {
                return Err(Error::Unreadable {
                    url: url.to_string(),
                    why: why.to_string(),
                });
            }
            Err(why) => {
                let why = why.to_string();
                failures.push((number, why.clone()));
                (server.failures, server.last_failure) = (1, Some(why));
                None
            }
        };
        servers.push(server);
        sources.push(source);
    }
    let Some((offer, first, _)) = found else {
        let say = |(number, why): &(usize, String)| format!("{}: {why}", servers[*number].url);
        return Err(Error::Nothing(failures.iter().map(say).collect()));
    };
    for (number, why) in &failures {
        let url = &plan.servers[*number].url;
        on_event(&Event::Down { url, why });
    }
    let ladder = first.pictures[0].ladder(offer.kbps())?;
    let film = Film {
        qualities: offer.qualities.iter().map(|(of, _)| of.clone()).collect(),
        sound: offer.sound.as_ref().map(|(of, _)| of.clone()),
        segment_ms: ladder.segment_ms(),
        segments: ladder.segments().unwrap_or(0),
    };
    let sound = first.sound.as_ref();
    let sound_ms = sound.map(|sound| sound.durations_ms()).unwrap_or_default();
    let headers = sound.map_or(0, |sound| sound.headers.len());
    let desk = Desk::new(
        Arc::new(ladder),
        (&sound_ms, headers),
        plan.settings.clone(),
        plan.memory,
        now(),
    )?;
    Ok(Inner {
        plan,
        token: token()?,
        offer,
        film,
        sources,
        first,
        on_event,
        since,
        desk: Mutex::new(desk),
        servers: Mutex::new(servers),
        asked: Notify::new(),
        came: Notify::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::film::Document;
    use super::*;

    fn source(size: (u64, u64), codecs: &str, list: &str) -> Source {
        let base = Url::parse("http://host/a.m3u8").expect("an address");
        let list = format!("#EXTM3U\n{list}#EXT-X-ENDLIST\n");
        let track = match Document::read(list.as_bytes(), &base) {
            Ok(Document::Track(track)) => track,
            other => panic!("{other:?}"),
        };
        let quality = Quality {
            size: (size.0 > 0).then_some(size),
            codecs: (!codecs.is_empty()).then(|| codecs.to_owned()),
            ..Quality::default()
        };
        Source {
            qualities: vec![quality],
            pictures: vec![track],
            sound: None,
        }
    }

    #[test]
    fn copies_may_be_of_several_servers_if_one_can_follow_the_other() {
        let parts = "#EXT-X-MAP:URI=\"i.mp4\"\n#EXTINF:2,\n0.mp4\n";
        let one = source((64, 36), "avc1.64001e", parts);
        let good = [
            source((64, 36), "avc3.64001f,mp4a.40.2", parts),
            source((0, 0), "", parts),
        ];
        for other in good {
            assert_eq!(one.differs(&other), None, "{other:?}");
        }
        for (other, words) in [
            (source((64, 36), "hvc1.1", parts), "another codec"),
            (
                source((32, 18), "avc1.1", parts),
                "32x18 pixels, and not 64x36",
            ),
            (source((0, 0), "", "#EXTINF:2,\n0.ts\n"), "without headers"),
            (
                source((0, 0), "", &parts.replace("EXTINF:2", "EXTINF:3")),
                "segment 0 lasts 3000 ms",
            ),
        ] {
            let why = one.differs(&other);
            assert!(
                why.as_ref().is_some_and(|why| why.contains(words)),
                "{why:?}"
            );
        }
    }
}
