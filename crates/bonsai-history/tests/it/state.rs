//! Named bytes: what was learned, and the overlay.

use bonsai_history::{Blob, Error, History, Options};

use crate::support::{folder, history, options, reader};

fn blob(version: u32, length: usize) -> Blob {
    let [byte, ..] = version.to_le_bytes();
    Blob {
        version,
        data: vec![byte; length],
    }
}

#[test]
fn named_bytes_are_replaced_as_a_whole_and_outlive_the_writer() {
    let folder = folder();
    let mut history = history(&folder);
    assert_eq!(history.get("overlay").expect("state"), None);
    for version in 1..=20 {
        history
            .put("overlay", Some(blob(version, 100_000)))
            .expect("room");
        history
            .put(&format!("learned-{version}"), Some(blob(version, 10)))
            .expect("room");
    }
    assert_eq!(
        history.get("overlay").expect("state"),
        Some(blob(20, 100_000))
    );
    history.put("learned-3", None).expect("removed");
    drop(history);
    let reader = reader(&folder);
    assert_eq!(
        reader.get("overlay").expect("state"),
        Some(blob(20, 100_000))
    );
    assert_eq!(reader.get("learned-3").expect("state"), None);
    assert_eq!(reader.get("learned-4").expect("state"), Some(blob(4, 10)));
}

#[test]
fn too_much_state_is_refused_and_the_old_stays() {
    let folder = folder();
    let options = Options {
        state_bytes: Options::LEAST_RECORDS,
        ..options()
    };
    let mut history = History::open(&folder.path().join("history"), options).expect("a writer");
    history.put("a", Some(blob(1, 200_000))).expect("room");
    let refused = [
        ("a", 300_000, "raise the bound"),
        ("b", 100_000, "200000 B of other state"),
        ("", 1, "1 to 128 B"),
    ];
    for (key, length, why) in refused {
        let error = history
            .put(key, Some(blob(2, length)))
            .expect_err("too much");
        assert!(matches!(error, Error::TooLarge(_)));
        assert!(error.to_string().contains(why), "{error}");
    }
    // Often, so that nothing of the old ones stays in the file.
    for version in 0..50 {
        history
            .put("a", Some(blob(version, 250_000)))
            .expect("room");
    }
    assert_eq!(history.get("a").expect("state"), Some(blob(49, 250_000)));
    assert_eq!(history.get("b").expect("state"), None);
}

#[test]
fn what_waits_is_what_is_read() {
    let folder = folder();
    let path = folder.path().join("history");
    drop(history(&folder));
    let file = path.join("audit.sqlite");
    let connection = rusqlite::Connection::open(&file).expect("a database");
    connection
        .pragma_update(None, "user_version", 99)
        .expect("set");
    drop(connection);
    let mut history = History::open(&path, options()).expect("a writer that is off");
    history.put("overlay", Some(blob(5, 5))).expect("it waits");
    assert_eq!(history.get("overlay").expect("state"), Some(blob(5, 5)));
}
