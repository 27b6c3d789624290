//! Files that are damaged, foreign, newer, or somebody else's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bonsai_history::{AuditFilter, Error, Export, Format, History, Level, Options, Reader, State};

use crate::support::{
    MIDNIGHT, entry, folder, history, means, options, query, reader, seconds, sent,
};

/// A folder with an hour and a half of points and a hundred entries.
fn make(path: &Path) {
    let mut history = History::open(path, options()).expect("a writer");
    for second in 0..5400 {
        history.tick(&sent(MIDNIGHT + second, "vod", second * 31));
    }
    for revision in 0..100 {
        history.audit(entry(revision));
    }
}

fn names(path: &Path) -> Vec<String> {
    let files = fs::read_dir(path).expect("a folder").flatten();
    let mut names: Vec<_> = files
        .map(|f| f.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_that_is_no_database_is_moved_aside() {
    let folder = folder();
    let path = folder.path().join("history");
    for file in ["history.sqlite", "audit.sqlite"] {
        for content in [
            &b"x"[..],
            b"not a database, but long enough to be taken for one: ",
            &[0; 5000],
        ] {
            make(&path);
            fs::write(path.join(file), content).expect("written");
            let mut history = History::open(&path, options()).expect("a writer");
            history.tick(&sent(MIDNIGHT, "new", 1));
            history.audit(entry(7));
            let status = history.status();
            assert_eq!(
                (status.points, status.records),
                (State::Writing, State::Writing)
            );
            let [note] = &status.notes[..] else {
                panic!("{:?}", status.notes)
            };
            assert!(
                note.contains("a new one was begun") && note.contains(".corrupt-"),
                "{note}"
            );
            let aside = names(&path)
                .into_iter()
                .find(|name| name.contains(".corrupt-"));
            let aside = aside.expect("the old one");
            assert!(aside.starts_with(&format!("{file}.corrupt-")), "{aside}");
            assert_eq!(fs::read(path.join(aside)).expect("the old one"), content);
            let reader = Reader::new(&path);
            assert_eq!(
                reader.audit(&AuditFilter::default()).expect("entries")[0].entry,
                entry(7)
            );
            assert!(!reader.services().expect("services").is_empty());
            drop(history);
            fs::remove_dir_all(&path).expect("removed");
        }
    }
}

#[test]
fn only_the_newest_damaged_files_are_kept() {
    let folder = folder();
    let path = folder.path().join("history");
    for content in [b'1', b'2', b'3', b'4'] {
        drop(History::open(&path, options()).expect("a writer"));
        fs::write(path.join("history.sqlite"), [content; 10]).expect("written");
    }
    drop(History::open(&path, options()).expect("a writer"));
    let damaged: Vec<_> = names(&path)
        .into_iter()
        .filter(|n| n.contains(".corrupt-"))
        .collect();
    assert_eq!(damaged.len(), 2, "{damaged:?}");
}

/// Bytes flipped anywhere: whatever comes of it is an answer, never a panic, and at the latest
/// when somebody has met the damage and says so, points are written again.
#[test]
fn flipped_bytes_never_stop_the_history() {
    let folder = folder();
    let whole = folder.path().join("whole");
    make(&whole);
    let path = folder.path().join("damaged");
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).expect("31 bits") % below
    };
    let mut moved = 0;
    for round in 0..36 {
        fs::create_dir_all(&path).expect("a folder");
        for file in ["history.sqlite", "audit.sqlite"] {
            let mut bytes = fs::read(whole.join(file)).expect("the file");
            // A few anywhere, or many in one page; the header's name and version have tests
            // of their own.
            let (from, span) = match round % 3 {
                0 => (100, bytes.len() - 100),
                1 => (100, 8092),
                _ => (next(bytes.len() / 8192) * 8192 + 100, 8092),
            };
            for _ in 0..1 << (round % 8) {
                let at = from + next(span);
                bytes[at] ^= 1 << next(8);
            }
            fs::write(path.join(file), bytes).expect("written");
        }
        let mut history = History::open(&path, options()).expect("a writer");
        let now = MIDNIGHT + 86_400;
        for second in 0..70 {
            history.tick(&sent(now + second, "vod", 5));
        }
        let reader = Reader::new(&path);
        let mut damage = use_all(&reader);
        if damage.as_ref().is_some_and(Error::is_corrupt) {
            history.check();
            assert!(
                !history.status().notes.is_empty(),
                "round {round}: {damage:?} {:?}",
                history.status()
            );
            damage = use_all(&reader);
        }
        moved += history.status().notes.len();
        assert!(!damage.is_some_and(|error| error.is_corrupt()));
        history.audit(entry(1000));
        history.tick(&sent(now + 70, "vod", 5));
        let status = history.status();
        assert_eq!(
            (&status.points, &status.records),
            (&State::Writing, &State::Writing)
        );
        assert_eq!(
            means(&seconds(&reader, "vod", now + 70, now + 71)),
            [(now + 70, 5.0)]
        );
        drop(history);
        fs::remove_dir_all(&path).expect("removed");
    }
    assert!(moved > 8, "damage is met: {moved}");
}

/// Reads everything; the first error.
fn use_all(reader: &Reader) -> Option<Error> {
    let export = Export {
        from: 0,
        to: u64::MAX,
        level: Level::Second,
        services: None,
        resources: None,
    };
    let all = [
        reader.services().map(drop),
        reader
            .series(&query("vod", MIDNIGHT, MIDNIGHT + 90_000, 20_000))
            .map(drop),
        reader
            .series(&query("vod", MIDNIGHT, MIDNIGHT + 90_000, 20))
            .map(drop),
        reader
            .export(&export, Format::Csv, std::io::sink())
            .map(drop),
        reader
            .audit(&AuditFilter {
                limit: 1000,
                ..AuditFilter::default()
            })
            .map(drop),
        reader.get("overlay").map(drop),
    ];
    all.into_iter().find_map(Result::err)
}

#[test]
fn a_damaged_block_is_a_gap_that_is_counted() {
    let folder = folder();
    let path = folder.path().join("history");
    make(&path);
    // A row that SQLite finds nothing wrong with.
    let connection = rusqlite::Connection::open(path.join("history.sqlite")).expect("a database");
    let text = "UPDATE second SET data = zeroblob(22) WHERE key = (? << 20 | 1)";
    let changed = connection.execute(text, [i64::try_from(MIDNIGHT / 60 + 3).expect("small")]);
    assert_eq!(changed, Ok(1));
    drop(connection);
    let reader = Reader::new(&path);
    let series = seconds(&reader, "vod", MIDNIGHT, MIDNIGHT + 600);
    assert_eq!(series.damaged, 1);
    let at: Vec<_> = series.slots.iter().map(|slot| slot.at - MIDNIGHT).collect();
    assert_eq!(at, (0..180).chain(240..600).collect::<Vec<_>>());
    // The tier above has its own copy.
    let minutes = reader
        .series(&query("vod", MIDNIGHT, MIDNIGHT + 600, 10))
        .expect("a series");
    assert_eq!((minutes.damaged, minutes.slots.len()), (0, 10));
    // A file that lacks it is none that looks whole.
    let export = Export {
        from: MIDNIGHT,
        to: MIDNIGHT + 600,
        level: Level::Second,
        services: Some(vec!["vod".to_owned()]),
        resources: None,
    };
    let exported = reader
        .export(&export, Format::Csv, std::io::sink())
        .expect("an export");
    assert_eq!((exported.damaged, exported.rows), (1, 540));
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    for name in ["history.sqlite", "audit.sqlite", "history.lock"] {
        let folder = folder();
        let path = folder.path().join("history");
        fs::create_dir(&path).expect("a folder");
        let victim = folder.path().join("victim");
        fs::write(&victim, "untouched").expect("a file");
        std::os::unix::fs::symlink(&victim, path.join(name)).expect("a link");
        let mut history = History::open(&path, options()).expect("a writer that is off");
        history.tick(&sent(MIDNIGHT, "vod", 1));
        history.audit(entry(1));
        let status = history.status();
        let states = [status.points, status.records];
        assert!(
            states
                .iter()
                .any(|state| matches!(state, State::Off(why) if why.contains(name))),
            "{states:?}"
        );
        assert_eq!(fs::read_to_string(&victim).expect("text"), "untouched");
        assert!(path.join(name).is_symlink(), "{name} is left alone");
    }
}

#[test]
fn a_newer_database_is_refused_and_not_touched() {
    let folder = folder();
    let path = folder.path().join("history");
    make(&path);
    for file in ["history.sqlite", "audit.sqlite"] {
        let file = path.join(file);
        let connection = rusqlite::Connection::open(&file).expect("a database");
        connection
            .pragma_update(None, "user_version", 2)
            .expect("set");
        drop(connection);
        let before = fs::read(&file).expect("the file");
        let mut history = History::open(&path, options()).expect("a writer that is off");
        history.tick(&sent(MIDNIGHT, "vod", 1));
        history.audit(entry(1));
        let status = history.status();
        let states = [&status.points, &status.records];
        let sentence = states.into_iter().find_map(|state| match state {
            State::Off(why) => Some(why.clone()),
            State::Writing => None,
        });
        let sentence = sentence.expect("one is off");
        assert!(
            sentence.contains("has version 2") && sentence.contains("up to 1"),
            "{sentence}"
        );
        assert_eq!(fs::read(&file).expect("the file"), before);
        let names = names(&path);
        assert!(
            names.iter().all(|name| !name.contains("corrupt")),
            "{names:?}"
        );
        // The other one goes on.
        assert_eq!(
            states
                .iter()
                .filter(|state| **state == &State::Writing)
                .count(),
            1
        );
        drop(history);
        let connection = rusqlite::Connection::open(&file).expect("a database");
        connection
            .pragma_update(None, "user_version", 1)
            .expect("set");
    }
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("history");
    fs::create_dir(&path).expect("a folder");
    let file = path.join("history.sqlite");
    let connection = rusqlite::Connection::open(&file).expect("a database");
    connection
        .execute_batch("CREATE TABLE mine (x)")
        .expect("a table");
    drop(connection);
    let before = fs::read(&file).expect("the file");
    let history = History::open(&path, options()).expect("a writer that is off");
    let State::Off(why) = history.status().points else {
        panic!("it writes into it");
    };
    assert!(why.contains("another program"), "{why}");
    assert_eq!(fs::read(&file).expect("the file"), before);
}

#[test]
fn a_second_writer_is_refused() {
    let folder = folder();
    let first = history(&folder);
    let second = History::open(&folder.path().join("history"), options());
    let error = second.expect_err("there is one");
    assert!(matches!(error, Error::Locked { .. }));
    let pid = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
    drop(first);
    drop(history(&folder));
}

#[test]
fn what_is_made_is_for_its_owner_alone() {
    let folder = folder();
    let path = folder.path().join("history");
    // Rights that were given meanwhile are taken back.
    for _ in 0..2 {
        let mut history = History::open(&path, options()).expect("a writer");
        history.tick(&sent(MIDNIGHT, "vod", 1));
        history.audit(entry(1));
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        let names = names(&path);
        assert!(
            names.len() >= 7,
            "databases, WALs, shared memory and lock: {names:?}"
        );
        for name in names {
            assert_eq!(mode(&path.join(&name)), 0o600, "{name}");
        }
        drop(history);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        let file = path.join("history.sqlite");
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("set");
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = folder();
    let few = Options {
        points_bytes: 1 << 20,
        ..options()
    };
    let error = History::open(folder.path(), few).expect_err("too little");
    assert!(error.to_string().contains("at least 8388608 B"), "{error}");
    // A folder that cannot be made is a history that is off.
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let history = History::open(&file.join("history"), options()).expect("off");
    assert!(matches!(history.status().points, State::Off(why) if why.contains("file")));
    assert!(matches!(
        reader(&folder).services(),
        Err(Error::Absent { .. })
    ));
}
