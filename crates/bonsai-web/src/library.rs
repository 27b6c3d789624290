//! A library: playlists and segments, searches, personal playlists, recommendations. Addresses in
//! playlists are relative.
//!
//! ```text
//! GET  /media/match-1/master.m3u8              playlists and segments, with ranges and ETags
//! GET  /media/match-1/720p/00000.mp4
//! GET  /videos                                 what there is
//! GET  /fields                                 what the fields of its events have
//! GET  /search?q=sliding+tackle&player=8,14    hits
//! GET  /personal/master.m3u8?q=...&length=2min a playlist of the best, or manifest.mpd
//! GET  /personal/master.m3u8?events=match-1:3  a playlist of these; of segments by clips=match-1:0x4
//! GET  /personal/playlist.json?q=...           what is in it when
//! GET  /recommended                            by what was watched
//! GET  /watched                                what was watched
//! POST /watched                                {"events": [{"video": "match-1", "number": 3}]}
//! ```
//!
//! # Invariants
//! 1. No file is opened but playlists and segments of videos, by names that are checked letter by letter,
//!    and none through a symbolic link.
//! 2. SQLite and the folder are asked on threads for that, by four requests at a time.
//! 3. A playlist that is being played stays what it is: what it was made of is in the addresses of its
//!    tracks, and whatever is imported meanwhile changes none of them.

pub(crate) mod asked;
mod personal;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Extension, Json, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bonsai_davvi::{Error, Library, Name};
use bonsai_stream::folder::Folder;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Semaphore;

use self::asked::Asked;
use crate::answer::Refused;
use crate::file::{self, Reading};
use crate::house::{House, Peer};

/// How many requests may use the index at a time.
const AT_A_TIME: usize = 4;
/// The most bytes of what is posted.
const MOST_POSTED: usize = 64 << 10;
/// The most values of a field that are offered.
const MOST_VALUES: usize = 200;
/// The sound of a video, where others have their lines.
const SOUND: &str = "audio";

const HLS: &str = "application/vnd.apple.mpegurl";
const DASH: &str = "application/dash+xml";

struct Served {
    library: Library,
    folder: Folder,
    house: Arc<House>,
    places: Arc<Semaphore>,
    /// Whether clips of a folder are served, too.
    has_clips: bool,
}

type App = State<Arc<Served>>;

/// What serves a library, in this folder.
pub(crate) fn router(
    library: Library,
    folder: Folder,
    has_clips: bool,
    house: &Arc<House>,
) -> Router {
    let served = Served {
        library,
        folder,
        house: Arc::clone(house),
        places: Arc::new(Semaphore::new(AT_A_TIME)),
        has_clips,
    };
    Router::new()
        .route("/media/{video}/{file}", get(playlist))
        .route("/media/{video}/{track}/{file}", get(segment))
        .route("/videos", get(videos))
        .route("/fields", get(fields))
        .route("/search", get(search))
        .route("/personal/{file}", get(personal::personal))
        .route("/recommended", get(recommended))
        .route("/watched", get(seen).post(watched))
        .layer(DefaultBodyLimit::max(MOST_POSTED))
        .with_state(Arc::new(served))
}

impl Served {
    /// Does something with the library, on a thread that may wait.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Library) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Refused> {
        let broken = |error: &dyn std::error::Error| {
            Refused::broken("the library cannot be read", &error.to_string())
        };
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|error| broken(&error))?;
        let library = self.library.clone();
        // Work goes on where nobody waits for it any more, and keeps its place until it is done.
        let work = move || {
            let done = work(&library);
            drop(place);
            done
        };
        let done = tokio::task::spawn_blocking(work).await;
        Ok(done.map_err(|error| broken(&error))??)
    }

    /// What is wrong with videos, without saying where the library is.
    fn without_place(&self, problems: Vec<String>) -> Vec<String> {
        let place = format!("{}/", self.library.path().display());
        problems
            .into_iter()
            .map(|problem| problem.replace(&place, ""))
            .collect()
    }
}

/// Whether it is the name of a track: `720p`, or `audio`.
fn is_track(text: &str) -> bool {
    let is_height = |digits: &str| {
        (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    text == SOUND || text.strip_suffix('p').is_some_and(is_height)
}

async fn playlist(
    state: App,
    peer: Extension<Peer>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request,
) -> Result<Response, Refused> {
    let Path((video, file)) = path?;
    let kind = match file.rsplit_once('.') {
        Some((track, "m3u8")) if track == "master" || is_track(track) => HLS,
        Some(("manifest", "mpd")) => DASH,
        _ => return Err(Refused::not_found()),
    };
    sent(state, peer, &video, &file, kind, "no-cache", request).await
}

async fn segment(
    state: App,
    peer: Extension<Peer>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    request: Request,
) -> Result<Response, Refused> {
    let Path((video, track, file)) = path?;
    let is_number =
        |text: &str| (5..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let is_file = file
        .strip_suffix(".mp4")
        .is_some_and(|stem| stem == "init" || is_number(stem));
    if !is_file || !is_track(&track) {
        return Err(Refused::not_found());
    }
    let kind = if track == SOUND {
        "audio/mp4"
    } else {
        "video/mp4"
    };
    let file = format!("{track}/{file}");
    // Another video may come to have the name: whoever has a file asks whether it is still that (ETag).
    let cache = "private, no-cache";
    sent(state, peer, &video, &file, kind, cache, request).await
}

async fn sent(
    State(served): App,
    Extension(Peer(peer)): Extension<Peer>,
    video: &str,
    file: &str,
    kind: &'static str,
    cache: &'static str,
    request: Request,
) -> Result<Response, Refused> {
    let name = Name::parse(video).map_err(|_| Refused::not_found())?;
    let path = format!("{name}/{file}");
    let reading = Reading {
        house: Arc::clone(&served.house),
        peer,
    };
    let opened = tokio::task::spawn_blocking(move || served.folder.file(&path)).await;
    let opened = opened.map_err(|error| Refused::broken("the file cannot be read", &error))??;
    Ok(file::send(opened, kind, cache, reading, request).await)
}

/// What changes with the library is asked for anew.
fn fresh(body: &impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, "no-cache")], Json(body)).into_response()
}

async fn videos(State(served): App) -> Result<Response, Refused> {
    let listed = served.with(Library::list).await?;
    let videos = listed.videos.iter().map(|video| {
        json!({
            "name": video.name,
            "title": video.title,
            "length_ms": video.length_ms(),
            "segments": video.segments,
            "segment_s": video.segment_seconds(),
            "qualities": video.qualities,
            "events": video.events,
            "hls": format!("media/{}/master.m3u8", video.name),
            "dash": format!("media/{}/manifest.mpd", video.name),
        })
    });
    let videos: Vec<_> = videos.collect();
    let problems = served.without_place(listed.problems);
    let has_clips = served.has_clips;
    let answer = json!({"videos": videos, "problems": problems, "has_clips": has_clips});
    Ok(fresh(&answer))
}

async fn fields(State(served): App) -> Result<Response, Refused> {
    let values = served.with(|library| library.field_values(MOST_VALUES));
    Ok(fresh(&json!({"fields": values.await?})))
}

async fn search(
    State(served): App,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let query = asked?.0.query()?;
    let mut found = served.with(move |library| library.search(&query)).await?;
    found.problems = served.without_place(found.problems);
    Ok(fresh(&found))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Most {
    most: Option<usize>,
}

async fn recommended(
    State(served): App,
    asked: Result<Query<Most>, QueryRejection>,
) -> Result<Response, Refused> {
    let most = asked?.0.most.unwrap_or(20).min(1000);
    let recommended = served.with(move |library| {
        let watched = library.seen()?.len();
        let hits = match watched {
            0 => Vec::new(),
            _ => library.recommend(most)?,
        };
        Ok((watched, hits))
    });
    let (watched, hits) = recommended.await?;
    Ok(fresh(&json!({"watched": watched, "hits": hits})))
}

/// Events by video and number.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Watched {
    events: Vec<WatchedEvent>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WatchedEvent {
    video: Name,
    number: u32,
}

async fn seen(State(served): App) -> Result<Response, Refused> {
    let seen = served.with(Library::seen).await?;
    let events = seen
        .into_iter()
        .map(|(video, number)| WatchedEvent { video, number });
    Ok(fresh(&Watched {
        events: events.collect(),
    }))
}

async fn watched(
    State(served): App,
    posted: Result<Json<Watched>, JsonRejection>,
) -> Result<StatusCode, Refused> {
    let events = posted?
        .0
        .events
        .into_iter()
        .map(|event| (event.video, event.number));
    let events: Vec<_> = events.collect();
    served.with(move |library| library.watched(&events)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::{Event, Limits};

    #[test]
    fn work_that_nobody_waits_for_any_more_keeps_its_place() {
        let place = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(place.path().join(".private")).expect("made");
        let at = "127.0.0.1:0".parse().expect("an address");
        let house = House::new(Limits::default(), None, at, Arc::new(|_: &Event<'_>| {}));
        let served = Served {
            library: Library::open(place.path()).expect("a library"),
            folder: Folder::open(place.path()).expect("a folder"),
            house: Arc::new(house),
            places: Arc::new(Semaphore::new(1)),
            has_clips: false,
        };
        let (end, ended) = mpsc::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let work = served.with(move |_| {
                let _ = ended.recv();
                Ok(())
            });
            let given_up = timeout(Duration::from_millis(10), work).await;
            given_up.expect_err("it takes longer");
            assert_eq!(served.places.available_permits(), 0);
            drop(end);
            let next = timeout(Duration::from_secs(20), served.with(|_| Ok(())));
            next.await.expect("a place is free").expect("done");
        });
    }
}
