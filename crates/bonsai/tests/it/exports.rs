//! Exports of the block server as services: what they do is counted, shown and limited.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_api::Exports;
use serde_json::Value;

use crate::nbd::{Client, TRIM};
use crate::support::{PATIENCE, Place, signal, skip};

/// A `bonsai drive serve` that goes on until the test ends.
pub(crate) struct Serving {
    child: Child,
    socket: PathBuf,
}

impl Serving {
    /// Serves images with these names, each of these bytes, with further arguments.
    pub(crate) fn start(place: &Place, images: &[(&str, &[u8])], args: &[&str]) -> Self {
        let images = images.iter().map(|(name, bytes)| {
            let path = place.path().join(".images").join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            if !path.exists() {
                std::fs::write(&path, bytes).expect("an image");
            }
            path.display().to_string()
        });
        let images: Vec<String> = images.collect();
        let mut digits = args.concat().len();
        let socket = loop {
            let path = place.path().join(format!(".s{digits}"));
            if !path.exists() {
                break path;
            }
            digits += 1;
        };
        let mut command = place.bonsai(&["drive", "serve"]);
        command.args(images).args(args).arg("--socket").arg(&socket);
        Self::spawn(command, socket).expect("bonsai")
    }

    /// Starts a command that serves, and waits until it does; with `--scan`, until all images are scanned.
    fn spawn(mut command: Command, socket: PathBuf) -> std::io::Result<Self> {
        let ready = match command.get_args().any(|arg| arg == "--scan") {
            true => "all images are scanned",
            false => "is served at",
        };
        let mut child = command.stderr(Stdio::piped()).process_group(0).spawn()?;
        let err = child.stderr.take().expect("standard error");
        let mut lines = BufReader::new(err).lines();
        let mut said = Vec::new();
        loop {
            let line = lines.next().and_then(Result::ok);
            let Some(line) = line else {
                panic!("it does not serve: {said:?}");
            };
            if line.contains(ready) {
                break;
            }
            said.push(line);
        }
        std::thread::spawn(move || lines.count());
        Ok(Self { child, socket })
    }

    pub(crate) fn client(&self, export: &str) -> Client {
        Client::new(&self.socket, export)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn end(mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|end| end.is_none()) {
            signal(self.child.id(), "KILL");
            let _ = self.child.wait();
        }
    }
}

/// Bytes that are like no others.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next)
        .flatten()
        .take(length)
        .collect()
}

/// Calls and bytes of a call of a service.
fn counted(place: &Place, service: &str, call: &str) -> (u64, u64) {
    let stats = place.json(&["stats", service, "--json"]);
    let calls = stats["calls"].as_array().expect("calls");
    let found = calls.iter().find(|of| of["call"] == call);
    let number = |key: &str| found.map_or(0, |of| of[key].as_u64().expect("a number"));
    (number("calls"), number("bytes"))
}

#[test]
fn an_export_is_a_service_whose_requests_are_counted() {
    let place = Place::bare();
    let image = noise(1, 1 << 20);
    let serving = Serving::start(&place, &[("web.raw", &image)], &[]);
    let mut clients = [serving.client("web"), serving.client("web")];
    for (client, offset) in clients.iter_mut().zip([0_u64, 65_536]) {
        for _ in 0..3 {
            let read = client.read(offset, 4096).expect("read");
            assert_eq!(
                read,
                image[usize::try_from(offset).expect("small")..][..4096]
            );
        }
        assert_eq!(client.write(offset, &[7; 8192], false), 0);
        assert_eq!(client.ask((0, TRIM), 524_288, 4096, &[]), 0);
    }
    assert_eq!(counted(&place, "web", "pread64"), (6, 6 * 4096));
    // A trim is a call that moves nothing.
    assert_eq!(counted(&place, "web", "pwrite64"), (4, 2 * 8192));
    let status = place.until("web", |_| true);
    let processes = status["processes"].as_array().expect("processes");
    assert_eq!(processes.len(), 1, "{status:#}");
    let process = &processes[0];
    assert_eq!(process["pid"], serving.pid());
    assert_eq!(process["covered"], "serves");
    assert_eq!(process["threads_counted"], 2, "a page for each connection");
    assert_eq!(process["calls"], 10);
    assert_eq!(process["bytes"], 6 * 4096 + 2 * 8192);
    // Pages of clients that have gone are taken over, and what is in them stays.
    drop(clients);
    for _ in 0..8 {
        serving.client("web").read(0, 4096).expect("read");
    }
    assert_eq!(counted(&place, "web", "pread64"), (14, 14 * 4096));
    let refused = place.say(&["audit", "web"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("is an export"), "{refused:?}");
    let drive = place.json(&["drive", "status", "--json"]);
    assert_eq!(drive["servers"][0]["exports"][0]["service"], "web");
    serving.end();
    assert!(!place.left().contains(&"web".to_owned()), "it is gone");
}

#[test]
fn a_read_that_fails_moves_nothing() {
    let place = Place::bare();
    let serving = Serving::start(&place, &[("web.raw", &noise(2, 1 << 20))], &["--plain"]);
    let mut client = serving.client("web");
    client.read(0, 65_536).expect("read");
    let image = std::fs::File::options()
        .write(true)
        .open(place.path().join(".images/web.raw"));
    image.expect("the image").set_len(65_536).expect("shorter");
    assert_eq!(client.read(131_072, 65_536), Err(5), "EIO");
    assert_eq!(counted(&place, "web", "pread64"), (2, 65_536));
    serving.end();
}

#[test]
fn a_limit_set_on_a_running_export_holds_and_who_waits_is_seen() {
    let place = Place::bare();
    let serving = Serving::start(&place, &[("web.raw", &noise(3, 1 << 20))], &[]);
    let said = place.say(&["set", "web", "read=1kB/s:burst=4KiB"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let mut client = serving.client("web");
    let reads = std::thread::spawn(move || {
        // It is due in minutes.
        client.read(0, 524_288).map(|read| read.len())
    });
    let waits = |service: &Value| {
        let waiting = service["waiting"].as_array().expect("a list");
        waiting.iter().any(|of| of["limit"] == "read")
    };
    let service = place.until("web", waits);
    let waiting = &service["waiting"][0];
    assert_eq!(waiting["call"], "pread64");
    assert_eq!(waiting["pid"], serving.pid());
    assert!(
        waiting["due_in_ns"].as_u64() > Some(60_000_000_000),
        "{waiting}"
    );
    // Other exports, and writes of other connections, do not wait for it.
    assert_eq!(serving.client("web").write(0, &[1; 4096], false), 0);
    place.say(&["set", "web", "read=unlimited"]);
    assert_eq!(reads.join().expect("no panic"), Ok(524_288));
    let service = place.until("web", |service| service["waiting"] == serde_json::json!([]));
    assert!(service["waits"]["count"].as_u64() >= Some(1), "{service:#}");
    assert!(service["waits"]["total_ns"].as_u64() > Some(0));
    serving.end();
}

#[test]
fn a_name_that_is_taken_gets_a_number_and_is_refused_with_limits() {
    let place = Place::bare();
    let images: [(&str, &[u8]); 2] = [("web.raw", &[1; 8192]), ("a b.raw", &[2; 8192])];
    let first = Serving::start(&place, &images, &["--read-only"]);
    let second = Serving::start(&place, &images[..1], &["--read-only", "--plain"]);
    second.client("web").read(0, 4096).expect("read");
    first.client("a b").read(0, 8192).expect("read");
    assert_eq!(counted(&place, "web", "pread64"), (0, 0));
    assert_eq!(counted(&place, "web-2", "pread64"), (1, 4096));
    assert_eq!(counted(&place, "a_b", "pread64"), (1, 8192));
    let image = place.path().join(".images/web.raw").display().to_string();
    let args = ["drive", "serve", &image, "--read-only", "-l", "read=1MB/s"];
    let refused = place.say(&args);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("\"web\" is in use"), "{refused:?}");
    // One that was killed leaves nothing that keeps its name.
    signal(first.pid(), "KILL");
    drop(first);
    let again = Serving::start(&place, &images[..1], &["--read-only", "-l", "read=1MB/s"]);
    again.end();
    second.end();
    assert!(
        !place.left().iter().any(|name| name.starts_with("web")),
        "{:?}",
        place.left()
    );
}

#[test]
fn what_two_exports_share_is_in_the_status_and_a_server_that_hangs_is_named() {
    let place = Place::bare();
    let image = noise(4, 40 * 4096);
    let other = [&image[..20 * 4096], &noise(5, 10 * 4096)].concat();
    let images: [(&str, &[u8]); 2] = [("web.raw", &image), ("dev.raw", &other)];
    let serving = Serving::start(&place, &images, &["--group", "lab", "--scan"]);
    let drive = place.json(&["drive", "status", "--json"]);
    let shares = &drive["servers"][0]["shares"]["groups"];
    assert_eq!(shares.as_array().expect("groups").len(), 1, "{shares:#}");
    let of = &shares[0];
    assert_eq!(of["group"], "lab");
    assert_eq!(of["exports"], serde_json::json!(["web", "dev"]));
    assert_eq!(of["known_blocks"], serde_json::json!([40, 30]));
    assert_eq!(of["contents"], 50);
    assert_eq!(of["shared_blocks"], serde_json::json!([[0, 20], [20, 0]]));
    let text = place.say(&["drive", "status"]).out;
    assert!(
        text.contains("group lab: 287 kB known of 2 exports, 205 kB different"),
        "{text}"
    );
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with("web ") && !line.contains('('));
    let row: Vec<&str> = row.expect("a row").split_whitespace().collect();
    assert_eq!(row, ["web", "164", "kB", "0", "B", "81.9", "kB"], "{text}");
    // Each by itself says nothing of the other.
    let alone: [(&str, &[u8]); 1] = [("own.raw", &image)];
    let apart = Serving::start(&place, &alone, &[]);
    signal(serving.pid(), "STOP");
    let said = place.say(&["drive", "status"]);
    signal(serving.pid(), "CONT");
    assert_eq!(said.code, Some(0), "{said:?}");
    let silent = format!("server {} does not answer\n", serving.pid());
    assert!(
        said.out.contains(&silent) && said.out.contains("group own: "),
        "{said:?}"
    );
    apart.end();
    serving.end();
}

/// A daemon that goes on until the test ends.
struct Daemon {
    child: Child,
    client: bonsai_client::Client,
    _state: tempfile::TempDir,
}

impl Daemon {
    fn start(place: &Place, config: &str) -> Self {
        let state = tempfile::tempdir().expect("a folder");
        let path = state.path().join("bonsai.toml");
        std::fs::write(&path, config).expect("written");
        let mut command = place.bonsai(&["daemon", "--config"]);
        let command = command.arg(path).env("BONSAI_STATE_DIR", state.path());
        let child = command.stdout(Stdio::null()).spawn().expect("bonsai");
        let client = bonsai_client::Client::unix(place.path().join("daemon.sock"));
        let daemon = Self {
            child,
            client: client.expect("a client"),
            _state: state,
        };
        let end = Instant::now() + PATIENCE;
        while daemon.client.status().is_err() {
            assert!(Instant::now() < end, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    /// Asks for exports until they are as they should be.
    fn until(&self, right: impl Fn(&Exports) -> bool) -> Exports {
        let end = Instant::now() + PATIENCE;
        loop {
            let exports = self.client.exports().expect("an answer");
            if right(&exports) {
                return exports;
            }
            assert!(Instant::now() < end, "never came to it: {exports:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

#[test]
fn the_daemon_tells_of_exports_and_a_server_that_hangs_holds_up_nobody() {
    let place = Place::bare();
    let image = noise(6, 40 * 4096);
    let images: [(&str, &[u8]); 2] = [("web.raw", &image), ("dev.raw", &image[..20 * 4096])];
    let serving = Serving::start(&place, &images, &["--group", "lab", "--scan"]);
    let daemon = Daemon::start(&place, "");
    let mut client = serving.client("web");
    client.read(0, 8192).expect("read");
    let exports = daemon.until(|of| of.groups.len() == 1);
    let [web, dev] = &exports.exports[..] else {
        panic!("{exports:#?}");
    };
    assert_eq!((&*web.name, &*dev.name), ("web", "dev"));
    assert_eq!(web.service.as_deref(), Some("web"));
    assert_eq!((web.reads, web.read_bytes, web.size), (1, 8192, 40 * 4096));
    assert_eq!((web.server, web.connections), (serving.pid(), 1));
    let sharing = web.sharing.as_ref().expect("it shares");
    assert_eq!(
        (&*sharing.group, sharing.known_blocks, sharing.contents),
        ("lab", 60, 40)
    );
    assert_eq!(sharing.dedup_factor, Some(1.5));
    assert!(web.charged.contains(&format!("process {}", serving.pid())));
    let group = &exports.groups[0];
    assert_eq!(group.exports, ["web", "dev"]);
    assert_eq!(group.shared_blocks, [[0, 20], [20, 0]]);
    assert_eq!(exports.problems, [""; 0]);
    // It is a service like any other, with what it does.
    let end = Instant::now() + PATIENCE;
    loop {
        let services = daemon.client.services().expect("services").services;
        let web = services.iter().find(|service| service.id == "web");
        let read = bonsai_api::Resource::Read;
        let reads = web.and_then(|web| web.resources.iter().find(|of| of.resource == read));
        if reads.is_some_and(|reads| reads.got > 0.0) {
            break;
        }
        assert!(Instant::now() < end, "its reads are not seen: {web:#?}");
        client.read(0, 65_536).expect("read");
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = place.say(&["set", "web", "read=20MB/s"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    place.until("web", |web| web["limits"][0]["asked"] == 2e7);
    // One that hangs is named, and nobody waits for it but who asks for exports.
    let own: [(&str, &[u8]); 1] = [("own.raw", &image)];
    let other = Serving::start(&place, &own, &["--plain"]);
    signal(serving.pid(), "STOP");
    let exports = daemon.until(|of| !of.problems.is_empty() && of.exports.len() == 1);
    let silent = format!("the block server {} of ", serving.pid());
    assert!(exports.problems[0].starts_with(&silent), "{exports:#?}");
    assert_eq!(
        (&*exports.exports[0].name, exports.groups.len()),
        ("own", 0)
    );
    assert!(exports.exports[0].sharing.is_none());
    signal(serving.pid(), "CONT");
    daemon.until(|of| of.exports.len() == 3 && of.problems.is_empty());
    other.end();
    serving.end();
    daemon.until(|of| of.exports.is_empty());
}

#[test]
fn a_daemon_of_the_machine_tells_of_exports_of_other_users() {
    const TEST: &str = "a_daemon_of_the_machine_tells_of_exports_of_other_users";
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        skip(TEST, "being another user needs root");
        return;
    }
    let place = Place::bare();
    let users = tempfile::tempdir().expect("a folder");
    let home = users.path().join(NOBODY.to_string());
    let image = home.join("theirs.raw");
    std::fs::create_dir(&home).expect("a folder");
    std::fs::write(&image, noise(7, 1 << 16)).expect("an image");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(users.path(), open).expect("open");
    for path in [&home, &image] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("theirs");
    }
    let mut command = place.bonsai(&["drive", "serve"]);
    let socket = home.join("socket");
    command
        .arg(&image)
        .arg("--scan")
        .arg("--socket")
        .arg(&socket);
    let runtime = home.join("bonsai");
    command
        .env("BONSAI_RUNTIME_DIR", &runtime)
        .uid(NOBODY)
        .gid(NOBODY);
    let Ok(serving) = Serving::spawn(command, socket) else {
        skip(TEST, "the program cannot be run by another user here");
        return;
    };
    let places = users.path().join("{uid}/bonsai").display().to_string();
    let daemon = Daemon::start(&place, &format!("[daemon]\nusers = [{places:?}]\n"));
    let exports = daemon.until(|of| of.exports.len() == 1 && of.groups.len() == 1);
    let theirs = &exports.exports[0];
    assert_eq!((&*theirs.name, theirs.uid), ("theirs", NOBODY));
    let id = theirs.service.as_deref().expect("a service");
    assert!(id.ends_with(":theirs"), "{id}");
    assert_eq!(exports.groups[0].uid, NOBODY);
    assert_eq!(exports.groups[0].known_blocks, [16]);
    // What pretends to be a server of theirs and is another's is not believed.
    let own: [(&str, &[u8]); 1] = [("own.raw", &[1; 8192])];
    let other = Serving::start(&place, &own, &[]);
    let fake = runtime.join(".drive/7.control");
    let real = place.path().join(format!(".drive/{}.control", other.pid()));
    std::os::unix::fs::symlink(&real, &fake).expect("a link");
    daemon.until(|of| of.exports.len() == 2);
    std::fs::remove_file(&fake).expect("removed");
    std::fs::hard_link(&real, &fake).expect("a link");
    daemon.until(|of| of.exports.len() == 2);
    serving.end();
    other.end();
}

#[test]
fn the_doctor_says_what_a_block_server_can_use() {
    let place = Place::bare();
    let said = place.say(&["doctor", "--json"]);
    let value: Value = serde_json::from_str(&said.out).expect("JSON");
    let all = value["machine"]["capabilities"].as_array().expect("a list");
    let names = [
        "cachestat",
        "RWF_DONTCACHE",
        "RWF_NOWAIT",
        "io_uring",
        "fanotify",
        "OFD locks",
    ];
    for name in names {
        let found = all.iter().find(|of| of["name"] == name);
        let found = found.unwrap_or_else(|| panic!("{name}: {value:#}"));
        assert!(["yes", "no"].contains(&found["state"].as_str().expect("a word")));
        let detail = found["detail"].as_str().expect("words");
        assert!(detail.starts_with("drive serve: "), "{detail}");
    }
    // Locks of open files are older than any kernel that runs this.
    let locks = all.iter().find(|of| of["name"] == "OFD locks");
    assert_eq!(locks.expect("found")["state"], "yes");
}
