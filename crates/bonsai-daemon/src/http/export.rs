//! The past as a file.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bonsai_api::{Problem, Resource};
use bonsai_history::{Export, Format, Level, Reader};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tokio::sync::mpsc::{self, error::TrySendError};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::body::{Failure, Params};
use super::past::{ask, damaged, may, seconds};
use super::places::{Client, Place, Places};
use super::routes::means;
use crate::problems::unavailable;
use crate::ring::Event;
use crate::who::Who;

/// So long a piece of an export waits for whoever reads it.
const HAND_OVER: Duration = Duration::from_secs(30);

/// Places for exports, each of which keeps a thread waiting: one of each client, and one is kept for
/// root and the daemon's own user.
pub(crate) fn places() -> Places {
    Places::new(4, 1, 1)
}

/// In which form.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    Csv,
    Parquet,
}

/// What is exported.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct What {
    /// `csv` or `parquet`.
    #[param(inline)]
    format: Form,
    /// One service; all, and all together, without it.
    service: Option<String>,
    /// One resource; all without it.
    resource: Option<Resource>,
    /// From when, ms since 1970; an hour before the end without it.
    #[param(maximum = 253_402_300_800_000_u64)]
    from: Option<u64>,
    /// Until when, ms since 1970; now without it.
    #[param(maximum = 253_402_300_800_000_u64)]
    to: Option<u64>,
}

/// The past as a file: rows of a second where these are still kept for the whole of the time,
/// otherwise of a minute or an hour.
#[utoipa::path(
    get, path = "/v1/history/export", tag = "past",
    params(What),
    responses(
        (status = 200, description = "A file.", content(
            (String = "text/csv"),
            (Vec<u8> = "application/vnd.apache.parquet")
        )),
        (status = "4XX", description = "Why not.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "It cannot be read, or too many are read.", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn export(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Who>,
    Params(mut what): Params<What>,
) -> Result<Response, Failure> {
    what.service = what.service.map(|name| means(&app, &who, name));
    may(&app, &who, what.service.as_deref())?;
    let (from, to) = seconds(what.from, what.to)?;
    let horizons = ask(&app, &who, Reader::horizons).await?;
    let finest = Level::ALL
        .into_iter()
        .zip(horizons)
        .find(|(_, horizon)| *horizon <= from);
    let export = Export {
        from,
        to,
        level: finest.map_or(Level::Hour, |(level, _)| level),
        services: what.service.map(|service| vec![service]),
        resources: what.resource.map(|resource| vec![resource.into()]),
    };
    let (format, kind, name) = match what.format {
        Form::Csv => (Format::Csv, "text/csv; charset=utf-8", "bonsai.csv"),
        Form::Parquet => (
            Format::Parquet,
            "application/vnd.apache.parquet",
            "bonsai.parquet",
        ),
    };
    let place = app.exports.take(&Client::of(&who)).ok_or_else(|| {
        unavailable(
            "an export of yours, or several of others, is under way: ask again when it has ended",
        )
    })?;
    let (folder, events) = (app.past.clone(), app.events.clone());
    let pieces = pieces(HAND_OVER, place, move |pipe| {
        let written = Reader::new(&folder).export(&export, format, pipe);
        let written = written.map_err(|error| {
            damaged(&events, &error);
            io::Error::other(error.to_string())
        })?;
        if written.damaged > 0 {
            // The file has no place to say it.
            let text = format!(
                "a file of the history lacks {} blocks that are damaged",
                written.damaged
            );
            let _ = events.try_send(Event::Told(vec![("export", text)]));
        }
        Ok(())
    });
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{name}\""),
        ),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

/// What is written on a thread that may wait, piece by piece. Whoever takes none for so long has an
/// answer that breaks off.
fn pieces(
    patience: Duration,
    place: Place,
    write: impl FnOnce(&mut Pipe) -> io::Result<()> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> {
    let (out, pieces) = mpsc::channel(8);
    let ended = Arc::new(OnceLock::new());
    let end = Arc::clone(&ended);
    tokio::task::spawn_blocking(move || {
        let _place = place;
        // Before `out` is dropped, with the pipe.
        let mut pipe = Pipe { out, patience };
        let _ = end.set(write(&mut pipe).map_err(|error| error.to_string()));
    });
    stream::unfold(Some(pieces), move |pieces| {
        let ended = Arc::clone(&ended);
        async move {
            let mut pieces = pieces?;
            if let Some(piece) = pieces.recv().await {
                return Some((Ok(piece), Some(pieces)));
            }
            // The answer is under way: it breaks off, and whoever reads sees that.
            let error = match ended.get() {
                Some(Ok(())) => return None,
                Some(Err(error)) => error,
                None => "the export has failed",
            };
            Some((Err(io::Error::other(error.to_owned())), None))
        }
    })
}

/// What is written goes to whoever reads the answer.
struct Pipe {
    out: mpsc::Sender<Bytes>,
    patience: Duration,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let start = Instant::now();
        let mut piece = Bytes::copy_from_slice(bytes);
        let mut pause = Duration::from_millis(1);
        loop {
            piece = match self.out.try_send(piece) {
                Ok(()) => return Ok(bytes.len()),
                Err(TrySendError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(TrySendError::Full(piece)) => piece,
            };
            if start.elapsed() > self.patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    /// More than the pieces that wait.
    fn long(pipe: &mut Pipe) -> io::Result<()> {
        (0..100_u8).try_for_each(|i| pipe.write_all(&[i; 1000]))
    }

    fn on_a_runtime<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(2);
        runtime.build().expect("a runtime").block_on(future)
    }

    #[test]
    fn exports_that_nobody_reads_break_off_and_leave_threads_to_others() {
        on_a_runtime(async {
            let places = Places::new(2, 1, 1);
            let (one, other) = (Client::User(u32::MAX - 1), Client::User(u32::MAX - 2));
            let place = places.take(&one).expect("a place");
            let mut stalled = std::pin::pin!(pieces(Duration::from_millis(200), place, long));
            assert!(places.take(&one).is_none() && places.take(&other).is_none());
            // Others are answered meanwhile.
            let answer = super::super::body::aside(|| 7).await;
            assert_eq!(answer.expect("an answer"), 7);
            let start = Instant::now();
            let place = loop {
                if let Some(place) = places.take(&other) {
                    break place;
                }
                assert!(start.elapsed() < Duration::from_secs(20), "it never ends");
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            let mut got = Vec::new();
            while let Some(piece) = stalled.next().await {
                got.push(piece);
            }
            let last = got.pop().expect("pieces");
            last.expect_err("it breaks off, and does not look whole");
            assert!(!got.is_empty() && got.into_iter().all(|piece| piece.is_ok()));
            // Whoever reads gets all of it.
            let read = pieces(Duration::from_secs(20), place, long);
            let got: Vec<Bytes> = read.map(|piece| piece.expect("a piece")).collect().await;
            assert_eq!(got.iter().map(Bytes::len).sum::<usize>(), 100_000);
        });
    }
}
