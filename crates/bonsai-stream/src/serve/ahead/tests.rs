use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, fsync};

use super::super::pool::Pool;
use super::*;

const WAITS: Duration = Duration::from_secs(30);

fn readers(pool: Pool) -> Rc<Readers> {
    Rc::new(Readers::new(Arc::new(pool)).expect("a descriptor"))
}

/// A file of a disk with this length.
fn file(len: usize) -> (ClipFile, Vec<u8>) {
    let file = tempfile::tempfile().expect("a file");
    let all: Vec<u8> = (0..=250_u8).cycle().take(len).collect();
    file.write_all_at(&all, 0).expect("written");
    let of = ClipFile {
        stamp: Stamp::of(&file).expect("a stamp"),
        file: Arc::new(file),
        is_in_memory: false,
    };
    (of, all)
}

#[test]
fn what_a_disk_has_cost_is_not_charged_to_the_server() {
    let mut ahead = Ahead::new(readers(Pool::new()), 0);
    assert_eq!(ahead.without_disk(7), 7);
    ahead.lost_ns = 100;
    // Late by the disk and by the server; then it catches up, and is late again by the server alone.
    let late = [130, 90, 40, 10, 0, 60].map(|late| ahead.without_disk(late));
    assert_eq!(late, [30, 0, 0, 0, 0, 60]);
}

#[test]
fn bytes_come_in_order_from_readers_and_before_they_are_due() {
    let readers = readers(Pool::new());
    let mut ahead = Ahead::new(Rc::clone(&readers), 5);
    // As of a file system that tells of no read that it would wait.
    ahead.is_unsure = true;
    ahead.begin(u64::try_from(CHUNK).expect("small"));
    let (of, all) = file(CHUNK * 6 + 10);
    let (mut at, mut bytes, mut waits) = (0, vec![0; 1000], 0);
    let begin = Instant::now();
    let most = usize::try_from(ahead.window).expect("small") / CHUNK + 4;
    while at < all.len() {
        let len = bytes.len().min(all.len() - at);
        match ahead.read(&of, &mut bytes[..len], at as u64) {
            Ok(()) => {
                assert_eq!(bytes[..len], all[at..at + len]);
                at += len;
                // The next bytes are there, or on their way, two seconds before they are due.
                let is_there = |next: u64| ahead.chunks.iter().any(|of| of.covers(next, 1));
                let is_asked = |next: u64| ahead.asked.as_ref().is_some_and(|of| of.offset <= next);
                let next = at as u64 + CHUNK as u64;
                let is_over = next >= all.len() as u64;
                assert!(is_over || is_there(next) || is_asked(next), "{at}");
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(ahead.is_waiting());
                waits += 1;
                while ahead.is_waiting() {
                    for done in readers.take() {
                        assert_eq!(done.session, 5);
                        ahead.came(done.ticket, done.chunk);
                    }
                    assert!(begin.elapsed() < WAITS, "{at}");
                    std::thread::yield_now();
                }
            }
        }
        for done in readers.take() {
            ahead.came(done.ticket, done.chunk);
        }
        assert!(ahead.chunks.len() <= most);
    }
    assert!(waits >= 1, "the first is not there before it is asked for");
    // A chunk that was read ahead is not read again.
    assert!((8..10).contains(&readers.ticket()), "it was asked for once");
    // Behind its end there is nothing.
    let error = loop {
        match ahead.read(&of, &mut bytes, at as u64) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                for done in readers.take() {
                    ahead.came(done.ticket, done.chunk);
                }
            }
            other => break other.expect_err("nothing"),
        }
        assert!(begin.elapsed() < WAITS);
    };
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    ahead.clear();
    assert!(ahead.chunks.is_empty());
}

#[test]
fn what_is_in_memory_is_read_without_a_thread() {
    // A thread would do nothing.
    let readers = readers(Pool::stopped());
    let (mut of, all) = file(1 << 20);
    let mut bytes = vec![0; 5000];
    for is_in_memory in [false, true] {
        let mut ahead = Ahead::new(Rc::clone(&readers), 0);
        ahead.begin(100_000);
        of.is_in_memory = is_in_memory;
        for at in (0..all.len() - bytes.len()).step_by(bytes.len()) {
            let read = ahead.read(&of, &mut bytes, at as u64);
            if ahead.is_unsure {
                println!("SKIP: this file system does not tell whether a read would wait");
                break;
            }
            read.expect("it is in memory");
            assert_eq!(bytes[..], all[at..at + bytes.len()]);
            assert!(ahead.asked.is_none() && !ahead.is_warming());
        }
    }
}

#[test]
fn what_is_due_soon_and_not_in_memory_is_read_before_it_is_due() {
    const COLD: u64 = 256 << 10;
    let readers = readers(Pool::new());
    let mut ahead = Ahead::new(Rc::clone(&readers), 0);
    ahead.begin(1 << 20);
    let (of, all) = file(8 << 20);
    fsync(&*of.file).expect("written");
    fadvise(&*of.file, COLD, None, Advice::DontNeed).expect("forgotten");
    let is_cold = || is_cached(&*of.file, COLD, 1 << 20) == Some(false);
    if !is_cold() {
        println!(
            "SKIP: this file system, or kernel, does not tell that it has forgotten something"
        );
        return;
    }
    // Nothing of it is asked for: what is read is in memory.
    let mut bytes = [0; 1000];
    let begin = Instant::now();
    while is_cold() {
        let read = ahead.read(&of, &mut bytes, 0);
        if ahead.is_unsure {
            println!("SKIP: this file system does not tell whether a read would wait");
            return;
        }
        read.expect("it is in memory");
        assert_eq!(bytes[..], all[..bytes.len()]);
        assert!(begin.elapsed() < WAITS);
        std::thread::yield_now();
    }
    assert!(ahead.asked.is_none(), "nothing is waited for");
}

#[test]
fn without_a_thread_all_is_read_when_it_is_due() {
    let mut ahead = Ahead::new(readers(Pool::refused()), 0);
    ahead.is_unsure = true;
    let (of, all) = file(CHUNK * 2);
    let mut bytes = vec![0; 5000];
    for at in (0..all.len() - bytes.len()).step_by(bytes.len()) {
        ahead.read(&of, &mut bytes, at as u64).expect("read");
        assert_eq!(bytes[..], all[at..at + bytes.len()]);
    }
    assert!(!ahead.is_waiting());
}
