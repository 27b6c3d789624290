//! Guests that boot from the block server and work there.

use std::time::Instant;

use rustix::process::Signal;

use super::served::Served;

/// What a guest has of files that belong to packages, at least.
const FILES: u64 = 5000;

#[test]
fn two_guests_boot_and_share_what_they_read() {
    let test = "two_guests_boot_and_share_what_they_read";
    let Some(mut served) = Served::new(test, &["web", "mail"]) else {
        return;
    };
    served.start(&["--group", "lab", "--scan", "--verify"]);
    let scanned = served.disk_bytes();
    let words = ["work.rounds=1", "work.write=4"];
    for name in ["web", "mail"] {
        let Some(guest) = served.boot(test, name, &words) else {
            return;
        };
        let files = guest.works();
        eprintln!("{test}: {name}: {files} files are right");
        assert!(files > FILES, "{name}: {files}");
    }
    let [web, mail] = ["web", "mail"].map(|name| served.status(name));
    let of = |export: &serde_json::Value, what: &str| export["sharing"][what].as_u64().expect(what);
    for export in [&web, &mail] {
        assert_eq!(of(export, "wrong"), 0, "{export:#}");
        assert_eq!(export["failed"], 0, "{export:#}");
    }
    // The two have about 170 MB in common. The first one reads these from the disk of the second one, which was
    // gone over last, and so has them for it.
    let [asked, redirected] = [
        web["read_bytes"].as_u64().zip(mail["read_bytes"].as_u64()),
        Some((of(&web, "redirected_bytes"), of(&mail, "redirected_bytes"))),
    ]
    .map(|both| both.map_or(0, |(one, other)| one + other));
    let from_disk = served.disk_bytes() - scanned;
    eprintln!(
        "{test}: {asked} bytes asked for, {from_disk} read from the disk, {redirected} redirected"
    );
    assert!(redirected > 80_000_000, "{web:#} {mail:#}");
    assert!(from_disk + 80_000_000 < asked, "{from_disk} {asked}");
    assert!(of(&mail, "reads_saved") > 0, "{mail:#}");
    let said = served.place.say(&["drive", "status"]);
    assert!(said.out.contains("group lab: "), "{said:?}");
    served.end(Signal::TERM);
    for name in ["web", "mail"] {
        let said = served.check(name);
        assert_eq!(said.code, Some(0), "{name}: {said:?}");
    }
}

#[test]
fn a_disk_is_whole_after_its_server_was_killed_under_a_guest() {
    let test = "a_disk_is_whole_after_its_server_was_killed_under_a_guest";
    let Some(mut served) = Served::new(test, &["next"]) else {
        return;
    };
    served.start(&[]);
    let words = ["work.rounds=1", "work.write=8"];
    let Some(mut guest) = served.boot(test, "next", &["work.forever=1", "work.write=8"]) else {
        return;
    };
    // In the middle of its second round of writes, of which some were flushed.
    let came = guest.until(|guest| guest.line("written ").is_some());
    assert!(came, "{}", guest.console());
    let before = served.status("next")["writes"].as_u64().expect("writes");
    let came = guest.until(|_| served.status("next")["writes"].as_u64() > Some(before + 20));
    assert!(came, "it writes no more: {}", guest.console());
    served.end(Signal::KILL);
    let came = guest.until(|guest| guest.console().contains("I/O error"));
    assert!(came, "it has noticed nothing: {}", guest.console());
    drop(guest);
    // The journal is played back by its own kernel.
    served.start(&["--verify"]);
    let guest = served.boot(test, "next", &words).expect("as before");
    assert!(guest.works() > FILES / 2);
    assert_eq!(served.status("next")["failed"], 0);
    served.end(Signal::TERM);
    let said = served.check("next");
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_limit_holds_for_a_guest_that_runs() {
    const RATE: f64 = 2e6;
    let test = "a_limit_holds_for_a_guest_that_runs";
    let Some(mut served) = Served::new(test, &["next"]) else {
        return;
    };
    served.start(&["--limit", "read=500MB/s"]);
    let Some(mut guest) = served.boot(test, "next", &["work.forever=1"]) else {
        return;
    };
    let set = |limit: &str| {
        let said = served.place.say(&["set", "next", limit]);
        assert_eq!(said.code, Some(0), "{said:?}");
    };
    let bytes = || served.status("next")["read_bytes"].as_u64().expect("bytes");
    let came = guest.until(|guest| guest.line("packages ").is_some());
    assert!(came, "{}", guest.console());
    set("read=2MB/s");
    // What had its place before is answered.
    let settled = bytes();
    let came = guest.until(|_| bytes() > settled + 1_000_000);
    assert!(came, "it reads no more: {}", guest.console());
    let (start, from) = (Instant::now(), bytes());
    let came = guest.until(|_| bytes() > from + 8_000_000);
    let moved = bytes() - from;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{test}: {moved} bytes in {seconds:.2} s");
    assert!(came, "it reads no more: {}", guest.console());
    // Its burst of 20 ms, and the reads that were on their way: QEMU asks for 1 MiB at most.
    let most = RATE * (seconds + 0.02) + f64::from(1 << 20);
    assert!((moved as f64) < most, "{moved} bytes in {seconds} s");
    // And it is let go again.
    set("read=500MB/s");
    let came = guest.until(|guest| {
        let (start, from) = (Instant::now(), bytes());
        let _ = guest.console();
        std::thread::sleep(std::time::Duration::from_secs(1));
        (bytes() - from) as f64 > 2.0 * RATE * start.elapsed().as_secs_f64()
    });
    assert!(came, "it is still held back: {}", guest.console());
    drop(guest);
    served.end(Signal::TERM);
}
