use std::thread;
use std::time::{Duration, Instant};

use super::*;

const WAITS: Duration = Duration::from_secs(30);

fn job(file: &File, (ticket, offset): (u64, u64), len: usize) -> Job {
    Job {
        session: 0,
        ticket,
        file: Arc::new(file.try_clone().expect("another")),
        id: (3, 4),
        offset,
        len,
        least: 2,
    }
}

/// Chunks in the order that they were asked for, once there are `count`.
fn came(readers: &Readers, count: usize) -> Vec<Chunk> {
    let (mut all, begin) = (Vec::new(), Instant::now());
    while all.len() < count && begin.elapsed() < WAITS {
        all.extend(readers.take());
        thread::sleep(Duration::from_millis(1));
    }
    all.sort_by_key(|of| of.ticket);
    all.into_iter().map(|of| of.chunk).collect()
}

#[test]
fn bytes_that_wait_are_counted_up_to_their_end() {
    let readers = Readers::new(Arc::new(Pool::new())).expect("a descriptor");
    let file = tempfile::tempfile().expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", 0).expect("written");
    for (ticket, offset) in [(1, 0), (2, 6)] {
        readers.ask(job(&file, (ticket, offset), 8)).expect("asked");
    }
    let chunks = came(&readers, 2);
    let bytes: Vec<&[u8]> = chunks.iter().map(|of| &of.bytes[..]).collect();
    assert_eq!(bytes, [&b"01234567"[..], b"6789"]);
    assert_eq!([chunks[0].is_end, chunks[1].is_end], [false, true]);
    assert_eq!(readers.held.load(Ordering::Relaxed), 12);
    drop(chunks);
    assert_eq!(readers.held.load(Ordering::Relaxed), 0);
}

#[test]
fn without_room_no_more_is_read_than_is_due() {
    let pool = Arc::new(Pool::stopped());
    let readers = Readers::new(Arc::clone(&pool)).expect("a descriptor");
    let file = tempfile::tempfile().expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", 0).expect("written");
    // Asked for while there was room, and read when there is none any more.
    readers.ask(job(&file, (1, 4), 6)).expect("asked");
    let all = Held::new(&readers.held, HELD);
    assert!(!readers.has_room());
    pool.start();
    let chunks = came(&readers, 1);
    assert_eq!(chunks[0].bytes, b"45");
    drop((chunks, all));
    assert!(readers.has_room());
}
