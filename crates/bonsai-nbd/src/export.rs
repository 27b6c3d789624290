//! An image under a name, and what was done with it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bonsai_trace::Op;

use crate::image::{Image, Now, Piece, Times};
use crate::protocol::ExportInfo;
use crate::record::{Begun, Recorder};
use crate::server::pool::Pool;
use crate::sharing::{Member, ReadPlan, Written};
use crate::throttle::Throttle;

/// Blocks of the page cache, in bytes.
const PAGE: u32 = 4096;

/// How an export is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients ask for.
    pub name: String,
    /// Workers for what waits, at most.
    pub workers: usize,
}

/// An image that is served. Its workers are its own.
#[derive(Debug)]
pub struct Export {
    info: ExportInfo,
    image: Arc<Image>,
    member: Option<Member>,
    throttle: Option<Throttle>,
    /// What was done with it.
    pub counters: Counters,
    pub(crate) pool: Arc<Pool>,
    pub(crate) record: Recorder,
    /// The image's times when it was looked at, and how many changes had been begun after that.
    times: Mutex<(Option<Times>, u64)>,
}

/// What was done, from the start on.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that were answered with data.
    pub reads: AtomicU64,
    /// Their bytes.
    pub read_bytes: AtomicU64,
    /// Reads that were answered by the connection's own thread, from the page cache.
    pub at_once: AtomicU64,
    /// Writes, zeroes and trims that were done.
    pub writes: AtomicU64,
    /// Their bytes.
    pub written_bytes: AtomicU64,
    /// Flushes that were done, writes with FUA among them.
    pub flushes: AtomicU64,
    /// Requests that were refused as they made no sense.
    pub refused: AtomicU64,
    /// Requests that failed below.
    pub failed: AtomicU64,
    /// Changes that were begun.
    pub begun: AtomicU64,
    /// Changes that ended.
    pub ended: AtomicU64,
    /// Connections now.
    pub connections: AtomicU64,
}

/// What became of a read that must not wait.
#[derive(Debug)]
pub(crate) enum Tried {
    /// All bytes are there.
    Done,
    /// The disk is needed.
    Cold(Reading),
    /// It was not tried: what comes next is to be fetched first, and that may wait.
    Due,
}

/// A read that the disk is needed for, as it was planned.
#[derive(Debug)]
pub(crate) struct Reading {
    plan: Option<ReadPlan>,
    begun: Option<Begun>,
}

/// As [`Tried`], with the plan alone.
enum Found {
    Done,
    Cold(Option<ReadPlan>),
    Due,
}

/// Adds to a counter that nobody waits for.
pub(crate) fn add(counter: &AtomicU64, units: u64) {
    counter.fetch_add(units, Ordering::Relaxed);
}

impl Export {
    /// An image under a name.
    #[must_use]
    pub fn new(image: Arc<Image>, member: Option<Member>, options: &Options) -> Self {
        let info = ExportInfo {
            name: options.name.clone(),
            description: image.path().display().to_string(),
            size: image.size(),
            read_only: image.is_read_only(),
            discard: !image.is_read_only(),
            rotational: false,
            fast_zero: !image.is_read_only(),
            preferred_block: PAGE,
        };
        Self {
            info,
            times: Mutex::new((image.times(), 0)),
            image,
            member,
            throttle: None,
            counters: Counters::default(),
            pool: Arc::new(Pool::new(&options.name, options.workers)),
            record: Recorder::default(),
        }
    }

    /// Under the limits of a ledger.
    #[must_use]
    pub fn under(mut self, throttle: Throttle) -> Self {
        self.throttle = Some(throttle);
        self
    }

    /// With blocks that keep their place on the disk: trims are ignored, and zeroes are allocated.
    #[must_use]
    pub const fn without_discard(mut self) -> Self {
        self.info.discard = false;
        self
    }

    pub(crate) const fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    /// What clients are told.
    #[must_use]
    pub const fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// Its part in what images share; `None` for a plain one.
    #[must_use]
    pub const fn member(&self) -> Option<&Member> {
        self.member.as_ref()
    }

    /// From when on nobody else can have changed the image, if nobody can now: without a lease anybody can, unless the operator
    /// vouches for it.
    fn guarded_since(&self) -> Option<u64> {
        self.member.as_ref().and_then(Member::guarded_since)
    }

    /// Notes that a request begins, if the export is recorded.
    fn begin_record(&self, op: Op, range: (u64, u64)) -> Option<Begun> {
        self.record.begin(op, range, || self.guarded_since())
    }

    /// Reads what needs no disk.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<Tried> {
        let begun = self.begin_record(Op::Read, (offset, into.len() as u64));
        let plan = match self.find_now(into, offset)? {
            Found::Done => {
                if let Some(begun) = begun {
                    begun.read(into, self.guarded_since());
                }
                return Ok(Tried::Done);
            }
            Found::Due => return Ok(Tried::Due),
            Found::Cold(plan) => plan,
        };
        Ok(Tried::Cold(Reading { plan, begun }))
    }

    fn find_now(&self, into: &mut [u8], offset: u64) -> io::Result<Found> {
        let member = self.member.as_ref();
        let member = member.filter(|_| Member::is_whole(offset, into.len()));
        if member.is_some_and(|member| member.hear(offset, into.len())) {
            return Ok(Found::Due);
        }
        let resident = member.is_none_or(|member| member.is_resident(offset, into.len()));
        let done = match member {
            Some(member) if resident => member.read_resident(into, offset)?,
            None => self.image.read_now(into, offset)?,
            _ => Now::WouldWait,
        };
        if done == Now::Done {
            return Ok(Found::Done);
        }
        let Some(member) = member else {
            return Ok(Found::Cold(None));
        };
        let plan = member.read_now(into, offset)?;
        Ok(plan.map_or(Found::Done, |plan| Found::Cold(Some(plan))))
    }

    /// What the disk is needed for.
    pub(crate) fn pieces(&self, reading: &Reading, offset: u64, length: usize) -> Vec<Piece> {
        match (&self.member, &reading.plan) {
            (Some(member), Some(plan)) => member.pieces(plan, offset),
            _ => vec![Piece {
                image: Arc::clone(&self.image),
                offset,
                start: 0,
                length,
            }],
        }
    }

    /// Does the rest of a read whose pieces have come; false where it has to be read anew.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn finish(
        &self,
        reading: Reading,
        into: &mut [u8],
        offset: u64,
    ) -> io::Result<bool> {
        let done = match (&self.member, &reading.plan) {
            (Some(member), Some(plan)) => member.finish(plan, into, offset)?,
            _ => true,
        };
        if let (true, Some(begun)) = (done, reading.begun) {
            begun.read(into, self.guarded_since());
        }
        Ok(done)
    }

    /// Reads, and waits for the disk.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let begun = self.begin_record(Op::Read, (offset, into.len() as u64));
        let whole = Member::is_whole(offset, into.len());
        match self.member.as_ref().filter(|_| whole) {
            Some(member) => member.read(into, offset),
            None => self.image.read(into, offset),
        }?;
        if let Some(begun) = begun {
            begun.read(into, self.guarded_since());
        }
        Ok(())
    }

    /// Has everything on the disk that was written.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn flush(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let begun = self.record.begin(Op::Flush, (0, 0), || None);
        flush()?;
        if let Some(begun) = begun {
            begun.flushed();
        }
        Ok(())
    }

    /// Does what changes bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn change(
        &self,
        range: (u64, u64),
        written: Written<'_>,
        change: impl FnOnce(&Image) -> io::Result<()>,
    ) -> io::Result<()> {
        let op = match written {
            Written::Bytes(_) | Written::Zeroes => Op::Write,
            Written::Unknown => Op::Trim,
        };
        let begun = self.begin_record(op, range);
        self.counters.begun.fetch_add(1, Ordering::SeqCst);
        let done = match &self.member {
            Some(member) => member.change(range, written, || change(&self.image)),
            None => change(&self.image),
        };
        self.counters.ended.fetch_add(1, Ordering::SeqCst);
        done?;
        if let Some(begun) = begun {
            begun.changed(written);
        }
        Ok(())
    }

    /// What was said to be written may be lost: what the disk holds is not known any more.
    pub(crate) fn lost(&self) {
        self.record.forget();
        if let Some(member) = &self.member {
            member.forget();
        }
    }

    /// Looks whether somebody else wrote to the image: the kernel says so, or its times are others, and nothing was
    /// changed here meanwhile. Then all that was known of it is forgotten.
    pub fn look_outside(&self) -> bool {
        if self.member.is_none() && !self.record.is_on() {
            return false;
        }
        let told = self.member.as_ref().is_some_and(Member::look);
        let [before, done] =
            [&self.counters.begun, &self.counters.ended].map(|of| of.load(Ordering::SeqCst));
        let times = self.image.times();
        let after = self.counters.begun.load(Ordering::SeqCst);
        let mut last = self
            .times
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // A change that is under way may be what has set them.
        let quiet = before == done && before == after && last.1 == before;
        // While a lease is held, other times are those of a new name or owner.
        let leased = self.member.as_ref().is_some_and(Member::is_leased);
        let outside = quiet && last.0 != times && !told && !leased;
        *last = (times, after);
        if told || outside {
            self.record.forget();
        }
        if let Some(member) = self.member.as_ref().filter(|_| outside) {
            member.forget_outside();
        }
        (told || outside) && self.member.is_some()
    }

    /// What is wrong with the image by now, or keeps it from sharing.
    pub(crate) fn condition(&self) -> Option<&'static str> {
        let unguarded = || {
            let member = self.member.as_ref()?;
            member.unguarded()?;
            Some(
                "another program has the image open: until it is closed, nothing is redirected to or from it",
            )
        };
        self.image.look().or_else(unguarded)
    }

    /// What is served.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;
    use crate::sharing::Sharing;

    #[test]
    fn a_change_under_way_is_not_somebody_elses() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 20).expect("made long");
        let image = Arc::new(Image::open(file.path(), false).expect("an image"));
        let secret = crate::sharing::Secret::random().expect("random bytes");
        let sharing = Sharing::new(1 << 20, false, secret).expect("a thread");
        let member = sharing
            .member(&image, "g", crate::sharing::Guarding::Trust)
            .expect("room");
        let options = Options {
            name: "a".to_owned(),
            workers: 1,
        };
        let export = Export::new(image, Some(member), &options);
        let write = |image: &Image, byte: u8| {
            // Times of files are those of the last tick of a clock.
            std::thread::sleep(std::time::Duration::from_millis(20));
            image.write(&[byte; 512], 0, false)
        };
        let bytes = Written::Bytes(&[1; 512]);
        let changed = export.change((0, 512), bytes, |image| {
            write(image, 1)?;
            // It takes long: it is looked at meanwhile, more than once.
            assert!(!export.look_outside() && !export.look_outside());
            write(image, 1)?;
            assert!(!export.look_outside() && !export.look_outside());
            Ok(())
        });
        changed.expect("written");
        assert!(!export.look_outside() && !export.look_outside());
        // This process is no news to the kernel: only the times tell.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.as_file().write_all_at(&[2; 512], 0).expect("written");
        assert!(export.look_outside() && !export.look_outside());
    }
}
