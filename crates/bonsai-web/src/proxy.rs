//! A film for one player of this machine, whose quality is chosen here.
//!
//! ```text
//!   GET /TOKEN/play.m3u8        the playlist
//!   GET /TOKEN/1/pictures.m3u8  what it names, as a player that read it first
//!   GET /TOKEN/1/12.mp4         a segment, when it is there
//! ```
//! The token cannot be guessed: others on this machine, and pages in a browser, may reach the port, and know nothing
//! of the film. A player that is told it on its command line shows it to whoever may see that (proc(5): `cmdline`).
//! Pages of one origin may be let read it, and why they are refused something.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bonsai_stream::play::proxy::{Denied, Item, Proxy};

use crate::answer::Refused;
use crate::{Error, Limits, Site, Teller};

/// A player that pauses in the middle of a segment keeps its connection for so long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Connections of players.
const CONNECTIONS: u32 = 64;

/// Where a player asks, and who may.
#[derive(Clone, Debug)]
pub struct ProxyPlan {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Pages of this origin may read it (CORS), such as `http://127.0.0.1:8080`; `*` for all.
    pub origin: Option<HeaderValue>,
}

struct Player {
    proxy: Proxy,
    origin: Option<HeaderValue>,
}

type Shared = State<Arc<Player>>;

impl Site {
    /// Listens for a player of that film. What is fetched, and when, is up to whoever runs the proxy.
    ///
    /// # Errors
    /// There is no listening there.
    pub fn of_player(plan: &ProxyPlan, proxy: Proxy, on_event: Teller) -> Result<Self, Error> {
        let limits = Limits {
            connections: CONNECTIONS,
            per_address: CONNECTIONS,
            stall: PATIENCE,
            ..Limits::default()
        };
        let token = proxy.token().to_owned();
        let player = Player {
            proxy,
            origin: plan.origin.clone(),
        };
        let router = Router::new()
            .route(&format!("/{token}/play.m3u8"), get(play))
            .route(&format!("/{token}/{{folder}}/{{name}}"), get(part))
            .with_state(Arc::new(player));
        Self::of(plan.listen, (limits, None, (None, None)), on_event, |_| {
            router
        })
    }
}

impl Player {
    fn answer(&self, kind: &'static str, keep: &'static str, bytes: Bytes) -> Response {
        let mut response = bytes.into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(keep));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
        self.shown(response)
    }

    /// An answer that pages of the origin may read.
    fn shown(&self, mut response: Response) -> Response {
        if let Some(origin) = &self.origin {
            let headers = response.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
        response
    }

    fn list(&self, text: String) -> Response {
        self.answer("application/vnd.apple.mpegurl", "no-store", text.into())
    }
}

async fn play(State(player): Shared) -> Response {
    player.list(player.proxy.playlist())
}

async fn part(State(player): Shared, path: Result<Path<(u64, String)>, PathRejection>) -> Response {
    let found = found(&player, path).await;
    found.unwrap_or_else(|why| player.shown(why.into_response()))
}

async fn found(
    player: &Player,
    path: Result<Path<(u64, String)>, PathRejection>,
) -> Result<Response, Refused> {
    let Path((folder, name)) = path?;
    let list = match name.as_str() {
        "pictures.m3u8" => Some(player.proxy.pictures()),
        "sound.m3u8" => Some(player.proxy.sound().ok_or_else(Refused::not_found)?),
        _ => None,
    };
    if let Some(list) = list {
        return Ok(player.list(list));
    }
    let item = Item::named(&name).ok_or_else(Refused::not_found)?;
    let bytes = player.proxy.get(folder, item).await?;
    let kind = match (name.rsplit_once('.').map(|(_, ending)| ending), item) {
        (Some("ts"), _) => "video/mp2t",
        (Some("aac"), _) => "audio/aac",
        (_, Item::Sound(_) | Item::SoundHeader(_)) => "audio/mp4",
        _ => "video/mp4",
    };
    // It is of this quality now, and may be of another for the next player.
    Ok(player.answer(kind, "no-store", bytes))
}

impl From<Denied> for Refused {
    fn from(why: Denied) -> Self {
        let status = match &why {
            Denied::Nothing => StatusCode::NOT_FOUND,
            Denied::Another | Denied::Elsewhere => StatusCode::SERVICE_UNAVAILABLE,
            Denied::Busy => StatusCode::TOO_MANY_REQUESTS,
            Denied::Upstream(_) => StatusCode::BAD_GATEWAY,
        };
        Self::new(status, why.to_string())
    }
}
