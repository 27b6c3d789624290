//! Traces in Bonsai's format, through the simulator.

mod fiu;
mod support;

use bonsai_sim::{
    Latency, Plan, Policy, Sample, Scheme, curves, load, run_all, sampled, sizes, write_csv,
};
use bonsai_trace::{Digest, Interning, Op, Reader, Request, Sink};

use support::debian4;

/// Reads and writes as (volume, block, content).
fn trace(requests: &[(&str, u64, u8, Op)]) -> Vec<u8> {
    let mut trace = Interning::new(Vec::new()).unwrap();
    for (n, &(volume, block, content, op)) in (0_u64..).zip(requests) {
        let volume = trace.volume(volume).unwrap();
        let contents = [trace.content(Digest([content; 16])).unwrap()];
        let request = Request {
            time_ns: n,
            volume,
            offset: block * 4096,
            length: 4096,
            op,
            contents: if op == Op::Trim { &[] } else { &contents },
        };
        trace.request(&request).unwrap();
    }
    trace.finish().unwrap().0
}

fn plan(blocks: u32, schemes: &[&str]) -> Plan {
    Plan {
        blocks: vec![blocks],
        schemes: schemes.iter().map(|name| name.parse().unwrap()).collect(),
        policies: vec![Policy::Lru],
        latency: Latency::PUBLISHED,
        threads: 2,
    }
}

/// Two guests with one content: DRIVE reads the second's block from the first's place, within one group.
#[test]
fn a_duplicate_is_read_once() {
    let file = trace(&[
        ("a", 5, 1, Op::Read),
        ("b", 9, 1, Op::Read),
        ("b", 9, 1, Op::Read),
        ("a", 6, 2, Op::Trim),
        ("a", 5, 1, Op::Read),
    ]);
    let loaded = load(&mut Reader::new(&file[..]).unwrap(), false).unwrap();
    assert_eq!((loaded.volumes, loaded.trimmed, loaded.requests), (2, 1, 5));
    let rows = run_all(
        &loaded.stream,
        &plan(
            8,
            &["plain", "drive", "drive:scan", "drive:scan:intra", "ideal"],
        ),
        || (),
    );
    let hits: Vec<u64> = rows.iter().map(|row| row.read_hits).collect();
    // At run time the second block is fetched to learn what it holds.
    assert_eq!(hits, [2, 2, 3, 2, 3]);
    assert_eq!(
        [rows[1].dedup_hits, rows[2].dedup_hits, rows[3].dedup_hits],
        [1, 1, 0]
    );
    assert!(
        (rows[0].read_ms - (2.0 * 8.0 + 2.0 * 230e-6) / 4.0).abs() < 1e-9,
        "{}",
        rows[0].read_ms
    );
}

/// The trace says that a read returned what was never there: the first access is believed, then writes.
#[test]
fn a_trace_that_contradicts_itself_is_put_right() {
    let requests = [
        ("a", 1, 1, Op::Read),
        ("a", 1, 2, Op::Read),
        ("a", 1, 3, Op::Write),
        ("a", 1, 1, Op::Read),
    ];
    let file = trace(&requests);
    let contents = |as_recorded| -> Vec<u32> {
        let loaded = load(&mut Reader::new(&file[..]).unwrap(), as_recorded).unwrap();
        assert_eq!(loaded.stream.inconsistent, if as_recorded { 0 } else { 2 });
        loaded
            .stream
            .requests
            .iter()
            .map(|request| request.content().unwrap())
            .collect()
    };
    assert_eq!(contents(true), [0, 1, 2, 0]);
    assert_eq!(contents(false), [0, 0, 2, 2]);
}

#[test]
fn an_empty_trace_is_refused() {
    let file = trace(&[("a", 1, 1, Op::Trim)]);
    let failed = load(&mut Reader::new(&file[..]).unwrap(), false).unwrap_err();
    assert_eq!(
        failed.to_string(),
        "it has no reads and no writes of blocks"
    );
}

#[test]
fn names_of_schemes_are_read_as_they_are_written() {
    for name in [
        "plain",
        "ideal",
        "iodedup:10%",
        "iodedup:12.5%:invalidate",
        "drive",
        "drive:scan:intra",
        "drive:invalidate",
    ] {
        assert_eq!(name.parse::<Scheme>().unwrap().to_string(), name);
    }
    assert_eq!(
        "drive:max=16MiB".parse::<Scheme>().unwrap().to_string(),
        "drive:max=16777216B"
    );
    for bad in [
        "",
        "lru",
        "plain:scan",
        "iodedup:0%",
        "iodedup:100%",
        "iodedup:1.25%",
        "drive:max=16",
        "drive:fast",
        "drive:scan:scan",
        "drive:max=16MiB:max=32MiB",
    ] {
        let said = bad.parse::<Scheme>().unwrap_err().to_string();
        assert!(said.lines().count() == 1 && said.contains('`'), "{said}");
    }
}

/// Results do not depend on how many threads there are, and curves go through them.
#[test]
fn savings_of_four_guests_come_out_of_the_format() {
    let Some(file) = debian4("savings_of_four_guests_come_out_of_the_format") else {
        return;
    };
    let loaded = load(&mut Reader::new(&file[..]).unwrap(), false).unwrap();
    assert_eq!(
        (loaded.volumes, loaded.stream.requests.len()),
        (4, 1_011_983)
    );
    let schemes = ["plain", "drive", "drive:scan", "ideal", "iodedup:90%"];
    let mut plan = plan(131_072, &schemes);
    let rows = run_all(&loaded.stream, &plan, || ());
    plan.threads = 1;
    assert_eq!(rows, run_all(&loaded.stream, &plan, || ()));
    let saved: Vec<String> = rows
        .iter()
        .map(|row| format!("{:.1}", row.reads_saved * 100.0))
        .collect();
    assert_eq!(saved, ["19.5", "56.4", "69.8", "71.1", "54.4"]);
    let at = [131_072];
    let lines = curves(&loaded.stream, &plan.schemes[..4], &at, 2, || ()).unwrap();
    for (line, row) in lines.iter().zip(&rows) {
        assert_eq!(line.scheme, row.scheme);
        assert!((line.points[0].reads_saved - row.reads_saved).abs() < 1e-12);
        assert!((line.points[0].hit_ratio - row.hit_ratio).abs() < 1e-12);
    }
    assert!(curves(&loaded.stream, &plan.schemes[4..], &at, 1, || ()).is_err());
    let at = sizes(loaded.stream.blocks.len().into(), 1);
    let exact = curves(&loaded.stream, &plan.schemes[..4], &at, 2, || ()).unwrap();
    let (mut all, mut within) = (0, 0);
    // Points of one sample are off together: the error holds over samples.
    for seed in 1..=8 {
        let sample = Sample { one_in: 8, seed };
        let near = sampled(&loaded.stream, &plan.schemes[..4], &at, sample, 2, || ()).unwrap();
        let lines = near.iter().zip(&exact);
        for (near, exact) in lines.flat_map(|(near, exact)| near.points.iter().zip(&exact.points)) {
            let off = (near.reads_saved - exact.reads_saved).abs();
            assert!(off < 0.03, "{near:?} {exact:?}");
            all += 1;
            // What is exact may be off by rounding.
            within += u32::from(off <= near.error + 1e-12);
        }
    }
    assert!(
        within * 100 >= all * 95,
        "{within} of {all} within their bounds"
    );
    let mut csv = Vec::new();
    write_csv(&rows, &mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    assert_eq!(text.lines().count(), 6);
    assert!(
        text.starts_with("cache_bytes,scheme,policy,reads,writes,"),
        "{text}"
    );
}

/// Damage is said with where it is, and nothing comes out.
#[test]
fn a_trace_that_is_cut_off_is_refused() {
    let file = trace(&[("a", 1, 1, Op::Read), ("a", 2, 1, Op::Read)]);
    for length in 0..file.len() {
        let Ok(mut reader) = Reader::new(&file[..length]) else {
            continue;
        };
        assert!(
            load(&mut reader, false).is_err(),
            "{length} of {}",
            file.len()
        );
    }
}
