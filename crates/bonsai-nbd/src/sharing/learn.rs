//! Fingerprints, made beside the way of replies.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bonsai_dedup::drive::{How, Learned, Stamp, Volume};

use super::{SLICE, State, content};

/// Blocks that wait, at most: 16 MiB.
const MOST: usize = 4096;

/// Blocks that are entered into the map together, so that its lock is taken seldom.
const TOGETHER: usize = 64;

/// How much others come before it.
const NICE: i32 = 10;

/// Blocks that come one by one are waited for, so that not each of them wakes a thread.
const NAP: Duration = Duration::from_millis(2);

/// A block that was read or written.
#[derive(Debug)]
pub(super) struct Lesson {
    volume: Volume,
    block: u64,
    bytes: Box<[u8]>,
    key: [u8; 32],
    stamp: Stamp,
    how: How,
}

impl Lesson {
    pub(super) fn new(
        volume: Volume,
        block: u64,
        bytes: &[u8],
        (key, stamp, how): ([u8; 32], Stamp, How),
    ) -> Self {
        Self {
            volume,
            block,
            bytes: bytes.into(),
            key,
            stamp,
            how,
        }
    }
}

#[derive(Debug)]
pub(super) struct Learner(Arc<Queue>);

/// What waits for the learner.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    more: Condvar,
    /// Lessons that wait, for whoever wants to know without the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    lessons: VecDeque<Lesson>,
    /// Something that was forgotten is to be taken apart.
    untidy: bool,
    is_over: bool,
}

enum Work {
    Lessons(Vec<Lesson>),
    Tidy,
}

impl Learner {
    pub(super) fn start(state: &Arc<State>) -> io::Result<Self> {
        let queue = Arc::clone(&state.queue);
        let state = Arc::clone(state);
        let thread = thread::Builder::new().name("nbd-learn".to_owned());
        thread.spawn(move || {
            // Replies come first (nice(2): of this thread alone); what does not fit meanwhile is learned the next time.
            let _ = rustix::process::nice(NICE);
            while let Some(work) = state.queue.next() {
                match work {
                    Work::Lessons(lessons) => teach(&state, &lessons),
                    Work::Tidy => {
                        if state.map_mut().reclaim(SLICE) {
                            state.queue.tidy();
                        }
                        thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        })?;
        Ok(Self(queue))
    }

    /// Blocks that may come now.
    pub(super) fn room(&self) -> usize {
        MOST.saturating_sub(self.0.count.load(Ordering::Relaxed))
    }

    /// Takes what there is room for, from the first on; says how many.
    pub(super) fn push(&self, mut lessons: Vec<Lesson>) -> usize {
        let mut waiting = self.0.lock();
        let had = waiting.lessons.len();
        lessons.truncate(MOST.saturating_sub(had));
        let taken = lessons.len();
        waiting.lessons.extend(lessons);
        self.0.count.store(had + taken, Ordering::Relaxed);
        drop(waiting);
        // Where some were waiting, the learner is awake.
        if taken > 0 && had == 0 {
            self.0.more.notify_one();
        }
        taken
    }
}

fn teach(state: &State, lessons: &[Lesson]) {
    let learned: Vec<_> = lessons
        .iter()
        .map(|of| (of, content(&of.key, &of.bytes)))
        .collect();
    let mut map = state.map_mut();
    let mut twice = Vec::new();
    for (of, content) in learned {
        let now = map.learned(of.volume, of.block, content, of.how, of.stamp);
        if now == Learned::Duplicate {
            twice.extend(map.led_before(of.volume, of.block));
        }
    }
    drop(map);
    state.give_up(&twice);
    if lessons.len() < TOGETHER {
        thread::sleep(NAP);
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.more.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has taken apart what was forgotten.
    pub(super) fn tidy(&self) {
        self.lock().untidy = true;
        self.more.notify_one();
    }

    fn next(&self) -> Option<Work> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            if std::mem::take(&mut waiting.untidy) {
                return Some(Work::Tidy);
            }
            let count = waiting.lessons.len().min(TOGETHER);
            if count > 0 {
                let lessons = waiting.lessons.drain(..count).collect();
                self.count.store(waiting.lessons.len(), Ordering::Relaxed);
                return Some(Work::Lessons(lessons));
            }
            waiting = self
                .more
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
