//! Devices of this machine, by the kernel's own events.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bonsai_services::refusal::Refusal;
use bonsai_trace::import::{Event, Format, Options, import};
use bonsai_trace::{Digest, Error, Interning, Request, Sink, Volume};
use rustix::time::{ClockId, clock_gettime};

use super::tracefs::{Instance, event_of, missing, root};
use super::{LOOK, Recorded, Target, Until};
use crate::cli::{TraceEvent, TraceRecord};
use crate::output::say;

/// How long requests wait for the end of their frame: so much is lost at most when the process is killed.
const FRAME: Duration = Duration::from_secs(1);

/// Records until it is over.
pub(super) fn record(device: &Path, args: &TraceRecord) -> anyhow::Result<Recorded> {
    let disk = Disk::find(device)?;
    if !rustix::process::geteuid().is_root() {
        return Err(Refusal::input(format!(
            "{}: only root can record devices; exports of bonsai drive are recorded with --nbd",
            disk.name
        )));
    }
    let root = root().map_err(Refusal::input)?;
    if let Some(why) = missing(&root, args.event) {
        return Err(Refusal::input(format!(
            "{}: no recording: {why}",
            disk.name
        )));
    }
    let instance = Instance::make(&root).map_err(|error| {
        Refusal::input(format!(
            "{}: no recording: {error}",
            root.join("instances").display()
        ))
    })?;
    let until = Until::new(args.lasts)?;
    let target = Target::new(&args.output)?;
    let begun = Instant::now();
    let monotonic = instance.begin(args.event, disk.number)?;
    let live = Live {
        trace: RefCell::new(Trace::new(target, &disk)?),
        ahead: if monotonic { wall_ahead() } else { 0 },
    };
    let pipe = Pipe {
        file: instance.pipe()?,
        instance: &instance,
        until,
        live: &live,
        is_ended: false,
    };
    let options = Options {
        format: Some(Format::Tracefs),
        event: event(args.event),
        // A line that is not understood ends no recording.
        skip_bad: u64::MAX,
        ..Options::default()
    };
    let done = import(pipe, &options, &mut &live);
    let lost = instance.lost();
    drop(instance);
    live.end(args, begun, done, lost)
}

const fn event(event: TraceEvent) -> Event {
    match event {
        TraceEvent::Issue => Event::Issue,
        TraceEvent::Queue => Event::Queue,
        TraceEvent::Complete => Event::Complete,
    }
}

/// By how much the wall's clock is ahead of the one that is never set, ns.
fn wall_ahead() -> u64 {
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = clock_gettime(ClockId::Monotonic);
    let since = Duration::try_from(since).unwrap_or_default();
    let ahead = wall.unwrap_or_default().saturating_sub(since);
    u64::try_from(ahead.as_nanos()).unwrap_or(0)
}

/// A whole disk.
#[derive(Debug)]
struct Disk {
    name: String,
    /// As events have it: major << 20 | minor.
    number: u64,
    bytes: Option<u64>,
}

impl Disk {
    /// By its name, or the path of its node.
    fn find(device: &Path) -> anyhow::Result<Self> {
        let wrong = |why: &str| Refusal::input(format!("{}: {why}", device.display()));
        // Names such as /dev/disk/by-id/... lead to the node.
        let path = fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| wrong("is no device"))?;
        let about = PathBuf::from("/sys/class/block").join(name);
        let read = |file: &str| {
            let text = fs::read_to_string(about.join(file));
            text.ok().map(|text| text.trim().to_owned())
        };
        let Some(dev) = read("dev") else {
            return Err(wrong("there is no such block device (lsblk lists them)"));
        };
        if about.join("partition").exists() {
            let whole = fs::canonicalize(&about).ok();
            let whole = whole.and_then(|path| Some(path.parent()?.file_name()?.to_owned()));
            let whole = whole.unwrap_or_default();
            return Err(wrong(&format!(
                "is a partition; its requests are those of its disk, {}",
                whole.display()
            )));
        }
        let number = dev.split_once(':').and_then(|(major, minor)| {
            let (major, minor): (u64, u64) = (major.parse().ok()?, minor.parse().ok()?);
            Some(major << 20 | minor)
        });
        Ok(Self {
            name: name.to_owned(),
            number: number.ok_or_else(|| wrong("has no numbers"))?,
            bytes: read("size")
                .and_then(|sectors| sectors.parse::<u64>().ok())
                .map(|sectors| sectors * 512),
        })
    }
}

/// A trace that grows.
struct Trace {
    to: Interning<Target>,
    requests: u64,
    framed: Instant,
}

impl Trace {
    fn new(target: Target, disk: &Disk) -> Result<Self, Error> {
        let mut to = Interning::new(target)?;
        to.add_volume(&Volume {
            name: disk.name.clone(),
            bytes: disk.bytes,
        })?;
        to.flush()?;
        Ok(Self {
            to,
            requests: 0,
            framed: Instant::now(),
        })
    }

    fn frame(&mut self) -> Result<(), Error> {
        if self.framed.elapsed() >= FRAME {
            self.framed = Instant::now();
            self.to.flush()?;
        }
        Ok(())
    }
}

/// Where requests go, and who ends its frames while none come.
struct Live {
    trace: RefCell<Trace>,
    /// Added to times.
    ahead: u64,
}

impl Live {
    fn end(
        self,
        args: &TraceRecord,
        begun: Instant,
        done: Result<bonsai_trace::import::Report, Error>,
        lost: u64,
    ) -> anyhow::Result<Recorded> {
        let Trace {
            mut to, requests, ..
        } = self.trace.into_inner();
        let mut report = Default::default();
        let mut failed = None;
        match done {
            Ok(found) => report = found,
            // That there was nothing is no mistake of whoever records.
            Err(Error::Record(_)) if requests == 0 => {}
            Err(error) => failed = Some(error),
        }
        let lost = lost.max(report.lost);
        let finished = match failed {
            Some(error) => Err((error, to)),
            None => match to.lost(lost - report.lost) {
                Ok(()) => Ok(to.finish()),
                Err(error) => Err((error, to)),
            },
        };
        let (target, written) = match finished {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => return Err(anyhow::anyhow!("{}: {error}", args.output.display())),
            Err((error, mut to)) => {
                let said = to.get_mut().said(&args.output, requests);
                return Err(said.unwrap_or_else(|| error.into()));
            }
        };
        if requests == 0 {
            say!(
                "bonsai: the kernel told of no event {}; devices without a queue of their own (device mapper, md) have --event queue",
                event_of(args.event)
            );
        }
        Ok(Recorded {
            requests,
            lost,
            unaligned: report.unaligned,
            bad: report.bad,
            is_whole: true,
            seconds: begun.elapsed().as_secs_f64(),
            bytes: target.bytes.max(written.bytes),
            ..Recorded::default()
        })
    }
}

impl Sink for &Live {
    // There is one: the filter's.
    fn volume(&mut self, _: &str) -> Result<u32, Error> {
        Ok(0)
    }

    fn content(&mut self, digest: Digest) -> Result<u32, Error> {
        self.trace.borrow_mut().to.content(digest)
    }

    fn request(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let mut trace = self.trace.borrow_mut();
        trace.requests += 1;
        trace.to.request(&Request {
            time_ns: request.time_ns.saturating_add(self.ahead),
            ..*request
        })?;
        trace.frame()
    }

    fn lost(&mut self, requests: u64) -> Result<(), Error> {
        self.trace.borrow_mut().to.lost(requests)
    }
}

/// The kernel's text until the recording is over.
struct Pipe<'a> {
    file: File,
    instance: &'a Instance,
    until: Until,
    live: &'a Live,
    is_ended: bool,
}

impl Read for Pipe<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(to) {
                Ok(got) if got > 0 => return Ok(got),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            if self.is_ended {
                return Ok(0);
            }
            if self.until.is_over() {
                // What was taken before that comes still.
                self.instance.end();
                self.is_ended = true;
                continue;
            }
            let framed = self.live.trace.borrow_mut().frame();
            framed.map_err(io::Error::other)?;
            thread::sleep(LOOK);
        }
    }
}
