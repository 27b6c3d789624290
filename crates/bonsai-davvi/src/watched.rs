//! What was watched: for the owner of the library alone, and kept there.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};

use crate::index::private_database;
use crate::{Error, Library, Name};

/// The most that is kept; the oldest goes first.
const MOST: i64 = 10_000;

/// The most that is noted at once.
const MOST_AT_ONCE: usize = 1000;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS watched (
        id TEXT NOT NULL, place INTEGER NOT NULL, unix_s INTEGER NOT NULL, PRIMARY KEY (id, place)
    ) WITHOUT ROWID;";

impl Library {
    /// Notes that events were watched: a video, and the number of the event in it.
    ///
    /// # Errors
    /// There is no such event, and nothing is noted; or it cannot be kept.
    pub fn watched(&self, events: &[(Name, u32)]) -> Result<(), Error> {
        if events.len() > MOST_AT_ONCE {
            return Err(Error::input(format!(
                "more than {MOST_AT_ONCE} events cannot be noted at once"
            )));
        }
        let mut videos = HashMap::new();
        for (name, _) in events {
            if !videos.contains_key(name) {
                videos.insert(name, self.video(name)?);
            }
        }
        let mut places = Vec::new();
        for (name, number) in events {
            let video = &videos[name];
            if *number as usize >= video.events {
                return Err(Error::input(format!(
                    "{name}:{number}: there is no such event: it has {}",
                    video.events
                )));
            }
            places.push((&video.id, *number));
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let path = self.private("watched.db");
        let failed = Error::database(&path);
        let mut connection = self.open_watched()?;
        let transaction = connection.transaction().map_err(&failed)?;
        for (id, place) in places {
            let noted = transaction.execute(
                "INSERT INTO watched VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET unix_s = excluded.unix_s",
                params![id, place, now],
            );
            noted.map_err(&failed)?;
        }
        let oldest = "DELETE FROM watched WHERE (id, place) IN
            (SELECT id, place FROM watched ORDER BY unix_s DESC LIMIT -1 OFFSET ?1)";
        transaction.execute(oldest, [MOST]).map_err(&failed)?;
        transaction.commit().map_err(&failed)
    }

    /// What was watched of what is in the library now: videos, and numbers of events in them.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn seen(&self) -> Result<Vec<(Name, u32)>, Error> {
        let videos = self.list()?.videos;
        let names: HashMap<&str, &Name> = videos
            .iter()
            .map(|video| (video.id.as_str(), &video.name))
            .collect();
        let watched = self.watched_events()?;
        let seen = watched
            .iter()
            .filter_map(|(id, number)| Some(((*names.get(id.as_str())?).clone(), *number)));
        let mut seen: Vec<_> = seen.collect();
        seen.sort();
        Ok(seen)
    }

    /// What was watched: ids of videos, and numbers of events in them.
    pub(crate) fn watched_events(&self) -> Result<Vec<(String, u32)>, Error> {
        let path = self.private("watched.db");
        let failed = Error::database(&path);
        let connection = self.open_watched()?;
        let mut statement = connection
            .prepare("SELECT id, place FROM watched")
            .map_err(&failed)?;
        let rows = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(&failed)?;
        rows.collect::<Result<_, _>>().map_err(&failed)
    }

    fn open_watched(&self) -> Result<Connection, Error> {
        let path = self.private("watched.db");
        let connection = private_database(&path)?;
        connection
            .execute_batch(TABLE)
            .map_err(Error::database(&path))?;
        Ok(connection)
    }
}
