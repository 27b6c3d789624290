//! A runtime directory per test, and the programs that are run in it.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take here before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A runtime directory of its own.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    library: Option<PathBuf>,
}

/// What a finished command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    /// For what needs no library.
    pub(crate) fn bare() -> Self {
        let owner_only = std::fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new()
            .permissions(owner_only)
            .tempdir()
            .expect("a folder");
        Self {
            folder,
            library: None,
        }
    }

    /// With the library, or `None`, and the reason in the log, where there is none.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let Some(library) = library() else {
            skip(test, "libbonsai_preload.so is not built (make build)");
            return None;
        };
        Some(Self {
            library: Some(library),
            ..Self::bare()
        })
    }

    /// The runtime directory.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The library, if it has one.
    pub(crate) fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// The same with another copy of the library.
    pub(crate) fn with_library(mut self, library: &Path) -> Self {
        self.library = Some(library.to_owned());
        self
    }

    /// `bonsai` with these arguments.
    pub(crate) fn bonsai<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bonsai"));
        command
            .args(args)
            .env("BONSAI_RUNTIME_DIR", self.path())
            .env("BONSAI_STATE_DIR", self.path().join("state"))
            .env("COLUMNS", "100")
            .env("LC_ALL", "C")
            .env_remove("BONSAI_LEDGER")
            .env_remove("LD_PRELOAD")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        match &self.library {
            Some(library) => command.env("BONSAI_PRELOAD", library),
            None => command.env_remove("BONSAI_PRELOAD"),
        };
        command
    }

    /// Runs `bonsai` to its end.
    pub(crate) fn say<S: AsRef<OsStr>>(&self, args: &[S]) -> Said {
        self.bonsai(args).output().expect("bonsai").into()
    }

    /// Runs `bonsai`, which must succeed, and reads its JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let said = self.say(args);
        assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
        let value: Value = serde_json::from_str(&said.out).expect("JSON");
        assert_eq!(value["schema"], 1, "{value}");
        value
    }

    /// Starts `bonsai run ARGS` and waits until its service has attached processes.
    pub(crate) fn start(&self, name: &str, args: &[&str]) -> Running {
        let mut command = self.bonsai(&[&["run", "--name", name], args].concat());
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The kernel stops nobody in a process group without a parent in its
            // session, which ours is where no shell with jobs has started it.
            .process_group(0)
            .spawn();
        let running = Running {
            child: Some(child.expect("bonsai")),
        };
        self.until(name, |service| {
            service["processes"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        });
        running
    }

    /// Looks at a service until it is as it should be.
    pub(crate) fn until(&self, name: &str, right: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let value = self.json(&["status", "--interval", "10ms", "--json"]);
            let services = value["services"].as_array().expect("services");
            let found = services.iter().find(|service| service["name"] == name);
            match found {
                Some(service) if right(service) => return service.clone(),
                _ => assert!(Instant::now() < end, "{name} never came to it: {value:#}"),
            }
        }
    }

    /// What `bonsai ARGS` prints, once there are these words in it.
    pub(crate) fn until_text(&self, args: &[&str], words: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let said = self.say(args);
            if said.out.contains(words) {
                return said.out;
            }
            assert!(
                Instant::now() < end,
                "{args:?} never came to {words:?}: {said:?}"
            );
        }
    }

    /// The folders of services that are left.
    pub(crate) fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("readable");
        let names = entries.map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        });
        // The sites of libraries are kept for the next start.
        names.filter(|name| name != ".sites").collect()
    }
}

/// A `bonsai run` that goes on, until its end is asked for or the test fails.
pub(crate) struct Running {
    child: Option<Child>,
}

impl Running {
    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("not ended")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("not ended").id()
    }

    /// Sends a signal to `bonsai run` alone.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Writes to the program and closes its standard input.
    pub(crate) fn write(&mut self, text: &str) {
        let mut input = self.child().stdin.take().expect("standard input");
        input.write_all(text.as_bytes()).expect("written");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Said {
        let mut child = self.child.take().expect("not ended");
        drop(child.stdin.take());
        child.wait_with_output().expect("ended").into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        if child.try_wait().is_ok_and(|end| end.is_none()) {
            // Passed on to the program, so that it does not stay behind.
            signal(child.id(), "TERM");
            let _ = child.wait();
        }
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "kill -{name} {pid}"
    );
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: ExitStatus::code(&output.status),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

/// The preload library of this build, if there is one.
pub(crate) fn library() -> Option<PathBuf> {
    const FILE: &str = "libbonsai_preload.so";
    let named = std::env::var_os("BONSAI_PRELOAD").map(PathBuf::from);
    let beside = std::env::var_os("BONSAI_BIN_DIR").map(|folder| Path::new(&folder).join(FILE));
    let built = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/bonsai")
        .join(FILE);
    named
        .into_iter()
        .chain(beside)
        .chain([built])
        .find_map(|path| path.canonicalize().ok())
}

/// Says that a test cannot run here.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIP: {test}: {reason}");
    let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") else {
        return;
    };
    let log = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(log);
    log.and_then(|mut log| writeln!(log, "{test}: {reason}"))
        .expect("the log of skipped tests");
}

/// Compiles a C program statically; `None`, and the reason in the log, where that
/// cannot be done.
pub(crate) fn static_program(test: &str, place: &Place, source: &str) -> Option<PathBuf> {
    compiled(test, place, source, ".static-program", &["-static"])
}

/// Compiles a C program with these flags, likewise.
pub(crate) fn compiled(
    test: &str,
    place: &Place,
    source: &str,
    name: &str,
    flags: &[&str],
) -> Option<PathBuf> {
    let file = place.path().join(".program.c");
    let program = place.path().join(name);
    std::fs::write(&file, source).expect("written");
    let compiled = Command::new("cc")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&file)
        .output();
    match compiled {
        Ok(output) if output.status.success() => Some(program),
        _ => {
            let reason = format!("no C compiler for {flags:?} (apt install gcc libc6-dev)");
            skip(test, &reason);
            None
        }
    }
}

/// A film of so many seconds that ffmpeg draws from its own sources (`-f lavfi`), in H.264, and as the
/// words for ffmpeg say; `None`, and the reason in the log, where that cannot be done.
pub(crate) fn film(
    test: &str,
    path: PathBuf,
    sources: &[&str],
    seconds: u64,
    words: &str,
) -> Option<PathBuf> {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error"]);
    for source in sources {
        command.args(["-f", "lavfi", "-i", source]);
    }
    command.args(["-t", &seconds.to_string(), "-c:v", "libx264"]);
    command.args(words.split_whitespace()).arg(&path);
    let made = command.stdin(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        skip(test, "ffmpeg is not installed, or has no libx264");
        return None;
    }
    Some(path)
}
