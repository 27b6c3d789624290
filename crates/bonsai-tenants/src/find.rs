//! From what a user says to the interface that is limited.
//!
//! What is inside a namespace may be undone by whoever is root there. So what has its other end in
//! our namespace is limited at that end; what it sends is what that end receives.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use bonsai_host::tenants::{Network, Roots, Tap, TapKind, Target, TenantError, Tenants, Who};
use bonsai_link::{Link, Site, named, namespace};

use crate::error::Error;

/// Whose interface it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    /// One of our own namespace.
    Ours,
    /// One of somebody.
    Of(Who<'a>),
    /// None: a group of processes, which is limited at its uplink.
    Group(&'a bonsai_cgroup::Target),
}

/// An interface, and where it is limited.
#[derive(Debug)]
pub struct Found {
    /// The namespace it is in; `None` for ours.
    pub namespace: Option<OwnedFd>,
    /// What that namespace is called.
    pub namespace_name: Option<String>,
    /// That namespace's inode.
    pub inode: u64,
    /// The interface that is limited.
    pub link: Link,
    /// Whether it is the other end of what was named: what that sends, this receives.
    pub swapped: bool,
    /// What was named, in words.
    pub said: String,
    /// Whether whoever is root inside could take the limit away.
    pub inside: bool,
}

impl Found {
    /// The way to it.
    ///
    /// # Errors
    /// If its namespace cannot be entered.
    pub fn site(&self) -> Result<Site, Error> {
        let namespace = self.namespace.as_ref().map(AsFd::as_fd);
        Ok(Site::open(namespace)?)
    }
}

/// Finds an interface. Without a name, it is the only one that there is.
///
/// # Errors
/// If there is none, or more than one, or it cannot be limited.
pub fn find(whose: Whose<'_>, name: Option<&str>) -> Result<Found, Error> {
    match whose {
        Whose::Ours => find_ours(&Site::open(None)?.links()?, name),
        Whose::Of(who) => {
            let tenants = Tenants::look(&Roots::default()).map_err(wrong)?;
            find_of(&tenants, who, name)
        }
        Whose::Group(group) => Err(wrong(format!(
            "{group} is a group of processes, and only root's daemon limits those, because somebody \
             has to say who they are each time they start: run `bonsai daemon`, and say it again, or \
             write it into its bonsai.toml"
        ))),
    }
}

/// Finds one of our own namespace, whose interfaces are these.
pub(crate) fn find_ours(links: &[Link], name: Option<&str>) -> Result<Found, Error> {
    let name = name.ok_or_else(|| wrong("name an interface: bonsai link ls shows them"))?;
    Ok(Found {
        namespace: None,
        namespace_name: None,
        inode: own_inode()?,
        link: named(links, name)?.clone(),
        swapped: false,
        said: name.to_owned(),
        inside: false,
    })
}

/// The same for a service: where it is the machine's end of a pair or a tap, the service is whoever
/// is behind it.
pub(crate) fn find_behind(links: &[Link], name: Option<&str>) -> Result<Found, Error> {
    let mut found = find_ours(links, name)?;
    found.swapped = matches!(found.link.kind.as_deref(), Some("veth" | "tun"));
    Ok(found)
}

/// Finds one of somebody.
pub(crate) fn find_of(tenants: &Tenants, who: Who<'_>, name: Option<&str>) -> Result<Found, Error> {
    let target = tenants.find(who).map_err(of_tenant)?;
    let mut site = Site::open(None)?;
    let links = site.links()?;
    find_in(tenants, &target, name, &mut site, &links)
}

/// Finds one of somebody who is known, where our own namespace is open and its interfaces are these.
pub(crate) fn find_in(
    tenants: &Tenants,
    target: &Target,
    name: Option<&str>,
    ours: &mut Site,
    links: &[Link],
) -> Result<Found, Error> {
    match target.network().map_err(of_tenant)? {
        Network::Namespace(id) => {
            let fd = tenants.open_netns(id).map_err(of_tenant)?.fd;
            let number = ours.number_of(fd.as_fd())?;
            in_namespace(fd, id.inode, target, name, |link| {
                other_end(number?, link, links)
            })
        }
        Network::Taps(taps) => of_machine(tenants, target, &taps, name),
    }
}

/// Whether somebody is not there, or cannot be limited.
pub(crate) fn of_tenant(error: TenantError) -> Error {
    let absent = matches!(
        error,
        TenantError::Unknown { .. }
            | TenantError::NotRunning { .. }
            | TenantError::ShortId { .. }
            | TenantError::NoProcess { .. }
            | TenantError::Gone { .. }
    );
    let Words(text) = error.into();
    if absent {
        Error::Absent(text)
    } else {
        Error::Wrong(text)
    }
}

/// The interface that a virtual machine holds: what the machine sends, that receives.
fn of_machine(
    tenants: &Tenants,
    target: &Target,
    taps: &[Tap],
    name: Option<&str>,
) -> Result<Found, Error> {
    let who = target.behind.describe();
    let mut held = Vec::new();
    for tap in taps {
        let id = tap.netns.unwrap_or(tenants.own);
        let other = (id != tenants.own).then(|| tenants.open_netns(id));
        let namespace = other.transpose().map_err(wrong)?.map(|open| open.fd);
        let links = Site::open(namespace.as_ref().map(AsFd::as_fd))?.links()?;
        let is_it = |link: &&Link| match tap.kind {
            TapKind::MacVtap { index } => link.index == index,
            _ => Some(&link.name) == tap.name.as_ref(),
        };
        if let Some(link) = links.iter().find(is_it) {
            held.push((namespace, id.inode, link.clone()));
        }
    }
    let links: Vec<&Link> = held.iter().map(|(_, _, link)| link).collect();
    let index = only(&links, name, &who)?.index;
    let (namespace, inode, link) = held.swap_remove(place_of(&links, index));
    Ok(Found {
        namespace_name: namespace.is_some().then(|| format!("net:[{inode}]")),
        namespace,
        inode,
        link,
        swapped: true,
        said: who,
        inside: false,
    })
}

fn place_of(links: &[&Link], index: u32) -> usize {
    links
        .iter()
        .position(|link| link.index == index)
        .unwrap_or(0)
}

fn in_namespace(
    namespace: OwnedFd,
    inode: u64,
    target: &Target,
    name: Option<&str>,
    other_end: impl FnOnce(&Link) -> Option<Link>,
) -> Result<Found, Error> {
    let who = target.behind.describe();
    let links = Site::open(Some(namespace.as_fd()))?.links()?;
    let link = match name {
        Some(name) => named(&links, name)?,
        None => {
            let real: Vec<&Link> = links.iter().filter(|link| link.is_of_somebody()).collect();
            only(&real, None, &who)?
        }
    };
    let said = format!("{} of {who}", link.name);
    Ok(match other_end(link) {
        Some(end) => Found {
            namespace: None,
            namespace_name: None,
            inode: own_inode()?,
            link: end,
            swapped: true,
            said,
            inside: false,
        },
        None => Found {
            namespace: Some(namespace),
            namespace_name: Some(who),
            inode,
            link: link.clone(),
            swapped: false,
            said,
            inside: true,
        },
    })
}

/// The end of a pair that is in our namespace, where the other's has this number.
fn other_end(number: u32, link: &Link, ours: &[Link]) -> Option<Link> {
    let is_it = |end: &&Link| {
        link.kind.as_deref() == Some("veth")
            && end.other == Some(link.index)
            && end.other_namespace == Some(number)
    };
    ours.iter().find(is_it).cloned()
}

/// The one with a name, or the only one.
fn only<'a>(links: &[&'a Link], name: Option<&str>, who: &str) -> Result<&'a Link, Error> {
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let names = names.join(", ");
    match (name, links) {
        (_, []) => Err(Error::Absent(format!(
            "{who} has no interface that could be limited"
        ))),
        (Some(name), links) => {
            let link = links.iter().find(|link| link.name == name).copied();
            let none = || format!("{who} has no interface `{name}`; it has {names}");
            link.ok_or_else(|| Error::Absent(none()))
        }
        (None, [one]) => Ok(one),
        (None, _) => Err(wrong(format!(
            "{who} has more than one interface, so name one: {names}"
        ))),
    }
}

/// The interface by which what comes from `link` leaves the machine: of the bridge it is in, or of
/// the default route, the one that is a device or at least nobody's.
pub(crate) fn uplink(found: &Found, links: &[Link]) -> Result<u32, Error> {
    if let Some(bridge) = found.link.master {
        let mut ports = ports(links, bridge);
        if let (Some(port), None) = (ports.next(), ports.next()) {
            return Ok(port.index);
        }
    }
    let namespace = found.namespace.as_ref().map(AsFd::as_fd);
    by_route(&found.said, &bonsai_link::ways_out(namespace)?, links)
}

/// The ports of a bridge that are nobody's.
fn ports(links: &[Link], bridge: u32) -> impl Iterator<Item = &Link> {
    let in_it = move |link: &&Link| link.master == Some(bridge) && !link.is_of_somebody();
    links.iter().filter(in_it)
}

/// The interface by which a group of processes of this machine leaves it.
pub(crate) fn uplink_of_groups(said: &str, links: &[Link]) -> Result<u32, Error> {
    by_route(said, &bonsai_link::ways_out(None)?, links)
}

/// The interface that the kernel sends by what goes to the internet, or the only port of that bridge.
fn by_route(said: &str, ways: &BTreeSet<u32>, links: &[Link]) -> Result<u32, Error> {
    let ways = links.iter().filter(|link| ways.contains(&link.index));
    let ways: Vec<&Link> = ways.collect();
    let not_clear = |why: &str| {
        wrong(format!(
            "it is not clear by which interface {said} leaves ({why}): say it, such as uplink=eth0"
        ))
    };
    let link = match *ways {
        [] => return Err(not_clear("no route leads to the internet")),
        [one] => one,
        _ => {
            let names: Vec<&str> = ways.iter().map(|link| link.name.as_str()).collect();
            let text = format!("routes lead by {}", names.join(" and "));
            return Err(not_clear(&text));
        }
    };
    if link.kind.as_deref() != Some("bridge") {
        return Ok(link.index);
    }
    let mut ports = ports(links, link.index);
    match (ports.next(), ports.next()) {
        (Some(port), None) => Ok(port.index),
        _ => Err(not_clear(&format!("{} has several ports", link.name))),
    }
}

fn own_inode() -> Result<u64, Error> {
    let stat = rustix::fs::fstat(namespace::current()?);
    Ok(stat.map_err(wrong)?.st_ino)
}

/// An error of others in one sentence, with its causes.
pub(crate) fn wrong(error: impl Into<Words>) -> Error {
    Error::Wrong(error.into().0)
}

/// A sentence.
pub(crate) struct Words(String);

impl From<&str> for Words {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Words {
    fn from(text: String) -> Self {
        Self(text)
    }
}

macro_rules! words_of {
    ($($error:ty),+) => {$(
        impl From<$error> for Words {
            fn from(error: $error) -> Self {
                Self(bonsai_host::sentence(&error))
            }
        }
    )+};
}
words_of!(
    bonsai_host::Error,
    bonsai_host::tenants::TenantError,
    bonsai_cgroup::Error,
    rustix::io::Errno
);
