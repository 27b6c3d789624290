//! The proxy for players: a real import behind lines that change, and ffmpeg as the player.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bonsai_davvi::{Import, Library};
use bonsai_media::adapt::{Rule, Settings};
use bonsai_stream::play::Video;
use bonsai_stream::play::proxy::{Event, Plan, Proxy, Report};
use bonsai_web::{Limits, ProxyPlan, Site};

use crate::line::{Line, carry};
use crate::support::{PATIENCE, Said, Server, until};

/// Says that a test cannot run here.
fn skip(test: &str, reason: &str) {
    println!("SKIP: {test}: {reason}");
    let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") else {
        return;
    };
    let log = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(log);
    log.and_then(|mut log| writeln!(log, "{test}: {reason}"))
        .expect("the log of skipped tests");
}

const SECONDS: u64 = 36;

/// A library with a film of 36 s in segments of 1 s and two qualities; `None`, and the reason in the log, without ffmpeg.
fn library(test: &str, folder: &Path) -> Option<PathBuf> {
    let file = folder.join("film.mp4");
    let inputs = [
        "testsrc2=size=320x180:rate=25",
        "sine=frequency=440:sample_rate=48000",
    ];
    let made = Command::new("ffmpeg")
        .args([
            "-v", "error", "-f", "lavfi", "-i", inputs[0], "-f", "lavfi", "-i", inputs[1],
        ])
        .args([
            "-t",
            &SECONDS.to_string(),
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            "-c:a",
            "aac",
        ])
        .arg(&file)
        .stdin(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        skip(test, "ffmpeg is not installed, or has no x264");
        return None;
    }
    let root = folder.join("library");
    let import = Import {
        file,
        name: None,
        title: None,
        events: Vec::new(),
        segment: Duration::from_secs(1),
        heights: vec![180, 90],
        is_readable: false,
        patience: Duration::from_secs(120),
    };
    Library::import(&root, &import, &mut |_| {}).expect("imported");
    Some(root)
}

/// A folder with such a film, sound and pictures in one, as transport streams (mpegts) or MP4 with parameters in its
/// headers alone (fmp4); otherwise likewise.
fn cut(test: &str, folder: &Path, kind: &str) -> Option<PathBuf> {
    let root = folder.join("clips");
    let mut master = "#EXTM3U\n".to_owned();
    for (name, size, kbps) in [("low", "160x90", 150_u32), ("high", "320x180", 500)] {
        let pictures = format!("testsrc2=size={size}:rate=25");
        let place = root.join(name);
        std::fs::create_dir_all(&place).expect("made");
        let made = Command::new("ffmpeg")
            .current_dir(&place)
            .args(["-v", "error", "-f", "lavfi", "-i", &pictures])
            .args(["-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000"])
            .args([
                "-t",
                &SECONDS.to_string(),
                "-c:v",
                "libx264",
                "-preset",
                "ultrafast",
            ])
            .args([
                "-g",
                "25",
                "-sc_threshold",
                "0",
                "-b:v",
                &format!("{kbps}k"),
                "-c:a",
                "aac",
            ])
            .args(["-f", "hls", "-hls_time", "1", "-hls_playlist_type", "vod"])
            .args(["-hls_segment_type", kind, "list.m3u8"])
            .stdin(Stdio::null())
            .status();
        if !made.is_ok_and(|status| status.success()) {
            skip(test, "ffmpeg is not installed, or has no x264");
            return None;
        }
        let bits = (kbps + 70) * 1000;
        master.push_str(&format!(
            "#EXT-X-STREAM-INF:BANDWIDTH={bits},RESOLUTION={size}\n{name}/list.m3u8\n"
        ));
    }
    std::fs::write(root.join("master.m3u8"), master).expect("written");
    Some(root)
}

/// A proxy that runs, and where its player finds it.
struct Playing {
    proxy: Proxy,
    at: SocketAddr,
    told: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Playing {
    fn start(lines: &[&Line], buffer_s: f64) -> Self {
        Self::of("media/film/master.m3u8", lines, buffer_s)
    }

    fn of(path: &str, lines: &[&Line], buffer_s: f64) -> Self {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let teller = Arc::clone(&told);
        let on_server = move |event: &Event<'_>| {
            let line = match event {
                Event::Down { url, why } => format!("down: {url}: {why}"),
                Event::Up { url } => format!("up: {url}"),
                Event::Other { url, why } => format!("other: {url}: {why}"),
            };
            teller.lock().expect("a list").push(line);
        };
        let server = |line: &&Line| {
            let url = format!("http://{}/{path}", line.at);
            Video {
                url: url.parse().expect("an address"),
                server: line.at,
            }
        };
        let plan = Plan {
            servers: lines.iter().map(server).collect(),
            step: Duration::from_secs(5),
            memory: 64 << 20,
            settings: Settings {
                rule: Rule::Davvi,
                buffer_ms: buffer_s * 1e3,
                ..Settings::default()
            },
        };
        let proxy = Proxy::open(plan, Arc::new(on_server)).expect("a film");
        let plan = ProxyPlan {
            listen: "127.0.0.1:0".parse().expect("an address"),
            origin: Some("http://page".parse().expect("an origin")),
        };
        let site = Site::of_player(&plan, proxy.clone(), Arc::new(|_| {})).expect("it listens");
        let (at, stop) = (site.address(), Arc::new(AtomicBool::new(false)));
        let stops = [Arc::clone(&stop), Arc::clone(&stop)];
        let [fetching, serving] = stops;
        let engine = proxy.clone();
        let threads = vec![
            std::thread::spawn(move || engine.run(&fetching).expect("fetched")),
            std::thread::spawn(move || {
                site.serve(&serving).expect("served");
            }),
        ];
        Self {
            proxy,
            at,
            told,
            stop,
            threads,
        }
    }

    fn address(&self) -> String {
        format!("http://{}/{}/play.m3u8", self.at, self.proxy.token())
    }

    /// Waits until the player was given so many segments.
    fn until_given(&self, segments: u64) {
        let end = Instant::now() + 3 * PATIENCE;
        while self.proxy.report().waits.given < segments {
            assert!(Instant::now() < end, "{:?}", self.proxy.report());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, path: &str, host: &str) -> Said {
        let mut stream = TcpStream::connect(self.at).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        Said::read(stream)
    }

    fn end(mut self) -> (Report, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("it has ended");
        }
        let told = self.told.lock().expect("a list").clone();
        (self.proxy.report(), told)
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// ffmpeg as a player: pictures to a file, small and grey, and sound to another.
struct Player {
    child: Option<Child>,
    pictures: PathBuf,
    sound: PathBuf,
}

impl Player {
    fn start(folder: &Path, address: &str, before: &[&str]) -> Self {
        let (pictures, sound) = (folder.join("pictures.raw"), folder.join("sound.raw"));
        let child = Command::new("ffmpeg")
            .args(["-v", "error", "-y"])
            .args(before)
            .args(["-i", address, "-map", "0:v", "-vsync", "passthrough"])
            .args(["-vf", "scale=16:16,format=gray", "-f", "rawvideo"])
            .arg(&pictures)
            .args(["-map", "0:a", "-ac", "1", "-ar", "48000", "-f", "s16le"])
            .arg(&sound)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ffmpeg");
        Self {
            child: Some(child),
            pictures,
            sound,
        }
    }

    /// Waits for its end, which must be a good one: pictures, and seconds of sound.
    fn seen(mut self) -> (u64, f64) {
        let end = Instant::now() + 6 * PATIENCE;
        let child = self.child.as_mut().expect("it runs");
        while child.try_wait().expect("its state").is_none() {
            assert!(Instant::now() < end, "the player does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let child = self.child.take().expect("it ran");
        let output = child.wait_with_output().expect("ended");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
        let bytes = |file: &Path| std::fs::metadata(file).expect("written").len();
        (
            bytes(&self.pictures) / 256,
            bytes(&self.sound) as f64 / 96_000.0,
        )
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kbps(playing: &Playing) -> Vec<f64> {
    let qualities = &playing.proxy.film().qualities;
    qualities
        .iter()
        .filter_map(|quality| quality.kbps)
        .collect()
}

#[test]
fn a_player_sees_all_of_a_film_while_its_line_gets_worse_and_better() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(root) = library("a player sees all", folder.path()) else {
        return;
    };
    let server = Server::start(None, Some(&root), Limits::default());
    let line = Line::to(server.at, 20_000.0);
    let playing = Playing::start(&[&line], 6.0);
    let kbps = kbps(&playing);
    assert_eq!(kbps.len(), 2, "{kbps:?}");
    let player = Player::start(folder.path(), &playing.address(), &["-xerror", "-re"]);
    playing.until_given(10);
    // Enough for the lowest quality alone.
    line.set((kbps[0] * 1.3).min(kbps[1] * 0.8));
    playing.until_given(22);
    line.set(20_000.0);
    let (pictures, sound_s) = player.seen();
    let (report, told) = playing.end();
    assert_eq!(pictures, SECONDS * 25, "{report:?}");
    assert!((sound_s - SECONDS as f64).abs() < 0.1, "{sound_s}");
    assert!(told.is_empty(), "{told:?}");
    // Players look at the first segment before they begin.
    let mut order: Vec<usize> = report.segments.iter().map(|of| of.segment).collect();
    order.dedup();
    assert_eq!(order, (0..36).collect::<Vec<_>>());
    // When it goes from one to the other is up to the speed of this machine, too.
    let qualities: Vec<usize> = report.segments.iter().map(|of| of.quality).collect();
    assert!(
        qualities.contains(&0) && qualities.contains(&1),
        "{qualities:?}"
    );
    let seen = &report.seen;
    assert!(
        report.score.is_some() && seen.mean_kbps > kbps[0],
        "{seen:?}"
    );
}

#[test]
fn a_server_that_dies_in_the_middle_is_left_for_the_other_and_nothing_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(root) = library("a server that dies", folder.path()) else {
        return;
    };
    let server = Server::start(None, Some(&root), Limits::default());
    let (mut first, second) = (Line::to(server.at, 2_000.0), Line::to(server.at, 4_000.0));
    let playing = Playing::start(&[&first, &second], 4.0);
    let player = Player::start(
        folder.path(),
        &playing.address(),
        &["-xerror", "-readrate", "3"],
    );
    playing.until_given(12);
    first.cut();
    let (pictures, sound_s) = player.seen();
    let (report, told) = playing.end();
    assert_eq!(pictures, SECONDS * 25, "{report:?}");
    assert!((sound_s - SECONDS as f64).abs() < 0.1, "{sound_s}");
    let [one, other] = &report.servers[..] else {
        panic!("{report:?}");
    };
    assert!(one.segments > 0 && one.failures > 0, "{one:?}");
    assert!(other.segments > one.segments, "{other:?}");
    // Once, not for each segment; the other may have been slow on a busy machine.
    let of = |start: &str| {
        let begins = |line: &&String| line.starts_with(&format!("{start}: http://{}/", first.at));
        told.iter().filter(begins).count()
    };
    assert_eq!(of("down"), of("up") + 1, "{told:?}");
    assert!(of("down") <= 3 && of("other") == 0, "{told:?}");
}

#[test]
fn a_player_may_begin_in_the_middle_and_come_again() {
    let folder = tempfile::tempdir().expect("a folder");
    // ffmpeg goes anywhere in transport streams alone, with no proxy in between either. Their counters do not go
    // on from one quality to another, which it takes for corruption where it is told to be strict.
    let Some(root) = cut("a player may begin", folder.path(), "mpegts") else {
        return;
    };
    let server = Server::start(Some(&root), None, Limits::default());
    let line = Line::to(server.at, 20_000.0);
    let playing = Playing::of("master.m3u8", &[&line], 5.0);
    let address = playing.address();
    let (pictures, sound_s) = Player::start(folder.path(), &address, &["-ss", "20"]).seen();
    assert_eq!(pictures, (SECONDS - 20) * 25);
    assert!((sound_s - 16.0).abs() < 0.1, "{sound_s}");
    let report = playing.proxy.report();
    assert!(report.seeks >= 1, "{report:?}");
    // Another comes, and has all of it; the first would be refused now.
    let (pictures, _) = Player::start(folder.path(), &address, &[]).seen();
    assert_eq!(pictures, SECONDS * 25);
    let token = playing.proxy.token().to_owned();
    let host = playing.at.to_string();
    let said = playing.get(&format!("/{token}/1/3.ts"), &host);
    assert_eq!(said.status, 503, "{said:?}");
    assert!(said.error().contains("another player"), "{said:?}");
    for (path, status) in [
        (format!("/{token}/play.m3u8"), 200),
        (format!("/{token}/1/pictures.m3u8"), 200),
        (format!("/{token}/1/other.m3u8"), 404),
        (format!("/{token}/99/0.ts"), 404),
        (format!("/{token}/2/99.ts"), 404),
        ("/play.m3u8".to_owned(), 404),
        (format!("/{}/play.m3u8", "0".repeat(32)), 404),
    ] {
        assert_eq!(playing.get(&path, &host).status, status, "{path}");
    }
    // No name that somebody else gives to this machine.
    let path = format!("/{token}/play.m3u8");
    assert_eq!(playing.get(&path, "evil.example").status, 421);
}

#[test]
fn pictures_are_whole_where_parameters_are_in_headers_alone_and_the_player_reads_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(root) = cut("pictures are whole", folder.path(), "fmp4") else {
        return;
    };
    let server = Server::start(Some(&root), None, Limits::default());
    let line = Line::to(server.at, 20_000.0);
    let playing = Playing::of("master.m3u8", &[&line], 5.0);
    let player = Player::start(folder.path(), &playing.address(), &["-xerror"]);
    let (pictures, sound_s) = player.seen();
    let (report, _) = playing.end();
    assert_eq!(pictures, SECONDS * 25);
    assert!((sound_s - SECONDS as f64).abs() < 0.1, "{sound_s}");
    let (up, down) = (report.seen.switches_up, report.seen.switches_down);
    assert!(up + down > 0, "{report:?}");
}

#[test]
fn a_film_that_no_server_gives_any_more_is_an_error_to_the_player_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(root) = library("a film that no server gives", folder.path()) else {
        return;
    };
    let server = Server::start(None, Some(&root), Limits::default());
    let line = Line::to(server.at, 20_000.0);
    let playing = Playing::start(&[&line], 3.0);
    let list = playing.get(
        &format!("/{}/play.m3u8", playing.proxy.token()),
        "localhost",
    );
    assert_eq!(list.header("content-type"), "application/vnd.apple.mpegurl");
    let segment = |number: usize| {
        let path = format!("/{}/1/{number}.mp4", playing.proxy.token());
        playing.get(&path, "localhost")
    };
    let first = segment(0);
    assert!(
        first.status == 200 && first.is_whole && !first.body.is_empty(),
        "{first:?}"
    );
    let moved = root.with_file_name("elsewhere");
    std::fs::rename(root.join("film"), &moved).expect("gone");
    let gone = segment(30);
    assert_eq!(gone.status, 502, "{gone:?}");
    // A page that may read it learns why.
    assert_eq!(gone.header("access-control-allow-origin"), "http://page");
    assert!(gone.error().contains("404"), "{gone:?}");
    std::fs::rename(&moved, root.join("film")).expect("there again");
    until("it comes back", || segment(30).status == 200);
    let (_, told) = playing.end();
    let words: Vec<&str> = told
        .iter()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(words, ["down", "up"], "{told:?}");
}

/// Answers the first connections badly, one by being closed and one by a page, and carries the others to a server.
fn moody(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let at = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
            match number {
                0 => continue,
                1 => {
                    let page = "<html><body>We will be back.</body></html>";
                    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length:";
                    let mut near = near;
                    let _ = near.read(&mut [0; 2048]);
                    let _ = write!(near, "{head} {}\r\n\r\n{page}", page.len());
                    continue;
                }
                _ => {}
            }
            let far = TcpStream::connect(server).expect("a connection");
            let copy = |of: &TcpStream| of.try_clone().expect("a copy");
            for (from, to) in [(copy(&near), copy(&far)), (far, near)] {
                let rate = AtomicU64::new(u64::MAX);
                std::thread::spawn(move || {
                    carry((from, to), &rate, &Mutex::default(), &AtomicBool::default());
                });
            }
        }
    });
    at
}

#[test]
fn a_server_that_was_away_and_says_so_in_a_page_is_asked_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(root) = library("a server that was away", folder.path()) else {
        return;
    };
    let server = Server::start(None, Some(&root), Limits::default());
    let (first, second) = (
        Line::to(server.at, 20_000.0),
        Line::to(moody(server.at), 20_000.0),
    );
    let playing = Playing::start(&[&first, &second], 4.0);
    let list = format!("/{}/play.m3u8", playing.proxy.token());
    assert_eq!(playing.get(&list, "localhost").status, 200);
    let mut number = 0;
    until("it is asked again", || {
        let path = format!("/{}/1/{number}.mp4", playing.proxy.token());
        number = (number + 1) % 30;
        assert_eq!(playing.get(&path, "localhost").status, 200);
        playing.proxy.report().servers[1].segments > 0
    });
    let (report, told) = playing.end();
    assert!(report.servers[1].failures >= 2, "{report:?}");
    let is_other = |line: &String| line.starts_with("other");
    assert!(!told.iter().any(is_other), "{told:?}");
}
