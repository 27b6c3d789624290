//! The services of all other users, for a daemon of the whole machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bonsai_services::observe::monotonic_ns;
use bonsai_services::theirs::Home;

use super::scout::Scout;
use super::theirs::Theirs;
use super::{Arrivals, SECOND_NS, Watched};

/// New users are looked for so often, ns.
const AGAIN_NS: u64 = SECOND_NS;

/// The most users whose services are looked at.
const MOST_USERS: usize = 1000;

/// Why a user is not seen who was seen before.
const NOT_BACK: &str = "they are not looked at before whoever looked at the folder that was there \
                        has come back: something in it keeps whoever opens it waiting";

/// Those who have services.
///
/// # Invariant
/// A user has no more threads than there are places, whatever they do with their directories.
#[derive(Debug)]
pub(crate) struct Others {
    scout: Scout,
    /// By runtime directory.
    users: BTreeMap<PathBuf, User>,
    /// Those whose directory has gone, until their threads have.
    ending: Vec<Arc<Theirs>>,
    /// Directories of users who wait for that.
    put_off: Vec<(u32, PathBuf)>,
    looked_ns: u64,
    too_many: bool,
}

#[derive(Debug)]
struct User {
    /// What ids of their services begin with, when that is known.
    label: Option<Arc<str>>,
    theirs: Arc<Theirs>,
    /// What cannot be seen, in words.
    problem: Option<String>,
}

impl Drop for User {
    fn drop(&mut self) {
        self.theirs.end();
    }
}

impl Others {
    /// Those with runtime directories at these places, but for the daemon's own.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn new(places: Vec<PathBuf>, own: PathBuf) -> std::io::Result<Self> {
        Ok(Self {
            scout: Scout::start(places, own)?,
            users: BTreeMap::new(),
            ending: Vec::new(),
            put_off: Vec::new(),
            looked_ns: 0,
            too_many: false,
        })
    }

    /// Takes what their threads have found.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        watched: &mut BTreeMap<Arc<str>, Watched>,
        arrivals: &mut Arrivals,
    ) {
        if self.looked_ns == 0 || now_ns.saturating_sub(self.looked_ns) >= AGAIN_NS {
            self.looked_ns = now_ns;
            self.scout.send(now_ns);
        }
        if let Some(homes) = self.scout.found() {
            self.are_there(homes);
        }
        let mut there = BTreeMap::new();
        for user in self.users.values_mut() {
            let (found, problem) = user.theirs.found(now_ns);
            user.problem = problem;
            user.label = user.theirs.label(now_ns);
            let Some(label) = &user.label else {
                continue;
            };
            for (name, found) in &*found {
                let id: Arc<str> = format!("{label}:{name}").into();
                // Of two directories of a user the first has the name.
                there
                    .entry(id)
                    .or_insert_with(|| (Arc::clone(&user.theirs), name.clone(), Arc::clone(found)));
            }
        }
        let is_there = |watched: &Watched| {
            let found = there.get(&watched.id);
            found.is_some_and(|(_, _, found)| found.created_ns == watched.created_ns)
        };
        watched.retain(|id, watched| {
            let is_others = watched.own().is_none() && watched.outsiders().is_none();
            let stays = !is_others || is_there(watched);
            if !stays {
                arrivals.went.push(Arc::clone(id));
            }
            stays
        });
        for (id, (theirs, name, found)) in there {
            let known = watched.entry(Arc::clone(&id));
            let known = known.or_insert_with(|| {
                arrivals.came.push(Arc::clone(&id));
                Watched::of_other(&id, &theirs, &name, Arc::clone(&found), now_ns)
            });
            known.take(&found);
        }
    }

    /// Takes the users that there are.
    fn are_there(&mut self, homes: Vec<Home>) {
        let by_path = |home: Home| (home.path().to_owned(), home);
        let mut homes: BTreeMap<PathBuf, Home> = homes.into_iter().map(by_path).collect();
        let ending = &mut self.ending;
        self.users.retain(|path, user| {
            let same = |home: &Home| home.identity() == user.theirs.identity();
            // One that has failed is started anew.
            let stays = homes.get(path).is_some_and(same) && user.theirs.is_looking();
            if !stays {
                // It is told to end as it is dropped.
                ending.push(Arc::clone(&user.theirs));
            }
            stays
        });
        ending.retain(|theirs| theirs.lives());
        self.put_off.clear();
        homes.retain(|path, home| {
            let ends = ending.iter().any(|theirs| theirs.uid() == home.uid());
            let is_new = !self.users.contains_key(path);
            if is_new && ends {
                self.put_off.push((home.uid(), path.clone()));
            }
            is_new && !ends
        });
        let there = self.users.len() + self.ending.len();
        self.too_many = there + homes.len() > MOST_USERS;
        let room = MOST_USERS.saturating_sub(there);
        for (path, home) in homes.into_iter().take(room) {
            // Without a thread there is none now; the next look tries again.
            if let Ok(theirs) = Theirs::start(home) {
                let user = User {
                    label: None,
                    theirs,
                    problem: None,
                };
                self.users.insert(path, user);
            }
        }
    }

    /// Waits until what they are to have is in force, or as long as said, for all together.
    pub(super) fn settle(&self, patience: Duration) {
        let until = std::time::Instant::now() + patience;
        for user in self.users.values() {
            let left = until.saturating_duration_since(std::time::Instant::now());
            user.theirs.settle(left);
        }
    }

    /// What cannot be seen, in words.
    pub(super) fn problems(&self) -> Vec<String> {
        let of_user = self.users.iter().filter_map(|(path, user)| {
            let problem = user.problem.as_ref()?;
            let uid = user.theirs.uid().to_string();
            Some(said(user.label.as_deref().unwrap_or(&uid), path, problem))
        });
        let put_off = self.put_off.iter();
        let put_off = put_off.map(|(uid, path)| said(&uid.to_string(), path, NOT_BACK));
        let many = self.too_many.then(|| {
            format!("services of more than {MOST_USERS} users: those of some are not seen")
        });
        let late = self.scout.problem(monotonic_ns()).map(str::to_owned);
        of_user.chain(put_off).chain(many).chain(late).collect()
    }
}

fn said(label: &str, path: &Path, problem: &str) -> String {
    format!("services of {label} in {}: {problem}", path.display())
}
