//! What a server tells of itself, over a socket of its own.
//!
//! One connection, one answer: whoever connects says what is asked for in a line of JSON, such as `{"ask":"shares"}`;
//! who says nothing, and ends its side or waits a moment, asks for the status. The answer is JSON, and the end. Who
//! says `{"ask":"record","exports":["NAME"]}` gets a line of JSON, `{"recording":[...]}` or `{"refused":"..."}`, and in
//! the first case a trace of these exports from then on ([`crate::record`]), until it ends its side or goes. Only the
//! server's own user and root are answered.

mod ask;
mod record;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};

use crate::export::Export;
use crate::record::{Recording, RecordingStatus};
use crate::sharing::{GroupShares, Member, ScanProgress, survey};
use crate::throttle::Throttle;

use record::{Answer, say};

pub use ask::{Answers, Asked, Door, ask_all, ask_doors};
pub use record::record_from;

/// Where servers of a user listen, below the runtime directory. No service can have that name.
pub const FOLDER: &str = ".drive";
/// How names of control sockets end.
const ENDING: &str = "control";
/// How long a server waits for whoever takes no answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who has not said by then what is asked for asks for the status.
const SAYING: Duration = Duration::from_millis(200);
/// The longest that a question may be, in bytes: names of exports, each at most 4 KiB.
const MOST_ASKED: usize = 1 << 16;
/// Answers at a time; who comes beyond that gets none.
const MOST_ANSWERS: usize = 16;
/// What images share is counted anew after this, and after ten times what counting took, so that asking again and again
/// takes a tenth of a processor at most.
const FRESH: Duration = Duration::from_secs(2);

/// What may be asked for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Ask {
    /// [`ServerStatus`].
    Status,
    /// [`ServerShares`].
    Shares,
}

/// What is heard: one of these, or a wish to record.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
enum Heard {
    Status,
    Shares,
    Record { exports: Vec<String> },
}

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
    /// The service that it is; `None` for one without a ledger.
    pub service: Option<String>,
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
    /// How often all was forgotten, as another program may have written to the image.
    pub outside_writes: u64,
    /// Why nothing is redirected to or from it now; `None` while no other program can change it.
    #[serde(default)]
    pub unguarded: Option<String>,
    /// How far `--scan` is.
    #[serde(default)]
    pub scan: ScanProgress,
    /// Of all images of the server: blocks that are known.
    pub known_blocks: u64,
    /// Of all images of the server: different contents of these.
    pub contents: u64,
    /// Of all images of the server: bytes of the map.
    pub metadata_bytes: u64,
    /// The most that it may take.
    pub metadata_limit: u64,
}

/// What images of a server have in common, by group.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ServerShares {
    /// Its process.
    pub pid: u32,
    /// How long ago it was counted, ms.
    pub age_ms: u64,
    /// Its groups, in order of their first export.
    pub groups: Vec<GroupShares>,
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
    let answers = Arc::new(Desk {
        exports,
        recordings: Arc::clone(&recordings),
        counted: Mutex::new(None),
        busy: AtomicUsize::new(0),
    });
    let thread = thread::Builder::new().name("control".to_owned());
    thread.spawn(move || {
        for stream in listener.incoming().flatten() {
            let desk = Arc::clone(&answers);
            if desk.busy.fetch_add(1, Ordering::Relaxed) >= MOST_ANSWERS {
                desk.busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let thread = thread::Builder::new().name("answer".to_owned());
            let spawned = thread.spawn({
                let desk = Arc::clone(&desk);
                move || {
                    // Who does not listen gets nothing.
                    let _ = desk.answer(stream);
                    desk.busy.fetch_sub(1, Ordering::Relaxed);
                }
            });
            if spawned.is_err() {
                desk.busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(Control { path, recordings })
}

/// What all answers are made of.
struct Desk {
    exports: Vec<Arc<Export>>,
    recordings: Recordings,
    /// What images share, when it was counted, and how long it holds.
    counted: Mutex<Option<(Vec<GroupShares>, Instant, Duration)>>,
    /// Answers under way.
    busy: AtomicUsize,
}

impl Desk {
    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        let who = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        if !who.is_root() && who != rustix::process::geteuid() {
            return Ok(());
        }
        stream.set_write_timeout(Some(PATIENCE))?;
        let line = hear(&mut stream)?;
        let heard = match line.as_str() {
            "" => Heard::Status,
            line => match serde_json::from_str(line) {
                Ok(heard) => heard,
                Err(_) => {
                    let line: String = line.chars().take(40).collect();
                    let why = format!("{line}: is not known here");
                    return say(&mut stream, &Answer::Refused(why));
                }
            },
        };
        let answer = match heard {
            Heard::Status => serde_json::to_vec(&self.status())?,
            Heard::Shares => serde_json::to_vec(&self.shares())?,
            Heard::Record { exports } => {
                return record::record(stream, &exports, &self.exports, &self.recordings);
            }
        };
        stream.write_all(&answer)
    }

    fn status(&self) -> ServerStatus {
        ServerStatus {
            pid: std::process::id(),
            exports: self.exports.iter().map(|export| status(export)).collect(),
        }
    }

    /// Counted now, or a moment ago; one counts at a time.
    fn shares(&self) -> ServerShares {
        let mut counted = lock(&self.counted);
        let (groups, at, _) = match counted.take() {
            Some(fresh) if fresh.1.elapsed() < fresh.2 => counted.insert(fresh),
            _ => {
                let start = Instant::now();
                let groups = survey(&self.exports);
                counted.insert((groups, Instant::now(), FRESH.max(10 * start.elapsed())))
            }
        };
        ServerShares {
            pid: std::process::id(),
            age_ms: u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX),
            groups: groups.clone(),
        }
    }
}

/// What is asked for: a line, or nothing.
fn hear(stream: &mut UnixStream) -> io::Result<String> {
    stream.set_read_timeout(Some(SAYING))?;
    let mut line = Vec::new();
    let mut byte = [0];
    let end = Instant::now() + PATIENCE;
    // Byte by byte it may come, but not for ever: there are few answers at a time.
    while line.len() < MOST_ASKED && Instant::now() < end {
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

/// The status of an export.
#[must_use]
pub fn status(export: &Export) -> ExportStatus {
    let of = &export.counters;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ExportStatus {
        name: export.info().name.clone(),
        service: export.throttle().map(Throttle::service),
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
        outside_writes: member.outside_writes(),
        unguarded: member.unguarded(),
        scan: member.scan_progress(),
        known_blocks: map.known_blocks,
        contents: map.contents,
        metadata_bytes: map.bytes as u64,
        metadata_limit: map.max_bytes as u64,
    }
}
