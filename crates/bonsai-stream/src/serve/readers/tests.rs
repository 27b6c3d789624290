use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;

const WAITS: Duration = Duration::from_secs(30);

/// A job of a file with that number.
fn job(session: usize, id: FileId) -> Job {
    Job {
        session,
        ticket: u64::try_from(session).expect("few"),
        file: Arc::new(File::open("/dev/null").expect("it is there")),
        id,
        offset: 0,
        len: 8,
    }
}

/// All threads that there may be; their reads of device 1 hang up to the end of the test.
fn hung(readers: &Readers, until: Receiver<()>) {
    let until = Arc::new(Mutex::new(until));
    for _ in 0..THREADS {
        let (shared, until) = (Arc::clone(&readers.shared), Arc::clone(&until));
        readers.shared.state().threads += 1;
        thread::spawn(move || {
            shared.work(|job| {
                if job.id.0 == 1 {
                    let _ = until.lock().expect("no panic").recv();
                }
                Read {
                    bytes: vec![0; job.len],
                    ..Read::default()
                }
            });
        });
    }
}

/// The sessions of jobs that are done, once there are `count`.
fn done(readers: &Readers, count: usize) -> Vec<usize> {
    let (mut sessions, begin) = (Vec::new(), Instant::now());
    while sessions.len() < count && begin.elapsed() < WAITS {
        sessions.extend(readers.take().iter().map(|of| of.session));
        thread::sleep(Duration::from_millis(1));
    }
    sessions.sort_unstable();
    sessions
}

#[test]
fn a_hung_file_and_a_hung_file_system_leave_threads_to_others() {
    let readers = Readers::new().expect("a descriptor");
    let (end, until) = channel();
    hung(&readers, until);
    // More reads of hung files than there are threads.
    for session in 0..THREADS * 2 {
        let file = u64::try_from(session % 8).expect("few");
        readers.ask(job(session, (1, file))).expect("asked");
    }
    let others = 1000..1100;
    for session in others.clone() {
        readers.ask(job(session, (2, 7))).expect("asked");
    }
    assert_eq!(done(&readers, others.len()), others.collect::<Vec<_>>());
    {
        let state = readers.shared.state();
        assert!(state.devices.get(&1).is_some_and(|busy| *busy <= OF_DEVICE));
        let files = state.files.iter().filter(|(id, _)| id.0 == 1);
        assert!(files.into_iter().all(|(_, busy)| *busy <= OF_FILE));
    }
    drop(end);
    assert_eq!(done(&readers, THREADS * 2).len(), THREADS * 2);
}

#[test]
fn bytes_that_wait_are_counted_up_to_their_end() {
    let readers = Readers::new().expect("a descriptor");
    let file = tempfile::tempfile().expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", 0).expect("written");
    let id = (3, 4);
    for (ticket, offset) in [(1, 0), (2, 6)] {
        readers
            .ask(Job {
                session: 0,
                ticket,
                file: Arc::new(file.try_clone().expect("another")),
                id,
                offset,
                len: 8,
            })
            .expect("asked");
    }
    let (mut all, begin) = (Vec::new(), Instant::now());
    while all.len() < 2 && begin.elapsed() < WAITS {
        all.extend(readers.take());
        thread::sleep(Duration::from_millis(1));
    }
    all.sort_by_key(|of| of.ticket);
    let chunks: Vec<Chunk> = all.into_iter().map(|of| of.chunk).collect();
    let bytes: Vec<&[u8]> = chunks.iter().map(|of| &of.bytes[..]).collect();
    assert_eq!(bytes, [&b"01234567"[..], b"6789"]);
    assert_eq!([chunks[0].is_end, chunks[1].is_end], [false, true]);
    assert_eq!(readers.shared.held.load(Ordering::Relaxed), 12);
    drop(chunks);
    assert_eq!(readers.shared.held.load(Ordering::Relaxed), 0);
}
