//! Servers that are killed under load, again and again.
//!
//! What the protocol promises of a write after which a flush was answered, or that had FUA, is that it is there; of one that
//! was not, that a block of 4 KiB is as before or as after. So for each block there is a set of contents that it may have: what it
//! had at the last flush, and what was written since. After each kill the server is started anew, and each block is read.
//! Half of what is written is one of a few contents, so that reads of one image go to the other; the rest
//! is told apart by block and number, so that nothing old passes for new.
//! `BONSAI_NBD_KILLS` is how often (12 times if nothing is said).

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::server::{Drive, image};
use crate::nbd::{Client, FLUSH};
use crate::support::Place;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 128;

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % most
    }
}

/// What fills a block: a number, and what follows from it. 0 is zeroes.
fn content(number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; BLOCK];
    }
    let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let words = std::iter::repeat_with(|| dice.below(1 << 31).to_le_bytes());
    words.take(BLOCK / 8).flatten().collect()
}

/// Of each block, numbers of contents that it may have; the last is what was written last.
struct Allowed(Vec<Vec<u64>>);

impl Allowed {
    fn flushed(&mut self) {
        for numbers in &mut self.0 {
            numbers.drain(..numbers.len() - 1);
        }
    }

    /// Each block is one of those, whole; from now on it is what it is.
    fn check(&mut self, client: &mut Client, export: &str) {
        for (block, numbers) in (0u64..).zip(&mut self.0) {
            let bytes = client.read(block * BLOCK as u64, BLOCK).expect("read");
            let right = numbers
                .iter()
                .rev()
                .find(|number| content(**number) == bytes);
            let Some(&right) = right else {
                panic!(
                    "{export}, block {block}: {:?} are not {numbers:?}",
                    &bytes[..16]
                );
            };
            *numbers = vec![right];
        }
    }
}

/// Writes until the server has gone.
fn load(socket: &Path, export: &str, allowed: &mut Allowed, dice: &mut Dice, number: &mut u64) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut client = Client::new(socket, export);
        loop {
            let block = dice.below(BLOCKS);
            let at = usize::try_from(block).expect("small");
            let count = 1 + dice.below(4.min(BLOCKS - block));
            match dice.below(20) {
                0 => {
                    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
                    allowed.flushed();
                }
                1..14 => {
                    let mut bytes = Vec::new();
                    for (block, numbers) in (block..)
                        .zip(&mut allowed.0[at..])
                        .take(usize::try_from(count).expect("small"))
                    {
                        *number += 1;
                        let same = dice.below(2) == 0;
                        let what = if same {
                            dice.below(6)
                        } else {
                            *number << 8 | block
                        };
                        // Before it is sent: it may arrive though nobody says so.
                        numbers.push(what);
                        bytes.extend(content(what));
                    }
                    let fua = dice.below(20) == 0;
                    assert_eq!(client.write(block * BLOCK as u64, &bytes, fua), 0);
                    for numbers in allowed.0[at..].iter_mut().take(if fua {
                        usize::try_from(count).expect("small")
                    } else {
                        0
                    }) {
                        numbers.drain(..numbers.len() - 1);
                    }
                }
                _ => {
                    let bytes = client.read(block * BLOCK as u64, BLOCK).expect("read");
                    let last = allowed.0[at].last().copied().unwrap_or(0);
                    if content(last) != bytes {
                        panic!("WRONG: {export}, block {block} is not {last}");
                    }
                }
            }
        }
    }));
    // What ends it is the server's end; what it was given is another thing.
    let words = result.expect_err("without an end");
    let words = words.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(
        !words.starts_with("WRONG") && !words.contains("assertion"),
        "{words}"
    );
}

#[test]
fn what_was_flushed_is_there_after_each_kill() {
    let kills = std::env::var("BONSAI_NBD_KILLS").ok();
    let kills: u64 = kills.map_or(12, |text| text.parse().expect("a number of kills"));
    let place = Place::bare();
    let images = ["a.raw", "b.raw"].map(|name| image(&place, name, BLOCKS * BLOCK as u64));
    let [a, b] = images.each_ref().map(String::as_str);
    let states = ["a", "b"].map(|name| {
        let allowed = Allowed(vec![vec![0]; usize::try_from(BLOCKS).expect("small")]);
        let seed = 77 + u64::from(name.as_bytes()[0]);
        Mutex::new((name, allowed, Dice(seed), 0))
    });
    // Each thread ends with a panic that means the server's end; nobody has to see these.
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let ends = std::thread::current().name() == Some("load");
        if !ends {
            before(info);
        }
    }));
    let mut dice = Dice(9);
    let mut shared = 0;
    for kill in 0..=kills {
        let scan = if kill % 2 == 0 { "--scan" } else { "--verify" };
        let drive = Drive::start(&place, &["--group", "g", scan, a, b]);
        if kill % 3 == 0 {
            drive.evict(a);
        }
        for state in &states {
            let mut state = state.lock().expect("no other");
            let (name, allowed, ..) = &mut *state;
            allowed.check(&mut Client::new(&drive.socket, name), name);
        }
        if kill % 10 == 0 {
            let status = place.json(&["drive", "status", "--json"]);
            for export in status["servers"][0]["exports"].as_array().expect("exports") {
                let sharing = &export["sharing"];
                assert_eq!(sharing["wrong"], 0, "{export:#}");
                let count = |name: &str| sharing[name].as_u64().expect("a count");
                shared += count("redirected_bytes") + count("zero_bytes");
            }
        }
        if kill == kills {
            assert_eq!(drive.end("TERM").code, Some(0));
            break;
        }
        let socket = drive.socket.clone();
        std::thread::scope(|scope| {
            for state in &states {
                let socket = &socket;
                let thread = std::thread::Builder::new().name("load".to_owned());
                let started = thread.spawn_scoped(scope, move || {
                    let mut state = state.lock().expect("no other");
                    let (name, allowed, dice, number) = &mut *state;
                    load(socket, name, allowed, dice, number);
                });
                started.expect("a thread");
            }
            std::thread::sleep(Duration::from_millis(5 + dice.below(60)));
            assert_eq!(drive.end("KILL").code, None);
        });
    }
    let written: u64 = states
        .iter()
        .map(|state| state.lock().expect("no other").3)
        .sum();
    println!("{kills} kills, {written} blocks written, {shared} bytes shared in every tenth");
    assert!(
        shared > 0,
        "nothing was redirected, so that nothing was tried"
    );
    assert!(written > kills, "nothing was under way");
}
