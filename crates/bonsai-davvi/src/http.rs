//! A library over HTTP, for a server that has other things to say, too: nested where it likes, for
//! addresses in playlists are relative.
//!
//! ```text
//! GET  /media/match-1/master.m3u8              playlists and segments, with ranges and ETags
//! GET  /media/match-1/720p/00000.mp4
//! GET  /videos                                 what there is
//! GET  /search?q=sliding+tackle&player=8,14    hits
//! GET  /personal/master.m3u8?q=...&length=2min a playlist of the best, or manifest.mpd
//! GET  /recommended                            by what was watched
//! POST /watched                                {"events": [{"video": "match-1", "number": 3}]}
//! ```
//! Whoever may ask is for the server to decide.
//!
//! # Invariants
//! 1. No file is opened but playlists and segments of videos, by names that are checked letter by letter,
//!    and none through a symbolic link.
//! 2. SQLite and the folder are asked on threads for that, by four requests at a time.

mod asked;

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Json, Path, Query, RawQuery, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, extract::DefaultBodyLimit};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use tower_http::services::ServeFile;

use self::asked::Asked;
use crate::video::SOUND;
use crate::{Error, Library, Name, Show, cut};

/// How many requests may use the index at a time.
const AT_A_TIME: usize = 4;
/// The most bytes of what is posted.
const MOST_POSTED: usize = 64 << 10;

#[derive(Debug)]
struct Served {
    library: Library,
    places: Semaphore,
}

type App = State<Arc<Served>>;

/// What serves a library.
pub fn router<S: Clone + Send + Sync + 'static>(library: Library) -> Router<S> {
    let served = Served {
        library,
        places: Semaphore::new(AT_A_TIME),
    };
    Router::new()
        .route("/media/{video}/{file}", get(playlist))
        .route("/media/{video}/{track}/{file}", get(segment))
        .route("/videos", get(videos))
        .route("/search", get(search))
        .route("/personal/{file}", get(personal))
        .route("/recommended", get(recommended))
        .route("/watched", post(watched))
        .layer(DefaultBodyLimit::max(MOST_POSTED))
        .with_state(Arc::new(served))
}

/// Why a request is not answered.
#[derive(Debug)]
enum Refused {
    NotFound,
    Error(Error),
    Input(String),
    Broken,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<QueryRejection> for Refused {
    fn from(error: QueryRejection) -> Self {
        Self::Input(error.body_text())
    }
}

impl From<JsonRejection> for Refused {
    fn from(error: JsonRejection) -> Self {
        Self::Input(error.body_text())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "there is no such thing here".to_owned(),
            ),
            Self::Input(text) => (StatusCode::BAD_REQUEST, text),
            Self::Error(error) if error.is_input() => (StatusCode::BAD_REQUEST, error.to_string()),
            // What is wrong with the machine is for its owner.
            Self::Error(_) | Self::Broken => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "the library cannot be read".to_owned(),
            ),
        };
        (status, Json(json!({"error": text}))).into_response()
    }
}

impl Served {
    /// Does something with the library, on a thread that may wait.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Library) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Refused> {
        let _place = self.places.acquire().await.map_err(|_| Refused::Broken)?;
        let library = self.library.clone();
        let done = tokio::task::spawn_blocking(move || work(&library)).await;
        Ok(done.map_err(|_| Refused::Broken)??)
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
    State(served): App,
    Path((video, file)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Refused> {
    let name = Name::parse(&video).map_err(|_| Refused::NotFound)?;
    let kind = match file.rsplit_once('.') {
        Some((track, "m3u8")) if track == "master" || is_track(track) => HLS,
        Some(("manifest", "mpd")) => DASH,
        _ => return Err(Refused::NotFound),
    };
    let path = served.library.folder(&name).join(file);
    served_file(path, kind, "no-cache", request).await
}

async fn segment(
    State(served): App,
    Path((video, track, file)): Path<(String, String, String)>,
    request: Request,
) -> Result<Response, Refused> {
    let name = Name::parse(&video).map_err(|_| Refused::NotFound)?;
    let is_number =
        |text: &str| (5..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let is_file = file
        .strip_suffix(".mp4")
        .is_some_and(|stem| stem == "init" || is_number(stem));
    if !is_file || !is_track(&track) {
        return Err(Refused::NotFound);
    }
    let kind = if track == SOUND {
        "audio/mp4"
    } else {
        "video/mp4"
    };
    let path = served.library.folder(&name).join(track).join(file);
    // Another video may come to have the name: then ETags tell them apart.
    served_file(path, kind, "public, max-age=86400", request).await
}

const HLS: &str = "application/vnd.apple.mpegurl";
const DASH: &str = "application/dash+xml";

async fn served_file(
    path: PathBuf,
    kind: &'static str,
    cache: &'static str,
    mut request: Request,
) -> Result<Response, Refused> {
    let own = path.clone();
    let is_own = tokio::task::spawn_blocking(move || is_itself(&own)).await;
    if !is_own.map_err(|_| Refused::Broken)? {
        return Err(Refused::NotFound);
    }
    let serve = ServeFile::new(&path).ignore_multi_range_requests(true);
    if let Some(wanted) = request.headers_mut().remove(header::IF_RANGE) {
        // RFC 9110, 13.1.5: a part of what is there only if it is what the asker has a part of.
        let mut head = Request::new(Body::empty());
        *head.method_mut() = Method::HEAD;
        let found = serve
            .clone()
            .oneshot(head)
            .await
            .map_err(|_| Refused::Broken)?;
        if found.headers().get(header::ETAG) != Some(&wanted) {
            request.headers_mut().remove(header::RANGE);
        }
    }
    let mut response = serve
        .oneshot(request)
        .await
        .map_err(|_| Refused::Broken)?
        .map(Body::new);
    let headers = response.headers_mut();
    if headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    Ok(response)
}

/// Whether a path is a file without a symbolic link on the way: that of the library has none.
fn is_itself(path: &FilePath) -> bool {
    path.canonicalize().is_ok_and(|found| found == path) && path.is_file()
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
    Ok(Json(json!({"videos": videos, "problems": listed.problems})).into_response())
}

async fn search(
    State(served): App,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let query = asked?.0.query()?;
    let found = served.with(move |library| library.search(&query)).await?;
    Ok(Json(found).into_response())
}

async fn personal(
    State(served): App,
    Path(file): Path<String>,
    RawQuery(raw): RawQuery,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let asked = asked?.0;
    let (mut query, how) = (asked.query()?, asked.cut()?);
    query.most = crate::query::MOST_HITS;
    // In quotes, in the playlist.
    let raw = raw.unwrap_or_default().replace('"', "%22");
    let made = served.with(move |library| {
        let hits = library.search(&query)?.hits;
        let videos = library.list()?.videos;
        let show = Show::new(cut(&videos, &hits, how).0);
        if show.milliseconds() == 0 {
            return Err(Error::input("nothing was found that fits in the length"));
        }
        let place = |name: &Name| format!("../media/{name}/");
        match file.rsplit_once('.') {
            Some(("master", "m3u8")) => {
                let text = show.master(&|track| format!("{track}.m3u8?{raw}"))?;
                Ok(Some((HLS, text)))
            }
            Some((track, "m3u8")) => Ok(show.media(track, &place)?.map(|text| (HLS, text))),
            Some(("manifest", "mpd")) => Ok(Some((DASH, show.mpd(&place)?))),
            _ => Ok(None),
        }
    });
    let (kind, text) = made.await?.ok_or(Refused::NotFound)?;
    Ok((
        [
            (header::CONTENT_TYPE, kind),
            (header::CACHE_CONTROL, "no-cache"),
        ],
        text,
    )
        .into_response())
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
    let hits = served.with(move |library| library.recommend(most)).await?;
    Ok(Json(json!({"hits": hits})).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Watched {
    events: Vec<WatchedEvent>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchedEvent {
    video: Name,
    number: u32,
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
