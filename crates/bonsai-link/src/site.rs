//! The interfaces of a network namespace: seen, and made as they are wanted.

mod perform;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use crate::bpf::Table;
use crate::diff::{self, Step};
use crate::error::Error;
use crate::links::{self, Link};
use crate::netlink::Socket;
use crate::objects::{self, Hook, IFB, Objects};
use crate::saved::Saved;
use crate::tc::seen::{self, Class, Qdisc};
use crate::tc::{Handle, Write, htb};
use crate::wanted::Wanted;

/// A network namespace, and the way to its kernel side.
#[derive(Debug)]
pub struct Site {
    socket: Socket,
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
    /// What the programs read, if there are any.
    table: Option<Table>,
}

impl Seen {
    /// The number of the block that what comes in goes through, if there is one.
    #[must_use]
    pub fn block(&self) -> Option<u32> {
        self.links
            .iter()
            .find(|link| link.name == IFB && link.kind.as_deref() == Some("ifb"))
            .map(|link| link.index)
    }

    /// Which links have a class of their own, and which.
    #[must_use]
    pub fn slots(&self) -> BTreeMap<u32, u16> {
        let entries = self.objects.entries.iter();
        entries
            .map(|(device, (slot, _))| (*device, *slot))
            .collect()
    }

    /// Whether all was as wanted; the first that was not, in words.
    ///
    /// # Errors
    /// If there are more interfaces than HTB has classes.
    pub fn differs(&self, wanted: &Wanted) -> Result<Option<String>, Error> {
        // Without the block there is nothing to compare what comes in with.
        if self.block().is_none() && wanted.links.values().any(|terms| terms.rx.is_some()) {
            return Ok(Some(format!("making {IFB}")));
        }
        let slots = objects::slots(wanted, &self.slots())?;
        let objects = objects::objects(wanted, &self.links, &slots, self.block());
        let steps = diff::steps(&self.objects, &objects);
        let words = |step: &Step| step.words(&self.name(step.device()));
        Ok(steps.first().map(words))
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
        Ok(Self { socket })
    }

    /// The interfaces alone, with what went through them.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        links::links(&mut self.socket)
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
        read::see(&mut self.socket)
    }

    /// Gives each of our classes of a device to `each`, as it is read; `None` says that what was
    /// given is to be forgotten. It allocates nothing.
    ///
    /// # Errors
    /// If the kernel does not show them.
    pub fn classes(&mut self, device: u32, each: impl FnMut(Option<Class>)) -> Result<(), Error> {
        seen::classes(&mut self.socket, device, each)
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

    /// A number that belongs to this namespace and to no other, until the machine restarts.
    ///
    /// # Errors
    /// If the kernel gives none (before Linux 5.14).
    pub fn cookie(&self) -> Result<u64, Error> {
        self.socket.cookie()
    }

    /// Reads what somebody else has at the root of an interface, to be brought back one day.
    ///
    /// # Errors
    /// If it would not come back as it is, or the kernel does not show it.
    pub fn save(&mut self, link: &Link) -> Result<Saved, Error> {
        let saved = Saved::read(&mut self.socket, link.index)?;
        if !saved.try_out()? {
            return Err(Error::Wrong(format!(
                "the queueing discipline of {} ({}) cannot be brought back exactly as it is, so it \
                 is not taken over; tc qdisc del dev {} root takes it away",
                link.name,
                saved.kind(),
                link.name
            )));
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
        wanted.check(&seen.links)?;
        seen.check_foreign(wanted, adopt)?;
        let adopted = adopt
            .iter()
            .filter(|index| seen.foreign.contains_key(*index));
        let mut saved = Vec::new();
        for index in adopted {
            saved.push((*index, Saved::read(&mut self.socket, *index)?));
        }
        let mut undo = Vec::new();
        let done = self.reach(wanted, &mut seen, &mut undo);
        done.map_err(|error| self.take_back(&seen, undo, &saved, error))
    }

    fn reach(
        &mut self,
        wanted: &Wanted,
        seen: &mut Seen,
        undo: &mut Vec<perform::Act>,
    ) -> Result<Done, Error> {
        let mut steps = self.prepare(wanted, seen, undo)?;
        let slots = objects::slots(wanted, &seen.slots())?;
        let objects = objects::objects(wanted, &seen.links, &slots, seen.block());
        let walk = diff::steps(&seen.objects, &objects);
        steps += walk.len();
        self.walk(seen, walk, undo)?;
        steps += self.tidy(&objects, seen)?;
        if steps > 0 {
            let after = self.see()?;
            if let Some(step) = diff::steps(&after.objects, &objects).first() {
                let what = step.words(&after.name(step.device()));
                return Err(Error::Differs { what });
            }
        }
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
