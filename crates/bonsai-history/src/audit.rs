//! Who changed what, when, from what to what, and why.

use std::collections::BTreeMap;

use serde::Serialize;

/// The name of the member that says how many differences were left out of a column.
const MORE: &str = "…";

/// One thing that a change made different.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The thing, such as `services.vod.send.max`.
    pub path: String,
    /// Value before; none where it was not there.
    pub from: Option<String>,
    /// Value now; none where it is not there any more.
    pub to: Option<String>,
}

/// Who changed something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Actor {
    /// A person, or a program of theirs.
    User {
        /// The user.
        uid: u32,
        /// The user's name, where it is known.
        name: Option<String>,
        /// The process, where it is known.
        pid: Option<u32>,
        /// Its program, or the address of a remote peer.
        peer: Option<String>,
    },
    /// A remote peer that showed a token.
    Token {
        /// The token's name.
        name: String,
        /// The address of the peer.
        peer: Option<String>,
    },
    /// A policy of the daemon.
    Policy {
        /// Its name.
        name: String,
    },
    /// The end of a change that was for a time.
    Timer,
    /// The configuration file, when it was read anew.
    Config,
}

/// The way by which a change came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Via {
    /// The daemon's Unix socket.
    Socket,
    /// TCP, with the token of that name.
    Tcp {
        /// The token's name.
        token: String,
    },
    /// A configuration file.
    Config {
        /// Its path.
        path: String,
    },
    /// A decision of the daemon itself.
    Policy,
    /// A change that ended.
    Timer,
}

/// One change, or with `dry_run` one that would have been made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// The revision of the desired state that the change made.
    pub revision: u64,
    /// When, ms since 1970.
    pub unix_ms: u64,
    /// Who.
    pub actor: Actor,
    /// By which way.
    pub via: Via,
    /// What was done, in a word: `set`, `undo`, `reload`, ...
    pub action: String,
    /// To which service or group; none where it was to the whole.
    pub service: Option<String>,
    /// From what to what.
    pub differences: Vec<Difference>,
    /// Differences that there was no room for ([`AuditEntry::MOST_BYTES`]).
    pub left_out: u64,
    /// Why, in words.
    pub reason: String,
    /// Whether it was only shown.
    pub dry_run: bool,
}

/// An entry as it was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRow {
    /// Its number; later entries have larger ones.
    pub id: u64,
    /// What it says.
    #[serde(flatten)]
    pub entry: AuditEntry,
    /// Why a part of it cannot be read, in words; the rest is as it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Which entries: all that every named thing holds for, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this service.
    pub service: Option<String>,
    /// By this user.
    pub uid: Option<u32>,
    /// With this action.
    pub action: Option<String>,
    /// Not before this instant, ms since 1970.
    pub since_ms: Option<u64>,
    /// Before this instant, ms since 1970.
    pub until_ms: Option<u64>,
    /// Only dry runs, or only what was done.
    pub dry_run: Option<bool>,
    /// With smaller numbers: the last one of the page before.
    pub before: Option<u64>,
    /// So many at most; 100 where it is 0, never more than 1000.
    pub limit: usize,
}

impl AuditFilter {
    /// The number of entries that is meant.
    pub(crate) fn number(&self) -> u32 {
        match self.limit {
            0 => 100,
            more => u32::try_from(more.min(1000)).unwrap_or(1000),
        }
    }
}

/// Words of the columns that say who and how, as they are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    pub(crate) actor: String,
    pub(crate) uid: Option<u32>,
    pub(crate) user: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) peer: Option<String>,
    pub(crate) via: String,
    pub(crate) via_name: Option<String>,
}

impl AuditEntry {
    /// The most bytes of the differences of an entry: those of some thousand services.
    pub const MOST_BYTES: usize = 128 << 10;

    /// The longest text of an entry: longer ones end with an ellipsis.
    const LONGEST_TEXT: usize = 16 << 10;

    /// The entry as it is kept: texts that nothing but people read are cut, and differences that are too many are left
    /// out and counted, each as a whole.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        let texts = self.service.iter_mut();
        for text in texts.chain([&mut self.reason, &mut self.action]) {
            cut(text, Self::LONGEST_TEXT);
        }
        let mut bytes = 0;
        let mut fits = 0;
        for difference in &mut self.differences {
            let values = [&mut difference.from, &mut difference.to];
            for value in values.into_iter().flatten() {
                cut(value, Self::LONGEST_TEXT);
            }
            bytes += difference.bytes();
            if bytes > Self::MOST_BYTES {
                break;
            }
            fits += 1;
        }
        self.left_out += (self.differences.len() - fits) as u64;
        self.differences.truncate(fits);
        self
    }

    pub(crate) fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        let named = |columns: &mut Columns, kind: &str, name: Option<&String>| {
            columns.actor = kind.to_owned();
            columns.user = name.cloned();
        };
        match &self.actor {
            Actor::User {
                uid,
                name,
                pid,
                peer,
            } => {
                named(&mut columns, "user", name.as_ref());
                columns.uid = Some(*uid);
                columns.pid = *pid;
                columns.peer.clone_from(peer);
            }
            Actor::Token { name, peer } => {
                named(&mut columns, "token", Some(name));
                columns.peer.clone_from(peer);
            }
            Actor::Policy { name } => named(&mut columns, "policy", Some(name)),
            Actor::Timer => named(&mut columns, "timer", None),
            Actor::Config => named(&mut columns, "config", None),
        }
        let (via, name) = match &self.via {
            Via::Socket => ("socket", None),
            Via::Tcp { token } => ("tcp", Some(token)),
            Via::Config { path } => ("config", Some(path)),
            Via::Policy => ("policy", None),
            Via::Timer => ("timer", None),
        };
        columns.via = via.to_owned();
        columns.via_name = name.cloned();
        columns
    }

    /// About how many bytes it is.
    pub(crate) fn bytes(&self) -> usize {
        let differences = self.differences.iter().map(Difference::bytes);
        let service = self.service.as_ref().map_or(0, String::len);
        200 + self.action.len() + self.reason.len() + service + differences.sum::<usize>()
    }

    /// The columns `before` and `after`: an object of JSON each.
    pub(crate) fn sides(&self) -> [Option<String>; 2] {
        let more = format!("and {} more", self.left_out);
        let sides: [fn(&Difference) -> &Option<String>; 2] = [|d| &d.from, |d| &d.to];
        sides.map(|of| {
            let pairs = self.differences.iter();
            let pairs = pairs.filter_map(|d| Some((d.path.as_str(), of(d).as_deref()?)));
            let mut pairs: BTreeMap<&str, &str> = pairs.collect();
            if self.left_out > 0 {
                pairs.insert(MORE, &more);
            }
            // An object of texts always has a form as JSON.
            (!pairs.is_empty())
                .then(|| serde_json::to_string(&pairs).ok())
                .flatten()
        })
    }
}

impl Difference {
    /// About how many bytes it takes.
    fn bytes(&self) -> usize {
        let value = |of: &Option<String>| {
            of.as_ref()
                .map_or(0, |text| self.path.len() + text.len() + 8)
        };
        value(&self.from) + value(&self.to)
    }
}

/// Cuts a text that people read.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
}

/// Differences of the columns `before` and `after`, how many were left out, and why some cannot be read.
pub(crate) fn differences(sides: [Option<String>; 2]) -> (Vec<Difference>, u64, Option<String>) {
    let (mut found, mut left_out, mut problem) = (BTreeMap::<_, Difference>::new(), 0, None);
    for (text, is_after) in sides.into_iter().zip([false, true]) {
        let Some(text) = text else { continue };
        let (mut pairs, why) = pairs(&text);
        problem = problem.or(why);
        let more = pairs.remove(MORE);
        let more = more.and_then(|text| text.split(' ').nth(1)?.parse().ok());
        left_out = left_out.max(more.unwrap_or(0));
        for (path, value) in pairs {
            let of = found.entry(path).or_default();
            *(if is_after { &mut of.to } else { &mut of.from }) = Some(value);
        }
    }
    let all = found
        .into_iter()
        .map(|(path, of)| Difference { path, ..of });
    (all.collect(), left_out, problem)
}

/// The pairs of a column. Earlier versions cut a long text in its middle: what stands before the cut is read.
fn pairs(text: &str) -> (BTreeMap<String, String>, Option<String>) {
    let error = match serde_json::from_str(text) {
        Ok(pairs) => return (pairs, None),
        Err(error) => error,
    };
    let whole = |end: usize| serde_json::from_str(&format!("{}}}", &text[..end])).ok();
    let ends = text.rmatch_indices(",\"").map(|(at, _)| at);
    let cut = text.ends_with('…');
    match cut.then(|| ends.take(64).find_map(whole)).flatten() {
        Some(pairs) => {
            let why = "more was different: an earlier version of this program cut the entry off";
            (pairs, Some(why.to_owned()))
        }
        None => {
            let why = format!("its differences cannot be read as they are kept: {error}");
            (BTreeMap::new(), Some(why))
        }
    }
}

impl Columns {
    pub(crate) fn actor(&self) -> Actor {
        let name = self.user.clone();
        match self.actor.as_str() {
            "policy" => Actor::Policy {
                name: name.unwrap_or_default(),
            },
            "timer" => Actor::Timer,
            "config" => Actor::Config,
            "token" => Actor::Token {
                name: name.unwrap_or_default(),
                peer: self.peer.clone(),
            },
            _ => Actor::User {
                uid: self.uid.unwrap_or(u32::MAX),
                name,
                pid: self.pid,
                peer: self.peer.clone(),
            },
        }
    }

    pub(crate) fn via(&self) -> Via {
        let name = self.via_name.clone().unwrap_or_default();
        match self.via.as_str() {
            "tcp" => Via::Tcp { token: name },
            "config" => Via::Config { path: name },
            "policy" => Via::Policy,
            "timer" => Via::Timer,
            _ => Via::Socket,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(path: &str, value: &str) -> Difference {
        Difference {
            path: path.to_owned(),
            from: None,
            to: Some(value.to_owned()),
        }
    }

    #[test]
    fn what_stands_before_a_cut_is_read_and_the_cut_is_said() {
        let cut = r#"{"a":"1","b,\"c":"2","d":"3…"#.to_owned();
        let (found, _, problem) = differences([None, Some(cut)]);
        assert_eq!(found, [pair("a", "1"), pair("b,\"c", "2")]);
        assert!(problem.expect("a problem").contains("cut"));
    }

    #[test]
    fn what_cannot_be_read_is_a_problem_and_not_nothing() {
        for text in ["", "{", "[1]", r#"{"a":1}"#] {
            let (found, _, problem) = differences([None, Some(text.to_owned())]);
            assert_eq!(found, []);
            assert!(
                problem.expect("a problem").contains("cannot be read"),
                "{text}"
            );
        }
        assert_eq!(differences([None, None]), (Vec::new(), 0, None));
    }
}
