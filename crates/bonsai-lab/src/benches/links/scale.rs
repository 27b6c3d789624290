//! A thousand targets of one uplink: put into force, looked at, changed, taken away.

use bonsai_link::{Class, Share, Site, Terms, Wanted};
use serde::{Deserialize, Serialize};

use super::super::Benchmark;
use super::mbit;
use crate::context::Context;
use crate::load::Moment;
use crate::net::rooms::{ENDPOINT, Room};
use crate::record::Record;
use crate::report::{Section, Table, Verdict};
use crate::service::{monotonic_ns, thread_cpu_ns};
use bonsai_stats::percentile_nearest;

/// The benchmark "link-scale".
#[derive(Debug)]
pub(crate) struct Scale;

/// Pairs of interfaces: both ends are targets.
const PAIRS: u32 = 500;
const UPLINK: &str = "uplink";
/// All are in force so long after they were asked for, ns.
const MOST_COLD: f64 = 150e6;
/// Of a core, looked at ten times a second, in ns a look.
const MOST_LOOK: f64 = 1e6;
/// One change, with the way to the kernel and back, ns.
const MOST_CHANGE: f64 = 10e3;

/// One round. Times in ns.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Round {
    targets: usize,
    /// From nothing to all of it in force, compared with what the kernel shows.
    cold: u64,
    /// The same again: nothing to do.
    again: u64,
    /// Steps of that.
    written: usize,
    /// One target of a thousand, everything read and compared.
    one: u64,
    /// All classes with their counters, CPU time.
    looks: Vec<u64>,
    /// One class, by a message.
    changes: Vec<u64>,
    /// Away with all.
    cleared: u64,
}

impl Benchmark for Scale {
    fn name(&self) -> &'static str {
        "link-scale"
    }

    fn about(&self) -> &'static str {
        "a thousand targets of one uplink: put into force, looked at, changed"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        let rounds = context.effort.of(2, 5, 10);
        let (room, _outside) = match rooms() {
            Ok(rooms) => rooms,
            Err(error) => return context.skip(self.name(), format!("{error:#}")),
        };
        let mut site = Site::open(Some(room.namespace()))?;
        for _ in 0..rounds {
            let before = Moment::now();
            let measured = round(&mut site)?;
            context.sample(before.until_now(), &measured)?;
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        let rounds = record.samples::<Round>(self.name());
        let doubt = crate::load::doubt_of(rounds.iter().map(|round| &round.conditions));
        let mut section = Section::default();
        if rounds.is_empty() {
            return section;
        }
        section.text(
            "An uplink with a guaranteed share for each target. In force: everything made, read again and compared. \
             A look: all classes with their counters, CPU time. A change: one class, to the kernel and back.",
        );
        let mut table = Table::new(&[
            "targets",
            "in force, ms",
            "again, ms",
            "one of them, ms",
            "a look, ms CPU",
            "a change p50 / p99, us",
            "away, ms",
            "doubt",
        ]);
        let all = |of: &dyn Fn(&Round) -> Vec<u64>| -> Vec<f64> {
            let values = rounds.iter().flat_map(|round| of(&round.data));
            values.map(|ns| ns as f64).collect()
        };
        let at = |values: &[f64], p: f64| percentile_nearest(values, p).unwrap_or(f64::NAN);
        let cold = at(&all(&|round| vec![round.cold]), 50.0);
        let look = at(&all(&|round| round.looks.clone()), 50.0);
        let changes = all(&|round| round.changes.clone());
        let ms = |values: Vec<f64>| format!("{:.2}", at(&values, 50.0) / 1e6);
        let change = at(&changes, 50.0);
        table.row(vec![
            rounds
                .first()
                .map_or(0, |round| round.data.targets)
                .to_string(),
            format!("{:.1}", cold / 1e6),
            ms(all(&|round| vec![round.again])),
            ms(all(&|round| vec![round.one])),
            format!("{:.3}", look / 1e6),
            format!("{:.2} / {:.2}", change / 1e3, at(&changes, 99.0) / 1e3),
            ms(all(&|round| vec![round.cleared])),
            doubt.clone().unwrap_or_default(),
        ]);
        section.table(table);
        let mut promise = |what: &str, allowed: &str, measured: String, kept: bool| {
            section.promise(what, allowed, measured, Verdict::of(kept, doubt.as_ref()));
        };
        let cold_ms = format!("{:.1} ms", cold / 1e6);
        promise(
            "1,000 targets in force",
            "150 ms",
            cold_ms,
            cold <= MOST_COLD,
        );
        let part = format!("{:.2} % of a core", look / 1e6);
        promise(
            "looked at ten times a second",
            "1 % of a core",
            part,
            look <= MOST_LOOK,
        );
        let us = format!("{:.2} us", change / 1e3);
        promise("one change, p50", "10 us", us, change <= MOST_CHANGE);
        let written: usize = rounds.iter().map(|round| round.data.written).sum();
        promise(
            "steps where nothing is to do",
            "0",
            written.to_string(),
            written == 0,
        );
        section
    }
}

/// A room with an uplink and many interfaces, and one that the uplink leads to.
fn rooms() -> anyhow::Result<(Room, Room)> {
    let (room, other) = (Room::new("many")?, Room::new("other")?);
    room.netlink(|n| {
        n.veth(UPLINK, ENDPOINT, other.namespace(), 1500)?;
        n.up(UPLINK, Vec::new())?;
        for pair in 0..PAIRS {
            n.veth(
                &format!("a{pair}"),
                &format!("b{pair}"),
                room.namespace(),
                1500,
            )?;
        }
        Ok(())
    })?;
    Ok((room, other))
}

fn round(site: &mut Site) -> anyhow::Result<Round> {
    let links = site.links()?;
    let uplink = bonsai_link::named(&links, UPLINK)?.index;
    let mut wanted = Wanted::default();
    for link in links
        .iter()
        .filter(|link| link.name.starts_with(['a', 'b']))
    {
        let share = Share {
            uplink,
            guarantee: Some(mbit(1)),
            ceiling: None,
            weight: 1,
        };
        let terms = Terms {
            share: Some(share),
            ..Terms::default()
        };
        wanted.links.insert(link.index, terms);
    }
    let targets = wanted.links.len();
    let line = Terms {
        tx: Some(mbit(10_000)),
        ..Terms::default()
    };
    wanted.links.insert(uplink, line);

    let mut start = monotonic_ns();
    let mut lap = || {
        let now = monotonic_ns();
        now - std::mem::replace(&mut start, now)
    };
    site.apply(&wanted, &[])?;
    let cold = lap();
    let written = site.apply(&wanted, &[])?.steps;
    let again = lap();
    let some = wanted
        .links
        .values_mut()
        .find_map(|terms| terms.share.as_mut());
    if let Some(share) = some {
        share.guarantee = Some(mbit(2));
    }
    site.apply(&wanted, &[])?;
    let one = lap();
    let mut looks = Vec::new();
    let mut some: Option<Class> = None;
    for _ in 0..100 {
        let start = thread_cpu_ns();
        site.classes(uplink, |class| {
            some = class.filter(|of| of.terms.parent != 0).or(some);
        })?;
        looks.push(thread_cpu_ns() - start);
    }
    let mut changes = Vec::new();
    if let Some(class) = some {
        let other = bonsai_link::HtbClass {
            rate: class.terms.rate + 1,
            ..class.terms
        };
        for terms in [other, class.terms].into_iter().cycle().take(1000) {
            let start = monotonic_ns();
            site.retune(uplink, class.handle, &terms)?;
            changes.push(monotonic_ns() - start);
        }
    }
    lap();
    site.apply(&Wanted::default(), &[])?;
    let cleared = lap();
    Ok(Round {
        targets,
        cold,
        again,
        written,
        one,
        looks,
        changes,
        cleared,
    })
}
