//! A process that works while it is put under limits, and `bonsai attach` beside it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Finished, finish};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::scratch;
use crate::probe::PATIENCE;

/// A process that shows how far it is, in a file.
pub(crate) struct Busy {
    child: Child,
    file: File,
}

/// What it shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) sent: u64,
    pub(crate) got: u64,
    pub(crate) wrong: u64,
    pub(crate) rounds: u64,
}

impl Busy {
    pub(crate) fn start(program: &Path, name: &str, how: &str) -> Self {
        let path = scratch().join(format!("{name}.seen"));
        let _ = std::fs::remove_file(&path);
        let child = Command::new(program)
            .arg(&path)
            .arg(how)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let began = Instant::now();
        let file = loop {
            assert!(began.elapsed() < PATIENCE, "{name} does not begin");
            if let Ok(file) = File::open(&path) {
                break file;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let busy = Self { child, file };
        busy.goes_on(name);
        busy
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("ours");
    }

    pub(crate) fn shown(&self) -> Shown {
        let mut bytes = [0; 48];
        // Not all of it may be there yet.
        let _ = self.file.read_at(&mut bytes, 0);
        let (words, _) = bytes.as_chunks::<8>();
        let word = |i: usize| words.get(i).map_or(0, |word| u64::from_le_bytes(*word));
        Shown {
            sent: word(0),
            got: word(1),
            wrong: word(2),
            rounds: word(3),
        }
    }

    /// It moves bytes, and gets on otherwise.
    pub(crate) fn goes_on(&self, what: &str) {
        let (began, before) = (Instant::now(), self.shown());
        loop {
            let now = self.shown();
            if now.sent > before.sent && now.got > before.got && now.rounds > before.rounds {
                return;
            }
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
            assert!(
                stat.is_ok_and(|stat| !stat.contains(") Z ")),
                "{what}: it has ended: {now:?}"
            );
            assert!(began.elapsed() < PATIENCE, "{what}: it hangs: {now:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// It ends, and has found nothing wrong.
    pub(crate) fn ends_well(mut self, what: &str) {
        drop(self.child.stdin.take());
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("ours") {
                Some(status) => break status,
                None if began.elapsed() > PATIENCE => panic!("{what}: it does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut text).expect("text");
        }
        assert!(status.success(), "{what}: {status}, {text}");
        assert_eq!(self.shown().wrong, 0, "{what}: {text}");
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // A test that fails leaves nothing behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `bonsai attach` that stays.
pub(crate) struct Attacher {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Attacher {
    /// Starts it, and waits until it says that the limits are in force.
    pub(crate) fn start(bonsai: &Bonsai, args: &[&str]) -> Self {
        let mut command = bonsai.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("bonsai");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("text");
        assert!(line.contains("under limits as the service"), "{line}");
        Self { child, stderr }
    }

    /// Waits for its end: what else it says.
    pub(crate) fn ends(mut self) -> String {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {text}");
        text
    }

    /// The same, after a Ctrl-C.
    pub(crate) fn interrupt(self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("ours");
        self.ends()
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        // A test that fails leaves nobody behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `bonsai ARGS`, to its end.
pub(crate) fn run(bonsai: &Bonsai, args: &[&str]) -> Finished {
    finish(&mut bonsai.command(args), PATIENCE).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

/// The same, with success.
pub(crate) fn runs(bonsai: &Bonsai, args: &[&str]) {
    let finished = run(bonsai, args);
    assert!(finished.status.success(), "{args:?}: {finished:?}");
}
