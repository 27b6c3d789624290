//! `bonsai serve` as a service: what it is allotted, what its viewers see, and what it does about it.

mod beside;
mod films;
mod hiccups;
mod memory;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bonsai_api::{QosView, Resource};
use bonsai_client::Client;
use serde_json::Value;

use crate::support::{self, Place, Said, compiled, signal, skip};

const PATIENCE: Duration = Duration::from_secs(90);

/// Bytes a second of a film in a folder of its own, seconds long; `None`, and the reason in the log, where
/// it cannot be made.
fn film(test: &str, folder: &Path, seconds: u64) -> Option<u64> {
    let sources = [
        "testsrc2=size=320x240:rate=25",
        "sine=frequency=440:sample_rate=48000",
    ];
    let words = "-preset veryfast -g 25 -bf 2 -pix_fmt yuv420p -b:v 800k -c:a aac";
    let path = support::film(test, folder.join("film.mp4"), &sources, seconds, words)?;
    Some(std::fs::metadata(&path).expect("a film").len() / seconds)
}

/// A server that runs, and the lines that it says.
struct Served {
    child: Option<Child>,
    url: String,
    /// Where it serves HTTP, if it does.
    http: Option<SocketAddr>,
    lines: Receiver<String>,
}

impl Served {
    /// Starts it, by a command that ends with `serve`, and waits until it listens.
    fn start(mut command: Command, folder: &Path, options: &[&str]) -> Self {
        command.arg(folder).args(["--rtsp", ":0", "--json"]);
        command.args(options).process_group(0);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("bonsai");
        let (tell, lines) = channel();
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let mut served = Self {
            child: Some(child),
            url: String::new(),
            http: None,
            lines,
        };
        let ways = if options.contains(&"--http") { 2 } else { 1 };
        for _ in 0..ways {
            let line = served.wait_for("://");
            match line.strip_prefix("http://") {
                Some(at) => served.http = at.trim_end_matches('/').parse().ok(),
                None => served.url = format!("{line}film.mp4"),
            }
        }
        served
    }

    /// In a service with such limits.
    fn within(place: &Place, folder: &Path, limits: &[String], options: &[&str]) -> Self {
        let mut command = place.bonsai(&["run", "--name", "vod"]);
        for limit in limits {
            command.args(["--limit", limit]);
        }
        command.args(["--", env!("CARGO_BIN_EXE_bonsai"), "serve"]);
        Self::start(command, folder, options)
    }

    /// The next line with these words in it.
    fn wait_for(&self, words: &str) -> String {
        let mut heard = Vec::new();
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => heard.push(line),
                Err(_) => panic!("no {words:?} in {heard:?}"),
            }
        }
    }

    /// Ends it; what it has served.
    fn end(mut self) -> Value {
        let mut child = self.child.take().expect("once");
        signal(child.id(), "TERM");
        let mut out = String::new();
        let mut pipe = child.stdout.take().expect("piped");
        pipe.read_to_string(&mut out).expect("text");
        child.wait().expect("ended");
        let value: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}"));
        value["served"].clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), "TERM");
            let _ = child.wait();
        }
    }
}

/// What so many viewers see.
fn watch(place: &Place, url: &str, clients: &str, options: &[&str]) -> Vec<Value> {
    let all = [
        "watch",
        url,
        "--clients",
        clients,
        "--patience",
        "30s",
        "--json",
    ];
    let said = place.say(&[&all[..], options].concat());
    let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
    value["outcome"]["viewers"]
        .as_array()
        .expect("viewers")
        .clone()
}

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or_else(|| panic!("{of}"))
}

fn tracks(viewer: &Value) -> &Vec<Value> {
    viewer["tracks"].as_array().expect("tracks")
}

/// Bytes of sending calls that the service is counted.
fn counted(place: &Place) -> f64 {
    let stats = place.json(&["stats", "vod", "--json"]);
    let classes = stats["classes"].as_array().expect("classes");
    let send = classes.iter().find(|class| class["class"] == "send");
    number(&send.expect("a class")["bytes"])
}

#[test]
fn under_half_of_what_they_need_all_viewers_get_fewer_pictures_in_time() {
    const TEST: &str = "under_half_of_what_they_need_all_viewers_get_fewer_pictures_in_time";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rate) = film(TEST, folder.path(), 10) else {
        return;
    };
    for engine in ["classic", "fast"] {
        let limit = rate * 10 / 2;
        let began = Instant::now();
        let limits = [format!("send={limit}B/s:burst=20ms")];
        let served = Served::within(&place, folder.path(), &limits, &["--engine", engine]);
        let viewers = watch(&place, &served.url, "10", &["--for", "8s"]);
        let counted = counted(&place);
        let most = began.elapsed().as_secs_f64() * limit as f64 * 1.02 + 1000.0;
        assert!(counted <= most, "{engine}: {counted} of {most}");
        served.wait_for("too much:");
        let summary = served.end();
        assert_eq!(viewers.len(), 10);
        let mut came = 0.0;
        for viewer in &viewers {
            assert_eq!(viewer["failure"], Value::Null, "{engine}: {viewer:#}");
            for track in tracks(viewer) {
                let stream = &track["stream"];
                came += number(&stream["bytes"]);
                // Nothing that is sent is lost, and what is not sent has no number.
                assert_eq!(stream["lost"], 0, "{engine}: {track:#}");
                // At half of the rate, a film that waited for all of it would be four seconds late.
                let lag_s = number(&stream["lag_max_ns"]) / 1e9;
                assert!(lag_s < 2.5, "{engine}: {track:#}");
            }
            let [pictures, sound] = ["video", "audio"].map(|kind| {
                let track = tracks(viewer).iter().find(|track| track["kind"] == kind);
                track.unwrap_or_else(|| panic!("{kind}: {viewer:#}"))["stream"].clone()
            });
            let seconds = number(&pictures["elapsed_ns"]) / 1e9;
            let all = rate as f64 * seconds;
            let both = number(&pictures["bytes"]) + number(&sound["bytes"]);
            assert!(both < all * 0.75, "{engine}: {both} of {all}: {viewer:#}");
            // All of the sound: four frames are a packet.
            let frames = number(&sound["received"]) * 4.0;
            assert!(
                frames > seconds * 48_000.0 / 1024.0 * 0.9 - 2.0,
                "{engine}: {viewer:#}"
            );
        }
        // All that came was counted.
        assert!(counted >= came, "{engine}: {counted} of {came}");
        assert!(number(&summary["dropped"]) > 100.0, "{engine}: {summary}");
    }
}

#[test]
fn under_half_of_what_they_need_the_later_ones_are_refused_and_others_see_it_all() {
    const TEST: &str =
        "under_half_of_what_they_need_the_later_ones_are_refused_and_others_see_it_all";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rate) = film(TEST, folder.path(), 6) else {
        return;
    };
    for engine in ["classic", "fast"] {
        let limits = [format!("send={}B/s:burst=20ms", rate * 10 / 2)];
        let options = ["--behind", "refuse", "--engine", engine, "--late", "10s"];
        let served = Served::within(&place, folder.path(), &limits, &options);
        let viewers = watch(
            &place,
            &served.url,
            "10",
            &["--for", "20s", "--arrivals", "5/s"],
        );
        let (refused, others): (Vec<&Value>, Vec<&Value>) = viewers
            .iter()
            .partition(|viewer| viewer["failure"] != Value::Null);
        // The fifth would leave nothing free.
        assert_eq!(
            (refused.len(), others.len()),
            (6, 4),
            "{engine}: {viewers:#?}"
        );
        for viewer in refused {
            let failure = viewer["failure"].as_str().expect("a reason");
            assert!(failure.starts_with("SETUP: 453"), "{engine}: {failure}");
            assert!(number(&viewer["came_ns"]) > number(&others[0]["came_ns"]));
        }
        for viewer in others {
            for track in tracks(viewer) {
                let stream = &track["stream"];
                assert_eq!(stream["lost"], 0, "{engine}: {track:#}");
                assert!(number(&stream["lag_max_ns"]) < 2.5e9, "{engine}: {track:#}");
            }
            let bytes: f64 = tracks(viewer)
                .iter()
                .map(|track| number(&track["stream"]["bytes"]))
                .sum();
            // A file is larger than what it carries by its tables.
            assert!(bytes > rate as f64 * 6.0 * 0.9, "{engine}: {viewer:#}");
        }
        served.wait_for("453: with one more");
        let summary = served.end();
        assert_eq!(
            (&summary["dropped"], &summary["sessions"]),
            (&0.into(), &4.into())
        );
    }
}

#[test]
fn a_limit_that_changes_is_followed() {
    const TEST: &str = "a_limit_that_changes_is_followed";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(rate) = film(TEST, folder.path(), 30) else {
        return;
    };
    // Both what is read and what is sent is under it.
    let limits = [format!("all={}B/s", rate * 40)];
    let served = Served::within(&place, folder.path(), &limits, &[]);
    let url = served.url.clone();
    let mut watching = place.bonsai(&[
        "watch",
        &url,
        "--clients",
        "3",
        "--for",
        "30s",
        "--patience",
        "30s",
    ]);
    let watching = watching.stdout(Stdio::piped()).spawn().expect("bonsai");
    place.until("vod", |service| {
        let limits = service["limits"].as_array();
        limits.is_some_and(|limits| limits[0]["got"].as_f64() > Some(rate as f64))
    });
    let set = |limit: String| {
        let said = place.say(&["set", "vod", &limit]);
        assert_eq!(said.code, Some(0), "{said:?}");
    };
    set(format!("all={}B/s", rate * 3));
    served.wait_for("too much:");
    set("all=unlimited".to_owned());
    served.wait_for("all pictures are sent again");
    signal(watching.id(), "TERM");
    let _ = watching.wait_with_output();
    assert!(number(&served.end()["dropped"]) > 0.0);
}

/// `bonsai daemon`, until it is dropped.
struct Daemon<'a> {
    child: Child,
    place: &'a Place,
}

impl<'a> Daemon<'a> {
    fn start(place: &'a Place, state: &Path) -> Self {
        let mut command = place.bonsai(&["daemon", "--config"]);
        command.arg(state.join("bonsai.toml"));
        command.env("BONSAI_STATE_DIR", state.join("state"));
        let child = command.stdout(Stdio::piped()).spawn().expect("bonsai");
        let mut daemon = Self { child, place };
        let mut line = String::new();
        let out = daemon.child.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert!(line.contains("listens on"), "{line}");
        daemon
    }

    fn client(&self) -> Client {
        Client::unix(self.place.path().join("daemon.sock")).expect("a client")
    }

    /// Waits for a view of what the viewers of `vod` see.
    fn until(&self, what: &str, is_so: impl Fn(&QosView) -> bool) -> QosView {
        let end = Instant::now() + PATIENCE;
        loop {
            let views = self.client().qos().expect("views");
            let view = views.into_iter().find(|view| view.service == "vod");
            match view {
                Some(view) if is_so(&view) => return view,
                view => assert!(Instant::now() < end, "{what}: never; {view:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Bytes a second that are guaranteed to `vod`.
    fn guaranteed(&self) -> f64 {
        let service = self.client().service("vod").expect("it is known");
        let send = service
            .resources
            .iter()
            .find(|of| of.resource == Resource::Send);
        send.map_or(0.0, |send| send.decision.min)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_its_viewers_see_raises_a_guarantee_that_is_too_small() {
    const TEST: &str = "what_its_viewers_see_raises_a_guarantee_that_is_too_small";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let library = place.library().expect("it has one");
    if !library.with_file_name("libbonsai_extension.so").is_file() {
        return skip(TEST, "libbonsai_extension.so is not built (make build)");
    }
    let (folder, state) = (
        tempfile::tempdir().expect("one"),
        tempfile::tempdir().expect("one"),
    );
    let Some(rate) = film(TEST, folder.path(), 60) else {
        return;
    };
    // For two viewers of five of whom half is guaranteed; the rest is somebody else's.
    let (capacity, least) = (rate * 5, rate);
    let config = format!(
        "[capacity]\nsend = \"{capacity}B/s\"\n[policy]\nautomatic = \"on\"\n\
         [services.vod]\nmode = \"qos\"\nsend = {{ min = \"{least}B/s\" }}\n\
         qos = {{ loss = \"2%\" }}\n[services.rival]\nsend = {{ weight = 1000 }}\n"
    );
    std::fs::write(state.path().join("bonsai.toml"), config).expect("written");
    let daemon = Daemon::start(&place, state.path());
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = sink.local_addr().expect("its address").port();
    let script =
        format!("exec 3>/dev/udp/127.0.0.1/{port}; while :; do printf %01000d 0 >&3; done");
    let _rival = place.start("rival", &["--", "bash", "-c", &script]);
    let served = Served::within(&place, folder.path(), &[], &["--verbose"]);
    let (url, clients) = (
        served.url.clone(),
        ["--clients", "2", "--for", "60s", "--patience", "30s"],
    );
    let mut watching = place.bonsai(&[&["watch", &url][..], &clients].concat());
    let watching = watching.stdout(Stdio::piped()).spawn().expect("bonsai");
    let view = daemon.until("a report", |view| view.last.is_some());
    let last = view.last.expect("a report");
    assert_eq!(last.source.as_deref(), Some("rtcp"));
    served.wait_for("what viewers see goes to the daemon at ");
    daemon.until("pictures are missing", |view| {
        let last = view.last.as_ref();
        last.is_some_and(|last| last.loss > Some(0.02)) && view.holds == Some(false)
    });
    let end = Instant::now() + PATIENCE;
    while daemon.guaranteed() < least as f64 * 1.2 {
        assert!(Instant::now() < end, "{} of {least}", daemon.guaranteed());
        std::thread::sleep(Duration::from_millis(100));
    }
    // A daemon that goes and comes back changes nothing for the viewers.
    drop(daemon);
    served.wait_for("what viewers see is not told to the daemon");
    let daemon = Daemon::start(&place, state.path());
    daemon.until("a report again", |view| view.last.is_some());
    signal(watching.id(), "TERM");
    let _ = watching.wait_with_output();
    let summary = served.end();
    assert_eq!(summary["most_sessions"], 2);
}

#[test]
fn what_the_meter_sees_is_told_if_somebody_is_there_to_hear() {
    const TEST: &str = "what_the_meter_sees_is_told_if_somebody_is_there_to_hear";
    let Some(place) = Place::new(TEST) else {
        return;
    };
    let (folder, state) = (
        tempfile::tempdir().expect("one"),
        tempfile::tempdir().expect("one"),
    );
    if film(TEST, folder.path(), 4).is_none() {
        return;
    }
    let served = Served::start(place.bonsai(&["serve"]), folder.path(), &[]);
    let watched = |service: &str| {
        let end = Instant::now() + PATIENCE;
        let what = ["--for", "3s", "--patience", "30s", "--report", service];
        loop {
            let said = place.say(&[&["watch", &served.url], &what[..]].concat());
            // A server that the machine made late takes nobody for a while.
            if said.out.contains("453") && Instant::now() < end {
                continue;
            }
            assert_eq!(said.code, Some(0), "{said:?}");
            return said.err;
        }
    };
    let said = watched("vod");
    assert!(said.contains("no daemon is there"), "{said}");
    // A server that somebody else has written.
    let _running = place.start("vod", &["--", "sleep", "600"]);
    let config = "[services.vod]\nmode = \"qos\"\nqos = { jitter = \"5s\" }\n";
    std::fs::write(state.path().join("bonsai.toml"), config).expect("written");
    let daemon = Daemon::start(&place, state.path());
    let said = watched("web");
    assert!(said.contains("is not told to the daemon"), "{said}");
    watched("vod");
    let view = daemon.until("a report", |view| view.last.is_some());
    let last = view.last.expect("a report");
    assert_eq!(
        (last.source.as_deref(), view.holds),
        (Some("watch"), Some(true))
    );
    assert!(
        last.jitter_ms.is_some() && last.delay_ms.is_some(),
        "{last:?}"
    );
}

/// A library whose `pread64` fails for a file from a byte on, as a disk does.
const DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t pread64(int fd, void *buffer, size_t count, long offset) {
    static ssize_t (*real)(int, void *, size_t, long);
    if (!real) real = (ssize_t (*)(int, void *, size_t, long))dlsym(RTLD_NEXT, "pread64");
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length > 7 && offset > 100000 && !memcmp(name + length - 7, "bad.mp4", 7)) {
        errno = EIO;
        return -1;
    }
    return real(fd, buffer, count, offset);
}
"#;

#[test]
fn a_disk_that_fails_ends_its_stream_and_no_other() {
    const TEST: &str = "a_disk_that_fails_ends_its_stream_and_no_other";
    let place = Place::bare();
    let folder = tempfile::tempdir().expect("a folder");
    if film(TEST, folder.path(), 6).is_none() {
        return;
    }
    let film = folder.path().join("film.mp4");
    // Its tables are read from where they are, before all the rest.
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-i"]).arg(&film);
    ffmpeg.args("-c copy -movflags +faststart".split(' '));
    let bad = ffmpeg.arg(folder.path().join("bad.mp4")).status();
    assert!(bad.expect("ffmpeg").success());
    let Some(library) = compiled(TEST, &place, DISK, ".disk.so", &["-shared", "-fPIC"]) else {
        return;
    };
    for engine in ["classic", "fast"] {
        let mut command = place.bonsai(&["serve"]);
        command.env("LD_PRELOAD", &library);
        let served = Served::start(command, folder.path(), &["--verbose", "--engine", engine]);
        let bad = served.url.replace("film.mp4", "bad.mp4");
        let (place, good) = (&place, &served.url);
        std::thread::scope(|scope| {
            let others = scope.spawn(move || watch(place, good, "2", &["--for", "30s"]));
            let said: Said =
                place.say(&["watch", &bad, "--for", "30s", "--patience", "30s", "--json"]);
            let value: Value = serde_json::from_str(&said.out).expect("JSON");
            let tracks = &value["outcome"]["viewers"][0]["tracks"];
            // A farewell ends it, long before it is over.
            for track in tracks.as_array().expect("tracks") {
                let media = number(&track["stream"]["media_ns"]);
                assert!(media < 3e9, "{engine}: {track:#}");
            }
            let line = served.wait_for("has seen bad.mp4");
            assert!(line.contains("Input/output error"), "{line}");
            for viewer in others.join().expect("they watch") {
                assert_eq!(viewer["failure"], Value::Null, "{viewer:#}");
                for track in viewer["tracks"].as_array().expect("tracks") {
                    assert_eq!(track["stream"]["lost"], 0, "{engine}: {track:#}");
                    assert!(
                        number(&track["stream"]["media_ns"]) > 5.8e9,
                        "{engine}: {track:#}"
                    );
                }
            }
        });
        served.end();
    }
}
