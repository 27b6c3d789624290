//! Files of the daemon: its configuration, what it keeps, and what says that it runs.
//!
//! ```text
//! bonsai.toml           read; never written
//! STATE                 locked for as long as it runs
//! STATE/changes.json    changes since, and the end of the audit trail; replaced as a whole
//! RUNTIME/.daemon.lock  held for as long as it runs: one daemon a user; one whose lock was removed ends
//! RUNTIME/daemon.sock   where it is asked
//! ```

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use bonsai_api::Config;
use bonsai_services::input::read_text;
use bonsai_services::refusal::{Refusal, before_start};
use bonsai_services::wording::of_document;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::Serialize;

use crate::desired::Kept;
use crate::keeping::Trail;
use crate::ring::Saved;
use crate::state_file;

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
    /// The lock on the state directory, held to the end of the process.
    _held: Option<Arc<OwnedFd>>,
}

pub(crate) use bonsai_services::initial::SYSTEM_FOLDER;

/// Where the machine's daemon is asked, by everybody.
pub const SYSTEM_SOCKET: &str = "/run/bonsai/daemon.sock";

/// Time of content and of status, number, length: a file that is replaced by one of the same length and time is another.
type Stamp = ([i64; 4], u64, u64);

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
    /// Files in a directory that a test reads and writes beside another holder.
    #[cfg(test)]
    pub(crate) fn of_test(state: &Path) -> Self {
        Self {
            config: None,
            state: state.to_owned(),
            seen: None,
            _held: None,
        }
    }

    /// Of a daemon with that configuration.
    pub(crate) fn new(path: Option<PathBuf>, config: &Config) -> anyhow::Result<Self> {
        let state = state_path(config)?;
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&state);
        made.with_context(|| format!("{}: cannot be made", state.display()))
            .map_err(before_start)?;
        state_file::check_folder(&state)
            .with_context(|| {
                format!(
                    "{}: is no folder to keep state in: give it to this user alone (chown, chmod 700) after a look at what is in it, or set daemon.state",
                    state.display()
                )
            })
            .map_err(before_start)?;
        // Before anything there is touched.
        let held = hold_state(&state)?;
        for name in ["changes.json", "tokens.json", "pages.json", "further.json"] {
            // Nothing reads one that stays.
            let _ = state_file::sweep(&state.join(name));
        }
        let mut files = Self {
            config: path,
            state,
            seen: None,
            _held: held.map(Arc::new),
        };
        files.seen = files.stamp();
        Ok(files)
    }

    fn stamp(&self) -> Option<Stamp> {
        let meta = fs::metadata(self.config.as_ref()?).ok()?;
        let times = [
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ];
        Some((times, meta.ino(), meta.len()))
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

    /// The file of changes: these, and entries of the audit trail that its database may lack. A file that is damaged is moved
    /// aside, and said.
    ///
    /// # Errors
    /// One that cannot be read, or is of a newer version: the next change would replace it.
    pub(crate) fn kept(&self) -> anyhow::Result<(Option<Kept>, Trail, Vec<String>)> {
        let path = self.changes();
        let text = state_file::read(&path)
            .with_context(|| format!("{}: cannot be read", path.display()))
            .map_err(before_start)?;
        let Some(text) = text else {
            return Ok((None, Trail::default(), Vec::new()));
        };
        match parse(&path, &text)? {
            Ok((kept, trail)) => Ok((Some(kept), trail, Vec::new())),
            Err(error) => {
                let aside = path.with_extension("json.damaged");
                let note = match fs::rename(&path, &aside) {
                    Ok(()) => format!("it was moved to {}", aside.display()),
                    Err(error) => format!("it cannot be moved aside: {error}"),
                };
                let text = format!(
                    "{}: is damaged ({error}); {note}, and changes made before are lost",
                    path.display()
                );
                Ok((None, Trail::default(), vec![text]))
            }
        }
    }

    /// Keeps what is to survive a restart: all of it or, if that fails, what was there before.
    pub(crate) fn keep(&self, kept: &Kept, trail: &Trail) -> anyhow::Result<()> {
        let path = self.changes();
        let all = OnDisk { kept, audit: trail };
        state_file::replace(&path, &all)
            .with_context(|| format!("{}: cannot be written", path.display()))
    }

    /// Keeps which further limits services have, until the machine ends.
    pub(crate) fn keep_further(&self, further: &Saved) -> std::io::Result<()> {
        further.write(&self.state)
    }
}

/// Changes and trail as one file.
#[derive(Serialize)]
struct OnDisk<'a> {
    #[serde(flatten)]
    kept: &'a Kept,
    audit: &'a Trail,
}

/// The same from its text; damage is no error.
fn parse(path: &Path, text: &[u8]) -> anyhow::Result<serde_json::Result<(Kept, Trail)>> {
    let mut all: serde_json::Map<String, serde_json::Value> = match serde_json::from_slice(text) {
        Ok(all) => all,
        Err(error) => return Ok(Err(error)),
    };
    let version = all.get("version").and_then(serde_json::Value::as_u64);
    state_file::check_version(path, version, Kept::VERSION.into())?;
    let trail = all.remove("audit").map(serde_json::from_value).transpose();
    let kept = serde_json::from_value(all.into());
    Ok(trail.and_then(|trail| Ok((kept?, trail.unwrap_or_default()))))
}

/// Takes a state directory for this daemon alone: another one, with a runtime directory of its own, would replace
/// confirmed changes by its own. The directory itself is locked, which writes nothing, so that a full or read-only
/// file system is no obstacle; where the file system knows no locks, there is none.
///
/// # Errors
/// A [`Refusal`]: another daemon has it.
fn hold_state(state: &Path) -> anyhow::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::open(state, flags, Mode::empty()) else {
        return Ok(None);
    };
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(folder)),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Refusal::input(format!(
            "{}: another daemon keeps its changes there: give this one a state directory of its own (daemon.state or BONSAI_STATE_DIR), or end the other one",
            state.display()
        ))),
        Err(_) => Ok(None),
    }
}

/// What says that this daemon runs. The kernel drops it with its holder.
#[derive(Debug)]
pub(crate) struct Running {
    path: PathBuf,
    lock: OwnedFd,
}

impl Running {
    /// Says why this daemon is no more the one of its runtime directory, if that is so: with its lock removed, as where the
    /// directory was emptied or made anew, nothing keeps another daemon from starting there, and two would change each
    /// other's limits.
    pub(crate) fn replaced(&self) -> Option<String> {
        let own = rustix::fs::fstat(&self.lock).ok()?;
        let folder = self.path.parent()?;
        let named = folder.display();
        match fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (own.st_dev, own.st_ino) => None,
            Ok(_) => Some(format!(
                "{named}: another daemon has its lock there: this one gives way to it"
            )),
            // A directory that was taken away as a whole may come back; meanwhile no other daemon can start in it.
            Err(error) if error.kind() == ErrorKind::NotFound && folder.is_dir() => Some(format!(
                "{named}: the lock of this daemon was removed, so that a second one could start: start it again"
            )),
            Err(_) => None,
        }
    }
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
    Ok(Running { path, lock })
}

/// The machine's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Above {
    /// The process, or none.
    Process(Option<i32>),
    /// A full queue of connections, which says nothing.
    Unknown,
}

/// The machine's daemon, for one of a user: it also governs their services, where they are in their usual place. One that does
/// not answer is not waited for.
pub(crate) fn above(runtime: &Path) -> Above {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let none = Above::Process(None);
    if runtime == Path::new(SYSTEM_FOLDER) || std::env::var_os("BONSAI_RUNTIME_DIR").is_some() {
        return none;
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (Ok(socket), Ok(address)) = (socket, SocketAddrUnix::new(SYSTEM_SOCKET)) else {
        return Above::Unknown;
    };
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::AGAIN) => return Above::Unknown,
        Err(_) => return none,
    }
    match rustix::net::sockopt::socket_peercred(&socket) {
        Ok(peer) if peer.uid.is_root() => Above::Process(Some(peer.pid.as_raw_nonzero().get())),
        _ => none,
    }
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
    fn ranges_and_defaults_of_the_documents_are_those_of_the_program() {
        let document = include_str!("../../../docs/09-policy.md");
        let policy = bonsai_api::Policy::default();
        for (name, default, most, beyond) in [
            ("headroom", policy.headroom, "100%", "100.1%"),
            ("hysteresis", policy.hysteresis, "50%", "50.1%"),
            ("reserve", policy.reserve, "90%", "90.1%"),
        ] {
            let spaced = |text: &str| text.replace('%', " %");
            let row = document
                .lines()
                .find(|line| line.starts_with(&format!("| {name} |")));
            let row = row.expect(name);
            let range = format!(
                "| 0.001 to {} | {} |",
                spaced(most),
                spaced(&default.to_string())
            );
            assert!(row.ends_with(&range), "{row}: {range}");
            let parsed = |value: &str| parse_config(&format!("[policy]\n{name} = \"{value}\"\n"));
            parsed("0.001%").expect("the least");
            parsed(most).expect("the most");
            parsed("0%").expect_err("none");
            let why = parsed(beyond).expect_err("more");
            assert!(why.contains(&spaced(most)) || why.contains("100%"), "{why}");
        }
        let example = include_str!("../../../config/limits.example.toml");
        let burst = bonsai_units::DEFAULT_BURST.as_millis();
        assert!(example.contains(&format!("it is {burst}ms.")), "{burst}");
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
    fn a_state_directory_has_one_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = hold_state(folder.path()).expect("the first");
        assert!(first.is_some());
        let error = hold_state(folder.path()).expect_err("the second");
        assert!(error.to_string().contains("daemon.state"), "{error}");
        drop(first);
        hold_state(folder.path()).expect("the next");
    }

    #[test]
    fn what_is_kept_comes_back_and_damage_is_moved_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files::of_test(folder.path());
        let kept = || files.kept().expect("read");
        assert_eq!(kept(), (None, Trail::default(), Vec::new()));
        let trail = Trail {
            ids: 7,
            ..Trail::default()
        };
        files.keep(&Kept::at(3), &trail).expect("kept");
        assert_eq!(kept(), (Some(Kept::at(3)), trail, Vec::new()));
        // A daemon before this one wrote no trail.
        fs::write(
            files.changes(),
            r#"{"version":2,"revision":5,"changes":[],"steps":[]}"#,
        )
        .expect("a file");
        let (before, trail, _) = kept();
        assert_eq!(
            (before.expect("kept").revision(), trail),
            (5, Trail::default())
        );
        fs::write(files.changes(), r#"{"version":99,"other":1}"#).expect("a file");
        let error = files.kept().expect_err("a newer one").to_string();
        assert!(error.contains("version 99"), "{error}");
        assert!(files.changes().exists(), "it is left alone");
        fs::write(files.changes(), "{\"version\":").expect("damage");
        let (none, _, notes) = kept();
        assert_eq!((none, notes.len()), (None, 1));
        assert!(notes[0].contains("is damaged"), "{notes:?}");
        assert!(folder.path().join("changes.json.damaged").exists());
    }
}
