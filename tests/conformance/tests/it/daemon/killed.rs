//! A daemon that is killed at any instant, also in the middle of each call by which it writes: configuration, audit trail, tokens
//! and ledgers agree afterwards.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::fixture::{Ends, Ring, request};
use crate::fixture::{PATIENCE, compiler};

const FILE: &str = "[policy]\nmode = \"static\"\n[api]\nrequests = 100000\n";

/// Kills; more of them by `BONSAI_TEST_KILLS`.
const KILLS: u64 = 24;

/// Changes until the daemon is killed from outside at the latest.
const CHANGES: usize = 40;

/// The calls of a few changes and of a second of history are not more.
const CALLS: u64 = 60;

/// A request for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Set(String),
    Undo,
}

impl Asked {
    fn apply(&self, limits: &mut Vec<String>) {
        match self {
            Self::Set(limit) => limits.push(limit.clone()),
            Self::Undo => drop(limits.pop()),
        }
    }
}

/// Identity of an entry, whose number is never another's.
type Identity = (u64, u64, String);

/// Expected state after each kill.
struct Model {
    /// Limits of the service; the last one is in force.
    limits: Vec<String>,
    /// The same as of the last answer that promised a restart.
    sure: Vec<String>,
    /// Requests since, of which the first ones may have been done.
    unsure: Vec<Asked>,
    /// Answered changes, by revision, and the limit after each.
    answered: BTreeMap<u64, (String, Option<String>)>,
    tokens: Vec<String>,
    /// Entries that were shown, by number.
    shown: BTreeMap<u64, Identity>,
    number: u64,
    seed: u64,
}

impl Model {
    fn random(&mut self) -> u64 {
        // Knuth's MMIX generator.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005);
        self.seed = self.seed.wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }

    /// Asks for one thing; nothing where the daemon has gone.
    fn ask(&mut self, ring: &Ring) -> Option<()> {
        self.number += 1;
        if self.number.is_multiple_of(11) {
            let name = format!("t{}", self.number);
            let wished = json!({"name": name, "scope": "read"}).to_string();
            if ask(ring, "POST", "/v1/tokens", &wished)?.0 == 201 {
                self.tokens.push(name);
            }
            return Some(());
        }
        if self.number.is_multiple_of(5) {
            self.look(ring)?;
        }
        // Steps of a restart cannot be undone beyond what the file remembers: only what was set since.
        let asked = if self.number.is_multiple_of(7) && self.limits.len() > 1 {
            Asked::Undo
        } else {
            // No shorter form of it is written back.
            Asked::Set(format!("{}1kB/s", 10_000 + self.number))
        };
        self.unsure.push(asked.clone());
        let (status, answer) = match &asked {
            Asked::Set(limit) => {
                let patch = json!({"read": {"max": limit}}).to_string();
                ask(ring, "PATCH", "/v1/services/k", &patch)?
            }
            Asked::Undo => ask(ring, "POST", "/v1/undo", "{}")?,
        };
        assert_eq!(status, 200, "{asked:?}: {answer}");
        asked.apply(&mut self.limits);
        // One that says that it is not on the disk yet has promised nothing.
        let problems = answer["problems"].as_array().expect("problems");
        if problems.is_empty() {
            let action = if asked == Asked::Undo {
                "undo"
            } else {
                "change"
            };
            let revision = answer["revision"].as_u64().expect("a revision");
            let after = self.limits.last().cloned();
            self.answered.insert(revision, (action.to_owned(), after));
            // One write has all changes before it.
            self.sure.clone_from(&self.limits);
            self.unsure.clear();
        }
        Some(())
    }

    /// Looks at the youngest entries.
    fn look(&mut self, ring: &Ring) -> Option<()> {
        let (_, page) = ask(ring, "GET", "/v1/audit?limit=20", "")?;
        for entry in page["entries"].as_array()? {
            self.show(entry);
        }
        Some(())
    }

    fn show(&mut self, entry: &Value) {
        let number = |name: &str| entry[name].as_u64().expect("a number");
        let action = entry["action"].as_str().expect("a word").to_owned();
        let identity = (number("unix_ms"), number("revision"), action);
        let before = self.shown.insert(number("id"), identity.clone());
        assert!(
            before.is_none_or(|before| before == identity),
            "number {} was another's: {entry}",
            number("id")
        );
    }

    /// Compares what the next daemon has with what the one before has answered.
    fn check(&mut self, ring: &Ring, killed: &str) {
        let config = ring.get("/v1/config");
        let is = config["services"]["k"]["read"]["max"]
            .as_str()
            .map(str::to_owned);
        let mut may_be = vec![self.sure.clone()];
        for asked in self.unsure.drain(..) {
            let mut next = may_be.last().cloned().unwrap_or_default();
            asked.apply(&mut next);
            may_be.push(next);
        }
        let found = may_be.iter().rfind(|limits| limits.last() == is.as_ref());
        let found = found.unwrap_or_else(|| {
            let may_be: Vec<_> = may_be.iter().map(|limits| limits.last()).collect();
            panic!("{killed}: the configuration has {is:?} and may have {may_be:?}")
        });
        self.sure.clone_from(found);
        self.limits.clone_from(found);

        let mut entries = Vec::<Value>::new();
        let mut path = "/v1/audit?limit=500".to_owned();
        loop {
            let page = ring.get(&path);
            assert_eq!(page["problems"], serde_json::json!([]), "{killed}: {page}");
            entries.extend(page["entries"].as_array().expect("entries").iter().cloned());
            let Some(before) = page["before"].as_u64() else {
                break;
            };
            path = format!("/v1/audit?limit=500&before={before}");
        }
        let id = |entry: &Value| entry["id"].as_u64().expect("a number");
        assert!(
            entries.is_sorted_by(|a, b| id(a) > id(b)),
            "{killed}: {entries:?}"
        );
        for entry in &entries {
            self.show(entry);
        }
        let changes = entries.iter().filter(|entry| {
            ["change", "undo"].contains(&entry["action"].as_str().expect("a word"))
        });
        let mut found = BTreeMap::<u64, (String, Option<String>)>::new();
        for entry in changes.clone() {
            let to = entry["differences"][0]["to"].as_str().map(str::to_owned);
            let action = entry["action"].as_str().expect("a word").to_owned();
            let revision = entry["revision"].as_u64().expect("a number");
            let twice = found.insert(revision, (action, to));
            assert_eq!(twice, None, "{killed}: revision {revision} has two entries");
        }
        for (revision, change) in &self.answered {
            assert_eq!(
                found.get(revision),
                Some(change),
                "{killed}: revision {revision} was answered"
            );
        }
        let last = changes
            .map(|entry| entry["differences"][0]["to"].as_str())
            .next();
        assert_eq!(
            last.flatten(),
            is.as_deref(),
            "{killed}: the trail ends with what is in force"
        );

        let tokens = ring.get("/v1/tokens").to_string();
        for name in &self.tokens {
            assert!(
                tokens.contains(&format!("\"{name}\"")),
                "{killed}: {name} of {tokens}"
            );
        }
        let state = std::fs::read_dir(ring.state()).expect("a folder");
        let left = state.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        // The one that is being written now is one at most.
        let left: Vec<String> = left.filter(|name| name.starts_with('.')).collect();
        assert!(left.len() <= 1, "{killed}: {left:?}");
        if let Some(limit) = is {
            let bytes = limit.replace("kB/s", "000");
            ring.until("the ledger has it", |ring| {
                ring.done(&["status", "k", "--json"]).contains(&bytes)
            });
        }
    }
}

/// An answer, or nothing where the daemon has gone.
fn ask(ring: &Ring, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = UnixStream::connect(ring.socket()).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let asked = request(method, path, &[], body);
    stream.write_all(asked.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

fn start(ring: &Ring, library: &PathBuf, fault: &PathBuf) -> Ends {
    let mut command = ring.daemon_command(&[]);
    command.env("LD_PRELOAD", library).env("KILLER", fault);
    command.env("KILLER_FOLDER", ring.state());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut daemon = Ends(command.spawn().expect("it starts"));
    let start = Instant::now();
    while ask(ring, "GET", "/v1/status", "").is_none() {
        let ended = daemon.0.try_wait().expect("a child");
        assert_eq!(ended, None, "it does not start again");
        assert!(start.elapsed() < PATIENCE, "it never answers");
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon
}

#[test]
fn what_was_answered_is_there_whenever_the_daemon_is_killed() {
    let test = "what_was_answered_is_there_whenever_the_daemon_is_killed";
    let Some(compiler) = compiler(test) else {
        return;
    };
    let made = compiler.make(
        "killer.so",
        &["daemon/killer.c"],
        &["-shared", "-fPIC", "-ldl"],
    );
    let library = made.unwrap_or_else(|error| panic!("{error}"));
    let kills = std::env::var("BONSAI_TEST_KILLS").ok();
    let kills = kills.map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    let ring = Ring::new(FILE);
    let fault = ring.config().with_file_name("fault");
    let mut daemon = start(&ring, &library, &fault);
    let _k = ring.reader("k");
    ring.until("it is known", |ring| {
        ring.of("k", "read")["got"].is_number()
    });
    let mut model = Model {
        limits: Vec::new(),
        sure: Vec::new(),
        unsure: Vec::new(),
        answered: BTreeMap::new(),
        tokens: Vec::new(),
        shown: BTreeMap::new(),
        number: 0,
        seed: kills,
    };
    let mut at_calls = 0;
    for kill in 0..kills {
        let pid = Pid::from_child(&daemon.0);
        // Each call of the first changes, before, half-way and after it; every fourth time at any instant.
        let killed = if kill % 4 == 3 {
            format!("kill {kill}, after {} ms", model.random() % 300)
        } else {
            let call = (kill - kill / 4) / 3 % CALLS + 1;
            let how = ["b", "h", "a"][usize::try_from(kill % 4).expect("small")];
            std::fs::write(fault.with_extension("new"), format!("{call} {how}\n")).expect("a file");
            std::fs::rename(fault.with_extension("new"), &fault).expect("a file");
            format!("kill {kill}, at call {call} {how}")
        };
        let patience = killed.rsplit(' ').nth(1).and_then(|ms| ms.parse().ok());
        std::thread::scope(|scope| {
            if let Some(ms) = patience.filter(|_| killed.ends_with("ms")) {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(ms));
                    let _ = kill_process(pid, Signal::KILL);
                });
            }
            let mut changes = 0;
            while model.ask(&ring).is_some() {
                changes += 1;
                if changes > CHANGES && !killed.ends_with("ms") {
                    daemon.signal(Signal::KILL);
                }
            }
            at_calls += u64::from(changes <= CHANGES && !killed.ends_with("ms"));
        });
        let status = daemon.0.wait().expect("its end");
        assert_eq!(
            status.signal(),
            Some(9),
            "{killed}: it ended by itself: {status}"
        );
        let _ = std::fs::remove_file(&fault);
        daemon = start(&ring, &library, &fault);
        model.check(&ring, &killed);
    }
    let answered = model.answered.len();
    println!("{kills} kills, {at_calls} of them in a call; {answered} changes were answered");
    assert!(answered as u64 > kills, "{answered} changes");
    assert!(at_calls > kills / 4, "the library kills it: {at_calls}");
}
