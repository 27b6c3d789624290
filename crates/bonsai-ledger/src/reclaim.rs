//! Entries and pages of other pid namespaces whose process has ended.
//!
//! Members judge processes of their own namespace only, and reuse what these leave. What others
//! leave is freed from a namespace above, where `/proc` shows all of them: by `bonsai run`, or by a
//! daemon.
//!
//! # Numbers come round
//! A new namespace begins with process 1 again, and may have the inode of one that has just ended,
//! also while this looks. So what seems to be left is marked first, and freed where a second look
//! finds no such process either. A process that has taken the page between the two looks is found
//! by the second, which puts the owner back; one that comes later finds neither its entry nor its
//! page, and takes others.

use crate::identity::{ENDED, LEAVING, Owner, ProcessId, short_namespace};
use crate::layout::{Segment, THREADS};
use crate::sync::{AtomicU64, Ordering};
use crate::threads::seize;

/// An entry or a page that is marked.
struct Marked<'a> {
    word: &'a AtomicU64,
    /// The number and the short namespace of its process.
    of: (u32, u32),
    /// Word before, the mark, and the word if the process is gone.
    states: [u64; 3],
}

impl Segment {
    /// Entries and pages of other pid namespaces than `own`, with what to make of them.
    fn foreign(&self, own: u32) -> impl Iterator<Item = Marked<'_>> {
        let high = (self.header.high.load(Ordering::Acquire) as usize).min(THREADS);
        let entries = self.processes.iter().filter_map(move |entry| {
            let seen = entry.id.load(Ordering::Acquire);
            let id = ProcessId::from_word(seen)?;
            let with = |namespace| ProcessId { namespace, ..id }.word();
            (id.namespace > ENDED && id.namespace != own).then(|| Marked {
                word: &entry.id,
                of: (id.pid, short_namespace(id.namespace)),
                states: [seen, with(LEAVING), with(ENDED)],
            })
        });
        let pages = self.owners[..high].iter().filter_map(move |word| {
            let seen = word.load(Ordering::Acquire);
            let owner = Owner::from_word(seen)?;
            let namespace = LEAVING;
            (owner.namespace > ENDED && !owner.is_in(own)).then(|| Marked {
                word,
                of: (owner.pid, owner.namespace),
                states: [seen, Owner { namespace, ..owner }.word(), 0],
            })
        });
        entries.chain(pages)
    }

    /// Short namespaces other than `own` that entries and pages are of.
    pub fn foreign_namespaces(&self, own: u32) -> impl Iterator<Item = u32> {
        self.foreign(own).map(|marked| marked.of.1)
    }

    /// Frees what processes of other pid namespaces than `own` have left. `look` looks for the
    /// processes that live, and answers for a number and a short namespace whether there is
    /// certainly no such process.
    pub fn reclaim<L: Fn(u32, u32) -> bool>(&self, own: u32, mut look: impl FnMut() -> L) {
        // Listed before the look: what a process takes during it is no entry of an ended one.
        let listed: Vec<Marked<'_>> = self.foreign(own).collect();
        if listed.is_empty() {
            return;
        }
        let is_gone = look();
        let mark = |marked: &Marked<'_>| {
            let [seen, mark, _] = marked.states;
            is_gone(marked.of.0, marked.of.1) && seize(marked.word, seen, mark)
        };
        let marked: Vec<Marked<'_>> = listed.into_iter().filter(mark).collect();
        if marked.is_empty() {
            return;
        }
        let is_gone = look();
        for Marked { word, of, states } in marked {
            let [seen, mark, gone] = states;
            seize(word, mark, if is_gone(of.0, of.1) { gone } else { seen });
        }
    }
}
