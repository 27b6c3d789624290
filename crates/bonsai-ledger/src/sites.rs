//! Where the system calls of libraries and programs are, by build-id: found out once,
//! read by every process.
//!
//! ```text
//!   free (0 sites) ── claim ──> being written (BUSY) ── publish ──> there for good
//! ```
//! Entries are filled one behind the other, so whoever has claimed one is the only
//! writer. If it is killed, its entry stays as it is: readers pass over it, and nobody
//! stores anything more.

use crate::layout::{SITE_LIBS, SITES, Segment, SiteLib};
use crate::sync::Ordering;

/// The count of an entry that is being written: no table has room for so many.
const BUSY: u32 = u32::MAX;

impl SiteLib {
    /// Where its sites end; `None` while it is being written.
    fn end(&self) -> Option<usize> {
        let count = self.count.load(Ordering::Acquire);
        (count != BUSY).then(|| self.first.load(Ordering::Relaxed) as usize + count as usize)
    }

    fn is(&self, id: [u64; 3]) -> bool {
        let mut words = self.build_id.iter().zip(id);
        words.all(|(word, wanted)| word.load(Ordering::Relaxed) == wanted)
    }
}

impl Segment {
    /// Stores where the system calls of a library are: its build-id, and its sites as
    /// `offset | nr << 32 | flag << 48`. Returns false if that build is there already,
    /// if there is no room, or if somebody else stores something at this moment.
    pub fn store_sites(&self, build_id: &[u8], sites: impl ExactSizeIterator<Item = u64>) -> bool {
        let id = words(build_id);
        let mut first = 0;
        let mut free = None;
        for (i, lib) in self.sites.libs.iter().enumerate() {
            if lib.count.load(Ordering::Acquire) == 0 {
                free = Some(i);
                break;
            }
            match lib.end() {
                Some(end) if !lib.is(id) => first = end,
                _ => return false,
            }
        }
        let Ok(count) = u32::try_from(sites.len()) else {
            return false;
        };
        let (Some(lib), true) = (
            free.filter(|i| *i < SITE_LIBS),
            count > 0 && first + sites.len() <= SITES,
        ) else {
            return false;
        };
        let lib = &self.sites.libs[lib];
        let claimed = lib
            .count
            .compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed);
        if claimed.is_err() {
            return false;
        }
        for (word, site) in self.sites.sites[first..].iter().zip(sites) {
            word.store(site, Ordering::Relaxed);
        }
        for (word, value) in lib.build_id.iter().zip(id) {
            word.store(value, Ordering::Relaxed);
        }
        let first = u32::try_from(first).unwrap_or(0);
        lib.first.store(first, Ordering::Relaxed);
        lib.count.store(count, Ordering::Release);
        true
    }
}

/// A build-id as it stands in the table.
fn words(build_id: &[u8]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, eight) in words.iter_mut().zip(build_id.chunks(8)) {
        for (i, byte) in eight.iter().enumerate() {
            *word |= u64::from(*byte) << (8 * i);
        }
    }
    words
}
