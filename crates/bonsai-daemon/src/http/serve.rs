//! Listeners and connections.
//!
//! # Limits
//! [`MOST_CONNECTIONS`] at a time for each listener, [`MOST_OF_USER`] of them of one user, [`KEPT`]
//! of them kept for root and the daemon's own user; over TCP, [`super::arrivals::MOST`] more that have shown
//! no token yet, [`super::arrivals::OF_EACH`] of them of one client. The head of a request is waited for [`HEAD`], and an answer that is not taken [`WRITE`].

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use bonsai_services::refusal::{Refusal, before_start};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::arrivals::{Arrival, Arrivals};
use super::auth::Peer;
use super::patient::Patient;
use super::places::{Client, Place, Places};
use super::secure::Secure;

/// Connections of each listener at a time.
const MOST_CONNECTIONS: usize = 512;

/// Connections of one user at a time, who is neither root nor the daemon's own.
const MOST_OF_USER: usize = 64;

/// Connections that are kept for these two.
const KEPT: usize = 64;

/// How long nothing of an answer may be taken.
const WRITE: Duration = Duration::from_secs(30);

/// How long the head of a request may take, and a TLS handshake.
const HEAD: Duration = Duration::from_secs(10);

/// The most bytes of a request's head, and of an answer that wait to be taken beside the part under way. A head is held until it is whole, also
/// of connections that have shown no token.
const HEAD_BYTES: usize = 32 << 10;

/// After an error of the listener itself (no descriptors left), it is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Places for the connections of a listener.
fn places() -> Places {
    Places::new(MOST_CONNECTIONS, MOST_OF_USER, KEPT)
}

/// Where requests come in.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    router: OnceLock<Router>,
    /// The loopback listener of the page, once somebody has asked for it.
    page: Mutex<Option<SocketAddr>>,
    /// The certificate of the listener that is configured.
    secure: OnceLock<Arc<Secure>>,
    /// Tasks that accept connections, by address.
    tasks: Mutex<Vec<(String, tokio::task::JoinHandle<()>)>>,
}

impl Doors {
    /// What answers; once.
    pub(crate) fn answer_with(&self, router: Router) {
        let _ = self.router.set(router);
    }

    fn router(&self) -> anyhow::Result<Router> {
        self.router.get().cloned().context("nothing answers yet")
    }

    /// Listens on a Unix socket that is open: by [`bind`], or passed by the service manager.
    pub(crate) fn take_unix(&self, listener: UnixListener) -> anyhow::Result<()> {
        listener.set_nonblocking(false)?;
        let (let_in, guests) = mpsc::unbounded_channel();
        let accepts = move || accept(&listener, &let_in);
        thread::Builder::new()
            .name("accept".to_owned())
            .spawn(accepts)?;
        self.spawn("the Unix socket".to_owned(), Door::Unix(guests))
    }

    fn spawn(&self, at: String, door: Door) -> anyhow::Result<()> {
        let task = tokio::spawn(door.serve(self.router()?));
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push((at, task));
        Ok(())
    }

    /// Address of a listener whose task has ended, which none does by itself.
    pub(crate) fn ended(&self) -> Option<String> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = tasks.iter().find(|(_, task)| task.is_finished());
        ended.map(|(at, _)| at.clone())
    }

    /// Listens on an address; returns it with its port.
    pub(crate) async fn open_tcp(
        &self,
        address: SocketAddr,
        tls: Option<Arc<Secure>>,
    ) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await;
        let listener = listener
            .with_context(|| format!("{address}: cannot be listened on"))
            .map_err(before_start)?;
        self.open(listener, tls)
    }

    fn open(&self, listener: TcpListener, tls: Option<Arc<Secure>>) -> anyhow::Result<SocketAddr> {
        let to = listener.local_addr()?;
        let arrivals = Arrivals::new(places());
        let door = Door::Tcp {
            listener,
            tls,
            arrivals,
        };
        self.spawn(to.to_string(), door)?;
        Ok(to)
    }

    /// The address of the page on this machine; it is listened on from the first time on.
    pub(crate) async fn open_page(&self) -> anyhow::Result<SocketAddr> {
        if let Some(address) = *self.page.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(address);
        }
        let mut opened = Err(anyhow::anyhow!("no port is free"));
        for port in super::pages::ports() {
            opened = self.open_page_at(port).await;
            if opened.is_ok() {
                break;
            }
        }
        let address = opened?;
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        // Two may have asked at once: then both listeners stay, and one is told of.
        Ok(*page.get_or_insert(address))
    }

    /// Listens for a page on a port of this machine's own address; of IPv6, where there is no other.
    pub(crate) async fn open_page_at(&self, port: u16) -> anyhow::Result<SocketAddr> {
        let is_absent = |error: &io::Error| {
            error.kind() == io::ErrorKind::AddrNotAvailable
                || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
        };
        let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if is_absent(&error) => TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await,
            other => other,
        };
        let named = || format!("port {port} of this machine: cannot be listened on");
        self.open(listener.with_context(named)?, None)
    }

    /// Has the certificate of a listener renewed.
    pub(crate) fn renews(&self, secure: &Arc<Secure>) {
        let _ = self.secure.set(Arc::clone(secure));
        tokio::spawn(Arc::clone(secure).renew());
    }

    /// Why a renewed certificate is not used, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        self.secure.get()?.problem()
    }

    /// Says where the page is, when the configuration does.
    pub(crate) fn page_is_at(&self, address: SocketAddr) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }
}

/// Opens a Unix socket to which every user may connect. A socket that is left over is replaced: the daemon's lock is held, so its
/// owner has ended. To be called while there is one thread, for a moment all files are made with another mode.
pub(crate) fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    let named = || format!("{}: cannot be listened on", path.display());
    match fs::symlink_metadata(path) {
        Ok(meta) if is_socket(&meta) => fs::remove_file(path)
            .with_context(named)
            .map_err(before_start)?,
        Ok(_) => {
            let text = format!("{}: is there and no socket: remove it", path.display());
            return Err(Refusal::input(text));
        }
        Err(_) => {}
    }
    // Rights are decided for each request, by the credentials that the kernel has of its peer. The mode is there from the
    // beginning: a chmod by name would reach any file that has the name by then.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o111));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    listener.with_context(named).map_err(before_start)
}

/// Accepts the connections of a Unix socket, and ends those that have no place, for as long as anybody takes them in. A thread of its own does
/// nothing else: with a full queue, connecting fails for every user, and a user with connections without end would fill it
/// while requests are answered.
fn accept(listener: &UnixListener, let_in: &mpsc::UnboundedSender<Caller>) {
    let places = places();
    while !let_in.is_closed() {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(AGAIN);
            continue;
        };
        let Ok(cred) = socket_peercred(&stream) else {
            continue;
        };
        // One user with all of them would keep out the others.
        if let Some(place) = places.take(&Client::User(cred.uid.as_raw())) {
            let _ = let_in.send((stream, place));
        }
    }
}

/// A connection of a Unix socket, and its place.
type Caller = (std::os::unix::net::UnixStream, Place);

/// A listener.
enum Door {
    /// Connections that the accepting thread lets in.
    Unix(mpsc::UnboundedReceiver<Caller>),
    Tcp {
        listener: TcpListener,
        tls: Option<Arc<Secure>>,
        arrivals: Arrivals,
    },
}

/// Whoever came through it.
enum Guest {
    Unix(UnixStream, Place),
    Tcp(TcpStream, Option<TlsAcceptor>, Arc<Arrival>),
}

impl Door {
    /// The next connection; none where nothing accepts any more.
    async fn next(&mut self) -> io::Result<Option<(Guest, Peer)>> {
        match self {
            Self::Unix(guests) => {
                let Some((stream, place)) = guests.recv().await else {
                    return Ok(None);
                };
                stream.set_nonblocking(true)?;
                let stream = UnixStream::from_std(stream)?;
                let cred = stream.peer_cred()?;
                let peer = Peer::Process {
                    uid: cred.uid(),
                    gid: cred.gid(),
                    pid: cred.pid().and_then(|pid| u32::try_from(pid).ok()),
                };
                Ok(Some((Guest::Unix(stream, place), peer)))
            }
            Self::Tcp {
                listener,
                tls,
                arrivals,
            } => {
                let (stream, from) = listener.accept().await?;
                // Small answers go at once.
                let _ = stream.set_nodelay(true);
                // A listener at all addresses has none that a client could have named.
                let to = stream.local_addr()?;
                let peer = Peer::Address { from, to };
                let tls = tls.as_ref().map(|tls| tls.now());
                let arrival = arrivals.arrive(super::arrivals::client(from, to));
                Ok(Some((Guest::Tcp(stream, tls, arrival), peer)))
            }
        }
    }

    /// Lets in whoever comes, as long as there is room.
    async fn serve(mut self, router: Router) {
        loop {
            match self.next().await {
                Ok(Some((guest, peer))) => drop(tokio::spawn(guest.serve(peer, router.clone()))),
                Ok(None) => return,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

impl Guest {
    async fn serve(self, peer: Peer, router: Router) {
        match self {
            Self::Unix(stream, _place) => connection(stream, peer, None, router).await,
            Self::Tcp(stream, None, arrival) => {
                connection(stream, peer, Some(arrival), router).await;
            }
            Self::Tcp(stream, Some(tls), arrival) => {
                let shaken = tokio::select! {
                    shaken = tokio::time::timeout(HEAD, tls.accept(stream)) => shaken,
                    () = arrival.ousted() => return,
                };
                if let Ok(Ok(stream)) = shaken {
                    arrival.speaks();
                    connection(stream, peer, Some(arrival), router).await;
                }
            }
        }
    }
}

fn is_socket(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    meta.file_type().is_socket()
}

/// Serves a connection to its end.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    arrival: Option<Arc<Arrival>>,
    router: Router,
) {
    let arrived = arrival.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        if let Some(arrival) = &arrived {
            request.extensions_mut().insert(Arc::clone(arrival));
        }
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request).await.unwrap_or_else(|n| match n {})) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let builder = builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES);
    let stream = TokioIo::new(Patient::new(stream, WRITE));
    // Whatever goes wrong on a connection is the end of it, and of nothing else.
    let mut connection = pin!(builder.serve_connection(stream, service));
    let Some(arrival) = arrival else {
        let _ = connection.await;
        return;
    };
    tokio::select! {
        _ = connection.as_mut() => return,
        () = arrival.ousted() => return,
        () = arrival.overdue() => {}
    }
    // What is under way may end.
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = arrival.ousted() => {}
        () = tokio::time::sleep(WRITE) => {}
    }
}
