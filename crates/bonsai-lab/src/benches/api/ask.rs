//! Requests that are due at fixed times, however long others take: an open loop. The time of an
//! answer counts from when its request was due, so that nothing is hidden by waiting in line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_stats::SplitMix64;
use serde::{Deserialize, Serialize};

use super::crowd::name;

/// Connections, each kept alive. A request that is due while all of them are taken waits for one,
/// and that counts.
const CONNECTIONS: usize = 16;

/// Nothing takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// One service, seven of ten.
    Service,
    /// The daemon itself, two of ten.
    Status,
    /// The last entries of the trail, one of twenty.
    Audit,
    /// A service's last hour, one of twenty.
    History,
    /// All services, once a second.
    Services,
    /// A limit of a service is changed, once a second.
    Change,
}

impl Kind {
    pub(super) const ALL: [Self; 6] = [
        Self::Service,
        Self::Status,
        Self::Audit,
        Self::History,
        Self::Services,
        Self::Change,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Service => "one service",
            Self::Status => "status",
            Self::Audit => "audit",
            Self::History => "history of a service",
            Self::Services => "all services",
            Self::Change => "a change",
        }
    }

    /// Of the request with a number.
    const fn of(number: u64, per_s: u64) -> Self {
        match (number % per_s, number % 20) {
            (0, _) => Self::Services,
            (second, _) if second == per_s / 2 => Self::Change,
            (_, 0..=13) => Self::Service,
            (_, 14..=17) => Self::Status,
            (_, 18) => Self::Audit,
            _ => Self::History,
        }
    }

    fn request(self, service: u64, number: u64) -> String {
        let id = name(service);
        let (method, path, body) = match self {
            Self::Service => ("GET", format!("/v1/services/{id}"), String::new()),
            Self::Status => ("GET", "/v1/status".to_owned(), String::new()),
            Self::Audit => ("GET", "/v1/audit?limit=20".to_owned(), String::new()),
            Self::History => (
                "GET",
                format!("/v1/history?service={id}&resource=send&points=600"),
                String::new(),
            ),
            Self::Services => ("GET", "/v1/services".to_owned(), String::new()),
            Self::Change => {
                let body = format!("{{\"send\":{{\"max\":\"{}MB/s\"}}}}", 5 + number % 50);
                ("PATCH", format!("/v1/services/{id}"), body)
            }
        };
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    }
}

/// What was asked and how long it took, from when it was due to the last byte of its answer, us.
pub(super) type Took = (Kind, u64);

/// Asks `per_s` requests a second for so long, about services below `services`.
pub(super) fn ask(
    socket: &Path,
    per_s: u64,
    lasts: Duration,
    services: u64,
    seed: u64,
) -> anyhow::Result<Vec<Took>> {
    let start = Instant::now() + Duration::from_millis(50);
    let number_of = per_s * lasts.as_secs();
    let next = AtomicU64::new(0);
    let one = || {
        let mut connection = Connection::open(socket)?;
        let mut took = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= number_of {
                return anyhow::Ok(took);
            }
            let due = start + Duration::from_nanos(1_000_000_000 * number / per_s);
            let kind = Kind::of(number, per_s);
            let service = SplitMix64::new(seed ^ number).below(services);
            let request = kind.request(service, number);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            connection
                .ask(&request)
                .with_context(|| format!("request {number}, {}", kind.name()))?;
            took.push((kind, u64::try_from(due.elapsed().as_micros())?));
        }
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(one)).collect();
        let mut took = Vec::new();
        for thread in all {
            let of_it = thread.join();
            took.extend(of_it.map_err(|_| anyhow::anyhow!("a client has failed"))??);
        }
        Ok(took)
    })
}

/// Asks once, and gives what is answered.
pub(super) fn once(socket: &Path, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut connection = Connection::open(socket)?;
    connection.ask(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))?;
    Ok(connection.body)
}

/// A connection that is kept alive.
struct Connection {
    stream: BufReader<UnixStream>,
    line: String,
    body: Vec<u8>,
}

impl Connection {
    fn open(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("{}: nobody answers", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
            line: String::new(),
            body: Vec::new(),
        })
    }

    /// Sends a request and reads its answer to the end; it must be a good one.
    fn ask(&mut self, request: &str) -> anyhow::Result<()> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut status, mut length) = (String::new(), None);
        loop {
            self.line.clear();
            anyhow::ensure!(self.stream.read_line(&mut self.line)? > 0, "it has ended");
            let line = self.line.trim_end();
            if line.is_empty() {
                break;
            }
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = Some(value.trim().parse()?);
                }
                None => line.clone_into(&mut status),
                Some(_) => {}
            }
        }
        let length = length.context("an answer without a length")?;
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        let good = status.starts_with("HTTP/1.1 20");
        anyhow::ensure!(good, "{status}: {}", String::from_utf8_lossy(&self.body));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_mixed() {
        let of = |kind| (0..5000).filter(|i| Kind::of(*i, 500) == kind).count();
        assert_eq!(of(Kind::Services), 10);
        assert_eq!(of(Kind::Change), 10);
        assert!((3400..=3500).contains(&of(Kind::Service)));
        assert_eq!(Kind::ALL.map(of).iter().sum::<usize>(), 5000);
    }

    #[test]
    fn a_slow_answer_makes_those_behind_it_late() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a listener");
        let serve = |stream: UnixStream| -> std::io::Result<()> {
            let mut out = stream.try_clone()?;
            let mut stream = BufReader::new(stream);
            let (mut line, mut body, mut first) = (String::new(), 0, true);
            while stream.read_line(&mut line)? > 0 {
                if let Some(length) = line.trim_end().strip_prefix("content-length: ") {
                    body = length.parse().unwrap_or(0);
                }
                if line.trim_end().is_empty() {
                    stream.read_exact(&mut vec![0; body])?;
                    if first {
                        thread::sleep(Duration::from_millis(400));
                    }
                    first = false;
                    out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")?;
                }
                line.clear();
            }
            Ok(())
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(stream));
            }
        });
        // The first answer on each of sixteen connections is slow: at 160 a second all are taken
        // for a while, and those that are due meanwhile are late, too.
        let took = ask(&path, 160, Duration::from_secs(1), 10, 1);
        let late = match took {
            Ok(took) => took.iter().filter(|(_, us)| *us > 90_000).count(),
            Err(error) => panic!("{error:#}"),
        };
        assert!(late > 32, "{late}");
    }
}
