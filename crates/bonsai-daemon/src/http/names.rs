//! What the machine's name service says of users, asked beside the thread that answers, for it may
//! be a server far away, and remembered for a minute.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bonsai_api::{Api, Problem};
use tokio::sync::Semaphore;

use super::body::aside;
use super::places::administers;
use crate::users;

/// So long an answer is remembered.
const LASTS: Duration = Duration::from_secs(60);

/// Users that are remembered at most; then all are forgotten.
const MOST: usize = 1000;

/// Questions of users at a time. Those of root and the daemon's own user wait for nobody's.
const ASKED: usize = 8;

/// A user.
#[derive(Clone, Debug)]
pub(super) struct Person {
    pub(super) name: String,
    /// What ids of their services begin with.
    pub(super) label: String,
    /// Whether they are in `api.read-group`.
    pub(super) reads: bool,
    /// Whether they are in `api.write-group`.
    pub(super) writes: bool,
}

/// Those that have asked lately, by their number and that of their group.
#[derive(Debug)]
pub(crate) struct Names {
    known: Mutex<BTreeMap<(u32, u32), (Instant, Person)>>,
    asked: Semaphore,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            asked: Semaphore::new(ASKED),
        }
    }
}

impl Names {
    fn known(&self) -> MutexGuard<'_, BTreeMap<(u32, u32), (Instant, Person)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self, uid: u32, gid: u32) -> Option<Person> {
        let known = self.known();
        let (since, person) = known.get(&(uid, gid))?;
        (since.elapsed() < LASTS).then(|| person.clone())
    }

    /// Who that is.
    pub(super) async fn of(&self, uid: u32, gid: u32, api: &Api) -> Result<Person, Problem> {
        if let Some(person) = self.remembered(uid, gid) {
            return Ok(person);
        }
        let _permit = if administers(uid) {
            None
        } else {
            self.asked.acquire().await.ok()
        };
        // Another request may have asked meanwhile.
        if let Some(person) = self.remembered(uid, gid) {
            return Ok(person);
        }
        let groups = [api.read_group.clone(), api.write_group.clone()];
        let person = aside(move || {
            let [reads, writes] =
                groups.map(|group| group.is_some_and(|group| users::is_in(uid, gid, &group)));
            Person {
                name: users::name(uid),
                label: users::label(uid),
                reads,
                writes,
            }
        });
        let person = person.await?;
        let mut known = self.known();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert((uid, gid), (Instant::now(), person.clone()));
        Ok(person)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_by_a_group_that_somebody_has_left_end_within_a_minute() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        // Of a user that nobody knows, whose own group is root's: in the one, and not in the other.
        let (uid, gid) = (4_000_000_000, 0);
        let api = |group: &str| Api {
            read_group: Some(group.to_owned()),
            write_group: Some(group.to_owned()),
            ..Api::default()
        };
        let (before, after) = (api("root"), api("no-such-group-anywhere"));
        let names = Names::default();
        let may = |api: &Api| {
            let person = runtime.block_on(names.of(uid, gid, api));
            let person = person.expect("an answer");
            (person.reads, person.writes)
        };
        assert_eq!(may(&before), (true, true));
        assert_eq!(may(&after), (true, true), "it is remembered");
        let mut known = names.known();
        let (since, _) = known.get_mut(&(uid, gid)).expect("it is");
        *since = since.checked_sub(LASTS).expect("a minute ago");
        drop(known);
        assert_eq!(may(&after), (false, false));
    }
}
