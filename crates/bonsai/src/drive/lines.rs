//! Log lines of a server are written by a separate thread, so that a stalled reader of standard error does not block clients.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum queued lines; further ones are dropped and counted.
const MOST: usize = 1000;

/// Maximum time that shutdown waits for queued lines.
const PATIENCE: Duration = Duration::from_secs(2);

static LINES: Lines = Lines::new();

/// Logs a line; directly if the thread was not started.
pub(super) fn say(line: String) {
    if let Err(line) = LINES.put(line) {
        crate::output::say!("{line}");
    }
}

/// Starts the thread. The guard, when dropped, waits for queued lines, up to [`PATIENCE`].
///
/// # Errors
/// No thread.
pub(super) fn start() -> io::Result<Started> {
    let builder = thread::Builder::new().name("log".to_owned());
    builder.spawn(|| LINES.write(&mut io::stderr()))?;
    LINES.lock().is_started = true;
    Ok(Started)
}

#[derive(Debug)]
pub(super) struct Started;

impl Drop for Started {
    fn drop(&mut self) {
        LINES.settle(PATIENCE);
    }
}

struct Lines {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    is_started: bool,
    /// The first one is being written.
    waiting: VecDeque<String>,
    lost: u64,
}

impl Lines {
    const fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                is_started: false,
                waiting: VecDeque::new(),
                lost: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a line, or returns it if the thread was not started.
    fn put(&self, line: String) -> Result<(), String> {
        let mut queue = self.lock();
        if !queue.is_started {
            return Err(line);
        }
        match queue.waiting.len() < MOST {
            true => queue.waiting.push_back(line),
            false => queue.lost += 1,
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Writes queued lines, for ever. Errors are ignored: a closed pipe is no reason to end.
    fn write(&self, to: &mut impl Write) -> ! {
        let mut queue = self.lock();
        loop {
            queue = match queue.waiting.front().cloned() {
                Some(line) => {
                    drop(queue);
                    let _ = writeln!(to, "{line}");
                    let mut queue = self.lock();
                    queue.waiting.pop_front();
                    if queue.waiting.is_empty() && queue.lost > 0 {
                        let lost = std::mem::take(&mut queue.lost);
                        let more = crate::output::count(lost, "line was", "lines were");
                        queue.waiting.push_back(format!(
                            "bonsai: {more} lost, as nobody read what was said"
                        ));
                    }
                    self.changed.notify_all();
                    queue
                }
                None => self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Waits until all lines are written, or for `limit`.
    fn settle(&self, limit: Duration) {
        let queue = self.lock();
        let waits = |queue: &mut Queue| !queue.waiting.is_empty();
        let _ = self.changed.wait_timeout_while(queue, limit, waits);
    }
}
