//! Rows of all services become blocks of each.

use std::cell::Cell;
use std::collections::BTreeMap;

use rusqlite::{OptionalExtension, Transaction};

use super::{TABLES, Working, key, readable};
use crate::codec::{Block, Level, push_entry};

impl Working {
    /// Makes blocks of the rows of one span, and a row of the next coarser tier.
    pub(super) fn fold(
        &mut self,
        transaction: &Transaction<'_>,
        level: Level,
        block: u64,
    ) -> rusqlite::Result<()> {
        let rows = open_rows(transaction, level, block)?;
        if level == Level::Second {
            self.waiting = self.waiting.saturating_sub(rows.len());
        }
        // First, so that their pages are those of the blocks, also in a file that is full.
        let (_, open) = TABLES[level.index()];
        transaction
            .prepare_cached(&format!("DELETE FROM {open} WHERE at >= ? AND at < ?"))?
            .execute(span(level, block))?;
        // Each row has its services in order, so that one block at a time is made of all rows.
        let damaged = Cell::new(0);
        let rows = rows.iter().map(|row| readable(row, &damaged).peekable());
        let mut rows: Vec<_> = rows.collect();
        let mut upward = BTreeMap::new();
        while let Some(service) = rows
            .iter_mut()
            .filter_map(|r| Some(r.peek()?.service))
            .min()
        {
            let mut new = Block::default();
            // Rows come in the order of time.
            for row in &mut rows {
                if let Some(entry) = row.next_if(|entry| entry.service == service)
                    && entry.append_to(&mut new, level, None).is_err()
                {
                    damaged.set(damaged.get() + 1);
                }
            }
            // What had damaged slots only.
            if new.slots.is_empty() {
                continue;
            }
            if let Some(coarser) = level.coarser() {
                upward.insert(service, summary(&new, level, coarser, block));
            }
            self.store(transaction, level, block, service, new)?;
        }
        self.damaged += damaged.get();
        if let Some(coarser) = level.coarser() {
            self.add_row(transaction, coarser, block * level.block_seconds(), upward)?;
        }
        self.open[level.index()].remove(&block);
        self.save_tier(transaction, level)
    }

    /// Writes a block, with what stands there already.
    fn store(
        &mut self,
        transaction: &Transaction<'_>,
        level: Level,
        block: u64,
        service: u32,
        new: Block,
    ) -> rusqlite::Result<()> {
        let (table, _) = TABLES[level.index()];
        let key = key(block, service);
        let select = format!("SELECT data FROM {table} WHERE key = ?");
        let old: Option<Vec<u8>> = transaction
            .prepare_cached(&select)?
            .query_row([key], |row| row.get(0))
            .optional()?;
        let before = old.as_ref().map_or(0, Vec::len) as u64;
        let whole = match old.map(|old| Block::decode(&old, level, None)) {
            None => new,
            Some(Ok(old)) => old.merged(&new, level),
            Some(Err(_)) => {
                self.damaged += 1;
                new
            }
        };
        let bytes = whole.encoded(level);
        let kept = &mut self.bytes[level.index()];
        *kept = (*kept + bytes.len() as u64).saturating_sub(before);
        transaction
            .prepare_cached(&format!(
                "INSERT OR REPLACE INTO {table} (key, data) VALUES (?, ?)"
            ))?
            .execute((key, bytes))?;
        if level == Level::Second {
            let second = |slot: Option<&(u8, u16)>| {
                let slot = slot.map_or(0, |(slot, _)| u64::from(*slot));
                (block * level.block_seconds() + slot).cast_signed()
            };
            let (first, last) = (second(whole.slots.first()), second(whole.slots.last()));
            transaction
                .prepare_cached(
                    "UPDATE service SET first = min(first, ?), last = max(last, ?) WHERE id = ?",
                )?
                .execute((first, last, service))?;
        }
        Ok(())
    }

    /// Adds one slot of each service to a tier's rows.
    fn add_row(
        &mut self,
        transaction: &Transaction<'_>,
        level: Level,
        at: u64,
        mut slots: BTreeMap<u32, Block>,
    ) -> rusqlite::Result<()> {
        let (_, open) = TABLES[level.index()];
        let select = format!("SELECT data FROM {open} WHERE at = ?");
        let there: Option<Vec<u8>> = transaction
            .prepare_cached(&select)?
            .query_row([at.cast_signed()], |row| row.get(0))
            .optional()?;
        let damaged = Cell::new(0);
        for entry in readable(&there.unwrap_or_default(), &damaged) {
            let Ok(old) = entry.block(level, None) else {
                damaged.set(damaged.get() + 1);
                continue;
            };
            let both = match slots.remove(&entry.service) {
                Some(new) => old.merged(&new, level),
                None => old,
            };
            slots.insert(entry.service, both);
        }
        self.damaged += damaged.get();
        let mut row = Vec::new();
        for (service, slot) in &slots {
            push_entry(&mut row, *service, level, slot);
        }
        transaction
            .prepare_cached(&format!(
                "INSERT OR REPLACE INTO {open} (at, data) VALUES (?, ?)"
            ))?
            .execute((at.cast_signed(), row))?;
        self.open[level.index()].insert(at / level.block_seconds());
        Ok(())
    }
}

/// Everything of a block as its slot in the next coarser tier.
fn summary(block: &Block, level: Level, coarser: Level, at: u64) -> Block {
    let (seconds, cells) = block.summary(level);
    let slot = u8::try_from(at % coarser.slots() as u64).unwrap_or(0);
    Block::single(coarser, slot, seconds, &cells)
}

fn span(level: Level, block: u64) -> (i64, i64) {
    let from = block * level.block_seconds();
    (
        from.cast_signed(),
        (from + level.block_seconds()).cast_signed(),
    )
}

fn open_rows(
    transaction: &Transaction<'_>,
    level: Level,
    block: u64,
) -> rusqlite::Result<Vec<Vec<u8>>> {
    let (_, open) = TABLES[level.index()];
    let select = format!("SELECT data FROM {open} WHERE at >= ? AND at < ? ORDER BY at");
    let mut statement = transaction.prepare_cached(&select)?;
    let rows = statement.query_map(span(level, block), |row| row.get(0))?;
    rows.collect()
}
