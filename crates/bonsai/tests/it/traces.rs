//! `bonsai trace`: from a text to a twin, and what is said of bad input.

use std::io::Write;
use std::process::Stdio;

use crate::support::Place;

/// Three lines of FIU's format, on two devices.
const FIU: &str = "\
1000 7 nfsd 16 8 R 6 0 b5e9f4e5ab62a4fff5313a606b0ad4e3
2500 7 nfsd 24 8 W 6 0 57db00a2a67ca70d33789a784d37729d
4000 7 nfsd 800 8 R 6 16 b5e9f4e5ab62a4fff5313a606b0ad4e3
";

/// A file of a place, by its path.
fn file(place: &Place, name: &str) -> String {
    place.path().join(name).display().to_string()
}

/// A trace of [`FIU`].
fn imported(place: &Place) -> String {
    let (text, trace) = (file(place, "t.fiu"), file(place, "t.btr"));
    std::fs::write(&text, FIU).expect("written");
    let said = place.say(&["trace", "import", &text, "-o", &trace]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.err
            .starts_with("fiu: 3 requests in 3 lines, 2 volumes, 2 contents; "),
        "{said:?}"
    );
    trace
}

#[test]
fn what_is_imported_is_shown_described_and_exported() {
    let place = Place::bare();
    let trace = imported(&place);
    let said = place.say(&["trace", "head", &trace]);
    assert_eq!(
        said.out,
        "           time  volume  op     offset  length  contents
  0.000001000 s  6:0     read     8192    4096  b5e9f4e5ab62a4fff5313a606b0ad4e3
  0.000002500 s  6:0     write   12288    4096  57db00a2a67ca70d33789a784d37729d
  0.000004000 s  6:16    read   409600    4096  b5e9f4e5ab62a4fff5313a606b0ad4e3
"
    );
    let found = place.json(&["trace", "stat", "--json", &trace]);
    assert_eq!(found["counts"]["requests"], 3);
    assert_eq!(found["counts"]["accesses"][1], 1);
    assert_eq!(found["sharing"]["max"], 2);
    let page = file(&place, "t.html");
    let said = place.say(&["trace", "stat", &trace, "--html", &page]);
    assert!(
        said.out.contains("contents in 1 block 50.0 %, 2 50.0 %"),
        "{said:?}"
    );
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(
        page.matches("<svg").count() == 5 && !page.contains("src="),
        "{page}"
    );
    let out = |to: &str| {
        place
            .say(&["trace", "export", &trace, "--to", to, "-o", "-"])
            .out
    };
    assert_eq!(
        out("fio"),
        "fio version 3 iolog\n0 6:0 add\n0 6:0 open\n0 6:0 read 8192 4096\n1 6:0 write 12288 4096\n\
         3 6:16 add\n3 6:16 open\n3 6:16 read 409600 4096\n3 6:0 close\n3 6:16 close\n"
    );
    assert_eq!(out("fiu"), FIU.replace("7 nfsd", "0 -"));
    assert!(
        out("csv")
            .starts_with("time_ns,volume,offset,length,op,digest\n1000,6:0,8192,4096,read,b5e9")
    );
}

#[test]
fn packed_input_and_standard_input_are_read() {
    let place = Place::bare();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(FIU.as_bytes()).expect("packed");
    let inputs = [
        FIU.as_bytes().to_vec(),
        packed.finish().expect("packed"),
        zstd::encode_all(FIU.as_bytes(), 1).expect("packed"),
    ];
    for input in inputs {
        let mut child = place
            .bonsai(&["trace", "import", "-", "-o", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bonsai");
        let mut to = child.stdin.take().expect("a pipe");
        to.write_all(&input).expect("written");
        drop(to);
        let said = child.wait_with_output().expect("ended");
        assert!(said.status.success());
        assert_eq!(
            said.stdout,
            std::fs::read(imported(&place)).expect("a trace")
        );
    }
}

#[test]
fn twins_have_as_many_requests_as_asked_for() {
    let place = Place::bare();
    let trace = imported(&place);
    let (twin, image) = (file(&place, "twin.btr"), file(&place, "image"));
    let args = [
        "trace",
        "gen",
        "--like",
        &trace,
        "-n",
        "5",
        "-o",
        &twin,
        "--content",
        &image,
        "--json",
    ];
    let said = place.json(&args);
    assert_eq!(said["requests"], 5);
    // Two contents in the first turn, two in the second.
    assert_eq!(said["contents"], 4);
    let one = std::fs::read(format!("{image}.6_0")).expect("an image");
    let other = std::fs::read(format!("{image}.6_16")).expect("an image");
    // The same content at block 2 of one and at block 100 of the other.
    assert_eq!(one[2 * 4096..3 * 4096], other[100 * 4096..101 * 4096]);
    assert!(one[..2 * 4096].iter().all(|byte| *byte == 0));
}

#[test]
fn bad_traces_have_their_sentence_and_leave_nothing() {
    let place = Place::bare();
    let trace = imported(&place);
    let target = file(&place, "x.btr");
    let bad = file(&place, "bad");
    let whole = std::fs::read(&trace).expect("a trace");
    let refused = |args: &[&str], sentence: &str| {
        let said = place.say(args);
        assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{said:?}");
        assert!(said.err.contains(sentence), "{said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
    };
    std::fs::write(&bad, format!("{FIU}4100 7 nfsd 800 x R 6 0\n")).expect("written");
    refused(
        &["trace", "import", &bad, "-o", &target],
        "record 4 (byte 170): size \"x\" is no number; right would be a whole number",
    );
    std::fs::write(&bad, "hello\n").expect("written");
    refused(
        &["trace", "import", &bad, "-o", &target],
        "its format is not recognised",
    );
    refused(
        &["trace", "import", &trace, "-o", &target],
        "it is a .btr trace already",
    );
    refused(&["trace", "stat", &bad], "this is no trace");
    std::fs::write(&bad, &whole[..whole.len() - 5]).expect("written");
    refused(&["trace", "stat", &bad], "is cut off after record 3");
    let mut flipped = whole.clone();
    flipped[60] ^= 4;
    std::fs::write(&bad, flipped).expect("written");
    refused(
        &["trace", "gen", "--like", &bad, "-o", &target],
        "is damaged after record 0, at byte 16",
    );
    for (knob, value, why) in [
        ("--sharing", "2", "--sharing is a part"),
        ("--gaps", "1e9", "--gaps is a factor from 0 to 1000000"),
        ("--pace", "NaN", "--pace is a factor from 0 to 1000000"),
    ] {
        let words = ["trace", "gen", "--like", &trace, "-o", &target, knob, value];
        refused(&words, why);
    }
    let mut left: Vec<_> = std::fs::read_dir(place.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["bad", "t.btr", "t.fiu"]);
}
