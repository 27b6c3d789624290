//! A server in a thread of its own, and a client that says exactly what it is told to.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::HeaderValue;
use bonsai_davvi::Library;
use bonsai_stream::serve::Allotted;
use bonsai_web::{Event, Limits, Plan, Site, Summary};
use serde_json::{Value, json};

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// It.
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    told: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Summary>>,
}

impl Server {
    pub(crate) fn start(clips: Option<&Path>, library: Option<&Path>, limits: Limits) -> Self {
        Self::beside(None, clips, library, limits)
    }

    /// Of a folder of clips that pages of an origin may read.
    pub(crate) fn of_origin(folder: &Path, origin: &str) -> Self {
        let origin = Some(origin.parse().expect("an origin"));
        Self::with(None, (Some(folder), None), origin, Limits::default())
    }

    /// One that shares a rate with streams.
    pub(crate) fn beside(
        beside: Option<Arc<Allotted>>,
        clips: Option<&Path>,
        library: Option<&Path>,
        limits: Limits,
    ) -> Self {
        Self::with(beside, (clips, library), None, limits)
    }

    fn with(
        beside: Option<Arc<Allotted>>,
        (clips, library): (Option<&Path>, Option<&Path>),
        origin: Option<HeaderValue>,
        limits: Limits,
    ) -> Self {
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = Arc::clone(&told);
        let plan = Plan {
            users: None,
            tls: None,
            live: Vec::new(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            clips: clips.map(PathBuf::from),
            library: library.map(|path| Library::open(path).expect("a library")),
            beside,
            origin,
            limits,
        };
        let on_event = Arc::new(move |event: &Event<'_>| {
            let line = match event {
                Event::Listening(_) | Event::Live { .. } => return,
                Event::Refused { why, .. } => format!("refused: {why}"),
                Event::CutShort { why, .. } => format!("cut short: {why}"),
            };
            teller.lock().expect("a list").push(line);
        });
        let site = Site::open(plan, on_event).expect("it listens");
        let (at, stop) = (site.address(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || site.serve(&stopped).expect("served"));
        Self {
            at,
            told,
            stop,
            thread: Some(thread),
        }
    }

    /// Of a folder of clips, with what is taken on otherwise.
    pub(crate) fn of_clips(folder: &Path) -> Self {
        Self::start(Some(folder), None, Limits::default())
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.at).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a limit");
        stream
    }

    /// Asks on a connection of its own, with further lines.
    pub(crate) fn ask(&self, method: &str, path: &str, lines: &[&str], body: &str) -> Said {
        let mut stream = self.connect();
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n{lines}\r\n{body}",
            self.at
        );
        stream.write_all(request.as_bytes()).expect("asked");
        Said::read(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Said {
        self.ask("GET", path, &[], "")
    }

    /// Waits until something was told of.
    pub(crate) fn until_told(&self, words: &str) {
        until(&format!("{words:?} is told of"), || {
            let told = self.told.lock().expect("a list");
            told.iter().any(|line| line.contains(words))
        });
    }

    pub(crate) fn told(&self) -> Vec<String> {
        self.told.lock().expect("a list").clone()
    }

    pub(crate) fn end(mut self) -> Summary {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("it has ended")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it never came to it: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
    /// Whether as much came as was announced.
    pub(crate) is_whole: bool,
}

impl Said {
    pub(crate) fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // One that is reset has been answered as far as it goes.
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let mut said = Self {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            head,
            body: bytes[end + 4..].to_vec(),
            is_whole: true,
        };
        let length = said.header("content-length").parse::<usize>().ok();
        said.is_whole = length.is_none_or(|length| length == said.body.len());
        said
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().skip(1);
        let mut values = lines.filter_map(|line| line.split_once(':'));
        let found = values.find(|(of, _)| of.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value.trim())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"]
            .as_str()
            .expect("a sentence")
            .to_owned()
    }
}

/// Bytes that differ from place to place.
pub(crate) fn bytes(count: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / 7 + at) % 256).expect("a byte");
    (0..count).map(|at| byte(at) ^ seed).collect()
}

/// A library of one match, of ten segments of two seconds in two qualities, as an import makes it, but for
/// what is in the segments.
pub(crate) fn library(root: &Path) {
    add_video(
        root,
        "match",
        0,
        &[
            json!({"at_ms": 3000, "type": "goal", "players": ["8"], "text": "A header", "team": "Brann"}),
            json!({"at_ms": 9000, "type": "tackle", "players": ["14"], "text": "Sliding", "card": "yellow"}),
            json!({"at_ms": 15_000, "type": "goal", "players": ["9", "8"], "text": "Another header"}),
        ],
    );
}

/// A video with these events.
pub(crate) fn add_video(root: &Path, name: &str, id: u32, events: &[Value]) {
    std::fs::create_dir_all(root.join(".private")).expect("made");
    let folder = root.join(format!(".incoming-{name}"));
    for track in ["720p", "360p", "audio"] {
        std::fs::create_dir_all(folder.join(track)).expect("made");
        for file in 0..10 {
            let file = folder.join(format!("{track}/{file:05}.mp4"));
            std::fs::write(file, bytes(5000, 1)).expect("written");
        }
        std::fs::write(folder.join(track).join("init.mp4"), bytes(700, 2)).expect("written");
    }
    let quality = |height: u32, bits: u64| {
        json!({
            "width": height * 16 / 9, "height": height, "codec": "avc3.64001f", "mean_bits": bits,
            "peak_bits": bits * 2,
        })
    };
    let video = json!({
        "version": 1,
        "id": format!("{id:0>32}"),
        "name": name,
        "title": format!("The {name}"),
        "pace": {"over": 25, "under": 1},
        "starts_s": id * 1000,
        "pictures": 50,
        "last_pictures": 50,
        "segments": 10,
        "qualities": [quality(720, 2_000_000), quality(360, 600_000)],
        "sound": {"codec": "mp4a.40.2", "mean_bits": 96_000, "peak_bits": 100_000, "samples": vec![96_000; 10]},
        "events": events.len(),
    });
    let write =
        |file: &str, text: String| std::fs::write(folder.join(file), text).expect("written");
    write("video.json", video.to_string());
    write("events.json", json!(events).to_string());
    write("master.m3u8", "#EXTM3U\n".to_owned());
    write("manifest.mpd", "<MPD/>\n".to_owned());
    std::fs::rename(&folder, root.join(name)).expect("there");
}
