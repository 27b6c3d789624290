//! Limits, changed and taken away.
//!
//! ```text
//!   lock the book ── write what is to be ── make it so ──> done
//!                            │                  │ refused: nothing was changed
//!                            │                  └──> write what was
//!                            └ killed here: whoever comes next makes it so
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bonsai_host::tenants::{Roots, Tenants};
use bonsai_link::{Link, Seen, Share, Site, Terms, rate_text};

use crate::ask::{Ask, Change};
use crate::book::{Book, Entry, Room};
use crate::error::Error;
use crate::find::{Found, uplink, wrong};
use crate::tree::whole;

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// The interface that is limited, by name.
    pub interface: String,
    /// What is in force now, of that interface.
    pub terms: Terms,
    /// The uplink's name, if it has a share of one.
    pub uplink: Option<String>,
    /// How many steps it took; 0 if it was so already.
    pub steps: usize,
    /// Why it may not hold, though all that it takes is there, in words.
    pub doubt: Option<String>,
    /// What is to be known about it, in words.
    pub notes: Vec<String>,
}

/// What was taken away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Interfaces that had limits, with the names of their namespaces.
    pub interfaces: Vec<String>,
    /// What others had there and what was brought back, in words.
    pub notes: Vec<String>,
}

/// What was done to make a namespace as the book says.
#[derive(Debug)]
pub struct Healed {
    /// What it is called; nothing for ours.
    pub namespace: Option<String>,
    /// How many steps it took, or why it could not be.
    pub steps: Result<usize, Error>,
}

/// Changes what an interface is limited to.
///
/// # Errors
/// If it makes no sense, or the kernel refuses it: then nothing was changed.
pub fn set(folder: &Path, found: &Found, ask: &Ask, adopt: bool) -> Result<Set, Error> {
    need_root()?;
    let mut book = Book::lock(folder)?;
    let mut site = found.site()?;
    let cookie = site.cookie()?;
    let mut seen = site.see()?;
    prune(book.room(cookie), &seen);
    let before = book.room(cookie).clone();
    let mut notes = Vec::new();

    let room = book.room(cookie);
    room.inode = found.inode;
    room.name.clone_from(&found.namespace_name);
    let index = found.link.index;
    let had = room
        .links
        .get(&index)
        .and_then(|entry| entry.terms.share.as_ref());
    let way_out = way_out(found, ask, had, &seen.links)?;
    let entry = room.links.entry(index).or_insert_with(|| Entry {
        name: found.link.name.clone(),
        ..Entry::default()
    });
    entry.name.clone_from(&found.link.name);
    // From now on it is what was said by hand.
    (entry.target, entry.swapped, entry.hand) = (None, false, None);
    for change in &ask.changes {
        change.make(&mut entry.terms, way_out, found.swapped);
    }
    if let (Some(share), Some(way_out)) = (&mut entry.terms.share, way_out) {
        share.uplink = way_out;
    }
    check_speed(&found.link, &entry.terms)?;
    let terms = entry.terms.clone();
    let mut adopted = Vec::new();
    if adopt && terms.tx.is_some() && seen.foreign.contains_key(&index) {
        let saved = site.save(&found.link)?;
        notes.push(format!(
            "the {} of {} was taken over; clear brings it back",
            saved.kind(),
            found.link.name
        ));
        entry.adopted = Some(saved);
        adopted.push(index);
    }
    // What others had there is kept in the book until it is back: an entry without a limit says that it is to come back.
    let back = entry.adopted.as_ref().filter(|_| terms.tx.is_none());
    let back = back.map(|back| back.kind().to_owned());
    if entry.is_over() {
        room.links.remove(&index);
    }
    room.keep_what_is_due(&before);
    let wanted = whole(room)?;
    book.save()?;
    let done = match site.apply_to(&mut seen, &wanted, &adopted) {
        Ok(done) => done,
        Err(error) => {
            // A part that could not be taken back is made whole by whoever comes next.
            if !matches!(error, bonsai_link::Error::Torn { .. }) {
                *book.room(cookie) = before;
                book.save()?;
            }
            return Err(error.into());
        }
    };
    if finish(&mut site, book.room(cookie))? {
        book.save()?;
    }
    if let Some(kind) = back {
        notes.push(format!("the {kind} of {} is back", found.link.name));
    }
    if found.inside {
        notes.push(format!(
            "it is limited inside its namespace: whoever is root there can take the limit away \
             ({} has no other end in this one)",
            found.link.name
        ));
    }
    let doubt = match terms.is_nothing() {
        true => None,
        false => site.see()?.doubt(&wanted, index),
    };
    let name = |index: u32| seen.links.iter().find(|link| link.index == index);
    let uplink = terms.share.as_ref().and_then(|share| name(share.uplink));
    Ok(Set {
        interface: found.link.name.clone(),
        uplink: uplink.map(|link| link.name.clone()),
        terms,
        steps: done.steps,
        doubt,
        notes,
    })
}

/// Does what is due where limits are no more: brings back what others had, and takes empty places for filters away; also what
/// an earlier command was to do when it was killed. Whether there was something.
///
/// # Errors
/// The kernel refuses it: it stays in the book.
pub(crate) fn finish(site: &mut Site, room: &mut Room) -> Result<bool, Error> {
    let mut some = false;
    for (index, entry) in &mut room.links {
        if entry.going {
            site.tidy_places([*index].into_iter())?;
            entry.going = false;
            some = true;
        }
        let Some(adopted) = entry.adopted.as_ref().filter(|_| entry.terms.tx.is_none()) else {
            continue;
        };
        site.bring_back(*index, adopted)?;
        entry.adopted = None;
        some = true;
    }
    room.links.retain(|_, entry| !entry.is_over());
    Ok(some)
}

/// The uplink of a share: the one that is said, that there is, or that the routes say.
fn way_out(
    found: &Found,
    ask: &Ask,
    had: Option<&Share>,
    links: &[Link],
) -> Result<Option<u32>, Error> {
    if let Some(name) = &ask.uplink {
        return Ok(Some(bonsai_link::named(links, name)?.index));
    }
    if let Some(share) = had {
        return Ok(Some(share.uplink));
    }
    let wanted = ask.changes.iter().copied().any(Change::is_share);
    wanted.then(|| uplink(found, links)).transpose()
}

/// A limit above what the line carries would never act.
pub(crate) fn check_speed(link: &Link, terms: &Terms) -> Result<(), Error> {
    check_line(Path::new("/sys/class/net"), link, terms)
}

fn check_line(net: &Path, link: &Link, terms: &Terms) -> Result<(), Error> {
    // What has no device below it has no line either, whatever it says.
    let folder = net.join(&link.name);
    if link.kind.is_some() || !folder.join("device").exists() {
        return Ok(());
    }
    let speed = std::fs::read_to_string(folder.join("speed")).unwrap_or_default();
    let Some(mbit) = speed.trim().parse::<u64>().ok().filter(|mbit| *mbit > 0) else {
        return Ok(());
    };
    for (what, rate) in [("tx", terms.tx), ("rx", terms.rx)] {
        if let Some(rate) = rate.filter(|rate| *rate > mbit * 125_000) {
            return Err(wrong(format!(
                "{what}={} is more than the line of {} carries: {mbit}Mbit/s",
                rate_text(rate),
                link.name
            )));
        }
    }
    Ok(())
}

/// Forgets interfaces that are gone, and shares of uplinks that are. One that has the number of another and neither its name
/// nor anything of ours is another one: what we make goes with the interface, and stays when that is renamed.
pub(crate) fn prune(room: &mut Room, seen: &Seen) {
    let links: BTreeMap<u32, &Link> = seen.links.iter().map(|link| (link.index, link)).collect();
    room.links.retain(|index, entry| {
        let link = links.get(index);
        let same =
            link.filter(|link| link.name == entry.name || seen.has_something_of_ours(*index));
        if let Some(link) = same {
            entry.name.clone_from(&link.name);
        }
        same.is_some()
    });
    // An uplink has a limit, or it is none.
    let uplinks: BTreeSet<u32> = room.links.keys().copied().collect();
    for entry in room.links.values_mut() {
        let uplink = entry.terms.share.as_ref().map(|share| share.uplink);
        if uplink.is_some_and(|uplink| !uplinks.contains(&uplink)) {
            entry.terms.share = None;
        }
    }
    room.links.retain(|_, entry| !entry.is_over());
    room.groups
        .retain(|_, entry| uplinks.contains(&entry.group.share.uplink));
}

/// Takes the limits of an interface away, or all of them: what was there before is back.
///
/// # Errors
/// If the kernel refuses it, or others have shares of an uplink that would go.
pub fn clear(folder: &Path, found: Option<&Found>) -> Result<Cleared, Error> {
    need_root()?;
    let mut book = Book::lock(folder)?;
    let mut cleared = Cleared::default();
    let sites = match found {
        Some(found) => {
            let site = found.site()?;
            BTreeMap::from([(site.cookie()?, site)])
        }
        None => sites(&mut book)?,
    };
    for (cookie, mut site) in sites {
        let mut seen = site.see()?;
        prune(book.room(cookie), &seen);
        let room = book.room(cookie);
        let before = room.clone();
        let gone: BTreeMap<u32, Entry> = match found {
            Some(found) => {
                let gone = room.links.remove_entry(&found.link.index);
                let shares = |entry: &&Entry| {
                    entry.terms.share.as_ref().map(|share| share.uplink) == Some(found.link.index)
                };
                let groups = room.groups.values();
                let groups = groups.filter(|entry| entry.group.share.uplink == found.link.index);
                let groups = groups.map(|entry| entry.target.as_str());
                let others: Vec<&str> = room
                    .links
                    .values()
                    .filter(shares)
                    .map(|entry| entry.name.as_str())
                    .chain(groups)
                    .collect();
                if !others.is_empty() {
                    return Err(wrong(format!(
                        "{} is the uplink of {}: clear those first",
                        found.link.name,
                        others.join(", ")
                    )));
                }
                gone.into_iter().collect()
            }
            None => {
                let groups = std::mem::take(&mut room.groups).into_values();
                cleared.interfaces.extend(groups.map(|entry| entry.target));
                std::mem::take(&mut room.links)
            }
        };
        room.keep_what_is_due(&before);
        let wanted = whole(room)?;
        book.save()?;
        if let Err(error) = site.apply_to(&mut seen, &wanted, &[]) {
            if !matches!(error, bonsai_link::Error::Torn { .. }) {
                *book.room(cookie) = before;
                book.save()?;
            }
            return Err(error.into());
        }
        finish(&mut site, book.room(cookie))?;
        for entry in gone.into_values() {
            if entry.terms.is_nothing() && entry.adopted.is_none() {
                continue;
            }
            if let Some(adopted) = &entry.adopted {
                cleared
                    .notes
                    .push(format!("the {} of {} is back", adopted.kind(), entry.name));
            }
            cleared.interfaces.push(entry.name);
        }
        book.save()?;
    }
    Ok(cleared)
}

/// Makes all as the book says: after a crash, or after somebody else's hand.
///
/// # Errors
/// If the book cannot be read. What cannot be made so in a namespace is given with it.
pub fn heal(folder: &Path) -> Result<Vec<Healed>, Error> {
    need_root()?;
    let mut book = Book::lock(folder)?;
    let mut healed = Vec::new();
    for (cookie, mut site) in sites(&mut book)? {
        let mut one = || -> Result<usize, Error> {
            let seen = site.see()?;
            let room = book.room(cookie);
            prune(room, &seen);
            let foreign: Vec<u32> = room
                .links
                .iter()
                .filter(|(_, entry)| entry.adopted.is_some())
                .map(|(index, _)| *index)
                .collect();
            let wanted = whole(room)?;
            let steps = site.apply(&wanted, &foreign)?.steps;
            finish(&mut site, room)?;
            Ok(steps)
        };
        let steps = one();
        healed.push(Healed {
            namespace: book.room(cookie).name.clone(),
            steps,
        });
    }
    book.save()?;
    Ok(healed)
}

/// The ways to all namespaces of the book; those that are gone are forgotten.
fn sites(book: &mut Book) -> Result<BTreeMap<u64, Site>, Error> {
    let ours = Site::open(None)?;
    let mut sites = BTreeMap::new();
    let others = book.rooms().len() - usize::from(book.rooms().contains_key(&ours.cookie()?));
    sites.insert(ours.cookie()?, ours);
    if others > 0 {
        let tenants = Tenants::look(&Roots::default()).map_err(wrong)?;
        let (rooms, unseen) = open_rooms(book, &tenants);
        // The state of before could not be brought back in all of them.
        if let Some((_, error)) = unseen.into_iter().next() {
            return Err(error);
        }
        sites.extend(rooms.into_iter().map(|(cookie, open)| (cookie, open.site)));
    }
    book.forget_but(|cookie| sites.contains_key(cookie));
    Ok(sites)
}

/// A namespace of the book.
pub(crate) struct OpenRoom {
    pub(crate) namespace: OwnedFd,
    pub(crate) inode: u64,
    pub(crate) site: Site,
}

/// Namespaces of the book, by cookie; and those that are there and cannot be opened, by inode.
pub(crate) type Rooms = (BTreeMap<u64, OpenRoom>, Vec<(u64, Error)>);

/// Opens the namespaces of the book that are still there, but for ours. One that cannot be opened keeps none of the
/// others from being seen.
pub(crate) fn open_rooms(book: &Book, tenants: &Tenants) -> Rooms {
    let (mut rooms, mut unseen) = (BTreeMap::new(), Vec::new());
    for id in tenants.namespaces.keys().filter(|id| **id != tenants.own) {
        let known = book.rooms().values().any(|room| room.inode == id.inode);
        // One that is gone meanwhile is no loss.
        let Some(open) = known.then(|| tenants.open_netns(*id).ok()).flatten() else {
            continue;
        };
        let opened = Site::open(Some(open.fd.as_fd()));
        let opened = opened.and_then(|site| Ok((site.cookie()?, site)));
        match opened {
            Ok((cookie, site)) if book.rooms().contains_key(&cookie) => {
                let room = OpenRoom {
                    namespace: open.fd,
                    inode: id.inode,
                    site,
                };
                rooms.insert(cookie, room);
            }
            Ok(_) => {}
            Err(error) => unseen.push((id.inode, error.into())),
        }
    }
    (rooms, unseen)
}

pub(crate) fn need_root() -> Result<(), Error> {
    // Inside a user namespace of one's own, root of it may.
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::NotRoot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_above_the_line_is_refused() {
        let net = tempfile::tempdir().expect("a folder");
        let place = net.path().join("eth0");
        std::fs::create_dir_all(place.join("device")).expect("made");
        std::fs::write(place.join("speed"), "1000\n").expect("written");
        let mut link = Link {
            index: 2,
            name: "eth0".to_owned(),
            kind: None,
            up: true,
            mtu: 1500,
            gso_max: 65_536,
            master: None,
            other: None,
            other_namespace: None,
            xdp: None,
            traffic: bonsai_link::Traffic::default(),
        };
        let terms = |mbit: u64| Terms {
            rx: Some(mbit * 125_000),
            ..Terms::default()
        };
        check_line(net.path(), &link, &terms(1000)).expect("all of it");
        let error = check_line(net.path(), &link, &terms(1001)).expect_err("more");
        let text = "rx=1001Mbit/s is more than the line of eth0 carries: 1000Mbit/s";
        assert_eq!(error.sentence(), text);
        // A pair says a speed as well.
        link.kind = Some("veth".to_owned());
        check_line(net.path(), &link, &terms(2000)).expect("it has no line");
    }
}
