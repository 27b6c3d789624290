//! Real traces, where the machine has them.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use bonsai_dedup::stream::Stream;

/// Notes that a test cannot run here, and why.
pub(crate) fn skip(test: &str, reason: &str) {
    eprintln!("{test}: skipped: {reason}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log);
        writeln!(file.unwrap(), "{test}: {reason}").unwrap();
    }
}

/// The lines of a trace, unless the machine has none.
pub(crate) fn open(test: &str, name: &str) -> Option<impl BufRead + use<>> {
    let root = std::env::var_os("BONSAI_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let Ok(file) = std::fs::File::open(root.join("traces").join(name)) else {
        skip(
            test,
            &format!("the trace {name} is not here: set BONSAI_DATA to the folder above traces/"),
        );
        return None;
    };
    if name.ends_with(".zst") {
        let decoded = zstd::Decoder::new(file).unwrap();
        return Some(Box::new(BufReader::with_capacity(1 << 20, decoded)) as Box<dyn BufRead>);
    }
    Some(Box::new(BufReader::new(file)))
}

/// A trace of the ARC paper: `first count ...` a line.
pub(crate) fn arc_trace(test: &str, name: &str) -> Option<Stream> {
    let mut stream = Stream::default();
    let mut lines = open(test, &format!("{name}.lis.zst"))?;
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        let mut words = line.split_ascii_whitespace();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (first, count) = (number(), number());
        for block in first..first + count {
            stream.push(0, block, None, false).unwrap();
        }
        line.clear();
    }
    stream.finish().unwrap();
    Some(stream)
}

/// A trace in the text format of FIU: `time pid process sector sectors R|W major minor digest` a line.
pub(crate) fn fiu_trace(lines: impl BufRead) -> Stream {
    let mut stream = Stream::default();
    let mut volumes = HashMap::new();
    let mut contents = HashMap::new();
    for line in lines.lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, process, sector, sectors, op, major, minor, digest] = words[..] else {
            panic!("no FIU line: {line}");
        };
        assert_eq!(sectors, "8");
        // The guests of our own trace are told apart by name.
        let volumes_so_far = u32::try_from(volumes.len()).unwrap();
        let device = if major == "0" {
            process.to_owned()
        } else {
            format!("{major}:{minor}")
        };
        let volume = *volumes.entry(device).or_insert(volumes_so_far);
        let contents_so_far = u32::try_from(contents.len()).unwrap();
        let content = *contents.entry(digest.to_owned()).or_insert(contents_so_far);
        let block = sector.parse::<u64>().unwrap() / 8;
        stream
            .push(volume, block, Some(content), op == "W")
            .unwrap();
    }
    stream.finish().unwrap();
    stream
}

/// The blocks of its requests.
pub(crate) fn blocks(stream: &Stream) -> Vec<u32> {
    stream
        .requests
        .iter()
        .map(|request| request.block)
        .collect()
}
