//! A clip, a server in a thread, and a viewer who speaks by hand.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bonsai_stream::serve::{
    Engine, Event, Limits, Parts, Pipelines, Plan, Summary, WhenBehind, serve,
};

/// Says that a test cannot run here, and why.
pub(crate) fn skip(test: &str, why: &str) {
    println!("SKIP {test}: {why}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log);
        writeln!(log.expect("a log"), "{test}: {why}").expect("written");
    }
}

/// Whether a program is there and answers.
pub(crate) fn has(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A clip of four seconds with pictures, some of which nothing is predicted from, and sound; `None`, and
/// the reason in the log, where it cannot be made.
pub(crate) fn clip(test: &str, folder: &Path) -> Option<PathBuf> {
    let path = folder.join("clip.mp4");
    let args = [
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=320x240:rate=25:duration=4",
        "-f",
        "lavfi",
        "-i",
        "sine=frequency=440:sample_rate=48000:duration=4",
        "-c:v",
        "libx264",
        "-preset",
        "veryfast",
        "-g",
        "25",
        "-bf",
        "2",
        "-pix_fmt",
        "yuv420p",
        "-b:v",
        "800k",
        "-c:a",
        "aac",
        "-y",
    ];
    match Command::new("ffmpeg").args(args).arg(&path).status() {
        Ok(status) if status.success() => Some(path),
        Ok(_) => {
            skip(test, "ffmpeg has no libx264");
            None
        }
        Err(_) => {
            skip(test, "there is no ffmpeg");
            None
        }
    }
}

/// A server that runs.
pub(crate) struct Served {
    pub(crate) at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Summary>>,
    events: Receiver<String>,
    heard: Mutex<Vec<String>>,
}

pub(crate) fn plan(root: &Path, engine: Engine) -> Plan {
    Plan {
        root: root.to_owned(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ports: (20_000, 29_999),
        engine,
        when_behind: WhenBehind::DropPictures,
        // A debug build on a busy machine is late, and that is not what is tested.
        late: Duration::from_secs(20),
        allotted: Arc::default(),
        limits: Limits::default(),
        parts: Parts::builtin(),
        pipelines: Pipelines::default(),
        lower: Arc::default(),
        users: None,
        tls: None,
    }
}

impl Served {
    pub(crate) fn new(plan: Plan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, events) = channel();
        let (listening, at) = channel();
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut on_event = |event: &Event<'_>| {
                if let Event::Listening(at) = event {
                    let _ = listening.send(*at);
                }
                let _ = tell.send(format!("{event:?}"));
            };
            serve(&plan, &ends, &mut on_event).expect("it serves")
        });
        Self {
            at: at
                .recv_timeout(Duration::from_secs(20))
                .expect("it listens"),
            stop,
            thread: Some(thread),
            events,
            heard: Mutex::default(),
        }
    }

    pub(crate) fn url(&self, clip: &str) -> String {
        format!("rtsp://{}/{clip}", self.at)
    }

    /// Waits for an event with these words in it.
    pub(crate) fn wait_for(&self, words: &str) -> String {
        let mut heard = self.heard.lock().expect("one thread");
        if let Some(found) = heard.iter().position(|event| event.contains(words)) {
            return heard.remove(found);
        }
        for _ in 0..10_000 {
            let event = self.events.recv_timeout(Duration::from_secs(20));
            let event = event.unwrap_or_else(|_| panic!("no {words:?} in {heard:?}"));
            if event.contains(words) {
                return event;
            }
            heard.push(event);
        }
        panic!("no {words:?} in {heard:?}");
    }

    /// Events so far.
    pub(crate) fn heard(&self) -> Vec<String> {
        let mut heard = self.heard.lock().expect("one thread");
        heard.extend(self.events.try_iter());
        heard.clone()
    }

    pub(crate) fn end(mut self) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("it ends")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A viewer by hand.
pub(crate) struct Viewer {
    pub(crate) stream: TcpStream,
    rest: Vec<u8>,
    /// Packets that came among the messages: channel and bytes.
    pub(crate) packets: Vec<(u8, Vec<u8>)>,
    /// Its session, as a header, once it has one.
    pub(crate) session: String,
    number: u32,
}

impl Viewer {
    pub(crate) fn new(at: SocketAddr) -> Self {
        let stream = TcpStream::connect(at).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        Self {
            stream,
            rest: Vec::new(),
            packets: Vec::new(),
            session: String::new(),
            number: 0,
        }
    }

    /// Asks, and does not wait for an answer.
    pub(crate) fn write(&mut self, line: &str, headers: &str) {
        self.number += 1;
        let text = format!("{line} RTSP/1.0\r\nCSeq: {}\r\n{headers}\r\n", self.number);
        self.stream.write_all(text.as_bytes()).expect("sent");
    }

    pub(crate) fn ask(&mut self, line: &str, headers: &str) -> String {
        self.write(line, headers);
        loop {
            if let Some(answer) = self.next() {
                return answer;
            }
        }
    }

    /// The next message, if it is one; a packet is put aside.
    pub(crate) fn next(&mut self) -> Option<String> {
        self.fill(4);
        if self.rest[0] == b'$' {
            let length = usize::from(u16::from_be_bytes([self.rest[2], self.rest[3]]));
            self.fill(4 + length);
            let packet: Vec<u8> = self.rest.drain(..4 + length).collect();
            self.packets.push((packet[1], packet[4..].to_vec()));
            return None;
        }
        let head = loop {
            let end = self.rest.windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break end + 4,
                None => self.fill(self.rest.len() + 1),
            }
        };
        let text = String::from_utf8(self.rest[..head].to_vec()).expect("text");
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        self.fill(head + length);
        let all: Vec<u8> = self.rest.drain(..head + length).collect();
        Some(String::from_utf8(all).expect("text"))
    }

    /// Whether the server has closed the connection, after all that it still said.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    fn fill(&mut self, length: usize) {
        let mut buffer = [0; 4096];
        while self.rest.len() < length {
            let read = self.stream.read(&mut buffer).expect("an answer");
            assert!(
                read > 0,
                "it is closed: {}",
                String::from_utf8_lossy(&self.rest)
            );
            self.rest.extend_from_slice(&buffer[..read]);
        }
    }
}

/// The session of an answer, as a header.
pub(crate) fn session(answer: &str) -> String {
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("Session: "));
    let name = line.expect("a session").split(';').next().expect("a name");
    format!("Session: {name}\r\n")
}
