//! An image under a name, and what was done with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::image::{Image, Now, Times};
use crate::protocol::ExportInfo;
use crate::server::pool::Pool;
use crate::sharing::{Member, Reading, Written};
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

/// What became of a read that must not wait.
#[derive(Debug)]
pub(crate) enum Tried {
    /// All bytes are there.
    Done,
    /// The disk has been asked for what is not.
    Begun(Begun),
}

/// A read that the disk has begun with, and how it was planned.
#[derive(Debug)]
pub(crate) struct Begun(Option<Reading>);

/// Adds to a counter that nobody waits for.
pub(crate) fn add(counter: &AtomicU64, units: u64) {
    counter.fetch_add(units, Ordering::Relaxed);
}

/// How a read waits for the disk.
pub(crate) struct Wait<'a> {
    /// It may be there by now: it is looked for before it is waited for.
    look: bool,
    /// What is done before it waits.
    before: &'a mut dyn FnMut(),
}

impl Wait<'_> {
    pub(crate) fn read(&mut self, image: &Image, into: &mut [u8], offset: u64) -> io::Result<()> {
        if self.look && image.read_now(into, offset)? == Now::Done {
            return Ok(());
        }
        (self.before)();
        image.read(into, offset)
    }
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

    /// Reads what needs no disk, or has the disk begin.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read_now(&self, into: &mut [u8], offset: u64) -> io::Result<Tried> {
        let member = self.member.as_ref();
        let member = member.filter(|_| Member::is_whole(offset, into.len()));
        let done = match member {
            Some(member) if member.is_resident(offset, into.len()) => {
                member.read_resident(into, offset)?
            }
            Some(member) => {
                let reading = member.read_now(into, offset)?;
                return Ok(reading.map_or(Tried::Done, |of| Tried::Begun(Begun(Some(of)))));
            }
            None => self.image.read_now(into, offset)?,
        };
        Ok(match done {
            Now::Done => Tried::Done,
            Now::WouldWait => Tried::Begun(Begun(None)),
        })
    }

    /// Reads, and waits for the disk. Of a read that the disk has begun with, `before` is done before it waits.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn read(
        &self,
        into: &mut [u8],
        offset: u64,
        begun: Option<Begun>,
        before: &mut dyn FnMut(),
    ) -> io::Result<()> {
        let mut wait = Wait {
            look: begun.is_some(),
            before,
        };
        let reading = begun.and_then(|begun| begun.0);
        let whole = Member::is_whole(offset, into.len());
        match self.member.as_ref().filter(|_| whole) {
            Some(member) => member.read(into, offset, reading, &mut wait),
            None => wait.read(&self.image, into, offset),
        }
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
        add(&self.counters.changes, 1);
        let done = match &self.member {
            Some(member) => member.change(range, written, || change(&self.image)),
            None => change(&self.image),
        };
        add(&self.counters.changes, 1);
        done
    }

    /// Looks whether somebody else wrote to the image: its times are others, and nothing was changed
    /// here meanwhile. Then all that was known of it is forgotten.
    pub fn look_outside(&self) -> bool {
        let Some(member) = &self.member else {
            return false;
        };
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
            member.forget();
        }
        outside
    }

    /// What is served.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }
}
