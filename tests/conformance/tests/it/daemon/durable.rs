//! What is kept on disk: large entries of the trail, and files of a state folder that others may have made.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use conformance::finish;
use rustix::process::Signal;

use super::fixture::Ring;
use crate::fixture::PATIENCE;

/// One service, which runs or not.
const ONE: &str = "[services.vod.read]\nweight = 2\n";

/// A configuration of so many services.
fn many(services: usize, rate: u32) -> String {
    let each = (0..services).map(|i| {
        format!("[services.svc{i:04}-with-a-longish-name]\nsend = {{ max = \"{rate}Mbit/s\" }}\n")
    });
    each.collect()
}

#[test]
fn a_large_entry_of_the_trail_is_the_same_after_a_restart() {
    let mut ring = Ring::started(&many(600, 5));
    let entry = |ring: &Ring| {
        let page = ring.get("/v1/audit?limit=500");
        let entries = page["entries"].as_array().expect("entries").clone();
        entries
            .into_iter()
            .find(|entry| entry["action"] == "reload")
    };
    ring.configure(&many(600, 7));
    ring.until("the file is read", |ring| entry(ring).is_some());
    let before = entry(&ring).expect("an entry");
    assert_eq!(before["differences"].as_array().map(Vec::len), Some(600));
    // No answer has promised this change, which is shown a moment before it is on the disk.
    ring.until("it is on the disk", |ring| {
        let text = fs::read_to_string(ring.state().join("changes.json"));
        text.is_ok_and(|text| text.contains("the configuration file was changed"))
    });
    ring.end(Signal::KILL);
    ring.start(&[]);
    let is_same = |now: Option<serde_json::Value>, then: &serde_json::Value| {
        assert!(now.as_ref() == Some(then), "it is another one");
    };
    is_same(entry(&ring), &before);
    // Now it comes out of the database alone.
    ring.end(Signal::TERM);
    ring.start(&[]);
    is_same(entry(&ring), &before);
    // What is too much is counted, now as later.
    let cut = |ring: &Ring| entry(ring).filter(|entry| entry["left_out"].is_number());
    ring.configure(&many(3000, 9));
    ring.until("the file is read", |ring| cut(ring).is_some());
    let before = cut(&ring).expect("an entry");
    let shown = before["differences"].as_array().map_or(0, Vec::len) as u64;
    let left_out = before["left_out"].as_u64().expect("a number");
    assert!(
        shown > 600 && shown + left_out == 3000,
        "{shown} and {left_out}"
    );
    let said = format!("  and {left_out} more\n");
    assert!(ring.done(&["log"]).contains(&said));
    ring.end(Signal::TERM);
    ring.start(&[]);
    is_same(cut(&ring), &before);
    assert!(ring.done(&["log"]).contains(&said));
}

/// A start that is refused, with that in its one sentence.
fn refused(ring: &Ring, expected: &[&str]) {
    let said = finish(&mut ring.daemon_command(&[]), PATIENCE).expect("it ends");
    assert!(!said.status.success(), "{said:?}");
    for expected in expected {
        assert!(
            said.stderr.contains(expected),
            "{expected}: {}",
            said.stderr
        );
    }
    assert_eq!(said.stderr.matches('\n').count(), 1, "{}", said.stderr);
    assert!(!ring.socket().exists(), "nobody listens");
}

#[test]
fn a_state_folder_that_others_write_to_is_refused() {
    let ring = Ring::new("");
    fs::create_dir(ring.state()).expect("a folder");
    fs::set_permissions(ring.state(), fs::Permissions::from_mode(0o777)).expect("a mode");
    refused(&ring, &["others may write to it (mode 0777)", "chmod 700"]);
    fs::set_permissions(ring.state(), fs::Permissions::from_mode(0o700)).expect("a mode");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(ring.state(), Some(4711), None).expect("given away");
        refused(&ring, &["it belongs to user 4711"]);
    }
}

#[test]
fn files_of_a_newer_version_are_refused_and_left_alone() {
    for name in ["changes.json", "tokens.json", "pages.json", "further.json"] {
        let ring = Ring::new("");
        fs::create_dir(ring.state()).expect("a folder");
        let path = ring.state().join(name);
        let text = "{\"version\": 99, \"what\": \"is this\"}";
        fs::write(&path, text).expect("a file");
        refused(&ring, &[name, "version 99", "use the newer program"]);
        assert_eq!(fs::read_to_string(&path).expect("text"), text);
    }
}

#[test]
fn no_link_in_the_state_folder_is_followed() {
    let mut ring = Ring::new(ONE);
    fs::create_dir(ring.state()).expect("a folder");
    let victim = ring.config().with_file_name("victim");
    fs::write(&victim, "untouched").expect("a file");
    // By names that writers before this one have used for new files.
    let stale = [
        "changes.json.new",
        "tokens.json.new",
        "pages.json.new",
        "further.json.new",
    ];
    for name in stale
        .into_iter()
        .chain(["history.lock", "history.sqlite", "audit.sqlite"])
    {
        symlink(&victim, ring.state().join(name)).expect("a link");
    }
    ring.start(&[]);
    ring.done(&["set", "vod", "read=16MB/s"]);
    ring.done(&["token", "create", "x", "--scope", "read"]);
    let history = ring.get("/v1/status")["history"].clone();
    assert_eq!(history["keeping"], false, "{history}");
    for name in ["changes.json", "tokens.json"] {
        let meta = fs::symlink_metadata(ring.state().join(name)).expect(name);
        assert!(
            meta.is_file() && meta.permissions().mode() & 0o777 == 0o600,
            "{name}"
        );
    }
    ring.end(Signal::TERM);
    assert_eq!(fs::read_to_string(&victim).expect("text"), "untouched");
    for name in ["changes.json", "tokens.json"] {
        let path = ring.state().join(name);
        fs::remove_file(&path).expect("removed");
        symlink(&victim, &path).expect("a link");
        refused(&ring, &[name, "it is a link"]);
        fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn each_damaged_file_is_named() {
    let mut ring = Ring::started(ONE);
    ring.done(&["set", "vod", "read=16MB/s"]);
    ring.until("a history", |ring| {
        ring.state().join("history.sqlite").exists()
    });
    ring.end(Signal::TERM);
    for name in ["history.sqlite", "audit.sqlite"] {
        fs::write(ring.state().join(name), "no database at all".repeat(1000)).expect(name);
    }
    for name in ["pages.json", "further.json"] {
        fs::write(ring.state().join(name), "{\"version\":1,").expect(name);
    }
    ring.start(&[]);
    let about = ring.get("/v1/status")["history"]["about"].to_string();
    for name in ["history.sqlite", "audit.sqlite"] {
        assert!(about.contains(&format!("{name}` was damaged")), "{about}");
    }
    let problems = ring.get("/v1/status")["problems"].to_string();
    for name in ["pages.json", "further.json"] {
        assert!(
            problems.contains(&format!("{name}: is damaged")),
            "{problems}"
        );
    }
}

#[test]
fn a_trail_that_cannot_be_read_is_said_and_not_empty() {
    let mut ring = Ring::started(ONE);
    ring.done(&["set", "vod", "read=16MB/s"]);
    ring.end(Signal::TERM);
    // A database of a newer version is left alone, and not read by this one.
    let path = ring.state().join("audit.sqlite");
    fs::rename(&path, path.with_extension("aside")).expect("moved");
    fs::create_dir(&path).expect("a folder in its place");
    ring.start(&[]);
    ring.done(&["set", "vod", "read=17MB/s"]);
    let page = ring.get("/v1/audit");
    let problem = page["problems"][0].as_str().expect("a problem");
    assert!(problem.contains("older entries are not told"), "{problem}");
    assert!(page["entries"].to_string().contains("17MB/s"), "{page}");
    // An entry that the database cannot take is in the file beside the changes.
    ring.end(Signal::KILL);
    ring.start(&[]);
    assert!(
        ring.get("/v1/audit")["entries"]
            .to_string()
            .contains("17MB/s")
    );
    ring.end(Signal::TERM);
    fs::remove_dir(&path).expect("removed");
    fs::rename(path.with_extension("aside"), &path).expect("moved back");
    ring.start(&[]);
    let entries = ring.get("/v1/audit")["entries"].to_string();
    assert!(
        entries.contains("16MB/s") && entries.contains("17MB/s"),
        "{entries}"
    );
}
