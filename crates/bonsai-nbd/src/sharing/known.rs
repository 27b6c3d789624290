//! What is held of one image beside the map.

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bonsai_dedup::drive::{Stamps, Volume};

use super::seen::Seen;
use super::{BLOCK, State};
use crate::export::add;
use crate::image::{Image, Watch};

/// An image, and its number in the map.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) image: Arc<Image>,
    pub(super) volume: Volume,
    /// By which changes of it are noticed, without the lock of the map.
    pub(super) stamps: Arc<Stamps>,
    /// Blocks that were given to the learner.
    pub(super) seen: Seen,
    /// How often everything was forgotten, as somebody else wrote to the image.
    pub(super) outside: AtomicU64,
    /// Held while what it tells is acted on, so that nobody believes the map in between. `None` where
    /// the kernel does not tell.
    watch: Mutex<Option<Watch>>,
    /// It told, and nobody has asked since.
    told: AtomicBool,
}

impl Known {
    pub(super) fn new(image: &Arc<Image>, volume: Volume, stamps: Arc<Stamps>) -> Self {
        // Where it cannot be watched, its times have to do.
        let watch = Watch::new(image.file().as_fd()).ok();
        Self {
            image: Arc::clone(image),
            volume,
            stamps,
            seen: Seen::new(image.size() / BLOCK),
            outside: AtomicU64::new(0),
            watch: Mutex::new(watch),
            told: AtomicBool::new(false),
        }
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// Acts on what the kernel tells: whether somebody else wrote. Whatever was written before this is
    /// called is known no more when it returns.
    pub(super) fn look(&self, state: &State) -> bool {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = watch.as_ref().is_some_and(Watch::is_changed);
        if changed {
            add(&self.outside, 1);
            self.told.store(true, Ordering::SeqCst);
            self.forget(state);
        }
        changed
    }

    /// Whether the kernel has told since this was asked last.
    pub(super) fn told(&self) -> bool {
        self.told.swap(false, Ordering::SeqCst)
    }

    /// Forgets all that is known of it.
    pub(super) fn forget(&self, state: &State) {
        state.forget_volume(self.volume);
        self.seen.clear();
    }
}
