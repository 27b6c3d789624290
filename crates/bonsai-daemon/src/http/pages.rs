//! The tokens of pages, and the port that they are for.
//!
//! When the daemon ends, a page goes on asking at its port and shows its token to whoever listens
//! there then. So tokens outlive the daemon only where no other user can: at a port that is
//! root's to give (`ip_unprivileged_port_start`). At any other port they end with the daemon, and
//! whoever takes the port gets a token that opens nothing.
//!
//! # Invariants
//! 1. Only hashes are kept, in a file of mode 0600.
//! 2. What is kept is forgotten at its end, and when its port is no longer root's.
//! 3. Rights that somebody had by a group of the configuration are not kept: it may have changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bonsai_services::observe::unix_ms;
use serde::{Deserialize, Serialize};

use super::tokens::{Bearer, MOST_TOKENS};
use crate::state_file;

/// Of ports that are root's, those that browsers open and no well-known service has.
const PORTS: std::ops::RangeInclusive<u16> = 700..=740;

/// Pages of a user at a time.
const MOST_OF_USER: usize = 50;

/// Digits of a token's hash in the name by which its page is ended.
const NAME_DIGITS: usize = 12;

/// The beginning of such a name. Tokens that are made by name have no `:` in it.
const NAME: &str = "page:";

/// The form of [`Kept`].
const VERSION: u32 = 1;

/// What survives a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    /// Where the page is.
    port: Option<u16>,
    /// By the hash of the token.
    tokens: BTreeMap<String, Bearer>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Pages {
    path: PathBuf,
    all: Mutex<Kept>,
    /// Why they do not survive a restart.
    problem: Mutex<Option<String>>,
    /// Held while they are written.
    writing: Mutex<()>,
    /// True while the file lacks what could not be written.
    is_behind: AtomicBool,
}

/// The first port that anybody may listen on; without an answer all of them.
fn first_of_anybody() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first = text.ok().and_then(|text| text.trim().parse().ok());
    first.unwrap_or(0)
}

/// Ports for a page that comes for the first time, the best first.
pub(super) fn ports() -> impl Iterator<Item = u16> {
    let first = first_of_anybody();
    PORTS.filter(move |port| *port < first).chain([0])
}

impl Pages {
    /// Tokens of a file; none if it is not there. A damaged file is said.
    ///
    /// # Errors
    /// A newer version.
    pub(crate) fn open(path: PathBuf) -> anyhow::Result<Self> {
        let own = rustix::process::geteuid().as_raw();
        let lost = |why: &dyn std::fmt::Display| {
            format!(
                "{}: {why}; pages that were open before the start have to be opened anew",
                path.display()
            )
        };
        let (mut kept, mut problem) = (Kept::default(), None);
        match state_file::read(&path) {
            Ok(None) => {}
            Ok(Some(text)) => match serde_json::from_slice::<serde_json::Value>(&text) {
                Ok(all) => {
                    let version = all.get("version").and_then(serde_json::Value::as_u64);
                    state_file::check_version(&path, version, VERSION.into())?;
                    match serde_json::from_value(all) {
                        Ok(read) => kept = read,
                        Err(error) => problem = Some(lost(&format_args!("is damaged ({error})"))),
                    }
                }
                Err(error) => problem = Some(lost(&format_args!("is damaged ({error})"))),
            },
            Err(error) => problem = Some(lost(&format_args!("cannot be read: {error}"))),
        }
        let all = Mutex::new(still_good(kept, own, unix_ms(), first_of_anybody()));
        Ok(Self {
            path,
            all,
            problem: Mutex::new(problem),
            writing: Mutex::new(()),
            is_behind: AtomicBool::new(false),
        })
    }

    /// Why pages have to be opened anew after a restart, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        problem.clone()
    }

    fn all(&self) -> MutexGuard<'_, Kept> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a page that was open when the last daemon ended looks for this one.
    pub(crate) fn awaited_at(&self) -> Option<u16> {
        let all = self.all();
        all.port.filter(|_| !all.tokens.is_empty())
    }

    /// Where the page is from now on.
    pub(crate) fn are_at(&self, port: u16) {
        self.all().port = Some(port);
    }

    pub(super) fn get(&self, hash: &str) -> Option<Bearer> {
        self.all().tokens.get(hash).cloned()
    }

    /// Takes one in. A token that cannot be kept ends with the daemon, and `status` says so. This waits for the disk;
    /// requests with a token meanwhile do not.
    pub(super) fn insert(&self, hash: String, bearer: Bearer) {
        let now = unix_ms();
        let mut all = self.all();
        all.tokens.retain(|_, page| page.holds(now));
        // Whoever opens many ends their own, and nobody else's.
        let theirs = all.tokens.iter().filter(|(_, page)| page.uid == bearer.uid);
        if theirs.clone().count() >= MOST_OF_USER {
            let oldest = theirs.min_by_key(|(_, page)| page.created_unix_ms);
            let oldest = oldest.map(|(hash, _)| hash.clone());
            oldest.and_then(|hash| all.tokens.remove(&hash));
        }
        if all.tokens.len() >= MOST_TOKENS {
            end_one_of_many(&mut all.tokens);
        }
        all.tokens.insert(hash, bearer);
        all.version = VERSION;
        drop(all);
        self.write();
    }

    /// Open pages by the name that ends them.
    pub(super) fn list(&self) -> Vec<(String, Bearer)> {
        let now = unix_ms();
        let all = self.all();
        let open = all.tokens.iter().filter(|(_, page)| page.holds(now));
        let named = open.map(|(hash, page)| (name(hash), page.clone()));
        named.collect()
    }

    /// Ends the page of a name; false where no page has it. This waits for the disk, as [`Pages::insert`] does.
    pub(super) fn revoke(&self, wanted: &str) -> bool {
        let mut all = self.all();
        let before = all.tokens.len();
        all.tokens.retain(|hash, _| name(hash) != wanted);
        let is_ended = all.tokens.len() < before;
        drop(all);
        if is_ended {
            self.write();
        }
        is_ended
    }

    /// Writes again what could not be written, once a disk has room again.
    pub(crate) fn write_again(&self) {
        if self.is_behind.load(Ordering::Relaxed) {
            self.write();
        }
    }

    fn write(&self) {
        // A write that waits for this one has both.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.all().clone();
        let written = if all.port.is_some_and(|port| port < first_of_anybody()) {
            state_file::replace(&self.path, &all)
        } else {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                done => done,
            }
        };
        self.is_behind.store(written.is_err(), Ordering::Relaxed);
        let problem = written.err().map(|error| {
            format!(
                "{}: cannot be written: {error}; pages that are open have to be opened anew after a restart",
                self.path.display()
            )
        });
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

/// Tells whether a name is one of a page.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(NAME)
}

fn name(hash: &str) -> String {
    format!("{NAME}{}", hash.get(..NAME_DIGITS).unwrap_or(hash))
}

/// Ends the oldest page of whoever has most.
fn end_one_of_many(tokens: &mut BTreeMap<String, Bearer>) {
    let mut counts = BTreeMap::<_, usize>::new();
    for page in tokens.values() {
        *counts.entry(page.uid).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let theirs = tokens
        .iter()
        .filter(|(_, page)| most.is_some_and(|(uid, _)| page.uid == uid));
    let oldest = theirs.min_by_key(|(_, page)| page.created_unix_ms);
    let oldest = oldest.map(|(hash, _)| hash.clone());
    oldest.and_then(|hash| tokens.remove(&hash));
}

/// Of what was kept, what may be used still.
fn still_good(mut kept: Kept, own: u32, now: u64, first_of_anybody: u16) -> Kept {
    let is_roots = kept.port.is_some_and(|port| port < first_of_anybody);
    if kept.version != VERSION || !is_roots {
        return Kept::default();
    }
    kept.tokens
        .retain(|_, page| page.holds(now) && (!page.all || page.uid == Some(own)));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_may_be_used_still() {
        let kept = |port| -> Kept {
            let page = |uid: u32, all: bool, until: u64| {
                serde_json::json!({
                    "name": "somebody", "scope": "read", "uid": uid, "all": all,
                    "created_unix_ms": 1, "until_unix_ms": until
                })
            };
            let text = serde_json::json!({
                "version": VERSION, "port": port,
                "tokens": {
                    "own": page(0, true, 100), "over": page(0, true, 10),
                    "group": page(7, true, 100), "theirs": page(7, false, 100)
                }
            });
            serde_json::from_value(text).expect("kept")
        };
        let names = |kept: Kept| kept.tokens.into_keys().collect::<Vec<_>>();
        assert_eq!(names(still_good(kept(700), 0, 50, 1024)), ["own", "theirs"]);
        assert!(still_good(kept(2000), 0, 50, 1024).tokens.is_empty());
        assert!(still_good(kept(700), 0, 50, 0).tokens.is_empty());
    }

    #[test]
    fn whoever_opens_many_pages_ends_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let pages = Pages::open(folder.path().join("pages.json")).expect("none yet");
        let bearer = |uid: u32, created: usize| -> Bearer {
            serde_json::from_value(serde_json::json!({
                "name": "somebody", "scope": "read", "uid": uid, "all": false,
                "created_unix_ms": created, "until_unix_ms": null
            }))
            .expect("a bearer")
        };
        pages.insert("other".to_owned(), bearer(7, 0));
        for i in 0..=MOST_OF_USER {
            pages.insert(format!("{i}"), bearer(8, i));
        }
        assert!(pages.get("other").is_some());
        assert!(pages.get("0").is_none() && pages.get("1").is_some());
        assert!(pages.get(&MOST_OF_USER.to_string()).is_some());
        // When there are too many in all, too.
        for i in MOST_OF_USER + 1..MOST_TOKENS {
            let uid = u32::try_from(9 + i / 40).expect("a user");
            pages.insert(format!("{i}"), bearer(uid, 1));
        }
        assert_eq!(pages.all().tokens.len(), MOST_TOKENS);
        pages.insert("last".to_owned(), bearer(5, 1));
        assert!(pages.get("other").is_some() && pages.get("last").is_some());
        assert!(pages.get("1").is_none(), "the oldest of whoever has most");
        assert_eq!(pages.all().tokens.len(), MOST_TOKENS);
    }

    #[test]
    fn what_could_not_be_written_is_written_once_it_can_be() {
        if first_of_anybody() <= 700 {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("full/pages.json");
        let pages = Pages::open(path.clone()).expect("none yet");
        pages.are_at(700);
        let bearer = serde_json::json!({
            "name": "root", "scope": "write", "all": true, "created_unix_ms": 1,
            "uid": rustix::process::geteuid().as_raw(), "until_unix_ms": u64::MAX
        });
        let bearer: Bearer = serde_json::from_value(bearer).expect("a bearer");
        pages.insert("hash".to_owned(), bearer);
        pages.write_again();
        assert!(
            pages
                .problem()
                .is_some_and(|why| why.contains("cannot be written"))
        );
        fs::create_dir(folder.path().join("full")).expect("room");
        pages.write_again();
        assert_eq!(pages.problem(), None);
        let again = Pages::open(path).expect("kept");
        assert!(again.get("hash").is_some());
    }

    #[test]
    fn tokens_of_pages_at_a_port_of_anybody_are_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pages.json");
        let bearer = || -> Bearer {
            let text = serde_json::json!({
                "name": "root", "scope": "write", "all": true, "created_unix_ms": 1,
                "uid": rustix::process::geteuid().as_raw(), "until_unix_ms": u64::MAX
            });
            serde_json::from_value(text).expect("a bearer")
        };
        let pages = Pages::open(path.clone()).expect("none yet");
        pages.are_at(40_000);
        pages.insert("hash".to_owned(), bearer());
        assert!(pages.get("hash").is_some() && !path.exists());
        // Where there are ports of root's at all.
        if first_of_anybody() > 700 {
            pages.are_at(700);
            pages.insert("hash".to_owned(), bearer());
            let again = Pages::open(path.clone()).expect("kept");
            assert_eq!(again.awaited_at(), Some(700));
            assert!(again.get("hash").is_some() && again.problem().is_none());
            fs::write(&path, "{").expect("damage");
            let damaged = Pages::open(path).expect("none of them");
            assert!(
                damaged
                    .problem()
                    .expect("it is said")
                    .contains("is damaged")
            );
            damaged.are_at(700);
            damaged.insert("hash".to_owned(), bearer());
            assert_eq!(damaged.problem(), None, "it was replaced");
        }
    }
}
