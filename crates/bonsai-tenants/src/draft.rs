//! What the book is to say of a namespace, before the kernel is asked.

use std::collections::{BTreeMap, BTreeSet};

use bonsai_api::LinkState;
use bonsai_link::{Above, Link, NO_SHARES, Plan, Seen, Site, Wanted};

use crate::book::{Entry, GroupEntry, Held, Key, Room};
use crate::change::{check_speed, prune};
use crate::error::Error;
use crate::find::{uplink, uplink_of_groups, wrong};
use crate::keep::{Asked, AskedGroup};

/// It.
pub(crate) struct Draft {
    pub(crate) room: Room,
    /// Interfaces where somebody else's discipline is replaced.
    pub(crate) adopt: Vec<u32>,
    /// Interfaces and blocks that stay as they are for now.
    pub(crate) leave: BTreeSet<u32>,
    /// Targets that do not get what they want, and why.
    pub(crate) rejected: BTreeMap<String, (LinkState, String)>,
    /// Whose target is whose.
    names: BTreeMap<Key, String>,
    /// What there is of groups of processes.
    tree: BTreeMap<String, Above>,
}

impl Draft {
    /// The book as it is with what is asked for, as far as that can be together. `tree` is what there
    /// is of groups.
    pub(crate) fn new(
        before: &Room,
        seen: &Seen,
        asked: &[Asked<'_>],
        groups: &[AskedGroup<'_>],
        tree: BTreeMap<String, Above>,
    ) -> Self {
        let of_links = asked
            .iter()
            .map(|one| (Key::Link(one.found.link.index), one.name.to_owned()));
        let of_groups = groups
            .iter()
            .map(|one| (Key::Group(one.path.clone()), one.name.to_owned()));
        let mut draft = Self {
            room: before.clone(),
            adopt: Vec::new(),
            leave: BTreeSet::new(),
            rejected: BTreeMap::new(),
            names: of_links.chain(of_groups).collect(),
            tree,
        };
        prune(&mut draft.room, seen);
        draft.release();
        let mut new = BTreeMap::new();
        let of_links = asked.iter().map(|one| {
            let entry = draft.entry(one, seen);
            (
                one.name,
                Key::Link(one.found.link.index),
                entry.map(|of| Held::Link(Box::new(of))),
            )
        });
        let of_groups = groups.iter().map(|one| {
            let entry = draft.group(one, seen);
            (
                one.name,
                Key::Group(one.path.clone()),
                entry.map(Held::Group),
            )
        });
        let all: Vec<_> = of_links.chain(of_groups).collect();
        for (name, key, held) in all {
            match held {
                Ok(held) => drop(new.insert(key, held)),
                Err(error) => {
                    let state = match error.is_absent() {
                        true => LinkState::Waiting,
                        false => LinkState::Problem,
                    };
                    let rejected = (state, error.sentence());
                    draft.rejected.insert(name.to_owned(), rejected);
                }
            }
        }
        draft.take(new, &seen.links);
        draft
    }

    /// Says of which namespace it is, if anything is kept of it.
    pub(crate) fn of(&mut self, inode: u64, name: Option<&str>) {
        if self.room.is_empty() {
            self.room = Room::default();
            return;
        }
        self.room.inode = inode;
        self.room.name = name.map(str::to_owned);
    }

    /// Gives back what is configured no more.
    fn release(&mut self) {
        let names = &self.names;
        for (index, entry) in &mut self.room.links {
            let is_asked = names.contains_key(&Key::Link(*index));
            if entry.target.take_if(|_| !is_asked).is_some() {
                entry.terms = entry.hand.take().unwrap_or_default();
                entry.swapped = false;
            }
        }
        self.room.links.retain(|_, entry| !entry.is_over());
        let is_asked = |path: &String| names.contains_key(&Key::Group(path.clone()));
        self.room.groups.retain(|path, _| is_asked(path));
    }

    /// What the book is to say of a group.
    fn group(&self, asked: &AskedGroup<'_>, seen: &Seen) -> Result<GroupEntry, Error> {
        let uplink = match &asked.wish.uplink {
            Some(name) => bonsai_link::named(&seen.links, name)?.index,
            None => uplink_of_groups(asked.name, &seen.links)?,
        };
        let mut group = asked.wish.group(uplink).map_err(wrong)?;
        let had = self.room.groups.get(&asked.path);
        let had = had.filter(|had| had.group.share.uplink == uplink);
        group.class = had.and_then(|had| had.group.class);
        Ok(GroupEntry {
            target: asked.name.to_owned(),
            group,
        })
    }

    /// What the book is to say of a target.
    fn entry(&self, asked: &Asked<'_>, seen: &Seen) -> Result<Entry, Error> {
        let Asked { name, wish, found } = asked;
        let way_out = match &wish.uplink {
            _ if !wish.has_share() => None,
            Some(name) => Some(bonsai_link::named(&seen.links, name)?.index),
            None => Some(uplink(found, &seen.links)?),
        };
        let terms = wish.terms(found.swapped, way_out);
        check_speed(&found.link, &terms)?;
        let index = found.link.index;
        let had = self.room.links.get(&index).cloned();
        let mut entry = had.unwrap_or_else(|| Entry { ..Entry::default() });
        if entry.target.is_none() {
            entry.hand = Some(entry.terms).filter(|terms| !terms.is_nothing());
        }
        entry.name.clone_from(&found.link.name);
        entry.target = Some((*name).to_owned());
        entry.swapped = found.swapped;
        entry.terms = terms;
        Ok(entry)
    }

    /// Takes all that can be in force together; of the others, what was there stays.
    fn take(&mut self, mut new: BTreeMap<Key, Held>, links: &[Link]) {
        let had = self.room.clone();
        for (key, held) in &new {
            self.room.put(key, Some(held.clone()));
        }
        if self.check(links).is_ok() {
            return;
        }
        self.room = had;
        // Uplinks first: what has a share stands on them. A second turn may find room.
        let mut order: Vec<Key> = new.keys().cloned().collect();
        order.sort_by_key(|key| match &new[key] {
            Held::Link(entry) => entry.terms.share.is_some(),
            Held::Group(_) => true,
        });
        loop {
            let left = new.len();
            for key in &order {
                let Some(held) = new.remove(key) else {
                    continue;
                };
                let had = self.room.get(key);
                self.room.put(key, Some(held.clone()));
                let Err(error) = self.check(links) else {
                    self.rejected.remove(&self.names[key]);
                    continue;
                };
                self.room.put(key, had);
                self.reject(key, &Error::from(error).sentence());
                new.insert(key.clone(), held);
            }
            if new.len() == left {
                return;
            }
        }
    }

    fn check(&self, links: &[Link]) -> Result<(), bonsai_link::Error> {
        self.room.wanted().check(links)
    }

    /// Reads what somebody else has where a target is to be, if it may be replaced.
    pub(crate) fn save_what_others_have(
        &mut self,
        asked: &Asked<'_>,
        site: &mut Site,
        seen: &Seen,
    ) {
        let index = asked.found.link.index;
        let Some(entry) = self.room.links.get_mut(&index) else {
            return;
        };
        let there = entry.terms.tx.is_some() && seen.foreign.contains_key(&index);
        if !there || !asked.wish.adopt {
            return;
        }
        if entry.adopted.is_none() {
            match site.save(&asked.found.link) {
                Ok(saved) => entry.adopted = Some(saved),
                Err(error) => {
                    let text = Error::from(error).sentence();
                    let rejected = (LinkState::Problem, text);
                    self.rejected.insert(asked.name.to_owned(), rejected);
                    return;
                }
            }
        }
        self.adopt.push(index);
    }

    /// What the kernel is asked for: all but limits where somebody else's discipline is, and shares
    /// of those, or all where the kernel can have none.
    pub(crate) fn wanted(&mut self, seen: &Seen) -> Wanted {
        let mut wanted = self.room.wanted();
        let mut blocked = BTreeSet::new();
        for (index, entry) in &self.room.links {
            let Some(qdisc) = seen.foreign.get(index) else {
                continue;
            };
            let replaced = self.adopt.contains(index);
            if entry.terms.tx.is_none() || replaced {
                continue;
            }
            blocked.insert(*index);
            if let Some(name) = &entry.target {
                let text = format!(
                    "{} has a queueing discipline that somebody else made ({} {}): adopt = true \
                     takes its place, and it is back afterwards",
                    entry.name, qdisc.kind, qdisc.handle
                );
                self.rejected
                    .entry(name.clone())
                    .or_insert((LinkState::Problem, text));
            }
        }
        for (index, terms) in &mut wanted.links {
            if blocked.contains(index) {
                terms.tx = None;
            }
        }
        self.without_shares(seen, &blocked, &mut wanted);
        let above = wanted.above();
        let tree = self.tree.iter();
        let tree = tree.filter(|(path, _)| above.contains(path.as_str()));
        let tree = tree
            .map(|(path, above)| (path.clone(), above.clone()))
            .collect();
        wanted.tree = tree;
        wanted
    }

    /// Takes shares of uplinks without a limit out of what is wanted, and all where there can be none.
    fn without_shares(&mut self, seen: &Seen, blocked: &BTreeSet<u32>, wanted: &mut Wanted) {
        let mut shares = wanted.links.values().filter(|terms| terms.share.is_some());
        if wanted.groups.is_empty() && shares.next().is_none() {
            return;
        }
        let none = seen.plan() == Plan::U32;
        let why = |room: &Room, uplink: u32| {
            if none {
                return NO_SHARES.to_owned();
            }
            let uplink = room.links.get(&uplink);
            let uplink = uplink.map_or("its uplink", |entry| entry.name.as_str());
            format!("{uplink} has no tx limit in force that could be shared")
        };
        let is_out = |uplink: u32| none || blocked.contains(&uplink);
        let mut out = Vec::new();
        for (index, terms) in &mut wanted.links {
            if let Some(share) = terms.share.take_if(|share| is_out(share.uplink)) {
                let entry = self.room.links.get(index);
                let name = entry.and_then(|entry| entry.target.clone());
                out.extend(name.map(|name| (name, why(&self.room, share.uplink))));
            }
        }
        wanted.groups.retain(|path, group| {
            let uplink = group.share.uplink;
            let entry = self.room.groups.get(path);
            if let Some(entry) = entry.filter(|_| is_out(uplink)) {
                out.push((entry.target.clone(), why(&self.room, uplink)));
            }
            !is_out(uplink)
        });
        for (name, why) in out {
            let rejected = (LinkState::Problem, why);
            self.rejected.entry(name).or_insert(rejected);
        }
    }

    /// Interfaces and groups of which the book says something else; uplinks first.
    pub(crate) fn changed_since(&self, before: &Room) -> Vec<Key> {
        let of = |room: &Room| {
            let links = room.links.keys().map(|index| Key::Link(*index));
            let groups = room.groups.keys().map(|path| Key::Group(path.clone()));
            links.chain(groups).collect::<Vec<_>>()
        };
        let keys: BTreeSet<Key> = of(before).into_iter().chain(of(&self.room)).collect();
        // What is wanted: not for whom, nor what others had there.
        let terms = |room: &Room, key: &Key| match room.get(key) {
            Some(Held::Link(entry)) => (Some(entry.terms), None),
            Some(Held::Group(entry)) => (None, Some(entry.group)),
            None => (None, None),
        };
        let mut changed: Vec<Key> = keys
            .into_iter()
            .filter(|key| terms(before, key) != terms(&self.room, key))
            .collect();
        changed.sort_by_key(|key| match terms(&self.room, key) {
            (Some(terms), _) => terms.share.is_some(),
            (None, group) => group.is_some(),
        });
        changed
    }

    /// Says why an interface or a group is not as its target wants it.
    pub(crate) fn reject(&mut self, key: &Key, why: &str) {
        if let Some(name) = self.names.get(key) {
            let rejected = (LinkState::Problem, why.to_owned());
            self.rejected.insert(name.clone(), rejected);
        }
    }

    /// Says why the limit of a target may not hold, unless it is not as it is wanted anyway.
    pub(crate) fn doubt(&mut self, name: &str, why: String) {
        let rejected = (LinkState::Problem, why);
        self.rejected.entry(name.to_owned()).or_insert(rejected);
    }

    /// Leaves an interface or a block as it is for now, and says why to all that stand on it.
    pub(crate) fn leave(&mut self, device: u32, why: &str) {
        self.leave.insert(device);
        let is_link = self.room.links.contains_key(&device);
        let links = self.room.links.iter().filter(|(index, entry)| {
            let uplink = entry.terms.share.as_ref().map(|share| share.uplink);
            let by_block = !is_link && entry.terms.rx.is_some();
            **index == device || uplink == Some(device) || by_block
        });
        let groups = self.room.groups.iter();
        let groups = groups.filter(|(_, entry)| entry.group.share.uplink == device);
        let keys: Vec<Key> = links
            .map(|(index, _)| Key::Link(*index))
            .chain(groups.map(|(path, _)| Key::Group(path.clone())))
            .collect();
        for key in keys {
            self.reject(&key, why);
        }
    }

    /// Brings back what others had where there is no limit any more.
    pub(crate) fn bring_back(&mut self, site: &mut Site, problems: &mut Vec<String>) {
        for (index, entry) in &mut self.room.links {
            // One that cannot be taken away stays due.
            if entry.going && site.tidy_places([*index].into_iter()).is_ok() {
                entry.going = false;
            }
            if entry.terms.tx.is_some() {
                continue;
            }
            let Some(adopted) = entry.adopted.take() else {
                continue;
            };
            if let Err(error) = site.bring_back(*index, &adopted) {
                let text = Error::from(error).sentence();
                problems.push(format!(
                    "the {} of {} is not back: {text}",
                    adopted.kind(),
                    entry.name
                ));
            }
        }
        self.room.links.retain(|_, entry| !entry.is_over());
    }
}
