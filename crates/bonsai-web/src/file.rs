//! A file as an answer: ranges, ETags, HEAD (RFC 9110, 8.8, 13, 14).

use std::future::{Ready, ready};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use bonsai_stream::folder::{Opened, Stamp};
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower::ServiceExt as _;
use tower_http::services::ServeDir;
use tower_http::services::fs::{Backend, File, Metadata};

use crate::answer::Refused;
use crate::house::{House, said};
use crate::pace::Turn;
use crate::range;

/// For whom a file is read, and who is told if that comes to no good end.
#[derive(Clone)]
pub(crate) struct Reading {
    pub(crate) house: Arc<House>,
    pub(crate) peer: SocketAddr,
}

/// Sends a file, or what is asked for of it.
pub(crate) async fn send(
    opened: Opened,
    kind: &'static str,
    cache: &'static str,
    reading: Reading,
    mut request: Request,
) -> Response {
    let path = said(request.uri().path());
    let stamp = opened.stamp;
    let steady = Steady {
        file: tokio::fs::File::from_std(opened.file),
        stamp,
        path,
        reading,
        turn: None,
    };
    let one = One {
        stamp,
        file: Arc::new(Mutex::new(Some(steady))),
    };
    // Which file it is has been decided: it is the only one there.
    let serve = ServeDir::with_backend("", one).ignore_multi_range_requests(true);
    *request.uri_mut() = Uri::from_static("/file");
    let method = request.method().clone();
    range::settle(request.headers_mut(), &method, stamp.bytes);
    if let Some(wanted) = request.headers_mut().remove(header::IF_RANGE) {
        // RFC 9110, 13.1.5: a part of what is there only if it is what the asker has a part of.
        let mut head = Request::new(Body::empty());
        *head.method_mut() = Method::HEAD;
        *head.uri_mut() = Uri::from_static("/file");
        let found = match serve.clone().oneshot(head).await {
            Ok(found) => found,
            Err(never) => match never {},
        };
        if found.headers().get(header::ETAG) != Some(&wanted) {
            request.headers_mut().remove(header::RANGE);
        }
    }
    let mut response = match serve.oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    };
    if response.status().is_server_error() {
        return Refused::broken("the file cannot be read", &"").into_response();
    }
    if response.status().is_client_error() {
        return refused(&response);
    }
    let headers = response.headers_mut();
    if headers.contains_key(header::CONTENT_TYPE) {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

/// The same, as all refusals are.
fn refused(response: &Response) -> Response {
    let status = response.status();
    let why = match status {
        StatusCode::RANGE_NOT_SATISFIABLE => "the file has no such part",
        StatusCode::PRECONDITION_FAILED => "the file is not the one that was asked for",
        _ => "the file cannot be had in this way",
    };
    let mut refused = Refused::new(status, why).into_response();
    // How long it is (RFC 9110, 14.4).
    if let Some(range) = response.headers().get(header::CONTENT_RANGE) {
        let headers = refused.headers_mut();
        headers.insert(header::CONTENT_RANGE, range.clone());
    }
    refused
}

/// An error if a file is no longer as it was when it was opened.
pub(crate) fn is_still(file: &impl AsFd, stamp: Stamp) -> io::Result<()> {
    match Stamp::of(file)? == stamp {
        true => Ok(()),
        false => Err(io::Error::other("the file has changed")),
    }
}

/// A file that is given as it was when it was opened, or not to its end.
struct Steady {
    file: tokio::fs::File,
    stamp: Stamp,
    path: String,
    reading: Reading,
    /// For what is read next, where files wait for others.
    turn: Option<Turn>,
}

impl Steady {
    /// Whether what was read just now is of the file that was opened.
    fn is_the_same(&self) -> io::Result<()> {
        is_still(&self.file, self.stamp)
    }
}

impl AsyncRead for Steady {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.turn.is_none() {
            let pace = self.reading.house.pace.as_ref();
            let all = usize::try_from(self.stamp.bytes).unwrap_or(usize::MAX);
            self.turn = pace.and_then(|pace| pace.take(buffer.remaining().min(all)));
        }
        if let Some(turn) = &mut self.turn {
            std::task::ready!(turn.poll(context));
        }
        let read = std::task::ready!(Pin::new(&mut self.file).poll_read(context, buffer));
        let read = read.and_then(|()| self.is_the_same());
        if let Some(mut turn) = self.turn.take() {
            turn.used(buffer.filled().len() - before);
        }
        let house = &self.reading.house;
        match &read {
            Ok(()) => {
                let bytes = buffer.filled().len() - before;
                house.tally.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(error) => {
                buffer.set_filled(before);
                house.cut_short(self.reading.peer, &format!("{}: {error}", self.path));
            }
        }
        Poll::Ready(read)
    }
}

impl AsyncSeek for Steady {
    fn start_seek(mut self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.file).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.file).poll_complete(context)
    }
}

/// What is known of it.
struct Known(Stamp);

impl Metadata for Known {
    fn is_dir(&self) -> bool {
        false
    }

    fn modified(&self) -> io::Result<SystemTime> {
        Ok(self.0.modified())
    }

    fn len(&self) -> u64 {
        self.0.bytes
    }
}

impl File for Steady {
    type Metadata = Known;
    type MetadataFuture<'a> = Ready<io::Result<Known>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        ready(Ok(Known(self.stamp)))
    }
}

/// One file, whatever is asked for; it is opened once.
#[derive(Clone)]
struct One {
    stamp: Stamp,
    file: Arc<Mutex<Option<Steady>>>,
}

impl Backend for One {
    type File = Steady;
    type Metadata = Known;
    type OpenFuture = Ready<io::Result<Steady>>;
    type MetadataFuture = Ready<io::Result<Known>>;

    fn open(&self, _path: PathBuf) -> Self::OpenFuture {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        ready(file.take().ok_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn metadata(&self, _path: PathBuf) -> Self::MetadataFuture {
        ready(Ok(Known(self.stamp)))
    }
}
