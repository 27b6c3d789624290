//! What is held of one image beside the map.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bonsai_dedup::drive::{Stamps, Volume};

use super::guard::{Guard, Guarding};
use super::scan::Progress;
use super::seen::Seen;
use super::{BLOCK, State};
use crate::export::add;
use crate::image::Image;

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
    pub(super) guard: Guard,
    pub(super) progress: Progress,
    /// It was forgotten, and nobody has asked since.
    told: AtomicBool,
}

impl Known {
    pub(super) fn new(
        image: &Arc<Image>,
        (volume, stamps): (Volume, Arc<Stamps>),
        guarding: Guarding,
    ) -> Self {
        Self {
            image: Arc::clone(image),
            volume,
            stamps,
            seen: Seen::new(image.size() / BLOCK),
            outside: AtomicU64::new(0),
            guard: Guard::of(image, guarding),
            progress: Progress::default(),
            told: AtomicBool::new(false),
        }
    }

    /// Whether the map may be believed about the image, as far as this process knows, and the image lead others.
    pub(super) fn is_believed(&self) -> bool {
        self.guard.is_up() && !self.image.has_lost_writes()
    }

    /// Why it is not.
    pub(super) fn problem(&self) -> Option<String> {
        match self.image.has_lost_writes() {
            true => Some(
                "a write to the image was lost; it shares nothing until the server is started anew"
                    .to_owned(),
            ),
            false => self.guard.problem(),
        }
    }

    /// Acts on what the kernel reports, with [`Guarding::Trust`]: whether somebody else wrote. Whatever was written before
    /// this is called, and is reported, is known no more when it returns.
    pub(super) fn look(&self, state: &State) -> bool {
        self.guard.act_on_report(|| {
            self.image.note_foreign_change();
            self.forget_changed(state);
        })
    }

    /// Whether it was forgotten since this was asked last.
    pub(super) fn told(&self) -> bool {
        self.told.swap(false, Ordering::SeqCst)
    }

    /// Forgets all that is known of it, as another program may have written to it.
    pub(super) fn forget_changed(&self, state: &State) {
        add(&self.outside, 1);
        self.told.store(true, Ordering::SeqCst);
        self.forget(state);
    }

    /// The same, as a write to it is lost.
    pub(super) fn forget_lost(&self, state: &State) {
        self.told.store(true, Ordering::SeqCst);
        self.forget(state);
    }

    /// Forgets all that is known of it.
    pub(super) fn forget(&self, state: &State) {
        state.forget_volume(self.volume);
        self.seen.clear();
        self.progress.set_done(0);
    }
}
