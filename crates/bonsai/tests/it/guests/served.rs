//! Debian systems on disks that `bonsai drive serve` gives to guests.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Place, Said, skip};

/// How long a guest may take for anything: half a minute on a quiet machine, without KVM.
const PATIENCE: Duration = Duration::from_secs(600);

/// One test at a time: each has guests, which take a processor each.
static ALONE: Mutex<()> = Mutex::new(());

/// Copies of disks, and the server of these.
pub(super) struct Served {
    pub(super) place: Place,
    folder: TempDir,
    names: Vec<&'static str>,
    server: Option<Child>,
    _alone: MutexGuard<'static, ()>,
}

/// A guest whose disk is served.
pub(super) struct DiskGuest {
    child: Child,
    folder: PathBuf,
}

/// Where the kernel and the disks of guests are.
fn prepared() -> PathBuf {
    let standard = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guests");
    std::env::var_os("BONSAI_GUEST_KERNEL").map_or(standard, PathBuf::from)
}

impl Served {
    /// Copies of these disks, of which the page cache has nothing; `None`, and the reason in the log, where
    /// there are none.
    pub(super) fn new(test: &str, names: &[&'static str]) -> Option<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Beside what is built: a temporary folder may be in memory, where nothing is ever read from a disk.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        for name in names {
            let disk = prepared().join("disks").join(format!("{name}.raw"));
            if !disk.exists() {
                skip(test, "there are no disks for guests (make test-guests)");
                return None;
            }
            let copied = Command::new("cp")
                .arg("--sparse=always")
                .args([&disk, folder.path()])
                .status();
            assert!(copied.is_ok_and(|status| status.success()), "{name}");
        }
        let served = Self {
            place: Place::bare(),
            folder,
            names: names.to_vec(),
            server: None,
            _alone: alone,
        };
        for name in names {
            let disk = File::open(served.disk(name)).expect("copied");
            disk.sync_all().expect("on the disk");
            fadvise(&disk, 0, None, Advice::DontNeed).expect("forgotten");
        }
        Some(served)
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.raw"))
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("disks.sock")
    }

    /// `bonsai drive serve` of all disks, and waits until it listens; with `--scan`, until all are scanned.
    pub(super) fn start(&mut self, args: &[&str]) {
        let said = self.folder.path().join("said");
        let mut command = self.place.bonsai(&["drive", "serve", "--socket"]);
        command.arg(self.socket());
        command.args(self.names.iter().map(|name| self.disk(name)));
        command
            .args(args)
            .stderr(File::create(&said).expect("a file"));
        self.server = Some(command.spawn().expect("bonsai"));
        let end = Instant::now() + PATIENCE;
        let ready = match args.contains(&"--scan") {
            true => "all images are scanned",
            false => "is served at",
        };
        while !fs::read_to_string(&said).is_ok_and(|said| said.contains(ready)) {
            let server = self.server.as_mut().expect("started");
            let ended = server.try_wait().expect("ours");
            assert!(ended.is_none() && Instant::now() < end, "{ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server as its owner would, and lets it flush; or at once.
    pub(super) fn end(&mut self, signal: Signal) {
        let mut server = self.server.take().expect("started");
        kill_process(Pid::from_child(&server), signal).expect("it runs");
        let status = server.wait().expect("ours");
        assert!(signal == Signal::KILL || status.success(), "{status}");
    }

    /// What `bonsai drive status` tells of a disk.
    pub(super) fn status(&self, name: &str) -> Value {
        let value = self.place.json(&["drive", "status", "--json"]);
        let exports = value["servers"][0]["exports"].as_array().expect("exports");
        let found = exports.iter().find(|export| export["name"] == name);
        found.expect("it is served").clone()
    }

    /// Bytes that the server has had read from the disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        let pid = self.server.as_ref().expect("started").id();
        let io = fs::read_to_string(format!("/proc/{pid}/io")).expect("ours");
        let line = io
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        line.expect("a line").parse().expect("a number")
    }

    /// What `e2fsck` says of a disk that nobody has.
    pub(super) fn check(&self, name: &str) -> Said {
        let mut command = Command::new("e2fsck");
        command.arg("-fn").arg(self.disk(name));
        command.output().expect("e2fsck").into()
    }

    /// Boots a guest from a disk; `None`, and the reason in the log, where it cannot be.
    pub(super) fn boot(&self, test: &str, name: &str, words: &[&str]) -> Option<DiskGuest> {
        let folder = self.folder.path().join(format!("guest-{name}"));
        // What it said in an earlier life.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/guests/boot-disk.sh"
        );
        let uri = format!("nbd+unix:///{name}?socket={}", self.socket().display());
        let said = folder.join("said");
        let mut command = Command::new("bash");
        command
            .arg(script)
            .arg(name)
            .arg(&folder)
            .arg(uri)
            .args(words)
            .env("BONSAI_GUEST_KERNEL", prepared())
            .stdin(Stdio::null())
            .stdout(File::create(&said).expect("a file"))
            .process_group(0);
        let mut guest = DiskGuest {
            child: command.spawn().expect("bash"),
            folder,
        };
        let ended = guest.until(|guest| {
            guest.line("up ").is_some() || guest.child.try_wait().expect("ours").is_some()
        });
        assert!(ended, "it does not boot: {}", guest.console());
        if guest.line("up ").is_none() {
            let said = fs::read_to_string(said).expect("readable");
            assert!(
                guest.child.wait().expect("ours").code() == Some(77),
                "{said} {}",
                guest.console()
            );
            skip(test, said.trim());
            return None;
        }
        Some(guest)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // It may have ended.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl DiskGuest {
    /// All that was said there, by its kernel and its work.
    pub(super) fn console(&self) -> String {
        let bytes = fs::read(self.folder.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last whole line of its work that begins so, without that.
    pub(super) fn line(&self, start: &str) -> Option<String> {
        let console = self.console();
        let lines = console
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let start = format!("guest: {start}");
        let found = lines.filter_map(|line| line.split_once(&start)).next_back();
        found.map(|(_, line)| line.trim().to_owned())
    }

    /// Waits for something; false where it does not come.
    pub(super) fn until(&mut self, mut came: impl FnMut(&mut Self) -> bool) -> bool {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if came(self) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Waits until it has done its work and switched itself off; all checksums were right. Says of how many
    /// files.
    pub(super) fn works(mut self) -> u64 {
        let ended = self.until(|guest| guest.child.try_wait().expect("ours").is_some());
        let console = self.console();
        assert!(ended && self.line("done, ").is_some(), "{console}");
        let mut files = 0;
        for of in ["packages ", "written "] {
            let line = self.line(of).unwrap_or_default();
            let words: Vec<_> = line.split(' ').collect();
            let [count, "files", "0", "bad"] = words[..] else {
                panic!("{line:?}: {console}");
            };
            files += count.parse::<u64>().expect("a number");
        }
        files
    }
}

impl Drop for DiskGuest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("its console: {}", self.console());
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
