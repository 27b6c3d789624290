//! Objects that other programs have changed: put right at once, or left for a while where they go on. Each object by itself: a
//! conflict about one keeps no other from its limit.

use std::collections::BTreeMap;
use std::time::Instant;

use bonsai_link::Wanted;

use super::Keeper;
use crate::draft::Draft;
use crate::fights::Verdict;

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// Whether anything is to be done.
    pub(super) goes_on: bool,
    pub(super) repairs: u64,
    /// Repairs, in words, without those of conflicts.
    pub(super) mended: Vec<String>,
    /// Conflicts that have begun, in words.
    pub(super) fights: Vec<String>,
}

impl Keeper {
    /// Decides what becomes of each object that is not as it is wanted; those that are left are said in the draft.
    pub(super) fn judge(
        &mut self,
        cookie: u64,
        wanted: &Wanted,
        differences: Vec<(u32, String)>,
        draft: &mut Draft,
        now: Instant,
    ) -> Decided {
        let mut first = BTreeMap::new();
        for (device, what) in differences {
            first.entry(device).or_insert(what);
        }
        let mut decided = Decided::default();
        for (device, what) in first {
            let made = self.made.get(&cookie);
            if !made.is_some_and(|made| is_same(made, wanted, device)) {
                decided.goes_on = true;
                continue;
            }
            // It was so: another program has changed it.
            let was_on = self.fights.is_about(&(cookie, device), now);
            match self.fights.judge((cookie, device), now) {
                Verdict::Wait(wait) => {
                    let seconds = wait.as_secs_f64().ceil();
                    let text = format!(
                        "another program keeps reverting this ({what}); it is repaired again in {seconds} s"
                    );
                    draft.leave(device, &text);
                    continue;
                }
                Verdict::Mend if !was_on => decided.mended.push(what),
                Verdict::Mend => {}
                Verdict::MendAndSay => decided.fights.push(what),
            }
            decided.goes_on = true;
            decided.repairs += 1;
        }
        decided
    }
}

/// Whether the same is wanted of a device in both; of a block, of all.
fn is_same(made: &Wanted, wanted: &Wanted, device: u32) -> bool {
    let (Some(had), Some(has)) = (made.links.get(&device), wanted.links.get(&device)) else {
        return made == wanted;
    };
    let shares = |of: &Wanted| {
        let of_it = of.links.iter().filter(|(_, terms)| {
            let share = terms.share.as_ref();
            share.is_some_and(|share| share.uplink == device)
        });
        of_it
            .map(|(index, terms)| (*index, terms.clone()))
            .collect::<Vec<_>>()
    };
    let has_groups = |of: &Wanted| of.groups.values().any(|group| group.share.uplink == device);
    let groups = !has_groups(made) && !has_groups(wanted)
        || made.groups == wanted.groups && made.tree == wanted.tree;
    had == has && shares(made) == shares(wanted) && groups
}
