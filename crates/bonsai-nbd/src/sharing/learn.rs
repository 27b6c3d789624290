//! Fingerprints, made beside the way of replies.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bonsai_dedup::drive::{Content, How, Learned, Stamp, Volume};

use super::{Fingerprint, SLICE, State, content};

/// Blocks that wait, at most: 16 MiB.
const MOST: usize = 4096;

/// Blocks that are entered into the map together, so that its lock is taken seldom.
const TOGETHER: usize = 64;

/// Lessons whose memory is kept for the next ones: to give back and take again 128 KiB costs as much as to copy them.
const MOST_SPARE: usize = 32;
/// Bytes of a lesson whose memory is kept, at most.
const MOST_SPARE_BYTES: usize = 256 << 10;

/// How much others come before it.
const NICE: i32 = 10;

/// Blocks that come one by one are waited for, so that not each of them wakes a thread.
const NAP: Duration = Duration::from_millis(2);

/// Blocks of one request that were read or written.
#[derive(Debug)]
pub(super) struct Lesson {
    pub(super) volume: Volume,
    pub(super) key: [u8; 32],
    pub(super) how: How,
    /// Their numbers, each with what it may be learned by.
    pub(super) blocks: Vec<(u64, Stamp)>,
    /// Their bytes, in this order.
    pub(super) bytes: Vec<u8>,
}

/// The memory of a lesson.
type Room = (Vec<(u64, Stamp)>, Vec<u8>);

#[derive(Debug)]
pub(super) struct Learner(Arc<Queue>);

/// What waits for the learner.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    more: Condvar,
    /// Blocks that wait, for whoever wants to know without the lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    lessons: VecDeque<Lesson>,
    /// Their blocks.
    blocks: usize,
    /// Empty ones, with room.
    spare: Vec<Room>,
    /// Something that was forgotten is to be taken apart.
    untidy: bool,
    is_over: bool,
}

impl Waiting {
    /// The first lessons, until they have as many blocks as are entered together.
    fn take(&mut self) -> Vec<Lesson> {
        let (mut lessons, mut blocks) = (Vec::new(), 0);
        while blocks < TOGETHER
            && let Some(lesson) = self.lessons.pop_front()
        {
            blocks += lesson.blocks.len();
            lessons.push(lesson);
        }
        self.blocks -= blocks;
        lessons
    }
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
                    Work::Lessons(lessons) => {
                        teach(&state, &lessons);
                        state.queue.keep(lessons);
                    }
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

    /// Memory for a lesson, empty.
    pub(super) fn memory(&self) -> Room {
        self.0.lock().spare.pop().unwrap_or_default()
    }

    /// Takes a lesson if there is room for all of it; says how many blocks it took.
    pub(super) fn push(&self, lesson: Lesson) -> usize {
        let taken = lesson.blocks.len();
        let mut waiting = self.0.lock();
        let had = waiting.blocks;
        let blocks = had + taken;
        if taken == 0 || blocks > MOST {
            return 0;
        }
        waiting.lessons.push_back(lesson);
        waiting.blocks = blocks;
        self.0.count.store(blocks, Ordering::Relaxed);
        drop(waiting);
        // Where some were waiting, the learner is awake.
        if had == 0 {
            self.0.more.notify_one();
        }
        taken
    }
}

fn teach(state: &State, lessons: &[Lesson]) {
    let (mut count, mut learned) = (0, Vec::with_capacity(TOGETHER));
    for lesson in lessons {
        let (blocks, _) = lesson.bytes.as_chunks::<4096>();
        for (&(block, stamp), bytes) in lesson.blocks.iter().zip(blocks) {
            learned.push((lesson, block, stamp, content(&lesson.key, bytes)));
            if learned.len() == TOGETHER {
                enter(state, &mut learned);
            }
            count += 1;
        }
    }
    enter(state, &mut learned);
    if count < TOGETHER {
        thread::sleep(NAP);
    }
}

/// Enters contents into the map, and takes them from the list.
fn enter(state: &State, learned: &mut Vec<(&Lesson, u64, Stamp, Content<Fingerprint>)>) {
    let mut twice = Vec::new();
    let mut map = state.map_mut();
    for (of, block, stamp, content) in learned.drain(..) {
        let now = map.learned(of.volume, block, content, of.how, stamp);
        if now == Learned::Duplicate {
            twice.extend(map.led_before(of.volume, block));
        }
    }
    drop(map);
    state.give_up(&twice);
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

    /// Keeps the memory of lessons for others.
    fn keep(&self, lessons: Vec<Lesson>) {
        let mut kept: Vec<_> = lessons
            .into_iter()
            .filter(|of| of.bytes.capacity() <= MOST_SPARE_BYTES)
            .map(|of| (of.blocks, of.bytes))
            .collect();
        for (blocks, bytes) in &mut kept {
            blocks.clear();
            bytes.clear();
        }
        let mut waiting = self.lock();
        kept.truncate(MOST_SPARE.saturating_sub(waiting.spare.len()));
        waiting.spare.append(&mut kept);
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
            let lessons = waiting.take();
            if !lessons.is_empty() {
                self.count.store(waiting.blocks, Ordering::Relaxed);
                return Some(Work::Lessons(lessons));
            }
            waiting = self
                .more
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
