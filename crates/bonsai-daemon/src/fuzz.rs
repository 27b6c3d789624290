//! What the fuzz targets call. No part of the interface.

use std::sync::LazyLock;

use bonsai_api::Config;
use serde_json::Value;

use crate::desired::{Change, Desired};
use crate::plan::check;

pub use crate::http::fuzz::{heads, queries};

/// A configuration with something of everything.
const SAMPLE: &str = "[capacity]\nread = \"20MB/s\"\nsend = \"1Gbit/s\"\ncalls = \"100000/s\"\n\
    [classes.media]\nmode = \"qos\"\nsend = { min = \"10%\" }\nqos = { loss = \"0.1%\", delay = \"400ms\" }\n\
    [groups.night]\nsend = { max = \"50%\" }\n[groups.deep]\nparent = \"night\"\n\
    [services.vod]\nclass = \"media\"\ngroup = \"deep\"\nread = { min = \"5MB/s\", weight = 3 }\n\
    [services.backup.limits]\n\"send/stream\" = \"2Mbit/s\"\n";

/// The same, read.
static BASE: LazyLock<Config> =
    LazyLock::new(|| crate::parse_config(SAMPLE).expect("the sample is fine"));

/// Reads any text as a configuration file. It is refused in one line, or can be planned with, and
/// means the same in its JSON form and when it is written and read again.
pub fn config(text: &str) {
    let config = match crate::parse_config(text) {
        Ok(config) => config,
        Err(why) => {
            assert_eq!(why.lines().count(), 1, "{why:?}");
            return;
        }
    };
    let planned = crate::plan(&config);
    assert!(planned.is_ok(), "{planned:?}");
    let value = serde_json::to_value(&config).expect("a JSON form");
    let again: Config = serde_json::from_value(value).expect("it is read again");
    assert_eq!(again, config);
    let written = toml::to_string(&config).expect("a TOML form");
    assert_eq!(crate::parse_config(&written).as_ref(), Ok(&config));
    let (desired, left_out) = Desired::new(&config, None, check).expect("it was checked");
    assert!(left_out.is_empty());
    assert_eq!(desired.effective(), &config);
}

/// Makes merge patches of any text, a line each, on a configuration: each is refused and leaves
/// everything as it was, or is in force, says what is different, and can be taken back. What is
/// kept of them is read again as it was.
pub fn changes(text: &str) {
    let base = &*BASE;
    let (mut desired, _) = Desired::new(base, None, check).expect("the sample is fine");
    for (at, line) in text.lines().take(6).enumerate() {
        let Ok(patch) = crate::http::fuzz::body::<Value>(line.as_bytes()) else {
            continue;
        };
        let before = desired.clone();
        let owner = at % 2 == 1;
        let tried = desired.with(&patch, owner, check);
        let change = Change {
            revision: 0,
            actor: "somebody".to_owned(),
            uid: None,
            until_unix_ms: (at % 3 == 1).then_some(1000),
            owner,
            patch,
        };
        match desired.change(change, check) {
            Err(_) => {
                assert!(tried.is_err(), "a dry run says what is done");
                assert_eq!(desired.kept(), before.kept());
                assert_eq!(desired.effective(), before.effective());
            }
            Ok(differences) => {
                let (config, expected) = tried.expect("a dry run says what is done");
                assert_eq!(desired.effective(), &config);
                assert_eq!(differences, expected);
                if desired.revision() == before.revision() {
                    assert!(
                        differences.is_empty(),
                        "only what makes no difference is forgotten"
                    );
                    assert_eq!(desired.kept(), before.kept());
                    continue;
                }
                assert!(check(desired.effective()).is_ok());
                let mut back = desired.clone();
                let undone = back.undo(None, 0, check).expect("it can be taken back");
                assert_eq!(back.effective(), before.effective());
                assert_eq!(undone.len(), differences.len());
            }
        }
    }
    let kept = serde_json::to_vec(desired.kept()).expect("a JSON form");
    let kept = serde_json::from_slice(&kept).expect("it is read again");
    let (again, left_out) = Desired::new(base, Some(kept), check).expect("the sample is fine");
    assert!(left_out.is_empty(), "{left_out:?}");
    assert_eq!(again.effective(), desired.effective());
    // A file that somebody has written is left out in parts, and never as a whole a reason to fail.
    if let Ok(kept) = serde_json::from_str(text) {
        Desired::new(base, Some(kept), check).expect("the sample is fine");
    }
    desired.expire(1000, check);
    check(desired.effective()).expect("what is left makes sense");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn samples_hold() {
        super::config(super::SAMPLE);
        super::config("[capacity]\nread = 5");
        super::changes(
            "{\"services\":{\"vod\":null}}\n{\"capacity\":null}\n{\"policy\":{\"mode\":\"static\"}}\n\
             {\"services\":{\"x\":{\"read\":{\"max\":\"1MB/s\"}}}}\n[]\n{}",
        );
        super::queries(b"dry_run=true&for=10min");
        super::heads(b"localhost:7117\nhttp://localhost\nBearer x\n\"7\"");
    }

    proptest! {
        #[test]
        fn any_text_holds(text in "\\PC{0,80}(\n\\PC{0,80}){0,3}") {
            super::config(&text);
            super::changes(&text);
            super::queries(text.as_bytes());
            super::heads(text.as_bytes());
        }
    }
}
