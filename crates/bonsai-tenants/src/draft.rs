//! What the book is to say of a namespace, before the kernel is asked.

use std::collections::{BTreeMap, BTreeSet};

use bonsai_api::LinkState;
use bonsai_link::{Link, Seen, Site, Wanted};

use crate::book::{Entry, Room};
use crate::change::{check_speed, prune};
use crate::error::Error;
use crate::find::uplink;
use crate::keep::Asked;

/// It.
pub(crate) struct Draft {
    pub(crate) room: Room,
    /// Interfaces where somebody else's discipline is replaced.
    pub(crate) adopt: Vec<u32>,
    /// Targets that do not get what they want, and why.
    pub(crate) rejected: BTreeMap<String, (LinkState, String)>,
}

impl Draft {
    /// The book as it is with what is asked for, as far as that can be together.
    pub(crate) fn new(before: &Room, seen: &Seen, asked: &[Asked<'_>]) -> Self {
        let mut draft = Self {
            room: before.clone(),
            adopt: Vec::new(),
            rejected: BTreeMap::new(),
        };
        prune(&mut draft.room, &seen.links);
        draft.release(asked);
        let mut new = BTreeMap::new();
        for one in asked {
            match draft.entry(one, seen) {
                Ok(entry) => drop(new.insert(one.found.link.index, (one.name, entry))),
                Err(error) => {
                    let state = match error.is_absent() {
                        true => LinkState::Waiting,
                        false => LinkState::Problem,
                    };
                    let rejected = (state, error.sentence());
                    draft.rejected.insert(one.name.to_owned(), rejected);
                }
            }
        }
        draft.take(new, &seen.links);
        draft
    }

    /// Says of which namespace it is, if anything is kept of it.
    pub(crate) fn of(&mut self, inode: u64, name: Option<&str>) {
        if self.room.links.is_empty() {
            self.room = Room::default();
            return;
        }
        self.room.inode = inode;
        self.room.name = name.map(str::to_owned);
    }

    /// Gives back what is configured no more.
    fn release(&mut self, asked: &[Asked<'_>]) {
        let is_asked = |index: &u32| asked.iter().any(|one| one.found.link.index == *index);
        for (index, entry) in &mut self.room.links {
            if entry.target.take_if(|_| !is_asked(index)).is_some() {
                entry.terms = entry.hand.take().unwrap_or_default();
                entry.swapped = false;
            }
        }
        self.room.links.retain(|_, entry| !entry.is_over());
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

    /// Takes all entries that can be in force together; of the others, what was there stays.
    fn take(&mut self, mut new: BTreeMap<u32, (&str, Entry)>, links: &[Link]) {
        let had = self.room.links.clone();
        let all = new
            .iter()
            .map(|(index, (_, entry))| (*index, entry.clone()));
        self.room.links.extend(all);
        if self.room.wanted().check(links).is_ok() {
            return;
        }
        self.room.links = had;
        // Uplinks first: what has a share stands on them. A second turn may find room.
        let mut order: Vec<u32> = new.keys().copied().collect();
        order.sort_by_key(|index| new[index].1.terms.share.is_some());
        loop {
            let left = new.len();
            for index in &order {
                let Some((name, entry)) = new.remove(index) else {
                    continue;
                };
                let had = self.room.links.insert(*index, entry.clone());
                let Err(error) = self.room.wanted().check(links) else {
                    self.rejected.remove(name);
                    continue;
                };
                self.room.links.remove(index);
                self.room.links.extend(had.map(|had| (*index, had)));
                let text = Error::from(error).sentence();
                self.rejected
                    .insert(name.to_owned(), (LinkState::Problem, text));
                new.insert(*index, (name, entry));
            }
            if new.len() == left {
                return;
            }
        }
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
    /// of those.
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
            if let Some(share) = terms.share.take_if(|share| blocked.contains(&share.uplink)) {
                let name = self.room.links.get(index);
                let name = name.and_then(|entry| entry.target.clone());
                let uplink = self.room.links.get(&share.uplink);
                let uplink = uplink.map_or("its uplink", |entry| entry.name.as_str());
                let text = format!("{uplink} has no tx limit in force that could be shared");
                if let Some(name) = name {
                    self.rejected
                        .entry(name)
                        .or_insert((LinkState::Problem, text));
                }
            }
        }
        wanted
    }

    /// Interfaces of which the book says something else; uplinks first.
    pub(crate) fn changed_since(&self, before: &Room) -> Vec<u32> {
        let indices: BTreeSet<u32> = before
            .links
            .keys()
            .chain(self.room.links.keys())
            .copied()
            .collect();
        let terms = |room: &Room, index| room.links.get(&index).map(|entry| entry.terms.clone());
        let mut changed: Vec<u32> = indices
            .into_iter()
            .filter(|index| terms(before, *index) != terms(&self.room, *index))
            .collect();
        changed.sort_by_key(|index| {
            let terms = terms(&self.room, *index);
            terms.is_some_and(|terms| terms.share.is_some())
        });
        changed
    }

    /// Says why an interface is not as its target wants it.
    pub(crate) fn reject(&mut self, asked: &[Asked<'_>], index: u32, why: &str) {
        for one in asked.iter().filter(|one| one.found.link.index == index) {
            let rejected = (LinkState::Problem, why.to_owned());
            self.rejected.insert(one.name.to_owned(), rejected);
        }
    }

    /// Says the same of all targets.
    pub(crate) fn reject_all(&mut self, asked: &[Asked<'_>], why: &str) {
        for one in asked {
            self.reject(asked, one.found.link.index, why);
        }
    }

    /// Brings back what others had where there is no limit any more.
    pub(crate) fn bring_back(&mut self, site: &mut Site, problems: &mut Vec<String>) {
        for (index, entry) in &mut self.room.links {
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
