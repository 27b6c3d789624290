//! What a server tells of itself, over a socket of its own.
//!
//! One connection, one answer. Who says nothing, and closes its own side or waits a moment, gets a line of JSON with the
//! [`ServerStatus`], and the end. Who says `record ["NAME", ...]` in a line gets a line of JSON, `{"recording":[...]}` or
//! `{"refused":"..."}`, and in the first case a trace of these exports from then on ([`crate::record`]), which ends
//! once it closes its side or goes. Only the server's own user and root are answered.

mod record;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::export::Export;
use crate::record::{Recording, RecordingStatus};
use crate::sharing::Member;
use record::{Answer, say};

pub use record::record_from;

/// How names of control sockets end.
const ENDING: &str = "control";
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it takes until one who says nothing is taken to want the status.
const SILENCE: Duration = Duration::from_millis(100);
/// The longest line that is heard, in bytes: names of exports, each at most 4 KiB.
const LONGEST: usize = 1 << 16;

/// A server.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServerStatus {
    /// Its process.
    pub pid: u32,
    /// What it serves.
    pub exports: Vec<ExportStatus>,
}

/// An export; numbers are from the server's start on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ExportStatus {
    /// What clients ask for.
    pub name: String,
    /// The path of its image.
    pub image: String,
    /// In bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Clients now.
    pub connections: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that the page cache had.
    pub at_once: u64,
    /// Writes, zeroes and trims.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Flushes, and writes with FUA.
    pub flushes: u64,
    /// Requests that made no sense.
    pub refused: u64,
    /// Requests that failed below.
    pub failed: u64,
    /// What it shares; `None` for a plain one.
    pub sharing: Option<SharingStatus>,
    /// What is wrong with the image.
    pub wrong: Option<String>,
    /// What is recorded of it; `None` while nothing is.
    #[serde(default)]
    pub recording: Option<RecordingStatus>,
}

/// What an export shares with others, and why reads were not redirected (in blocks of 4 KiB).
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SharingStatus {
    /// Images of the same group may share.
    pub group: String,
    /// Reads that needed no disk, as their blocks were elsewhere or zero.
    pub reads_saved: u64,
    /// Bytes that came from the page cache in another block's place.
    pub redirected_bytes: u64,
    /// Bytes that were answered as zeroes.
    pub zero_bytes: u64,
    /// Not redirected: not known what is in it.
    pub not_known: u64,
    /// Not redirected: it is the one that others go to, or the only one.
    pub leads: u64,
    /// Not redirected: the page cache has none of them.
    pub cold: u64,
    /// Not redirected: the read would have become too many.
    pub split: u64,
    /// Not redirected: somebody wrote meanwhile.
    pub raced: u64,
    /// Not redirected: the content was another than was known.
    pub wrong: u64,
    /// Not learned: too much to learn.
    pub not_learned: u64,
    /// How often somebody else wrote to the image.
    pub outside_writes: u64,
    /// Of all images of the server: blocks that are known.
    pub known_blocks: u64,
    /// Of all images of the server: different contents of these.
    pub contents: u64,
    /// Of all images of the server: bytes of the map.
    pub metadata_bytes: u64,
    /// The most that it may take.
    pub metadata_limit: u64,
}

/// A control socket; it goes with this, and recordings that were asked for over it end.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    recordings: Recordings,
}

/// Those that go on; `None` at the end, so that none begins any more.
type Recordings = Arc<Mutex<Option<Vec<Recording>>>>;

impl Drop for Control {
    fn drop(&mut self) {
        // Whoever asks next removes what is left.
        let _ = fs::remove_file(&self.path);
        let recordings = lock(&self.recordings).take();
        recordings.into_iter().flatten().for_each(Recording::stop);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers from now on, in a folder that is the user's own.
///
/// # Errors
/// There is no listening there, or no thread.
pub fn listen(folder: &Path, exports: Vec<Arc<Export>>) -> io::Result<Control> {
    let path = folder.join(format!("{}.{ENDING}", std::process::id()));
    // Of a process that had the number before.
    let _ = fs::remove_file(&path);
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(&path);
    rustix::process::umask(before);
    let listener = bound?;
    let recordings = Recordings::new(Mutex::new(Some(Vec::new())));
    let own = Arc::clone(&recordings);
    let thread = thread::Builder::new().name("control".to_owned());
    thread.spawn(move || {
        for stream in listener.incoming().flatten() {
            // Who does not listen gets nothing, and holds up nobody for long.
            let _ = answer(stream, &exports, &own);
        }
    })?;
    Ok(Control { path, recordings })
}

fn answer(
    mut stream: UnixStream,
    exports: &[Arc<Export>],
    recordings: &Recordings,
) -> io::Result<()> {
    let who = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    if !who.is_root() && who != rustix::process::geteuid() {
        return Ok(());
    }
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = hear(&mut stream)?;
    if let Some(names) = line.strip_prefix("record ") {
        return record::record(stream, names, exports, recordings);
    }
    if !line.is_empty() {
        return say(
            &mut stream,
            &Answer::Refused(format!("{line}: is not known here")),
        );
    }
    let status = ServerStatus {
        pid: std::process::id(),
        exports: exports.iter().map(|export| status(export)).collect(),
    };
    stream.write_all(&serde_json::to_vec(&status)?)
}

/// What somebody asks for: a line, or nothing.
fn hear(stream: &mut UnixStream) -> io::Result<String> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < LONGEST {
        match stream.read(&mut byte) {
            Ok(0) => break,
            Ok(_) if byte == *b"\n" => break,
            Ok(_) => line.extend(byte),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn status(export: &Export) -> ExportStatus {
    let of = &export.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ExportStatus {
        name: export.info().name.clone(),
        image: export.image().path().display().to_string(),
        size: export.info().size,
        read_only: export.info().read_only,
        connections: get(&of.connections),
        reads: get(&of.reads),
        read_bytes: get(&of.read_bytes),
        at_once: get(&of.at_once),
        writes: get(&of.writes),
        written_bytes: get(&of.written_bytes),
        flushes: get(&of.flushes),
        refused: get(&of.refused),
        failed: get(&of.failed),
        sharing: export.member().map(sharing),
        wrong: export.image().look().map(str::to_owned),
        recording: export.record.status(),
    }
}

fn sharing(member: &Member) -> SharingStatus {
    let of = &member.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let map = member.extent();
    SharingStatus {
        group: member.group().to_owned(),
        reads_saved: get(&of.saved),
        redirected_bytes: get(&of.redirected_bytes),
        zero_bytes: get(&of.zero_bytes),
        not_known: get(&of.unknown),
        leads: get(&of.leads),
        cold: get(&of.cold),
        split: get(&of.split),
        raced: get(&of.raced),
        wrong: get(&of.wrong),
        not_learned: get(&of.dropped),
        outside_writes: get(&of.outside),
        known_blocks: map.known_blocks,
        contents: map.contents,
        metadata_bytes: map.bytes as u64,
        metadata_limit: map.max_bytes as u64,
    }
}

/// Asks every server of a folder; sockets of dead ones are removed.
///
/// # Errors
/// The folder cannot be read. That there is none is no error.
pub fn ask_all(folder: &Path) -> io::Result<Vec<ServerStatus>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut servers = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        match ask(&path) {
            Ok(status) => servers.push(status),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // It may have been removed by somebody else.
                let _ = fs::remove_file(&path);
            }
            // It ends just now, or does not answer: it is not known what it does.
            Err(_) => {}
        }
    }
    servers.sort_by_key(|server: &ServerStatus| server.pid);
    Ok(servers)
}

fn ask(path: &Path) -> io::Result<ServerStatus> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // Nothing is said: the status is meant.
    stream.shutdown(Shutdown::Write)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}
