//! `bonsai top`, in a terminal.

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::fixture::{RATE, Ring};
use crate::terminal::Terminal;

const ESCAPE: &str = "\u{1b}";

/// Control and `u`: empties a line.
const EMPTY: &str = "\u{15}";

fn top(ring: &Ring, args: &[&str]) -> Terminal {
    let args = [&["top", "--interval", "100ms"], args].concat();
    let top = Terminal::start(&ring.command(&args), 24, 80);
    top.shows("bonsai  ");
    assert!(!top.is_restored(), "it has the terminal for itself");
    top
}

fn quit(top: &mut Terminal) {
    top.press("q");
    assert_eq!(top.ended(), Some(0));
    top.until("the terminal is as before", |_| top.is_restored());
}

/// Bytes that a service reads in about a second are no more than a limit lets through.
fn is_held(ring: &Ring, name: &str, rate: u64) {
    // What was let through before the change is over.
    let start = std::time::Instant::now();
    let before = ring.bytes_read(name);
    std::thread::sleep(std::time::Duration::from_millis(1000));
    let moved = ring.bytes_read(name) - before;
    let time = start.elapsed().as_secs_f64() + 0.05;
    assert!(
        moved as f64 <= rate as f64 * time,
        "{moved} bytes in {time} s"
    );
    ring.until("it goes on", |ring| ring.bytes_read(name) > before);
}

#[test]
fn a_limit_that_is_typed_in_top_acts_on_the_service_at_once() {
    let ring = Ring::new("");
    let _vod = ring.reader("vod");
    let _web = ring.reader("web");
    let mut top = top(&ring, &[]);
    top.shows("2 services");
    // A service without a limit.
    top.press("/vod\re");
    top.shows("vod: ");
    top.press("read=fast\r");
    top.shows("\"fast\"");
    top.press(&format!("{EMPTY}read=4MB/s\r"));
    top.shows("vod: read unlimited -> 4 MB/s");
    is_held(&ring, "vod", 4_000_000);
    // A limit that is there: only its value.
    top.press("e");
    top.shows("vod: read=4MB/s");
    top.press("2MB/s\r");
    top.shows("vod: read 4 MB/s -> 2 MB/s");
    is_held(&ring, "vod", 2_000_000);
    // What is left with Escape is not done; nobody can undo.
    top.press("e9");
    top.shows("vod: 9");
    top.press(ESCAPE);
    top.shows("e change");
    top.press("u");
    top.shows("none runs (bonsai daemon)");
    let status: Value =
        serde_json::from_str(&ring.done(&["status", "vod", "--json"])).expect("JSON");
    assert_eq!(status["services"][0]["limits"][0]["setting"], "2MB/s");
    top.press("eoff\r");
    top.shows("vod: read 2 MB/s -> unlimited");
    quit(&mut top);
}

#[test]
fn changes_of_top_go_through_the_daemon() {
    let ring = Ring::started(&format!("[capacity]\nread = \"{RATE}B/s\"\n"));
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    let mut top = top(&ring, &["vod"]);
    top.shows("group daemon-pool read");
    top.press("e3MB/s\r");
    top.shows("vod.read.max: nothing -> 3MB/s");
    assert_eq!(ring.of("vod", "read")["max"], 3_000_000.0);
    is_held(&ring, "vod", 3_000_000);
    // The daemon's own words.
    top.press("eread.max=off read.min=25MB/s\r");
    top.shows("5 MB/s more than read has");
    assert_eq!(ring.of("vod", "read")["min"], 0.0);
    top.press(&format!("{EMPTY}max=off min=2MB/s weight=3\r"));
    top.shows("vod.read.min: nothing -> 2MB/s");
    let read = ring.of("vod", "read");
    assert_eq!((&read["min"], &read["weight"]), (&2e6.into(), &3.into()));
    top.press("u");
    top.shows("vod.read.min: 2MB/s -> nothing");
    assert_eq!(ring.of("vod", "read")["max"], 3_000_000.0);
    // What somebody else changes is not taken back here.
    ring.done(&["set", "vod", "read=4MB/s"]);
    top.press("u");
    top.shows("something else was changed since");
    assert_eq!(ring.of("vod", "read")["max"], 4_000_000.0);
    quit(&mut top);
}

#[test]
fn top_follows_its_terminal_and_gives_it_back() {
    let ring = Ring::new("");
    let _vod = ring.reader("vod");
    let mut one = top(&ring, &["--sort", "got", "--filter", "VO"]);
    one.shows("1 of 1 service, with VO");
    one.shows("s sort: got");
    for (lines, columns) in [(5, 20), (1, 1), (60, 200), (24, 80)] {
        one.resize(lines, columns);
        one.press("jk");
    }
    one.press("?");
    one.shows("take the last change back");
    one.press("x");
    one.shows("no limits");
    quit(&mut one);
    // Told to end, and interrupted as by a person.
    let mut told = top(&ring, &[]);
    kill_process(told.program(), Signal::TERM).expect("a signal");
    assert_eq!(told.ended(), Some(0));
    told.until("the terminal is as before", |_| told.is_restored());
    let mut interrupted = top(&ring, &[]);
    interrupted.press("e\u{3}");
    assert_eq!(interrupted.ended(), Some(0));
    interrupted.until("the terminal is as before", |_| interrupted.is_restored());
}
