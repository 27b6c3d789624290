//! Who changed what: told to those who listen, kept for those who ask later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bonsai_api::{AuditEntry, Difference, Revision};
use bonsai_services::observe::unix_ms;
use bonsai_units::text::escaped;
use tokio::sync::broadcast;

use crate::keeping::Noted;
use crate::past;
use crate::who::Who;

/// Entries that are kept in memory, so that there is a trail even where nothing can be written.
const RECENT: usize = 500;

/// Entries that a slow listener may be behind.
const BEHIND: usize = 256;

/// The youngest entries, the oldest first.
pub(crate) type Recent = Arc<Mutex<VecDeque<AuditEntry>>>;

/// The trail.
#[derive(Debug)]
pub(crate) struct Audits {
    recent: Recent,
    live: broadcast::Sender<AuditEntry>,
    next: u64,
}

/// One deed, before it has a number.
#[derive(Clone, Debug)]
pub(crate) struct Deed<'a> {
    pub(crate) who: Option<&'a Who>,
    /// Who, where nobody asked: `policy`, `timer`, `file`, `daemon`.
    pub(crate) by: &'a str,
    pub(crate) action: &'a str,
    pub(crate) service: Option<&'a str>,
    pub(crate) differences: Vec<Difference>,
    pub(crate) reason: String,
}

impl Audits {
    /// The last one had the number `last`; `kept` are those that no database has.
    pub(crate) fn new(last: u64, kept: impl IntoIterator<Item = AuditEntry>) -> Self {
        Self {
            recent: Arc::new(Mutex::new(kept.into_iter().collect())),
            live: broadcast::channel(BEHIND).0,
            next: last + 1,
        }
    }

    /// What those who listen subscribe to.
    pub(crate) fn live(&self) -> broadcast::Sender<AuditEntry> {
        self.live.clone()
    }

    /// What was done lately.
    pub(crate) fn recent(&self) -> Recent {
        Arc::clone(&self.recent)
    }

    /// Notes a deed; the entry is to be kept. What is told now is what will be told after a restart.
    pub(crate) fn note(&mut self, deed: Deed<'_>, revision: Revision) -> Noted {
        let uid = deed.who.and_then(|who| who.uid);
        let entry = AuditEntry {
            id: self.next,
            unix_ms: unix_ms(),
            actor: escaped(deed.who.map_or(deed.by, |who| &who.name)).into_owned(),
            via: deed.who.map_or("daemon", |who| who.via).to_owned(),
            pid: deed.who.and_then(|who| who.pid),
            action: deed.action.to_owned(),
            revision,
            service: deed.service.map(str::to_owned),
            differences: deed.differences,
            // The daemon's own reasons have names of interfaces and files in them.
            reason: escaped(&deed.reason).into_owned(),
            left_out: 0,
            problem: None,
        };
        let entry = past::as_kept(&entry, uid);
        self.next += 1;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        while recent.len() >= RECENT {
            recent.pop_front();
        }
        recent.push_back(entry.clone());
        drop(recent);
        // Nobody may be listening.
        let _ = self.live.send(entry.clone());
        Noted { uid, entry }
    }
}
