//! Limits on some descriptors and per stream, as they are shown and changed.

use serde_json::Value;

use crate::support::Place;

fn limit<'v>(service: &'v Value, name: &str) -> Option<&'v Value> {
    let limits = service["limits"].as_array().expect("a list");
    limits.iter().find(|limit| limit["name"] == name)
}

#[test]
fn status_lists_the_streams_that_have_a_bucket_of_their_own() {
    let test = "status_lists_the_streams_that_have_a_bucket_of_their_own";
    let Some(place) = Place::new(test) else {
        return;
    };
    let limits = [
        "-l",
        "read/stream=1B/s:burst=2B",
        "-l",
        "read@/proc/**=1GB/s",
    ];
    let mut running = place.start("c", &[&limits[..], &["--", "cat"]].concat());
    running.write(&"x".repeat(1_000));
    let service = place.until("c", |service| {
        service["waiting"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    assert_eq!(service["waiting"][0]["limit"], "read/stream");
    let pid = service["processes"][0]["pid"].clone();
    let asked = limit(&service, "read/stream").expect("it is there");
    assert_eq!(
        (&asked["per_stream"], &asked["streams"]),
        (&true.into(), &Value::Null)
    );

    let args = ["status", "c", "--interval", "10ms", "--streams"];
    let shown = place.json(&[&args[..], &["--json"]].concat());
    let asked = limit(&shown["services"][0], "read/stream").expect("it is there");
    let streams = asked["streams"].as_array().expect("a list");
    // Its own file was read by the loader, before.
    let pipe: Vec<_> = streams.iter().filter(|s| s["to"] == "pipe").collect();
    assert_eq!(pipe.len(), 1, "{streams:?}");
    assert_eq!(
        (&pipe[0]["pid"], &pipe[0]["fd"]),
        (&pid, &0.into()),
        "{pipe:?}"
    );
    assert!(pipe[0]["level"].as_i64() < Some(-900), "{pipe:?}");
    let other = limit(&shown["services"][0], "read@/proc/**").expect("it is there");
    assert_eq!(
        (&other["per_stream"], &other["streams"]),
        (&false.into(), &Value::Null)
    );
    let text = place.say(&args).out;
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("pipe"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(&pid.to_string()), "{text}");

    // Lifted by another way to write it.
    let said = place.say(&[
        "set",
        "c",
        "read@//proc/./**=unlimited",
        "read/stream=1GB/s",
    ]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("read@/proc/** 1 GB/s -> unlimited"),
        "{said:?}"
    );
    assert_eq!(running.end().code, Some(0));
}

#[test]
fn a_narrowed_limit_needs_the_extension() {
    let Some(place) = Place::new("a_narrowed_limit_needs_the_extension") else {
        return;
    };
    let library = place.library().expect("there is one");
    let alone = tempfile::tempdir().expect("a folder");
    let copy = alone.path().join("libbonsai_preload.so");
    std::fs::copy(library, &copy).expect("a copy");
    let args = ["run", "-l", "read/stream=1MB/s", "--", "true"];
    let said: crate::support::Said = place
        .bonsai(&args)
        .env("BONSAI_PRELOAD", &copy)
        .output()
        .expect("bonsai")
        .into();
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err
            .contains("the limit on read/stream needs libbonsai_extension.so beside the library"),
        "{said:?}"
    );
    let left: Vec<String> = place.left();
    assert!(left.is_empty(), "{left:?}");
}
