//! The index of annotations: SQLite with its full-text engine, FTS5.
//!
//! It follows from the folders of the videos. Whoever opens it makes it up to date, in one transaction:
//! videos that are not there any more go, those that came since are read. Then it is looked at in a
//! transaction, too: what others change meanwhile is not seen. One that is damaged is made anew; where it
//! cannot be kept, as in the library of somebody else, or others change it again and again, it is made in
//! memory. A video whose events cannot be read is not in it, and the others are.
//!
//! SQLite is in Bonsai for its history already, and brings transactions, so that a search sees a video
//! whole or not at all. The runner-up, tantivy, ranks by BM25 likewise, and is faster from some millions
//! of events on: a match has a few hundred.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, Row, TransactionBehavior, params, params_from_iter};
use serde::Serialize;

use crate::library::Listed;
use crate::query::{MOST_HITS, Query, folded};
use crate::video::Video;
use crate::{Error, Event, Library, Name};

/// The version of the tables, kept as `user_version`.
const VERSION: i64 = 1;

/// Words are compared without accents, and in all their English forms.
const TABLES: &str = "
    DROP TABLE IF EXISTS video;
    DROP TABLE IF EXISTS event;
    DROP TABLE IF EXISTS field;
    DROP TABLE IF EXISTS words;
    CREATE TABLE video (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE);
    CREATE TABLE event (
        number INTEGER PRIMARY KEY, video INTEGER NOT NULL, place INTEGER NOT NULL, at_ms INTEGER NOT NULL,
        content TEXT NOT NULL
    );
    CREATE INDEX event_video ON event (video, place);
    CREATE TABLE field (event INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL);
    CREATE INDEX field_event ON field (event, name);
    CREATE VIRTUAL TABLE words USING fts5 (
        text, fields, title, tokenize = 'porter unicode61 remove_diacritics 2'
    );
    PRAGMA user_version = 1;";

/// How often it is made up to date before others may have it.
const TRIES: usize = 4;

/// An event that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hit {
    /// In which video.
    pub video: Name,
    /// The how many-th event of the video it is, from 0.
    pub number: u32,
    /// How well it fits: BM25, larger is better; 0 where no words were looked for.
    pub score: f64,
    /// What happens.
    pub event: Event,
}

/// The index of a library.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    pub(crate) connection: Connection,
}

impl Index {
    /// Opens it, up to date with these videos. What is wrong with their events is said in `problems`.
    pub(crate) fn open(library: &Library, listed: &mut Listed) -> Result<Self, Error> {
        let path = library.private("index.db");
        let opened = match Self::at(&path, library, listed) {
            Err(Error::Database { error, .. }) if is_damaged(&error) => {
                // A journal that is left of it must not be rolled back into the next.
                for file in [&path, &library.private("index.db-journal")] {
                    match std::fs::remove_file(file) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            return Err(Error::file(file, "is damaged and cannot be removed")(
                                error,
                            ));
                        }
                        _ => {}
                    }
                }
                Self::at(&path, library, listed)
            }
            Err(Error::Database { error, .. }) if cannot_be_kept(&error) => Ok(None),
            Err(Error::File { error, .. })
                if error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Ok(None)
            }
            other => other,
        };
        match opened? {
            Some(index) => Ok(index),
            None => Self::in_memory(library, listed),
        }
    }

    /// `None` if others change it again and again.
    fn at(path: &Path, library: &Library, listed: &mut Listed) -> Result<Option<Self>, Error> {
        let mut index = Self {
            path: path.to_owned(),
            connection: private_database(path)?,
        };
        Ok(index.update(library, listed)?.then_some(index))
    }

    fn in_memory(library: &Library, listed: &mut Listed) -> Result<Self, Error> {
        let path = PathBuf::from("the index in memory");
        let connection = Connection::open_in_memory().map_err(Error::database(&path))?;
        let mut index = Self { path, connection };
        index.update(library, listed)?;
        Ok(index)
    }

    /// Makes it up to date, and stays in a transaction in which it is; whether that is so.
    fn update(&mut self, library: &Library, listed: &mut Listed) -> Result<bool, Error> {
        let failed = Error::database(&self.path);
        let mut unreadable = BTreeSet::new();
        for _ in 0..TRIES {
            self.connection.execute_batch("BEGIN").map_err(&failed)?;
            if is_up_to_date(&self.connection, &listed.videos, &unreadable).map_err(&failed)? {
                return Ok(true);
            }
            self.connection.execute_batch("ROLLBACK").map_err(&failed)?;
            let transaction = self
                .connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(&failed)?;
            // Somebody else may have made it since.
            if version(&transaction).map_err(&failed)? != VERSION {
                transaction.execute_batch(TABLES).map_err(&failed)?;
            }
            for (number, id, name) in known(&transaction).map_err(&failed)? {
                if !listed.videos.iter().any(|video| is_of(video, &id, &name)) {
                    forget(&transaction, number).map_err(&failed)?;
                }
            }
            let known = known(&transaction).map_err(&failed)?;
            for video in &listed.videos {
                if unreadable.contains(&video.id) || known.iter().any(|(_, id, _)| *id == video.id)
                {
                    continue;
                }
                match library.events(&video.name) {
                    Ok(events) => learn(&transaction, video, &events).map_err(&failed)?,
                    Err(error) => {
                        listed.problems.push(error.to_string());
                        unreadable.insert(video.id.clone());
                    }
                }
            }
            transaction.commit().map_err(&failed)?;
        }
        Ok(false)
    }

    /// How many events fit, and the best of them.
    pub(crate) fn search(
        &self,
        query: &Query,
        words: Option<&str>,
    ) -> Result<(u64, Vec<Hit>), Error> {
        let (from, values) = fitting(query, words);
        let failed = Error::database(&self.path);
        let total: i64 = self
            .connection
            .query_row(
                &format!("SELECT count(*) {from}"),
                params_from_iter(&values),
                |row| row.get(0),
            )
            .map_err(&failed)?;
        let score = match words {
            // What is said counts most, then what it is, then what the whole video is called.
            Some(_) => "-bm25(words, 1.0, 2.0, 0.3)",
            None => "0.0",
        };
        let sql = format!(
            "SELECT video.name, event.place, event.content, {score} AS score {from}
             ORDER BY score DESC, video.name, event.place LIMIT {}",
            query.most.clamp(1, MOST_HITS)
        );
        let mut statement = self.connection.prepare(&sql).map_err(&failed)?;
        let rows = statement
            .query_map(params_from_iter(&values), hit)
            .map_err(&failed)?;
        let hits = rows.filter_map(Result::transpose).collect::<Result<_, _>>();
        Ok((u64::try_from(total).unwrap_or(0), hits.map_err(&failed)?))
    }

    /// An event by its place in its video.
    pub(crate) fn event(&self, video: &Name, place: u32) -> Result<Option<Hit>, Error> {
        let sql = "SELECT video.name, event.place, event.content, 0.0 FROM event JOIN video ON video.number = event.video
                   WHERE video.name = ?1 AND event.place = ?2";
        let found = self
            .connection
            .query_row(sql, params![video.as_str(), place], hit);
        match found {
            Ok(hit) => Ok(hit),
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(None),
            Err(error) => Err(Error::database(&self.path)(error)),
        }
    }

    /// What fields have, of each name those first that most events have, and up to so many.
    pub(crate) fn values(&self, most: usize) -> Result<BTreeMap<String, Vec<String>>, Error> {
        let failed = Error::database(&self.path);
        let sql = "SELECT name, value FROM field GROUP BY name, value ORDER BY name, count(*) DESC, value";
        let mut statement = self.connection.prepare(sql).map_err(&failed)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows.map_err(&failed)? {
            let (name, value) = row.map_err(&failed)?;
            let of_name = values.entry(name).or_default();
            if of_name.len() < most {
                of_name.push(value);
            }
        }
        Ok(values)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn is_of(video: &Video, id: &str, name: &str) -> bool {
    video.id == id && video.name.as_str() == name
}

fn is_up_to_date(
    connection: &Connection,
    videos: &[Video],
    unreadable: &BTreeSet<String>,
) -> rusqlite::Result<bool> {
    if version(connection)? != VERSION {
        return Ok(false);
    }
    let known = known(connection)?;
    let is_known = |video: &&Video| known.iter().any(|(_, id, name)| is_of(video, id, name));
    let readable = videos
        .iter()
        .filter(|video| !unreadable.contains(&video.id));
    let count = readable.clone().count();
    Ok(known.len() == count && readable.filter(is_known).count() == count)
}

/// A row as a hit; none where it is of no event, which cannot be.
fn hit(row: &Row<'_>) -> rusqlite::Result<Option<Hit>> {
    let (name, content): (String, String) = (row.get(0)?, row.get(2)?);
    let (Ok(video), Ok(event)) = (Name::parse(&name), serde_json::from_str(&content)) else {
        return Ok(None);
    };
    Ok(Some(Hit {
        video,
        number: row.get(1)?,
        score: row.get(3)?,
        event,
    }))
}

/// FROM and WHERE of a query, and the values in it.
fn fitting(query: &Query, words: Option<&str>) -> (String, Vec<Value>) {
    let mut values = Vec::new();
    let mut value = |value: Value| {
        values.push(value);
        format!("?{}", values.len())
    };
    let mut from = "FROM event JOIN video ON video.number = event.video".to_owned();
    let mut conditions = vec!["1".to_owned()];
    if let Some(words) = words {
        from.push_str(" JOIN words ON words.rowid = event.number");
        conditions.push(format!("words MATCH {}", value(words.to_owned().into())));
    }
    for wanted in &query.wanted {
        let field = match folded(&wanted.field).as_str() {
            "players" => "player".to_owned(),
            other => other.to_owned(),
        };
        let field = value(field.into());
        // Whole words of it.
        let any = wanted.any.iter().map(|one| {
            format!(
                "instr(' ' || field.value || ' ', {}) > 0",
                value(format!(" {} ", folded(one)).into())
            )
        });
        let any = any.collect::<Vec<_>>().join(" OR ");
        conditions.push(format!(
            "EXISTS (SELECT 1 FROM field WHERE field.event = event.number AND field.name = {field} AND ({}))",
            if any.is_empty() { "0" } else { &any }
        ));
    }
    if !query.videos.is_empty() {
        let names = query
            .videos
            .iter()
            .map(|name| value(name.as_str().to_owned().into()));
        conditions.push(format!(
            "video.name IN ({})",
            names.collect::<Vec<_>>().join(", ")
        ));
    }
    let mut bound = |bound: Option<u64>, sign: &str| {
        if let Some(ms) = bound {
            let ms = i64::try_from(ms).unwrap_or(i64::MAX);
            conditions.push(format!("event.at_ms {sign} {}", value(ms.into())));
        }
    };
    bound(query.from_ms, ">=");
    bound(query.to_ms, "<=");
    (format!("{from} WHERE {}", conditions.join(" AND ")), values)
}

fn known(connection: &Connection) -> rusqlite::Result<Vec<(i64, String, String)>> {
    let mut statement = connection.prepare_cached("SELECT number, id, name FROM video")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

fn forget(connection: &Connection, video: i64) -> rusqlite::Result<()> {
    let events = "(SELECT number FROM event WHERE video = ?1)";
    connection.execute(
        &format!("DELETE FROM words WHERE rowid IN {events}"),
        [video],
    )?;
    connection.execute(
        &format!("DELETE FROM field WHERE event IN {events}"),
        [video],
    )?;
    connection.execute("DELETE FROM event WHERE video = ?1", [video])?;
    connection.execute("DELETE FROM video WHERE number = ?1", [video])?;
    Ok(())
}

fn learn(connection: &Connection, video: &Video, events: &[Event]) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO video (id, name) VALUES (?1, ?2)",
        [&video.id, video.name.as_str()],
    )?;
    let number = connection.last_insert_rowid();
    let mut into_event = connection.prepare_cached(
        "INSERT INTO event (video, place, at_ms, content) VALUES (?1, ?2, ?3, ?4)",
    )?;
    let mut into_field =
        connection.prepare_cached("INSERT INTO field (event, name, value) VALUES (?1, ?2, ?3)")?;
    let mut into_words = connection
        .prepare_cached("INSERT INTO words (rowid, text, fields, title) VALUES (?1, ?2, ?3, ?4)")?;
    for (place, event) in events.iter().enumerate() {
        let content = serde_json::to_string(event).unwrap_or_default();
        let at = i64::try_from(event.at_ms).unwrap_or(i64::MAX);
        let place = i64::try_from(place).unwrap_or(i64::MAX);
        into_event.execute(params![number, place, at, content])?;
        let event_number = connection.last_insert_rowid();
        let fields = fields(event);
        for (name, value) in &fields {
            into_field.execute(params![event_number, name, folded(value)])?;
        }
        let said: Vec<&str> = fields.iter().map(|(_, value)| value.as_str()).collect();
        into_words.execute(params![
            event_number,
            event.text,
            said.join("\n"),
            video.title
        ])?;
    }
    Ok(())
}

/// What is said of an event but its text: names as in [`crate::Wanted`], and values.
pub(crate) fn fields(event: &Event) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    if !event.kind.is_empty() {
        fields.push(("type".to_owned(), event.kind.clone()));
    }
    fields.extend(
        event
            .players
            .iter()
            .map(|player| ("player".to_owned(), player.clone())),
    );
    fields.extend(
        event
            .fields
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    fields
}

/// A database that only the owner may read; made if it is not there.
pub(crate) fn private_database(path: &Path) -> Result<Connection, Error> {
    // SQLite would make it as the umask says; its journal gets the mode of the database.
    let made = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    made.map_err(Error::file(path, "cannot be opened"))?;
    let failed = Error::database(path);
    let connection = Connection::open(path).map_err(&failed)?;
    connection
        .busy_timeout(Duration::from_secs(10))
        .map_err(&failed)?;
    Ok(connection)
}

fn is_damaged(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

fn cannot_be_kept(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(
            ErrorCode::ReadOnly
                | ErrorCode::CannotOpen
                | ErrorCode::DiskFull
                | ErrorCode::PermissionDenied
        )
    )
}
