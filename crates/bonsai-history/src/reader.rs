//! Reading while another thread or process writes.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction};

use crate::audit::{AuditFilter, AuditRow};
use crate::codec::{Block, Level, entries};
use crate::error::Error;
use crate::export::{self, Export, Exported, Format};
use crate::points::{self, SERVICE_BITS, TABLES, TOTAL, key};
use crate::query::{Bins, Query, Series, Which, level_for, step_for};
use crate::records::{self, Blob};

/// A service that has points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownService {
    /// Its name.
    pub name: String,
    /// Its first second, since 1970; of a service of the current minute, about.
    pub first: u64,
    /// Its last second, likewise.
    pub last: u64,
}

/// Reads a folder's databases; each thread has its own.
///
/// Files that come, go or are replaced are noticed at the next query.
#[derive(Debug)]
pub struct Reader {
    points: RefCell<Source>,
    records: RefCell<Source>,
}

/// A database that is opened when it is needed.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    open: Option<(Connection, (u64, u64))>,
}

impl Source {
    fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    /// Asks the database in one transaction.
    fn ask<T>(
        &mut self,
        question: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let found = fs::symlink_metadata(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::Absent {
                path: self.path.clone(),
            },
            _ => Error::file(&self.path, error),
        })?;
        let inode = (found.dev(), found.ino());
        if self.open.as_ref().is_some_and(|(_, was)| *was != inode) {
            self.open = None;
        }
        let answer = self.answer(inode, question);
        if answer.is_err() {
            self.open = None;
        }
        answer.map_err(Error::sqlite(&self.path))
    }

    fn answer<T>(
        &mut self,
        inode: (u64, u64),
        question: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let (connection, _) = match &mut self.open {
            Some(open) => open,
            none => none.insert((connect(&self.path)?, inode)),
        };
        let transaction = connection.transaction()?;
        let answer = question(&transaction)?;
        transaction.commit()?;
        Ok(answer)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    // The way to the folder may have links, the file is none.
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let whole = folder.zip(path.file_name());
    let whole = whole.map_or_else(|| path.to_owned(), |(folder, name)| folder.join(name));
    let connection = Connection::open_with_flags(whole, flags)?;
    connection.busy_timeout(Duration::from_secs(1))?;
    connection.execute_batch(
        "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA cache_size = -8192;",
    )?;
    Ok(connection)
}

impl Reader {
    /// A reader of that folder, which may come to be later.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self {
            points: RefCell::new(Source::new(folder.join(points::FILE))),
            records: RefCell::new(Source::new(folder.join(records::FILE))),
        }
    }

    /// Points of one service and resource. A span that reaches beyond what is known is cut
    /// to it before the step is chosen.
    ///
    /// # Errors
    /// The query makes no sense, or the database cannot be read.
    pub fn series(&self, query: &Query) -> Result<Series, Error> {
        query.check()?;
        self.points
            .borrow_mut()
            .ask(|transaction| series(transaction, query))
    }

    /// All services that have points, by name.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn services(&self) -> Result<Vec<KnownService>, Error> {
        self.points.borrow_mut().ask(|transaction| {
            let mut statement = transaction
                .prepare_cached("SELECT name, first, last FROM service ORDER BY name")?;
            let rows = statement.query_map([], |row| {
                Ok(KnownService {
                    name: row.get(0)?,
                    first: row.get::<_, i64>(1)?.cast_unsigned(),
                    last: row.get::<_, i64>(2)?.cast_unsigned(),
                })
            })?;
            rows.collect()
        })
    }

    /// The first second that is known at any resolution, and the one behind the last; nothing
    /// where there is none.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn range(&self) -> Result<Option<(u64, u64)>, Error> {
        self.points.borrow_mut().ask(known_range)
    }

    /// The first second that each tier still has, by [`Level::ALL`]; 0 where nothing was removed.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn horizons(&self) -> Result<[u64; 3], Error> {
        self.points.borrow_mut().ask(horizons)
    }

    /// Entries of the audit trail, newest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditRow>, Error> {
        self.records
            .borrow_mut()
            .ask(|transaction| records::audit(transaction, filter))
    }

    /// Named bytes, if there are such.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn get(&self, key: &str) -> Result<Option<Blob>, Error> {
        self.records
            .borrow_mut()
            .ask(|transaction| records::get(transaction, key))
    }

    /// Writes points out. The database is read in pieces, so that a slow `out` does not keep
    /// the writer from its work.
    ///
    /// # Errors
    /// The database cannot be read, or `out` not be written.
    pub fn export(
        &self,
        what: &Export,
        format: Format,
        out: impl Write + Send,
    ) -> Result<Exported, Error> {
        let mut source = self.points.borrow_mut();
        export::export(what, format, out, |piece| {
            source.ask(|transaction| piece.read(transaction))
        })
    }
}

/// Of each tier the first second that it still has.
pub(crate) fn horizons(transaction: &Transaction<'_>) -> rusqlite::Result<[u64; 3]> {
    let mut horizons = [0; 3];
    let mut statement = transaction.prepare_cached("SELECT level, horizon FROM tier")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for row in rows {
        let (level, horizon): (i64, i64) = row?;
        if let Some(level) = usize::try_from(level).ok().filter(|level| *level < 3) {
            horizons[level] = horizon.cast_unsigned();
        }
    }
    Ok(horizons)
}

fn known_range(transaction: &Transaction<'_>) -> rusqlite::Result<Option<(u64, u64)>> {
    let mut range: Option<(u64, u64)> = None;
    let mut extend = |from: u64, to: u64| {
        range = Some(range.map_or((from, to), |(a, b)| (a.min(from), b.max(to))));
    };
    // Coarser tiers, and blocks, may have begun what has not ended: the last second says the end.
    let mut newest = None;
    for level in Level::ALL {
        let (_, open) = TABLES[level.index()];
        let length = level.block_seconds();
        if let Some((first, last)) = block_range(transaction, level)? {
            extend(first * length, (last + 1) * length);
            if level == Level::Second {
                let slots = points::slots_of(transaction, last)?;
                let slot = slots
                    .last()
                    .map_or(length - 1, |(slot, _)| u64::from(*slot));
                newest = Some(last * length + slot);
            }
        }
        let ends = format!("SELECT min(at), max(at) FROM {open}");
        if let Some((first, last)) = ends_of(transaction, &ends)? {
            extend(first, last + level.slot_seconds());
            if level == Level::Second {
                newest = newest.max(Some(last));
            }
        }
    }
    Ok(range.map(|(from, to)| (from, newest.map_or(to, |newest| newest + 1))))
}

/// The first and the last block of a tier.
fn block_range(
    transaction: &Transaction<'_>,
    level: Level,
) -> rusqlite::Result<Option<(u64, u64)>> {
    let (table, _) = TABLES[level.index()];
    // Two questions: SQLite looks up one end at a time only.
    let ends = format!("SELECT (SELECT min(key) FROM {table}), (SELECT max(key) FROM {table})");
    let ends = ends_of(transaction, &ends)?;
    Ok(ends.map(|(first, last)| (first >> SERVICE_BITS, last >> SERVICE_BITS)))
}

fn ends_of(transaction: &Transaction<'_>, text: &str) -> rusqlite::Result<Option<(u64, u64)>> {
    let mut statement = transaction.prepare_cached(text)?;
    let ends: (Option<i64>, Option<i64>) =
        statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(match ends {
        (Some(first), Some(last)) => Some((first.cast_unsigned(), last.cast_unsigned())),
        _ => None,
    })
}

fn series(transaction: &Transaction<'_>, query: &Query) -> rusqlite::Result<Series> {
    let Some((first, end)) = known_range(transaction)? else {
        return Ok(Series::default());
    };
    let (from, to) = (query.from.max(first), query.to.min(end));
    let service = match &query.which {
        Which::Total => Some(TOTAL),
        Which::Service(name) => transaction
            .prepare_cached("SELECT id FROM service WHERE name = ?")?
            .query_row([name], |row| row.get(0))
            .optional()?,
    };
    let step = step_for(from, to.max(from + 1), query.points);
    let mut series = Series {
        step,
        ..Series::default()
    };
    let (Some(service), true) = (service, from < to) else {
        return Ok(series);
    };
    let (from, mut to) = (from - from % step, to.next_multiple_of(step));
    let horizons = horizons(transaction)?;
    let mut parts = Vec::new();
    for level in Level::ALL.into_iter().skip(level_for(step).index()) {
        let last = level.coarser().is_none();
        let start = if last {
            from
        } else {
            from.max(horizons[level.index()])
        };
        if start < to {
            let mut bins = Bins::new(
                query.resource.index(),
                (start, to),
                step.max(level.slot_seconds()),
            );
            series.damaged += read(transaction, level, service, &mut bins, (start, to))?;
            parts.push(bins);
            to = start;
        }
    }
    series.slots = parts.iter().rev().flat_map(Bins::slots).collect();
    Ok(series)
}

/// Adds everything that a tier has of a service in a span: its blocks, and the rows, its own
/// and of finer tiers, that are none yet.
fn read(
    transaction: &Transaction<'_>,
    level: Level,
    service: u32,
    bins: &mut Bins,
    (from, to): (u64, u64),
) -> rusqlite::Result<u64> {
    let mut damaged = 0;
    let only = Some(bins.resource());
    let (table, _) = TABLES[level.index()];
    let length = level.block_seconds();
    if let Some((first, last)) = block_range(transaction, level)? {
        let mut statement =
            transaction.prepare_cached(&format!("SELECT data FROM {table} WHERE key = ?"))?;
        for block in first.max(from / length)..=last.min((to - 1) / length) {
            let mut rows = statement.query([key(block, service)])?;
            let Some(row) = rows.next()? else { continue };
            match Block::decode(row.get_ref(0)?.as_blob().unwrap_or_default(), level, only) {
                Ok(found) => bins.add(level, block * length, &found),
                Err(_) => damaged += 1,
            }
        }
    }
    for finer in Level::ALL.into_iter().take(level.index() + 1) {
        let (_, open) = TABLES[finer.index()];
        let text = format!("SELECT at, data FROM {open} WHERE at >= ? AND at < ?");
        let mut statement = transaction.prepare_cached(&text)?;
        let mut rows = statement.query((from.cast_signed(), to.cast_signed()))?;
        while let Some(row) = rows.next()? {
            let at = row.get::<_, i64>(0)?.cast_unsigned();
            for entry in entries(row.get_ref(1)?.as_blob().unwrap_or_default()) {
                match entry.map(|e| (e.service == service).then(|| e.block(finer, only))) {
                    Ok(None) => {}
                    Ok(Some(Ok(found))) => {
                        bins.add(finer, at - at % finer.block_seconds(), &found);
                    }
                    Ok(Some(Err(_))) | Err(_) => damaged += 1,
                }
            }
        }
    }
    Ok(damaged)
}
