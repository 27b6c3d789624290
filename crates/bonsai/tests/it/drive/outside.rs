//! Other programs write to an image while it is served, in every way that there is: `BONSAI_NBD_OUTSIDE` is how often (40
//! times if nothing is said).
//!
//! Two images of one group have the same contents. A program writes to the second one, whose blocks lead the first one's. What
//! the clients of both read right after that must be what each image has, under load of clients that read and write other
//! blocks, and after the page cache was emptied.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::journal::{BLOCK, Dice};
use super::server::Drive;
use crate::nbd::{Client, FLUSH};
use crate::support::{PATIENCE, Place, skip};

const BLOCKS: u64 = 1024;
/// Blocks from here on are of the clients that make load.
const OTHERS: u64 = 768;

const WAYS: [&str; 10] = [
    "pwrite",
    "direct",
    "sync",
    "mapped",
    "aio",
    "aio_direct",
    "loop",
    "copied",
    "punch",
    "linked",
];

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

fn filled(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

fn status(place: &Place) -> Vec<serde_json::Value> {
    let status = place.json(&["drive", "status", "--json"]);
    let exports = status["servers"][0]["exports"].as_array();
    exports.expect("exports").clone()
}

/// Waits until the server has the leases of all images again, and knows them.
fn until_known(place: &Place) {
    let end = Instant::now() + PATIENCE;
    let is_known = |export: &serde_json::Value| {
        let sharing = &export["sharing"];
        sharing["unguarded"].is_null() && sharing["scan"]["phase"] == "done"
    };
    while !status(place).iter().all(is_known) {
        assert!(Instant::now() < end, "a lease does not come back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads and writes other blocks until it is told to stop; what was written is what is read.
fn work(client: &mut Client, seed: u64, stop: &AtomicBool) {
    let mut dice = Dice(seed);
    let mut number = 1 << 40;
    while !stop.load(Ordering::SeqCst) {
        let at = (OTHERS + dice.below(BLOCKS - OTHERS)) * BLOCK as u64;
        number += dice.below(3);
        assert_eq!(client.write(at, &filled(number), false), 0);
        assert_eq!(client.read(at, BLOCK), Ok(filled(number)));
        if dice.below(50) == 0 {
            assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
        }
    }
}

#[test]
fn no_client_reads_what_another_program_wrote_to_another_image() {
    let test = "no_client_reads_what_another_program_wrote_to_another_image";
    let writes = std::env::var("BONSAI_NBD_OUTSIDE").ok();
    let writes: u64 = writes.map_or(40, |text| text.parse().expect("a number of writes"));
    let place = Place::bare();
    let script = place.path().join("outside_writer.py");
    std::fs::write(&script, include_str!("outside_writer.py")).expect("written");
    let writer = Command::new("python3")
        .arg(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut writer) = writer else {
        return skip(test, "python3 is not installed");
    };
    let images = ["a.raw", "b.raw", "c.raw"].map(|name| {
        let path = place.path().join(name);
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| filled(block + 1)).collect();
        std::fs::write(&path, bytes).expect("an image");
        path.display().to_string()
    });
    let [a, b, c] = images.each_ref().map(String::as_str);
    let mut drive = Drive::start(&place, &["--group", "g", "--scan", a, b, c]);
    drive.wait_for("all images are scanned");
    let mut asked = writer.stdin.take().expect("its input");
    let mut answers = BufReader::new(writer.stdout.take().expect("its output"));
    let mut dice = Dice(3);
    let [mut first, mut second] = ["a", "b"].map(|name| Client::new(&drive.socket, name));
    let mut contents: Vec<Vec<u8>> = (0..BLOCKS).map(|block| filled(block + 1)).collect();
    let (stop, mut missing) = (AtomicBool::new(false), BTreeSet::new());
    std::thread::scope(|scope| {
        // Not of the first image: what is known of one that is written to is forgotten with each visit of a reader.
        let load: Vec<_> = [("b", 5), ("c", 6)]
            .into_iter()
            .map(|(name, seed)| {
                let mut client = Client::new(&drive.socket, name);
                let stop = &stop;
                scope.spawn(move || work(&mut client, seed, stop))
            })
            .collect();
        for number in 0..writes {
            let block = dice.below(OTHERS);
            let at = block * BLOCK as u64;
            drive.evict(a);
            until_known(&place);
            // The second image's block is in the page cache, and leads once it is learned; the first image's is not there.
            let own = second.read(at, BLOCK);
            assert!(own.as_ref() == Ok(&contents[index(block)]), "block {block}");
            std::thread::sleep(Duration::from_millis(10));
            assert!(
                first.read(at, BLOCK) == Ok(filled(block + 1)),
                "block {block}"
            );
            drive.evict(a);
            until_known(&place);
            let way = WAYS[index(number) % WAYS.len()];
            writeln!(asked, "{way} {b} {block} {}", number + (1 << 32)).expect("asked");
            let mut answer = String::new();
            answers.read_line(&mut answer).expect("an answer");
            match answer.trim_end().split_once(' ') {
                None => {
                    contents[index(block)] = match way {
                        "punch" => vec![0; BLOCK],
                        _ => filled(number + (1 << 32)),
                    };
                }
                Some((_, why)) => drop(missing.insert(format!("{way}: {why}"))),
            }
            for empty in [false, true, false] {
                if empty {
                    drive.evict(a);
                    drive.evict(b);
                }
                let own = second.read(at, BLOCK);
                assert!(
                    own.as_ref() == Ok(&contents[index(block)]),
                    "{way}: its own image"
                );
                assert!(
                    first.read(at, BLOCK) == Ok(filled(block + 1)),
                    "{way}: another image"
                );
            }
        }
        stop.store(true, Ordering::SeqCst);
        load.into_iter()
            .for_each(|thread| thread.join().expect("its work was right"));
    });
    drop(asked);
    assert!(writer.wait().expect("ended").success());
    let redirected = status(&place)
        .iter()
        .find(|export| export["name"] == "a")
        .and_then(|export| export["sharing"]["redirected_bytes"].as_u64());
    println!("{writes} writes, {redirected:?} bytes redirected");
    assert!(
        redirected > Some(0),
        "nothing was redirected, so that nothing was tried"
    );
    assert_eq!(drive.end("TERM").code, Some(0));
    // Nothing of it comes back from what was kept.
    let mut drive = Drive::start(&place, &["--group", "g", "--scan", a, b, c]);
    drive.wait_for("all images are scanned");
    drive.evict(a);
    let [mut first, mut second] = ["a", "b"].map(|name| Client::new(&drive.socket, name));
    for block in 0..OTHERS {
        let at = block * BLOCK as u64;
        assert!(first.read(at, BLOCK) == Ok(filled(block + 1)), "{block}");
        assert!(
            second.read(at, BLOCK).as_ref() == Ok(&contents[index(block)]),
            "{block}"
        );
    }
    for way in missing {
        skip(test, &way);
    }
}
