//! Keeping within the bytes: what is oldest goes first.
//!
//! Hours may have a tenth of the points' bytes and minutes three tenths; seconds have what is
//! left, also of what those do not use yet, and are the first to go when all together are too
//! much. A tick removes a few minutes' blocks at most.

use rusqlite::{OptionalExtension, Transaction, TransactionBehavior};

use super::{Limits, Points, SERVICE_BITS, TABLES, Working, key};
use crate::codec::Level;
use crate::database::{self, PAGE};
use crate::error::Error;
use crate::options::Options;

/// Spans that a tick removes at most. A minute adds one.
const SPANS: usize = 4;
/// Spans that are removed when a full file is opened.
const SPANS_OF_RELIEF: usize = 4096;
/// Pages that a tick gives back to the file system at most, where the bound was lowered.
const VACUUM: u64 = 64;

impl Limits {
    /// Pages in use that nothing is removed below: the rest is for the largest transaction.
    fn pages(self) -> u64 {
        let all = self.file / PAGE;
        all - (all / 16).max(128)
    }

    /// Bytes of blocks that a tier may have.
    fn of(self, level: Level) -> u64 {
        let percent = match level {
            Level::Second => 100,
            Level::Minute => Options::MINUTES_PERCENT,
            Level::Hour => Options::HOURS_PERCENT,
        };
        self.file / 100 * percent
    }
}

impl Points {
    /// Where a file is as full as it may be, so that not even a tick fits, makes room first.
    pub(super) fn relieve(&mut self) -> Result<(), Error> {
        let failed = Error::sqlite(&self.path);
        let (used, _) = database::pages(&self.connection).map_err(&failed)?;
        if used < self.limits.file / PAGE - 64 {
            return Ok(());
        }
        for _ in 0..SPANS_OF_RELIEF / SPANS {
            let begun =
                Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate);
            let transaction = begun.map_err(&failed)?;
            let more = self
                .state
                .retain(&transaction, self.limits)
                .map_err(&failed)?;
            transaction.commit().map_err(&failed)?;
            if !more {
                break;
            }
        }
        Ok(())
    }
}

impl Working {
    /// Removes what is too much, a bounded part of it; whether there was any.
    pub(super) fn retain(
        &mut self,
        transaction: &Transaction<'_>,
        limits: Limits,
    ) -> rusqlite::Result<bool> {
        let mut removed = false;
        for _ in 0..SPANS {
            let (used, _) = database::pages(transaction)?;
            let over = |level: Level| self.bytes[level.index()] > limits.of(level);
            let level = if over(Level::Hour) {
                Level::Hour
            } else if over(Level::Minute) {
                Level::Minute
            } else if used <= limits.pages() {
                break;
            } else {
                Level::Second
            };
            let from = Level::ALL.into_iter().skip(level.index());
            let mut done = false;
            // Without seconds, minutes go.
            for level in from {
                if self.remove_oldest(transaction, level)? {
                    done = true;
                    break;
                }
            }
            if !done {
                break;
            }
            removed = true;
        }
        let (_, all) = database::pages(transaction)?;
        if all > limits.file / PAGE {
            let text = format!("PRAGMA incremental_vacuum({VACUUM})");
            let mut vacuum = transaction.prepare(&text)?;
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            removed = true;
        }
        Ok(removed)
    }

    /// Removes the oldest blocks of a tier; whether there were any.
    fn remove_oldest(
        &mut self,
        transaction: &Transaction<'_>,
        level: Level,
    ) -> rusqlite::Result<bool> {
        let (table, _) = TABLES[level.index()];
        let select = format!("SELECT key FROM {table} ORDER BY key LIMIT 1");
        let oldest: Option<i64> = transaction
            .prepare_cached(&select)?
            .query_row([], |row| row.get(0))
            .optional()?;
        let Some(oldest) = oldest else {
            self.bytes[level.index()] = 0;
            return Ok(false);
        };
        let block = oldest.cast_unsigned() >> SERVICE_BITS;
        let span = (key(block, 0), key(block + 1, 0));
        let sum = format!(
            "SELECT coalesce(sum(length(data)), 0) FROM {table} WHERE key >= ? AND key < ?"
        );
        let bytes: i64 = transaction
            .prepare_cached(&sum)?
            .query_row(span, |row| row.get(0))?;
        transaction
            .prepare_cached(&format!("DELETE FROM {table} WHERE key >= ? AND key < ?"))?
            .execute(span)?;
        let kept = &mut self.bytes[level.index()];
        *kept = kept.saturating_sub(bytes.cast_unsigned());
        let horizon = &mut self.horizon[level.index()];
        *horizon = (*horizon).max((block + 1) * level.block_seconds());
        self.save_tier(transaction, level)?;
        if level == Level::Hour {
            let before = self.horizon[level.index()];
            self.services.forget(transaction, before)?;
        }
        Ok(true)
    }

    pub(super) fn save_tier(
        &self,
        transaction: &Transaction<'_>,
        level: Level,
    ) -> rusqlite::Result<()> {
        let bytes = self.bytes[level.index()].cast_signed();
        let horizon = self.horizon[level.index()].cast_signed();
        transaction
            .prepare_cached("INSERT OR REPLACE INTO tier (level, bytes, horizon) VALUES (?, ?, ?)")?
            .execute((u32::try_from(level.index()).unwrap_or(0), bytes, horizon))?;
        Ok(())
    }
}
