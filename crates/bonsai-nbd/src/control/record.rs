//! Recordings that are asked for over the control socket.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

use super::{Ask, ENDING, Heard, MOST_ASKED, PATIENCE, Recordings, ServerStatus, ask_all, lock};
use crate::export::Export;
use crate::record::{Output, Recording};

/// Recordings at a time, at most: each may take 400 MiB, for the numbers of blocks and contents (`record.rs`).
const MOST_RECORDINGS: usize = 4;
/// How long a recorder may take none of its trace.
const SLOWEST: Duration = Duration::from_secs(10);

/// What a recorder is told before its trace.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// These exports, in the order of their volumes.
    Recording(Vec<String>),
    /// Why not.
    Refused(String),
}

pub(super) fn say(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

pub(super) fn record(
    mut stream: UnixStream,
    names: &[String],
    exports: &[Arc<Export>],
    recordings: &Recordings,
) -> io::Result<()> {
    let mut wanted: Vec<Arc<Export>> = Vec::new();
    for name in names {
        let found = exports.iter().find(|export| export.info().name == *name);
        match found {
            Some(export) if !wanted.iter().any(|other| Arc::ptr_eq(other, export)) => {
                wanted.push(Arc::clone(export));
            }
            Some(_) => {}
            None => {
                let why = format!("{name}: there is no such export");
                return say(&mut stream, &Answer::Refused(why));
            }
        }
    }
    let mut going = lock(recordings);
    let Some(going) = going.as_mut() else {
        return Ok(());
    };
    going.retain(|recording| !recording.is_over());
    if going.len() >= MOST_RECORDINGS {
        let why = format!(
            "{MOST_RECORDINGS} recordings are at work already, as many as there may be; end one"
        );
        return say(&mut stream, &Answer::Refused(why));
    }
    stream.set_write_timeout(Some(SLOWEST))?;
    let names = wanted.iter().map(|export| export.info().name.clone());
    let listener = Listener {
        stream: stream.try_clone()?,
        greeting: Some(Answer::Recording(names.collect())),
    };
    // How it ended, whoever asked for it sees.
    match Recording::start(&wanted, listener, |_| {}) {
        Ok(recording) => going.push(recording),
        Err(error) => say(&mut stream, &Answer::Refused(error.to_string()))?,
    }
    Ok(())
}

/// Whoever records over the socket.
struct Listener {
    stream: UnixStream,
    /// Said before the first byte of the trace.
    greeting: Option<Answer>,
}

impl io::Write for Listener {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(answer) = self.greeting.take() {
            say(&mut self.stream, &answer)?;
        }
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Listener {
    fn is_left(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
    }
}

/// Has a server of a folder record these exports of its own: gives the stream on which the trace comes, as a `.btr` file,
/// until [`UnixStream::shutdown`] for writing.
///
/// # Errors
/// No server, or not the same one, has exports of these names; it refuses, or does not answer.
pub fn record_from(folder: &Path, names: &[String]) -> Result<UnixStream, String> {
    let servers = ask_all::<ServerStatus>(folder, Ask::Status, PATIENCE, |_| true);
    let servers = servers.map_err(|error| format!("{}: {error}", folder.display()))?;
    let servers: Vec<_> = servers.into_iter().filter_map(|of| of.answer).collect();
    let mut has = servers.iter().filter(|server| {
        let has = |name: &String| server.exports.iter().any(|export| export.name == *name);
        names.iter().all(has)
    });
    let server = match (has.next(), has.next()) {
        (Some(server), None) => server,
        (Some(one), Some(other)) => {
            return Err(format!(
                "{}: servers {} and {} have it; which one is meant cannot be said",
                names.join(", "),
                one.pid,
                other.pid
            ));
        }
        (None, _) => return Err(nobody(&servers, names)),
    };
    let path = folder.join(format!("{}.{ENDING}", server.pid));
    asked(&path, names).map_err(|error| format!("server {}: {error}", server.pid))?
}

fn nobody(servers: &[ServerStatus], names: &[String]) -> String {
    let all: Vec<&str> = servers
        .iter()
        .flat_map(|server| &server.exports)
        .map(|export| export.name.as_str())
        .collect();
    let names = names.join(", ");
    match all.is_empty() {
        true => format!("{names}: no images are served (bonsai drive serve)"),
        false => format!("{names}: no server has it; there are {}", all.join(", ")),
    }
}

fn asked(path: &Path, names: &[String]) -> io::Result<Result<UnixStream, String>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let exports = names.to_vec();
    let mut wish = serde_json::to_vec(&Heard::Record { exports })?;
    wish.push(b'\n');
    stream.write_all(&wish)?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MOST_ASKED && stream.read(&mut byte)? > 0 && byte != *b"\n" {
        line.extend(byte);
    }
    stream.set_read_timeout(None)?;
    match serde_json::from_slice(&line) {
        Ok(Answer::Recording(_)) => Ok(Ok(stream)),
        Ok(Answer::Refused(why)) => Ok(Err(why)),
        // A server of a version before gives its status.
        Err(_) => Err(io::Error::other("it cannot record; start it anew")),
    }
}
