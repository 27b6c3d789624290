//! Writers behind the server's back.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bonsai_nbd::sharing::Guarding;

use crate::client::{Client, FLUSH};
use crate::house::{House, Sharing};

const BLOCK: usize = 4096;
const SIZE: u64 = 64 * BLOCK as u64;
const PATIENCE: Duration = Duration::from_secs(20);

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Two images: the block `at` of both has the same content, and the page cache has the second one alone. So a read of
/// the first one goes to the second one.
fn shared(at: u64) -> (House, Client) {
    shared_by(at, &Sharing::default())
}

fn shared_by(at: u64, how: &Sharing) -> (House, Client) {
    let house = House::sharing(&["a", "b"], SIZE, how);
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

/// Whether the server holds the leases of all images; it takes them again soon after another program has closed one.
fn guarded(house: &House) -> bool {
    let members = || house.exports.iter().filter_map(|export| export.member());
    members().all(|member| member.unguarded().is_none())
}

#[test]
fn what_another_process_wrote_is_read_at_once_while_the_server_writes() {
    let (house, mut own) = shared(3);
    let member = house.exports[0].member().unwrap();
    let path = house.folder.path().join("a");
    let mut other = Client::new(&house.socket(), "b");
    let at = 3 * BLOCK as u64;
    for byte in 10..40 {
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
        until("the lease is held again", || guarded(&house));
        for client in [&mut own, &mut other] {
            assert_eq!(client.write(at, &[7; BLOCK], false), 0);
        }
        evict(&house, 0);
        until("it is learned", || {
            let extent = member.extent();
            // The block that the server wrote is known as well if the lease was held again by then.
            extent.known_blocks == extent.contents + 1
        });
    }
    assert_eq!(member.outside_writes(), 30);
}

#[test]
fn a_leader_that_another_process_changed_is_none() {
    let (house, mut own) = shared(5);
    let member = house.exports[1].member().unwrap();
    dd(&house.folder.path().join("b"), 5, 9);
    assert_eq!(own.read(5 * BLOCK as u64, BLOCK), Ok(vec![7; BLOCK]));
    until("the lease is held again", || guarded(&house));
    assert_eq!(member.outside_writes(), 1);
    assert_eq!(get(&house.exports[0].member().unwrap().counters.wrong), 0);
}

/// Nothing that was known is believed after another program had an image open: times of change do not show each way of
/// writing.
#[test]
fn after_another_program_has_closed_an_image_it_is_learned_anew() {
    let (house, mut own) = shared(5);
    let at = 5 * BLOCK as u64;
    let member = house.exports[0].member().unwrap();
    let redirected = || get(&member.counters.redirected_bytes);
    for name in ["a", "b"] {
        let reader = std::fs::File::open(house.folder.path().join(name)).unwrap();
        assert!(!guarded(&house));
        let before = redirected();
        evict(&house, 0);
        assert_eq!(own.read(at, BLOCK), Ok(vec![7; BLOCK]));
        assert_eq!(redirected(), before, "{name} is open elsewhere");
        drop(reader);
        until("the lease is held again", || guarded(&house));
        evict(&house, 0);
        assert_eq!(own.read(at, BLOCK), Ok(vec![7; BLOCK]));
        assert_eq!(redirected(), before, "{name} was open elsewhere");
        // Once both are learned again, the read of one comes from the other.
        let mut other = Client::new(&house.socket(), "b");
        for client in [&mut own, &mut other] {
            assert_eq!(client.write(at, &[7; BLOCK], false), 0);
        }
        evict(&house, 0);
        until("it is learned", || known(&house) == 2);
        assert_eq!(own.read(at, BLOCK), Ok(vec![7; BLOCK]));
        assert!(redirected() > before, "{name} is guarded again");
    }
}

/// A program has the image open when the server starts. What its guest does meanwhile must not be known afterwards.
#[test]
fn what_is_done_before_the_first_lease_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, vec![7; usize::try_from(SIZE).unwrap()]).unwrap();
    let writer = std::fs::File::options().write(true).open(&path).unwrap();
    let how = Sharing {
        verify: false,
        ..Sharing::default()
    };
    let house = House::sharing_over(folder, &["a"], SIZE, &how);
    assert!(!guarded(&house));
    let mut client = Client::new(&house.socket(), "a");
    let zeroes = client.ask(
        (0, crate::client::ZEROES),
        0,
        u32::try_from(BLOCK).unwrap(),
        &[],
    );
    assert_eq!(zeroes, 0);
    writer.write_all_at(&[9; BLOCK], 0).unwrap();
    drop(writer);
    until("the lease is held", || guarded(&house));
    evict(&house, 0);
    assert_eq!(client.read(0, BLOCK), Ok(vec![9; BLOCK]));
}

/// Writers of which fanotify says nothing: a memory map, here, as loop devices and libaio need programs and rights. In the
/// end the image is guarded again, and what the map has written is what is read.
#[test]
fn what_comes_through_a_memory_map_is_read_and_never_anothers() {
    let (house, mut own) = shared(5);
    let mut other = Client::new(&house.socket(), "b");
    let at = 5 * BLOCK as u64;
    let script = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b'); m=mmap.mmap(f.fileno(),0); f.close()\n\
        m[5*4096:6*4096]=bytes([99])*4096\n\
        print(flush=True); sys.stdin.read()";
    if !crate::house::has(
        "what_comes_through_a_memory_map_is_read_and_never_anothers",
        "python3",
    ) {
        return;
    }
    let mut mapped = Command::new("python3")
        .args(["-c", script])
        .arg(house.folder.path().join("b"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    std::io::Read::read_exact(mapped.stdout.as_mut().unwrap(), &mut line).unwrap();
    for _ in 0..3 {
        assert_eq!(own.read(at, BLOCK), Ok(vec![7; BLOCK]));
        assert_eq!(other.read(at, BLOCK), Ok(vec![99; BLOCK]));
        evict(&house, 0);
    }
    assert!(
        !guarded(&house),
        "the map is there, though its descriptor is closed"
    );
    drop(mapped.stdin.take());
    assert!(mapped.wait().unwrap().success());
    until("the lease is held again", || guarded(&house));
    evict(&house, 0);
    assert_eq!(own.read(at, BLOCK), Ok(vec![7; BLOCK]));
    assert_eq!(other.read(at, BLOCK), Ok(vec![99; BLOCK]));
}

fn trusting() -> Sharing {
    Sharing {
        guarding: |_| Guarding::Trust,
        ..Sharing::default()
    }
}

/// With the operator's word in place of leases, changes that the kernel reports are found, and others by verification and
/// times.
#[test]
fn with_trust_reports_verification_and_times_find_changes() {
    let (house, mut own) = shared_by(5, &trusting());
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
    let house = House::sharing(&["a"], SIZE, &trusting());
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
