//! Groups as they are shown.

use std::time::Duration;

use bonsai_calls::{CALLS, select};
use bonsai_ledger::{GROUP_BUCKET, Ledger, MemberReport, PartReport, Thing};
use bonsai_units::{Rate, Unit};
use serde::Serialize;

use super::member::{self, most, said};
use crate::limits::for_people;
use crate::observe::{LimitView, Waits, applies};

/// What a service draws on of its group, at a look.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The group.
    pub group: String,
    /// What it shares, and what the service has and did.
    pub parts: Vec<Option<(Thing, PartReport)>>,
}

/// What is kept of a look until the next.
pub type Seen = Option<Drawn>;

/// A service in its group: part of `bonsai status --json`.
#[derive(Clone, Debug, Serialize)]
pub struct GroupView {
    /// The group.
    pub name: String,
    /// The service's weight in it.
    pub weight: u64,
    /// What the service has of what the group shares.
    pub shares: Vec<ShareView>,
}

/// One of them.
#[derive(Clone, Debug, Serialize)]
pub struct ShareView {
    /// The call or class.
    pub name: String,
    /// What is counted: `bytes` or `calls`.
    pub unit: &'static str,
    /// What the group has, units/s.
    pub rate: f64,
    /// What is guaranteed to the service, units/s; `null` for nothing.
    pub guarantee: Option<f64>,
    /// The most it gets, units/s; `null` for all.
    pub ceiling: Option<f64>,
    /// What it was granted in the interval, units/s; `null` at the first look.
    pub got: Option<f64>,
    /// What of that was borrowed.
    pub borrowed: Option<f64>,
    /// Waits for it so far.
    pub waits: u64,
    /// Their sum, ns.
    pub waited_ns: u64,
}

/// A member in `bonsai group status`.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// The service.
    pub service: String,
    /// Its user.
    pub uid: u32,
    /// The process that made it.
    pub pid: u32,
    /// Whether that lives.
    pub alive: bool,
    /// Its weight.
    pub weight: u64,
    /// As in [`ShareView`].
    pub guarantee: Option<f64>,
    /// As in [`ShareView`].
    pub ceiling: Option<f64>,
    /// As in [`ShareView`].
    pub got: Option<f64>,
    /// As in [`ShareView`].
    pub borrowed: Option<f64>,
    /// As in [`ShareView`].
    pub waits: u64,
    /// As in [`ShareView`].
    pub waited_ns: u64,
}

const fn unit(thing: &Thing) -> Unit {
    if thing.bytes {
        Unit::Bytes
    } else {
        Unit::Calls
    }
}

const fn unit_name(thing: &Thing) -> &'static str {
    if thing.bytes { "bytes" } else { "calls" }
}

fn per_s(milli: u64) -> Option<f64> {
    (milli != 0).then(|| milli as f64 / 1e3)
}

/// What was added in `time` s.
fn added(now: u64, before: Option<u64>, time: f64) -> Option<f64> {
    Some(now.saturating_sub(before?) as f64 / time.max(1e-9))
}

/// A rate for people.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a measured rate is not negative, and beyond the range a cast saturates"
)]
pub fn rate(thing: &Thing, per_s: f64) -> String {
    if per_s < 0.001 {
        return "0".to_owned();
    }
    let rate = Rate::from_milli((per_s * 1e3) as u64, unit(thing));
    for_people(rate, select(&thing.name))
}

/// A member of a group, of one thing.
pub fn member(
    now: &MemberReport,
    before: Option<&MemberReport>,
    thing: usize,
    time: f64,
    alive: bool,
) -> Option<MemberView> {
    let part = now.parts.get(thing)?.as_ref()?;
    let old = before.and_then(|before| before.parts.get(thing)?.as_ref());
    Some(MemberView {
        service: now.who.name.clone(),
        uid: now.who.uid,
        pid: now.who.pid,
        alive,
        weight: part.part.weight,
        guarantee: per_s(part.part.guarantee_milli),
        ceiling: per_s(part.part.ceiling_milli),
        got: added(part.granted, old.map(|old| old.granted), time),
        borrowed: added(part.borrowed, old.map(|old| old.borrowed), time),
        waits: part.waits,
        waited_ns: part.waited_ns,
    })
}

/// What a service draws on; `None` if it is in no group.
pub fn drawn(ledger: &Ledger) -> Seen {
    let (group, membership) = super::join::of(ledger)?;
    let reports = group.reports();
    let mine = reports.into_iter().find(|m| m.membership == membership)?;
    let parts = group.things().into_iter().zip(mine.parts);
    Some(Drawn {
        group: group.name(),
        parts: parts.map(|(thing, part)| Some((thing?, part?))).collect(),
    })
}

impl Drawn {
    fn parts(&self) -> impl Iterator<Item = (usize, &Thing, &PartReport)> {
        let parts = self.parts.iter().enumerate();
        parts.filter_map(|(i, part)| part.as_ref().map(|(thing, part)| (i, thing, part)))
    }

    /// Its name among the limits of a service.
    fn limit_name(&self, thing: &Thing) -> String {
        format!("group {} {}", self.group, thing.name)
    }

    /// The view of it, with what was done since an earlier look.
    pub fn view(&self, before: &Seen, time: Option<Duration>) -> GroupView {
        let weight = self
            .parts()
            .next()
            .map_or(1, |(_, _, part)| part.part.weight);
        let shares = self.parts().map(|(i, thing, part)| {
            let old = before.as_ref().and_then(|b| b.parts.get(i)?.as_ref());
            let since = |now: u64, old: Option<u64>| added(now, old, time?.as_secs_f64());
            ShareView {
                name: thing.name.clone(),
                unit: unit_name(thing),
                rate: thing.rate_milli as f64 / 1e3,
                guarantee: per_s(part.part.guarantee_milli),
                ceiling: per_s(part.part.ceiling_milli),
                got: since(part.granted, old.map(|(_, old)| old.granted)),
                borrowed: since(part.borrowed, old.map(|(_, old)| old.borrowed)),
                waits: part.waits,
                waited_ns: part.waited_ns,
            }
        });
        GroupView {
            name: self.group.clone(),
            weight,
            shares: shares.collect(),
        }
    }
}

/// The same among the limits of a service: what it gets at most is what it asks for.
pub fn limit_views(drawn: &Drawn, view: &GroupView) -> Vec<LimitView> {
    let views = drawn
        .parts()
        .zip(&view.shares)
        .map(|((_, thing, part), share)| {
            let selection = select(&thing.name);
            let top = Rate::from_milli(thing.rate_milli, unit(thing));
            LimitView {
                name: drawn.limit_name(thing),
                setting: said(thing, part.part),
                unit: share.unit,
                asked: share
                    .ceiling
                    .map_or(share.rate, |ceiling| ceiling.min(share.rate)),
                got: share.got,
                burst: thing.burst,
                level: 0,
                waits: Waits {
                    count: share.waits,
                    total_ns: share.waited_ns,
                    ..Waits::default()
                },
                recent: Waits::default(),
                waiting_calls: Vec::new(),
                network: thing.bytes && for_people(top, selection) == top.network(),
                per_stream: false,
                streams: None,
            }
        });
    views.collect()
}

/// The name and terms of what a noted wait is for, if that is a group.
pub fn waiting_name(drawn: &Seen, bucket: u8) -> Option<(String, String)> {
    let drawn = drawn.as_ref()?;
    let (thing, part) = drawn
        .parts
        .get(usize::from(bucket.checked_sub(GROUP_BUCKET)?))?
        .as_ref()?;
    Some((drawn.limit_name(thing), said(thing, part.part)))
}

/// What waits may be blamed on: bucket, name, rate for people, and the calls it is on.
pub fn blamed(drawn: &Drawn) -> Vec<(usize, String, String, Vec<u8>)> {
    let each = drawn.parts().map(|(i, thing, part)| {
        let most = most(thing, part.part);
        let selection = select(&thing.name);
        let on = (0_u8..)
            .zip(CALLS)
            .filter(|(_, call)| applies(selection, unit(thing), call));
        (
            usize::from(GROUP_BUCKET) + i,
            drawn.limit_name(thing),
            member::people(thing, most).replace(' ', ""),
            on.map(|(call, _)| call).collect(),
        )
    });
    each.collect()
}
