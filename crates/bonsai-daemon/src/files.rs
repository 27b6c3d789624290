//! Files of the daemon: its configuration, what it keeps, and what says that it runs.
//!
//! ```text
//! bonsai.toml           read; never written
//! STATE/changes.json    changes since, replaced as a whole
//! RUNTIME/.daemon.lock  held for as long as it runs: one daemon a user
//! RUNTIME/daemon.sock   where it is asked
//! ```

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use bonsai_api::Config;
use bonsai_services::input::read_text;
use bonsai_services::refusal::{Refusal, before_start};
use bonsai_services::wording::of_document;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::Serialize;

use crate::desired::Kept;

/// The most bytes of a configuration file: far more than anybody writes by hand.
const MOST_CONFIG: u64 = 4 << 20;

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The configuration file, if there is one.
    pub(crate) config: Option<PathBuf>,
    /// Where what survives a restart is kept.
    pub(crate) state: PathBuf,
    /// When the configuration file was last seen changed.
    seen: Option<Stamp>,
}

/// The runtime directory of the machine's daemon.
pub(crate) const SYSTEM_FOLDER: &str = "/run/bonsai";

/// Where the machine's daemon is asked, by everybody.
pub const SYSTEM_SOCKET: &str = "/run/bonsai/daemon.sock";

/// Identity and state of a file, which differ when it was changed or replaced: when it was written and when anything of it was changed, its length,
/// and which file it is. Times alone can be set, and be as coarse as a second.
type Stamp = (SystemTime, (i64, i64), u64, (u64, u64));

/// Reads a configuration file.
///
/// # Errors
/// A [`Refusal`] that says what is wrong where.
pub fn read_config(path: &Path) -> anyhow::Result<Config> {
    let named = path.display();
    let refused = |text: String| Refusal::input(format!("{named}: {text}"));
    let text = read_text(path, MOST_CONFIG).map_err(|e| refused(format!("cannot be read: {e}")))?;
    parse_config(&text).map_err(refused)
}

/// Reads and checks a configuration.
///
/// # Errors
/// What is wrong where, in one sentence.
pub fn parse_config(text: &str) -> Result<Config, String> {
    let config: Config = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| {
            let before = text.get(..span.start).unwrap_or_default();
            format!("line {}: ", before.matches('\n').count() + 1)
        });
        let message = of_document(&error.message().trim_end().replace('\n', ", "));
        format!("{}{message}", line.unwrap_or_default())
    })?;
    crate::plain::config(&config)?;
    crate::plan::plan(&config)?;
    Ok(config)
}

/// Where the daemon's socket is, unless the configuration says otherwise.
///
/// # Errors
/// There is no runtime directory.
pub fn socket_path() -> anyhow::Result<PathBuf> {
    let folder = bonsai_host::runtime_dir_path().map_err(|error| before_start(error.into()))?;
    Ok(folder.join("daemon.sock"))
}

/// Where the configuration is looked for if nobody says: the system's for root, otherwise the
/// user's.
#[must_use]
pub fn config_path() -> Option<PathBuf> {
    let path = if rustix::process::geteuid().is_root() {
        PathBuf::from("/etc/bonsai/bonsai.toml")
    } else {
        home("XDG_CONFIG_HOME", ".config")?.join("bonsai/bonsai.toml")
    };
    path.exists().then_some(path)
}

fn home(variable: &str, below: &str) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let named = std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(absolute);
    named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(below)).filter(absolute))
}

fn state_path(config: &Config) -> anyhow::Result<PathBuf> {
    if let Some(path) = &config.daemon.state {
        return Ok(path.clone());
    }
    bonsai_host::state_dir_path().context("neither XDG_STATE_HOME nor HOME says where the daemon may keep its state: set daemon.state")
}

impl Files {
    /// Of a daemon with that configuration.
    pub(crate) fn new(path: Option<PathBuf>, config: &Config) -> anyhow::Result<Self> {
        let state = state_path(config)?;
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&state);
        made.with_context(|| format!("{}: cannot be made", state.display()))
            .map_err(before_start)?;
        let mut files = Self {
            config: path,
            state,
            seen: None,
        };
        files.seen = files.stamp();
        Ok(files)
    }

    fn stamp(&self) -> Option<Stamp> {
        let meta = fs::metadata(self.config.as_ref()?).ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some((
            meta.modified().ok()?,
            changed,
            meta.len(),
            (meta.dev(), meta.ino()),
        ))
    }

    /// The configuration, if its file has changed since it was last asked for.
    pub(crate) fn changed(&mut self) -> Option<anyhow::Result<Config>> {
        let now = self.stamp();
        if now == self.seen {
            return None;
        }
        self.seen = now;
        // A file that is being replaced comes back; one that is removed leaves what is in force.
        now?;
        Some(read_config(self.config.as_ref()?))
    }

    fn changes(&self) -> PathBuf {
        self.state.join("changes.json")
    }

    /// What was kept. A file that cannot be read is moved aside, and said.
    pub(crate) fn kept(&self) -> (Option<Kept>, Vec<String>) {
        let path = self.changes();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return (None, Vec::new());
            }
            Err(error) => {
                let text = format!("{}: cannot be read: {error}", path.display());
                return (None, vec![text]);
            }
        };
        match serde_json::from_slice(&text) {
            Ok(kept) => (Some(kept), Vec::new()),
            Err(error) => {
                let aside = path.with_extension("json.damaged");
                let moved = fs::rename(&path, &aside);
                let note = match moved {
                    Ok(()) => format!("it was moved to {}", aside.display()),
                    Err(error) => format!("it cannot be moved aside: {error}"),
                };
                let text = format!(
                    "{}: is damaged ({error}); {note}, and changes made before are lost",
                    path.display()
                );
                (None, vec![text])
            }
        }
    }

    /// Keeps what is to survive a restart: all of it or, if that fails, what was there before.
    pub(crate) fn keep(&self, kept: &Kept) -> anyhow::Result<()> {
        let path = self.changes();
        replace(&path, kept).with_context(|| format!("{}: cannot be written", path.display()))
    }
}

/// Replaces a file of the state as a whole, for its owner alone: whatever happens meanwhile, also to
/// the machine, all of it is there or what was there before.
pub(crate) fn replace(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let (new, file) = beside(path, value)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent()
        .map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

/// The same for what is of no use after a crash of the machine: the disk is not waited for.
pub(crate) fn replace_until_crash(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let (new, _) = beside(path, value)?;
    fs::rename(&new, path)
}

/// What is to replace a file.
fn beside(path: &Path, value: &impl Serialize) -> std::io::Result<(PathBuf, fs::File)> {
    let new = path.with_extension("json.new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    Ok((new, file))
}

/// What says that this daemon runs. The kernel drops it with its holder.
#[derive(Debug)]
pub(crate) struct Running {
    _lock: OwnedFd,
}

/// Takes the place of the user's one daemon.
///
/// # Errors
/// A [`Refusal`]: there is one.
pub(crate) fn be_the_one(runtime: &Path) -> anyhow::Result<Running> {
    let path = runtime.join(".daemon.lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
        .with_context(|| format!("{}: cannot be opened", path.display()))
        .map_err(before_start)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            let text = format!(
                "a daemon runs already, process {}: ask that one, or end it first (kill {})",
                pid.trim(),
                pid.trim()
            );
            return Err(Refusal::input(text));
        }
        Err(errno) => {
            return Err(errno).with_context(|| format!("{}: cannot be locked", path.display()));
        }
    }
    // For people, and for whoever is refused.
    rustix::fs::ftruncate(&lock, 0)?;
    rustix::io::write(&lock, format!("{}\n", std::process::id()).as_bytes())?;
    Ok(Running { _lock: lock })
}

/// The process of the machine's daemon, for one of a user: it also governs their services, where
/// they are in their usual place.
pub(crate) fn above(runtime: &Path) -> Option<i32> {
    if runtime == Path::new(SYSTEM_FOLDER) || std::env::var_os("BONSAI_RUNTIME_DIR").is_some() {
        return None;
    }
    let stream = UnixStream::connect(SYSTEM_SOCKET).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(stream).ok()?;
    peer.uid.is_root().then(|| peer.pid.as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_name_the_line() {
        let cases = [
            ("[daemon]\nperiod = 5\n", "line 2: "),
            (
                "[daemon]\n\nperoid = \"1s\"\n",
                "line 3: there is no setting \"peroid\" here",
            ),
            ("[capacity\n", "line 1: "),
            ("[capacity]\nsend = \"1Gb\"\n", "line 2: "),
        ];
        for (text, expected) in cases {
            let error = parse_config(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains('\n'), "one line: {error}");
        }
    }

    #[test]
    fn the_example_has_every_option_and_is_fine() {
        let text = include_str!("../../../config/bonsai.toml");
        parse_config(text).expect("the example");
        let written: serde_json::Value = toml::from_str(text).expect("TOML");
        // Whatever is written is read, under the same name.
        let config: Config = toml::from_str(text).expect("the example");
        let again = serde_json::to_value(&config).expect("JSON");
        let differences = crate::patch::differences(&written, &again);
        let lost = differences
            .iter()
            .filter(|d| d.from.is_none() || d.to.is_none());
        assert_eq!(
            lost.collect::<Vec<_>>(),
            Vec::<&bonsai_api::Difference>::new()
        );
        let description: serde_json::Value =
            serde_json::from_str(&crate::openapi()).expect("the description");
        let schemas = &description["components"]["schemas"];
        for (schema, at) in [
            ("Config", ""),
            ("Daemon", "/daemon"),
            ("Capacity", "/capacity"),
            ("Policy", "/policy"),
            ("Class", "/classes/media"),
            ("Group", "/groups/tenants"),
            ("Terms", "/classes/media/send"),
            ("Qos", "/classes/media/qos"),
            ("Cpu", "/services/site/cpu"),
            ("History", "/history"),
            ("Api", "/api"),
            ("Tls", "/api/tls"),
        ] {
            let options = schemas[schema]["properties"].as_object().expect(schema);
            let there = written.pointer(at).expect(at);
            for option in options.keys().filter(|option| *option != "parent") {
                assert!(
                    !there[option].is_null(),
                    "{at}: {option} is not in the example"
                );
            }
        }
        assert!(!written["groups"]["tenant-a"]["parent"].is_null());
        // No service or interface has all of them.
        for (schema, at) in [("Service", "services"), ("Link", "links")] {
            let all = written[at].as_object().expect(at);
            let options = schemas[schema]["properties"].as_object().expect(schema);
            for option in options.keys() {
                let named = all.values().any(|of| !of[option].is_null());
                assert!(named, "{at}: {option} is not in the example");
            }
        }
    }

    #[test]
    fn one_daemon_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = be_the_one(folder.path()).expect("the first");
        let error = be_the_one(folder.path())
            .expect_err("the second")
            .to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(first);
        be_the_one(folder.path()).expect("the next");
    }

    #[test]
    fn what_is_kept_comes_back_and_damage_is_moved_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files {
            config: None,
            state: folder.path().to_owned(),
            seen: None,
        };
        assert_eq!(files.kept(), (None, Vec::new()));
        files.keep(&Kept::default()).expect("kept");
        assert_eq!(files.kept(), (Some(Kept::default()), Vec::new()));
        fs::write(files.changes(), "{\"version\":").expect("damage");
        let (kept, notes) = files.kept();
        assert_eq!((kept, notes.len()), (None, 1));
        assert!(notes[0].contains("is damaged"), "{notes:?}");
        assert!(folder.path().join("changes.json.damaged").exists());
    }
}
