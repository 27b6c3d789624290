//! Personal playlists: clips of videos that were found, named or recommended, one after the other.

use std::fmt::Write as _;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bonsai_davvi::{Clip, Cut, Error, Hit, Library, Name, Show, Video, cut};
use serde_json::{Value, json};

use super::asked::{Asked, MOST_NAMED, Of};
use super::{App, DASH, HLS};
use crate::answer::Refused;

/// The longest playlist, ms: a day.
const LONGEST_MS: u64 = 86_400_000;

pub(super) async fn personal(
    State(served): App,
    path: Result<Path<String>, PathRejection>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let (Path(file), asked) = (path?, asked?.0);
    let (of, how) = (asked.of()?, asked.cut()?);
    let made = served.with(move |library| {
        let videos = library.list()?.videos;
        let (show, hits) = chosen(library, &videos, of, how)?;
        made(&file, &show, &hits)
    });
    let (kind, text) = made.await?.ok_or_else(Refused::not_found)?;
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, text).into_response())
}

/// What is shown, and the hits that it is made of.
fn chosen<'v>(
    library: &Library,
    videos: &'v [Video],
    of: Of,
    how: Cut,
) -> Result<(Show<'v>, Vec<Hit>), Error> {
    let (clips, hits) = match of {
        Of::Search(mut query) => {
            query.most = usize::MAX;
            let hits = library.search(&query)?.hits;
            (cut(videos, &hits, how).0, hits)
        }
        Of::Events(events) => {
            let hits = library.hits(&events)?;
            (cut(videos, &hits, how).0, hits)
        }
        Of::Clips(clips) => {
            let clip = |(name, first, count): (Name, u32, u32)| {
                let video = videos.iter().find(|video| video.name == name);
                let video =
                    video.ok_or_else(|| Error::Input(format!("no video is called {name}")))?;
                Ok(Clip {
                    video,
                    first,
                    count,
                })
            };
            let clips = clips.into_iter().map(clip).collect::<Result<_, Error>>()?;
            (clips, Vec::new())
        }
    };
    let show = Show::new(clips);
    let why = match (show.milliseconds(), show.clips().len()) {
        (0, _) => "nothing was found that fits in the length".to_owned(),
        (LONGEST_MS.., _) => "more than a day is too long for a playlist".to_owned(),
        (_, clips) if clips > MOST_NAMED => {
            format!("more than {MOST_NAMED} clips are too many: ask for a shorter length")
        }
        _ => return Ok((show, hits)),
    };
    Err(Error::Input(why))
}

/// One of the files of a playlist; `None` if it has no such file.
fn made(
    file: &str,
    show: &Show<'_>,
    hits: &[Hit],
) -> Result<Option<(&'static str, String)>, Error> {
    let place = |name: &Name| format!("../media/{name}/");
    let clips = named(show);
    match file.rsplit_once('.') {
        Some(("master", "m3u8")) => {
            let text = show.master(&|track| format!("{track}.m3u8?clips={clips}"))?;
            Ok(Some((HLS, text)))
        }
        Some((track, "m3u8")) => Ok(show.media(track, &place)?.map(|text| (HLS, text))),
        Some(("manifest", "mpd")) => Ok(Some((DASH, show.mpd(&place)?))),
        Some(("playlist", "json")) => {
            let text = described(show, hits, &clips).to_string();
            Ok(Some(("application/json", text)))
        }
        _ => Ok(None),
    }
}

/// Its clips, as they are asked for: `match-1:3x4,match-2:0x2`.
fn named(show: &Show<'_>) -> String {
    let mut text = String::new();
    for clip in show.clips() {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to memory does not fail.
        let _ = write!(
            text,
            "{comma}{}:{}x{}",
            clip.video.name, clip.first, clip.count
        );
    }
    text
}

/// What is shown when.
fn described(show: &Show<'_>, hits: &[Hit], clips: &str) -> Value {
    let (mut start, mut pieces, mut shown) = (0, Vec::new(), Vec::new());
    for clip in show.clips() {
        let from = clip.video.milliseconds(0, clip.first);
        let to = from + clip.milliseconds();
        pieces.push(json!({
            "video": clip.video.name,
            "title": clip.video.title,
            "from_ms": from,
            "to_ms": to,
            "shown_ms": start,
        }));
        let is_in =
            |hit: &&Hit| hit.video == clip.video.name && (from..to).contains(&hit.event.at_ms);
        for hit in hits.iter().filter(is_in) {
            shown.push((start + hit.event.at_ms - from, hit));
        }
        start += clip.milliseconds();
    }
    shown.sort_by_key(|(at, hit)| (*at, hit.number));
    let events = shown.iter().map(|(at, hit)| {
        json!({
            "video": hit.video,
            "number": hit.number,
            "event": hit.event,
            "shown_ms": at,
        })
    });
    let events: Vec<Value> = events.collect();
    json!({
        "length_ms": show.milliseconds(),
        "hls": format!("personal/master.m3u8?clips={clips}"),
        "dash": format!("personal/manifest.mpd?clips={clips}"),
        "clips": pieces,
        "events": events,
    })
}
