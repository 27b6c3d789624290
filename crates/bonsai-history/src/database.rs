//! Opening a database: made where there is none, refused where it is not ours to write, moved
//! aside where it is damaged.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags};

use crate::error::Error;

/// `application_id` of SQLite's header: "Bnsi".
const APPLICATION: i32 = 0x426e_7369;
/// Bytes of a page. Blocks of a service and minute have a few hundred bytes; pages of this
/// size lose little at their ends, and a tick dirties few of them.
pub(crate) const PAGE: u64 = 8192;

/// A link to another file is not followed, and a pipe not waited for.
pub(crate) const NO_LINK: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()).cast_signed();

/// Damaged files of a name that are kept.
const DAMAGED_KEPT: usize = 2;

/// What makes one database differ from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) file: &'static str,
    pub(crate) version: i32,
    pub(crate) schema: &'static str,
    /// `NORMAL`: may lose the last transactions with the machine's power; `FULL`: none.
    pub(crate) synchronous: &'static str,
}

/// What was done to a damaged file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedAside {
    pub(crate) sentence: String,
}

/// Makes the folder, for its owner alone.
pub(crate) fn make_folder(folder: &Path) -> Result<PathBuf, Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| Error::file(folder, error))?;
    let meta = fs::metadata(folder).map_err(|error| Error::file(folder, error))?;
    check_owner(folder, &meta)?;
    restrict(folder, 0o700)?;
    folder
        .canonicalize()
        .map_err(|error| Error::file(folder, error))
}

/// Refuses a file or folder of another user than this process' and root: its content would be theirs.
fn check_owner(path: &Path, meta: &fs::Metadata) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() == own || meta.uid() == 0 {
        return Ok(());
    }
    let text = format!(
        "it belongs to user {}, and has to be user {own}'s",
        meta.uid()
    );
    let error = std::io::Error::new(std::io::ErrorKind::PermissionDenied, text);
    Err(Error::file(path, error))
}

/// Takes the rights of others away, where they have any.
pub(crate) fn restrict(path: &Path, mode: u32) -> Result<(), Error> {
    let found = fs::metadata(path).map_err(|error| Error::file(path, error))?;
    if found.permissions().mode() & 0o777 & !mode == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| Error::file(path, error))
}

/// Opens the database to write it, and makes of it what is wanted; one that turns out to be
/// damaged is moved aside, and a new one begun. `(file, WAL)` are the most bytes of each.
pub(crate) fn open<T>(
    folder: &Path,
    kind: Kind,
    (file_bytes, wal_bytes): (u64, u64),
    make: impl Fn(PathBuf, Connection) -> Result<T, Error>,
) -> Result<(T, Option<MovedAside>), Error> {
    let path = folder.join(kind.file);
    let attempt = || {
        let connection = connect(&path, kind, file_bytes, wal_bytes)?;
        compare(&path, &connection, kind)?;
        make(path.clone(), connection)
    };
    let aside = match look(&path, kind.version)? {
        Found::Ours => {
            restrict(&path, 0o600)?;
            match attempt() {
                Err(error) if error.is_corrupt() => move_aside(&path, &error.to_string())?,
                done => return done.map(|made| (made, None)),
            }
        }
        Found::Damaged(what) => move_aside(&path, what)?,
        Found::Nothing => {
            create(&path, kind)?;
            return attempt().map(|made| (made, None));
        }
    };
    create(&path, kind)?;
    attempt().map(|made| (made, Some(aside)))
}

enum Found {
    Nothing,
    Ours,
    Damaged(&'static str),
}

/// What the file is, from its first bytes: nothing is touched, not even by SQLite. Of our
/// files they are always up to date, because the WAL comes after them ([`create`]).
fn look(path: &Path, known: i32) -> Result<Found, Error> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(NO_LINK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(Error::file(path, error)),
    };
    let meta = file.metadata().map_err(|error| Error::file(path, error))?;
    check_owner(path, &meta)?;
    let mut header = Vec::new();
    let read = file.take(100).read_to_end(&mut header);
    read.map_err(|error| Error::file(path, error))?;
    // https://www.sqlite.org/fileformat.html, "The Database Header".
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Ok(Found::Damaged("its header is none of a database"));
    }
    let word = |at: usize| {
        let bytes = header[at..at + 4].try_into();
        bytes.map_or(0, i32::from_be_bytes)
    };
    if word(68) != APPLICATION {
        return Err(Error::Foreign {
            path: path.to_owned(),
        });
    }
    match word(60) {
        found if found > known => Err(Error::Newer {
            path: path.to_owned(),
            found,
            known,
        }),
        found if found < 1 => Ok(Found::Damaged("its version is none")),
        _ => Ok(Found::Ours),
    }
}

/// A new database under another name, complete before it has its own.
fn create(path: &Path, kind: Kind) -> Result<(), Error> {
    let new = beside(path, ".new");
    for old in [
        new.clone(),
        beside(&new, "-wal"),
        beside(&new, "-shm"),
        beside(&new, "-journal"),
    ] {
        remove(&old)?;
    }
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new);
    drop(made.map_err(|error| Error::file(&new, error))?);
    let done = fill(&new, kind);
    if let Err(error) = done {
        // Of no use to anybody; the next attempt would remove it, too.
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    // A WAL that belonged to a file that is gone must not meet the new one.
    for old in ["-wal", "-shm", "-journal"] {
        remove(&beside(path, old))?;
    }
    fs::rename(&new, path).map_err(|error| Error::file(path, error))?;
    sync_folder(path)
}

fn fill(new: &Path, kind: Kind) -> Result<(), Error> {
    let failed = Error::sqlite(new);
    let connection = Connection::open_with_flags(new, flags()).map_err(&failed)?;
    let text = format!(
        "PRAGMA page_size = {PAGE};
         PRAGMA auto_vacuum = INCREMENTAL;
         PRAGMA journal_mode = WAL;
         BEGIN;
         {}
         PRAGMA application_id = {APPLICATION};
         PRAGMA user_version = {};
         COMMIT;",
        kind.schema, kind.version
    );
    connection.execute_batch(&text).map_err(&failed)?;
    // Writes the WAL back and removes it.
    connection.close().map_err(|(_, error)| failed(error))
}

fn connect(path: &Path, kind: Kind, file_bytes: u64, wal_bytes: u64) -> Result<Connection, Error> {
    let failed = Error::sqlite(path);
    let connection = Connection::open_with_flags(path, flags()).map_err(&failed)?;
    connection
        .busy_timeout(Duration::from_secs(1))
        .map_err(&failed)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Less than half of the WAL's bytes, so that the largest transaction fits behind what has
    // not been written back yet.
    let checkpoint = wal_bytes / 8 * 3 / PAGE;
    let checkpoint_bytes = checkpoint * PAGE;
    let text = format!(
        "PRAGMA trusted_schema = OFF;
         PRAGMA cell_size_check = ON;
         PRAGMA temp_store = MEMORY;
         PRAGMA cache_size = -1024;
         PRAGMA synchronous = {};
         PRAGMA wal_autocheckpoint = {checkpoint};
         PRAGMA journal_size_limit = {checkpoint_bytes};
         PRAGMA max_page_count = {};",
        kind.synchronous,
        file_bytes / PAGE
    );
    connection.execute_batch(&text).map_err(&failed)?;
    let mode: String = connection
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(&failed)?;
    if mode != "wal" {
        return Err(Error::Options(format!(
            "`{}` cannot have a write-ahead log on this file system: choose a local one",
            path.display()
        )));
    }
    Ok(connection)
}

fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
}

/// The file under another name, with all that belongs to it.
pub(crate) fn move_aside(path: &Path, what: &str) -> Result<MovedAside, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    let mut to = beside(path, &format!(".corrupt-{now}"));
    let mut again = 1;
    while to.exists() {
        to = beside(path, &format!(".corrupt-{now}-{again}"));
        again += 1;
    }
    for end in ["-wal", "-shm", "-journal", ""] {
        match fs::rename(beside(path, end), beside(&to, end)) {
            Err(error) if !end.is_empty() && error.kind() == std::io::ErrorKind::NotFound => {}
            done => done.map_err(|error| Error::file(path, error))?,
        }
    }
    forget_older(path);
    sync_folder(path)?;
    Ok(MovedAside {
        sentence: format!(
            "`{}` was damaged ({what}); it is now `{}`, and a new one was begun",
            path.display(),
            to.display()
        ),
    })
}

/// Damaged files are kept to be looked at, but not so many that they fill the disk.
fn forget_older(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let start = format!("{}.corrupt-", name.to_string_lossy());
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let extra = ["-wal", "-shm", "-journal"];
    let whole =
        |name: &String| name.starts_with(&start) && !extra.iter().any(|e| name.ends_with(e));
    let mut damaged: Vec<String> = names.filter(whole).collect();
    // The time of day has the same number of digits for centuries.
    damaged.sort();
    let older = damaged.len().saturating_sub(DAMAGED_KEPT);
    for name in &damaged[..older] {
        for end in ["", "-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(folder.join(format!("{name}{end}")));
        }
    }
}

/// A path with something behind its name.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file(path, error)),
        _ => Ok(()),
    }
}

fn sync_folder(path: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::file(folder, error))
}

/// Whether the tables are those of the version that the header names: a damaged page may hold
/// other words that SQLite finds nothing wrong with.
fn compare(path: &Path, connection: &Connection, kind: Kind) -> Result<(), Error> {
    let failed = Error::sqlite(path);
    let tables = |connection: &Connection| -> rusqlite::Result<Vec<(String, Option<String>)>> {
        let mut statement =
            connection.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    };
    let expected = Connection::open_in_memory().map_err(&failed)?;
    expected.execute_batch(kind.schema).map_err(&failed)?;
    if tables(connection).map_err(&failed)? == tables(&expected).map_err(&failed)? {
        Ok(())
    } else {
        Err(damaged(
            path,
            "its tables are others than those of its version",
        ))
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    Error::sqlite(path)(rusqlite::Error::SqliteFailure(code, Some(what.to_owned())))
}

/// Reads the whole file; an error where it is damaged.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<(), Error> {
    let failed = Error::sqlite(path);
    let found: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(&failed)?;
    if found == "ok" {
        return Ok(());
    }
    Err(damaged(path, found.lines().next().unwrap_or_default()))
}

/// Bytes of the database and of its WAL.
pub(crate) fn sizes(path: &Path) -> (u64, u64) {
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    (size(path), size(&beside(path, "-wal")))
}

/// Pages that hold something, and pages of the file.
pub(crate) fn pages(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let all = number("page_count")?.cast_unsigned();
    let free = number("freelist_count")?.cast_unsigned();
    Ok((all.saturating_sub(free), all))
}
