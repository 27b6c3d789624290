//! Writers behind the server's back.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, FLUSH};
use crate::house::House;

const BLOCK: usize = 4096;
const SIZE: u64 = 64 * BLOCK as u64;
const PATIENCE: Duration = Duration::from_secs(20);

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Two images: the block `at` of both has the same content, and the page cache has the second one alone. So a read of
/// the first one goes to the second one.
fn shared(at: u64) -> (House, Client) {
    let house = House::new(&["a", "b"], SIZE);
    let [mut own, mut other] = ["a", "b"].map(|name| Client::new(&house.socket(), name));
    for (learned, client) in (1..).zip([&mut own, &mut other]) {
        assert_eq!(client.write(at * BLOCK as u64, &[7; BLOCK], false), 0);
        assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
        until("it is learned", || known(&house) == learned);
    }
    evict(&house, 0);
    (house, own)
}

fn known(house: &House) -> u64 {
    house.exports[0].member().unwrap().extent().known_blocks
}

fn evict(house: &House, export: usize) {
    let image = house.exports[export].image();
    image.flush().unwrap();
    image.forget(0, SIZE).unwrap();
    assert_eq!(image.resident_pages(0, SIZE).unwrap_or(0), 0, "evicted");
}

fn until(what: &str, right: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !right() {
        assert!(Instant::now() < end, "it never came to it that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Another process fills a block; returns once it has.
fn dd(path: &Path, at: u64, byte: u8) {
    let script = format!(
        "head -c 4096 /dev/zero | tr '\\0' '\\{byte:03o}' | dd of=\"$0\" bs=4096 seek={at} conv=notrunc status=none"
    );
    let done = Command::new("sh").args(["-c", &script]).arg(path).status();
    assert!(done.unwrap().success());
}

#[test]
fn what_another_process_wrote_is_read_at_once_while_the_server_writes() {
    let (house, mut own) = shared(3);
    let member = house.exports[0].member().unwrap();
    if !member.is_watched() {
        return crate::house::skip(
            "what_another_process_wrote_is_read_at_once_while_the_server_writes",
            "the kernel does not tell of changes (fanotify)",
        );
    }
    let path = house.folder.path().join("a");
    let mut other = Client::new(&house.socket(), "b");
    let at = 3 * BLOCK as u64;
    for byte in 10..50 {
        let before = get(&member.counters.redirected_bytes);
        assert_eq!(own.read(at, BLOCK), Ok(vec![7; BLOCK]));
        assert!(get(&member.counters.redirected_bytes) > before);
        // The own block is changed: no fingerprint of the leader could show that. And the server writes beside
        // it, so that times say nothing.
        dd(&path, 3, byte);
        assert_eq!(own.write(9 * BLOCK as u64, &[byte; BLOCK], false), 0);
        evict(&house, 0);
        assert_eq!(own.read(at, BLOCK), Ok(vec![byte; BLOCK]));
        // As it was; the other one leads.
        for client in [&mut own, &mut other] {
            assert_eq!(client.write(at, &[7; BLOCK], false), 0);
        }
        evict(&house, 0);
        until("it is learned", || {
            let extent = member.extent();
            (extent.known_blocks, extent.contents) == (2, 1)
        });
    }
    assert_eq!(member.outside_writes(), 40);
}

#[test]
fn a_leader_that_another_process_changed_is_none() {
    let (house, mut own) = shared(5);
    let member = house.exports[1].member().unwrap();
    dd(&house.folder.path().join("b"), 5, 9);
    assert_eq!(own.read(5 * BLOCK as u64, BLOCK), Ok(vec![7; BLOCK]));
    let wrong = get(&house.exports[0].member().unwrap().counters.wrong);
    if member.is_watched() {
        assert_eq!((member.outside_writes(), wrong), (1, 0));
    } else {
        assert_eq!(wrong, 1);
    }
}

#[test]
fn without_the_kernels_word_verification_and_times_see_it() {
    let (house, mut own) = shared(5);
    let member = house.exports[0].member().unwrap();
    // By this process, whose own changes are no news to the kernel.
    let open = |name| {
        let path = house.folder.path().join(name);
        std::fs::File::options().write(true).open(path).unwrap()
    };
    open("b")
        .write_all_at(&[9; BLOCK], 5 * BLOCK as u64)
        .unwrap();
    assert_eq!(own.read(5 * BLOCK as u64, BLOCK), Ok(vec![7; BLOCK]));
    assert_eq!(get(&member.counters.wrong), 1);
    evict(&house, 0);
    assert_eq!(own.read(5 * BLOCK as u64, BLOCK), Ok(vec![7; BLOCK]));
    assert_eq!(
        get(&member.counters.wrong),
        1,
        "nobody is sent to a false leader twice"
    );
    until("times are looked at", || {
        // The first one may have come before the server had seen the times of its own.
        open("b").write_all_at(&[9; BLOCK], 0).unwrap();
        house.exports[1].member().unwrap().outside_writes() > 0
    });
}

#[test]
fn zeroes_are_believed_only_of_holes_when_all_is_verified() {
    let house = House::new(&["a"], SIZE);
    let member = house.exports[0].member().unwrap();
    let mut client = Client::new(&house.socket(), "a");
    // Block 1 is written zeroes, block 2 a hole; both are known.
    assert_eq!(client.write(BLOCK as u64, &[0; BLOCK], false), 0);
    assert_eq!(client.read(2 * BLOCK as u64, BLOCK), Ok(vec![0; BLOCK]));
    until("both are learned", || known(&house) == 2);
    evict(&house, 0);
    let path = house.folder.path().join("a");
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[5; BLOCK], BLOCK as u64).unwrap();
    evict(&house, 0);
    assert_eq!(client.read(BLOCK as u64, BLOCK), Ok(vec![5; BLOCK]));
    assert_eq!(get(&member.counters.zero_bytes), 0);
    assert_eq!(client.read(2 * BLOCK as u64, BLOCK), Ok(vec![0; BLOCK]));
    assert_eq!(get(&member.counters.zero_bytes), BLOCK as u64);
    file.write_all_at(&[6; BLOCK], 2 * BLOCK as u64).unwrap();
    evict(&house, 0);
    assert_eq!(client.read(2 * BLOCK as u64, BLOCK), Ok(vec![6; BLOCK]));
}
