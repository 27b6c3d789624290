//! Rounds that make all interfaces as they are configured.
//!
//! ```text
//!   wishes ──> find ──> by namespace: book + wishes ──> differs? ──> one Site::apply ──> said
//! ```
//!
//! # Invariants
//! 1. What one target cannot have does not keep the others from theirs.
//! 2. The book is written before the kernel is asked: whoever comes after a crash completes it.
//! 3. Where all is as it should be, nothing is written, neither to the kernel nor to the book.
//! 4. A target that is wanted no more leaves its interface as it was: without a limit, with the one
//!    that was there by hand, or with the discipline that somebody else had there.

mod conflicts;
mod groups;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use bonsai_api::LinkState;
use bonsai_host::tenants::{Roots, Tenants};
use bonsai_link::{Gate, Handle, Seen, Site, Wanted};

use crate::book::{Book, Room};
use crate::change::{need_root, open_rooms};
use crate::draft::Draft;
use crate::error::Error;
use crate::fights::Fights;
use crate::find::{Found, Whose, find_behind, find_of, find_ours, wrong};
use crate::tree::Tree;
use crate::tune::Tuning;
use crate::watch::{Watch, Watched};
use crate::wish::Wish;

pub(crate) use groups::AskedGroup;

/// What has become of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// That.
    pub state: LinkState,
    /// Why it is not in force, in words.
    pub why: Option<String>,
    /// Its interface: the cookie of its namespace, and its number there.
    pub at: Option<(u64, u32)>,
    /// Of a group of processes: the cookie of the namespace, the uplink, and its class there.
    pub class: Option<(u64, u32, Handle)>,
}

/// What a round found and did.
#[derive(Debug, Default)]
pub struct Round {
    /// What has become of each target.
    pub granted: BTreeMap<String, Granted>,
    /// Namespaces where something is limited, by cookie; without a descriptor for ours.
    pub places: BTreeMap<u64, Option<OwnedFd>>,
    /// How often was put right what somebody else had undone.
    pub repairs: u64,
    /// What that was, in words; without what is a fight already.
    pub mended: Vec<String>,
    /// What somebody else undoes again and again, in words; said once.
    pub fights: Vec<String>,
    /// What could not be done, in words.
    pub problems: Vec<String>,
    /// How many steps the kernel was asked for.
    pub steps: usize,
    /// Whether something waits, so that it is to be looked again before anything is heard.
    pub again: bool,
}

/// Whoever keeps interfaces as they are configured.
#[derive(Debug)]
pub struct Keeper {
    pub(crate) folder: PathBuf,
    /// What was in force after the last round and what was tuned since, by namespace.
    pub(crate) made: BTreeMap<u64, Wanted>,
    /// By namespace and interface.
    fights: Fights<(u64, u32)>,
    pub(crate) tuning: Tuning,
    /// What there is of groups of processes, where some are limited.
    tree: Option<Tree>,
    /// Where newcomers among them are entered, and the cookie of our namespace.
    gate: Option<(u64, Gate)>,
    /// Where units are, or will be.
    units: BTreeMap<String, String>,
    /// Limits that are in force, by namespace.
    watches: BTreeMap<u64, Watch>,
}

/// A namespace of a round.
struct Place<'a> {
    site: Site,
    /// `None` for ours.
    namespace: Option<OwnedFd>,
    inode: u64,
    name: Option<String>,
    asked: Vec<Asked<'a>>,
    groups: Vec<AskedGroup<'a>>,
}

/// A target of a namespace.
pub(crate) struct Asked<'a> {
    pub(crate) name: &'a str,
    pub(crate) wish: &'a Wish,
    pub(crate) found: Found,
}

impl Keeper {
    /// One whose book is in that folder.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            made: BTreeMap::new(),
            fights: Fights::default(),
            tuning: Tuning::default(),
            tree: None,
            gate: None,
            units: BTreeMap::new(),
            watches: BTreeMap::new(),
        }
    }

    /// Whether something is in force that [`Keeper::watch`] looks after.
    #[must_use]
    pub fn is_watching(&self) -> bool {
        self.watches.values().any(|watch| !watch.is_empty())
    }

    /// Compares what interfaces moved with what went through their limits, and looks for programs that are asked before
    /// ours, of which nothing is heard.
    pub fn watch(&mut self, now: Instant) -> Watched {
        let mut watched = Watched::default();
        for watch in self.watches.values_mut() {
            watch.look(now, &mut watched);
        }
        watched
    }

    /// Makes all as it is wanted, as far as it can be.
    ///
    /// # Errors
    /// If the book cannot be used, or our own namespace not be looked at.
    pub fn round(&mut self, wishes: &BTreeMap<String, Wish>, now: Instant) -> Result<Round, Error> {
        need_root()?;
        self.tuning.begin(wishes);
        let mut round = Round::default();
        if wishes.is_empty() && Book::read(&self.folder)?.is_empty() {
            self.made.clear();
            self.watches.clear();
            (self.tree, self.gate) = (None, None);
            return Ok(round);
        }
        let mut book = Book::lock(&self.folder)?;
        let mut places = places(&mut book, wishes, &mut round)?;
        let mut ours = places.iter_mut();
        if let Some((cookie, ours)) = ours.find(|(_, place)| place.namespace.is_none()) {
            let had = book.rooms().get(cookie).map(|room| room.groups.clone());
            ours.groups = self.groups(wishes, &had.unwrap_or_default(), &mut round);
        }
        self.made.retain(|cookie, _| places.contains_key(cookie));
        self.watches.retain(|cookie, _| places.contains_key(cookie));
        for (cookie, mut place) in places {
            if let Err(error) = self.settle(cookie, &mut place, &mut book, now, &mut round) {
                let text = error.sentence();
                for asked in &place.asked {
                    let granted = Granted {
                        at: Some((cookie, asked.found.link.index)),
                        ..problem(text.clone())
                    };
                    round.granted.insert(asked.name.to_owned(), granted);
                }
                for asked in &place.groups {
                    let granted = problem(text.clone());
                    round.granted.insert(asked.name.to_owned(), granted);
                }
                let whose = place.name.as_deref();
                let whose = whose.map_or_else(String::new, |name| format!("{name}: "));
                round.problems.push(format!("{whose}{text}"));
                round.again = true;
            }
            let room = book.rooms().get(&cookie);
            let is_ours = place.namespace.is_none();
            if is_ours || room.is_some_and(|room| !room.is_empty()) {
                round.places.insert(cookie, place.namespace);
            }
        }
        let is_group = |name: &String| {
            let wish = wishes.get(name);
            wish.is_some_and(|wish| matches!(wish.target.whose(), Whose::Group(_)))
        };
        round.again |= round.granted.iter().any(|(name, one)| match one.state {
            LinkState::InForce | LinkState::Free => false,
            // Whoever comes is heard of.
            LinkState::Waiting => !is_group(name),
            LinkState::Problem => true,
        });
        // One inside somebody else's namespace goes away with it, unheard.
        round.again |= round.places.len() > 1;
        Ok(round)
    }

    /// Makes a namespace as it is wanted.
    fn settle(
        &mut self,
        cookie: u64,
        place: &mut Place<'_>,
        book: &mut Book,
        now: Instant,
        round: &mut Round,
    ) -> Result<(), Error> {
        let mut seen = place.site.see()?;
        let before = book.rooms().get(&cookie).cloned().unwrap_or_default();
        let tree = self.tree.as_ref().filter(|_| place.namespace.is_none());
        let tree = tree.map(|tree| tree.above().clone()).unwrap_or_default();
        let mut draft = Draft::new(&before, &seen, &place.asked, &place.groups, tree);
        draft.room.keep_what_is_due(&before);
        crate::change::prune(&mut draft.room, &seen);
        draft.of(place.inode, place.name.as_deref());
        for asked in &place.asked {
            draft.save_what_others_have(asked, &mut place.site, &seen);
        }
        let wanted = draft.wanted(&seen);
        let differences = seen.differences(&wanted)?;
        if !differences.is_empty() {
            let told = self.judge(cookie, &wanted, differences, &mut draft, now);
            if draft.room != before {
                keep(book, cookie, &draft.room)?;
            }
            if told.goes_on {
                round.steps += self.make(cookie, place, book, &before, &mut draft, &mut seen)?;
            }
            let whose = place.name.as_deref();
            let whose = whose.map_or_else(String::new, |name| format!("{name}: "));
            let whose = |what: String| format!("{whose}{what}");
            round.repairs += told.repairs;
            round.mended.extend(told.mended.into_iter().map(whose));
            round.fights.extend(told.fights.into_iter().map(whose));
            let after = place.site.see()?;
            if !draft.room.groups.is_empty() {
                self.open_gate(cookie, &mut draft, &after)?;
            }
            self.doubt(cookie, place, &mut draft, &after)?;
        } else {
            self.made.insert(cookie, wanted);
            self.doubt(cookie, place, &mut draft, &seen)?;
            if place.namespace.is_none() {
                self.open_gate(cookie, &mut draft, &seen)?;
                self.tuning.saw(seen);
            }
        }
        draft.bring_back(&mut place.site, &mut round.problems);
        draft.of(place.inode, place.name.as_deref());
        if book.rooms().get(&cookie).unwrap_or(&Room::default()) != &draft.room {
            keep(book, cookie, &draft.room)?;
        }
        round.again |= self.fights.is_on(|(of, _)| *of == cookie, now);
        for asked in &place.asked {
            let index = asked.found.link.index;
            let why = draft.rejected.remove(asked.name);
            if let (None, None, Some(entry)) =
                (&why, &place.namespace, draft.room.links.get(&index))
            {
                self.tuning.placed(cookie, asked.name, index, entry);
            }
            let state = match &why {
                Some((state, _)) => *state,
                None => LinkState::InForce,
            };
            let granted = Granted {
                state,
                why: why.map(|(_, text)| text),
                at: Some((cookie, index)),
                class: None,
            };
            round.granted.insert(asked.name.to_owned(), granted);
        }
        for asked in &place.groups {
            let granted = self.granted(cookie, asked, &mut draft);
            round.granted.insert(asked.name.to_owned(), granted);
        }
        Ok(())
    }

    /// Says of which targets the limit may not hold, though all that it takes is there.
    fn doubt(
        &mut self,
        cookie: u64,
        place: &Place<'_>,
        draft: &mut Draft,
        seen: &Seen,
    ) -> Result<(), Error> {
        let Some(made) = self.made.get(&cookie) else {
            return Ok(());
        };
        let watch = match self.watches.entry(cookie) {
            Entry::Occupied(watch) => watch.into_mut(),
            Entry::Vacant(entry) => {
                let namespace = place.namespace.as_ref().map(AsFd::as_fd);
                entry.insert(Watch::open(namespace)?)
            }
        };
        watch.limits(seen, made);
        for asked in &place.asked {
            let index = asked.found.link.index;
            let why = seen.doubt(made, index);
            let why = why.or_else(|| watch.gap(index).map(str::to_owned));
            if let Some(why) = why {
                draft.doubt(asked.name, why);
            }
        }
        for asked in &place.groups {
            if let Some(why) = seen.doubt_of_group(made, &asked.path) {
                draft.doubt(asked.name, why);
            }
        }
        Ok(())
    }

    /// Asks the kernel: for all at once and, where it refuses that, for one after the other.
    fn make(
        &mut self,
        cookie: u64,
        place: &mut Place<'_>,
        book: &mut Book,
        before: &Room,
        draft: &mut Draft,
        seen: &mut Seen,
    ) -> Result<usize, Error> {
        let wanted = draft.wanted(seen);
        let error = match place
            .site
            .apply_but(seen, &wanted, &draft.adopt, &draft.leave)
        {
            Ok(done) => {
                self.made.insert(cookie, wanted);
                return Ok(done.steps);
            }
            Err(error) => error,
        };
        let changed = draft.changed_since(before);
        // A part that could not be taken back is made whole by the next round.
        if matches!(error, bonsai_link::Error::Torn { .. }) || changed.is_empty() {
            return Err(error.into());
        }
        let whole = std::mem::replace(&mut draft.room, before.clone());
        crate::change::prune(&mut draft.room, seen);
        let mut steps = 0;
        for key in changed {
            let had = draft.room.get(&key);
            draft.room.put(&key, whole.get(&key));
            let now = draft.wanted(seen);
            let mut there = place.site.see()?;
            match place
                .site
                .apply_but(&mut there, &now, &draft.adopt, &draft.leave)
            {
                Ok(done) => {
                    steps += done.steps;
                    self.made.insert(cookie, now);
                }
                Err(error) => {
                    draft.room.put(&key, had);
                    draft.reject(&key, &Error::from(error).sentence());
                }
            }
        }
        keep(book, cookie, &draft.room)?;
        Ok(steps)
    }
}

fn problem(why: String) -> Granted {
    Granted {
        state: LinkState::Problem,
        why: Some(why),
        ..Granted::default()
    }
}

fn keep(book: &mut Book, cookie: u64, room: &Room) -> Result<(), Error> {
    book.room(cookie).clone_from(room);
    book.save()
}

/// The namespaces that something is wanted in, or was, and what is wanted there.
fn places<'a>(
    book: &mut Book,
    wishes: &'a BTreeMap<String, Wish>,
    round: &mut Round,
) -> Result<BTreeMap<u64, Place<'a>>, Error> {
    let mut ours = Site::open(None)?;
    let our_cookie = ours.cookie()?;
    let links = ours.links()?;
    let is_far = |wish: &Wish| matches!(wish.target.whose(), Whose::Of(_));
    let far = wishes.values().any(is_far) || book.rooms().keys().any(|of| *of != our_cookie);
    let tenants = far.then(|| Tenants::look(&Roots::default()));
    let tenants = tenants.transpose().map_err(wrong)?;
    let stat = rustix::fs::fstat(bonsai_link::namespace::current()?).map_err(wrong)?;
    let mut places = BTreeMap::from([(
        our_cookie,
        Place {
            site: ours,
            namespace: None,
            inode: stat.st_ino,
            name: None,
            asked: Vec::new(),
            groups: Vec::new(),
        },
    )]);
    let mut unseen = BTreeSet::new();
    if let Some(tenants) = &tenants {
        let (rooms, closed) = open_rooms(book, tenants);
        for (inode, error) in closed {
            for (cookie, room) in book.rooms().iter().filter(|(_, room)| room.inode == inode) {
                let name = room.name.as_deref().unwrap_or("a namespace");
                let text = format!("{name}: {}", error.sentence());
                round.problems.push(text);
                unseen.insert(*cookie);
            }
            round.again = true;
        }
        for (cookie, open) in rooms {
            let place = Place {
                site: open.site,
                namespace: Some(open.namespace),
                inode: open.inode,
                name: book.rooms()[&cookie].name.clone(),
                asked: Vec::new(),
                groups: Vec::new(),
            };
            places.insert(cookie, place);
        }
    }
    // One that cannot be opened is there still, with what is to be brought back in it.
    if book.forget_but(|cookie| places.contains_key(cookie) || unseen.contains(cookie)) {
        book.save()?;
    }
    for (name, wish) in wishes {
        let interface = wish.target.interface();
        let found = match (wish.target.whose(), &tenants) {
            (Whose::Of(who), Some(tenants)) => find_of(tenants, who, interface),
            (Whose::Group(_), _) => continue,
            _ if wish.of_service => find_behind(&links, interface),
            _ => find_ours(&links, interface),
        };
        let placed = found.and_then(|found| place_of(&mut places, our_cookie, found));
        let (cookie, found) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                let state = match error.is_absent() {
                    true => LinkState::Waiting,
                    false => LinkState::Problem,
                };
                let granted = Granted {
                    state,
                    ..problem(error.sentence())
                };
                round.granted.insert(name.clone(), granted);
                continue;
            }
        };
        let Some(place) = places.get_mut(&cookie) else {
            continue;
        };
        let index = found.link.index;
        if let Some(first) = place.asked.iter().find(|one| one.found.link.index == index) {
            let text = format!(
                "it is the same interface as {}, which has a limit already",
                first.name
            );
            round.granted.insert(name.clone(), problem(text));
            continue;
        }
        place.asked.push(Asked { name, wish, found });
    }
    Ok(places)
}

/// The namespace of what was found, opened if it is not yet.
fn place_of(
    places: &mut BTreeMap<u64, Place<'_>>,
    our_cookie: u64,
    mut found: Found,
) -> Result<(u64, Found), Error> {
    let Some(namespace) = found.namespace.take() else {
        return Ok((our_cookie, found));
    };
    let site = Site::open(Some(namespace.as_fd()))?;
    let cookie = site.cookie()?;
    // It is asked for its routes.
    found.namespace = Some(namespace.try_clone().map_err(|source| Error::File {
        path: "/proc/self/fd".into(),
        source,
    })?);
    let place = places.entry(cookie).or_insert_with(|| Place {
        site,
        namespace: Some(namespace),
        inode: found.inode,
        name: None,
        asked: Vec::new(),
        groups: Vec::new(),
    });
    place.name.clone_from(&found.namespace_name);
    Ok((cookie, found))
}
