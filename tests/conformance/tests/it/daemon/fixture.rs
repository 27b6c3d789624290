//! A daemon of a test's own.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Finished, finish};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fixture::{PATIENCE, scratch};

/// What the machine of these tests has: bytes read a second.
pub(super) const RATE: u64 = 20_000_000;

/// A process that ends with its test.
#[derive(Debug)]
pub(super) struct Ends(pub(super) Child);

impl Ends {
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.0), signal);
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        drop(self.0.wait());
    }
}

/// Bonsai with a runtime directory, a state directory and a configuration of its own.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) bonsai: Bonsai,
    folder: tempfile::TempDir,
    daemon: Option<Ends>,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn read(mut stream: impl Read) -> Self {
        let mut bytes = Vec::new();
        // A connection that is ended early has said what it will.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

impl Ring {
    /// Nothing runs yet.
    pub(super) fn new(config: &str) -> Self {
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai");
        let ring = Self {
            bonsai: Bonsai::find(&built).unwrap_or_else(|error| panic!("{error}")),
            folder: tempfile::tempdir_in(scratch()).expect("a folder"),
            daemon: None,
        };
        ring.configure(config);
        ring
    }

    /// With a daemon that answers.
    pub(super) fn started(config: &str) -> Self {
        let mut ring = Self::new(config);
        ring.start(&[]);
        ring
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.path().join("bonsai.toml")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(super) fn configure(&self, text: &str) {
        // As an editor does: the new file in the place of the old one.
        let new = self.config().with_extension("new");
        fs::write(&new, text).expect("a file");
        fs::rename(new, self.config()).expect("a file");
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.bonsai.command(args);
        command.env("BONSAI_STATE_DIR", self.state());
        command
    }

    pub(super) fn daemon_command(&self, args: &[&str]) -> Command {
        let mut command = self.command(&["daemon", "--config"]);
        command.arg(self.config()).args(args);
        command
    }

    /// Starts the daemon and waits until it says that it listens; what it says.
    pub(super) fn start(&mut self, args: &[&str]) -> String {
        self.start_by(self.daemon_command(args))
    }

    /// The same by a command of the test's own.
    pub(super) fn start_by(&mut self, mut command: Command) -> String {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = child.stdout.take().expect("its output");
        self.daemon = Some(Ends(child));
        let mut text = String::new();
        let mut byte = [0];
        while !text.ends_with('\n') {
            assert_eq!(said.read(&mut byte).unwrap_or(0), 1, "it ended: {text:?}");
            text.push(char::from(byte[0]));
        }
        text
    }

    /// Sends the daemon a signal.
    pub(super) fn signal(&self, signal: Signal) {
        self.daemon.as_ref().expect("it runs").signal(signal);
    }

    /// Waits until the daemon has ended by itself; its exit code.
    pub(super) fn ended(&mut self) -> Option<i32> {
        let mut daemon = self.daemon.take().expect("it runs");
        let start = Instant::now();
        loop {
            if let Some(status) = daemon.0.try_wait().expect("known") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it never ends");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the daemon with a signal.
    pub(super) fn end(&mut self, signal: Signal) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.signal(signal);
        drop(daemon.0.wait());
    }

    pub(super) fn say(&self, args: &[&str]) -> Finished {
        finish(&mut self.command(args), PATIENCE).expect("it ends")
    }

    pub(super) fn done(&self, args: &[&str]) -> String {
        let said = self.say(args);
        assert!(said.status.success(), "{args:?}: {}", said.stderr);
        said.stdout
    }

    /// What is refused: exit code 2, and one sentence with that in it.
    pub(super) fn refused(&self, args: &[&str], expected: &str) {
        let said = self.say(args);
        assert_eq!(said.status.code(), Some(2), "{args:?}: {said:?}");
        assert!(said.stderr.contains(expected), "{args:?}: {}", said.stderr);
        assert_eq!(said.stderr.matches('\n').count(), 1, "{}", said.stderr);
    }

    /// A service that reads as fast as it may.
    pub(super) fn reader(&self, name: &str) -> Ends {
        let mut command = self.command(&["run", "--name", name, "--"]);
        command.args(["/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=16k"]);
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        let reader = Ends(command.spawn().expect("it starts"));
        self.until(&format!("{name} runs"), |ring| {
            ring.say(&["stats", name, "--json"]).status.success()
        });
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

    /// Waits until something is so.
    pub(super) fn until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            if start.elapsed() > PATIENCE {
                let status = self.say(&["status"]);
                let shares = self.say(&["shares"]);
                panic!("never: {what}: {status:?} {shares:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.bonsai.services().join("daemon.sock")
    }

    /// Sends bytes as they are, and reads to the end.
    pub(super) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = UnixStream::connect(self.socket()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        // One that is refused early may not be written to its end.
        let _ = stream.write_all(bytes);
        Answer::read(stream)
    }

    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.raw(request(method, path, &[], body).as_bytes())
    }

    pub(super) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    /// One resource of a service, as the daemon shows it; nothing while it does not know it.
    pub(super) fn of(&self, service: &str, resource: &str) -> Value {
        let answer = self.ask("GET", &format!("/v1/services/{service}"), "");
        if answer.status == 404 {
            return Value::Null;
        }
        let view = answer.json();
        let resources = view["resources"].as_array().cloned().unwrap_or_default();
        let of_it = |of: &&Value| of["resource"] == resource;
        resources.iter().find(of_it).cloned().unwrap_or_default()
    }
}

/// A request over TCP.
pub(super) fn over_tcp(address: &str, request: &str) -> Answer {
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(request.as_bytes()).expect("sent");
    Answer::read(stream)
}

/// A request after which the connection ends.
pub(super) fn request(method: &str, path: &str, headers: &[&str], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|header| header.starts_with("host:")) {
        text.push_str("host: localhost\r\n");
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
        if !headers
            .iter()
            .any(|header| header.starts_with("content-type:"))
        {
            text.push_str("content-type: application/json\r\n");
        }
    }
    for header in headers {
        text.push_str(&format!("{header}\r\n"));
    }
    format!("{text}\r\n{body}")
}
