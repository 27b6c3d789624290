//! Traces of other formats: every command that reads a trace takes them, or says what they are.

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::{Place, Said, skip};

const BLKPARSE: &str = "  8,0    3        1     0.009507758   697  D   W 223488 + 56 [kjournald]
  8,0    3        2     0.010507758   697  D   R 4096 + 8 [cat]
CPU3 (8,0):
 Reads Queued:           1,        4KiB\t Writes Queued:           1,       28KiB
Total (8,0):
 Reads Queued:           1,        4KiB\t Writes Queued:           1,       28KiB
";
const PERF: &str =
    "   blkid 28996 [039] 100.696645: block:block_rq_issue: 8,0 R 4096 () 2048 + 8 [blkid]\n";
const MSR: &str =
    "\u{feff}128166372003061629,h,0,Read,0,4096,100\n128166372003161629,h,0,Write,4096,4096,100\n";
const FIO: &str = "fio version 2 iolog\nx add\nx open\nx wait 1000 0\nx read 0 4096\nx wait 1500 0\nx read 4096 4096\nx close\n";
const ARC: &str = "1 2 0 1\n9 1 0 2\n1 2 0 3\n";
const CLOUD: &str =
    "version,time,op,size,lbn\n1,5633898,2a,4096,42932744\n1,5633899,28,4096,42932744\n";
const FIU: &str = "1000 7 nfsd 16 8 R 6 0 b5e9f4e5ab62a4fff5313a606b0ad4e3\n";

/// A file of a place, by its path.
fn file(place: &Place, name: &str, bytes: &[u8]) -> String {
    let path = place.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    path.display().to_string()
}

fn packed(text: &str) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).expect("packed");
    packed.finish().expect("packed")
}

/// Samples of formats, with their names.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let mut oracle = Vec::new();
    for (time, object, next) in [(1_u32, 7_u64, 3_i64), (1, 9, -1), (2, 7, -1)] {
        oracle.extend(time.to_le_bytes());
        oracle.extend(object.to_le_bytes());
        oracle.extend(4096_u32.to_le_bytes());
        oracle.extend(next.to_le_bytes());
    }
    let mut vscsi = Vec::new();
    for (serial, command, block) in [(1_u32, 0x2a_u16, 8_u64), (2, 0x28, 8)] {
        vscsi.extend(serial.to_le_bytes());
        vscsi.extend(4096_u32.to_le_bytes());
        vscsi.extend(1_u32.to_le_bytes());
        vscsi.extend(command.to_le_bytes());
        vscsi.extend(256_u16.to_le_bytes());
        vscsi.extend(block.to_le_bytes());
        vscsi.extend(5_000_u64.to_le_bytes());
    }
    vec![
        ("blkparse", BLKPARSE.into()),
        ("tracefs", PERF.into()),
        ("msr", MSR.into()),
        ("fio", FIO.into()),
        ("arc", ARC.into()),
        ("csv", CLOUD.into()),
        ("fiu", packed(FIU)),
        ("vscsi", vscsi),
        ("oracleGeneral", oracle),
    ]
}

/// Runs `bonsai` with temporary files of its own.
fn say(place: &Place, args: &[&str]) -> Said {
    let folder = place.path().join("tmp");
    std::fs::create_dir_all(&folder).expect("a folder");
    let done = place.bonsai(args).env("TMPDIR", &folder).output();
    let left = std::fs::read_dir(&folder).expect("a folder").count();
    assert_eq!(left, 0, "temporary files of {args:?} are left");
    done.expect("bonsai").into()
}

#[test]
fn every_reader_of_traces_takes_every_format() {
    let place = Place::bare();
    let target = place.path().join("twin.btr").display().to_string();
    for (format, bytes) in samples() {
        let name = format!("t.{format}");
        let path = file(&place, &name, &bytes);
        let btr = place.path().join("t.btr").display().to_string();
        let said = say(&place, &["trace", "import", &path, "-o", &btr]);
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.err.starts_with(&format!("{format}: ")), "{said:?}");
        let readers: [&[&str]; 9] = [
            &["trace", "head", "TRACE"],
            &["trace", "stat", "TRACE", "--json"],
            &["trace", "export", "TRACE", "--to", "csv", "-o", "-"],
            &["trace", "gen", "--like", "TRACE", "-o", "-"],
            &["trace", "gen", "--like", "TRACE", "-n", "20", "-o", &target],
            &[
                "sim", "run", "TRACE", "--cache", "32MiB", "--scheme", "plain",
            ],
            &["sim", "curve", "TRACE", "--scheme", "plain"],
            &["sim", "table", "TRACE", "--cache", "1MiB"],
            &[
                "sim",
                "run",
                "TRACE+TRACE",
                "--cache",
                "1MiB",
                "--scheme",
                "plain",
            ],
        ];
        for reader in readers {
            let with = |trace: &str| -> Vec<String> {
                reader
                    .iter()
                    .map(|word| word.replace("TRACE", trace))
                    .collect()
            };
            let words = |args: &[String]| {
                args.iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let (args, own) = (with(&path), with(&btr));
            let said = say(&place, &args.iter().map(String::as_str).collect::<Vec<_>>());
            let expected = say(&place, &own.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(said.code, Some(0), "{}: {said:?}", words(&args));
            assert_eq!(expected.code, Some(0), "{}: {expected:?}", words(&own));
            assert_eq!(
                said.out,
                expected.out.replace("t.btr", &name),
                "{}",
                words(&args)
            );
            let note = format!("bonsai: {path}: imported as {format}");
            assert_eq!(
                said.err.matches(&note).count(),
                1,
                "it is imported once: {said:?}"
            );
            assert!(
                said.err
                    .contains(&format!("bonsai trace import {path} -o t.btr keeps it")),
                "{said:?}"
            );
        }
        // From a pipe.
        let mut child = place
            .bonsai(&["trace", "head", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bonsai");
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(&bytes)
            .expect("written");
        let said: Said = child.wait_with_output().expect("ended").into();
        assert_eq!(said.out, say(&place, &["trace", "head", &btr]).out);
        assert!(
            said.err
                .starts_with(&format!("bonsai: -: imported as {format}")),
            "{said:?}"
        );
    }
}

#[test]
fn a_trace_of_another_format_is_replayed() {
    const TEST: &str = "imports::a_trace_of_another_format_is_replayed";
    if Command::new("nbdkit").arg("--version").output().is_err() {
        return skip(TEST, "nbdkit is not installed");
    }
    let place = Place::bare();
    let path = file(&place, "t.lis", ARC.as_bytes());
    let socket = place.path().join("nbd.sock");
    let mut server = Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&socket)
        .args(["memory", "1M"])
        .stdin(Stdio::null())
        .spawn()
        .expect("nbdkit");
    let end = std::time::Instant::now() + crate::support::PATIENCE;
    while !socket.exists() && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let said = say(&place, &["trace", "replay", &path, "--to", &uri, "--json"]);
    let _ = server.kill();
    let _ = server.wait();
    assert_eq!(said.code, Some(0), "{said:?}");
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(json["requests"]["read"], 3, "{json}");
    assert_eq!(said.err.matches("imported as arc").count(), 1, "{said:?}");
}

#[test]
fn what_cannot_be_imported_has_the_whole_command() {
    let place = Place::bare();
    let refused = |path: &str, words: &[&str]| {
        for args in [
            &["trace", "stat", path][..],
            &["sim", "run", path, "--cache", "1MiB"],
            &["trace", "gen", "--like", path, "-o", "-"],
        ] {
            let said = say(&place, args);
            assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
            assert_eq!(said.err.lines().count(), 1, "{said:?}");
            for words in words {
                assert!(said.err.contains(words), "{words}: {said:?}");
            }
        }
    };
    let ids = file(&place, "ids.txt", b"7\n8\n7\n");
    refused(
        &ids,
        &[
            "it is a list of numbers",
            &format!("bonsai trace import {ids} --columns offset=1:block -o ids.btr"),
        ],
    );
    let rows = file(&place, "a b.csv.gz", &packed("t,lba,n,op\n1,8,8,R\n"));
    refused(
        &rows,
        &[
            "4 values a line (comma between them)",
            &format!(
                "bonsai trace import '{rows}' --columns time=1:s,offset=2:sector,length=3,op=4 -o 'a b.btr'"
            ),
        ],
    );
    let hello = file(&place, "hello", b"hello\n");
    refused(&hello, &["this is no trace", "begins with \"hello\""]);
    let bad = file(&place, "bad.lis", format!("{ARC}1 x 0 1\n").as_bytes());
    refused(
        &bad,
        &[
            "record 4 (byte 24): count \"x\"",
            &format!("bonsai trace import {bad} -o bad.btr has options for it"),
        ],
    );
    let queued = file(&place, "q.txt", b"8,0 0 1 0.5 1 Q R 0 + 8 [a]\n");
    refused(&queued, &["no event D, but there are of Q"]);
    let cut = file(&place, "cut.btr", b"\x89BTR\r");
    refused(
        &cut,
        &["a .btr trace that is cut off within its first 16 bytes"],
    );
    let escape = file(&place, "escape", b"\x1b[31mred\x07\n");
    refused(&escape, &["begins with \"\\u{1b}[31mred\\u{7}\""]);
    let zst = [
        zstd::encode_all(ARC.as_bytes(), 1).expect("packed"),
        b"garbage".to_vec(),
    ]
    .concat();
    let gz = packed(ARC);
    for (name, bytes) in [("a.zst", &zst[..]), ("b.gz", &gz[..gz.len() - 6])] {
        let path = file(&place, name, bytes);
        refused(
            &path,
            &["the compressed data is damaged, cut off, or followed by other data"],
        );
    }
}

#[test]
fn compressed_files_of_several_members_are_read_whole() {
    let place = Place::bare();
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2][..]].concat();
    let zst = zstd::encode_all(BLKPARSE.as_bytes(), 1).expect("packed");
    for bytes in [
        [packed(BLKPARSE), packed(BLKPARSE)].concat(),
        [zst.clone(), zst.clone()].concat(),
        [skippable, zst.clone(), zst].concat(),
        [BLKPARSE, BLKPARSE].concat().into_bytes(),
    ] {
        let path = file(&place, "two", &bytes);
        let said = say(&place, &["trace", "import", &path, "-o", "-", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&said.err).expect("JSON");
        assert_eq!(json["imported"]["requests"], 4, "{json}");
        assert_eq!(
            json["imported"]["skipped"],
            serde_json::json!({"summary": 8})
        );
    }
}

#[test]
fn what_was_guessed_and_skipped_is_said() {
    let place = Place::bare();
    let target = place.path().join("t.btr").display().to_string();
    let import = |name: &str, text: &str, args: &[&str]| {
        let path = file(&place, name, text.as_bytes());
        let mut all = vec!["trace", "import", &path, "-o", &target];
        all.extend(args);
        say(&place, &all)
    };
    let said = import("two.txt", &[BLKPARSE, BLKPARSE].concat(), &[]);
    assert_eq!(
        said.err.split_once('\n').map(|(_, rest)| rest),
        Some(
            "  8 lines are no requests: 8 lines of summaries
  1 more file of this format begins in the middle
  1 request is older than the one before it\n"
        )
    );
    let columns = [
        "--columns",
        "time=1:us,offset=2:sector,length=3:sector,op=4",
    ];
    let said = import(
        "a.csv",
        "Arrival Time (us),Start LBA (sectors),Size,Op\n1,8,8,R\n",
        &columns,
    );
    assert!(
        said.err.contains("  between values: comma\n  taken for a heading: \"Arrival Time (us),Start LBA (sectors),Size,Op\"\n"),
        "{said:?}"
    );
    let said = import(
        "b.csv",
        "1/8/8/R\n",
        &[&columns[..], &["--delimiter", "/"]].concat(),
    );
    assert!(said.err.starts_with("csv: 1 request"), "{said:?}");
    for (args, words) in [
        (
            &["--delimiter", "xx", "--columns", "offset=1"][..],
            "is no delimiter: write one character",
        ),
        (&["--delimiter", ","], "--delimiter is for CSV"),
        (&["--columns", "offset=1,offset=2"], "it is named twice"),
        (
            &["--objects", "sector", "--format", "arc"],
            "--objects is for oracleGeneral",
        ),
    ] {
        let said = import("c.csv", "1,2\n", args);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(words), "{said:?}");
    }
    let said = import("d.csv", "lba\n", &["--columns", "offset=1"]);
    assert!(
        said.err.contains("  there is no request in it\n"),
        "{said:?}"
    );
}
