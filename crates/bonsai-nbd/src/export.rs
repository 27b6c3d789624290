//! An image under a name, and what was done with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bonsai_trace::Op;

use crate::image::{Image, Now, Times};
use crate::protocol::ExportInfo;
use crate::record::Recorder;
use crate::server::pool::Pool;
use crate::sharing::{Member, Written};
use crate::throttle::Throttle;
use std::io;
use std::sync::Mutex;

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

/// An image that is served. Nothing of it is shared with others: neither workers nor memory.
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
    /// The image's times when it was looked at, and how many changes had been begun then.
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
    /// Changes that were begun or ended.
    pub changes: AtomicU64,
    /// Connections now.
    pub connections: AtomicU64,
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

    /// Reads what needs no disk.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<Now> {
        let begun = self.record.begin(Op::Read, offset, into.len() as u64);
        let done = self.find_now(into, offset)?;
        if let (Some(begun), Now::Done) = (begun, done) {
            begun.read(into);
        }
        Ok(done)
    }

    fn find_now(&self, into: &mut [u8], offset: u64) -> io::Result<Now> {
        if let Some(member) = &self.member
            && Member::is_whole(offset, into.len())
        {
            return match member.is_resident(offset, into.len()) {
                true => member.read_resident(into, offset),
                false => member.read_now(into, offset),
            };
        }
        self.image.read_now(into, offset)
    }

    /// Reads, and waits for the disk.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let begun = self.record.begin(Op::Read, offset, into.len() as u64);
        match &self.member {
            Some(member) => member.read(into, offset),
            None => self.image.read(into, offset),
        }?;
        if let Some(begun) = begun {
            begun.read(into);
        }
        Ok(())
    }

    /// Has everything on the disk that was written.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let begun = self.record.begin(Op::Flush, 0, 0);
        self.image.flush()?;
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
        let begun = self.record.begin(op, range.0, range.1);
        add(&self.counters.changes, 1);
        let done = match &self.member {
            Some(member) => member.change(range, written, || change(&self.image)),
            None => change(&self.image),
        };
        add(&self.counters.changes, 1);
        done?;
        if let Some(begun) = begun {
            begun.changed(written);
        }
        Ok(())
    }

    /// Looks whether somebody else wrote to the image: its times are others, and nothing was changed
    /// here meanwhile. Then all that was known of it is forgotten.
    pub(crate) fn look_outside(&self) -> bool {
        if self.member.is_none() && !self.record.is_on() {
            return false;
        }
        let before = self.counters.changes.load(Ordering::SeqCst);
        let times = self.image.times();
        let after = self.counters.changes.load(Ordering::SeqCst);
        let mut last = self
            .times
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let quiet = before == after && last.1 == before;
        let outside = quiet && last.0 != times;
        *last = (times, after);
        if outside {
            self.record.forget();
            if let Some(member) = &self.member {
                member.forget();
            }
        }
        outside && self.member.is_some()
    }

    /// What is served.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }
}
