//! A `bonsai drive serve` that goes on.

use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::fs::{Advice, fadvise, fdatasync};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::support::{Place, Said, signal};

/// A server, which is killed if the test fails.
pub(crate) struct Drive {
    child: Child,
    /// While somebody reads it.
    stderr: Option<BufReader<ChildStderr>>,
    /// What it said before it served.
    said: String,
    /// Of each export, over each socket.
    pub(crate) uris: Vec<String>,
    pub(crate) socket: PathBuf,
}

impl Drive {
    /// Starts it, and waits until it serves. The last argument is the last image.
    pub(crate) fn start(place: &Place, args: &[&str]) -> Self {
        Self::of(place.bonsai(&[&["drive", "serve"], args].concat()), args)
    }

    /// The same by a command that ends up as it.
    pub(crate) fn of(mut command: Command, args: &[&str]) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("bonsai");
        let mut stderr = BufReader::new(child.stderr.take().expect("standard error"));
        let (mut said, mut uris) = (String::new(), Vec::new());
        let last = args.last().copied().unwrap_or_default();
        let both = args.contains(&"--listen") && args.contains(&"--socket");
        loop {
            let start = said.len();
            let read = stderr.read_line(&mut said).expect("its words");
            assert!(read > 0, "it ended: {said}{:?}", child.wait());
            let Some((of, uri)) = said[start..].split_once(" is served at ") else {
                continue;
            };
            uris.push(uri.trim_end().to_owned());
            // The last image has a line for each socket.
            if of.ends_with(last)
                && (!both || uri.starts_with("nbd://") || uri.starts_with("nbds://"))
            {
                break;
            }
        }
        let socket = uris[0].split_once("?socket=");
        let socket = socket.map_or_else(PathBuf::new, |(_, path)| path.into());
        Self {
            child,
            stderr: Some(stderr),
            said,
            uris,
            socket,
        }
    }

    /// Reads on until it has said these words.
    pub(crate) fn wait_for(&mut self, words: &str) -> &str {
        let stderr = self.stderr.as_mut().expect("it is listened to");
        while !self.said.contains(words) {
            let read = stderr.read_line(&mut self.said).expect("its words");
            assert!(read > 0, "it ended: {}", self.said);
        }
        &self.said
    }

    /// What follows these words in what it said before it served.
    pub(crate) fn heard(&self, words: &str) -> &str {
        let (_, rest) = self.said.split_once(words).expect(words);
        rest.lines().next().unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Descriptors and threads that it has.
    pub(crate) fn holds(&self) -> [usize; 2] {
        ["fd", "task"].map(|what| {
            let folder = format!("/proc/{}/{what}", self.pid());
            std::fs::read_dir(folder).expect("a process").count()
        })
    }

    /// The same without clients, once it has all of its own threads: it has when it greets a client.
    pub(crate) fn holds_at_rest(&self) -> [usize; 2] {
        let greet = |mut stream: Box<dyn Read>| stream.read_exact(&mut [0; 18]).expect("greeted");
        match self.socket.exists() {
            true => greet(Box::new(
                UnixStream::connect(&self.socket).expect("listens"),
            )),
            false => {
                let address = self.uris[0].split('/').nth(2).expect("an address");
                greet(Box::new(TcpStream::connect(address).expect("listens")));
            }
        }
        // That client's thread goes.
        let held = std::iter::repeat_with(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.holds()
        });
        held.take(50)
            .min_by_key(|[_, threads]| *threads)
            .expect("50")
    }

    /// Takes an image out of the page cache by the server's own descriptor (pidfd_getfd(2)), so that its lease stays.
    pub(crate) fn evict(&self, image: &str) {
        let image = std::fs::canonicalize(image).expect("an image");
        let folder = format!("/proc/{}/fd", self.pid());
        let entries = std::fs::read_dir(folder).expect("a process");
        let number = entries.flatten().find_map(|entry| {
            let is_it = std::fs::read_link(entry.path()).is_ok_and(|to| to == image);
            let name = entry.file_name();
            is_it.then(|| name.to_str()?.parse().ok()).flatten()
        });
        let process = Pid::from_child(&self.child);
        let process = pidfd_open(process, PidfdFlags::empty()).expect("a process");
        let number = number.expect("the image is open");
        let file = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).expect("its descriptor");
        fdatasync(&file).expect("on the disk");
        fadvise(&file, 0, None, Advice::DontNeed).expect("out of the page cache");
    }

    /// Nobody reads what it says from now on.
    pub(crate) fn is_left_talking(&mut self) {
        self.stderr = None;
    }

    /// Sends a signal, and waits for its end.
    pub(crate) fn end(mut self, name: &str) -> Said {
        signal(self.pid(), name);
        let status = self.child.wait().expect("ended");
        let mut err = std::mem::take(&mut self.said);
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut err).expect("its words");
        }
        Said {
            code: status.code(),
            out: String::new(),
            err,
        }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        // It fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image with a hole in it.
pub(crate) fn image(place: &Place, name: &str, size: u64) -> String {
    let path = place.path().join(name);
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(size).expect("made long");
    path.display().to_string()
}
