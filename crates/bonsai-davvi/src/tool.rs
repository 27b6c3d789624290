//! Other people's programs as child processes: argument by argument, never by a shell, ended when they
//! make no progress and when whoever started them dies.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// The most bytes of a line that are kept.
const MOST_LINE: u64 = 64 << 10;
/// How long a program may take to end once it has said everything.
const END: Duration = Duration::from_secs(30);

/// A program and how long it may take.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    /// Its name, looked for in `PATH`.
    pub(crate) program: &'static str,
    pub(crate) arguments: Vec<OsString>,
    /// Where it runs.
    pub(crate) folder: Option<&'a Path>,
    /// The longest time between two steps forward.
    pub(crate) patience: Duration,
    /// The longest time in all.
    pub(crate) most: Duration,
}

/// What a line of output says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is further than before.
    Forward,
    /// Nothing of that.
    None,
}

impl Tool<'_> {
    /// Runs it to its end, and gives each line of its output to `line`. Returns what it complained of,
    /// if anything, though it succeeded: the last line.
    pub(crate) fn run(&self, mut line: impl FnMut(&str) -> Step) -> Result<Option<String>, Error> {
        let mut child = self.spawn()?;
        let outcome = self.follow(&mut child.0, &mut line);
        let complaint = child.complaint();
        match outcome? {
            status if status.success() => Ok(complaint),
            status => Err(Error::Program {
                program: self.program,
                last_line: complaint.unwrap_or_else(|| status.to_string()),
            }),
        }
    }

    fn spawn(&self) -> Result<Ended, Error> {
        let missing = || Error::Missing {
            program: self.program,
            package: "ffmpeg",
        };
        let program = in_path(OsStr::new(self.program)).ok_or_else(missing)?;
        // It shall not outlive whoever started it, however that ends; prctl(2), PR_SET_PDEATHSIG.
        let mut command = match in_path(OsStr::new("setpriv")) {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(&program);
                command
            }
            None => Command::new(&program),
        };
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(folder) = self.folder {
            command.current_dir(folder);
        }
        let mut child = command
            .spawn()
            .map_err(Error::file(&program, "cannot be started"))?;
        let errors = child.stderr.take();
        let complaints = thread::spawn(move || errors.and_then(last_line));
        Ok(Ended(child, Some(complaints)))
    }

    fn follow(
        &self,
        child: &mut Child,
        line: &mut impl FnMut(&str) -> Step,
    ) -> Result<ExitStatus, Error> {
        let (sender, lines) = mpsc::sync_channel(64);
        let output = child.stdout.take();
        thread::spawn(move || {
            for line in output.into_iter().flat_map(lines_of) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let end = Instant::now() + self.most;
        let mut moved = Instant::now();
        loop {
            let until = end.min(moved + self.patience);
            let left = until.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(text) if line(&text) == Step::Forward => moved = Instant::now(),
                Ok(_) if Instant::now() < until => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(_) | Err(RecvTimeoutError::Timeout) => return Err(self.stuck(until, moved)),
            }
        }
        let end = Instant::now() + END;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
                _ => return Err(self.stuck(end, end - END)),
            }
        }
    }

    fn stuck(&self, until: Instant, since: Instant) -> Error {
        Error::Stuck {
            program: self.program,
            seconds: until.saturating_duration_since(since).as_secs(),
        }
    }
}

/// A child that does not outlive this value, and who reads its complaints.
#[derive(Debug)]
struct Ended(Child, Option<thread::JoinHandle<Option<String>>>);

impl Ended {
    fn end(&mut self) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn complaint(&mut self) -> Option<String> {
        self.end();
        self.1
            .take()
            .and_then(|reader| reader.join().ok())
            .flatten()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.end();
    }
}

/// A program in one of the folders of `PATH`.
pub(crate) fn in_path(name: &OsStr) -> Option<std::path::PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

fn lines_of(from: impl Read) -> impl Iterator<Item = String> {
    let mut reader = BufReader::new(from);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let read = reader.by_ref().take(MOST_LINE).read_until(b'\n', &mut line);
        match read {
            Ok(n) if n > 0 => Some(String::from_utf8_lossy(&line).trim_end().to_owned()),
            _ => None,
        }
    })
}

/// The last line with anything on it, without the memory addresses of ffmpeg's contexts; and the one before,
/// where the last one says no more than that the file is not right.
fn last_line(from: impl Read) -> Option<String> {
    let (mut before, mut last) = (None, None);
    for line in lines_of(from).filter(|line| !line.trim().is_empty()) {
        before = last.replace(line);
    }
    let last = said(&last?);
    let text = match (last.ends_with(INVALID), before) {
        (true, Some(before)) => format!("{INVALID} ({})", said(&before)),
        (true, None) => INVALID.to_owned(),
        (false, _) => last,
    };
    Some(text.chars().take(400).collect())
}

/// What ffmpeg says of every file that it cannot read.
const INVALID: &str = "Invalid data found when processing input";

fn said(line: &str) -> String {
    let said = match line.split_once("] ") {
        Some((context, said)) if context.starts_with('[') && context.contains(" @ 0x") => said,
        _ => line,
    };
    said.replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(program: &'static str, arguments: &[&str], patience: Duration) -> Tool<'static> {
        Tool {
            program,
            arguments: arguments.iter().map(OsString::from).collect(),
            folder: None,
            patience,
            most: Duration::from_secs(20),
        }
    }

    #[test]
    fn a_program_that_makes_no_progress_is_ended() {
        let start = Instant::now();
        let stuck = tool("sleep", &["600"], Duration::from_millis(50)).run(|_| Step::None);
        assert!(
            matches!(
                stuck,
                Err(Error::Stuck {
                    program: "sleep",
                    ..
                })
            ),
            "{stuck:?}"
        );
        assert!(start.elapsed() < Duration::from_secs(20));
        // Who talks without getting anywhere, too.
        let stuck = tool("yes", &[], Duration::from_millis(50)).run(|_| Step::None);
        assert!(matches!(stuck, Err(Error::Stuck { .. })), "{stuck:?}");
    }

    #[test]
    fn a_program_that_fails_is_quoted_with_its_last_line() {
        let failed = tool("ls", &["/nowhere/at/all"], Duration::from_secs(10)).run(|_| Step::None);
        let said = failed.expect_err("it is not there").to_string();
        assert!(
            said.starts_with("ls failed: ") && said.contains("/nowhere/at/all"),
            "{said}"
        );
        let missing = tool("no-such-program", &[], Duration::from_secs(1)).run(|_| Step::None);
        assert!(matches!(missing, Err(Error::Missing { .. })));
    }

    #[test]
    fn lines_are_read_in_order() {
        let mut lines = Vec::new();
        let done = tool("seq", &["3"], Duration::from_secs(10)).run(|line| {
            lines.push(line.to_owned());
            Step::Forward
        });
        assert_eq!(done.expect("it counts"), None);
        assert_eq!(lines, ["1", "2", "3"]);
    }

    #[test]
    fn contexts_are_left_out_of_complaints() {
        let line = "first\n[mov,mp4 @ 0x55d0] moov atom not found\n\n";
        assert_eq!(
            last_line(line.as_bytes()).as_deref(),
            Some("moov atom not found")
        );
        assert_eq!(last_line("[a] b".as_bytes()).as_deref(), Some("[a] b"));
        assert_eq!(last_line("\n".as_bytes()), None);
        let both =
            "[mov @ 0x1] moov atom not found\nfile:/x: Invalid data found when processing input\n";
        let said = "Invalid data found when processing input (moov atom not found)";
        assert_eq!(last_line(both.as_bytes()).as_deref(), Some(said));
    }
}
