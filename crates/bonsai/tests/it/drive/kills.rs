//! Servers that are killed under load, again and again: `BONSAI_NBD_KILLS` is how often (12 times if nothing is said).
//!
//! After each kill the server is started anew, and each block is read.

use std::sync::Mutex;
use std::time::Duration;

use super::journal::{Allowed, BLOCK, BLOCKS, Dice, LOAD, expect_ends, load};
use super::server::{Drive, image};
use crate::nbd::Client;
use crate::support::Place;

#[test]
fn what_was_flushed_is_there_after_each_kill() {
    let kills = std::env::var("BONSAI_NBD_KILLS").ok();
    let kills: u64 = kills.map_or(12, |text| text.parse().expect("a number of kills"));
    let place = Place::bare();
    let images = ["a.raw", "b.raw"].map(|name| image(&place, name, BLOCKS * BLOCK as u64));
    let [a, b] = images.each_ref().map(String::as_str);
    let states = ["a", "b"].map(|name| {
        let allowed = Allowed::zeroes();
        let seed = 77 + u64::from(name.as_bytes()[0]);
        Mutex::new((name, allowed, Dice(seed), 0))
    });
    expect_ends();
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
        if kill % (kills / 20).max(1) == 0 {
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
                let thread = std::thread::Builder::new().name(LOAD.to_owned());
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
    println!(
        "{kills} kills, {written} blocks written, {shared} bytes shared in the servers that were asked"
    );
    assert!(
        shared > 0,
        "nothing was redirected, so that nothing was tried"
    );
    assert!(written > kills, "nothing was under way");
}
