//! Exports of the block server as services: what they do is counted, shown and limited.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::nbd::{Client, TRIM};
use crate::support::{Place, signal};

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
        let child = command.stderr(Stdio::piped()).process_group(0).spawn();
        let mut child = child.expect("bonsai");
        let err = child.stderr.take().expect("standard error");
        let mut lines = BufReader::new(err).lines();
        let mut said = Vec::new();
        loop {
            let line = lines.next().and_then(Result::ok);
            let Some(line) = line else {
                panic!("it does not serve: {said:?}");
            };
            if line.contains("is served at") {
                break;
            }
            said.push(line);
        }
        std::thread::spawn(move || lines.count());
        Self { child, socket }
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
