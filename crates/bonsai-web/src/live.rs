//! Live streams of other servers and cameras: each is asked for once, over RTSP, and given to all viewers as low-latency
//! HLS.
//!
//! ```text
//!   GET /-/live/NAME/master.m3u8                     the stream
//!   GET /-/live/NAME/live.m3u8?_HLS_msn=7&_HLS_part=2  its playlist, when that part is in it (RFC 8216bis, 6.2.5.2)
//!   GET /-/live/NAME/header-1.mp4, 7.m4s, 7.2.m4s    the files that it names
//! ```

mod pull;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bonsai_media::hls::live::Live;
use serde::Deserialize;
use tokio::sync::watch;

use crate::answer::Refused;
use crate::house::House;

pub use self::pull::{Source, SourceError};

/// Longest wait of a request for a part that is not there yet.
const WAITS: Duration = Duration::from_secs(8);

/// Segments that a playlist may be asked for ahead; no player guesses further.
const AHEAD: u64 = 2;

/// A live stream.
pub(crate) struct Channel {
    source: Source,
    live: Mutex<Live>,
    /// Counts changes of the playlist.
    changes: watch::Sender<u64>,
}

impl Channel {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            live: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits until `is_there`, for a while; whether it is.
    async fn wait(&self, is_there: impl Fn(&Live) -> bool) -> bool {
        let mut changes = self.changes.subscribe();
        let waits = async {
            while !is_there(&self.live()) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // The state itself is looked at after the wait, however that ended.
        let _ = tokio::time::timeout(WAITS, waits).await;
        is_there(&self.live())
    }
}

struct Channels {
    all: Vec<Arc<Channel>>,
    house: Arc<House>,
}

/// The routes to live streams.
pub(crate) fn router(all: Vec<Arc<Channel>>, house: &Arc<House>) -> Router {
    let channels = Channels {
        all,
        house: Arc::clone(house),
    };
    Router::new()
        .route("/-/live/{name}/{part}", get(part))
        .with_state(Arc::new(channels))
}

/// Asks for all of them as long as it runs.
pub(crate) fn start(all: &[Arc<Channel>], house: &Arc<House>) {
    for channel in all {
        tokio::spawn(pull::run(Arc::clone(channel), Arc::clone(house)));
    }
}

/// The part of a stream that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Master,
    Playlist,
    Header(usize),
    Segment(u64),
    Part(u64, usize),
}

impl Wanted {
    fn read(name: &str) -> Option<Self> {
        match name {
            "master.m3u8" => return Some(Self::Master),
            "live.m3u8" => return Some(Self::Playlist),
            _ => {}
        }
        if let Some(number) = name.strip_prefix("header-") {
            return Some(Self::Header(number.strip_suffix(".mp4")?.parse().ok()?));
        }
        let name = name.strip_suffix(".m4s")?;
        Some(match name.split_once('.') {
            Some((segment, part)) => Self::Part(segment.parse().ok()?, part.parse().ok()?),
            None => Self::Segment(name.parse().ok()?),
        })
    }
}

/// The segment and the part that a playlist is to have.
#[derive(Debug, Deserialize)]
struct Ahead {
    #[serde(rename = "_HLS_msn")]
    segment: Option<u64>,
    #[serde(rename = "_HLS_part")]
    part: Option<usize>,
}

impl Ahead {
    /// True if a playlist has it that goes up to `segment` and `part`, without these.
    fn is_in(&self, (segment, part): (u64, usize)) -> bool {
        match (self.segment, self.part) {
            (None, _) => true,
            (Some(wanted), None) => segment > wanted,
            (Some(wanted), Some(of)) => segment > wanted || segment == wanted && part > of,
        }
    }
}

async fn part(
    State(channels): State<Arc<Channels>>,
    path: Result<Path<(String, String)>, PathRejection>,
    Query(ahead): Query<Ahead>,
) -> Result<Response, Refused> {
    let (name, wanted) = path?.0;
    let channel = channels.all.iter().find(|of| of.source.name == name);
    let channel = channel.ok_or_else(Refused::not_found)?;
    let wanted = Wanted::read(&wanted).ok_or_else(Refused::not_found)?;
    let away = || {
        let why = format!("nothing has come of {name:?} yet, or for some time");
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, why)
    };
    Ok(match wanted {
        Wanted::Master | Wanted::Playlist if !channel.wait(Live::has_begun).await => {
            return Err(away());
        }
        Wanted::Master => playlist(channel.live().master("live.m3u8")),
        Wanted::Playlist => {
            let last = channel.live().next().0;
            if ahead.segment.is_some_and(|wanted| wanted > last + AHEAD) {
                let why = "that segment is further ahead than there is anything to wait for";
                return Err(Refused::new(StatusCode::BAD_REQUEST, why));
            }
            if !channel.wait(|live| ahead.is_in(live.next())).await {
                return Err(away());
            }
            playlist(channel.live().playlist())
        }
        Wanted::Header(number) => {
            let header = channel.live().header(number);
            media(&channels.house, &[header.ok_or_else(Refused::not_found)?])
        }
        Wanted::Segment(number) => {
            let parts = channel.live().segment(number);
            media(&channels.house, &parts.ok_or_else(Refused::not_found)?)
        }
        Wanted::Part(segment, part) => {
            let next = channel.live().next();
            // The next one, which a playlist has named as a hint.
            if next == (segment, part) {
                channel.wait(|live| live.next() != next).await;
            }
            let part = channel.live().part(segment, part);
            media(&channels.house, &[part.ok_or_else(Refused::not_found)?])
        }
    })
}

fn playlist(text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/vnd.apple.mpegurl"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

fn media(house: &House, parts: &[Arc<[u8]>]) -> Response {
    let bytes = parts.concat();
    house.sent(bytes.len());
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("video/iso.segment"),
        ),
        (
            header::CACHE_CONTROL,
            HeaderValue::from_static("private, max-age=60"),
        ),
    ];
    (headers, Body::from(bytes)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_stream_are_named_and_waited_for() {
        for (name, wanted) in [
            ("master.m3u8", Some(Wanted::Master)),
            ("live.m3u8", Some(Wanted::Playlist)),
            ("header-3.mp4", Some(Wanted::Header(3))),
            ("7.m4s", Some(Wanted::Segment(7))),
            ("7.2.m4s", Some(Wanted::Part(7, 2))),
            ("7.2.1.m4s", None),
            ("-1.m4s", None),
            ("header-.mp4", None),
            ("", None),
        ] {
            assert_eq!(Wanted::read(name), wanted, "{name}");
        }
        let ahead = |segment, part| Ahead { segment, part };
        for (ahead, next, is_in) in [
            (ahead(None, None), (0, 0), true),
            (ahead(Some(7), None), (7, 3), false),
            (ahead(Some(7), None), (8, 0), true),
            (ahead(Some(7), Some(2)), (7, 2), false),
            (ahead(Some(7), Some(2)), (7, 3), true),
            (ahead(Some(7), Some(9)), (8, 0), true),
        ] {
            assert_eq!(ahead.is_in(next), is_in, "{ahead:?} {next:?}");
        }
    }
}
