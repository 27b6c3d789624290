//! One program, to its end, within a time.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: String,
    /// Its complaints.
    pub stderr: String,
    /// From its start to its end.
    pub elapsed: Duration,
}

impl Finished {
    /// How it ended, in words.
    #[must_use]
    pub fn ending(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown end".to_owned(),
        }
    }
}

/// Why there is no result.
#[derive(Debug)]
pub enum ProcessError {
    /// It cannot be started or waited for.
    Failed(std::io::Error),
    /// It took too long and was ended.
    TooLong(Duration),
}

impl std::fmt::Display for ProcessError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "cannot be run: {error}"),
            Self::TooLong(limit) => write!(f, "did not end within {limit:?} and was killed"),
        }
    }
}

impl std::error::Error for ProcessError {}

/// Runs a command to its end, at most `limit`, without input. It has a process
/// group of its own; what is left of that at the end is killed.
///
/// # Errors
/// It cannot be started, or takes longer.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Finished, ProcessError> {
    let started = Instant::now();
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = started_when_written(command).map_err(ProcessError::Failed)?;
    let group = rustix::process::Pid::from_child(&child);
    let stdout = reader(child.stdout.take());
    let stderr = reader(child.stderr.take());
    let ended = wait(&mut child, started, limit);
    let elapsed = started.elapsed();
    // What it started and left behind would keep the pipes open. Nobody is left
    // in most cases.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let status = match ended {
        Ok(Some(status)) => status,
        Ok(None) => {
            let _ = child.wait();
            return Err(ProcessError::TooLong(limit));
        }
        Err(error) => return Err(ProcessError::Failed(error)),
    };
    Ok(Finished {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
        elapsed,
    })
}

/// Starts a program that this process may have written just now: a child of another test has it open to be written for as long
/// as that has not run its own program (execve(2): ETXTBSY).
fn started_when_written(command: &mut Command) -> std::io::Result<Child> {
    let started = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && started.elapsed() < Duration::from_secs(5) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            child => return child,
        }
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            // What came before an error is worth as much.
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(
    child: &mut Child,
    started: Instant,
    limit: Duration,
) -> std::io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > limit {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
