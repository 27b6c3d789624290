//! Processes that end: with their handle at the latest.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

/// Set when a signal has asked this program to end: nothing is waited for then.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How long nobody looks at [`INTERRUPTED`].
const TURN: Duration = Duration::from_millis(100);

/// Gives up waiting when `interrupted` is set.
pub(crate) fn watch(interrupted: Arc<AtomicBool>) {
    // Whoever listens twice listens to the same signals.
    let _ = INTERRUPTED.set(interrupted);
}

fn check_interrupted() -> anyhow::Result<()> {
    let is_set = INTERRUPTED
        .get()
        .is_some_and(|flag| flag.load(Ordering::Relaxed));
    anyhow::ensure!(!is_set, "interrupted");
    Ok(())
}

/// A process of a measurement, in a process group of its own. When it is dropped,
/// the group is asked to end, and after a second killed.
#[derive(Debug)]
pub(crate) struct Running {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    /// Read, and not given out yet.
    pending: Vec<u8>,
}

impl Running {
    /// Starts `command` with pipes to its standard input and output.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::spawn(command)
    }

    /// Starts `command` without input and output.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start_silent(command: &mut Command) -> anyhow::Result<Self> {
        let null = || Stdio::null();
        Self::spawn(command.stdin(null()).stdout(null()).stderr(null()))
    }

    fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("{name}: cannot be started"))?;
        Ok(Self {
            name,
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            child,
            pending: Vec::new(),
        })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        use std::io::Write;
        let stdin = self
            .stdin
            .as_mut()
            .with_context(|| format!("{}: takes no input", self.name))?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("{}: has ended", self.name))
    }

    /// The next line of its standard output.
    ///
    /// # Errors
    /// It ends, or says nothing for so long.
    pub(crate) fn line(&mut self, patience: Duration) -> anyhow::Result<String> {
        let end = Instant::now() + patience;
        loop {
            if let Some(at) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=at).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                anyhow::ensure!(!line.starts_with("{\"error\""), "{}: {line}", self.name);
                return Ok(line);
            }
            anyhow::ensure!(self.fill(end)?, "{}: ended without an answer", self.name);
        }
    }

    /// Reads what is there; `false` at the end of its output.
    fn fill(&mut self, end: Instant) -> anyhow::Result<bool> {
        let name = &self.name;
        let stdout = self
            .stdout
            .as_mut()
            .with_context(|| format!("{name}: gives no output"))?;
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left.min(TURN)).unwrap_or_default();
        check_interrupted()?;
        let mut fds = [PollFd::new(stdout, PollFlags::IN)];
        let ready = match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => ready,
            // The caller looks at the clock and at the signal.
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno).with_context(|| format!("{name}: poll")),
        };
        if ready == 0 {
            anyhow::ensure!(!left.is_zero(), "{name}: no answer in time");
            return Ok(true);
        }
        let mut buffer = [0; 65_536];
        let n = stdout
            .read(&mut buffer)
            .with_context(|| format!("{name}: cannot be read"))?;
        self.pending.extend_from_slice(&buffer[..n]);
        Ok(n > 0)
    }

    /// What it writes from now on, for somebody else to read.
    ///
    /// # Errors
    /// It gives no output.
    pub(crate) fn take_output(&mut self) -> anyhow::Result<ChildStdout> {
        let taken = self.stdout.take();
        taken.with_context(|| format!("{}: gives no output", self.name))
    }

    /// Everything that it says until it ends.
    ///
    /// # Errors
    /// It does not end in time, or badly.
    pub(crate) fn finish(mut self, patience: Duration) -> anyhow::Result<String> {
        let end = Instant::now() + patience;
        self.stdin = None;
        while self.fill(end)? {}
        let code = self.wait(end)?;
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        anyhow::ensure!(
            code.success() && !text.starts_with("{\"error\""),
            "{}: {code}: {text}",
            self.name
        );
        Ok(text)
    }

    /// Asks it to end, with all in its group; what it says until then.
    ///
    /// # Errors
    /// It does not end in time.
    pub(crate) fn end(mut self, patience: Duration) -> anyhow::Result<String> {
        let end = Instant::now() + patience;
        self.signal(Signal::TERM);
        while self.fill(end)? {}
        self.wait(end)?;
        Ok(String::from_utf8_lossy(&self.pending).into_owned())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end in time.
    pub(crate) fn wait_for(mut self, patience: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + patience;
        loop {
            check_interrupted()?;
            let turn = (Instant::now() + TURN).min(end);
            if self.wait(turn).is_ok() {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < end, "{}: does not end in time", self.name);
        }
    }

    fn wait(&mut self, end: Instant) -> anyhow::Result<std::process::ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            anyhow::ensure!(Instant::now() < end, "{}: does not end in time", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = pid {
            // Nobody is left who could be asked.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_alive() {
            // Whatever it has left behind in its group.
            self.signal(Signal::KILL);
            return;
        }
        self.stdin = None;
        self.signal(Signal::TERM);
        if self.wait(Instant::now() + Duration::from_secs(1)).is_err() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
        self.signal(Signal::KILL);
    }
}

/// Whether a program of that name is in `PATH`.
pub(crate) fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH");
    bonsai_host::lookup_program(name.as_ref(), path.as_deref()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        Running::start(Command::new("sh").args(["-c", script])).expect("sh")
    }

    #[test]
    fn a_conversation() {
        let mut cat = Running::start(&mut Command::new("cat")).expect("cat");
        for text in ["a", "b c"] {
            cat.tell(text).expect("told");
            assert_eq!(cat.line(Duration::from_secs(5)).expect("a line"), text);
        }
        assert_eq!(cat.finish(Duration::from_secs(5)).expect("ended"), "");
    }

    #[test]
    fn what_is_said_at_the_end_is_heard() {
        let mut child = shell("trap 'echo bye; exit' TERM; echo up; while :; do sleep 0.01; done");
        child.line(Duration::from_secs(5)).expect("a line");
        let said = child.end(Duration::from_secs(5)).expect("ended");
        assert_eq!(said, "bye\n");
    }

    #[test]
    fn silence_and_bad_ends_are_errors() {
        let mut silent = shell("sleep 60");
        silent
            .line(Duration::from_millis(20))
            .expect_err("says nothing");
        let pid = silent.pid();
        drop(silent);
        assert!(bonsai_host::proc::process(pid).expect("read").is_none());
        shell("exit 3")
            .finish(Duration::from_secs(5))
            .expect_err("code 3");
        shell("echo '{\"error\":\"x\"}'")
            .line(Duration::from_secs(5))
            .expect_err("an error");
    }

    #[test]
    fn the_group_ends_with_its_leader() {
        let mut leader = shell("sleep 61 & echo $!; wait");
        let child: u32 = leader
            .line(Duration::from_secs(5))
            .expect("a pid")
            .parse()
            .expect("a number");
        drop(leader);
        let state = || {
            let process = bonsai_host::proc::process(child).expect("read");
            process.map(|process| process.state)
        };
        // Killed, it still has to get round to it.
        let end = Instant::now() + Duration::from_secs(5);
        while !matches!(state(), None | Some('Z')) {
            assert!(Instant::now() < end, "{:?}", state());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
