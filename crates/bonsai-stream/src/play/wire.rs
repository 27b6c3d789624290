//! A connection of a player: one, kept alive, with one answer at a time.
//!
//! The connection and who waits for it are one task: what has come is counted and dropped where it was
//! read to, and the next read goes to the same place.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::Empty;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::header::{HOST, HeaderValue, RANGE, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::film::{Host, Piece};

/// What a read takes at most, and a head has at most. Of a larger one less stays in the caches of a
/// processor that has thousands of them.
const READ: usize = 32 << 10;

/// A head has no more headers than that.
const HEADERS: usize = 100;

/// A connection.
pub(super) struct Wire {
    pub(super) host: Arc<Host>,
    sender: SendRequest<Empty<Bytes>>,
    connection: Option<Connection<TokioIo<TcpStream>, Empty<Bytes>>>,
    body: Option<Incoming>,
    /// Whether it has carried an answer: then its end says nothing of the next one.
    pub(super) is_used: bool,
}

/// What comes of an answer.
pub(super) enum Came {
    /// So many bytes.
    Bytes(Bytes),
    /// Its end.
    End,
}

impl Wire {
    /// Connects.
    pub(super) async fn connect(host: Arc<Host>, address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut builder = Builder::new();
        builder.read_buf_exact_size(Some(READ)).max_headers(HEADERS);
        let (sender, connection) = builder
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(Self {
            host,
            sender,
            connection: Some(connection),
            body: None,
            is_used: false,
        })
    }

    /// Asks for something, and waits for the head of the answer.
    pub(super) async fn ask(&mut self, piece: &Piece) -> hyper::Result<Response<()>> {
        self.body = None;
        let sender = &mut self.sender;
        drive(&mut self.connection, |cx| sender.poll_ready(cx)).await?;
        let answer = self.sender.send_request(request(piece));
        let mut answer = std::pin::pin!(answer);
        let answer = drive(&mut self.connection, |cx| answer.as_mut().poll(cx)).await?;
        self.is_used = true;
        let (head, body) = answer.into_parts();
        self.body = Some(body);
        Ok(Response::from_parts(head, ()))
    }

    /// How long what has not come yet of the answer is, as its head says.
    pub(super) fn length(&self) -> Option<u64> {
        self.body.as_ref()?.size_hint().exact()
    }

    /// What comes next of the answer.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<Came>> {
        poll_driven(&mut self.connection, cx, |cx| {
            let Some(body) = &mut self.body else {
                return Poll::Ready(Ok(Came::End));
            };
            loop {
                return match std::task::ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(bytes) => Poll::Ready(Ok(Came::Bytes(bytes))),
                        // Trailers.
                        Err(_) => continue,
                    },
                    Some(Err(error)) => Poll::Ready(Err(error)),
                    None => Poll::Ready(Ok(Came::End)),
                };
            }
        })
    }

    /// The same, as a future.
    pub(super) async fn body(&mut self) -> hyper::Result<Came> {
        std::future::poll_fn(|cx| self.poll_body(cx)).await
    }
}

fn request(piece: &Piece) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = Uri::from(piece.target.path.clone());
    let headers = request.headers_mut();
    headers.insert(HOST, piece.target.host.header.clone());
    headers.insert(USER_AGENT, HeaderValue::from_static("bonsai"));
    if let Some((first, last)) = piece.range
        && let Ok(range) = HeaderValue::try_from(format!("bytes={first}-{last}"))
    {
        headers.insert(RANGE, range);
    }
    request
}

type Driven = Option<Connection<TokioIo<TcpStream>, Empty<Bytes>>>;

/// Lets the connection go on, and looks then.
fn poll_driven<T>(
    connection: &mut Driven,
    cx: &mut Context<'_>,
    mut of: impl FnMut(&mut Context<'_>) -> Poll<hyper::Result<T>>,
) -> Poll<hyper::Result<T>> {
    let mut ended = None;
    if let Some(going) = connection
        && let Poll::Ready(end) = Pin::new(going).poll(cx)
    {
        *connection = None;
        ended = end.err();
    }
    match (of(cx), ended) {
        (Poll::Pending, Some(error)) => Poll::Ready(Err(error)),
        (result, _) => result,
    }
}

async fn drive<T>(
    connection: &mut Driven,
    mut of: impl FnMut(&mut Context<'_>) -> Poll<hyper::Result<T>>,
) -> hyper::Result<T> {
    std::future::poll_fn(|cx| poll_driven(connection, cx, &mut of)).await
}
