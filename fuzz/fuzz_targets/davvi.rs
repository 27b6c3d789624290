//! Any bytes as annotations, as what is asked of a library in an address, and as words that are looked for:
//! read or refused in a sentence, kept as they are, and never an error of SQLite.
#![no_main]

use std::sync::OnceLock;

use bonsai_davvi::{Event, Library, Name, Query, Wanted, parse_events, parse_position};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    match first % 3 {
        0 => {
            annotations(rest);
            annotations(&[b"time,type,players,card,text\n", rest].concat());
        }
        1 => bonsai_web::fuzz::asked(rest),
        _ => {
            if let Ok(text) = std::str::from_utf8(rest) {
                words(text);
            }
        }
    }
});

fn annotations(bytes: &[u8]) {
    let events = match parse_events(bytes) {
        Ok(events) => events,
        Err(error) => {
            assert!(error.is_input());
            return;
        }
    };
    assert!(events.is_sorted_by_key(|event| event.at_ms));
    let kept = serde_json::to_vec(&events).expect("JSON");
    let again: Vec<Event> = serde_json::from_slice(&kept).expect("JSON");
    assert_eq!(again, events);
}

/// Looks for it in a library of no videos, by words and by a field.
fn words(text: &str) {
    static LIBRARY: OnceLock<(tempfile::TempDir, Library)> = OnceLock::new();
    let (_, library) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(".private")).expect("made");
        let library = Library::open(folder.path()).expect("a library");
        (folder, library)
    });
    let (words, value) = text.split_once('\n').unwrap_or((text, text));
    let query = Query {
        text: words.to_owned(),
        wanted: vec![Wanted {
            field: value.to_owned(),
            any: vec![value.to_owned()],
        }],
        most: 10,
        ..Query::default()
    };
    if let Err(error) = library.search(&query) {
        assert!(error.is_input(), "{error}");
    }
    let _ = parse_position(text);
    if let Ok(name) = Name::parse(text) {
        assert!(!name.as_str().contains(['/', '.', '%']));
    }
}
