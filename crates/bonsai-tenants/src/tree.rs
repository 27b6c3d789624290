//! The groups of processes above limited ones, and who comes and goes there, heard as it happens.
//!
//! # Invariants
//! 1. A folder is listened to before it is read: whoever comes in between is heard of or seen.
//! 2. What is said to have come or gone is looked at again: who went and came back in between has
//!    come, under the number that it has now.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bonsai_cgroup::Unified;
use bonsai_link::groups::{MOST_CHILDREN, above, join};
use bonsai_link::{Above, Wanted};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::book::Room;
use crate::error::Error;
use crate::find::wrong;

/// A group that has come, or has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Its path.
    pub(crate) path: String,
    /// The number that it had.
    pub(crate) was: Option<u64>,
    /// The number that it has.
    pub(crate) now: Option<u64>,
}

/// What there is of groups above limited ones.
#[derive(Debug)]
pub(crate) struct Tree {
    unified: Unified,
    ears: OwnedFd,
    /// Which group is listened to, by the number of the watch.
    watched: BTreeMap<i32, String>,
    /// The paths above limited ones.
    wanted: BTreeSet<String>,
    /// Those of them that there are.
    above: BTreeMap<String, Above>,
}

impl Tree {
    /// One that listens to nothing yet.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2, or no way to listen to it.
    pub(crate) fn open() -> Result<Self, Error> {
        let unified = Unified::find().map_err(wrong)?;
        let ears = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        Ok(Self {
            unified,
            ears: ears.map_err(|errno| deaf(errno, "/"))?,
            watched: BTreeMap::new(),
            wanted: BTreeSet::new(),
            above: BTreeMap::new(),
        })
    }

    /// The hierarchy.
    pub(crate) const fn unified(&self) -> &Unified {
        &self.unified
    }

    /// All that there is of those that are wanted.
    pub(crate) const fn above(&self) -> &BTreeMap<String, Above> {
        &self.above
    }

    /// What is to be read when something can be.
    pub(crate) fn ears(&self) -> BorrowedFd<'_> {
        self.ears.as_fd()
    }

    /// Says which paths are above limited groups, and reads what is new among them; why that cannot
    /// be, of which.
    pub(crate) fn want(&mut self, wanted: BTreeSet<String>) -> BTreeMap<String, String> {
        for (watch, path) in &self.watched {
            if !wanted.contains(path) {
                // One that is gone has none any more.
                let _ = inotify::remove_watch(&self.ears, *watch);
            }
        }
        self.watched.retain(|_, path| wanted.contains(path));
        self.above.retain(|path, _| wanted.contains(path));
        self.wanted = wanted;
        let missing = self.wanted.iter();
        let missing = missing.filter(|path| !self.above.contains_key(*path));
        let missing: Vec<String> = missing.cloned().collect();
        let add = |path: String| {
            let error = self.add(&path).err()?;
            Some((path, error.sentence()))
        };
        missing.into_iter().filter_map(add).collect()
    }

    /// Listens to a group and reads it, if it is there.
    fn add(&mut self, path: &str) -> Result<(), Error> {
        let folder = self.unified.folder(path);
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        let watch = match inotify::add_watch(&self.ears, &folder, flags) {
            Ok(watch) => watch,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV) => return Ok(()),
            Err(errno) => return Err(deaf(errno, path)),
        };
        self.watched.insert(watch, path.to_owned());
        let Some(id) = Unified::id(&folder) else {
            return Ok(());
        };
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(source) => return Err(of_file(path, source)),
        };
        let mut found = Above {
            id,
            children: BTreeMap::new(),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if is_gone(&error) => break,
                Err(source) => return Err(of_file(path, source)),
            };
            let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().into_string().ok();
            let Some(name) = name.filter(|_| is_group) else {
                continue;
            };
            if let Some(id) = Unified::id(&entry.path()) {
                found.children.insert(name, id);
            }
            if found.children.len() > MOST_CHILDREN {
                return Err(crowded(path));
            }
        }
        self.above.insert(path.to_owned(), found);
        Ok(())
    }

    /// Who has come and gone since, without waiting.
    ///
    /// # Errors
    /// If it cannot be listened any more, or there are too many groups in one: what is known stays so.
    pub(crate) fn hear(&mut self) -> Result<Vec<Moved>, Error> {
        let (names, lost) = self.read()?;
        let mut moved = Vec::new();
        if lost {
            // Too much happened to be told: everything is read again.
            let before = std::mem::take(&mut self.above);
            for path in self.wanted.clone() {
                self.add(&path)?;
            }
            differences(&before, &self.above, &mut moved);
            return Ok(moved);
        }
        for (parent, name) in names {
            self.look(&parent, &name, &mut moved)?;
        }
        Ok(moved)
    }

    /// Brings what was known up to date with who has come and gone since.
    pub(crate) fn update(&self, known: &mut BTreeMap<String, Above>, moved: &[Moved]) {
        for one in moved {
            let parent = above(&one.path).next().and_then(|path| known.get_mut(path));
            if let (Some(parent), Some((_, name))) = (parent, one.path.rsplit_once('/')) {
                match one.now {
                    Some(id) => parent.children.insert(name.to_owned(), id),
                    None => parent.children.remove(name),
                };
            }
            match self.above.get(&one.path) {
                Some(above) => known.insert(one.path.clone(), above.clone()),
                None => known.remove(&one.path),
            };
        }
    }

    /// Reads who is said to have come or gone, by the path it is in and its name; and whether
    /// something was lost.
    fn read(&mut self) -> Result<(BTreeSet<(String, String)>, bool), Error> {
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut reader = Reader::new(&self.ears, &mut buffer);
        let (mut names, mut lost) = (BTreeSet::new(), false);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok((names, lost)),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(deaf(errno, "/")),
            };
            lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            if event.events().contains(ReadFlags::IGNORED) {
                self.watched.remove(&event.wd());
            } else if let Some(path) = self.watched.get(&event.wd())
                && let Some(name) = event.file_name().and_then(|name| name.to_str().ok())
            {
                names.insert((path.clone(), name.to_owned()));
            }
        }
    }

    /// Looks at a group that is said to have come or gone.
    fn look(&mut self, parent: &str, name: &str, moved: &mut Vec<Moved>) -> Result<(), Error> {
        let path = join(parent, name);
        let Some(above) = self.above.get_mut(parent) else {
            return Ok(());
        };
        let was = above.children.get(name).copied();
        let now = Unified::id(&self.unified.folder(&path));
        match now {
            Some(_) if was.is_none() && above.children.len() >= MOST_CHILDREN => {
                // It is read again, and refused, by whoever wants it next.
                self.above.remove(parent);
                return Err(crowded(parent));
            }
            Some(id) => above.children.insert(name.to_owned(), id),
            None => above.children.remove(name),
        };
        if was == now {
            return Ok(());
        }
        let is_above = self.wanted.contains(&path);
        moved.push(Moved {
            path: path.clone(),
            was,
            now,
        });
        if is_above {
            self.renew(&path, moved)?;
        }
        Ok(())
    }

    /// Reads again what is above limited groups at a path and below, which is new, or gone.
    fn renew(&mut self, path: &str, moved: &mut Vec<Moved>) -> Result<(), Error> {
        let below = format!("{path}/");
        let is_of_it = |of: &str| of == path || of.starts_with(&below);
        let all = self.wanted.iter().filter(|of| is_of_it(of));
        let all: Vec<String> = all.cloned().collect();
        let before: BTreeMap<String, Above> = all
            .iter()
            .filter_map(|path| self.above.remove_entry(path))
            .collect();
        // The kernel has forgotten their watches.
        self.watched.retain(|_, of| !is_of_it(of));
        for path in &all {
            self.add(path)?;
        }
        let after = all.into_iter().filter_map(|path| {
            let above = self.above.get(&path)?.clone();
            Some((path, above))
        });
        differences(&before, &after.collect(), moved);
        Ok(())
    }
}

/// Who is in one and not in the other, or under another number.
fn differences(
    before: &BTreeMap<String, Above>,
    after: &BTreeMap<String, Above>,
    moved: &mut Vec<Moved>,
) {
    let paths: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for path in paths {
        let child = |of: &BTreeMap<String, Above>, name| {
            of.get(path)
                .and_then(|above| above.children.get(name).copied())
        };
        let names = [before, after].into_iter().filter_map(|of| of.get(path));
        let names: BTreeSet<&String> = names.flat_map(|above| above.children.keys()).collect();
        for name in names {
            let (was, now) = (child(before, name), child(after, name));
            if was != now {
                let path = join(path, name);
                moved.push(Moved { path, was, now });
            }
        }
    }
}

/// What is wanted of a room, with what there is of groups now.
///
/// # Errors
/// If the groups above limited ones cannot be read.
pub(crate) fn whole(room: &Room) -> Result<Wanted, Error> {
    let mut wanted = room.wanted();
    if wanted.groups.is_empty() {
        return Ok(wanted);
    }
    let mut tree = Tree::open()?;
    let above = wanted.above().into_iter().map(str::to_owned);
    if let Some((_, why)) = tree.want(above.collect()).pop_first() {
        return Err(wrong(why));
    }
    wanted.tree = tree.above;
    Ok(wanted)
}

fn crowded(path: &str) -> Error {
    wrong(format!(
        "there are more than {MOST_CHILDREN} groups in {path}, which are told apart beside a limited \
         one: limit the group that they are in"
    ))
}

fn deaf(errno: Errno, path: &str) -> Error {
    let text = match errno {
        Errno::MFILE | Errno::NOSPC => {
            "; fs.inotify.max_user_instances and max_user_watches (sysctl) allow more"
        }
        _ => "",
    };
    wrong(format!(
        "the groups in {path} cannot be listened to (inotify: {errno}){text}"
    ))
}

fn of_file(path: &str, source: io::Error) -> Error {
    Error::File {
        path: path.into(),
        source,
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::NOENT | Errno::NODEV)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_went_or_came_back_is_told() {
        let of = |children: &[(&str, u64)]| {
            let children = children.iter().map(|(name, id)| ((*name).to_owned(), *id));
            let above = Above {
                id: 1,
                children: children.collect(),
            };
            BTreeMap::from([("/s".to_owned(), above)])
        };
        let mut moved = Vec::new();
        differences(
            &of(&[("a", 2), ("b", 3), ("c", 4)]),
            &of(&[("a", 2), ("b", 5), ("d", 6)]),
            &mut moved,
        );
        let expected = [
            ("/s/b", Some(3), Some(5)),
            ("/s/c", Some(4), None),
            ("/s/d", None, Some(6)),
        ];
        let expected = expected.map(|(path, was, now)| Moved {
            path: path.into(),
            was,
            now,
        });
        assert_eq!(moved, expected);
    }
}
