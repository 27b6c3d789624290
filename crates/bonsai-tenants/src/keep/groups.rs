//! Groups of processes among what is kept: found, heard of, and entered.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use bonsai_api::LinkState;
use bonsai_cgroup::systemd_runs;
use bonsai_link::groups::above;
use bonsai_link::{Handle, Seen};

use super::{Granted, Keeper, Round, problem};
use crate::book::GroupEntry;
use crate::draft::Draft;
use crate::error::Error;
use crate::find::{Whose, wrong};
use crate::tree::Tree;
use crate::wish::Wish;

/// A group of processes that is a target.
pub(crate) struct AskedGroup<'a> {
    pub(crate) name: &'a str,
    pub(crate) wish: &'a Wish,
    pub(crate) path: String,
}

impl Keeper {
    /// What has become of a group.
    pub(super) fn granted(
        &mut self,
        cookie: u64,
        asked: &AskedGroup<'_>,
        draft: &mut Draft,
    ) -> Granted {
        let Some(entry) = draft.room.groups.get(&asked.path) else {
            let why = draft.rejected.remove(asked.name);
            let (state, why) = why.map_or((LinkState::Problem, None), |(state, why)| {
                (state, Some(why))
            });
            return Granted {
                state,
                why,
                ..Granted::default()
            };
        };
        let group = entry.group.clone();
        let uplink = group.share.uplink;
        let class = self
            .gate
            .as_ref()
            .and_then(|(_, gate)| gate.class(&asked.path));
        let mut granted = Granted {
            state: LinkState::InForce,
            class: class.map(|class| (cookie, uplink, class)),
            ..Granted::default()
        };
        if let Some((state, why)) = draft.rejected.remove(asked.name) {
            (granted.state, granted.why) = (state, Some(why));
            return granted;
        }
        self.tuning
            .placed_group(cookie, asked.name, &asked.path, uplink);
        let there = self.made.get(&cookie).and_then(|made| made.id(&asked.path));
        if there.is_none() {
            granted.state = LinkState::Waiting;
            granted.why = Some(format!(
                "there is no group {} now: what comes there is limited from its first packet on",
                asked.path
            ));
        }
        granted
    }

    /// The groups of processes that are wanted, by path, as far as they can be found; `had` is where
    /// the book has them.
    pub(super) fn groups<'a>(
        &mut self,
        wishes: &'a BTreeMap<String, Wish>,
        had: &BTreeMap<String, GroupEntry>,
        round: &mut Round,
    ) -> Vec<AskedGroup<'a>> {
        // Finding interfaces may have taken a while.
        self.newcomers();
        for (path, entry) in had {
            // A systemd that cannot be asked just now has not moved it.
            if let Some(unit) = entry.target.strip_prefix("unit:") {
                self.units
                    .entry(unit.to_owned())
                    .or_insert_with(|| path.clone());
            }
        }
        let mut asked: Vec<AskedGroup<'a>> = Vec::new();
        for (name, wish) in wishes {
            let Whose::Group(target) = wish.target.whose() else {
                continue;
            };
            let path = self.path(target);
            let path = path.map_err(|error| error.sentence()).and_then(|path| {
                let first = asked.iter().find(|one| one.path == path);
                first.map_or(Ok(path), |first| {
                    Err(format!(
                        "it is the same group as {}, which has a limit already",
                        first.name
                    ))
                })
            });
            match path {
                Ok(path) => asked.push(AskedGroup { name, wish, path }),
                Err(why) => drop(round.granted.insert(name.clone(), problem(why))),
            }
        }
        if asked.is_empty() {
            (self.tree, self.gate) = (None, None);
            self.units.clear();
            return asked;
        }
        let all = asked.iter().flat_map(|one| above(&one.path));
        let all: BTreeSet<String> = all.map(str::to_owned).collect();
        let wrong = match &mut self.tree {
            Some(tree) => tree.want(all),
            None => BTreeMap::new(),
        };
        asked.retain(|one| {
            let why = above(&one.path).find_map(|path| wrong.get(path));
            if let Some(why) = why {
                round
                    .granted
                    .insert(one.name.to_owned(), problem(why.clone()));
            }
            why.is_none()
        });
        asked
    }

    /// The path of a group. Where a unit is, is asked once, and again while it is not there.
    fn path(&mut self, target: &bonsai_cgroup::Target) -> Result<String, Error> {
        let tree = match &mut self.tree {
            Some(tree) => tree,
            none => none.insert(Tree::open()?),
        };
        let bonsai_cgroup::Target::Unit(unit) = target else {
            return tree.unified().path(target).map_err(wrong);
        };
        if let Some(path) = self.units.get(unit)
            && tree.unified().folder(path).is_dir()
        {
            return Ok(path.clone());
        }
        let found = tree.unified().path(target).map_err(wrong);
        match (found, self.units.get(unit)) {
            (Ok(path), _) => {
                self.units.insert(unit.clone(), path.clone());
                Ok(path)
            }
            (Err(_), Some(path)) if systemd_runs() => Ok(path.clone()),
            (Err(error), _) => Err(error),
        }
    }

    /// Remembers the classes of groups, and where newcomers are entered.
    pub(super) fn open_gate(
        &mut self,
        cookie: u64,
        draft: &mut Draft,
        seen: &Seen,
    ) -> Result<(), Error> {
        self.gate = None;
        let Some(made) = self.made.get(&cookie) else {
            return Ok(());
        };
        self.gate = seen.gate(made)?.map(|gate| (cookie, gate));
        for (path, entry) in &mut draft.room.groups {
            let class = self.gate.as_ref().and_then(|(_, gate)| gate.class(path));
            entry.group.class = class.map(Handle::minor).or(entry.group.class);
        }
        Ok(())
    }

    /// What can be read when groups of processes have come or gone: then it is time for
    /// [`Keeper::newcomers`]. Nothing where none is limited.
    #[must_use]
    pub fn ears(&self) -> Option<BorrowedFd<'_>> {
        self.tree.as_ref().map(Tree::ears)
    }

    /// Enters groups of processes that have come, and forgets those that have gone, without a round:
    /// until then they are held in the class of the strictest limited group near them. Whoever does not
    /// call this, because the daemon has ended, leaves them there. Whether a round is to follow.
    pub fn newcomers(&mut self) -> bool {
        let Some(tree) = &mut self.tree else {
            return false;
        };
        let Ok(moved) = tree.hear() else {
            return true;
        };
        let Some((cookie, gate)) = self.gate.as_ref().filter(|_| !moved.is_empty()) else {
            return false;
        };
        let mut follows = false;
        for one in &moved {
            let left = one.was.map_or(Ok(()), |id| gate.leave(&one.path, id));
            let entered = one.now.map_or(Ok(()), |id| gate.enter(&one.path, id));
            follows |= left.is_err() || entered.is_err() || gate.class(&one.path).is_some();
        }
        if let Some(made) = self.made.get_mut(cookie) {
            tree.update(&mut made.tree, &moved);
        }
        follows
    }
}
