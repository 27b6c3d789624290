//! Names of services as numbers.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Transaction};

use super::SERVICE_BITS;

/// A longer name is not kept; services' names are shorter.
const LONGEST: usize = 255;

/// Names that have numbers.
#[derive(Debug, Default)]
pub(super) struct Services(HashMap<Arc<str>, u32>);

impl Services {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut rows = connection.prepare("SELECT name, id FROM service")?;
        let all = rows.query_map([], |row| {
            Ok((Arc::from(row.get::<_, String>(0)?), row.get::<_, u32>(1)?))
        })?;
        Ok(Self(all.collect::<rusqlite::Result<_>>()?))
    }

    /// How many there are.
    pub(super) fn number(&self) -> usize {
        self.0.len()
    }

    /// The number of a name, a new one where it has none; nothing where it cannot have one, or
    /// where the tick is `full` and it has none.
    pub(super) fn intern(
        &mut self,
        transaction: &Transaction<'_>,
        name: &Arc<str>,
        second: u64,
        full: bool,
    ) -> rusqlite::Result<Option<u32>> {
        if let Some(id) = self.0.get(name) {
            return Ok(Some(*id));
        }
        if full || name.is_empty() || name.len() > LONGEST {
            return Ok(None);
        }
        let Some(id) = unused(transaction)? else {
            return Ok(None);
        };
        let at = second.cast_signed();
        transaction
            .prepare_cached("INSERT INTO service (id, name, first, last) VALUES (?, ?, ?, ?)")?
            .execute((id, &**name, at, at))?;
        self.0.insert(Arc::clone(name), id);
        Ok(Some(id))
    }

    /// Forgets names whose points are all gone.
    pub(super) fn forget(
        &mut self,
        transaction: &Transaction<'_>,
        before: u64,
    ) -> rusqlite::Result<()> {
        let mut gone =
            transaction.prepare_cached("DELETE FROM service WHERE last < ? RETURNING name")?;
        let names = gone.query_map([before.cast_signed()], |row| row.get::<_, String>(0))?;
        for name in names {
            self.0.remove(name?.as_str());
        }
        Ok(())
    }
}

/// A number behind all others, or, where these are used up, one that was given back.
fn unused(transaction: &Transaction<'_>) -> rusqlite::Result<Option<u32>> {
    const NEXT: &str = "SELECT coalesce(max(id), 0) + 1 FROM service";
    const FREE: &str = "SELECT s.id + 1 FROM service s
        WHERE NOT EXISTS (SELECT 1 FROM service t WHERE t.id = s.id + 1) ORDER BY s.id LIMIT 1";
    let most = 1_u32 << SERVICE_BITS;
    let next: u32 = transaction
        .prepare_cached(NEXT)?
        .query_row([], |row| row.get(0))?;
    if next < most {
        return Ok(Some(next));
    }
    let free: Option<u32> = transaction
        .query_row(FREE, [], |row| row.get(0))
        .optional()?;
    Ok(free.filter(|id| *id < most))
}
