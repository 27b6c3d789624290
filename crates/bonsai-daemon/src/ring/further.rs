//! The further limits that services have of the configuration, also of that of the daemon before:
//! they stay in a service whose daemon ends, and the next one has to know them to take them away.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::files::replace_until_crash;

type Limits = BTreeMap<String, String>;

/// Services that have not been seen for so long after the start run no more.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was put into one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Put {
    /// When that service was made: another one of its name has nothing of it.
    created_ns: u64,
    limits: Limits,
}

/// What was put into all.
#[derive(Debug)]
pub(super) struct Further {
    put: BTreeMap<Arc<str>, Put>,
    /// By the daemon before, into services that have not been seen yet.
    earlier: BTreeMap<String, Put>,
    written: BTreeMap<String, Put>,
    since: Instant,
}

impl Further {
    /// With what the daemon before has left. Of a file that cannot be read nothing is known.
    pub(super) fn open(state: &Path) -> Self {
        let text = fs::read(state.join("further.json")).unwrap_or_default();
        let earlier: BTreeMap<String, Put> = serde_json::from_slice(&text).unwrap_or_default();
        Self {
            put: BTreeMap::new(),
            written: earlier.clone(),
            earlier,
            since: Instant::now(),
        }
    }

    /// What a service has; `configured` is what it is to have.
    pub(super) fn of(
        &mut self,
        id: &Arc<str>,
        created_ns: u64,
        configured: &Limits,
    ) -> &mut Limits {
        let earlier = &mut self.earlier;
        let put = self.put.entry(Arc::clone(id)).or_insert_with(|| {
            let earlier = earlier.remove(&**id);
            let mut limits = earlier
                .filter(|put| put.created_ns == created_ns)
                .map_or_else(Limits::new, |put| put.limits);
            // What it is to have is put anew: somebody may have changed it meanwhile.
            limits.retain(|name, _| !configured.contains_key(name));
            Put { created_ns, limits }
        });
        &mut put.limits
    }

    /// A service is gone.
    pub(super) fn forget(&mut self, id: &Arc<str>) {
        self.put.remove(id);
    }

    /// Keeps it for the next daemon, where it has changed. Not beyond a crash of the machine,
    /// which no service survives.
    pub(super) fn keep(&mut self, state: &Path) -> std::io::Result<()> {
        if self.since.elapsed() > PATIENCE {
            self.earlier.clear();
        }
        let some = self.put.iter().filter(|(_, put)| !put.limits.is_empty());
        let mut all = self.earlier.clone();
        all.extend(some.map(|(id, put)| (id.to_string(), put.clone())));
        if all == self.written {
            return Ok(());
        }
        replace_until_crash(&state.join("further.json"), &all)?;
        self.written = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_daemon_knows_which_limits_are_of_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let limits = |names: &[&str]| -> Limits {
            let each = names
                .iter()
                .map(|name| ((*name).to_owned(), "5/s".to_owned()));
            each.collect()
        };
        let (vod, web): (Arc<str>, Arc<str>) = ("vod".into(), "web".into());
        let mut first = Further::open(folder.path());
        assert_eq!(*first.of(&vod, 7, &limits(&["open"])), limits(&[]));
        *first.of(&vod, 7, &Limits::new()) = limits(&["open", "read"]);
        *first.of(&web, 7, &Limits::new()) = limits(&["open"]);
        first.keep(folder.path()).expect("kept");
        let mut next = Further::open(folder.path());
        // What is configured still is put again, the rest is known as to be taken away.
        assert_eq!(*next.of(&vod, 7, &limits(&["read"])), limits(&["open"]));
        // Another service of that name has its own limits.
        assert_eq!(*next.of(&web, 8, &Limits::new()), limits(&[]));
        *next.of(&vod, 7, &Limits::new()) = limits(&[]);
        next.keep(folder.path()).expect("kept");
        let mut last = Further::open(folder.path());
        assert_eq!(*last.of(&vod, 7, &Limits::new()), limits(&[]));
        fs::write(folder.path().join("further.json"), "{").expect("damage");
        assert_eq!(
            *Further::open(folder.path()).of(&vod, 7, &Limits::new()),
            limits(&[])
        );
    }
}
