//! The writer's side of `history.sqlite`.

mod fold;
mod retain;
mod services;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bonsai_units::Resource;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use crate::codec::{Block, Cells, Entry, FIELDS, Level, SUMMARY, entries, push_entry};
use crate::database::{self, Kind, MovedAside};
use crate::error::Error;
use crate::model::{Point, Sample, Tick};
use crate::options::Options;

use services::Services;

/// The name of the file.
pub(crate) const FILE: &str = "history.sqlite";

const KIND: Kind = Kind {
    file: FILE,
    version: 1,
    schema: include_str!("points.sql"),
    synchronous: "NORMAL",
};

/// The service that all others together are: in each row, with what they did summed up.
pub(crate) const TOTAL: u32 = 0;

/// Bits of a block's key that name the service; the others are its time in blocks.
pub(crate) const SERVICE_BITS: u32 = 20;

/// Services of a tick beyond these are dropped and counted.
const MOST_SERVICES: usize = 8192;

/// Seconds that wait to become blocks at most: in memory, too, when they do. With a minute of them
/// a thousand services took 7 MB that the allocator then kept.
const TOGETHER: usize = 20;

/// A wall clock beyond this (the year 10889) is a mistake of the caller.
const LAST_SECOND: u64 = 1 << 48;

/// The tables of a tier: of blocks, and of rows of all services.
pub(crate) const TABLES: [(&str, &str); 3] = [
    ("second", "open_second"),
    ("minute", "open_minute"),
    ("hour", "open_hour"),
];

/// The key of a service's block: blocks of one time stand together, so that they are
/// appended, and removed, page by page.
pub(crate) fn key(block: u64, service: u32) -> i64 {
    (block << SERVICE_BITS | u64::from(service)).cast_signed()
}

/// What became of a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Its second was there already.
    pub(crate) repeated: bool,
    /// It is older than everything that is kept.
    pub(crate) too_old: bool,
    /// Points of services that were too many, or without a name that can be kept.
    pub(crate) dropped_points: u64,
    /// Blocks that were damaged and are gaps now.
    pub(crate) damaged: u64,
}

/// The open database.
#[derive(Debug)]
pub(crate) struct Points {
    path: PathBuf,
    connection: Connection,
    limits: Limits,
    state: Working,
}

/// Bounds in bytes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Of the file.
    file: u64,
    /// Of the WAL.
    wal: u64,
}

/// What is known of the database without asking it.
#[derive(Debug, Default)]
struct Working {
    services: Services,
    /// Of each tier the blocks that have rows which are none yet.
    open: [BTreeSet<u64>; 3],
    /// Rows of seconds that are none yet.
    waiting: usize,
    /// The newest second that was ever written.
    newest: u64,
    /// Of each tier the first second that is kept.
    horizon: [u64; 3],
    /// Of each tier the bytes of its blocks.
    bytes: [u64; 3],
    damaged: u64,
}

impl Points {
    /// Opens it in the folder.
    pub(crate) fn open(
        folder: &Path,
        options: &Options,
    ) -> Result<(Self, Option<MovedAside>), Error> {
        let wal = options.wal_bytes();
        let file = options.points_bytes - wal;
        let limits = Limits { file, wal };
        database::open(folder, KIND, (file, wal), |path, connection| {
            Self::with(path, connection, limits)
        })
    }

    fn with(path: PathBuf, connection: Connection, limits: Limits) -> Result<Self, Error> {
        let state = Working::load(&connection).map_err(Error::sqlite(&path))?;
        let mut points = Self {
            path,
            connection,
            limits,
            state,
        };
        points.relieve()?;
        Ok(points)
    }

    /// Writes a tick, and does a bounded part of what else is due.
    pub(crate) fn tick(&mut self, tick: &Tick) -> Result<Outcome, Error> {
        self.bound_wal()?;
        let failed = Error::sqlite(&self.path);
        let begun = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate);
        let transaction = begun.map_err(&failed)?;
        let written = self.state.tick(&transaction, tick, self.limits);
        let done = written.and_then(|outcome| transaction.commit().map(|()| outcome));
        done.map_err(|error| self.why_full(error))
    }

    /// Whether it is the file that is full or the disk.
    fn why_full(&self, error: rusqlite::Error) -> Error {
        let full = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
        let pages = database::pages(&self.connection).map_or(0, |(_, all)| all);
        // A few pages less than the most are taken by none.
        if full && pages + 64 >= self.limits.file / database::PAGE {
            return Error::Small {
                path: self.path.clone(),
                bytes: self.limits.file,
                services: self.state.services.number(),
            };
        }
        Error::sqlite(&self.path)(error)
    }

    /// Keeps the WAL within its bound, with half of it for the largest transaction; an error where a
    /// reader does not let it.
    fn bound_wal(&self) -> Result<(), Error> {
        let (_, bytes) = database::sizes(&self.path);
        if bytes <= self.limits.wal / 2 {
            return Ok(());
        }
        let busy: i64 = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(Error::sqlite(&self.path))?;
        if busy == 0 {
            return Ok(());
        }
        Err(Error::Wal {
            path: self.path.clone(),
            bytes,
        })
    }

    /// Reads the whole file; an error where it is damaged.
    pub(crate) fn check(&self) -> Result<(), Error> {
        database::check(&self.connection, &self.path)?;
        // SQLite does not look whether texts are texts.
        let names = Services::load(&self.connection);
        names.map(drop).map_err(Error::sqlite(&self.path))
    }

    /// Bytes of pages in use, of the file and of the WAL.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        let (file, wal) = database::sizes(&self.path);
        let used =
            database::pages(&self.connection).map_or(file, |(used, _)| used * database::PAGE);
        (used, file, wal)
    }
}

impl Working {
    fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut state = Self {
            services: Services::load(connection)?,
            ..Self::default()
        };
        for level in Level::ALL {
            let (blocks, open) = TABLES[level.index()];
            let mut rows = connection.prepare(&format!("SELECT at FROM {open}"))?;
            for at in rows.query_map([], |row| row.get::<_, i64>(0))? {
                let at = at?.cast_unsigned();
                state.open[level.index()].insert(at / level.block_seconds());
                state.newest = state.newest.max(at);
                state.waiting += usize::from(level == Level::Second);
            }
            let text = format!("SELECT max(key) FROM {blocks}");
            let last: Option<i64> = connection.query_row(&text, [], |row| row.get(0))?;
            let last = last.map_or(0, |key| (key.cast_unsigned() >> SERVICE_BITS) + 1);
            state.newest = state.newest.max(last * level.block_seconds());
        }
        let mut rows = connection.prepare("SELECT level, bytes, horizon FROM tier")?;
        let tiers = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for tier in tiers {
            let (level, bytes, horizon): (i64, i64, i64) = tier?;
            if let Some(level) = usize::try_from(level).ok().filter(|level| *level < 3) {
                state.bytes[level] = bytes.cast_unsigned();
                state.horizon[level] = horizon.cast_unsigned();
            }
        }
        Ok(state)
    }

    fn tick(
        &mut self,
        transaction: &Transaction<'_>,
        tick: &Tick,
        limits: Limits,
    ) -> rusqlite::Result<Outcome> {
        let mut outcome = Outcome::default();
        self.damaged = 0;
        if tick.second < self.horizon[0] || tick.second >= LAST_SECOND {
            outcome.too_old = true;
        } else if tick.second <= self.newest && self.has(transaction, tick.second)? {
            outcome.repeated = true;
        } else {
            self.insert(transaction, tick, &mut outcome)?;
        }
        for level in Level::ALL {
            let now = tick.second / level.block_seconds();
            let mut open = self.open[level.index()].iter().copied();
            let is_much = level == Level::Second && self.waiting >= TOGETHER;
            // What has ended first; of what has not, only what is too much to wait.
            let ended = open.clone().find(|block| *block != now);
            if let Some(block) = ended.or_else(|| open.next().filter(|_| is_much)) {
                self.fold(transaction, level, block)?;
            }
        }
        self.retain(transaction, limits)?;
        outcome.damaged = self.damaged;
        Ok(outcome)
    }

    /// Whether a second has been written.
    fn has(&self, transaction: &Transaction<'_>, second: u64) -> rusqlite::Result<bool> {
        let mut open = transaction.prepare_cached("SELECT 1 FROM open_second WHERE at = ?")?;
        if open.exists([second.cast_signed()])? {
            return Ok(true);
        }
        let length = Level::Second.block_seconds();
        let slots = slots_of(transaction, second / length)?;
        Ok(slots
            .iter()
            .any(|(at, _)| u64::from(*at) == second % length))
    }

    fn insert(
        &mut self,
        transaction: &Transaction<'_>,
        tick: &Tick,
        outcome: &mut Outcome,
    ) -> rusqlite::Result<()> {
        let level = Level::Second;
        let slot = u8::try_from(tick.second % level.block_seconds()).unwrap_or(0);
        // Points of a service stand together, so its number is looked up once for them.
        let mut numbered: Vec<(u32, &Point)> = Vec::with_capacity(tick.points.len());
        let mut known: Option<(&Arc<str>, Option<u32>)> = None;
        let mut services = 0;
        for point in &tick.points {
            let id = match known {
                Some((name, id)) if Arc::ptr_eq(name, &point.service) => id,
                _ => {
                    let full = services >= MOST_SERVICES;
                    services += 1;
                    let name = &point.service;
                    self.services.intern(transaction, name, tick.second, full)?
                }
            };
            known = Some((&point.service, id));
            match id {
                Some(id) => numbered.push((id, point)),
                None => outcome.dropped_points += 1,
            }
        }
        numbered.sort_by_key(|(id, _)| *id);
        let mut total = <[Option<Cells>; Resource::COUNT]>::default();
        for (_, point) in &numbered {
            add_up(&mut total[point.resource.index()], &point.sample);
        }
        let mut row = Vec::with_capacity(64 * (numbered.len() + 1));
        let mut entry = |id, cells: &_| {
            push_entry(&mut row, id, level, &Block::single(level, slot, 1, cells));
        };
        entry(TOTAL, &total);
        for points in numbered.chunk_by(|(a, _), (b, _)| a == b) {
            let mut cells = <[Option<Cells>; Resource::COUNT]>::default();
            for (_, point) in points {
                // What has no limit and did nothing is the zero that a missing resource means.
                if point.sample != Sample::default() {
                    cells[point.resource.index()] = Some(cells_of(&point.sample));
                }
            }
            entry(points[0].0, &cells);
        }
        transaction
            .prepare_cached("INSERT INTO open_second (at, data) VALUES (?, ?)")?
            .execute((tick.second.cast_signed(), row))?;
        self.open[level.index()].insert(tick.second / level.block_seconds());
        self.waiting += 1;
        self.newest = self.newest.max(tick.second);
        Ok(())
    }
}

/// The seconds of a block of seconds; none where it is not there, or is damaged.
pub(crate) fn slots_of(
    transaction: &Transaction<'_>,
    block: u64,
) -> rusqlite::Result<Vec<(u8, u16)>> {
    let mut blocks = transaction.prepare_cached("SELECT data FROM second WHERE key = ?")?;
    let data: Option<Vec<u8>> = blocks
        .query_row([key(block, TOTAL)], |row| row.get(0))
        .optional()?;
    // No resource has this number: the slots alone are decoded.
    let block = data.and_then(|data| Block::decode(&data, Level::Second, Some(usize::MAX)).ok());
    Ok(block.unwrap_or_default().slots)
}

/// Adds what a service did to what all did.
fn add_up(total: &mut Option<Cells>, sample: &Sample) {
    if *sample == Sample::default() {
        return;
    }
    let sum = total.get_or_insert([0; SUMMARY]);
    let cells = cells_of(sample);
    for field in (0..FIELDS).filter(|field| *field != crate::codec::LIMIT) {
        sum[field] = sum[field].saturating_add(cells[field]);
    }
}

/// A second as it is kept.
fn cells_of(sample: &Sample) -> Cells {
    let mut cells = [0; SUMMARY];
    let whole = |milli: u64| milli.saturating_add(500) / 1000;
    cells[0] = whole(sample.asked);
    cells[1] = whole(sample.got);
    cells[2] = sample.limit.map_or(0, |milli| milli.saturating_add(1));
    cells[3] = sample.guarantee;
    cells[4] = sample.waited_ns.div_ceil(1000);
    cells[5] = sample.waits;
    cells
}

/// The services of a row, without those that are damaged, which are counted.
fn readable<'a>(row: &'a [u8], damaged: &'a Cell<u64>) -> impl Iterator<Item = Entry<'a>> {
    entries(row).filter_map(|entry| {
        let damage = u64::from(entry.is_err());
        damaged.set(damaged.get() + damage);
        entry.ok()
    })
}
