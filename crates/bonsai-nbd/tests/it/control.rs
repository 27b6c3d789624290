//! What a server tells of itself, and whoever asks without being kept.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bonsai_nbd::control::{Ask, ServerShares, ServerStatus, ask_all, listen, record_from};
use bonsai_nbd::sharing::survey;
use serde_json::Value;

use crate::client::Client;
use crate::house::House;

const SIZE: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
const LITTLE: Duration = Duration::from_millis(300);

fn socket(folder: &Path) -> PathBuf {
    folder.join(format!("{}.control", std::process::id()))
}

/// What comes for this question; the own side is ended where that is said.
fn said(folder: &Path, line: &[u8], ends: bool) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket(folder)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(line).unwrap();
    if ends {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    // A server that has not read all of a question resets.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Blocks of which each is a number, and like no other.
fn blocks(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let block = |number: u64| {
        let mut bytes = [1; 4096];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes
    };
    numbers.into_iter().flat_map(block).collect()
}

#[test]
fn who_says_nothing_asks_for_the_status_and_nonsense_is_refused() {
    let house = House::new(&["a", "b"], SIZE);
    let folder = tempfile::tempdir().unwrap();
    let control = listen(folder.path(), house.exports.clone()).unwrap();
    let folder = folder.path();
    let first = |text: Vec<u8>| {
        let value: Value = serde_json::from_slice(&text).unwrap();
        (
            value["exports"][1]["name"] == "b",
            value["groups"][0]["group"] == "g",
        )
    };
    assert_eq!(first(said(folder, b"", true)), (true, false));
    // As clients did that could ask for nothing else.
    assert_eq!(first(said(folder, b"", false)), (true, false));
    assert_eq!(
        first(said(folder, b"{\"ask\":\"status\"}\n", true)),
        (true, false)
    );
    assert_eq!(
        first(said(folder, b"{\"ask\":\"shares\"}\n", true)),
        (false, true)
    );
    for nonsense in [
        &b"{\"ask\":\"all\"}\n"[..],
        b"shares\n",
        b"\xff",
        &[b'x'; 9000],
    ] {
        let answer = String::from_utf8(said(folder, nonsense, true)).unwrap();
        assert!(answer.starts_with("{\"refused\":"), "{answer}");
        assert!(answer.len() < 200, "{answer}");
    }
    assert_eq!(first(said(folder, b"", true)), (true, false), "it goes on");
    drop(control);
    assert!(!socket(folder).exists());
}

#[test]
fn servers_that_hang_or_never_end_hold_up_nobody() {
    let house = House::new(&["a"], SIZE);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let control = listen(folder, house.exports.clone()).unwrap();
    // One accepts nobody, one answers without an end, one has died.
    let silent = UnixListener::bind(folder.join("1.control")).unwrap();
    let endless = UnixListener::bind(folder.join("2.control")).unwrap();
    drop(UnixListener::bind(folder.join("3.control")).unwrap());
    std::fs::write(folder.join("4.control"), "no socket").unwrap();
    std::os::unix::fs::symlink(socket(folder), folder.join("5.control")).unwrap();
    let drips = std::thread::spawn(move || {
        let (mut stream, _) = endless.accept().unwrap();
        while stream.write_all(b" ").is_ok() {
            std::thread::yield_now();
        }
    });
    let mut asked = ask_all::<ServerStatus>(folder, Ask::Status, LITTLE, |_| true).unwrap();
    let own = asked.pop().unwrap();
    assert_eq!(own.answer.unwrap().exports[0].name, "a");
    let others: Vec<_> = asked
        .iter()
        .map(|of| (of.pid, of.answer.is_some()))
        .collect();
    assert_eq!(others, [(1, false), (2, false)]);
    assert!(!folder.join("3.control").exists(), "what a dead one left");
    drips.join().unwrap();
    // A line that is full is not waited in.
    let mut waiting = Vec::new();
    loop {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let kind = rustix::net::SocketType::STREAM;
        let family = rustix::net::AddressFamily::UNIX;
        let one = rustix::net::socket_with(family, kind, flags, None).unwrap();
        let at = rustix::net::SocketAddrUnix::new(folder.join("1.control")).unwrap();
        if rustix::net::connect(&one, &at).is_err() {
            break;
        }
        waiting.push(one);
    }
    let asked = ask_all::<ServerStatus>(folder, Ask::Status, LITTLE, |_| true).unwrap();
    assert_eq!(asked.len(), 2, "the endless one has ended");
    assert!(asked[0].answer.is_none() && asked[1].answer.is_some());
    drop(silent);
    drop(control);
    assert!(
        ask_all::<ServerStatus>(&folder.join("none"), Ask::Status, LITTLE, |_| true)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn what_two_images_share_is_counted_and_nothing_across_groups() {
    let house = House::new(&["a", "b", "c"], SIZE);
    // a and b have 40 to 59 in common, b has 100 three times; c has what a has, once.
    let contents = [
        blocks((0..60).collect::<Vec<_>>()),
        blocks((40..80).chain([100, 100, 100])),
        blocks([5, 5, 300]),
    ];
    for (name, bytes) in ["a", "b", "c"].into_iter().zip(&contents) {
        assert_eq!(Client::new(&house.socket(), name).write(0, bytes, false), 0);
    }
    let known = || house.exports[0].member().unwrap().extent().known_blocks;
    let end = std::time::Instant::now() + PATIENCE;
    while known() < 60 + 43 + 3 {
        assert!(std::time::Instant::now() < end, "it learns");
        std::thread::yield_now();
    }
    let groups = survey(&house.exports);
    assert_eq!(groups.len(), 1);
    let of = &groups[0];
    assert_eq!(of.exports, ["a", "b", "c"]);
    assert_eq!(of.known_blocks, [60, 43, 3]);
    assert_eq!(of.contents, 80 + 1 + 1);
    assert_eq!(of.shared_blocks, [[0, 20, 1], [20, 3, 0], [2, 0, 2]]);
    assert_eq!(of.one_in, 1);
    // All of it was written a moment ago.
    let cache = of.cache.as_ref();
    match cache.filter(|cache| cache.resident_blocks == 106) {
        Some(cache) => {
            assert_eq!((cache.contents, cache.sampled, cache.one_in), (82, 82, 1));
            let factor = cache.dedup_factor.unwrap();
            assert!((factor - 106.0 / 82.0).abs() < 1e-9, "{factor}");
        }
        None => crate::house::skip(
            "what_two_images_share_is_counted_and_nothing_across_groups",
            &format!("the page cache has not kept what was written: {cache:?}"),
        ),
    }
    // The same contents in other groups are others.
    let apart = House::apart(&["a", "b"], SIZE);
    for name in ["a", "b"] {
        assert_eq!(
            Client::new(&apart.socket(), name).write(0, &contents[0], false),
            0
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let _control = listen(folder.path(), apart.exports.clone()).unwrap();
    let known = || apart.exports[0].member().unwrap().extent().known_blocks;
    while known() < 120 {
        assert!(std::time::Instant::now() < end, "it learns");
        std::thread::yield_now();
    }
    let asked = ask_all::<ServerShares>(folder.path(), Ask::Shares, PATIENCE, |_| true).unwrap();
    let shares = asked[0].answer.as_ref().unwrap();
    let seen = shares
        .groups
        .iter()
        .map(|of| (&*of.group, of.contents, &of.shared_blocks[..]));
    let none = [vec![0]];
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [("a", 60, &none[..]), ("b", 60, &none[..])]
    );
}

#[test]
fn a_survey_holds_up_no_writes_and_ends_while_they_go_on() {
    let house = House::new(&["a", "b"], SIZE);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let (house, stop) = (&house, &stop);
            scope.spawn(move || {
                let mut client = Client::new(&house.socket(), name);
                let mut turn = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    turn += 1;
                    let bytes = blocks((0..16).map(|block| (block * turn) % 97));
                    assert_eq!(client.write((turn % 64) * 65_536, &bytes, false), 0);
                }
            });
        }
        for _ in 0..200 {
            for of in survey(&house.exports) {
                let known: u64 = of.known_blocks.iter().sum();
                assert!(of.contents <= known, "{of:?}");
                for (row, known) in of.shared_blocks.iter().zip(&of.known_blocks) {
                    assert!(row.iter().all(|shared| shared <= known), "{of:?}");
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn recordings_have_a_number_and_a_question_an_end() {
    let names = ["a", "b", "c", "d", "e"];
    let house = House::new(&names, SIZE);
    let folder = tempfile::tempdir().unwrap();
    let _control = listen(folder.path(), house.exports.clone()).unwrap();
    let record = |name: &str| record_from(folder.path(), &[name.to_owned()]);
    let mut held: Vec<UnixStream> = names[..4].iter().map(|of| record(of).unwrap()).collect();
    let why = record("e").unwrap_err();
    assert!(why.contains("4 recordings"), "{why}");
    drop(held.pop());
    let end = Instant::now() + PATIENCE;
    while let Err(why) = record("e") {
        assert!(Instant::now() < end, "{why}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A byte now and then keeps nobody of the few who answer for long.
    let mut slow = UnixStream::connect(socket(folder.path())).unwrap();
    let start = Instant::now();
    while slow.write_all(b" ").is_ok() {
        assert!(start.elapsed() < PATIENCE, "it is still heard");
        std::thread::sleep(Duration::from_millis(50));
    }
}
