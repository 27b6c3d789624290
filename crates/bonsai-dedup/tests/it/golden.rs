//! Miss ratios of libCacheSim, an independent simulator, on real traces.

use std::io::BufRead;

use bonsai_dedup::cache::{Policy, hits};

use crate::data::{arc_trace, blocks, fiu_trace, open};

/// The five policies as libCacheSim calls them.
fn policy(name: &str) -> Policy {
    match name {
        "LRU" => Policy::Lru,
        "ARC" => Policy::Arc,
        "Clock" => Policy::Clock,
        "Sieve" => Policy::Sieve,
        "S3FIFO-0.1000-2" => Policy::S3Fifo,
        other => panic!("no policy {other}"),
    }
}

/// `OLTP.bin  LRU cache size  8192, 914145 req, miss ratio 0.4114`.
fn compare(test: &str, name: &str) {
    let Some(lines) = open(test, "libcachesim.txt") else {
        return;
    };
    let stream = if name == "debian4" {
        open(test, "debian4.fiu.zst").map(fiu_trace)
    } else {
        arc_trace(test, name)
    };
    let Some(stream) = stream else {
        return;
    };
    let ids = blocks(&stream);
    let mut compared = 0;
    let mut wrong = Vec::new();
    for line in lines.lines().map(Result::unwrap) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() != Some(&format!("{name}.bin").as_str()) {
            continue;
        }
        let size: u32 = words[4].trim_end_matches(',').parse().unwrap();
        assert_eq!(words[5], ids.len().to_string(), "{line}");
        let hits = hits(policy(words[1]), size, stream.blocks.len(), &ids);
        let missed = 1.0 - hits as f64 / ids.len() as f64;
        println!("{line}: {missed:.4}");
        if format!("{missed:.4}") != words[9] {
            wrong.push(format!("{line}: {missed:.4}"));
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(compared, 15);
}

#[test]
fn misses_of_oltp_are_libcachesims() {
    compare("misses_of_oltp_are_libcachesims", "OLTP");
}

#[test]
fn misses_of_p3_are_libcachesims() {
    compare("misses_of_p3_are_libcachesims", "P3");
}

#[test]
fn misses_of_p6_are_libcachesims() {
    compare("misses_of_p6_are_libcachesims", "P6");
}

#[test]
fn misses_of_debian4_are_libcachesims() {
    compare("misses_of_debian4_are_libcachesims", "debian4");
}
