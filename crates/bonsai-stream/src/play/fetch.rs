//! Asking for things: connections, redirects, answers that are none; each step with its deadline.

use std::error::Error as _;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bonsai_media::adapt;
use hyper::header::{CONTENT_RANGE, LOCATION};
use hyper::{Response, StatusCode};
use tokio::time::timeout;
use url::Url;

use super::film::{Document, Host, MOST_BYTES, Piece, Target, Unreadable, join, short, too_long};
use super::shared::Shared;
use super::wire::{Came, Wire};

/// An answer says so often that it is elsewhere.
const REDIRECTS: u32 = 5;

/// So much of an answer that is no use is read, so that its connection can be kept.
const DRAINED: usize = 64 << 10;

/// Why something was not to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("{host}: {why}")]
    Connect { host: String, why: String },
    #[error("no answer in {} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("{status}: {what:?}")]
    Status { status: StatusCode, what: String },
    #[error("{0}")]
    Http(String),
    #[error("it is elsewhere more than {REDIRECTS} times in a row")]
    Redirects,
    #[error("it is elsewhere ({0}), and no address says where")]
    Nowhere(StatusCode),
    #[error("the server sends all of a file of which a part was asked for")]
    Whole,
    #[error("the server sends another part of a file than was asked for")]
    Part,
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    #[error("{0}")]
    Adapt(#[from] adapt::Error),
    #[error("playlists that are fetched at a time take too much room")]
    Room,
    #[error("only {bytes} bytes in {} s", .step.as_secs_f64())]
    Slow { bytes: u64, step: Duration },
    #[error("{came} bytes came, and {length} are due")]
    Length { came: u64, length: u64 },
    #[error("{0}")]
    Tracks(String),
    #[error("it is not the same film: {0}")]
    Film(String),
}

impl Why {
    pub(super) fn http(error: &hyper::Error) -> Self {
        let cause = error.source();
        Self::Http(match cause {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })
    }
}

/// A player's connection, and how it comes by another.
pub(super) struct Fetcher {
    shared: Rc<Shared>,
    wire: Option<Wire>,
    /// How many connections there were.
    pub(super) connections: u64,
}

impl Fetcher {
    pub(super) const fn new(shared: Rc<Shared>) -> Self {
        Self {
            shared,
            wire: None,
            connections: 0,
        }
    }

    /// The connection, while something is asked of it.
    pub(super) fn wire(&mut self) -> Option<&mut Wire> {
        self.wire.as_mut()
    }

    /// Ends the connection: what still comes by it is of no use.
    pub(super) fn hang_up(&mut self) {
        self.wire = None;
    }

    /// Asks for a piece, wherever it says that it is. After that its bytes come by the connection. Returns
    /// where it is, if that is elsewhere.
    pub(super) async fn ask(&mut self, piece: &Piece) -> Result<Option<Piece>, Why> {
        let mut moved: Option<Piece> = None;
        for _ in 0..=REDIRECTS {
            let now = moved.as_ref().unwrap_or(piece);
            let head = self.once(now).await?;
            let status = head.status();
            match (status, piece.range) {
                (StatusCode::OK, None) => return Ok(moved),
                (StatusCode::PARTIAL_CONTENT, Some(range)) if is_part(&head, range) => {
                    return Ok(moved);
                }
                (StatusCode::PARTIAL_CONTENT, Some(_)) => {
                    self.hang_up();
                    return Err(Why::Part);
                }
                (StatusCode::OK, Some(_)) => {
                    self.hang_up();
                    return Err(Why::Whole);
                }
                _ => {}
            }
            let next = match status {
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => Some(elsewhere(now, &head)?),
                _ => None,
            };
            let what = short(now.target.path.as_str()).to_owned();
            self.drain().await;
            match next {
                Some(next) => moved = Some(next),
                None => return Err(Why::Status { status, what }),
            }
        }
        Err(Why::Redirects)
    }

    /// One question, and one more if the connection turns out to have ended before.
    async fn once(&mut self, piece: &Piece) -> Result<Response<()>, Why> {
        let step = self.shared.plan.step;
        let host = &piece.target.host;
        for _ in 0..2 {
            if self.wire.as_ref().is_none_or(|wire| wire.host != *host) {
                self.connect(host).await?;
            }
            let Some(wire) = &mut self.wire else {
                continue;
            };
            let was_used = wire.is_used;
            let error = match timeout(step, wire.ask(piece)).await {
                Ok(Ok(head)) => return Ok(head),
                Ok(Err(error)) => error,
                Err(_) => {
                    self.hang_up();
                    return Err(Why::Silent(step));
                }
            };
            self.hang_up();
            if !was_used || error.is_parse() {
                return Err(Why::http(&error));
            }
        }
        Err(Why::Http(
            "the connection is closed again and again".to_owned(),
        ))
    }

    async fn connect(&mut self, host: &Arc<Host>) -> Result<(), Why> {
        self.hang_up();
        let step = self.shared.plan.step;
        let failed = |why: String| Why::Connect {
            host: format!("{}:{}", host.name, host.port),
            why,
        };
        let connected = async {
            let address = self.shared.address(host).await?;
            Wire::connect(host.clone(), address).await
        };
        let wire = within(step, connected, || {
            failed(format!("no connection in {} s", step.as_secs_f64()))
        });
        let wire = wire.await?.map_err(|error| failed(error.to_string()))?;
        self.connections += 1;
        self.wire = Some(wire);
        Ok(())
    }

    /// Reads what is left of an answer, if that is not much.
    async fn drain(&mut self) {
        let step = self.shared.plan.step;
        let Some(wire) = &mut self.wire else {
            return;
        };
        let drained = async {
            let mut bytes = 0;
            while bytes <= DRAINED {
                match wire.body().await {
                    Ok(Came::Bytes(more)) => bytes += more.len(),
                    Ok(Came::End) => return true,
                    Err(_) => return false,
                }
            }
            false
        };
        if !timeout(step, drained).await.unwrap_or(false) {
            self.hang_up();
        }
    }

    /// Fetches a playlist or a description.
    pub(super) async fn document(&mut self, url: &Url) -> Result<Document, Why> {
        let piece = Piece {
            target: Target::of(url, &mut Vec::new())?,
            range: None,
        };
        let moved = self.ask(&piece).await?;
        let step = self.shared.plan.step;
        let bytes = within(step, self.all(), || Why::Silent(step)).await;
        let bytes = bytes
            .and_then(|bytes| bytes)
            .inspect_err(|_| self.wire = None)?;
        let base = match moved {
            Some(moved) => address(&moved.target)?,
            None => url.clone(),
        };
        Ok(self.shared.read(&base, bytes)?)
    }

    async fn all(&mut self) -> Result<Vec<u8>, Why> {
        let mut held = self.shared.hold();
        let mut bytes = Vec::new();
        let Some(wire) = &mut self.wire else {
            return Ok(bytes);
        };
        let most = u64::try_from(MOST_BYTES).unwrap_or(u64::MAX);
        if wire.length().is_some_and(|length| length > most) {
            return Err(too_long().into());
        }
        loop {
            match wire.body().await {
                Ok(Came::Bytes(more)) => {
                    if bytes.len() + more.len() > MOST_BYTES {
                        return Err(too_long().into());
                    }
                    if !held.grow(more.len()) {
                        return Err(Why::Room);
                    }
                    bytes.extend_from_slice(&more);
                }
                Ok(Came::End) => return Ok(bytes),
                Err(error) => return Err(Why::http(&error)),
            }
        }
    }
}

/// Whether an answer says that it is that part of a file (RFC 9110, 14.4).
fn is_part(head: &Response<()>, (first, last): (u64, u64)) -> bool {
    let said = head.headers().get(CONTENT_RANGE);
    let said = said.and_then(|said| said.to_str().ok()?.trim().strip_prefix("bytes "));
    let said = said.and_then(|said| said.split_once('/')?.0.trim().split_once('-'));
    let number = |text: &str| text.parse::<u64>().ok();
    said.is_some_and(|(from, to)| number(from) == Some(first) && number(to) == Some(last))
}

/// Where something is that is elsewhere.
fn elsewhere(now: &Piece, head: &Response<()>) -> Result<Piece, Why> {
    let said = head.headers().get(LOCATION);
    let said = said.and_then(|said| said.to_str().ok());
    let said = said.ok_or_else(|| Why::Nowhere(head.status()))?;
    let url = join(&address(&now.target)?, said)?;
    Ok(Piece {
        target: Target::of(&url, &mut vec![now.target.host.clone()])?,
        range: now.range,
    })
}

fn address(target: &Target) -> Result<Url, Unreadable> {
    let host = target.host.header.to_str().unwrap_or_default();
    let text = format!("http://{host}{}", target.path);
    Url::parse(&text).map_err(|error| Unreadable::new(format!("{:?}: {error}", short(&text))))
}

async fn within<T>(
    step: Duration,
    what: impl Future<Output = T>,
    late: impl FnOnce() -> Why,
) -> Result<T, Why> {
    timeout(step, what).await.map_err(|_| late())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_one_that_was_asked_for() {
        for (said, is_it) in [
            (Some("bytes 5-9/100"), true),
            (Some("bytes 5-9/*"), true),
            (Some("bytes 0-4/100"), false),
            (Some("bytes 5-8/9"), false),
            (Some("bytes */100"), false),
            (Some("5-9"), false),
            (None, false),
        ] {
            let mut head = Response::new(());
            if let Some(said) = said {
                let said = said.parse().expect("a value");
                head.headers_mut().insert(CONTENT_RANGE, said);
            }
            assert_eq!(is_part(&head, (5, 9)), is_it, "{said:?}");
        }
    }
}
