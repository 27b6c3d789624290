//! What has to hold before a plan is believed, and what follows where something did not.

use std::sync::Arc;

use bonsai_dedup::drive::{Stamp, Volume};

use super::known::Known;
use super::plan::{From, Plan};
use super::{BLOCK, Member};
use crate::image::Writeback;

impl Member {
    /// Whether the kernel reports that somebody else has changed one of the images that a plan is about. It comes after the
    /// map was asked: what was changed before the read came, and is reported, is noticed here.
    pub(super) fn is_outdated(&self, plan: &Plan) -> bool {
        let state = &self.sharing.state;
        let believed = plan.believed.iter();
        // All of them, also where the first has been changed.
        believed.filter(|known| known.look(state)).count() > 0
    }

    /// Whether all that a plan believed was true while its bytes were read: no other program could change one of the
    /// images, and no leader has lost what was written to it. It comes after they were read.
    pub(super) fn was_true(&self, plan: &Plan) -> bool {
        if plan.runs.iter().all(|run| matches!(run.from, From::Itself)) {
            return true;
        }
        if self.sharing.state.is_broken() {
            return false;
        }
        let guarded = |known: &Arc<Known>| known.guard.is_unbroken_since(&known.image, plan.began);
        if !plan.believed.iter().all(guarded) {
            return false;
        }
        // Also where blocks of one image lead each other.
        let leads = |known: &&Arc<Known>| {
            let mut runs = plan.runs.iter();
            runs.any(
                |run| matches!(run.from, From::Leader { volume, .. } if volume == known.volume),
            )
        };
        let mut leaders = plan.believed.iter().filter(leads);
        leaders.all(|known| match known.image.writeback() {
            Writeback::Sound => true,
            Writeback::Lost => {
                known.forget_lost(&self.sharing.state);
                false
            }
            Writeback::Unknown => false,
        })
    }

    /// What is answered as zeroes must have been looked at: only a hole is known to have them.
    pub(super) fn only_proven_zeroes(&self, plan: &mut Plan) {
        for run in &mut plan.runs {
            let (start, end) = (run.block * BLOCK, (run.block + run.count) * BLOCK);
            let hole = || matches!(self.image.extent(start, end), Ok((next, true)) if next >= end);
            if matches!(run.from, From::Zero) && !hole() {
                run.from = From::Itself;
                run.cold = true;
            }
        }
    }

    /// Leaders that have another content than the map says are known no more, so that nobody is sent there again.
    pub(super) fn unlearn(&self, (volume, first): (Volume, u64), stamps: &[Stamp], right: &[bool]) {
        let mut map = self.sharing.state.map_mut();
        for ((block, stamp), right) in (first..).zip(stamps).zip(right) {
            if !right && map.holds(volume, block, *stamp) {
                map.disbelieve(volume, block);
            }
        }
    }
}
