//! Real traces, where the machine has them.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use bonsai_trace::{Digest, Interning, Op, Request, Sink};

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

/// A digest in hexadecimal. FIU's homes has eight for a block: they are folded into one.
pub(crate) fn content(hex: &str) -> Digest {
    let mut digest = [0_u8; 16];
    for (n, pair) in (0..hex.len() / 2).map(|n| (n, &hex[2 * n..2 * n + 2])) {
        let byte = u8::from_str_radix(pair, 16).unwrap();
        digest[n % 16] = byte ^ digest[n % 16].wrapping_mul(31);
    }
    Digest(digest)
}

/// A trace in FIU's text format, in Bonsai's; volumes by `volume` of process and device.
pub(crate) fn from_fiu(text: impl Read, volume: impl Fn(&str, &str) -> String) -> Vec<u8> {
    let mut trace = Interning::new(Vec::new()).unwrap();
    let mut lines = BufReader::with_capacity(1 << 20, text);
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [time, _, process, sector, sectors, op, major, minor, digest] = words[..] else {
            panic!("no FIU line: {line}");
        };
        let volume = trace
            .volume(&volume(process, &format!("{major}:{minor}")))
            .unwrap();
        let contents = [trace.content(content(digest)).unwrap()];
        let request = Request {
            time_ns: time.parse().unwrap(),
            volume,
            offset: sector.parse::<u64>().unwrap() * 512,
            length: sectors.parse::<u32>().unwrap() * 512,
            op: if op == "W" { Op::Write } else { Op::Read },
            contents: &contents,
        };
        trace.request(&request).unwrap();
        line.clear();
    }
    trace.finish().unwrap().0
}

/// Four Debian guests, told apart by the name that stands for a process.
pub(crate) fn debian4(test: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("BONSAI_DATA").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
        PathBuf::from,
    );
    let Ok(file) = std::fs::File::open(root.join("traces/debian4.fiu.zst")) else {
        skip(
            test,
            "the trace debian4.fiu.zst is not here: set BONSAI_DATA to the folder above traces/",
        );
        return None;
    };
    Some(from_fiu(zstd::Decoder::new(file).unwrap(), |process, _| {
        process.to_owned()
    }))
}
