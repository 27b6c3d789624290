//! The audit trail, in the database and as a file of lines.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use bonsai_history::{
    Actor, AuditEntry, AuditFilter, AuditLog, AuditRow, Difference, History, Options, State, Via,
};

use crate::support::{MIDNIGHT, entry, folder, history, options, reader};

fn revisions(rows: &[AuditRow]) -> Vec<u64> {
    rows.iter().map(|row| row.entry.revision).collect()
}

/// One of each kind of actor and way.
fn kinds() -> Vec<AuditEntry> {
    let token = "phone".to_owned();
    let kinds = [
        (
            Actor::User {
                uid: 0,
                name: None,
                pid: None,
                peer: None,
            },
            Via::Socket,
        ),
        (
            Actor::Token {
                name: token.clone(),
                peer: Some("[::1]:4711".to_owned()),
            },
            Via::Tcp { token },
        ),
        (
            Actor::Policy {
                name: "adaptive".to_owned(),
            },
            Via::Policy,
        ),
        (Actor::Timer, Via::Timer),
        (
            Actor::Config,
            Via::Config {
                path: "/etc/bonsai.toml".to_owned(),
            },
        ),
    ];
    let entries = kinds
        .into_iter()
        .zip(1..)
        .map(|((actor, via), revision)| AuditEntry {
            actor,
            via,
            service: None,
            differences: Vec::new(),
            dry_run: revision % 2 == 0,
            ..entry(revision)
        });
    entries.collect()
}

#[test]
fn entries_are_read_as_they_were_written() {
    let folder = folder();
    let mut history = history(&folder);
    let mut all = kinds();
    all.push(entry(9));
    for entry in &all {
        history.audit(entry.clone());
    }
    let rows = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    let read: Vec<_> = rows.iter().rev().map(|row| row.entry.clone()).collect();
    assert_eq!(read, all);
    assert!(rows.is_sorted_by(|a, b| a.id > b.id));
}

#[test]
fn filters_and_pages() {
    let folder = folder();
    let mut history = history(&folder);
    for revision in 0..250 {
        let mut entry = entry(revision);
        entry.service = Some(format!("s{}", revision % 5));
        entry.action = if revision % 2 == 0 { "set" } else { "undo" }.to_owned();
        entry.dry_run = revision % 10 == 0;
        if revision % 3 == 0 {
            entry.actor = Actor::User {
                uid: 7,
                name: None,
                pid: None,
                peer: None,
            };
        }
        history.audit(entry);
    }
    let reader = reader(&folder);
    let found = |filter: &AuditFilter| revisions(&reader.audit(filter).expect("entries"));
    let newest_first =
        |keep: &dyn Fn(&u64) -> bool| (0..250).rev().filter(keep).collect::<Vec<_>>();
    let all = AuditFilter {
        limit: 1000,
        ..AuditFilter::default()
    };
    assert_eq!(found(&all), newest_first(&|_| true));
    assert_eq!(found(&AuditFilter::default()).len(), 100);
    let of = AuditFilter {
        service: Some("s3".to_owned()),
        ..all.clone()
    };
    assert_eq!(found(&of), newest_first(&|r| r % 5 == 3));
    let by = AuditFilter {
        uid: Some(7),
        dry_run: Some(false),
        ..all.clone()
    };
    assert_eq!(found(&by), newest_first(&|r| r % 3 == 0 && r % 10 != 0));
    let (since, until) = (MIDNIGHT * 1000 + 100, MIDNIGHT * 1000 + 110);
    let then = AuditFilter {
        action: Some("undo".to_owned()),
        since_ms: Some(since),
        until_ms: Some(until),
        ..all
    };
    assert_eq!(
        found(&then),
        newest_first(&|r| (100..110).contains(r) && r % 2 == 1)
    );
    // Page by page, also while more are written.
    let mut pages = Vec::new();
    let mut page = AuditFilter {
        limit: 40,
        ..AuditFilter::default()
    };
    loop {
        let rows = reader.audit(&page).expect("entries");
        let Some(last) = rows.last() else { break };
        page.before = Some(last.id);
        pages.extend(revisions(&rows));
        history.audit(entry(1000));
    }
    assert_eq!(pages, newest_first(&|_| true));
}

#[test]
fn the_trail_is_bounded_and_the_oldest_goes_first() {
    let folder = folder();
    let path = folder.path().join("history");
    let options = Options {
        audit_bytes: Options::LEAST_RECORDS,
        ..options()
    };
    let mut history = History::open(&path, options.clone()).expect("a writer");
    for revision in 0..3000 {
        let mut entry = entry(revision);
        entry.reason = "because ".repeat(usize::try_from(revision % 50).expect("small"));
        history.audit(entry);
        if revision % 100 == 0 {
            let (_, file, wal) = history.status().records_bytes;
            let most = options.audit_bytes + options.state_bytes + (2 << 20);
            assert!(file + wal <= most, "{file} and {wal} B at {revision}");
        }
    }
    let rows = reader(&folder).audit(&AuditFilter {
        limit: 1000,
        ..AuditFilter::default()
    });
    let kept = revisions(&rows.expect("entries"));
    assert_eq!(kept[0], 2999);
    assert!(kept.len() > 300 && kept.len() < 1000, "{}", kept.len());
    assert!(kept.is_sorted_by(|a, b| *a == b + 1), "without holes");
}

#[test]
fn a_text_without_end_is_cut() {
    let folder = folder();
    let mut history = history(&folder);
    history.audit(AuditEntry {
        reason: "é".repeat(1 << 20),
        ..entry(1)
    });
    let rows = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    let reason = &rows[0].entry.reason;
    assert!(reason.len() < 17_000 && reason.ends_with("é…"));
}

fn many(number: usize) -> Vec<Difference> {
    let of = |i: usize| Difference {
        path: format!("services.svc{i:05}-with-a-longish-name.send.max"),
        from: (!i.is_multiple_of(3)).then(|| "5Mbit/s".to_owned()),
        to: (i % 3 < 2).then(|| "7Mbit/s".to_owned()),
    };
    (0..number).map(of).collect()
}

#[test]
fn differences_are_kept_each_as_a_whole_and_those_left_out_are_counted() {
    let folder = folder();
    let mut history = history(&folder);
    for number in [600, 5000] {
        history.audit(AuditEntry {
            differences: many(number),
            ..entry(1)
        });
    }
    let rows = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    let of = |row: &AuditRow| (row.entry.differences.clone(), row.entry.left_out);
    assert_eq!(of(&rows[1]), (many(600), 0));
    let (kept, left_out) = of(&rows[0]);
    assert!(
        kept.len() > 600 && left_out > 0,
        "{} {left_out}",
        kept.len()
    );
    assert_eq!(kept, many(5000)[..kept.len()]);
    assert_eq!(kept.len() as u64 + left_out, 5000);
    assert!(rows.iter().all(|row| row.problem.is_none()));
    let file = folder.path().join("history/audit.sqlite");
    let after: String = rusqlite::Connection::open(file)
        .and_then(|sql| sql.query_row("SELECT after FROM audit WHERE id = 2", [], |row| row.get(0)))
        .expect("a column");
    assert!(
        after.ends_with(&format!("\"…\":\"and {left_out} more\"}}")),
        "for people, too"
    );
}

#[test]
fn what_an_earlier_version_cut_off_is_read_up_to_there_and_said() {
    let folder = folder();
    let mut history = history(&folder);
    history.audit(entry(1));
    let file = folder.path().join("history/audit.sqlite");
    let sql = rusqlite::Connection::open(file).expect("a database");
    let copy =
        "INSERT INTO audit (revision, unix_ms, actor, via, action, after, reason, dry_run, bytes)
        VALUES (2, 0, 'timer', 'timer', 'set', ?, '', 0, 1)";
    let mut text = r#"{"a":"1","b":"2","c":""#.to_owned() + &"x".repeat(16_384);
    text.push('…');
    sql.execute(copy, [&text]).expect("a row");
    sql.execute(copy, ["{\"a\":"]).expect("a row");
    let rows = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    let about = |row: &AuditRow| (row.entry.differences.len(), row.problem.clone());
    let [damaged, cut, whole] = [0, 1, 2].map(|at: usize| about(&rows[at]));
    assert_eq!(whole, (1, None));
    assert!(cut.0 == 2 && cut.1.expect("a problem").contains("cut"));
    assert!(damaged.0 == 0 && damaged.1.expect("a problem").contains("cannot be read"));
    // None of it is a reason to begin a new database.
    history.check();
    assert_eq!(history.status().notes, Vec::<String>::new());
}

#[test]
fn an_entry_has_the_number_that_it_was_given_and_is_there_once() {
    let folder = folder();
    let mut history = history(&folder);
    for (id, revision) in [(7, 1), (9, 2), (7, 3), (8, 4)] {
        history.audit_as(id, entry(revision));
    }
    assert_eq!(history.status().stored, 9);
    history.audit(entry(5));
    let rows = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row.id, row.entry.revision))
        .collect();
    assert_eq!(rows, [(10, 5), (9, 2), (8, 4), (7, 1)]);
}

#[test]
fn an_entry_is_never_altered() {
    let folder = folder();
    history(&folder).audit(entry(1));
    let file = folder.path().join("history/audit.sqlite");
    let connection = rusqlite::Connection::open(file).expect("a database");
    let error = connection
        .execute("UPDATE audit SET reason = 'none'", [])
        .expect_err("refused");
    assert!(error.to_string().contains("append-only"), "{error}");
}

#[test]
fn entries_wait_while_they_cannot_be_written() {
    let folder = folder();
    let path = folder.path().join("history");
    drop(history(&folder));
    let file = path.join("audit.sqlite");
    let version = |version: i32| {
        let connection = rusqlite::Connection::open(&file).expect("a database");
        connection
            .pragma_update(None, "user_version", version)
            .expect("set");
    };
    version(99);
    let options = Options {
        audit_queue: 10,
        ..options()
    };
    let mut history = History::open(&path, options).expect("a writer");
    for revision in 0..13 {
        history.audit(entry(revision));
    }
    let status = history.status();
    assert!(matches!(status.records, State::Off(_)));
    assert_eq!(
        (status.counters.waiting_audit, status.counters.dropped_audit),
        (10, 3)
    );
    version(1);
    // Pauses of 1, 2, 4, ... ms have gone by.
    for _ in 0..200 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        history.attend();
    }
    assert_eq!(
        history.status().counters.waiting_audit,
        0,
        "{:?}",
        history.status()
    );
    let rows = reader(&folder)
        .audit(&AuditFilter::default())
        .expect("entries");
    assert_eq!(revisions(&rows), (3..13).rev().collect::<Vec<_>>());
}

#[test]
fn the_file_of_lines_is_rotated_and_private() {
    let folder = folder();
    let path = folder.path().join("audit.jsonl");
    let mut log = AuditLog::open(&path, 2000, 2).expect("a file");
    for revision in 0..40 {
        log.append(&entry(revision)).expect("written");
    }
    let mut read = Vec::new();
    for name in ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"] {
        let file = folder.path().join(name);
        assert_eq!(
            fs::metadata(&file).expect("there").permissions().mode() & 0o777,
            0o600
        );
        let text = fs::read_to_string(&file).expect("text");
        assert!(
            text.len() <= 2000 && text.ends_with('\n'),
            "{name}: {} B",
            text.len()
        );
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(value["actor"]["name"], "ada");
            read.push(value["revision"].as_u64().expect("a number"));
        }
    }
    assert_eq!(read.last(), Some(&39));
    assert!(
        read.len() > 8 && read.is_sorted_by(|a, b| a + 1 == *b),
        "{read:?}"
    );
    assert!(!folder.path().join("audit.jsonl.3").exists());
}

#[test]
fn a_line_that_was_cut_off_stands_alone() {
    let folder = folder();
    let path = folder.path().join("audit.jsonl");
    AuditLog::open(&path, 1 << 20, 1)
        .expect("a file")
        .append(&entry(1))
        .expect("written");
    let mut file = OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("the file");
    file.write_all(b"{\"revision\":2,\"un").expect("written");
    AuditLog::open(&path, 1 << 20, 1)
        .expect("a file")
        .append(&entry(3))
        .expect("written");
    let text = fs::read_to_string(&path).expect("text");
    let good: Vec<bool> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
        .collect();
    assert_eq!(good, [true, false, true]);
}
