//! Programs under limits, without the command line of Bonsai: a ledger, and the
//! environment that leads a program to it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::Context as _;
use bonsai_calls::{BY_NR, CLONE, FORK, NO_CALL, VFORK};
use bonsai_host::libs::{find_libc, libc_sites};
use bonsai_ledger::sync::Ordering;
use bonsai_ledger::{Draws, EventLoops, Group, Ledger, Part, Scope, Thing, Wanted, Who, flags};
use bonsai_units::{LimitSpec, Setting, Unit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// The library's file name.
const LIBRARY: &str = "libbonsai_preload.so";

/// The loader of the programs that are measured.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// The monotonic clock, ns: that of the ledger and of the measured programs.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// CPU time of the calling thread, ns: what others do to it is not in it.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

fn clock_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// How a program is entered.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Doors {
    /// Through exported symbols alone.
    First,
    /// Through libc's own system call sites as well.
    Both,
}

/// Waits of a service's calls since it was made.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Waits {
    pub(crate) count: u64,
    pub(crate) longest_ns: u64,
    pub(crate) sum_ns: u64,
}

/// Sets limits of a ledger, all together. Returns the instants before and after.
///
/// # Errors
/// A limit that makes no sense.
pub(crate) fn set_limits<S: AsRef<str>>(
    ledger: &Ledger,
    limits: &[S],
) -> anyhow::Result<(u64, u64)> {
    let specs: Vec<LimitSpec> = limits
        .iter()
        .map(|text| text.as_ref().parse())
        .collect::<Result<_, _>>()?;
    let before = monotonic_ns();
    let mut editor = ledger.edit(before)?;
    for LimitSpec { name, setting } in &specs {
        // Of what narrows limits down, files by their path and streams are measured.
        let (calls, path) = match name.split_once('@') {
            Some((calls, path)) => (calls, Some((part(calls.len() + 1)?, part(path.len())?))),
            None => (name.as_str(), None),
        };
        let per_stream = calls.strip_suffix("/stream");
        let selection = bonsai_calls::select(per_stream.unwrap_or(calls))
            .with_context(|| format!("{name}: neither a call nor a class"))?;
        match setting {
            Setting::Unlimited => {
                editor.clear(name);
            }
            Setting::Rate { rate, burst } => {
                let burst = burst.unwrap_or_default().units(*rate)?;
                let bytes = rate.unit() == Unit::Bytes;
                editor.put(&Wanted {
                    name,
                    selection,
                    bytes,
                    rate_milli: rate.milli(),
                    burst,
                    per_stream: per_stream.is_some(),
                    scope: Scope {
                        path,
                        ..Scope::default()
                    },
                })?;
            }
        }
    }
    editor.commit();
    Ok((before, monotonic_ns()))
}

/// A place or a length in a limit's name.
fn part(bytes: usize) -> anyhow::Result<u8> {
    u8::try_from(bytes).context("a limit's name is too long")
}

/// A service that lasts as long as the value.
#[derive(Debug)]
pub(crate) struct Service {
    folder: TempDir,
    ledger: Ledger,
    library: PathBuf,
}

impl Service {
    /// Makes a service under `limits`, which are written as on a command line.
    ///
    /// # Errors
    /// A limit that makes no sense, or no room in shared memory.
    pub(crate) fn new<S: AsRef<str>>(
        library: &Path,
        doors: Doors,
        limits: &[S],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bonsai-bench-")
            .tempdir_in(shared_memory())
            .context("shared memory: no folder for a ledger can be made")?;
        let ledger = Ledger::create(&folder.path().join("ledger"), "bench")?;
        match doors {
            Doors::First => ledger
                .header
                .flags
                .store(flags::NO_PATCH, Ordering::Relaxed),
            Doors::Both => store_sites(&ledger)?,
        }
        let extension = library.with_file_name("libbonsai_extension.so");
        if extension.is_file() {
            ledger.set_extension(&extension)?;
        }
        let service = Self {
            folder,
            ledger,
            library: library.to_owned(),
        };
        service.set(limits)?;
        Ok(service)
    }

    /// Sets limits, all together. Returns the instants before and after.
    ///
    /// # Errors
    /// A limit that makes no sense.
    pub(crate) fn set<S: AsRef<str>>(&self, limits: &[S]) -> anyhow::Result<(u64, u64)> {
        set_limits(&self.ledger, limits)
    }

    /// Makes the service a member of a group that shares one thing.
    ///
    /// # Errors
    /// The group cannot be changed, or the extension is not beside the library.
    pub(crate) fn join(&self, group: &Group, part: Part) -> anyhow::Result<()> {
        let extension = self.library.with_file_name("libbonsai_extension.so");
        anyhow::ensure!(
            extension.is_file(),
            "{} is not there: run make build",
            extension.display()
        );
        self.ledger.set_extension(&extension)?;
        let header = &self.ledger.header;
        header.flags.fetch_or(flags::EXTENDED, Ordering::Relaxed);
        let mut terms = group.edit(monotonic_ns())?;
        let who = Who {
            name: self.ledger.name(),
            pid: std::process::id(),
            started: 0,
            uid: 0,
        };
        let membership = terms.join(who, |_| true)?;
        terms.agree(membership, 0, part);
        terms.commit()?;
        let mut limits = self.ledger.edit(monotonic_ns())?;
        let selection = bonsai_calls::select(SHARED).context("no such class")?;
        let draws = Draws {
            thing: 0,
            selection,
            bytes: true,
        };
        limits.join(group.path(), membership, &[draws])?;
        limits.commit();
        Ok(())
    }

    /// From now on, event loops are not made to wait.
    ///
    /// # Errors
    /// The ledger cannot be changed.
    pub(crate) fn serve_event_loops(&self) -> anyhow::Result<()> {
        let editor = self.ledger.edit(monotonic_ns())?;
        editor.event_loops(EventLoops::On);
        editor.commit();
        Ok(())
    }

    /// What leads a program into the service.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            ("LD_PRELOAD", self.library.clone().into()),
            ("BONSAI_LEDGER", self.ledger.path().into()),
        ]
    }

    /// Makes `command` start in the service.
    pub(crate) fn enter(&self, command: &mut Command) {
        command.envs(self.environment());
    }

    /// The ledger's file.
    pub(crate) fn ledger_path(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    /// Processes that have attached, and those of them whose libc is patched.
    pub(crate) fn attached(&self) -> (usize, usize) {
        let table = self.ledger.process_table();
        let patched = bonsai_ledger::coverage::PATCHED;
        let count = table.iter().filter(|p| p.coverage & patched != 0).count();
        (table.len(), count)
    }

    /// How often calls waited, and for how many ns: the longest, and all together.
    pub(crate) fn waits(&self) -> Waits {
        let totals = self.ledger.totals();
        let longest = &self.ledger.header.longest_wait_ns;
        Waits {
            count: totals.iter().map(|total| total.delays.count()).sum(),
            longest_ns: longest.load(Ordering::Relaxed),
            sum_ns: totals.iter().map(|total| total.waited_ns).sum(),
        }
    }

    /// Calls that went through without a decision.
    pub(crate) fn unshaped(&self) -> u64 {
        let counts = &self.ledger.header.unshaped;
        counts.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}

/// What groups of benchmarks share.
const SHARED: &str = "write";

/// A group that shares bytes written, in a folder of its own.
///
/// # Errors
/// There is no room in shared memory.
pub(crate) fn group(rate: u64) -> anyhow::Result<(TempDir, Group)> {
    let folder = tempfile::Builder::new()
        .prefix("bonsai-bench-")
        .tempdir_in(shared_memory())
        .context("shared memory: no folder for a group can be made")?;
    let group = Group::create(&folder.path().join("group"), "bench", None)?;
    let mut terms = group.edit(monotonic_ns())?;
    terms.share(Thing {
        name: SHARED.to_owned(),
        bytes: true,
        rate_milli: rate * 1000,
        burst: (rate / 50).max(1),
    })?;
    terms.commit()?;
    Ok((folder, group))
}

/// Where ledgers belong: a file system in memory, if there is one.
pub(crate) fn shared_memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// Stores the system call sites of the C library and the loader, as a start by
/// `bonsai run` does. Calls that return twice need their stack as it is.
fn store_sites(ledger: &Ledger) -> anyhow::Result<()> {
    for library in libraries()? {
        anyhow::ensure!(
            ledger.store_sites(&library.build_id, library.sites.iter().copied()),
            "{} system call sites do not fit into a ledger",
            library.sites.len()
        );
    }
    Ok(())
}

/// A library's build-id, and its sites as the ledger holds them.
#[derive(Debug)]
struct Library {
    build_id: Vec<u8>,
    sites: Vec<u64>,
}

/// The C library and the loader; looked into once, as that takes milliseconds.
fn libraries() -> anyhow::Result<&'static [Library]> {
    static FOUND: OnceLock<Vec<Library>> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let libc = find_libc(Path::new(LOADER))?;
    let mut all = Vec::new();
    for path in BTreeSet::from([libc.libc, libc.loader]) {
        let found = libc_sites(&path)?;
        let wanted = |nr: u16| {
            let call = BY_NR.get(usize::from(nr)).copied().unwrap_or(NO_CALL);
            !matches!(call, NO_CALL | FORK | VFORK | CLONE)
        };
        let sites: Vec<u64> = found
            .sites
            .iter()
            .filter(|site| wanted(site.nr))
            .map(|site| {
                let flag = u64::from(site.cmp == -4095);
                u64::from(site.offset) | u64::from(site.nr) << 32 | flag << 48
            })
            .collect();
        all.push(Library {
            build_id: found.build_id,
            sites,
        });
    }
    Ok(FOUND.get_or_init(|| all))
}

/// Finds the preload library: the file named by `BONSAI_PRELOAD`, else in the
/// folder named by `BONSAI_BIN_DIR`, beside this program, or where `make build`
/// and `cargo build --profile preload` leave it.
///
/// # Errors
/// It is in none of these places.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let exe = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let places = [
        var("BONSAI_PRELOAD").map(PathBuf::from),
        var("BONSAI_BIN_DIR").map(|dir| Path::new(&dir).join(LIBRARY)),
        Some(beside.join(LIBRARY)),
        Some(beside.join("../bonsai").join(LIBRARY)),
        Some(beside.join("../preload").join(LIBRARY)),
    ];
    let found = places.into_iter().flatten().find(|path| path.is_file());
    let path = found.with_context(|| {
        format!(
            "the library {LIBRARY} is not beside this program in {}: run make build, or name its \
             file in BONSAI_PRELOAD",
            beside.display()
        )
    })?;
    let path = path
        .canonicalize()
        .with_context(|| format!("{}", path.display()))?;
    let text = path.to_string_lossy();
    anyhow::ensure!(
        !text.contains([' ', ':']),
        "{text}: LD_PRELOAD cannot hold a path with blanks or colons"
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_set_and_lifted() {
        let service = Service::new(Path::new("/x"), Doors::Both, &["write=1MB/s", "open=5/s"])
            .expect("a service");
        let names = |service: &Service| -> Vec<String> {
            let limits = service.ledger.limits(monotonic_ns());
            limits.into_iter().map(|limit| limit.name).collect()
        };
        assert_eq!(names(&service), ["write", "open"]);
        let (before, after) = service.set(&["write=unlimited"]).expect("set");
        assert!(before <= after);
        assert_eq!(names(&service), ["open"]);
        service.set(&["nothing=1/s"]).expect_err("no such call");
        let folder = service.folder.path().to_owned();
        drop(service);
        assert!(!folder.exists(), "nothing is left behind");
    }

    #[test]
    fn the_ledger_knows_the_sites_of_libc() {
        let service = Service::new::<&str>(Path::new("/x"), Doors::Both, &[]).expect("a service");
        let count = |i: usize| service.ledger.sites.libs[i].count.load(Ordering::Relaxed);
        assert!(count(0) + count(1) > 40);
        assert_eq!(service.attached(), (0, 0));
        assert_eq!(service.unshaped(), 0);
        assert_eq!(service.waits().count, 0);
    }
}
