//! `bonsai trace record`.
//!
//! | module | what is in it |
//! |---|---|
//! | `served` | exports of a block server, over its control socket |
//! | `device` | devices of this machine |
//! | `tracefs` | the kernel's events of one device |

mod device;
mod served;
mod tracefs;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bonsai_services::refusal::Refusal;
use serde::Serialize;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::TraceRecord;
use crate::output::{count, escaped, print_json, say};

pub(crate) use tracefs::available;

/// How long nothing is looked at: an end is seen so late, and the newest request.
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn run(args: &TraceRecord) -> anyhow::Result<u8> {
    let recorded = match &args.device {
        Some(device) => device::record(device, args)?,
        None => served::record(args)?,
    };
    let name = args.output.display().to_string();
    if args.json {
        let document = json!({"schema": 1, "recorded": recorded});
        if name == "-" {
            say!("{document}");
        } else {
            print_json(&document, false)?;
        }
    } else {
        eprint!("{}", text(&escaped(&name), &recorded));
    }
    Ok(u8::from(!recorded.is_whole))
}

/// What became of a recording.
#[derive(Debug, Default, Serialize)]
struct Recorded {
    /// Requests in the trace.
    requests: u64,
    /// Those that are not in it, as they came too quickly.
    lost: u64,
    /// Requests without contents, though they could have some.
    without_contents: u64,
    /// Requests that begin or end within a block.
    unaligned: u64,
    /// Lines of the kernel that were no requests.
    bad: u64,
    /// Whether contents are recorded at all.
    has_contents: bool,
    /// Whether the trace has its end.
    is_whole: bool,
    seconds: f64,
    /// Bytes of the trace.
    bytes: u64,
}

fn text(name: &str, of: &Recorded) -> String {
    let mut text = format!(
        "{name}: {} in {:.1} s, {} bytes\n",
        count(of.requests, "request", "requests"),
        of.seconds,
        of.bytes,
    );
    let mut note = |n: u64, one: &str, many: &str| {
        if n > 0 {
            text += &format!("  {}\n", count(n, one, many));
        }
    };
    note(
        of.lost,
        "request was lost, as it came too quickly: the trace says so",
        "requests were lost, as they came too quickly: the trace says so",
    );
    note(
        of.without_contents,
        "request has no contents: there were more different ones than are told apart",
        "requests have no contents: there were more different ones than are told apart",
    );
    note(
        of.unaligned,
        "request begins or ends within a block: it has no contents",
        "requests begin or end within a block: they have no contents",
    );
    note(
        of.bad,
        "line of the kernel was not understood",
        "lines of the kernel were not understood",
    );
    if !of.has_contents {
        text += "  the kernel does not say what blocks hold: there are no contents\n";
    }
    if !of.is_whole {
        text +=
            "  the server has gone: the trace has no end (bonsai trace stat --cut-off reads it)\n";
    }
    text
}

/// When a recording ends.
#[derive(Clone, Debug)]
struct Until {
    asked: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Until {
    /// After a time, or at a signal; a second signal ends the process.
    fn new(lasts: Option<Duration>) -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&asked))?;
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self {
            asked,
            deadline: lasts.and_then(|lasts| Instant::now().checked_add(lasts)),
        })
    }

    fn is_over(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
            || self
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Makes the file of a recording, for its owner alone: what is in it is as private as the disk.
///
/// # Errors
/// It is there already, or cannot be made.
pub(crate) fn create(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Refusal::input(format!(
            "{}: is there already; name another file, or remove it",
            path.display()
        )),
        _ => Refusal::input(format!("{}: {error}", path.display())),
    })
}

/// Where a trace goes, with what went wrong there.
struct Target {
    to: Box<dyn Write>,
    bytes: u64,
    failed: Option<io::Error>,
}

impl Target {
    fn new(path: &Path) -> anyhow::Result<Self> {
        let to: Box<dyn Write> = match path == Path::new("-") {
            true => Box::new(io::stdout()),
            false => Box::new(create(path)?),
        };
        Ok(Self {
            to,
            bytes: 0,
            failed: None,
        })
    }

    /// The error of writing, with how much of the trace is there.
    fn said(&mut self, path: &Path, requests: u64) -> Option<anyhow::Error> {
        let error = self.failed.take()?;
        Some(anyhow::anyhow!(
            "{}: {error}; it has {} and no end (bonsai trace stat --cut-off reads it)",
            path.display(),
            count(requests, "request", "requests")
        ))
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write_all(bytes);
        if let Err(error) = done {
            let again = io::Error::new(error.kind(), error.to_string());
            self.failed = Some(error);
            return Err(again);
        }
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
