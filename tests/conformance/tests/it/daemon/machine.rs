//! A machine of a test's own: `/run` and `/dev/shm` that nobody else sees, root's daemon in its
//! usual place, and two other users.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Finished, finish, skip};
use rustix::process::Signal;
use serde_json::Value;

use super::fixture::Ends;
use crate::fixture::{PATIENCE, scratch};

/// Has a runtime directory below `/run/user`.
pub(super) const ALICE: u32 = 54321;
/// Has none, and so one in `/dev/shm`.
pub(super) const BOB: u32 = 54322;

/// What `packaging/systemd/bonsai.service` says; a test sees to that.
pub(super) const RIGHTS: &str = "-all,+sys_ptrace,+dac_read_search,+dac_override,+net_bind_service";

const CURL: &str = "/usr/bin/curl";

/// Somebody, on that machine.
#[derive(Debug)]
pub(super) struct User {
    bonsai: Bonsai,
    state: PathBuf,
}

/// The machine. The daemon ends first.
#[derive(Debug)]
pub(super) struct Machine {
    daemon: Option<Ends>,
    pub(super) root: User,
    /// Root, with the rights that the daemon's unit leaves it.
    unit: User,
    pub(super) alice: User,
    pub(super) bob: User,
    inside: Ends,
    folder: tempfile::TempDir,
    copy: Bonsai,
}

const MOUNT: &str = "mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs -o mode=1777 tmpfs \
                     /dev/shm && mkdir -p /run/user/54321 && chown 54321:54321 /run/user/54321 && \
                     chmod 700 /run/user/54321 && echo ready && exec sleep 600";

impl Machine {
    /// Nothing runs on it yet. `None`, with the reason said, where there can be none.
    pub(super) fn new(test: &str, config: &str) -> Option<Self> {
        for tool in ["unshare", "nsenter", "setpriv", "curl"] {
            if !Path::new("/usr/bin").join(tool).exists() {
                skip(test, &format!("{tool} is not installed"));
                return None;
            }
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut said = String::new();
        let output = child.stdout.take().expect("its output");
        let _ = BufReader::new(output).read_line(&mut said);
        let pid = child.id();
        let inside = Ends(child);
        if said != "ready\n" {
            skip(
                test,
                "no file systems of one's own can be mounted here (needs root)",
            );
            return None;
        }
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai");
        let copy = Bonsai::find(&built).unwrap_or_else(|error| panic!("{error}"));
        let copy = copy
            .of_user(ALICE)
            .unwrap_or_else(|error| panic!("{error}"));
        std::fs::create_dir_all(scratch()).expect("a folder");
        let folder = tempfile::tempdir_in(scratch()).expect("a folder");
        let user =
            |uid: u32, environment: &str| User::new(&copy, pid, [uid, uid], &[], environment);
        let rights = ["--no-new-privs", "--bounding-set", RIGHTS];
        let machine = Self {
            daemon: None,
            root: user(0, "TERM=dumb"),
            unit: User::new(&copy, pid, [0, 0], &rights, "TERM=dumb"),
            alice: user(ALICE, "XDG_RUNTIME_DIR=/run/user/54321"),
            bob: user(BOB, "TERM=dumb"),
            inside,
            folder,
            copy,
        };
        machine.configure(config);
        Some(machine)
    }

    /// With root's daemon running.
    pub(super) fn started(test: &str, config: &str) -> Option<Self> {
        let mut machine = Self::new(test, config)?;
        machine.start();
        Some(machine)
    }

    /// Somebody else, of a Unix group.
    pub(super) fn user(&self, uid: u32, gid: u32) -> User {
        User::new(&self.copy, self.inside.0.id(), [uid, gid], &[], "TERM=dumb")
    }

    pub(super) fn configure(&self, text: &str) {
        std::fs::write(self.folder.path().join("bonsai.toml"), text).expect("a file");
    }

    fn daemon_command(&self) -> Command {
        let mut command = self.unit.command(&["daemon", "--config"]);
        command.arg(self.folder.path().join("bonsai.toml"));
        command.env("BONSAI_STATE_DIR", self.folder.path().join("state"));
        command
    }

    pub(super) fn start(&mut self) {
        self.daemon = Some(started(&mut self.daemon_command()));
    }

    pub(super) fn end(&mut self, signal: Signal) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.signal(signal);
        drop(daemon.0.wait());
    }

    /// The names of the threads of root's daemon.
    pub(super) fn threads(&self) -> Vec<String> {
        let daemon = self.daemon.as_ref().expect("it runs");
        let folder = format!("/proc/{}/task", daemon.0.id());
        let threads = std::fs::read_dir(folder).expect("threads").flatten();
        let names = threads.filter_map(|thread| {
            // One may end meanwhile.
            std::fs::read_to_string(thread.path().join("comm")).ok()
        });
        names.map(|name| name.trim_end().to_owned()).collect()
    }

    /// A file of that machine, from outside.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.inside.0.id()))
    }

    /// Waits until something is so.
    pub(super) fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            assert!(start.elapsed() < PATIENCE, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until root's daemon has a limit on what a service reads.
    pub(super) fn governs(&self, id: &str) {
        self.until(&format!("{id} is governed"), |machine| {
            machine.root.of(id, "read")["enforced"] == "limit"
        });
    }
}

/// A daemon that says that it listens.
pub(super) fn started(command: &mut Command) -> Ends {
    let mut child: Child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = child.stdout.take().expect("its output");
    let daemon = Ends(child);
    let mut byte = [0];
    let mut text = String::new();
    while !text.ends_with('\n') {
        assert_eq!(said.read(&mut byte).unwrap_or(0), 1, "it ended: {text:?}");
        text.push(char::from(byte[0]));
    }
    daemon
}

impl User {
    fn new(copy: &Bonsai, pid: u32, ids: [u32; 2], more: &[&str], environment: &str) -> Self {
        let [uid, gid] = ids;
        let (mount, uid, gid) = (
            format!("--mount=/proc/{pid}/ns/mnt"),
            format!("--reuid={uid}"),
            format!("--regid={gid}"),
        );
        let mut by = vec![
            "nsenter",
            &mount,
            "--",
            "setpriv",
            &uid,
            &gid,
            "--clear-groups",
        ];
        by.extend(more);
        by.extend([
            "--",
            "env",
            "-u",
            "XDG_RUNTIME_DIR",
            "-u",
            "BONSAI_RUNTIME_DIR",
        ]);
        by.extend(["HOME=/nonexistent", environment]);
        let bonsai = copy.within(&by).unwrap_or_else(|error| panic!("{error}"));
        let state = bonsai.services();
        let number = uid.trim_start_matches("--reuid=").parse().ok();
        std::os::unix::fs::chown(&state, number, None).expect("root may");
        Self { bonsai, state }
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bonsai.command(args);
        command.env("BONSAI_STATE_DIR", &self.state);
        command
    }

    pub(super) fn bare(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.bonsai.bare(Path::new(program));
        command.args(args);
        command
    }

    pub(super) fn say(&self, args: &[&str]) -> Finished {
        finish(&mut self.command(args), PATIENCE).expect("it ends")
    }

    pub(super) fn done(&self, args: &[&str]) -> String {
        let said = self.say(args);
        assert!(said.status.success(), "{args:?}: {}", said.stderr);
        said.stdout
    }

    /// A service that reads as fast as it may.
    pub(super) fn reader(&self, name: &str) -> Ends {
        let mut command = self.command(&["run", "--name", name, "--"]);
        command.args(["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=16k"]);
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        let reader = Ends(command.spawn().expect("it starts"));
        let start = Instant::now();
        while !self.say(&["stats", name, "--json"]).status.success() {
            assert!(start.elapsed() < PATIENCE, "{name} never runs");
            std::thread::sleep(Duration::from_millis(20));
        }
        reader
    }

    /// What a service has read so far, bytes.
    pub(super) fn bytes_read(&self, name: &str) -> u64 {
        let stats: Value =
            serde_json::from_str(&self.done(&["stats", name, "--json"])).expect("JSON");
        let classes = stats["classes"].as_array().expect("classes");
        let read = classes.iter().find(|class| class["class"] == "read");
        read.and_then(|read| read["bytes"].as_u64()).unwrap_or(0)
    }

    /// Asks the machine's daemon: the status, and what is answered.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let url = format!("http://localhost{path}");
        let mut args = vec![
            "-sS",
            "--max-time",
            "20",
            "-w",
            "\n%{http_code}",
            "--unix-socket",
            "/run/bonsai/daemon.sock",
            "-X",
            method,
            &url,
        ];
        if !body.is_empty() {
            args.extend(["-H", "content-type: application/json", "-d", body]);
        }
        let said = finish(&mut self.bare(CURL, &args), PATIENCE).expect("it ends");
        let (body, status) = said.stdout.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or(0), body.to_owned())
    }

    pub(super) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// One resource of a service, as the daemon shows it.
    pub(super) fn of(&self, service: &str, resource: &str) -> Value {
        let (status, body) = self.ask("GET", &format!("/v1/services/{service}"), "");
        if status != 200 {
            return Value::Null;
        }
        let view: Value = serde_json::from_str(&body).expect("JSON");
        let resources = view["resources"].as_array().cloned().unwrap_or_default();
        let of_it = |of: &&Value| of["resource"] == resource;
        resources.iter().find(of_it).cloned().unwrap_or_default()
    }

    /// The ids of all services that they see.
    pub(super) fn sees(&self) -> Vec<String> {
        let services = self.get("/v1/services");
        let services = services["services"].as_array().expect("services");
        services
            .iter()
            .map(|service| service["id"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}
