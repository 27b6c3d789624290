//! What moves through interfaces against what moves through their limits, all the time: see `bonsai_link::passage`.
//!
//! # Invariants
//! 1. A limit is compared from the moment on at which its class is there as it is to be, and with the same class.
//! 2. A gap is said until nothing has gone around for [`QUIET`].

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use bonsai_link::{Compared, Limit, Passage, Seen, Site, Wanted};

use crate::error::Error;

/// A gap is over when nothing has gone around the limit for so long.
const QUIET: Duration = Duration::from_secs(10);

/// What went around a limit, in words, and when that was.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    text: String,
    last: Instant,
}

/// The limits of a namespace that are looked after.
#[derive(Debug)]
pub(crate) struct Watch {
    site: Site,
    /// What was compared last.
    passages: BTreeMap<Limit, Option<Passage>>,
    gaps: BTreeMap<Limit, Gap>,
    /// Programs that are asked before ours, by interface and whether it is about what comes in.
    programs: BTreeMap<(u32, bool), String>,
}

/// What a look brought out.
#[derive(Debug, Default)]
pub struct Watched {
    /// Whether a limit is in force that was not, or the other way round: it is time for a round.
    pub changed: bool,
    /// Gaps that have begun, in words.
    pub alarms: Vec<String>,
}

impl Watch {
    pub(crate) fn open(namespace: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        Ok(Self {
            site: Site::open(namespace)?,
            passages: BTreeMap::new(),
            gaps: BTreeMap::new(),
            programs: BTreeMap::new(),
        })
    }

    /// What is in force now; `seen` is how.
    pub(crate) fn limits(&mut self, seen: &Seen, wanted: &Wanted) {
        let limits = seen.limits(wanted);
        self.passages.retain(|limit, _| limits.contains(limit));
        self.gaps.retain(|limit, _| limits.contains(limit));
        for limit in limits {
            self.passages.entry(limit).or_insert(None);
        }
        // A program that is there now is said by this round.
        self.programs = self.asked();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.passages.is_empty()
    }

    fn asked(&self) -> BTreeMap<(u32, bool), String> {
        let limits: Vec<Limit> = self.passages.keys().copied().collect();
        // A namespace that cannot be entered any more is found by the next round.
        self.site.programs_before(&limits).unwrap_or_default()
    }

    /// What went around the limits of an interface lately, in words.
    pub(crate) fn gap(&self, device: u32) -> Option<&str> {
        let mut gaps = self.gaps.iter();
        let gap = gaps.find(|(limit, _)| limit.device == device);
        gap.map(|(_, gap)| gap.text.as_str())
    }

    /// Compares.
    pub(crate) fn look(&mut self, now: Instant, watched: &mut Watched) {
        let programs = self.asked();
        watched.changed |= programs != self.programs;
        self.programs = programs;
        let limits: Vec<Limit> = self.passages.keys().copied().collect();
        let Ok(found) = self.site.passages(&limits) else {
            return;
        };
        let mut around = Vec::new();
        for (limit, last) in &mut self.passages {
            let Some(passage) = found.get(limit) else {
                *last = None;
                continue;
            };
            match last.map_or(Compared::Through, |before| before.compare(passage)) {
                Compared::TooLittle => continue,
                Compared::Through => {}
                Compared::Around(bytes, of) => around.push((*limit, bytes, of)),
            }
            *last = Some(*passage);
        }
        let before = self.gaps.len();
        let is_on = |gap: &Gap| now.saturating_duration_since(gap.last) < QUIET;
        self.gaps.retain(|_, gap| is_on(gap));
        watched.changed |= self.gaps.len() != before;
        if around.is_empty() {
            return;
        }
        let Ok(seen) = self.site.see() else {
            return;
        };
        for (limit, bytes, of) in around {
            let text = seen.around(limit, bytes, of);
            let gap = Gap {
                text: text.clone(),
                last: now,
            };
            if self.gaps.insert(limit, gap).is_none() {
                watched.alarms.push(text);
                watched.changed = true;
            }
        }
    }
}
