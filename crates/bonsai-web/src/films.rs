//! Films of a folder as HLS, cut from the file when a player asks.
//!
//! ```text
//!   GET /-/hls/FILM.mp4/master.m3u8        all of its tracks
//!   GET /-/hls/FILM.mp4/film.json          what of it is not sent by which way
//!   GET /-/hls/FILM.mp4/0.m3u8             a track; s0.m3u8 is the first file of subtitles beside the film
//!   GET /-/hls/FILM.mp4/0.mp4?of=STAMP     the header of a track
//!   GET /-/hls/FILM.mp4/0-17.m4s?of=STAMP  a segment of it; 2.vtt and s0.vtt are subtitles
//! ```
//! Addresses in a playlist have the stamp of the file in them: of a file that has been replaced meanwhile, no segment is sent
//! that belongs to another playlist.

mod body;
mod shelf;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Json, Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bonsai_media::hls::{Beside, Film, text};
use bonsai_stream::folder::{Folder, Kind, Opened, Stamp};
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;

use crate::answer::Refused;
use crate::clips;
use crate::file::Reading;
use crate::house::{House, Peer, said};

use self::shelf::{Known, Shelf};

/// Ends of the names of films that are cut.
const FILMS: [&str; 4] = ["mp4", "m4v", "mov", "m4a"];

/// Entries of a folder that are looked at for subtitles.
const MOST_ENTRIES: usize = 5000;

/// Files of subtitles of a film.
const MOST_BESIDE: usize = 32;

/// A file of subtitles of more bytes is none: those of a film have 100 kB.
const MOST_TEXT: u64 = 4 << 20;

const PLAYLIST: &str = "application/vnd.apple.mpegurl";
const SUBTITLES: &str = "text/vtt; charset=utf-8";

/// Playlists are asked for anew; the files that they name never change.
const ANEW: &str = "no-cache";
const FOR_EVER: &str = "private, max-age=86400, immutable";

struct Films {
    folder: Arc<Folder>,
    house: Arc<House>,
    shelf: Shelf,
}

/// The routes to the films of a folder.
pub(crate) fn router(folder: Arc<Folder>, house: &Arc<House>) -> Router {
    let films = Films {
        folder,
        house: Arc::clone(house),
        shelf: Shelf::default(),
    };
    Router::new()
        .route("/-/hls/{*path}", get(part))
        .with_state(Arc::new(films))
}

/// True if a file of that name is cut.
fn is_film(path: &str) -> bool {
    let end = path
        .rsplit_once('.')
        .map(|(_, end)| end.to_ascii_lowercase());
    end.is_some_and(|end| FILMS.contains(&end.as_str()))
}

/// The part of a film that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Master,
    Facts,
    Playlist(usize),
    Header(usize),
    Segment(usize, usize),
    Text(usize),
    BesidePlaylist(usize),
    Beside(usize),
}

impl Wanted {
    fn read(name: &str) -> Option<Self> {
        if name == "master.m3u8" {
            return Some(Self::Master);
        }
        if name == "film.json" {
            return Some(Self::Facts);
        }
        let (name, end) = name.rsplit_once('.')?;
        let number = |text: &str| {
            // As it is written in playlists: one address for each.
            let number: usize = text.parse().ok()?;
            (number.to_string() == text).then_some(number)
        };
        match (name.strip_prefix('s'), end) {
            (Some(beside), "m3u8") => number(beside).map(Self::BesidePlaylist),
            (Some(beside), "vtt") => number(beside).map(Self::Beside),
            (Some(_), _) => None,
            (None, "m3u8") => number(name).map(Self::Playlist),
            (None, "mp4") => number(name).map(Self::Header),
            (None, "vtt") => number(name).map(Self::Text),
            (None, "m4s") => {
                let (track, segment) = name.split_once('-')?;
                Some(Self::Segment(number(track)?, number(segment)?))
            }
            (None, _) => None,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Asked {
    of: Option<String>,
}

type App = State<Arc<Films>>;

async fn part(
    State(films): App,
    Extension(Peer(peer)): Extension<Peer>,
    path: Result<Path<String>, PathRejection>,
    Query(asked): Query<Asked>,
) -> Result<Response, Refused> {
    let path = path?.0;
    let (film, name) = path.rsplit_once('/').ok_or_else(Refused::not_found)?;
    let wanted = Wanted::read(name).ok_or_else(Refused::not_found)?;
    if clips::kind(film).is_none() || !is_film(film) {
        return Err(Refused::not_found());
    }
    let opened = {
        let (films, film) = (Arc::clone(&films), film.to_owned());
        blocking(move || films.folder.file(&film)).await??
    };
    let stamp = opened.stamp;
    let known = films.shelf.get(film, opened).await?;
    let name = stamp_of(&stamp);
    if asked.of.as_ref().is_some_and(|of| *of != name) {
        let why = "the film has changed: ask for its playlist again";
        return Err(Refused::new(StatusCode::NOT_FOUND, why));
    }
    let reading = Reading {
        house: Arc::clone(&films.house),
        peer,
    };
    answer(&films, &known, (film, &name), wanted, reading).await
}

async fn answer(
    films: &Arc<Films>,
    known: &Arc<Known>,
    (path, stamp): (&str, &str),
    wanted: Wanted,
    reading: Reading,
) -> Result<Response, Refused> {
    let film = &known.film;
    let missing = Refused::not_found;
    Ok(match wanted {
        Wanted::Master => {
            let beside: Vec<Beside> = beside(films, path)
                .await?
                .into_iter()
                .enumerate()
                .map(|(number, (_, language))| Beside {
                    language,
                    uri: format!("s{number}.m3u8"),
                })
                .collect();
            let list = film.master(&|track| format!("{track}.m3u8"), &beside);
            plain(PLAYLIST, ANEW, list)
        }
        Wanted::Facts => {
            let facts = films.shelf.facts(Arc::clone(known)).await?;
            ([(header::CACHE_CONTROL, ANEW)], Json(facts)).into_response()
        }
        Wanted::Playlist(track) => {
            let header = format!("{track}.mp4?of={stamp}");
            let segment = |number: usize| format!("{track}-{number}.m4s?of={stamp}");
            let list = match film.cues(track) {
                Some(_) => Some(film.text_playlist(&format!("{track}.vtt?of={stamp}"))),
                None => film.playlist(track, &header, &segment),
            };
            plain(PLAYLIST, ANEW, list.ok_or_else(missing)?)
        }
        Wanted::Header(track) => {
            let header = film.header(track).ok_or_else(missing)?;
            plain("video/mp4", FOR_EVER, header)
        }
        Wanted::Segment(track, number) => {
            let segment = film.segment(track, number).ok_or_else(missing)?;
            let bytes = segment.bytes();
            let shown = said(&format!("{path}: segment {number} of track {track}"));
            let body = body::of(Arc::clone(known), segment, shown, reading);
            let mut response = plain("video/iso.segment", FOR_EVER, body);
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
            response
        }
        Wanted::Text(track) => {
            let known = Arc::clone(known);
            let cues = blocking(move || shelf::cues(&known, track)).await?;
            let cues = cues.map_err(|error| Refused::broken("the file cannot be read", &error))?;
            plain(
                SUBTITLES,
                FOR_EVER,
                heading(film) + &cues.ok_or_else(missing)?,
            )
        }
        Wanted::BesidePlaylist(number) => {
            let there = beside(films, path).await?;
            there.get(number).ok_or_else(missing)?;
            plain(
                PLAYLIST,
                ANEW,
                film.text_playlist(&format!("s{number}.vtt")),
            )
        }
        Wanted::Beside(number) => {
            let there = beside(films, path).await?;
            let name = there.into_iter().nth(number).ok_or_else(missing)?.0;
            let films = Arc::clone(films);
            let text = blocking(move || subtitles(&films.folder, &name)).await??;
            plain(SUBTITLES, ANEW, heading(film) + &text)
        }
    })
}

fn heading(film: &Film) -> String {
    text::heading(film.lead_ns())
}

fn plain(kind: &'static str, cache: &'static str, body: impl Into<Body>) -> Response {
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, cache)];
    (headers, body.into()).into_response()
}

/// Does work that waits for a disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refused> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refused::broken("the file cannot be read", &error))
}

/// A file as it is now, for addresses.
fn stamp_of(stamp: &Stamp) -> String {
    let since = stamp
        .modified()
        .duration_since(std::time::SystemTime::UNIX_EPOCH);
    let since = since.map_or(0, |since| since.as_nanos());
    format!("{:x}-{since:x}", stamp.bytes)
}

/// Files of subtitles beside a film, by name, and their languages: `film.vtt`, `film.en.srt`.
async fn beside(films: &Arc<Films>, path: &str) -> Result<Vec<(String, String)>, Refused> {
    let (films, path) = (Arc::clone(films), path.to_owned());
    blocking(move || {
        let (folder, name) = path.rsplit_once('/').unwrap_or((".", &path));
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let entries = films
            .folder
            .entries(folder, MOST_ENTRIES)
            .unwrap_or_default();
        let mut found: Vec<(String, String)> = entries
            .into_iter()
            .filter(|(_, kind)| *kind == Kind::File)
            .filter_map(|(name, _)| {
                let rest = name.strip_prefix(stem)?;
                let (language, _) = rest
                    .rsplit_once('.')
                    .filter(|(_, end)| matches!(*end, "vtt" | "srt"))?;
                let language = match language {
                    "" => "",
                    word => word.strip_prefix('.')?,
                };
                let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let language = language
                    .chars()
                    .all(is_plain)
                    .then(|| language.to_owned())?;
                Some((format!("{folder}/{name}"), language))
            })
            .collect();
        found.sort();
        found.truncate(MOST_BESIDE);
        found
    })
    .await
}

/// A file of subtitles as cues of WebVTT.
fn subtitles(folder: &Folder, path: &str) -> Result<String, Refused> {
    use std::io::Read as _;
    let Opened { file, stamp } = folder.file(path)?;
    if stamp.bytes > MOST_TEXT {
        return Err(Refused::new(
            StatusCode::FORBIDDEN,
            "these subtitles are too long",
        ));
    }
    let mut bytes = Vec::new();
    let read = file.take(MOST_TEXT).read_to_end(&mut bytes);
    read.map_err(|error| Refused::broken("the file cannot be read", &error))?;
    let written = String::from_utf8_lossy(&bytes);
    Ok(match path.ends_with(".srt") {
        true => text::of_srt(&written),
        false => text::of_vtt(&written),
    })
}

/// Address of the facts of a file, if that is cut.
pub(crate) fn facts_address(path: &str) -> Option<String> {
    let address = || {
        format!(
            "-/hls/{}/film.json",
            utf8_percent_encode(path, clips::PLAIN)
        )
    };
    is_film(path).then(address)
}

/// Where a film is played.
pub(crate) fn address(path: &str) -> String {
    format!(
        "-/watch.html?film={}",
        utf8_percent_encode(path, clips::PLAIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_film_has_one_address() {
        for (name, wanted) in [
            ("master.m3u8", Some(Wanted::Master)),
            ("film.json", Some(Wanted::Facts)),
            ("0.m3u8", Some(Wanted::Playlist(0))),
            ("12.mp4", Some(Wanted::Header(12))),
            ("1-17.m4s", Some(Wanted::Segment(1, 17))),
            ("2.vtt", Some(Wanted::Text(2))),
            ("s0.m3u8", Some(Wanted::BesidePlaylist(0))),
            ("s3.vtt", Some(Wanted::Beside(3))),
            ("01.m3u8", None),
            ("+1.m3u8", None),
            ("1.m4s", None),
            ("1-.m4s", None),
            ("s1.mp4", None),
            ("99999999999999999999.mp4", None),
            ("master", None),
            ("", None),
        ] {
            assert_eq!(Wanted::read(name), wanted, "{name}");
        }
    }
}
