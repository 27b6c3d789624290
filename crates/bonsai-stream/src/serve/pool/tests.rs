use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::*;

const WAITS: Duration = Duration::from_secs(30);

/// Numbers that came, once there are `count`.
fn came(mail: &Mailbox<usize>, count: usize) -> Vec<usize> {
    let (mut all, begin) = (Vec::new(), Instant::now());
    while all.len() < count && begin.elapsed() < WAITS {
        all.extend(mail.take());
        thread::sleep(Duration::from_millis(1));
    }
    all.sort_unstable();
    all
}

struct Works {
    pool: Pool,
    mail: Arc<Mailbox<usize>>,
}

impl Works {
    fn new() -> Self {
        Self {
            pool: Pool::new(),
            mail: Arc::new(Mailbox::new().expect("a descriptor")),
        }
    }

    /// A work that sends its number.
    fn add(&self, number: usize, file: FileId) {
        let mail = Arc::clone(&self.mail);
        self.pool
            .run(file, Box::new(move || mail.put(number)))
            .expect("a thread");
    }

    /// A work that sends its number after a call that hangs up to the end of the test.
    fn add_hung(&self, number: usize, file: FileId, until: &Arc<Mutex<Receiver<()>>>) {
        let (mail, until) = (Arc::clone(&self.mail), Arc::clone(until));
        let work = move || {
            let _ = until.lock().expect("no panic").recv();
            mail.put(number);
        };
        self.pool.run(file, Box::new(work)).expect("a thread");
    }
}

#[test]
fn a_hung_file_and_a_hung_file_system_leave_threads_to_others() {
    let works = Works::new();
    let (end, until) = channel();
    let until = Arc::new(Mutex::new(until));
    // More calls of hung files, on three file systems, than there are threads; one of these has another file.
    for number in 0..THREADS * 4 {
        let number_of = u64::try_from(number).expect("few");
        let (device, file) = (number_of % 3, number_of / 3 % 8);
        works.add_hung(number, (device, file), &until);
    }
    for number in 0..THREADS {
        works.add_hung(1000 + number, (3, 1), &until);
    }
    let others = 2000..2100;
    for number in others.clone() {
        works.add(number, (4, 7));
    }
    works.add(2100, (3, 2));
    assert_eq!(came(&works.mail, 101), (2000..=2100).collect::<Vec<_>>());
    {
        let state = works.pool.shared.state();
        assert!(state.threads <= THREADS);
        for device in state.devices.values() {
            assert!(device.busy <= OF_DEVICE);
            assert!(device.files.values().all(|of| of.busy <= OF_FILE));
        }
    }
    drop(end);
    let all = THREADS * 5;
    assert_eq!(came(&works.mail, all).len(), all);
    let begin = Instant::now();
    while !works.pool.shared.state().devices.is_empty() {
        assert!(begin.elapsed() < WAITS, "something is kept of what is done");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_call_that_hangs_holds_up_none_that_follows_it_to_a_thread_without_work() {
    let works = Works::new();
    works.add(0, (1, 1));
    assert_eq!(came(&works.mail, 1), [0]);
    let begin = Instant::now();
    while works.pool.shared.state().idle == 0 {
        assert!(begin.elapsed() < WAITS, "the thread has no work");
        thread::sleep(Duration::from_millis(1));
    }
    let (end, until) = channel();
    let until = Arc::new(Mutex::new(until));
    // One thread waits: the first has it, and the other gets a thread of its own at once.
    works.add_hung(1, (2, 1), &until);
    works.add(2, (3, 1));
    assert_eq!(came(&works.mail, 1), [2]);
    drop(end);
    assert_eq!(came(&works.mail, 1), [1]);
}

#[test]
fn a_panic_ends_no_thread_and_a_file_has_its_turn_again() {
    let works = Works::new();
    for _ in 0..OF_FILE * 2 {
        let work = || std::panic::panic_any(());
        works.pool.run((1, 1), Box::new(work)).expect("a thread");
    }
    works.add(1, (1, 1));
    assert_eq!(came(&works.mail, 1), [1]);
}

#[test]
fn where_no_thread_can_be_started_nothing_is_kept() {
    let pool = Pool::refused();
    pool.run((1, 1), Box::new(|| ())).expect_err("no thread");
    assert!(pool.shared.state().begin().is_none());
    assert!(pool.shared.state().devices.is_empty());
}
