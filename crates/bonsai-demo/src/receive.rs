//! The receiving ends: players that fetch a film over HTTP, and a relay that the
//! bulk copier's connections go through. Both count what arrives, as it arrives.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::link::{Link, TURN};
use crate::player::{Player, Seen};
use crate::record::BIN_NS;

/// The longest measurement.
pub(crate) const LONGEST: Duration = Duration::from_secs(150);

/// The most that is read at once where a real link sets the pace, bytes.
const READ: usize = 64 << 10;

/// A player asks for more when there is room for that much of the film: often
/// enough that windows of 100 ms see an even stream.
const STEP: Duration = Duration::from_millis(10);

/// How long a read may take before the player looks at the clock again.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a server may take to answer at the beginning.
const START: Duration = Duration::from_secs(5);

/// The receive buffer of a player's connection, bytes. Left alone, the kernel makes
/// it larger and larger: seconds of the film that no live stream could have.
const PLAYER_BUFFER: usize = 256 << 10;

/// The receive buffer of a relayed connection that takes turns, bytes: what has
/// not had its turn must wait at the sender.
const SMALL_BUFFER: usize = 64 << 10;

/// Bytes by bin.
#[derive(Debug)]
pub(crate) struct Series(Vec<AtomicU64>);

impl Series {
    fn new() -> Self {
        let bins = LONGEST.as_nanos() / u128::from(BIN_NS);
        Self((0..bins).map(|_| AtomicU64::new(0)).collect())
    }

    fn add(&self, now: u64, bytes: usize) {
        let bin = usize::try_from(now / BIN_NS)
            .ok()
            .and_then(|bin| self.0.get(bin));
        if let Some(bin) = bin {
            bin.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The bins that end until `end`.
    pub(crate) fn until(&self, end: u64) -> Vec<u64> {
        let count = usize::try_from(end / BIN_NS).unwrap_or(usize::MAX);
        self.0
            .iter()
            .take(count)
            .map(|bin| bin.load(Ordering::Relaxed))
            .collect()
    }
}

/// What all receivers share.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    link: Option<Link>,
    /// What the players received.
    pub(crate) video: Series,
    /// What the relay received.
    pub(crate) bulk: Series,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Meter {
    /// A meter whose clock begins now.
    pub(crate) fn new(link: Option<Link>) -> Self {
        Self {
            start: Instant::now(),
            link,
            video: Series::new(),
            bulk: Series::new(),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// ns since the beginning.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Makes the players end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The first thing that went wrong, once.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn fail(&self, what: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(what);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// One read's worth, bytes.
    fn chunk(&self) -> usize {
        if self.link.is_some() { TURN } else { READ }
    }

    /// Reads what is there, and returns when it has come over the link.
    fn read(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = stream.read(buffer)?;
        if let Some(link) = &self.link {
            link.pass(bytes);
        }
        Ok(bytes)
    }
}

/// The live state of a player, for whoever watches.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    /// Whether it has begun to play.
    pub(crate) moves: AtomicBool,
    /// Whether it stands still.
    pub(crate) frozen: AtomicBool,
}

/// A running player.
#[derive(Debug)]
pub(crate) struct Viewer {
    /// Its picture.
    pub(crate) picture: Arc<Picture>,
    thread: thread::JoinHandle<Seen>,
}

impl Viewer {
    /// Starts player `number`, which plays `path` of the server at its `rate`, bytes/s.
    pub(crate) fn start(
        meter: &Arc<Meter>,
        number: usize,
        server: SocketAddr,
        path: &str,
        rate: u64,
    ) -> Self {
        let picture = Arc::new(Picture::default());
        let (meter, shown, path) = (Arc::clone(meter), Arc::clone(&picture), path.to_owned());
        let thread = thread::spawn(move || {
            let mut player = Player::new(rate);
            if let Err(error) = play(&meter, &mut player, &shown, server, &path, rate) {
                meter.fail(format!("player {number}: {error:#}"));
            }
            player.finish(meter.now())
        });
        Self { picture, thread }
    }

    /// What it saw, once the meter was stopped.
    pub(crate) fn end(self) -> Seen {
        self.thread.join().unwrap_or_default()
    }
}

fn play(
    meter: &Meter,
    player: &mut Player,
    picture: &Picture,
    server: SocketAddr,
    path: &str,
    rate: u64,
) -> anyhow::Result<()> {
    let mut stream = connect(server, Some(PLAYER_BUFFER))?;
    stream.set_read_timeout(Some(START))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n"
    )?;
    let early = skip_head(&mut stream).with_context(|| format!("http://{server}{path}"))?;
    player.arrive(meter.now(), early);
    stream.set_read_timeout(Some(PATIENCE))?;
    let step = u64::try_from(u128::from(rate) * STEP.as_millis() / 1_000)?.max(1);
    let mut buffer = vec![0; meter.chunk()];
    while !meter.stopped() {
        let now = meter.now();
        player.advance(now);
        picture.frozen.store(player.is_frozen(), Ordering::Relaxed);
        let wait = player.room_in_ns(now, step);
        if wait > 0 {
            picture.moves.store(true, Ordering::Relaxed);
            thread::sleep(Duration::from_nanos(wait));
            continue;
        }
        let room = usize::try_from(player.room(now))
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let bytes = match meter.read(&mut stream, &mut buffer[..room]) {
            Ok(0) => bail!("{server} has ended the film"),
            Ok(bytes) => bytes,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) => return Err(error).context(format!("the connection to {server} broke")),
        };
        let now = meter.now();
        player.arrive(now, u64::try_from(bytes)?);
        meter.video.add(now, bytes);
    }
    Ok(())
}

/// A connection to a server that may just be starting.
fn connect(server: SocketAddr, buffer: Option<usize>) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        let socket = socket(server, buffer)?;
        match net::connect(&socket, &server) {
            Ok(()) => return Ok(socket.into()),
            Err(_) if start.elapsed() < START => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error).context(format!("{server} does not answer")),
        }
    }
}

/// A TCP socket for that address. A receive buffer of its own must be there before
/// the handshake; accepted sockets inherit it.
fn socket(address: SocketAddr, buffer: Option<usize>) -> anyhow::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(bytes) = buffer {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    Ok(socket)
}

/// Reads the head of an answer; returns how much of the body came with it.
fn skip_head(stream: &mut impl Read) -> anyhow::Result<u64> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let bytes = stream.read(&mut buffer)?;
        if bytes == 0 || head.len() > 16 << 10 {
            bail!("the answer is no HTTP");
        }
        head.extend_from_slice(&buffer[..bytes]);
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let status = String::from_utf8_lossy(&head[..end]);
            let status = status.lines().next().unwrap_or_default().to_owned();
            if status.split(' ').nth(1) != Some("200") {
                bail!("the server answers {status:?}, not with the film");
            }
            return Ok(u64::try_from(head.len() - end - 4)?);
        }
    }
}

/// Listens for the bulk copier; each connection goes on to `target`.
///
/// # Errors
/// Nothing can listen there.
pub(crate) fn relay(
    meter: &Arc<Meter>,
    listen: SocketAddr,
    target: SocketAddr,
) -> anyhow::Result<()> {
    let listener = listener(meter, listen).with_context(|| format!("cannot listen on {listen}"))?;
    let meter = Arc::clone(meter);
    // Ends with the process, as do the connections.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let meter = Arc::clone(&meter);
            match stream {
                Ok(stream) => drop(thread::spawn(move || connection(&meter, &stream, target))),
                Err(error) => meter.fail(format!("the relay takes no connections: {error}")),
            }
        }
    });
    Ok(())
}

fn listener(meter: &Meter, listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let socket = socket(listen, meter.link.as_ref().map(|_| SMALL_BUFFER))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &listen)?;
    net::listen(&socket, 128)?;
    Ok(socket.into())
}

/// Carries one connection both ways. That one ends, also in the middle, is the
/// copier's own affair; how much came is what counts.
fn connection(meter: &Meter, from: &TcpStream, target: SocketAddr) {
    let Ok(to) = connect(target, None) else {
        meter.fail(format!("the relay's target {target} does not answer"));
        return;
    };
    let (Ok(mut up_from), Ok(mut up_to)) = (from.try_clone(), to.try_clone()) else {
        meter.fail("the relay has no more descriptors".to_owned());
        return;
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; meter.chunk()];
            while let Ok(bytes) = meter.read(&mut up_from, &mut buffer) {
                meter.bulk.add(meter.now(), bytes);
                if bytes == 0 || up_to.write_all(&buffer[..bytes]).is_err() {
                    break;
                }
            }
            // It may be closed already.
            let _ = up_to.shutdown(Shutdown::Write);
            let _ = up_from.shutdown(Shutdown::Read);
        });
        // Answers are few; they are neither counted nor held up.
        let _ = io::copy(&mut &to, &mut &*from);
        let _ = from.shutdown(Shutdown::Write);
        let _ = to.shutdown(Shutdown::Read);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_an_answer_is_no_film() {
        let answer = b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nfilm";
        assert_eq!(skip_head(&mut &answer[..]).expect("an answer"), 4);
        let wrong = skip_head(&mut &b"HTTP/1.1 404 Not Found\r\n\r\n"[..]).expect_err("no film");
        assert!(wrong.to_string().contains("404"), "{wrong}");
        skip_head(&mut &b"220 smtp\r\n"[..]).expect_err("no HTTP");
    }

    #[test]
    fn the_relay_counts_and_carries_both_ways() -> anyhow::Result<()> {
        for link in [None, Some(Link::new(100_000_000))] {
            let echo = TcpListener::bind("127.0.0.1:0")?;
            let target = echo.local_addr()?;
            thread::spawn(move || {
                let (stream, _) = echo.accept()?;
                io::copy(&mut &stream, &mut &stream)
            });
            let meter = Arc::new(Meter::new(link));
            let listener = listener(&meter, "127.0.0.1:0".parse()?)?;
            let address = listener.local_addr()?;
            let counted = Arc::clone(&meter);
            let carrier = thread::spawn(move || {
                connection(
                    &counted,
                    &listener.accept().expect("a connection").0,
                    target,
                );
            });
            let mut stream = TcpStream::connect(address)?;
            let sent = vec![7; 300_000];
            let mut writer = stream.try_clone()?;
            let writing = thread::spawn(move || {
                writer.write_all(&sent)?;
                writer.shutdown(Shutdown::Write)
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back)?;
            writing.join().expect("a writer")?;
            carrier.join().expect("a carrier");
            assert_eq!(back.len(), 300_000);
            assert_eq!(
                meter.bulk.until(meter.now() + BIN_NS).iter().sum::<u64>(),
                300_000
            );
        }
        Ok(())
    }

    #[test]
    fn a_viewer_takes_the_films_rate_from_a_server() -> anyhow::Result<()> {
        let server = TcpListener::bind("127.0.0.1:0")?;
        let address = server.local_addr()?;
        thread::spawn(move || -> io::Result<()> {
            let (mut stream, _) = server.accept()?;
            let _ = stream.read(&mut [0; 1024])?;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[0; 10_000])?;
            }
        });
        let meter = Arc::new(Meter::new(None));
        let rate = 1_000_000;
        let viewer = Viewer::start(&meter, 1, address, "/film", rate);
        thread::sleep(Duration::from_secs(1));
        meter.stop();
        let seen = viewer.end();
        assert_eq!(meter.failure(), None);
        assert_eq!(seen.freezes, []);
        let now = meter.now();
        let got: u64 = meter.video.until(now).iter().sum();
        // A buffer of 1 s at once, then no more than is played.
        let most = rate + rate * now / 1_000_000_000 + 65_536;
        assert!((rate..most).contains(&got), "{got} of {most}");
        Ok(())
    }
}
