//! Outputs, generated traces and their images, and what is exported is imported again.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_trace::{Digest, Op, Reader, Request, Volume, Writer};
use serde_json::Value;

use crate::support::{PATIENCE, Place, Said, skip};

pub(crate) fn file(place: &Place, name: &str) -> String {
    place.path().join(name).display().to_string()
}

/// A trace of a text.
fn imported(place: &Place, name: &str, text: &str, args: &[&str]) -> String {
    let (from, to) = (
        file(place, &format!("{name}.txt")),
        file(place, &format!("{name}.btr")),
    );
    fs::write(&from, text).expect("written");
    let said = place.say(&[&["trace", "import", &from, "-o", &to], args].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    to
}

/// Two requests of MSR's format.
pub(crate) fn small(place: &Place) -> String {
    let text =
        "128166372003061629,h,0,Read,0,4096,100\n128166372003161629,h,0,Write,4096,4096,100\n";
    imported(place, "small", text, &[])
}

fn ok(said: &Said) {
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_full_device_behind_standard_output_is_said() {
    let place = Place::bare();
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["doctor", "--json"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let output = place.bonsai(args).stdout(full.expect("/dev/full")).output();
        let said = Said::from(output.expect("bonsai"));
        let sentence = "bonsai: standard output cannot be written: No space left on device";
        assert_eq!(said.code, Some(1), "{args:?}: {said:?}");
        assert!(said.err.starts_with(sentence), "{args:?}: {said:?}");
        assert_eq!(said.err.lines().count(), 1, "{args:?}: {said:?}");
    }
}

/// Every command that writes a file follows links, and leaves device nodes where they are.
#[test]
fn no_output_replaces_a_link_or_a_device() {
    let place = Place::bare();
    let trace = small(&place);
    let test = "outputs::no_output_replaces_a_link_or_a_device";
    let full = file(&place, "full");
    let made = Command::new("mknod").args([&full, "c", "1", "7"]).output();
    let has_node = made.is_ok_and(|made| made.status.success())
        && fs::OpenOptions::new().write(true).open(&full).is_ok();
    if !has_node {
        skip(test, "device nodes can be made by root alone");
    }
    let (target, link) = (file(&place, "target"), file(&place, "link"));
    symlink("target", &link).expect("a link");
    let import = file(&place, "small.txt");
    let page = file(&place, "page.btr");
    let commands: [(&[&str], &str); 8] = [
        (&["trace", "import", &import], "-o"),
        (&["trace", "export", &trace, "--to", "csv"], "-o"),
        (&["trace", "gen", "--like", &trace], "-o"),
        (
            &["trace", "gen", "--like", &trace, "-o", &page],
            "--content",
        ),
        (&["trace", "stat", &trace], "--html"),
        (
            &[
                "sim", "run", &trace, "--cache", "64KiB", "--scheme", "plain",
            ],
            "--html",
        ),
        (&["sim", "curve", &trace, "--scheme", "plain"], "--figure"),
        (&["sim", "table", &trace, "--cache", "64KiB"], "--figure"),
    ];
    for (args, option) in commands {
        fs::write(&target, "old").expect("written");
        ok(&place.say(&[args, &[option, &link]].concat()));
        assert!(
            fs::symlink_metadata(&link).expect("a link").is_symlink(),
            "{args:?}"
        );
        assert_ne!(fs::read(&target).expect("a file"), b"old", "{args:?}");
        if !has_node {
            continue;
        }
        let said = place.say(&[args, &[option, &full]].concat());
        let there = fs::symlink_metadata(&full).expect("a node").file_type();
        assert!(there.is_char_device(), "{args:?}");
        if option == "--content" {
            assert_eq!(said.code, Some(2), "{said:?}");
            assert!(said.err.contains("no regular file"), "{said:?}");
        } else {
            assert_eq!(said.code, Some(1), "{said:?}");
            assert!(said.err.contains("No space left on device"), "{said:?}");
        }
    }
    let said = place.say(&["trace", "import", &import, "-o", "/dev/stdout"]);
    ok(&said);
    assert!(!said.out.is_empty(), "{said:?}");
    let stays = fs::symlink_metadata("/dev/stdout").expect("a link");
    assert!(stays.is_symlink());
    let left = fs::read_dir(place.path()).expect("a folder");
    let left = left.map(|entry| entry.expect("an entry").file_name());
    assert!(
        !left
            .into_iter()
            .any(|name| name.to_string_lossy().starts_with(".bonsai"))
    );
}

/// Runs a command that may take 512 MiB and 20 s.
fn bounded(place: &Place, args: &[&str]) -> Said {
    let start = Instant::now();
    let mut command = Command::new("prlimit");
    let bonsai = place.bonsai(args);
    command
        .arg("--as=536870912")
        .arg(bonsai.get_program())
        .args(args)
        .env("BONSAI_RUNTIME_DIR", place.path());
    let said: Said = command.output().expect("prlimit").into();
    assert!(start.elapsed() < Duration::from_secs(20), "{args:?}");
    said
}

#[test]
fn a_trim_of_any_length_costs_what_a_request_does() {
    let place = Place::bare();
    if Command::new("prlimit").arg("--version").output().is_err() {
        skip(
            "outputs::a_trim_of_any_length_costs_what_a_request_does",
            "prlimit is not installed",
        );
        return;
    }
    let text = "fio version 3 iolog\n0 /dev/x add\n1000 /dev/x read 0 4096\n3000 /dev/x trim 0 1099511627776\n\
                4000 /dev/x write 1099511627776 4096\n5000 /dev/x read 8192 4096\n";
    let trace = imported(&place, "trim", text, &["--format", "fio"]);
    let twin = file(&place, "twin.btr");
    let image = file(&place, "image");
    for knobs in [
        &[][..],
        &["--gaps", "2"],
        &["--gaps", "0.5"],
        &["--together", "200"],
        &["--reuse", "0.5"],
        &["--content", &image],
    ] {
        ok(&bounded(
            &place,
            &[
                &["trace", "gen", "--like", &trace, "-o", &twin, "-n", "3000"],
                knobs,
            ]
            .concat(),
        ));
    }
    for args in [
        &["trace", "stat", &twin][..],
        &["sim", "run", &twin, "--cache", "1MiB"],
        &["sim", "curve", &twin],
        &["trace", "export", &twin, "--to", "fio", "-o", &image],
    ] {
        ok(&bounded(&place, args));
    }
}

/// Random requests anywhere on a device of 2^61 bytes: memory is that of the requests.
#[test]
fn places_and_lengths_of_requests_cost_no_memory() {
    let test = "outputs::places_and_lengths_of_requests_cost_no_memory";
    if Command::new("prlimit").arg("--version").output().is_err() {
        return skip(test, "prlimit is not installed");
    }
    let place = Place::bare();
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 20) % below
    };
    for round in 0..12 {
        let path = file(&place, "far.btr");
        let mut writer = Writer::new(fs::File::create(&path).expect("a file")).expect("begun");
        for name in ["a", "b"] {
            let (name, bytes) = (name.to_owned(), None);
            writer
                .add_volume(&Volume { name, bytes })
                .expect("a volume");
        }
        for n in 0..200 {
            let op = Op::ALL[usize::try_from(next(4)).expect("small")];
            let length = match op {
                Op::Trim => 1 + next(1 << 30),
                Op::Flush => 0,
                Op::Read | Op::Write => 512 * (1 + next(64)),
            };
            let request = Request {
                time_ns: n * next(1 << 40),
                volume: u32::try_from(next(2)).expect("small"),
                offset: next(1 << (12 + 4 * round)) & !511,
                length: u32::try_from(length).expect("small"),
                op,
                contents: &[],
            };
            writer.push(&request).expect("written");
        }
        writer.finish().expect("finished");
        let twin = file(&place, "twin.btr");
        for knobs in [
            &[][..],
            &["--gaps", "3"],
            &["--longest-run", "4"],
            &["--reuse", "0.1"],
        ] {
            let said = bounded(
                &place,
                &[&["trace", "gen", "--like", &path, "-o", &twin], knobs].concat(),
            );
            assert!(
                matches!(said.code, Some(0 | 2)),
                "{round} {knobs:?}: {said:?}"
            );
            assert!(
                round > 6 || said.code == Some(0),
                "{round} {knobs:?}: {said:?}"
            );
        }
        for args in [
            &["trace", "stat", &path][..],
            &["sim", "run", &path, "--cache", "1MiB"],
        ] {
            ok(&bounded(&place, args));
        }
    }
}

#[test]
fn images_are_as_long_as_their_volumes_and_none_is_missing() {
    let place = Place::bare();
    let trace = file(&place, "two.btr");
    let mut writer = Writer::new(fs::File::create(&trace).expect("a file")).expect("begun");
    for name in ["a b", "a_b", "trimmed", "flushed"] {
        let (name, bytes) = (name.to_owned(), None);
        writer
            .add_volume(&Volume { name, bytes })
            .expect("a volume");
    }
    let content = writer.add_content(Digest([9; 16])).expect("a content");
    for (volume, offset, length, op) in [
        (0, 0, 4096, Op::Write),
        (0, 1_099_511_623_680, 4096, Op::Write),
        (1, 0, 4096, Op::Read),
        (2, 8192, 4096, Op::Trim),
        (3, 0, 0, Op::Flush),
    ] {
        let contents: &[u32] = match op {
            Op::Read | Op::Write => &[content],
            Op::Trim | Op::Flush => &[],
        };
        let time_ns = 0;
        let request = Request {
            time_ns,
            volume,
            offset,
            length,
            op,
            contents,
        };
        writer.push(&request).expect("written");
    }
    writer.finish().expect("finished");
    let (twin, image) = (file(&place, "twin.btr"), file(&place, "disk"));
    // A longer one is replaced.
    fs::write(format!("{image}.a_b-2"), vec![7; 1 << 20]).expect("written");
    let args = [
        "trace",
        "gen",
        "--like",
        &trace,
        "--shuffle",
        "1",
        "-o",
        &twin,
        "--content",
        &image,
    ];
    let said = place.say(&args);
    ok(&said);
    for (name, bytes) in [
        ("a_b", 1_099_511_627_776),
        ("a_b-2", 4096),
        ("trimmed", 12_288),
        ("flushed", 4096),
    ] {
        let path = format!("{image}.{name}");
        let there = fs::metadata(&path).expect("an image");
        assert_eq!(there.len(), bytes, "{name}");
        assert!(there.blocks() < 64, "{name} is sparse");
        assert!(
            said.err.contains(&format!("{path}: {bytes} bytes")),
            "{said:?}"
        );
    }
    let read = fs::read(format!("{image}.a_b-2")).expect("an image");
    assert!(read.iter().any(|byte| *byte != 0 && *byte != 7));
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(place: &Place, images: &[String], socket: &str) -> Server {
    let _ = fs::remove_file(socket);
    let mut command = place.bonsai(&["drive", "serve", "--socket", socket]);
    let command = command.args(images).stderr(Stdio::null());
    let server = Server(command.stdout(Stdio::null()).spawn().expect("bonsai"));
    let end = Instant::now() + PATIENCE;
    while UnixStream::connect(socket).is_err() {
        assert!(Instant::now() < end, "the server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    server
}

fn samples() -> PathBuf {
    let data = std::env::var_os("BONSAI_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    data.join("traces/fiu-samples")
}

/// The recipe of docs/17: import, gen with images, serve, replay; with FIU's own traces.
#[test]
fn traces_of_fiu_are_replayed_as_the_guide_says() {
    let test = "outputs::traces_of_fiu_are_replayed_as_the_guide_says";
    let place = Place::bare();
    for name in [
        "lightdedup-web-vm-sample.blkparse",
        "lightdedup-homes-sample.1.blkparse",
        "lightdedup-mail-01-sample.blkparse",
    ] {
        let from = samples().join(name);
        if !Path::new(&from).exists() {
            return skip(test, "FIU's samples are not here: set BONSAI_DATA");
        }
        let [trace, twin, image] =
            ["t.btr", "twin.btr", "images/disk"].map(|name| file(&place, name));
        // The runtime folder has a folder for each export.
        fs::create_dir_all(place.path().join("images")).expect("a folder");
        let from = from.display().to_string();
        ok(&place.say(&["trace", "import", &from, "-o", &trace]));
        let args = [
            "trace",
            "gen",
            "--like",
            &trace,
            "--shuffle",
            "1",
            "-o",
            &twin,
            "--content",
            &image,
        ];
        let made = place.json(&[&args[..], &["--json"]].concat());
        let made = made["images"].as_array().expect("images");
        let path = |of: &Value| of["path"].as_str().expect("a path").to_owned();
        let images: Vec<String> = made.iter().map(path).collect();
        assert!(!images.is_empty(), "{name}");
        let socket = file(&place, "s.sock");
        let _server = serve(&place, &images, &socket);
        let export = if images.len() > 1 {
            "disk.{device}"
        } else {
            "disk"
        };
        let to = format!("nbd+unix:///{export}?socket={socket}");
        let said = place.say(&[
            "trace", "replay", &twin, "--to", &to, "--speed", "max", "--check",
        ]);
        assert_eq!(said.code, Some(0), "{name}: {said:?}");
    }
}

/// Requests of a trace, with names of volumes.
fn requests(path: &str) -> Vec<(String, u64, u32, Op)> {
    let mut reader = Reader::new(fs::File::open(path).expect("a trace")).expect("a trace");
    let mut found = Vec::new();
    reader
        .for_each(|of| {
            found.push((of.volume, of.offset, of.length, of.op));
            Ok::<(), bonsai_trace::Error>(())
        })
        .expect("read");
    let name = |volume: u32| reader.volumes()[volume as usize].name.clone();
    let named = found.into_iter();
    named
        .map(|(volume, offset, length, op)| (name(volume), offset, length, op))
        .collect()
}

/// Names with every character up to U+00FF and some beyond: those that all formats can hold are of one trace, as a process
/// costs more than its work; and names of which some format can hold none, or which look like another's.
fn names() -> Vec<Vec<String>> {
    let characters = ('!'..='\u{ff}').chain(['\u{2665}', '\u{1f333}']);
    let plain = characters.filter(|c| !c.is_control() && !c.is_whitespace());
    let plain = plain.flat_map(|c| [format!("a{c}b"), format!("{c}b"), format!("a{c}")]);
    let mut all = vec![plain.collect()];
    let odd = "\0\t\n\r \u{b}\u{1b}\u{7f}\u{85}\u{a0}\u{2028}\u{3000}\u{feff}";
    all.extend(odd.chars().map(|c| vec![format!("a{c}b")]));
    for set in [
        &["0:0", "x", "0:1"][..],
        &["x", "0:0", "06:0", "6:0"],
        &["", "csv"],
        &[" x"],
        &[
            "Web Content@6:0",
            "\"q\"\"",
            "a,b",
            "a;b",
            "a\tb",
            "add",
            "version",
        ],
    ] {
        all.push(set.iter().map(|name| (*name).to_owned()).collect());
    }
    all
}

/// A trace that reads and writes each of the volumes.
fn named(path: &str, names: &[String]) {
    let mut writer = Writer::new(fs::File::create(path).expect("a file")).expect("begun");
    for name in names {
        let (name, bytes) = (name.clone(), None);
        writer
            .add_volume(&Volume { name, bytes })
            .expect("a volume");
    }
    for volume in (0..).take(names.len()) {
        for (n, op) in (1..).zip([Op::Read, Op::Write]) {
            let request = Request {
                time_ns: n * 1_000_000,
                volume,
                offset: 8192 * n,
                length: 4096,
                op,
                contents: &[],
            };
            writer.push(&request).expect("written");
        }
    }
    writer.finish().expect("finished");
}

#[test]
fn what_is_exported_is_imported_again() {
    let place = Place::bare();
    let [trace, text, back] = ["t.btr", "t.out", "back.btr"].map(|name| file(&place, name));
    let (mut taken, mut refused) = (0, 0);
    for set in names() {
        named(&trace, &set);
        let wanted = requests(&trace);
        let csv = "time=time_ns:ns,volume=volume,offset=offset,length=length,op=op,digest=digest";
        for (to, args) in [
            ("fio", &["--format", "fio"][..]),
            ("csv", &["--columns", csv]),
            ("fiu", &["--format", "fiu"]),
        ] {
            let said = place.say(&["trace", "export", &trace, "--to", to, "-o", &text]);
            if said.code == Some(2) {
                assert_eq!(said.err.lines().count(), 1, "{set:?} {to}: {said:?}");
                refused += 1;
                continue;
            }
            ok(&said);
            let said = place.say(&[&["trace", "import", &text, "-o", &back], args].concat());
            assert_eq!(said.code, Some(0), "{set:?} {to}: {said:?}");
            let found = requests(&back);
            taken += set.len();
            if to != "fiu" {
                assert_eq!(found, wanted, "{to}");
                continue;
            }
            // Names become numbers, and different ones stay different.
            let places = |all: &[(String, u64, u32, Op)]| {
                let plain = all
                    .iter()
                    .map(|(_, offset, length, op)| (*offset, *length, *op));
                plain.collect::<Vec<_>>()
            };
            assert_eq!(places(&found), places(&wanted), "{set:?}");
            let mut names: Vec<&String> = found.iter().map(|(name, ..)| name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), set.len(), "{set:?}");
        }
    }
    assert!(
        taken > 1_500 && refused > 20,
        "{taken} taken, {refused} refused"
    );
}

#[test]
fn names_from_files_are_escaped_for_the_terminal() {
    let place = Place::bare();
    let trace = imported(
        &place,
        "esc",
        "a;\u{1b}[31mred,0,4096\n",
        &["--columns", "volume=1,offset=2,length=3"],
    );
    let odd = file(&place, "odd\nname\u{1b}[2J.btr");
    fs::copy(&trace, &odd).expect("copied");
    let image = file(&place, "image");
    let twin = file(&place, "twin.btr");
    for args in [
        &["trace", "head", &odd][..],
        &["trace", "stat", &odd],
        &["sim", "run", &odd, "--cache", "64KiB"],
        &["sim", "curve", &odd],
        &["sim", "table", &odd, "--cache", "64KiB"],
        &[
            "trace",
            "gen",
            "--like",
            &odd,
            "-o",
            &twin,
            "--content",
            &image,
        ],
        &["trace", "export", &odd, "--to", "fiu", "-o", "-"],
        &["trace", "export", &odd, "--to", "fio", "-o", "-"],
        &["trace", "replay", &odd, "--to", "x=nbd://localhost/y"],
        &["trace", "import", &odd, "-o", &twin],
    ] {
        let said = place.say(args);
        for text in [&said.out, &said.err] {
            assert!(!text.contains('\u{1b}'), "{args:?}: {said:?}");
        }
        assert!(
            said.err.lines().all(|line| !line.starts_with("name")),
            "{args:?}: {said:?}"
        );
    }
    let found: Value = place.json(&["trace", "stat", "--json", &trace]);
    assert_eq!(found["volumes"][0]["name"], "a;\u{1b}[31mred");
}
