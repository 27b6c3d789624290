//! Connections: let in while there is room, and ended when nothing comes or goes.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bonsai_tls::{Renewable, is_handshake};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use crate::house::{House, Peer};
use crate::places::{Full, Places};

/// How often it is looked whether it is to stop.
const LOOKS: Duration = Duration::from_millis(100);

/// How long nobody is let in where there are no more descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Bytes of a request's head, and of what waits to be sent.
const BUFFER: usize = 64 << 10;

/// Connections at a time that are told why they are not let in; others are closed.
const TURNED_AWAY: usize = 64;

/// How long that may take.
const TURNING: Duration = Duration::from_secs(1);

/// Serves until `stop` is set.
pub(crate) async fn serve(
    (listener, tls): (std::net::TcpListener, Option<Arc<Renewable>>),
    router: Router,
    house: Arc<House>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Places::new(
        house.limits.connections,
        house.limits.per_address,
    ));
    let away = Arc::new(Semaphore::new(TURNED_AWAY));
    let (end, ending) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut looks = interval(LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    house.listens();
    loop {
        let accepted = tokio::select! {
            _ = looks.tick() => {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                while connections.try_join_next().is_some() {}
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let Ok((mut stream, peer)) = accepted else {
            sleep(EXHAUSTED).await;
            continue;
        };
        match places.take(peer.ip()) {
            Ok((place, count)) => {
                let tally = &house.tally;
                tally.connections.fetch_add(1, Ordering::Relaxed);
                tally
                    .most_connections
                    .fetch_max(count.into(), Ordering::Relaxed);
                // As it is now: it may be renewed.
                let tls = tls.as_ref().map(|tls| TlsAcceptor::from(tls.config()));
                let serving = connection(
                    (stream, tls),
                    peer,
                    router.clone(),
                    Arc::clone(&house),
                    ending.clone(),
                );
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(full) => {
                let (answer, why) = match full {
                    Full::All => ("503 Service Unavailable", "there are too many connections"),
                    Full::Address => (
                        "429 Too Many Requests",
                        "there are too many connections of its address",
                    ),
                };
                house.refuse(peer, why);
                // A handshake would cost what there is no place for.
                if tls.is_none()
                    && let Ok(permit) = Arc::clone(&away).try_acquire_owned()
                {
                    connections.spawn(async move {
                        let _ = timeout(TURNING, turn_away(&mut stream, answer, why)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
    drop(listener);
    let _ = end.send(true);
    let farewell = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(house.limits.farewell, farewell).await;
    Ok(())
}

/// Serves a connection to its end, its TLS handshake first where there is one.
async fn connection(
    (stream, tls): (TcpStream, Option<TlsAcceptor>),
    peer: SocketAddr,
    router: Router,
    house: Arc<House>,
    ending: watch::Receiver<bool>,
) {
    // Small answers go at once.
    let _ = stream.set_nodelay(true);
    // The kernel ends a connection whose other end takes nothing for so long (tcp(7)): time that this
    // service itself is held back by a limit does not count.
    let stall = u32::try_from(house.limits.stall.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, stall);
    let Some(tls) = tls else {
        return requests(stream, peer, router, house, ending).await;
    };
    match timeout(house.limits.request, shake(stream, tls)).await {
        Ok(Ok(stream)) => requests(stream, peer, router, house, ending).await,
        Ok(Err(Some(why))) => house.refuse(peer, &why),
        Ok(Err(None)) => {}
        Err(_) => house.refuse(peer, "its TLS handshake takes too long"),
    }
}

/// A TLS handshake. Without one, the reason, where there is something to tell.
async fn shake(
    mut stream: TcpStream,
    tls: TlsAcceptor,
) -> Result<impl AsyncRead + AsyncWrite + Unpin, Option<String>> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(None),
        Ok(_) => {}
    }
    if !is_handshake(first[0]) {
        let why = "this port speaks TLS: ask for https://";
        let _ = timeout(TURNING, turn_away(&mut stream, "400 Bad Request", why)).await;
        let why = "it asks without TLS, and this port has https alone";
        return Err(Some(why.to_owned()));
    }
    let shaken = tls.accept(stream).await;
    shaken.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => None,
        _ => Some(format!("its TLS handshake fails: {error}")),
    })
}

/// Answers the requests of a connection.
async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    router: Router,
    house: Arc<House>,
    mut ending: watch::Receiver<bool>,
) {
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&has_asked);
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        router.clone().oneshot(request)
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let builder = builder
        .timer(TokioTimer::new())
        .header_read_timeout(house.limits.request)
        .max_buf_size(BUFFER);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        _ = ending.changed() => {
            // What is under way goes on, until nobody waits for it.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        if error.is_timeout() && !has_asked.load(Ordering::Relaxed) {
            house.refuse(peer, "its request does not come");
        } else if error.is_parse() {
            house.refuse(peer, &format!("what it says is no request: {error}"));
        }
    }
}

/// Says why, and takes what was asked for: the answer would be lost with a connection that is reset.
async fn turn_away(stream: &mut TcpStream, answer: &str, why: &str) -> io::Result<()> {
    let body = format!("{{\"error\":\"{why}\"}}");
    let text = format!(
        "HTTP/1.1 {answer}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Retry-After: 5\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    let mut asked = [0; 1024];
    while stream.read(&mut asked).await? > 0 {}
    Ok(())
}
