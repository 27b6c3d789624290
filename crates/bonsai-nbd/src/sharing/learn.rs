//! Fingerprints, made beside the way of replies.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bonsai_dedup::drive::{How, Learned, Stamp, Volume};

use super::{State, content};

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

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<(VecDeque<Lesson>, bool)>,
    more: Condvar,
}

impl Learner {
    pub(super) fn start(state: Arc<State>) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let own = Arc::clone(&queue);
        let thread = thread::Builder::new().name("nbd-learn".to_owned());
        thread.spawn(move || {
            // Replies come first (nice(2): of this thread alone); what does not fit meanwhile is learned the next time.
            let _ = rustix::process::nice(NICE);
            while let Some(lessons) = own.next() {
                let learned: Vec<_> = lessons
                    .iter()
                    .map(|of| (of, content(&of.key, &of.bytes)))
                    .collect();
                let mut map = state.map();
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
        })?;
        Ok(Self(queue))
    }

    /// Blocks that may come now.
    pub(super) fn room(&self) -> usize {
        MOST.saturating_sub(self.0.lock().0.len())
    }

    /// Takes what there is room for, from the first on; says how many.
    pub(super) fn push(&self, mut lessons: Vec<Lesson>) -> usize {
        let mut waiting = self.0.lock();
        lessons.truncate(MOST.saturating_sub(waiting.0.len()));
        let taken = lessons.len();
        waiting.0.extend(lessons);
        drop(waiting);
        if taken > 0 {
            self.0.more.notify_one();
        }
        taken
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        self.0.lock().1 = true;
        self.0.more.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, (VecDeque<Lesson>, bool)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Vec<Lesson>> {
        let mut waiting = self.lock();
        loop {
            if waiting.1 {
                return None;
            }
            let count = waiting.0.len().min(TOGETHER);
            if count > 0 {
                return Some(waiting.0.drain(..count).collect());
            }
            waiting = self
                .more
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
