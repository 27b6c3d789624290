//! The further limits that services have of the configuration, also of that of the daemon before:
//! they stay in a service whose daemon ends, and the next one has to know them to take them away.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::state_file;

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

/// The form of [`Saved`].
const VERSION: u32 = 1;

/// Further limits, for the next daemon. Not beyond a crash of the machine, which no service survives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Saved {
    version: u32,
    services: BTreeMap<String, Put>,
}

impl Saved {
    /// The name of its file.
    const FILE: &str = "further.json";

    /// Replaces the file.
    pub(crate) fn write(&self, state: &Path) -> std::io::Result<()> {
        state_file::replace_until_crash(&state.join(Self::FILE), self)
    }
}

/// What was put into all.
#[derive(Debug)]
pub(super) struct Further {
    put: BTreeMap<Arc<str>, Put>,
    /// By the daemon before, into services that have not been seen yet.
    earlier: BTreeMap<String, Put>,
    /// The content of the file, now or soon.
    saved: BTreeMap<String, Put>,
    since: Instant,
}

impl Further {
    /// With what the daemon before has left, and what of that cannot be read, in words.
    ///
    /// # Errors
    /// A newer version.
    pub(super) fn open(state: &Path) -> anyhow::Result<(Self, Option<String>)> {
        let path = state.join(Saved::FILE);
        let (earlier, problem) = match read(&path)? {
            Ok(earlier) => (earlier, None),
            Err(why) => {
                let text = format!(
                    "{}: {why}; further limits that were taken out of the configuration while no daemon ran stay until their services end",
                    path.display()
                );
                (BTreeMap::new(), Some(text))
            }
        };
        let further = Self {
            put: BTreeMap::new(),
            saved: earlier.clone(),
            earlier,
            since: Instant::now(),
        };
        Ok((further, problem))
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

    /// The content of the file for the next daemon, where that has changed.
    pub(super) fn due(&mut self) -> Option<Saved> {
        if self.since.elapsed() > PATIENCE {
            self.earlier.clear();
        }
        let some = self.put.iter().filter(|(_, put)| !put.limits.is_empty());
        let mut all = self.earlier.clone();
        all.extend(some.map(|(id, put)| (id.to_string(), put.clone())));
        (all != self.saved).then(|| {
            self.saved.clone_from(&all);
            Saved {
                version: VERSION,
                services: all,
            }
        })
    }
}

/// The content of a file; in words, the reason why there is none.
fn read(path: &Path) -> anyhow::Result<Result<BTreeMap<String, Put>, String>> {
    let text = match state_file::read(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(Ok(BTreeMap::new())),
        Err(error) => return Ok(Err(format!("cannot be read: {error}"))),
    };
    let all: serde_json::Value = match serde_json::from_slice(&text) {
        Ok(all) => all,
        Err(error) => return Ok(Err(format!("is damaged ({error})"))),
    };
    // The first form had no version, and services beside each other.
    let version = all.get("version").and_then(serde_json::Value::as_u64);
    state_file::check_version(path, version, VERSION.into())?;
    let services = match version {
        None => serde_json::from_value(all),
        Some(_) => serde_json::from_value(all).map(|saved: Saved| saved.services),
    };
    Ok(services.map_err(|error| format!("is damaged ({error})")))
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
        let open = || Further::open(folder.path()).expect("it can be read").0;
        let keep = |further: &mut Further| {
            let saved = further.due().expect("it has changed");
            saved.write(folder.path()).expect("written");
            assert_eq!(further.due(), None, "once");
        };
        let mut first = open();
        assert_eq!(*first.of(&vod, 7, &limits(&["open"])), limits(&[]));
        *first.of(&vod, 7, &Limits::new()) = limits(&["open", "read"]);
        *first.of(&web, 7, &Limits::new()) = limits(&["open"]);
        keep(&mut first);
        let mut next = open();
        // What is configured still is put again, the rest is known as to be taken away.
        assert_eq!(*next.of(&vod, 7, &limits(&["read"])), limits(&["open"]));
        // Another service of that name has its own limits.
        assert_eq!(*next.of(&web, 8, &Limits::new()), limits(&[]));
        *next.of(&vod, 7, &Limits::new()) = limits(&[]);
        keep(&mut next);
        let mut last = open();
        assert_eq!(*last.of(&vod, 7, &Limits::new()), limits(&[]));
        let path = folder.path().join(Saved::FILE);
        std::fs::write(&path, "{").expect("damage");
        let (mut damaged, problem) = Further::open(folder.path()).expect("it starts");
        assert!(problem.expect("it is said").contains("is damaged"));
        assert_eq!(*damaged.of(&vod, 7, &Limits::new()), limits(&[]));
        let before = r#"{"vod":{"created_ns":7,"limits":{"open":"5/s"}}}"#;
        std::fs::write(&path, before).expect("a file");
        assert_eq!(
            *open().of(&vod, 7, &Limits::new()),
            limits(&["open"]),
            "the first form"
        );
        std::fs::write(&path, r#"{"version":2}"#).expect("a file");
        Further::open(folder.path()).expect_err("a newer one is left alone");
    }
}
