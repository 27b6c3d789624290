//! The interfaces of a network namespace: seen, and made as they are wanted.

mod compare;
mod perform;
mod read;
mod undo;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::bpf::Tables;
use crate::diff::{self, Step};
use crate::error::Error;
use crate::gate::Gate;
use crate::hooks::{self, Aim, Hook};
use crate::links::{self, Link, Traffic};
use crate::netlink::Socket;
use crate::objects::{self, Objects};
use crate::passage::Limit;
use crate::plan::{self, Means, Plan};
use crate::saved::Saved;
use crate::tc::queue::Kind;
use crate::tc::seen::{self, Class, Counters, Qdisc};
use crate::tc::{Handle, Write, htb};
use crate::wanted::{Wanted, Who};

/// A network namespace, and the way to its kernel side.
#[derive(Debug)]
pub struct Site {
    socket: Socket,
    /// `None` for the calling thread's.
    namespace: Option<OwnedFd>,
    /// If it is not to be what is there.
    plan: Option<Plan>,
}

/// What is there.
#[derive(Debug)]
pub struct Seen {
    /// All interfaces, by number.
    pub links: Vec<Link>,
    /// What others have made at roots, by the number of the interface.
    pub foreign: BTreeMap<u32, Qdisc>,
    /// What is ours.
    pub(crate) objects: Objects,
    /// Where filters can hang: `clsact`, or another's `ingress`.
    pub(crate) hookable: BTreeSet<(u32, Hook)>,
    /// Where others have the turn that a filter of ours would have.
    late: BTreeSet<(u32, Hook)>,
    /// Filters of others that are asked before ours, in words, by device and whether it is about what comes in.
    before: BTreeMap<(u32, bool), String>,
    /// What the programs read, if there are any.
    tables: Tables,
    /// By what means it is to be, if that was said.
    plan: Option<Plan>,
    /// The queues that classes end in.
    queues: Kind,
    /// What queues of classes have dropped, packets, by device and class.
    dropped: BTreeMap<(u32, Handle), u32>,
}

impl Seen {
    /// The number of the block that what comes in goes through, if there is one.
    #[must_use]
    pub fn block(&self) -> Option<u32> {
        let mut blocks = hooks::blocks(&self.links);
        let block = blocks.find(|(_, slot)| slot.is_none());
        block.map(|(link, _)| link.index)
    }

    /// Whether an interface has a discipline or a filter of ours.
    #[must_use]
    pub fn has_something_of_ours(&self, device: u32) -> bool {
        let mut hooks = self.objects.hooks.keys();
        self.objects.trees.contains_key(&device) || hooks.any(|(of, _)| *of == device)
    }

    /// The numbers of all blocks: where there are no programs, each limited link has one.
    pub fn blocks(&self) -> impl Iterator<Item = u32> {
        hooks::blocks(&self.links).map(|(link, _)| link.index)
    }

    /// The block that what comes in by a link goes through, if it is limited.
    #[must_use]
    pub fn block_of(&self, device: u32) -> Option<u32> {
        let mirrored = [Hook::Mirrored, Hook::LateMirrored];
        let mut mirrored = mirrored
            .iter()
            .filter_map(|hook| self.objects.hooks.get(&(device, *hook)));
        match mirrored.next() {
            Some(Aim::Block(block)) => Some(*block),
            _ => {
                let entry = self.objects.entries.get(&device);
                entry.map(|(_, block)| *block).filter(|block| *block != 0)
            }
        }
    }

    /// By what means packets find their class here.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan.unwrap_or_else(Plan::tried)
    }

    /// Which links have a class of their own, and which.
    #[must_use]
    pub fn slots(&self) -> BTreeMap<u32, u16> {
        let blocks = hooks::blocks(&self.links);
        let blocks: BTreeMap<u32, u16> = blocks
            .filter_map(|(link, slot)| Some((link.index, slot?)))
            .collect();
        let mirrored = self.objects.hooks.iter();
        let mirrored = mirrored.filter_map(|((device, _), aim)| match aim {
            Aim::Block(block) => Some((*device, *blocks.get(block)?)),
            Aim::Program(_) | Aim::Through(_) => None,
        });
        let entries = self.objects.entries.iter();
        let entries = entries.map(|(device, (slot, _))| (*device, *slot));
        mirrored.chain(entries).collect()
    }

    /// Whether all of it can be in force together, here.
    ///
    /// # Errors
    /// One sentence about the first that cannot.
    pub fn check(&self, wanted: &Wanted) -> Result<(), Error> {
        wanted.check(&self.links)?;
        if wanted.shares().is_empty() {
            return Ok(());
        }
        self.plan().check(wanted, |index| self.name(index))
    }

    /// The names of blocks that there have to be, and are not.
    fn missing_blocks(&self, wanted: &Wanted) -> Result<BTreeSet<Cow<'static, str>>, Error> {
        let limited = wanted.links.iter().filter(|(_, terms)| terms.rx.is_some());
        let limited: Vec<u32> = limited.map(|(index, _)| *index).collect();
        if limited.is_empty() {
            return Ok(BTreeSet::new());
        }
        let slots = objects::slots(wanted, &self.had(wanted))?;
        let there: BTreeSet<&str> = hooks::blocks(&self.links)
            .map(|(link, _)| link.name.as_str())
            .collect();
        let slots = limited
            .iter()
            .filter_map(|index| slots.get(&Who::Link(*index)));
        let names = slots.map(|slot| hooks::block_name(self.plan(), *slot));
        Ok(names.filter(|name| !there.contains(&**name)).collect())
    }

    /// The class of each group that has one, by its path; of one that is not there, as far as
    /// `wanted` says it.
    #[must_use]
    pub fn classes_of_groups(&self, wanted: &Wanted) -> BTreeMap<String, Handle> {
        let had = self.had(wanted).into_iter();
        let group = |(who, slot)| match who {
            Who::Group(path) => Some((path, Handle::of(objects::MAJOR, slot))),
            Who::Link(_) => None,
        };
        had.filter_map(group).collect()
    }

    /// The slots of those that have one.
    fn had(&self, wanted: &Wanted) -> BTreeMap<Who, u16> {
        let links = self.slots().into_iter();
        let mut had: BTreeMap<Who, u16> = links
            .map(|(index, slot)| (Who::Link(index), slot))
            .collect();
        for (path, group) in &wanted.groups {
            let known = wanted.id(path);
            let known = known.and_then(|id| self.objects.groups.get(&(id, group.share.uplink)));
            let own = known.map(|known| known.own).filter(|own| *own != 0);
            if let Some(slot) = own.or(group.class) {
                had.insert(Who::Group(path.clone()), slot);
            }
        }
        had
    }

    /// The entrance of groups of a namespace that is as wanted; none where no group is limited.
    ///
    /// # Errors
    /// If there are more groups than HTB has classes.
    pub fn gate(&self, wanted: &Wanted) -> Result<Option<Gate>, Error> {
        let table = self.tables.groups.as_ref();
        let Some(table) = table.filter(|_| !wanted.groups.is_empty()) else {
            return Ok(None);
        };
        let slots = objects::slots(wanted, &self.had(wanted))?;
        Ok(Some(Gate::new(table.try_clone()?, wanted, &slots)))
    }

    /// What has been dropped of a class, packets. Of what a queue drops that keeps itself short or cuts packets, the
    /// kernel counts hardly anything at the class.
    #[must_use]
    pub fn drops(&self, class: &Class) -> u32 {
        let of_queue = self.dropped.get(&(class.device, class.handle));
        of_queue.copied().unwrap_or(0).max(class.counters.drops)
    }

    /// By what means, if any are needed: nothing is tried without need.
    fn means_for(&self, wanted: &Wanted) -> Means {
        let plan = match wanted.links.values().any(|terms| terms.rx.is_some()) {
            true => self.plan(),
            false => Plan::Bpf,
        };
        Means {
            plan,
            redirects: plan::can_redirect(),
            queues: self.queues,
            late: self.late.clone(),
        }
    }

    fn name(&self, device: u32) -> String {
        let link = self.links.iter().find(|link| link.index == device);
        link.map_or_else(|| format!("interface {device}"), |link| link.name.clone())
    }
}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// How many steps it took; 0 if all was as wanted.
    pub steps: usize,
}

impl Site {
    /// The calling thread's namespace, or another one.
    ///
    /// # Errors
    /// If it cannot be entered, or there is no socket to the kernel.
    pub fn open(namespace: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        let socket = Socket::open(namespace, &[])?;
        let again = namespace.map(|namespace| namespace.try_clone_to_owned());
        Ok(Self {
            socket,
            namespace: again.transpose().map_err(Error::Enter)?,
            plan: None,
        })
    }

    /// The same, by means that are said and not by the best that there are.
    ///
    /// # Errors
    /// See [`Site::open`].
    pub fn open_with(namespace: Option<BorrowedFd<'_>>, plan: Plan) -> Result<Self, Error> {
        let mut site = Self::open(namespace)?;
        site.plan = Some(plan);
        Ok(site)
    }

    pub(crate) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// The programs at tcx that are asked before the limits of some interfaces, in words: a program that comes there is told
    /// to no one who listens ([`crate::Events`]).
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn programs_before(
        &self,
        limits: &[Limit],
    ) -> Result<BTreeMap<(u32, bool), String>, Error> {
        let places = limits.iter().map(|limit| (limit.device, limit.comes_in));
        let namespace = self.namespace.as_ref().map(OwnedFd::as_fd);
        read::programs_at(namespace, &places.collect())
    }

    /// The interfaces alone, with what went through them.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        links::links(&mut self.socket)
    }

    /// What went through one interface, or through each, given to `each` as it is read; `None` says
    /// that what was given is to be forgotten. It allocates nothing.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel does not show them.
    pub fn traffic(
        &mut self,
        index: Option<u32>,
        each: impl FnMut(Option<(u32, Traffic)>),
    ) -> Result<(), Error> {
        links::traffic(&mut self.socket, index, each)
    }

    /// The number that another namespace has in this one; `None` if no pair leads there.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn number_of(&mut self, namespace: BorrowedFd<'_>) -> Result<Option<u32>, Error> {
        links::number_of(&mut self.socket, namespace)
    }

    /// Everything that matters here.
    ///
    /// # Errors
    /// If the kernel does not show it.
    pub fn see(&mut self) -> Result<Seen, Error> {
        let mut seen = read::see(&mut self.socket, self.plan)?;
        read::programs_before(self.namespace.as_ref().map(OwnedFd::as_fd), &mut seen)?;
        Ok(seen)
    }

    /// Gives each of our classes of a device to `each`, as it is read; `None` says that what was
    /// given is to be forgotten. It allocates nothing.
    ///
    /// # Errors
    /// If the kernel does not show them.
    pub fn classes(&mut self, device: u32, each: impl FnMut(Option<Class>)) -> Result<(), Error> {
        seen::classes(&mut self.socket, device, each)
    }

    /// What went through each of our trees at roots, given to `each` with the number of its interface;
    /// `None` says that what was given is to be forgotten. It allocates nothing, and a thousand trees
    /// of one class take a sixth of what [`Site::classes`] of each would.
    ///
    /// # Errors
    /// If the kernel does not show them.
    pub fn trees(&mut self, each: impl FnMut(Option<(u32, Counters)>)) -> Result<(), Error> {
        seen::roots(&mut self.socket, Handle::of(objects::MAJOR, 0), each)
    }

    /// Changes one class of ours and nothing else: for whoever moves rates many times a second,
    /// within what is wanted.
    ///
    /// # Errors
    /// If there is no such class, or the kernel refuses.
    pub fn retune(&mut self, device: u32, class: Handle, terms: &htb::Class) -> Result<(), Error> {
        self.socket
            .ask(&htb::class(Write::Change, device, class, terms))
    }

    /// Changes rates alone, where `from` is in force and `seen` is there: for whoever moves those of
    /// many interfaces many times a second. Nothing is looked at, and nothing read back. `None`, and
    /// nothing is done, where more is different than rates of classes.
    ///
    /// # Errors
    /// If it cannot be, or the kernel refuses a part: then what was done before is taken back.
    pub fn tune(&mut self, seen: &Seen, from: &Wanted, to: &Wanted) -> Result<Option<Done>, Error> {
        let same = from.links.keys().eq(to.links.keys()) && from.groups.keys().eq(to.groups.keys());
        if !same || from.tree != to.tree {
            return Ok(None);
        }
        let means = seen.means_for(to);
        let [from, to] = Wanted::parts_that_differ(from, to);
        seen.check(&to)?;
        let slots = objects::slots(&to, &seen.had(&to))?;
        let objects = |of| objects::objects(of, &seen.links, &slots, &means);
        let steps = diff::steps(&objects(&from), &objects(&to));
        if !steps.iter().all(Step::is_of_rates) {
            return Ok(None);
        }
        let done = Done { steps: steps.len() };
        let mut undo = Vec::new();
        // What was tuned before is not in `seen`, so that going back is by steps alone.
        match self.walk(seen, steps, &mut undo) {
            Ok(()) => Ok(Some(done)),
            Err(error) => Err(self.steps_back(seen, undo, error)),
        }
    }

    /// The number by which the kernel says what this site did, to whoever listens.
    #[must_use]
    pub const fn port(&self) -> u32 {
        self.socket.port()
    }

    /// A number that belongs to this namespace and to no other, until the machine restarts; before Linux 5.14 to
    /// no other that lives.
    ///
    /// # Errors
    /// If the kernel gives none.
    pub fn cookie(&self) -> Result<u64, Error> {
        self.socket.cookie()
    }

    /// Reads what somebody else has at the root of an interface, to be brought back one day.
    ///
    /// # Errors
    /// If it would not come back as it is, or the kernel does not show it.
    pub fn save(&mut self, link: &Link) -> Result<Saved, Error> {
        let refused = |kind: &str, why: Option<String>| {
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            Error::Wrong(format!(
                "the queueing discipline of {name}{kind} cannot be brought back exactly as it is{why}, so it \
                 is not taken over; tc qdisc del dev {name} root takes it away",
                name = link.name,
            ))
        };
        let saved = match Saved::read(&mut self.socket, link.index) {
            // `fw` without options is one that the kernel cannot show.
            Err(Error::Refused(refusal)) => {
                let why = format!("the kernel does not show all of it: {refusal}");
                return Err(refused("", Some(why)));
            }
            saved => saved?,
        };
        if !saved.try_out()? {
            let kind = format!(" ({})", saved.kind());
            return Err(refused(&kind, saved.strange()));
        }
        Ok(saved)
    }

    /// Brings back what was there before.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn bring_back(&mut self, device: u32, saved: &Saved) -> Result<(), Error> {
        saved.bring_back(&mut self.socket, device)
    }

    /// Makes all as it is wanted, or changes nothing. What others have made at the roots of the
    /// interfaces in `adopt` is replaced.
    ///
    /// # Errors
    /// If it cannot be, or the kernel refuses a part: then what was done before is taken back.
    pub fn apply(&mut self, wanted: &Wanted, adopt: &[u32]) -> Result<Done, Error> {
        let mut seen = self.see()?;
        self.apply_to(&mut seen, wanted, adopt)
    }

    /// The same, where it was looked just now: `seen` is what was there, and no more.
    ///
    /// # Errors
    /// See [`Site::apply`].
    pub fn apply_to(
        &mut self,
        seen: &mut Seen,
        wanted: &Wanted,
        adopt: &[u32],
    ) -> Result<Done, Error> {
        self.apply_but(seen, wanted, adopt, &BTreeSet::new())
    }

    /// The same, and nothing is done about what concerns the devices in `leave`, as [`Seen::differences`] names them: they
    /// stay as they are.
    ///
    /// # Errors
    /// See [`Site::apply`].
    pub fn apply_but(
        &mut self,
        seen: &mut Seen,
        wanted: &Wanted,
        adopt: &[u32],
        leave: &BTreeSet<u32>,
    ) -> Result<Done, Error> {
        seen.check(wanted)?;
        seen.check_foreign(wanted, adopt)?;
        let adopted = adopt
            .iter()
            .filter(|index| seen.foreign.contains_key(*index));
        let mut saved = Vec::new();
        for index in adopted {
            saved.push((*index, Saved::read(&mut self.socket, *index)?));
        }
        let mut undo = Vec::new();
        let before = undo::Before::of(seen);
        let done = self.reach(wanted, seen, leave, &mut undo);
        done.map_err(|error| self.take_back(seen, &before, undo, &saved, error))
    }

    fn reach(
        &mut self,
        wanted: &Wanted,
        seen: &mut Seen,
        leave: &BTreeSet<u32>,
        undo: &mut Vec<perform::Act>,
    ) -> Result<Done, Error> {
        let mut steps = self.prepare(wanted, seen, undo)?;
        let slots = objects::slots(wanted, &seen.had(wanted))?;
        let objects = objects::objects(wanted, &seen.links, &slots, &seen.means_for(wanted));
        let owners = compare::Owners::new(seen, &slots);
        let stays = |step: &Step| leave.contains(&owners.of(step));
        let mut walk = diff::steps(&seen.objects, &objects);
        walk.retain(|step| !stays(step));
        steps += walk.len();
        // Of groups, newcomers may be entered meanwhile.
        let matters = |step: &&Step| !matches!(step, Step::Group(..));
        let touched: BTreeSet<u32> = walk.iter().filter(matters).map(Step::device).collect();
        self.walk(seen, walk, undo)?;
        if !touched.is_empty() {
            let after = read::objects_of(&mut self.socket, seen, &touched)?;
            let left = diff::steps(&after, &objects);
            let mut left = left.iter().filter(matters);
            if let Some(step) = left.find(|step| touched.contains(&step.device()) && !stays(step)) {
                let what = step.words(&seen.name(step.device()));
                return Err(Error::Differs { what });
            }
        }
        // Last, since what steps stood on cannot be brought back as it was. What is left does no harm, and goes the next time.
        steps += self.tidy(&objects, seen).unwrap_or(0);
        Ok(Done { steps })
    }

    /// Whether all is as wanted; the first that is not, in words.
    ///
    /// # Errors
    /// If the kernel does not show it.
    pub fn differs(&mut self, wanted: &Wanted) -> Result<Option<String>, Error> {
        self.see()?.differs(wanted)
    }
}
