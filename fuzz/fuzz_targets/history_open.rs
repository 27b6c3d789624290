//! Any bytes as the files of a history: whatever they are, the writer begins, takes a tick and an
//! entry or says why not, and a reader answers or gives an error.
//!
//! # Input
//! The first byte says what the rest is:
//! - 0: the content of `history.sqlite`; 1: that of `audit.sqlite`;
//! - otherwise: patches of both as a writer has left them, `offset (3 bytes) | byte`, the lowest
//!   bit of the first byte saying in which of the two.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use bonsai_history::{
    AuditFilter, Export, Format, History, Level, Options, Point, Query, Reader, Sample, Tick, Which,
};
use bonsai_units::Resource;
use libfuzzer_sys::fuzz_target;

const FILES: [&str; 2] = ["history.sqlite", "audit.sqlite"];
/// A midnight, UTC.
const START: u64 = 1_767_225_600;

/// A folder of this process, and both files as a writer has left them.
static WHOLE: LazyLock<(PathBuf, [Vec<u8>; 2])> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("bonsai-fuzz-history-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let mut history = History::open(&folder, options()).expect("a writer");
    for second in (0..7200).step_by(7) {
        history.tick(&tick(START + second));
    }
    history.put("overlay", None).expect("nothing to write");
    drop(history);
    let files = FILES.map(|file| fs::read(folder.join(file)).expect("the file"));
    (folder, files)
});

fn options() -> Options {
    Options {
        points_bytes: Options::LEAST_POINTS,
        ..Options::default()
    }
}

fn tick(second: u64) -> Tick {
    let sample = Sample {
        asked: second * 1000 % 1_000_003,
        got: second * 1000 % 1_000_003,
        ..Sample::default()
    };
    let point = Point {
        service: "vod".into(),
        resource: Resource::Send,
        sample,
    };
    Tick {
        second,
        points: vec![point],
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let (folder, whole) = &*WHOLE;
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).expect("a folder");
    let mut files = whole.clone();
    if *kind < 2 {
        files[usize::from(*kind)] = rest.to_vec();
    } else {
        let file = &mut files[usize::from(*kind & 1)];
        for patch in rest.chunks_exact(4) {
            let at = usize::from(patch[0]) << 16 | usize::from(patch[1]) << 8 | usize::from(patch[2]);
            let at = at % file.len();
            file[at] = patch[3];
        }
    }
    for (name, content) in FILES.iter().zip(&files) {
        fs::write(folder.join(name), content).expect("written");
    }
    let mut history = History::open(folder, options()).expect("a writer, which may be off");
    history.tick(&tick(START + 90_000));
    history.tick(&tick(START + 90_060));
    let reader = Reader::new(folder);
    let query = Query {
        which: Which::Service("vod".to_owned()),
        resource: Resource::Send,
        from: START,
        to: START + 100_000,
        points: 1000,
    };
    let _ = reader.series(&query);
    let _ = reader.services();
    let _ = reader.audit(&AuditFilter::default());
    let _ = reader.get("overlay");
    let export = Export {
        from: 0,
        to: u64::MAX,
        level: Level::Second,
        services: None,
        resources: None,
    };
    let _ = reader.export(&export, Format::Csv, std::io::sink());
    history.check();
});
