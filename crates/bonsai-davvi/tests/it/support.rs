//! Films to import, and what looks at the outcome.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bonsai_davvi::{Event, Import, Imported, Library, Name, read_events};
use tempfile::TempDir;

/// Says that a test cannot run here.
pub(crate) fn skip(test: &str, reason: &str) {
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

/// Whether there is such a program; otherwise the reason is in the log.
pub(crate) fn has(test: &str, program: &str) -> bool {
    let version = if program == "nginx" { "-v" } else { "-version" };
    let started = Command::new(program)
        .arg(version)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let is_there = started.is_ok_and(|status| status.success());
    if !is_there {
        skip(test, &format!("{program} is not installed"));
    }
    is_there
}

/// A folder for a test.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Runs a program, which must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A film of so many seconds with sound, drawn by ffmpeg.
pub(crate) fn film(folder: &Path, name: &str, seconds: &str) -> PathBuf {
    film_of(
        folder,
        name,
        seconds,
        "testsrc2=size=320x180:rate=25",
        &["-movflags", "+faststart"],
    )
}

/// The same with pictures as asked, and other words for ffmpeg.
pub(crate) fn film_of(
    folder: &Path,
    name: &str,
    seconds: &str,
    pictures: &str,
    words: &[&str],
) -> PathBuf {
    let path = folder.join(name);
    let file = path.to_str().expect("UTF-8");
    let sound = "sine=frequency=440:sample_rate=44100";
    let inputs = [
        "-v", "error", "-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", sound,
    ];
    let codecs = [
        "-t",
        seconds,
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-c:a",
        "aac",
    ];
    run("ffmpeg", &[&inputs[..], &codecs, words, &[file]].concat());
    path
}

/// What becomes of a file if nothing is asked for.
pub(crate) fn plain(file: &Path) -> Import {
    Import {
        file: file.to_owned(),
        name: None,
        title: None,
        events: Vec::new(),
        segment: Duration::from_secs(2),
        heights: Vec::new(),
        is_readable: false,
        patience: Duration::from_secs(60),
    }
}

/// Imports a file, which must succeed.
pub(crate) fn import(library: &Path, import: &Import) -> Imported {
    Library::import(library, import, &mut |_| {}).expect("imported")
}

/// Annotations from lines of CSV.
pub(crate) fn events(folder: &Path, lines: &[&str]) -> Vec<Event> {
    let path = folder.join("events.csv");
    std::fs::write(&path, lines.join("\n")).expect("written");
    read_events(&path).expect("annotations")
}

/// A name.
pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// What ffprobe says of the entries of a file, a line each, as `key=value|key=value`.
pub(crate) fn probed(file: &Path, more: &[&str]) -> Vec<String> {
    let path = file.to_str().expect("UTF-8");
    let output = run(
        "ffprobe",
        &[&["-v", "error", "-of", "compact=p=0"], more, &[path]].concat(),
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(str::to_owned)
        .filter(|line| !line.is_empty())
        .collect()
}

/// What ffmpeg shows of a playlist, by file or address: pictures, and microseconds of sound. It must not
/// complain of anything.
pub(crate) fn played(source: &str, video: &str) -> (u64, u64) {
    // Everything that is decoded, whatever its time: pictures of 256 bytes, samples of two.
    let small = [
        "-vsync",
        "drop",
        "-vf",
        "scale=16:16,format=gray",
        "-f",
        "rawvideo",
    ];
    let pictures = decoded(source, video, &small) / 256;
    let samples = decoded(source, "0:a:0", &["-ac", "1", "-f", "s16le"]) / 2;
    (pictures, samples * 1_000_000 / 48_000)
}

fn decoded(source: &str, map: &str, kind: &[&str]) -> u64 {
    // At the end ffmpeg asks for one segment more of any DASH, its own too, and says that it is not there.
    let is_dash = source.contains(".mpd");
    let strict: &[&str] = if is_dash { &[] } else { &["-xerror"] };
    let opened = ["-i", source, "-map", map];
    let output = run(
        "ffmpeg",
        &[&["-v", "error"], strict, &opened, kind, &["pipe:1"]].concat(),
    );
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let of_the_end = [
        "first fragment of playlist",
        "Last message repeated",
        "Invalid data found when",
        "404 Not Found",
    ];
    let is_of_the_end =
        |line: &&str| is_dash && of_the_end.iter().any(|words| line.contains(words));
    let complaints: Vec<&str> = complaints
        .lines()
        .filter(|line| !is_of_the_end(line))
        .collect();
    assert!(complaints.is_empty(), "{source}: {complaints:?}");
    output.stdout.len() as u64
}

/// Everything below a folder, without what is for the owner of the library.
pub(crate) fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(&next).expect("readable") {
            let path = entry.expect("an entry").path();
            if path.file_name().is_some_and(|name| name == ".private") {
                continue;
            }
            let below = path
                .strip_prefix(folder)
                .expect("below")
                .display()
                .to_string();
            if path.is_dir() {
                left.push(path);
            }
            found.push(below);
        }
    }
    found.sort();
    found
}
