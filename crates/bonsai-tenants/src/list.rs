//! All interfaces of the machine, whose they are, what moves through them and what they are limited
//! to.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bonsai_host::tenants::{NsId, Roots, Tenants};
use bonsai_link::{Link, Seen, Site};
use serde::Serialize;

use crate::book::{Book, Room};
use crate::error::Error;
use crate::find::wrong;

/// What an interface has of an uplink. Rates are bytes per second at layer 2.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShareView {
    /// The uplink's name.
    pub uplink: String,
    /// What it has there whenever it wants it.
    pub guarantee: Option<u64>,
    /// The most it has there.
    pub ceiling: Option<u64>,
    /// How what is left is shared out.
    pub weight: u16,
}

/// An interface. Rates are bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkView {
    /// Its namespace, if that is not ours.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its number in its namespace.
    pub index: u32,
    /// What kind of virtual interface it is; nothing for a device.
    pub kind: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Whose it is: who is at its other end, in words.
    pub whose: Option<String>,
    /// What it sends now, as the interface counts it.
    pub tx: f64,
    /// What it receives now, as the interface counts it.
    pub rx: f64,
    /// The most it sends.
    pub tx_limit: Option<u64>,
    /// The most it receives.
    pub rx_limit: Option<u64>,
    /// What it has of an uplink.
    pub share: Option<ShareView>,
    /// For how long limits may be exceeded, ns, if that was said.
    pub burst_ns: Option<u64>,
    /// A discipline at its root that somebody else made.
    pub foreign: Option<String>,
    /// What is not as it was asked for, in words.
    pub problem: Option<String>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Links {
    /// For how long was counted, s.
    pub seconds: f64,
    /// Ours first, then by namespace; by number.
    pub links: Vec<LinkView>,
}

/// A namespace that is looked at.
struct Place {
    name: Option<String>,
    site: Site,
    room: Room,
    first: Vec<Link>,
    whose: BTreeMap<u32, String>,
}

/// Looks at our namespace and at those where something is limited, twice in `between`.
///
/// # Errors
/// If the kernel does not show them, or the record cannot be read.
pub fn look(folder: &Path, between: Duration) -> Result<Links, Error> {
    let book = Book::read(folder)?;
    let tenants = Tenants::look(&Roots::default()).map_err(wrong)?;
    let mut places = places(&book, &tenants)?;
    let start = Instant::now();
    thread::sleep(between);
    let seconds = start.elapsed().as_secs_f64();
    let mut links = Vec::new();
    for place in &mut places {
        let seen = place.site.see()?;
        let problem = place.site.differs(&place.room.wanted())?;
        links.extend(
            seen.links
                .iter()
                .map(|link| view(place, &seen, link, seconds)),
        );
        if let Some(problem) = problem {
            let limited = |link: &&mut LinkView| place.room.links.contains_key(&link.index);
            for link in links.iter_mut().filter(limited) {
                link.problem = Some(format!("not as it was asked for: {problem} would mend it"));
            }
        }
    }
    Ok(Links { seconds, links })
}

fn places(book: &Book, tenants: &Tenants) -> Result<Vec<Place>, Error> {
    let mut ours = Site::open(None)?;
    let mut numbers = BTreeMap::new();
    let mut others = Vec::new();
    for id in tenants.namespaces.keys().filter(|id| **id != tenants.own) {
        let Ok(open) = tenants.open_netns(*id) else {
            continue;
        };
        if let Some(number) = ours.number_of(open.fd.as_fd())? {
            numbers.insert(number, *id);
        }
        if book.rooms().values().any(|room| room.inode == id.inode) {
            others.push((*id, Site::open(Some(open.fd.as_fd()))?));
        }
    }
    let mut places = Vec::new();
    let mut add = |mut site: Site, id: NsId, name: Option<String>| -> Result<(), Error> {
        let first = site.links()?;
        let room = book
            .rooms()
            .get(&site.cookie()?)
            .cloned()
            .unwrap_or_default();
        let known = name.is_none().then_some(&numbers);
        let whose = first
            .iter()
            .filter_map(|link| Some((link.index, whose(tenants, id, known, link)?)));
        places.push(Place {
            whose: whose.collect(),
            name,
            site,
            room,
            first,
        });
        Ok(())
    };
    add(ours, tenants.own, None)?;
    for (id, site) in others {
        let name = tenants.behind_netns(id).map(|behind| behind.describe());
        let name = name.unwrap_or_else(|| format!("net:[{}]", id.inode));
        add(site, id, Some(name))?;
    }
    Ok(places)
}

/// Who is behind an interface, in words.
fn whose(
    tenants: &Tenants,
    namespace: NsId,
    numbers: Option<&BTreeMap<u32, NsId>>,
    link: &Link,
) -> Option<String> {
    let behind = match link.kind.as_deref() {
        Some("tun") => tenants.behind_tap(&link.name, namespace),
        Some("macvtap") => tenants.behind_macvtap(link.index, namespace),
        _ => {
            let number = link.other_namespace?;
            tenants.behind_netns(*numbers?.get(&number)?)
        }
    };
    Some(behind?.describe())
}

fn view(place: &Place, seen: &Seen, link: &Link, seconds: f64) -> LinkView {
    let before = place.first.iter().find(|one| one.index == link.index);
    let rate = |now: u64, then: Option<u64>| match then {
        Some(then) if now >= then && seconds > 0.0 => to_f64(now - then) / seconds,
        _ => 0.0,
    };
    let terms = place
        .room
        .links
        .get(&link.index)
        .map(|entry| entry.terms.clone());
    let terms = terms.unwrap_or_default();
    let name = |index: u32| {
        let link = seen.links.iter().find(|link| link.index == index);
        link.map_or_else(|| format!("interface {index}"), |link| link.name.clone())
    };
    LinkView {
        namespace: place.name.clone(),
        name: link.name.clone(),
        index: link.index,
        kind: link.kind.clone(),
        up: link.up,
        whose: place.whose.get(&link.index).cloned(),
        tx: rate(
            link.traffic.tx_bytes,
            before.map(|one| one.traffic.tx_bytes),
        ),
        rx: rate(
            link.traffic.rx_bytes,
            before.map(|one| one.traffic.rx_bytes),
        ),
        tx_limit: terms.tx,
        rx_limit: terms.rx,
        share: terms.share.map(|share| ShareView {
            uplink: name(share.uplink),
            guarantee: share.guarantee,
            ceiling: share.ceiling,
            weight: share.weight,
        }),
        burst_ns: terms.burst_ns,
        foreign: seen
            .foreign
            .get(&link.index)
            .map(|qdisc| qdisc.kind.clone()),
        problem: None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a second")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}
