//! A web server that does what a test tells it to.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a request gets.
pub(crate) enum Answer {
    /// These bytes, or the part of them that is asked for.
    File(Vec<u8>),
    /// These bytes, so many every 10 ms.
    Slow(Vec<u8>, usize),
    /// All of these bytes, whatever is asked for.
    Whole(Vec<u8>),
    /// These bytes, and then the connection ends, without having said so.
    Last(Vec<u8>),
    /// As many of these bytes, and then the connection ends.
    Cut(Vec<u8>, usize),
    /// This status line, with a short text.
    Status(&'static str),
    /// It is there.
    Moved(String),
    /// A file without an end, with its length or without.
    Endless(Option<u64>),
    /// Nothing for ever.
    Silence,
    /// This and nothing else, and the connection ends.
    Raw(&'static [u8]),
}

/// A request: its path, and the range that it asks for.
pub(crate) type Asked = (String, Option<(usize, usize)>);

/// A server that runs as long as the process.
pub(crate) struct Web {
    pub(crate) at: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<Mutex<usize>>,
}

type Maker = dyn Fn(&str, usize) -> Answer + Send + Sync;

impl Web {
    /// One that answers by path, and by how often that was asked for before.
    pub(crate) fn new(answer: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let connections: Arc<Mutex<usize>> = Arc::default();
        let answer: Arc<Maker> = Arc::new(answer);
        let (log, count) = (asked.clone(), connections.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                *count.lock().expect("a count") += 1;
                let (answer, log) = (answer.clone(), log.clone());
                // Whoever goes away in mid-answer is not missed.
                thread::spawn(move || {
                    let _ = serve(stream.expect("a player"), &*answer, &log);
                });
            }
        });
        Self {
            at,
            asked,
            connections,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    /// What was asked for until now.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("a log").clone()
    }

    /// How often a path was asked for.
    pub(crate) fn times(&self, path: &str) -> usize {
        self.asked()
            .iter()
            .filter(|(asked, _)| asked == path)
            .count()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().expect("a count")
    }
}

fn serve(mut stream: TcpStream, answer: &Maker, log: &Mutex<Vec<Asked>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    loop {
        let Some(first) = lines.next() else {
            return Ok(());
        };
        let path = first?.split(' ').nth(1).expect("a path").to_owned();
        let mut range = None;
        for line in lines.by_ref() {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(bytes) = line.strip_prefix("range: bytes=") {
                let (first, last) = bytes.split_once('-').expect("a range");
                range = Some((
                    first.parse().expect("a number"),
                    last.parse().expect("a number"),
                ));
            }
        }
        let before = {
            let mut log = log.lock().expect("a log");
            let before = log.iter().filter(|(asked, _)| *asked == path).count();
            log.push((path.clone(), range));
            before
        };
        match answer(&path, before) {
            Answer::File(bytes) => match range {
                Some((first, last)) if last < bytes.len() => {
                    let of = format!("Content-Range: bytes {first}-{last}/{}\r\n", bytes.len());
                    whole(
                        &mut stream,
                        "206 Partial Content",
                        &of,
                        &bytes[first..=last],
                    )?;
                }
                Some(_) => whole(&mut stream, "416 Range Not Satisfiable", "", b"")?,
                None => whole(&mut stream, "200 OK", "", &bytes)?,
            },
            Answer::Whole(bytes) => whole(&mut stream, "200 OK", "", &bytes)?,
            Answer::Slow(bytes, each) => {
                head(&mut stream, "200 OK", bytes.len())?;
                for piece in bytes.chunks(each) {
                    stream.write_all(piece)?;
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Answer::Last(bytes) => return whole(&mut stream, "200 OK", "", &bytes),
            Answer::Cut(bytes, some) => {
                head(&mut stream, "200 OK", bytes.len())?;
                return stream.write_all(&bytes[..some]);
            }
            Answer::Status(status) => whole(&mut stream, status, "", b"No.\n")?,
            Answer::Moved(place) => {
                let place = format!("Location: {place}\r\n");
                whole(&mut stream, "302 Found", &place, b"There.\n")?;
            }
            Answer::Endless(length) => {
                let length = match length {
                    Some(length) => format!("Content-Length: {length}\r\n"),
                    None => "Connection: close\r\n".to_owned(),
                };
                write!(stream, "HTTP/1.1 200 OK\r\n{length}\r\n#EXTM3U\n")?;
                loop {
                    stream.write_all(&[b'\n'; 65_536])?;
                }
            }
            Answer::Silence => {
                lines.by_ref().for_each(drop);
                return Ok(());
            }
            Answer::Raw(bytes) => return stream.write_all(bytes),
        }
    }
}

fn head(stream: &mut TcpStream, status: &str, length: usize) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn whole(stream: &mut TcpStream, status: &str, more: &str, bytes: &[u8]) -> std::io::Result<()> {
    let length = bytes.len();
    let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), bytes].concat())
}
