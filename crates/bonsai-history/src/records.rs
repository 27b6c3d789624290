//! The writer's side of `audit.sqlite`: the audit trail, and named bytes.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior};

use crate::audit::{AuditEntry, AuditFilter, AuditRow, Columns, differences};
use crate::database::{self, Kind, MovedAside};
use crate::error::Error;
use crate::options::Options;

/// The name of the file.
pub(crate) const FILE: &str = "audit.sqlite";

const KIND: Kind = Kind {
    file: FILE,
    version: 1,
    schema: include_str!("records.sql"),
    synchronous: "FULL",
};

/// Bytes of the WAL, and room in the file for indices and for pages that are not full.
const WAL: u64 = 1 << 20;
/// The longest name of named bytes.
const LONGEST_KEY: usize = 128;
/// Entries that are removed at a time.
const REMOVED: u32 = 8;

/// Named bytes, and the version that their writer gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The version of their form.
    pub version: u32,
    /// The bytes.
    pub data: Vec<u8>,
}

/// The open database.
#[derive(Debug)]
pub(crate) struct Records {
    path: PathBuf,
    connection: Connection,
    audit_bytes: u64,
    state_bytes: u64,
}

impl Records {
    /// Opens it in the folder.
    pub(crate) fn open(
        folder: &Path,
        options: &Options,
    ) -> Result<(Self, Option<MovedAside>), Error> {
        // Twice the state: replaced as a whole, both are there for a moment.
        let file = options.audit_bytes + 2 * options.state_bytes + WAL;
        database::open(folder, KIND, (file, WAL), |path, connection| {
            // At most a few tens of MB, so it is read as a whole.
            database::check(&connection, &path)?;
            Ok(Self {
                path,
                connection,
                audit_bytes: options.audit_bytes,
                state_bytes: options.state_bytes,
            })
        })
    }

    /// Appends entries, all or none of them; entries with a number that is there are left out.
    pub(crate) fn append<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a (Option<u64>, AuditEntry)>,
    ) -> Result<(), Error> {
        let most = self.audit_bytes;
        self.change(|transaction| {
            for (id, entry) in entries {
                insert(transaction, *id, entry)?;
            }
            bound(transaction, most)
        })
    }

    /// Replaces named bytes; none removes them.
    pub(crate) fn put(&mut self, key: &str, blob: Option<&Blob>) -> Result<(), Error> {
        let most = self.state_bytes;
        if let Some(blob) = blob {
            refuse(key, blob, most)?;
        }
        let others = self.others(key)?;
        let new = blob.map_or(0, |blob| blob.data.len() as u64);
        if new > 0 && others + new > most {
            return Err(Error::TooLarge(format!(
                "{new} B for {key:?} and {others} B of other state are more than the {most} B there are: \
                 raise the bound of learned state"
            )));
        }
        self.change(|transaction| {
            match blob {
                Some(blob) => transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO state (key, version, data) VALUES (?, ?, ?)",
                    )?
                    .execute((key, blob.version, &blob.data))?,
                None => transaction.execute("DELETE FROM state WHERE key = ?", [key])?,
            };
            Ok(())
        })
    }

    fn others(&self, key: &str) -> Result<u64, Error> {
        const OTHERS: &str = "SELECT coalesce(sum(length(data)), 0) FROM state WHERE key != ?";
        let bytes: rusqlite::Result<i64> =
            self.connection.query_row(OTHERS, [key], |row| row.get(0));
        bytes
            .map(i64::cast_unsigned)
            .map_err(Error::sqlite(&self.path))
    }

    /// Reads the whole file; an error where it is damaged.
    pub(crate) fn check(&self) -> Result<(), Error> {
        database::check(&self.connection, &self.path)?;
        // SQLite does not look whether texts are texts.
        let mut page = AuditFilter {
            limit: 1000,
            ..AuditFilter::default()
        };
        loop {
            let rows = audit(&self.connection, &page).map_err(Error::sqlite(&self.path))?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            page.before = Some(last.id);
        }
    }

    /// Bytes of pages in use, of the file and of the WAL.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        let (file, wal) = database::sizes(&self.path);
        let used =
            database::pages(&self.connection).map_or(file, |(used, _)| used * database::PAGE);
        (used, file, wal)
    }

    fn change(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), Error> {
        let failed = Error::sqlite(&self.path);
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begun.map_err(&failed)?;
        work(&transaction).map_err(&failed)?;
        transaction.commit().map_err(&failed)
    }
}

/// Why named bytes cannot be kept by themselves.
pub(crate) fn refuse(key: &str, blob: &Blob, most: u64) -> Result<(), Error> {
    if key.is_empty() || key.len() > LONGEST_KEY {
        return Err(Error::TooLarge(format!(
            "the name of state {key:?} has {} B: 1 to {LONGEST_KEY} B are right",
            key.len()
        )));
    }
    let bytes = blob.data.len() as u64;
    if bytes > most {
        return Err(Error::TooLarge(format!(
            "{bytes} B for {key:?} are more than the {most} B there are: raise the bound of learned state"
        )));
    }
    Ok(())
}

fn insert(
    transaction: &Transaction<'_>,
    id: Option<u64>,
    entry: &AuditEntry,
) -> rusqlite::Result<()> {
    const INSERT: &str =
        "INSERT INTO audit (id, revision, unix_ms, actor, uid, name, pid, peer, via, by_name,
        action, service, before, after, reason, dry_run, bytes)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (id) DO NOTHING";
    let Columns {
        actor,
        uid,
        user,
        pid,
        peer,
        via,
        via_name,
    } = entry.columns();
    let bytes = i64::try_from(entry.bytes()).unwrap_or(i64::MAX);
    let [before, after] = entry.sides();
    let added = transaction
        .prepare_cached(INSERT)?
        .execute(rusqlite::params![
            id.map(u64::cast_signed),
            entry.revision.cast_signed(),
            entry.unix_ms.cast_signed(),
            actor,
            uid,
            user,
            pid,
            peer,
            via,
            via_name,
            entry.action,
            entry.service,
            before,
            after,
            entry.reason,
            entry.dry_run,
            bytes,
        ])?;
    transaction
        .prepare_cached("UPDATE size SET audit_bytes = audit_bytes + ?")?
        .execute([if added == 0 { 0 } else { bytes }])?;
    Ok(())
}

/// Removes the oldest entries while there are too many bytes; the last one stays.
fn bound(transaction: &Transaction<'_>, most: u64) -> rusqlite::Result<()> {
    const OLDEST: &str = "DELETE FROM audit WHERE id IN (SELECT id FROM audit
            WHERE id < (SELECT max(id) FROM audit) ORDER BY id LIMIT ?) RETURNING bytes";
    loop {
        let bytes: i64 = transaction
            .prepare_cached("SELECT audit_bytes FROM size")?
            .query_row([], |row| row.get(0))?;
        if bytes.cast_unsigned() <= most {
            return Ok(());
        }
        let mut oldest = transaction.prepare_cached(OLDEST)?;
        let gone = oldest.query_map([REMOVED], |row| row.get::<_, i64>(0))?;
        let gone = gone.sum::<rusqlite::Result<i64>>()?;
        if gone == 0 {
            return Ok(());
        }
        let left = (bytes - gone).max(0);
        transaction
            .prepare_cached("UPDATE size SET audit_bytes = ?")?
            .execute([left])?;
    }
}

/// The entries that a filter lets through, newest first.
pub(crate) fn audit(
    connection: &Connection,
    filter: &AuditFilter,
) -> rusqlite::Result<Vec<AuditRow>> {
    const SELECT: &str = "SELECT id, revision, unix_ms, actor, uid, name, pid, peer, via, by_name,
            action, service, before, after, reason, dry_run
        FROM audit
        WHERE (?1 IS NULL OR service = ?1) AND (?2 IS NULL OR uid = ?2)
          AND (?3 IS NULL OR action = ?3) AND (?4 IS NULL OR unix_ms >= ?4)
          AND (?5 IS NULL OR unix_ms < ?5) AND (?6 IS NULL OR dry_run = ?6)
          AND (?7 IS NULL OR id < ?7)
        ORDER BY id DESC LIMIT ?8";
    let mut statement = connection.prepare_cached(SELECT)?;
    let rows = statement.query_map(
        rusqlite::params![
            filter.service,
            filter.uid,
            filter.action,
            filter.since_ms.map(u64::cast_signed),
            filter.until_ms.map(u64::cast_signed),
            filter.dry_run,
            filter.before.map(u64::cast_signed),
            filter.number(),
        ],
        row_of,
    )?;
    rows.collect()
}

fn row_of(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let columns = Columns {
        actor: row.get(3)?,
        uid: row.get(4)?,
        user: row.get(5)?,
        pid: row.get(6)?,
        peer: row.get(7)?,
        via: row.get(8)?,
        via_name: row.get(9)?,
    };
    let (differences, left_out, problem) = differences([row.get(12)?, row.get(13)?]);
    Ok(AuditRow {
        id: number(0)?,
        problem,
        entry: AuditEntry {
            revision: number(1)?,
            unix_ms: number(2)?,
            actor: columns.actor(),
            via: columns.via(),
            action: row.get(10)?,
            service: row.get(11)?,
            differences,
            left_out,
            reason: row.get(14)?,
            dry_run: row.get(15)?,
        },
    })
}

/// Named bytes.
pub(crate) fn get(connection: &Connection, key: &str) -> rusqlite::Result<Option<Blob>> {
    connection
        .prepare_cached("SELECT version, data FROM state WHERE key = ?")?
        .query_row([key], |row| {
            Ok(Blob {
                version: row.get(0)?,
                data: row.get(1)?,
            })
        })
        .optional()
}
