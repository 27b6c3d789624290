//! What groups of processes send by an uplink: a group has no interface of its own that would count
//! it, and its class there does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bonsai_link::{Counters, Handle, Site};
use bonsai_tenants::Body;

/// A class of an uplink, and the cookie of their namespace.
pub(super) type Of = (u64, u32, Handle);

/// Counters of classes, read at most once a look, in one go for each uplink.
#[derive(Debug, Default)]
pub(super) struct Classes {
    site: Option<Site>,
    rows: BTreeMap<(u32, Handle), Counters>,
    counts: BTreeMap<Arc<str>, Count>,
}

/// Of one group: its total never gets less, whichever class counts it.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    of: Option<Of>,
    born_ns: u64,
    total: u64,
    last: u64,
    trouble: u64,
}

impl Count {
    /// Takes what its class counts now: whether something waited since.
    fn take(&mut self, of: Of, born_ns: u64, row: Counters) -> bool {
        let is_new = self.born_ns != born_ns;
        if is_new {
            *self = Self {
                born_ns,
                ..Self::default()
            };
        }
        let trouble = u64::from(row.overlimits) + u64::from(row.drops);
        let is_same = self.of == Some(of) && row.bytes >= self.last;
        // What a class had counted before is not of this group, and a class that began anew counts
        // from nothing.
        self.total += match self.of {
            Some(_) if is_same => row.bytes - self.last,
            Some(_) => row.bytes,
            None => 0,
        };
        let waited = is_same && trouble != self.trouble;
        (self.of, self.last, self.trouble) = (Some(of), row.bytes, trouble);
        waited || row.backlog > 0
    }
}

impl Classes {
    /// Reads all classes of these. What cannot be read is not known at this look.
    pub(super) fn look<'a>(&mut self, of: impl Iterator<Item = (&'a Arc<str>, Of)>) {
        self.rows.clear();
        let (mut uplinks, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for (id, (_, uplink, _)) in of {
            uplinks.insert(uplink);
            ids.insert(id);
        }
        self.counts.retain(|id, _| ids.contains(id));
        if self.site.is_none() && !uplinks.is_empty() {
            self.site = Site::open(None).ok();
        }
        let Some(site) = &mut self.site else {
            return;
        };
        for uplink in uplinks {
            let rows = &mut self.rows;
            // An uplink that has gone has no classes.
            let _ = site.classes(uplink, |class| match class {
                None => rows.retain(|(of, _), _| *of != uplink),
                Some(class) => drop(rows.insert((uplink, class.handle), class.counters)),
            });
        }
    }

    /// Adds what a group sends to what is known of it.
    pub(super) fn add(&mut self, id: &Arc<str>, of: Of, body: &mut Body) {
        let Some(row) = self.rows.get(&(of.1, of.2)).copied() else {
            return;
        };
        let count = self.counts.entry(Arc::clone(id)).or_default();
        body.waits[0] = count.take(of, body.born_ns, row);
        body.totals[0] = Some(count.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_never_gets_less_whichever_class_counts() {
        let row = |bytes, overlimits| Counters {
            bytes,
            overlimits,
            ..Counters::default()
        };
        let [one, other] = [1, 2].map(|minor| (7, 3, Handle(minor)));
        let mut count = Count::default();
        // What was counted before it was known is not its own.
        assert!(!count.take(one, 5, row(1000, 3)));
        assert!(!count.take(one, 5, row(1500, 3)));
        assert!(count.take(one, 5, row(1600, 4)));
        assert_eq!(count.total, 600);
        // Its class is made anew, or is another.
        count.take(one, 5, row(50, 0));
        count.take(other, 5, row(70, 0));
        assert_eq!(count.total, 720);
        // Another group of that name begins at nothing.
        count.take(other, 6, row(90, 0));
        assert_eq!(count.total, 0);
    }
}
