//! Real traces, where they are: `BONSAI_DATA` names the folder with `traces/`; without it, that is `shared/data` beside
//! the workspace.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

/// A real trace, unpacked as it is read; `None`, and the reason in the log, where it is not there.
pub(crate) fn open(test: &str, name: &str) -> Option<Box<dyn Read>> {
    let folder = std::env::var_os("BONSAI_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let Ok(file) = fs::File::open(folder.join("traces").join(name)) else {
        skip(
            test,
            &format!("no traces/{name} in BONSAI_DATA or ../shared/data"),
        );
        return None;
    };
    Some(if name.ends_with(".zst") {
        Box::new(zstd::Decoder::new(file).expect("zstd"))
    } else {
        Box::new(file)
    })
}

pub(crate) fn skip(test: &str, why: &str) {
    eprintln!("SKIP: {test}: {why}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let mut log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log)
            .expect("the log of skipped tests");
        writeln!(log, "{test}: {why}").expect("the log of skipped tests");
    }
}
