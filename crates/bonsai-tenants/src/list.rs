//! All interfaces of the machine, whose they are, what moves through them and what they are limited
//! to.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bonsai_api::{LinkBy, LinkShare, LinkState, LinkView, Links};
use bonsai_host::tenants::{NsId, Roots, Tenants};
use bonsai_link::{Class, Compared, Handle, Limit, Link, Passage, Seen, Site, Traffic, Wanted};
use bonsai_units::text::{escaped, is_plain};

use crate::book::{Book, GroupEntry, Room};
use crate::error::Error;
use crate::find::wrong;
use crate::tree::whole;

/// Who is who is looked up anew after so long, or when there is a new interface: it takes far longer
/// than all else.
const KNOWN: Duration = Duration::from_secs(2);

/// What had gone through each interface at an earlier look, by the cookie of its namespace and its
/// number there; what groups of processes had sent, by cookie and path; and who was who then.
#[derive(Clone, Debug)]
pub struct Before {
    at: Instant,
    traffic: BTreeMap<(u64, u32), Traffic>,
    tenants: Arc<Tenants>,
    known: Instant,
    groups: BTreeMap<(u64, String), u64>,
    passages: BTreeMap<(u64, Limit), Passage>,
}

impl Before {
    /// How long ago that was.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }
}

/// A namespace that is looked at.
struct Place {
    name: Option<String>,
    site: Site,
    cookie: u64,
    room: Room,
    whose: BTreeMap<u32, String>,
}

/// Looks at our namespace and at those where something is limited, twice in `between`.
///
/// # Errors
/// If the kernel does not show them, or the record cannot be read.
pub fn look(folder: &Path, between: Duration) -> Result<Links, Error> {
    let (_, before) = look_since(folder, None)?;
    thread::sleep(between);
    Ok(look_since(folder, Some(&before))?.0)
}

/// Looks once; what moves is counted since an earlier look.
///
/// # Errors
/// See [`look`].
pub fn look_since(folder: &Path, before: Option<&Before>) -> Result<(Links, Before), Error> {
    if let Some(before) = before.filter(|before| before.known.elapsed() < KNOWN) {
        let tenants = (Arc::clone(&before.tenants), before.known);
        let (links, now) = look_at(folder, Some(before), tenants)?;
        if now.traffic.keys().all(|at| before.traffic.contains_key(at)) {
            return Ok((links, now));
        }
    }
    let known = Instant::now();
    let tenants = Tenants::look(&Roots::default()).map_err(wrong)?;
    look_at(folder, before, (Arc::new(tenants), known))
}

fn look_at(
    folder: &Path,
    before: Option<&Before>,
    (tenants, known): (Arc<Tenants>, Instant),
) -> Result<(Links, Before), Error> {
    let book = Book::read(folder)?;
    let mut now = Before {
        at: Instant::now(),
        traffic: BTreeMap::new(),
        tenants: Arc::clone(&tenants),
        known,
        groups: BTreeMap::new(),
        passages: BTreeMap::new(),
    };
    let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
    let mut links = Vec::new();
    let (mut places, mut unseen) = places(&book, &tenants)?;
    for place in &mut places {
        match look_in(place, before, seconds, &mut now) {
            Ok(views) => links.extend(views),
            Err(error) => match &place.name {
                // Without those of the machine itself there is no list.
                None => return Err(error),
                Some(name) => unseen.push(Unseen {
                    name: name.clone(),
                    room: place.room.clone(),
                    why: error.sentence(),
                }),
            },
        }
    }
    let mut problems = Vec::new();
    for one in unseen {
        let problem = format!("{}: its interfaces are not seen: {}", one.name, one.why);
        links.extend(one.views(&problem));
        problems.push(problem);
    }
    let links = Links {
        revision: 0,
        seconds,
        links,
        problems,
    };
    Ok((links, now))
}

/// A namespace that cannot be looked at.
struct Unseen {
    name: String,
    room: Room,
    why: String,
}

impl Unseen {
    /// The limits that the record has there. It is not known that they are in force.
    fn views(&self, problem: &str) -> Vec<LinkView> {
        let limited = self.room.links.iter();
        let limited = limited.filter(|(_, entry)| !entry.terms.is_nothing());
        let links = limited.map(|(index, entry)| LinkView {
            target: entry.target.clone(),
            namespace: Some(self.name.clone()),
            name: entry.name.clone(),
            index: *index,
            tx_limit: entry.terms.tx,
            rx_limit: entry.terms.rx,
            burst_ns: entry.terms.burst_ns,
            by: Some(match entry.target {
                Some(_) => LinkBy::Configuration,
                None => LinkBy::Hand,
            }),
            swapped: entry.swapped,
            state: LinkState::Problem,
            problem: Some(problem.to_owned()),
            ..LinkView::default()
        });
        links.collect()
    }
}

/// Looks at the interfaces of a namespace.
fn look_in(
    place: &mut Place,
    before: Option<&Before>,
    seconds: f64,
    now: &mut Before,
) -> Result<Vec<LinkView>, Error> {
    let seen = place.site.see()?;
    let wanted = whole(&place.room)?;
    let problem = match seen.check(&wanted) {
        Err(error) => Some(Error::from(error).sentence()),
        Ok(()) => {
            let differs = seen.differs_but_newcomers(&wanted)?;
            differs.map(|what| format!("not as it was asked for: {what} would mend it"))
        }
    };
    let doubts = doubts(place, &seen, &wanted, before, now)?;
    let classes = classes(place, &seen)?;
    let held = held(place, &seen, &classes);
    let mut links = Vec::new();
    for link in &seen.links {
        let at = (place.cookie, link.index);
        let then = before.and_then(|before| before.traffic.get(&at));
        let (backlog, drops) = held.get(&link.index).copied().unwrap_or_default();
        let view = view(place, &seen, link, then, seconds);
        let doubt = doubts.get(&link.index).filter(|_| view.by.is_some());
        links.push(LinkView {
            backlog,
            drops,
            state: doubt.map_or(view.state, |_| LinkState::Problem),
            problem: doubt.cloned(),
            ..view
        });
        now.traffic.insert(at, link.traffic);
    }
    for (path, entry) in &place.room.groups {
        let at = (place.cookie, path.clone());
        let then = before.and_then(|before| before.groups.get(&at));
        let class = class_of(path, entry, &seen, &wanted, &classes);
        let there = wanted.id(path).is_some();
        let doubt = seen.doubt_of_group(&wanted, path);
        links.push(LinkView {
            up: there,
            state: match (&doubt, there) {
                (Some(_), _) => LinkState::Problem,
                (None, true) => LinkState::InForce,
                (None, false) => LinkState::Waiting,
            },
            problem: doubt,
            ..of_group(path, entry, &seen, class, then, seconds)
        });
        now.groups
            .insert(at, class.map_or(0, |class| class.counters.bytes));
    }
    if let Some(problem) = problem {
        for link in links.iter_mut().filter(|link| link.by.is_some()) {
            link.state = LinkState::Problem;
            link.problem = Some(problem.clone());
        }
    }
    Ok(links)
}

/// Why limits of interfaces may not hold, though all that they take is there, by interface.
fn doubts(
    place: &mut Place,
    seen: &Seen,
    wanted: &Wanted,
    before: Option<&Before>,
    now: &mut Before,
) -> Result<BTreeMap<u32, String>, Error> {
    let limits = seen.limits(wanted);
    let mut doubts = BTreeMap::new();
    for (limit, passage) in place.site.passages(&limits)? {
        let at = (place.cookie, limit);
        let then = before.and_then(|before| before.passages.get(&at));
        let compared = then.map(|then| then.compare(&passage));
        let kept = match (then, compared) {
            (Some(then), Some(Compared::TooLittle)) => *then,
            _ => passage,
        };
        now.passages.insert(at, kept);
        if let Some(Compared::Around(bytes, of)) = compared {
            doubts.insert(limit.device, seen.around(limit, bytes, of));
        }
    }
    for index in wanted.links.keys() {
        if let Some(doubt) = seen.doubt(wanted, *index) {
            doubts.insert(*index, doubt);
        }
    }
    Ok(doubts)
}

/// All classes of what is limited, by device.
fn classes(place: &mut Place, seen: &Seen) -> Result<BTreeMap<u32, Vec<Class>>, Error> {
    let limited = place.room.links.iter();
    let limited = limited.filter(|(_, entry)| entry.terms.tx.is_some());
    let devices: Vec<u32> = limited
        .map(|(index, _)| *index)
        .chain(seen.blocks())
        .collect();
    let mut all = BTreeMap::new();
    for device in devices {
        let mut found = Vec::new();
        place.site.classes(device, |class| match class {
            None => found.clear(),
            Some(class) => found.push(class),
        })?;
        all.insert(device, found);
    }
    Ok(all)
}

/// What waits for the limits of each interface, bytes, and what they have dropped, packets.
fn held(
    place: &Place,
    seen: &Seen,
    classes: &BTreeMap<u32, Vec<Class>>,
) -> BTreeMap<u32, (u64, u64)> {
    let mut held: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut add = |device: u32, whose: &dyn Fn(Handle) -> Option<u32>| {
        let of = classes.get(&device).into_iter().flatten();
        for class in of.filter(|class| class.leaf.0 != 0) {
            if let Some(index) = whose(class.handle) {
                let of = held.entry(index).or_default();
                of.0 += u64::from(class.counters.backlog);
                of.1 += u64::from(seen.drops(class));
            }
        }
    };
    let limited = place.room.links.iter();
    for (index, _) in limited.filter(|(_, entry)| entry.terms.tx.is_some()) {
        add(*index, &|_| Some(*index));
    }
    let slots: BTreeMap<u16, u32> = seen
        .slots()
        .into_iter()
        .map(|(of, slot)| (slot, of))
        .collect();
    for block in seen.blocks() {
        add(block, &|handle| slots.get(&handle.minor()).copied());
    }
    held
}

/// The class of a group.
fn class_of<'a>(
    path: &str,
    entry: &GroupEntry,
    seen: &Seen,
    wanted: &Wanted,
    classes: &'a BTreeMap<u32, Vec<Class>>,
) -> Option<&'a Class> {
    let handle = *seen.classes_of_groups(wanted).get(path)?;
    let of = classes.get(&entry.group.share.uplink)?;
    of.iter().find(|class| class.handle == handle)
}

/// A group of processes, as far as it is known from its class.
fn of_group(
    path: &str,
    entry: &GroupEntry,
    seen: &Seen,
    class: Option<&Class>,
    then: Option<&u64>,
    seconds: f64,
) -> LinkView {
    let share = &entry.group.share;
    let counters = class.map(|class| class.counters).unwrap_or_default();
    LinkView {
        target: Some(entry.target.clone()),
        name: escaped(path).into_owned(),
        kind: Some("group".to_owned()),
        tx: rate(counters.bytes, then.copied(), seconds),
        tx_limit: share.ceiling,
        share: Some(LinkShare {
            uplink: named(seen, share.uplink),
            guarantee: share.guarantee,
            ceiling: share.ceiling,
            weight: share.weight,
        }),
        burst_ns: entry.group.burst_ns,
        backlog: counters.backlog.into(),
        drops: class.map_or(0, |class| seen.drops(class).into()),
        by: Some(LinkBy::Configuration),
        ..LinkView::default()
    }
}

fn named(seen: &Seen, index: u32) -> String {
    let link = seen.links.iter().find(|link| link.index == index);
    link.map_or_else(
        || format!("interface {index}"),
        |link| escaped(&link.name).into_owned(),
    )
}

fn rate(now: u64, then: Option<u64>, seconds: f64) -> f64 {
    match then {
        Some(then) if now >= then && seconds > 0.0 => to_f64(now - then) / seconds,
        _ => 0.0,
    }
}

/// The namespaces that are looked at, ours first, and those that cannot be.
fn places(book: &Book, tenants: &Tenants) -> Result<(Vec<Place>, Vec<Unseen>), Error> {
    let mut ours = Site::open(None)?;
    let mut numbers = BTreeMap::new();
    let mut others = Vec::new();
    for id in tenants.namespaces.keys().filter(|id| **id != tenants.own) {
        let Ok(open) = tenants.open_netns(*id) else {
            continue;
        };
        // Without a number it is only not known which interfaces lead there.
        if let Ok(Some(number)) = ours.number_of(open.fd.as_fd()) {
            numbers.insert(number, *id);
        }
        let room = book.rooms().values().find(|room| room.inode == id.inode);
        if let Some(room) = room {
            others.push((*id, room, Site::open(Some(open.fd.as_fd()))));
        }
    }
    let place = |mut site: Site, id: NsId, name: Option<String>| -> Result<Place, Error> {
        let first = site.links()?;
        let cookie = site.cookie()?;
        let room = book.rooms().get(&cookie).cloned().unwrap_or_default();
        let known = name.is_none().then_some(&numbers);
        let whose = first
            .iter()
            .filter_map(|link| Some((link.index, whose(tenants, id, known, link)?)));
        Ok(Place {
            whose: whose.collect(),
            name,
            site,
            cookie,
            room,
        })
    };
    let mut places = vec![place(ours, tenants.own, None)?];
    let mut unseen = Vec::new();
    for (id, room, site) in others {
        let name = tenants.behind_netns(id).map(|behind| behind.describe());
        let name = name.unwrap_or_else(|| format!("net:[{}]", id.inode));
        let opened = site.map_err(Error::from);
        match opened.and_then(|site| place(site, id, Some(name.clone()))) {
            Ok(place) => places.push(place),
            Err(error) => unseen.push(Unseen {
                name,
                room: room.clone(),
                why: error.sentence(),
            }),
        }
    }
    Ok((places, unseen))
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

fn view(place: &Place, seen: &Seen, link: &Link, then: Option<&Traffic>, seconds: f64) -> LinkView {
    let entry = place.room.links.get(&link.index);
    let entry = entry.filter(|entry| !entry.terms.is_nothing());
    let terms = entry.map(|entry| entry.terms.clone()).unwrap_or_default();
    let target = entry.and_then(|entry| entry.target.clone());
    let by = entry.map(|entry| match entry.target {
        Some(_) => LinkBy::Configuration,
        None => LinkBy::Hand,
    });
    // A name that no target can have is shown, and cannot be asked for.
    let is_name = place.name.is_none() && link.name.chars().all(is_plain);
    let own_name = || is_name.then(|| link.name.clone());
    LinkView {
        target: target.or_else(own_name),
        swapped: entry.is_some_and(|entry| entry.swapped),
        namespace: place.name.clone(),
        name: escaped(&link.name).into_owned(),
        index: link.index,
        kind: link.kind.clone(),
        up: link.up,
        whose: place.whose.get(&link.index).cloned(),
        tx: rate(
            link.traffic.tx_bytes,
            then.map(|then| then.tx_bytes),
            seconds,
        ),
        rx: rate(
            link.traffic.rx_bytes,
            then.map(|then| then.rx_bytes),
            seconds,
        ),
        tx_limit: terms.tx,
        rx_limit: terms.rx,
        share: terms.share.map(|share| LinkShare {
            uplink: named(seen, share.uplink),
            guarantee: share.guarantee,
            ceiling: share.ceiling,
            weight: share.weight,
        }),
        burst_ns: terms.burst_ns,
        backlog: 0,
        drops: 0,
        foreign: seen
            .foreign
            .get(&link.index)
            .map(|qdisc| qdisc.kind.clone()),
        state: match by {
            Some(_) => LinkState::InForce,
            None => LinkState::Free,
        },
        by,
        settings: None,
        problem: None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a second")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}
