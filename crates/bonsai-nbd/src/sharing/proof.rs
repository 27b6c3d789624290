//! What has to hold before a plan is believed, and what follows where something did not.

use bonsai_dedup::drive::{Stamp, Volume};

use super::plan::{From, Plan};
use super::{BLOCK, Member};

impl Member {
    /// Whether somebody else has changed one of the images that a plan is about. It comes after the map was asked: what was
    /// changed before the read came is noticed here, whenever that is. Blocks that are read where they are need no map.
    pub(super) fn is_outdated(&self, plan: &Plan) -> bool {
        if plan.runs.iter().all(|run| matches!(run.from, From::Itself)) {
            return false;
        }
        let leaders = plan.runs.iter().filter_map(|run| match run.from {
            From::Leader { volume, .. } => Some(volume),
            _ => None,
        });
        let mut volumes: Vec<_> = leaders.chain([plan.volume]).collect();
        volumes.sort_unstable();
        volumes.dedup();
        let state = &self.sharing.state;
        let known = volumes.into_iter().filter_map(|of| state.known(of));
        // All of them, also where the first has been changed.
        known.filter(|known| known.look(state)).count() > 0
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
