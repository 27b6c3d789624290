//! What an export reads at a time.
//!
//! A piece is some blocks of the tier by their keys, so in the order of time. The last piece has
//! what is no block yet, too, in the same transaction: nothing is missed, and nothing there twice,
//! when rows become blocks between two pieces.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bonsai_units::Resource;
use rusqlite::Transaction;

use crate::codec::{Block, Level, entries};
use crate::export::Export;
use crate::points::{SERVICE_BITS, TABLES, TOTAL, key};
use crate::query::{Slot, Sum};

/// Blocks that are read at a time: a few hundred kB.
const BLOCKS: u32 = 512;

/// A part of an export.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    what: &'a Export,
    from: i64,
}

/// What is in a piece.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Names of services.
    pub(super) names: HashMap<u32, String>,
    /// Slots, and whose they are.
    pub(super) slots: Vec<(u32, Resource, Slot)>,
    /// Blocks that cannot be read: gaps here as everywhere.
    pub(super) damaged: u64,
    /// Where the next piece begins, if there is one.
    pub(super) next: Option<i64>,
}

impl<'a> Piece<'a> {
    pub(super) fn first(what: &'a Export) -> Self {
        let from = what.from.min(1 << 40) / what.level.block_seconds();
        Self {
            what,
            from: key(from, 0),
        }
    }

    pub(super) fn after(&self, from: i64) -> Self {
        Self {
            what: self.what,
            from,
        }
    }

    /// Reads it.
    pub(crate) fn read(&self, transaction: &Transaction<'_>) -> rusqlite::Result<Rows> {
        let mut rows = Rows::default();
        let wanted = self.wanted(transaction, &mut rows)?;
        let level = self.what.level;
        let (table, _) = TABLES[level.index()];
        let text = format!(
            "SELECT key, data FROM {table} WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        );
        let end = key(self.what.to.min(1 << 40).div_ceil(level.block_seconds()), 0);
        let mut statement = transaction.prepare_cached(&text)?;
        let mut found = statement.query((self.from, end, BLOCKS))?;
        let mut number = 0;
        while let Some(row) = found.next()? {
            let at: i64 = row.get(0)?;
            number += 1;
            rows.next = Some(at + 1);
            let (block, service) = parts(at);
            if !wanted.contains(&service) {
                continue;
            }
            let data = row.get_ref(1)?.as_blob().unwrap_or_default();
            match Block::decode(data, level, None) {
                Ok(found) => self.add(&mut rows, service, block * level.block_seconds(), &found),
                Err(_) => rows.damaged += 1,
            }
        }
        if number < BLOCKS {
            rows.next = None;
            self.open_rows(transaction, &wanted, &mut rows)?;
        }
        Ok(rows)
    }

    /// The services, and their names.
    fn wanted(
        &self,
        transaction: &Transaction<'_>,
        rows: &mut Rows,
    ) -> rusqlite::Result<BTreeSet<u32>> {
        let mut statement = transaction.prepare_cached("SELECT id, name FROM service")?;
        let all = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
        for service in all {
            let (id, name) = service?;
            let named = self.what.services.as_ref();
            if named.is_none_or(|named| named.contains(&name)) {
                rows.names.insert(id, name);
            }
        }
        if self.what.services.is_none() {
            rows.names.insert(TOTAL, String::new());
        }
        Ok(rows.names.keys().copied().collect())
    }

    fn add(&self, rows: &mut Rows, service: u32, start: u64, block: &Block) {
        let level = self.what.level;
        for resource in self.resources() {
            for (i, (slot, seconds)) in block.slots.iter().enumerate() {
                let at = start + u64::from(*slot) * level.slot_seconds();
                let Some(cells) = block.cells(resource.index(), i) else {
                    break;
                };
                if (self.what.from..self.what.to).contains(&at) {
                    let mut sum = Sum::new();
                    sum.add(level, *seconds, Some(cells));
                    rows.slots
                        .push((service, resource, sum.slot(at, level.slot_seconds())));
                }
            }
        }
    }

    /// Rows of this tier that are no blocks yet, and what finer tiers have of slots that
    /// have not ended.
    fn open_rows(
        &self,
        transaction: &Transaction<'_>,
        wanted: &BTreeSet<u32>,
        rows: &mut Rows,
    ) -> rusqlite::Result<()> {
        let width = self.what.level.slot_seconds();
        let mut sums = BTreeMap::<(u64, u32, usize), Sum>::new();
        for finer in Level::ALL.into_iter().take(self.what.level.index() + 1) {
            let (_, open) = TABLES[finer.index()];
            let text = format!("SELECT at, data FROM {open} WHERE at >= ? AND at < ? ORDER BY at");
            let mut statement = transaction.prepare_cached(&text)?;
            let from = self.what.from.min(1 << 48).cast_signed();
            let to = self.what.to.min(1 << 48).cast_signed();
            let mut found = statement.query((from, to))?;
            while let Some(row) = found.next()? {
                let at = row.get::<_, i64>(0)?.cast_unsigned();
                let data = row.get_ref(1)?.as_blob().unwrap_or_default();
                for entry in entries(data) {
                    let Ok(entry) = entry else {
                        rows.damaged += 1;
                        continue;
                    };
                    if !wanted.contains(&entry.service) {
                        continue;
                    }
                    let Ok(block) = entry.block(finer, None) else {
                        rows.damaged += 1;
                        continue;
                    };
                    let seconds = block.slots.first().map_or(0, |(_, seconds)| *seconds);
                    for resource in self.resources() {
                        let key = (at - at % width, entry.service, resource.index());
                        if let Some(cells) = block.cells(resource.index(), 0) {
                            let sum = sums.entry(key).or_insert_with(Sum::new);
                            sum.add(finer, seconds, Some(cells));
                        }
                    }
                }
            }
        }
        for ((at, service, resource), sum) in sums {
            let resource = Resource::ALL[resource];
            rows.slots.push((service, resource, sum.slot(at, width)));
        }
        Ok(())
    }

    fn resources(&self) -> impl Iterator<Item = Resource> {
        let named = self.what.resources.as_deref().unwrap_or(&Resource::ALL);
        named.iter().copied()
    }
}

fn parts(key: i64) -> (u64, u32) {
    let key = key.cast_unsigned();
    let service = key & ((1 << SERVICE_BITS) - 1);
    (key >> SERVICE_BITS, u32::try_from(service).unwrap_or(0))
}
