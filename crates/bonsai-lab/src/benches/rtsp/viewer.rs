//! A viewer: sets a stream up, plays it, and notes when each packet came.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::wire::{self, Answer, Next};
use crate::service::monotonic_ns;

/// How a stream is carried.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Transport {
    /// Interleaved with the answers, on one connection.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Packets as they came. Numbers are differences to the packet before, the first of
/// them to the start of the measurement and to the first timestamp, so that a record
/// stays small.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Arrivals {
    /// Instants, us.
    pub(super) us: Vec<u64>,
    /// Bytes that the server gave to the system for it: header and frame included.
    pub(super) bytes: Vec<u64>,
    /// Sequence numbers that were left out.
    pub(super) lost: u64,
    /// How much later than at its best moment a packet came, at the end, by the
    /// timestamps in it, us.
    pub(super) lag_us: u64,
}

/// Answers take longer where what is sent is limited.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nobody looks at the clock.
const TURN: Duration = Duration::from_millis(50);
/// Of an interleaved packet: `$`, channel, length.
const FRAME: u64 = 4;

/// A viewer whose stream is set up.
#[derive(Debug)]
pub(super) struct Viewer {
    connection: TcpStream,
    pending: Vec<u8>,
    asked: u32,
    url: String,
    session: String,
    clock: u32,
    /// For RTP and RTCP; the second is only there to be sent to.
    datagrams: Option<(UdpSocket, UdpSocket)>,
}

impl Viewer {
    /// Connects to the server at `port` and sets the film up.
    ///
    /// # Errors
    /// The server refuses, or says something that is not RTSP.
    pub(super) fn new(port: u16, transport: Transport) -> anyhow::Result<Self> {
        let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .context("the RTSP server takes no connection")?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(TURN))?;
        let url = format!("rtsp://127.0.0.1:{port}/film");
        let mut viewer = Self {
            connection,
            pending: Vec::new(),
            asked: 0,
            url: url.clone(),
            session: String::new(),
            clock: 0,
            datagrams: None,
        };
        viewer.ask("OPTIONS", &url, "")?;
        let described = viewer.ask("DESCRIBE", &url, "Accept: application/sdp\r\n")?;
        let base = described.header("Content-Base").unwrap_or(&url);
        let track = wire::video(&described.body, base)?;
        let carried = match transport {
            Transport::Tcp => "RTP/AVP/TCP;unicast;interleaved=0-1".to_owned(),
            Transport::Udp => {
                let (first, second) = pair()?;
                let port = first.local_addr()?.port();
                viewer.datagrams = Some((first, second));
                format!("RTP/AVP;unicast;client_port={port}-{}", port + 1)
            }
        };
        let set_up = viewer.ask("SETUP", &track.url, &format!("Transport: {carried}\r\n"))?;
        let session = set_up
            .header("Session")
            .context("the RTSP server gives no session")?;
        // What stands behind it is when it ends.
        let id = session.split(';').next().unwrap_or(session).trim();
        viewer.session = format!("Session: {id}\r\n");
        viewer.clock = track.clock;
        Ok(viewer)
    }

    /// Plays from `play` on and notes what comes while it is `measured`; instants of the
    /// monotonic clock, ns.
    ///
    /// # Errors
    /// The server refuses or ends the stream, or sends something that is not RTP.
    pub(super) fn watch(mut self, play: u64, measured: Range<u64>) -> anyhow::Result<Arrivals> {
        std::thread::sleep(Duration::from_nanos(play.saturating_sub(monotonic_ns())));
        let (url, session) = (self.url.clone(), self.session.clone());
        let mut notes = Notes::new(self.clock, measured);
        match self.datagrams.take() {
            Some((datagrams, _second)) => {
                self.ask("PLAY", &url, &session)?;
                watch_datagrams(&datagrams, &mut notes)?;
            }
            None => self.watch_connection(&session, &mut notes)?,
        }
        Ok(notes.arrivals)
    }

    fn watch_connection(&mut self, session: &str, notes: &mut Notes) -> anyhow::Result<()> {
        let url = self.url.clone();
        self.ask("PLAY", &url, session)?;
        loop {
            let now = monotonic_ns();
            let mut used = 0;
            loop {
                match wire::next(&self.pending[used..])? {
                    Next::Packet(0, packet, len) => {
                        notes.packet(now, packet, FRAME)?;
                        used += len;
                    }
                    Next::Packet(_, _, len) | Next::Answer(_, len) => used += len,
                    Next::More => break,
                }
            }
            self.pending.drain(..used);
            if now >= notes.measured.end {
                return Ok(());
            }
            self.fill()?;
        }
    }

    /// Reads what is there, or waits for a moment.
    fn fill(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; 65_536];
        match self.connection.read(&mut buffer) {
            Ok(0) => anyhow::bail!("the RTSP server has closed the connection"),
            Ok(n) => self.pending.extend_from_slice(&buffer[..n]),
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(error).context("the RTSP connection cannot be read"),
        }
        Ok(())
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, method: &str, url: &str, headers: &str) -> anyhow::Result<Answer> {
        self.asked += 1;
        let text = format!(
            "{method} {url} RTSP/1.0\r\nCSeq: {}\r\n{headers}\r\n",
            self.asked
        );
        self.connection
            .write_all(text.as_bytes())
            .with_context(|| format!("{method} cannot be sent to the RTSP server"))?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match wire::next(&self.pending)? {
                Next::Answer(answer, len) => {
                    self.pending.drain(..len);
                    let status = answer.status;
                    anyhow::ensure!(
                        status == 200,
                        "the RTSP server answers {method} with {status}"
                    );
                    return Ok(answer);
                }
                // A server may play before it says so.
                Next::Packet(_, _, len) => drop(self.pending.drain(..len)),
                Next::More => self.fill()?,
            }
        }
        anyhow::bail!("the RTSP server does not answer {method}")
    }
}

/// Nothing came meanwhile.
fn is_nothing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Sockets at an even port and the next one, as RTP wants them.
fn pair() -> anyhow::Result<(UdpSocket, UdpSocket)> {
    let bind = |port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port));
    for _ in 0..100 {
        let first = bind(0)?;
        let port = first.local_addr()?.port();
        if port % 2 == 0
            && let Ok(second) = bind(port + 1)
        {
            first.set_read_timeout(Some(TURN))?;
            return Ok((first, second));
        }
    }
    anyhow::bail!("no two neighbouring UDP ports are free")
}

fn watch_datagrams(datagrams: &UdpSocket, notes: &mut Notes) -> anyhow::Result<()> {
    let mut buffer = [0; 65_536];
    loop {
        let got = datagrams.recv(&mut buffer);
        let now = monotonic_ns();
        if now >= notes.measured.end {
            return Ok(());
        }
        match got {
            Ok(n) => notes.packet(now, &buffer[..n], 0)?,
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(error).context("the RTP socket cannot be read"),
        }
    }
}

/// What a viewer writes down.
#[derive(Debug)]
struct Notes {
    clock: u32,
    measured: Range<u64>,
    last_us: u64,
    sequence: Option<u16>,
    first_timestamp: Option<u32>,
    /// Arrival less media time at its smallest, us.
    best: i64,
    arrivals: Arrivals,
}

impl Notes {
    fn new(clock: u32, measured: Range<u64>) -> Self {
        Self {
            clock,
            measured,
            last_us: 0,
            sequence: None,
            first_timestamp: None,
            best: i64::MAX,
            arrivals: Arrivals::default(),
        }
    }

    /// A packet that came at `now`, with so many bytes around it.
    fn packet(&mut self, now: u64, packet: &[u8], around: u64) -> anyhow::Result<()> {
        let rtp = wire::rtp(packet)?;
        let expected = self
            .sequence
            .map_or(rtp.sequence, |last| last.wrapping_add(1));
        // Beyond half the numbers there are it came late, which the loopback does not do.
        let missing = rtp.sequence.wrapping_sub(expected);
        if missing < 1 << 15 {
            self.arrivals.lost += u64::from(missing);
            self.sequence = Some(rtp.sequence);
        }
        let first = *self.first_timestamp.get_or_insert(rtp.timestamp);
        let media_us =
            u64::from(rtp.timestamp.wrapping_sub(first)) * 1_000_000 / u64::from(self.clock);
        let late = i64::try_from(now / 1_000)? - i64::try_from(media_us)?;
        self.best = self.best.min(late);
        if !self.measured.contains(&now) {
            return Ok(());
        }
        self.arrivals.lag_us = u64::try_from(late - self.best).unwrap_or(0);
        let us = (now - self.measured.start) / 1_000;
        self.arrivals.us.push(us - self.last_us);
        self.arrivals.bytes.push(packet.len() as u64 + around);
        self.last_us = us;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sequence: u16, timestamp: u32) -> Vec<u8> {
        let mut bytes = vec![0x80, 96];
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(timestamp.to_be_bytes());
        bytes.extend([0; 92]);
        bytes
    }

    #[test]
    fn packets_are_noted_from_start_to_end() {
        const MS: u64 = 1_000_000;
        let mut notes = Notes::new(90_000, 100 * MS..200 * MS);
        // The second is lost; the last but one is 7 ms behind the first.
        for (at, sequence, timestamp) in [
            (60, 65_535, u32::MAX - 3_599),
            (100, 1, 0),
            (147, 2, 3_600),
            (200, 3, 7_200),
        ] {
            let bytes = packet(sequence, timestamp);
            notes.packet(at * MS, &bytes, FRAME).expect("RTP");
        }
        let found = notes.arrivals;
        assert_eq!(found.us, [0, 47_000]);
        assert_eq!(found.bytes, [104, 104]);
        assert_eq!(found.lost, 1);
        assert_eq!(found.lag_us, 7_000);
    }

    #[test]
    fn a_server_that_is_none_is_refused() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a viewer");
            let mut request = [0; 512];
            let n = stream.read(&mut request).expect("a request");
            stream
                .write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                .expect("answered");
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        let error = Viewer::new(port, Transport::Tcp).expect_err("no RTSP");
        assert_eq!(
            error.to_string(),
            "\"HTTP/1.0 400 Bad Request\" is not the first line of an RTSP answer"
        );
        let request = server.join().expect("ended");
        assert!(request.starts_with("OPTIONS rtsp://"), "{request}");
    }
}
