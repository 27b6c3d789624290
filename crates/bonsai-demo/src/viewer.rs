//! The receiving ends of the film: players that fetch it over HTTP, and count what
//! arrives, as it arrives.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use crate::meter::Meter;
use crate::player::{Player, Seen};
use crate::sockets::{START, connect};

/// A player asks for more when there is room for that much of the film: often
/// enough that windows of 100 ms see an even stream.
const STEP: Duration = Duration::from_millis(10);

/// How long a read may take before the player looks at the clock again.
const PATIENCE: Duration = Duration::from_millis(100);

/// The receive buffer of a player's connection, bytes. Left alone, the kernel makes
/// it larger and larger: seconds of the film that no live stream could have.
const PLAYER_BUFFER: usize = 256 << 10;

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
    ///
    /// # Errors
    /// It has panicked.
    pub(crate) fn end(self) -> anyhow::Result<Seen> {
        self.thread
            .join()
            .map_err(|_| anyhow!("a player has panicked"))
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::TcpListener;

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
        let seen = viewer.end()?;
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
