//! `bonsai group`, and services in a group.

use crate::support::{Place, skip};

/// What `bonsai ARGS` answers to bad input.
fn refused(place: &Place, args: &[&str]) -> String {
    let said = place.say(args);
    assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
    assert_eq!(said.err.lines().count(), 1, "{args:?}: {said:?}");
    said.err.trim_end().to_owned()
}

fn done(place: &Place, args: &[&str]) -> String {
    let said = place.say(args);
    assert_eq!(said.code, Some(0), "{args:?}: {said:?}");
    said.out
}

/// A library without the extension beside it is as good as none here.
fn place(test: &str) -> Option<Place> {
    let place = Place::new(test)?;
    let library = place.library().expect("it has one");
    if library.with_file_name("libbonsai_extension.so").is_file() {
        return Some(place);
    }
    skip(test, "libbonsai_extension.so is not built (make build)");
    None
}

#[test]
fn each_mistake_with_groups_has_its_sentence() {
    let Some(place) = place("each_mistake_with_groups_has_its_sentence") else {
        return;
    };
    done(
        &place,
        &["group", "create", "media", "--limit", "send=100Mbit/s"],
    );
    let run = |options: &[&'static str]| [&["run"], options, &["--", "true"]].concat();
    for (args, words) in [
        (
            run(&["--group", "nope"]),
            "there is no group \"nope\"; there are media",
        ),
        (
            run(&["--weight", "3"]),
            "is about a group: name it with --group",
        ),
        (
            run(&["--group", "a/b"]),
            "\"a/b\" cannot be the name of a group",
        ),
        (
            run(&["--group", "media", "--weight", "0"]),
            "weight 0: a weight is a number from 1 to 1000",
        ),
        (
            run(&["--group", "media", "--guarantee", "recv=1Mbit/s"]),
            "the group media has no limit on recv: it has send=100Mbit/s",
        ),
        (
            run(&["--group", "media", "--guarantee", "send=5/s"]),
            "the group media counts bytes of send: it has send=100Mbit/s",
        ),
        (
            run(&["--group", "media", "--guarantee", "send=101Mbit/s"]),
            "a guarantee of 101 Mbit/s does not fit (100 Mbit/s is left)",
        ),
        (
            run(&[
                "--group",
                "media",
                "--guarantee",
                "send=9Mbit/s",
                "--ceiling",
                "send=8Mbit/s",
            ]),
            "the ceiling 8 Mbit/s is below the guarantee 9 Mbit/s of send",
        ),
        (
            run(&["--group", "media", "--guarantee", "send=1Mbit/s:burst=1kB"]),
            "a guarantee has no burst of its own",
        ),
        (
            run(&["--group", "media", "--ceiling", "send"]),
            "it has no name or no =",
        ),
        (
            vec!["group", "create", "media", "--limit", "send=1Mbit/s"],
            "the group media is there already",
        ),
        (
            vec!["group", "create", "b", "--limit", "send=unlimited"],
            "a group without a limit shares nothing",
        ),
        (
            vec!["group", "create", "b", "--limit", "raed=1MB/s"],
            "the nearest is \"read\"",
        ),
        (
            vec!["group", "set", "media", "send=5/s"],
            "the group counts send otherwise: it has send=100Mbit/s",
        ),
        (
            vec!["group", "set", "media", "recv=unlimited"],
            "the group has no limit on recv: nothing to lift",
        ),
        (
            vec!["group", "remove", "nope"],
            "there is no group \"nope\"",
        ),
        (
            vec!["group", "join", "nope", "vod"],
            "there is no group \"nope\"; there are media",
        ),
        (
            vec!["group", "join", "media", "vod"],
            "there is no service \"vod\"",
        ),
        (
            vec!["group", "join", "media", "vod", "--guarantee", "send=5"],
            "guarantee \"send=5\":",
        ),
        (vec!["group", "leave", "vod"], "there is no service \"vod\""),
        (
            vec!["set", "nope", "--weight", "2"],
            "there is no service \"nope\"",
        ),
    ] {
        let sentence = refused(&place, &args);
        assert!(sentence.contains(words), "{args:?}: {sentence}");
    }
    let left = place.left();
    assert!(left.iter().all(|name| name.starts_with('.')), "{left:?}");
    done(&place, &["group", "remove", "media"]);
    assert_eq!(done(&place, &["group", "status"]), "there is no group\n");
}

#[test]
fn a_member_is_shown_changed_and_gone() {
    let Some(place) = place("a_member_is_shown_changed_and_gone") else {
        return;
    };
    done(
        &place,
        &["group", "create", "media", "--limit", "write=2MB/s"],
    );
    let options = [
        "--group",
        "media",
        "--guarantee",
        "write=500kB/s",
        "--weight",
        "3",
    ];
    let greedy = "exec dd if=/dev/zero of=/dev/zero bs=4k status=none";
    let running = place.start("vod", &[&options[..], &["--", "sh", "-c", greedy]].concat());
    let service = place.until("vod", |service| {
        let group = &service["group"]["shares"][0];
        group["borrowed"].as_f64() > Some(1.0) && group["waits"].as_u64() > Some(0)
    });
    assert_eq!(service["group"]["name"], "media");
    assert_eq!(service["group"]["weight"], 3);
    assert_eq!(service["group"]["shares"][0]["guarantee"], 500_000.0);
    assert_eq!(service["limits"][0]["name"], "group media write");
    // Nearly always it waits, for what is named.
    place.until("vod", |service| {
        let waiting = service["waiting"].as_array().expect("a list");
        waiting
            .iter()
            .any(|waiting| waiting["limit"] == "group media write")
    });
    let why = done(&place, &["why", "vod", "--for", "500ms"]);
    assert!(
        why.contains("for the limit group media write=2MB/s"),
        "{why}"
    );
    assert!(why.contains("bonsai group set media write=RATE"), "{why}");
    let lines = done(
        &place,
        &["set", "vod", "--ceiling", "write=1MB/s", "--weight", "7"],
    );
    assert_eq!(
        lines,
        "vod: group media write guarantee 500 kB/s, no ceiling, weight 3 -> \
         guarantee 500 kB/s, ceiling 1 MB/s, weight 7\n"
    );
    let above = [
        "set",
        "vod",
        "--ceiling",
        "write=none",
        "--guarantee",
        "write=3MB/s",
    ];
    let too_much = refused(&place, &above);
    assert!(
        too_much.contains("does not fit (2 MB/s is left)"),
        "{too_much}"
    );
    let below = refused(&place, &["group", "set", "media", "write=400kB/s"]);
    assert!(below.contains("come to more than it has"), "{below}");
    let document = place.json(&["group", "status", "media", "--json", "--interval", "50ms"]);
    let member = &document["groups"][0]["shares"][0]["members"][0];
    assert_eq!(
        (&member["service"], &member["weight"]),
        (&"vod".into(), &7.into())
    );
    let busy = refused(&place, &["group", "remove", "media"]);
    assert!(busy.contains("has members that run: vod"), "{busy}");
    drop(running);
    let text = place.until_text(
        &["group", "status", "media", "--interval", "10ms"],
        "0 members",
    );
    assert!(text.contains("write 2 MB/s"), "{text}");
    done(&place, &["group", "remove", "media"]);
}

#[test]
fn mistakes_with_running_services_change_nothing() {
    let Some(place) = place("mistakes_with_running_services_change_nothing") else {
        return;
    };
    for name in ["media", "other"] {
        done(&place, &["group", "create", name, "--limit", "write=2MB/s"]);
    }
    let busy = ["--", "sh", "-c", "while :; do sleep 0.02; done"];
    let running = place.start("vod", &busy);
    place.until("vod", |service| service["group"].is_null());
    let too_much = [
        "group",
        "join",
        "media",
        "vod",
        "--guarantee",
        "write=3MB/s",
    ];
    assert!(refused(&place, &too_much).contains("does not fit (2 MB/s is left)"));
    assert!(refused(&place, &["group", "leave", "vod"]).contains("vod is in no group"));
    assert!(
        refused(&place, &["set", "vod", "--weight", "3"])
            .contains("vod is in no group: bonsai group join GROUP vod puts it into one")
    );
    place.until("vod", |service| service["group"].is_null());
    let said = done(&place, &["group", "join", "media", "vod", "--weight", "5"]);
    assert_eq!(
        said,
        "vod: group media write no guarantee, no ceiling, weight 5\n"
    );
    let twice = refused(&place, &["group", "join", "other", "vod"]);
    let words = "vod is in the group media already: bonsai group leave vod takes it out";
    assert!(twice.contains(words), "{twice}");
    // What its group shares from now on, it draws on.
    done(&place, &["group", "set", "media", "open=100/s"]);
    place.until("vod", |service| {
        let shares = service["group"]["shares"].as_array();
        shares.is_some_and(|shares| shares.iter().any(|share| share["name"] == "open"))
    });
    assert_eq!(
        done(&place, &["group", "leave", "vod"]),
        "vod: left the group media\n"
    );
    for name in ["media", "other"] {
        done(&place, &["group", "remove", name]);
    }
    drop(running);
}

#[test]
fn a_service_without_the_extension_joins_no_group() {
    let test = "a_service_without_the_extension_joins_no_group";
    let Some(place) = place(test) else { return };
    done(
        &place,
        &["group", "create", "media", "--limit", "write=2MB/s"],
    );
    // A copy of the library, with nothing beside it.
    let folder = tempfile::tempdir().expect("a folder");
    let library = place.library().expect("it has one");
    let copy = folder.path().join("libbonsai_preload.so");
    std::fs::copy(library, &copy).expect("a copy");
    let place = place.with_library(&copy);
    let running = place.start("vod", &["--", "sleep", "60"]);
    place.until("vod", |service| service["group"].is_null());
    let refused = refused(&place, &["group", "join", "media", "vod"]);
    let words = "groups need libbonsai_extension.so beside the library, where vod was started";
    assert!(refused.contains(words), "{refused}");
    drop(running);
}
