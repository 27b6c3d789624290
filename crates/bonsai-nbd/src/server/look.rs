//! Looks at an image now and then, by a thread of its own: a file system that hangs holds up nobody else.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Event, OnEvent, lock};
use crate::export::Export;

/// How often an image is looked at.
const LOOKS: Duration = Duration::from_secs(1);
/// How long the end of a look is waited for.
const LAST: Duration = Duration::from_secs(1);

/// The thread; it ends with this, or once its file system answers.
#[derive(Debug)]
pub(super) struct Look {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Look {
    /// `None` where there is no thread for it: its image is served all the same.
    pub(super) fn start(export: &Arc<Export>, on_event: &Arc<OnEvent>) -> Option<Self> {
        let over = Arc::<(Mutex<bool>, Condvar)>::default();
        let (export, tell, own) = (Arc::clone(export), Arc::clone(on_event), Arc::clone(&over));
        let thread = thread::Builder::new().name("nbd-look".to_owned());
        let thread = thread.spawn(move || {
            let mut said = None;
            while !waited(&own) {
                look(&export, &mut said, &tell);
            }
        });
        thread.ok().map(|thread| Self {
            over,
            thread: Some(thread),
        })
    }
}

/// Waits for the next look; true at the end.
fn waited((over, changed): &(Mutex<bool>, Condvar)) -> bool {
    let waited = changed.wait_timeout_while(lock(over), LOOKS, |over| !*over);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

fn look(export: &Export, said: &mut Option<&'static str>, tell: &Arc<OnEvent>) {
    let name = export.info().name.as_str();
    if export.look_outside() {
        let what = "another program may have written to the image, or a write is lost: its fingerprints are forgotten";
        tell(&Event::Image { export: name, what });
    }
    let condition = export.condition();
    if let Some(what) = condition.filter(|_| condition != *said) {
        tell(&Event::Image { export: name, what });
    }
    *said = condition;
}

impl Drop for Look {
    fn drop(&mut self) {
        *lock(&self.over.0) = true;
        self.over.1.notify_all();
        let end = Instant::now() + LAST;
        let Some(thread) = self.thread.take() else {
            return;
        };
        while !thread.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // A panic has told itself.
            let _ = thread.join();
        }
    }
}
