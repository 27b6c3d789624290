//! Characteristics: of a trace that is counted by hand, and of real ones.

use bonsai_trace::import::{Options, import};
use bonsai_trace::stat::Stat;
use bonsai_trace::{Error, Interning, Op, Reader, Request};

use crate::data;

/// An access of one block.
fn access(block: u64, op: Op, content: &[u32]) -> Request<'_> {
    Request {
        time_ns: 0,
        volume: 0,
        offset: block * 4096,
        length: 4096,
        op,
        contents: content,
    }
}

#[test]
fn a_small_trace_is_counted() {
    let mut stat = Stat::default();
    for (block, op, content) in [
        (10, Op::Read, 0),
        (11, Op::Read, 1),
        (20, Op::Read, 0),
        (10, Op::Read, 0),
        (11, Op::Write, 2),
        (11, Op::Read, 2),
    ] {
        stat.add(&access(block, op, &[content]));
    }
    stat.finish();
    assert_eq!((stat.counts.blocks, stat.counts.contents), (3, 3));
    assert_eq!(stat.counts.accesses, [5, 1]);
    // 10 again after 11 and 20; 11 after 20 and 10; 11 at once.
    let reuse: Vec<_> = stat.block_reuse.steps().collect();
    assert_eq!(reuse, [(0, 1), (2, 3)]);
    // Content 0 after 1, then at once; content 2 at once.
    assert_eq!(
        stat.content_reuse.steps().collect::<Vec<_>>(),
        [(0, 2), (1, 3)]
    );
    // The second read of 10 goes to 20, which has the same content and came last.
    assert_eq!(
        stat.redirected_reuse.steps().collect::<Vec<_>>(),
        [(0, 2), (1, 3)]
    );
    assert_eq!(
        stat.run_length.steps().collect::<Vec<_>>(),
        [(1, 4), (2, 5)]
    );
    assert_eq!(stat.sharing().steps().collect::<Vec<_>>(), [(1, 2), (2, 3)]);
    assert_eq!(stat.occurrence().max(), 3);
}

/// A real trace's characteristics.
pub(crate) fn real(test: &str, name: &str) -> Option<(Vec<u8>, Stat)> {
    let from = data::open(test, name)?;
    let mut sink = Interning::new(Vec::new()).expect("begun");
    // Guests of debian4 are told apart by its processes.
    let options = Options {
        by_process: true,
        ..Options::default()
    };
    import(from, &options, &mut sink).expect("imported");
    let (file, written) = sink.finish().expect("finished");
    assert!(written.packed <= written.requests * 16, "{written:?}");
    let stat = of(&file);
    Some((file, stat))
}

/// The characteristics of a trace.
pub(crate) fn of(file: &[u8]) -> Stat {
    let mut stat = Stat::default();
    Reader::new(file)
        .expect("a trace")
        .for_each(|request| {
            stat.add(request);
            Ok::<(), Error>(())
        })
        .expect("read");
    stat.finish();
    stat
}

#[test]
fn debian4_has_what_was_counted_elsewhere() {
    let Some((_, stat)) = real(
        "stat::debian4_has_what_was_counted_elsewhere",
        "debian4.fiu.zst",
    ) else {
        return;
    };
    assert_eq!(stat.counts.accesses, [992_452, 19_531]);
    assert_eq!(
        (stat.counts.blocks, stat.counts.contents),
        (279_901, 160_883)
    );
    let sharing = stat.sharing();
    let part = |from: u64, to: u64| {
        let n = sharing.below(to) - sharing.below(from);
        (n as f64 * 1_000.0 / sharing.count() as f64).round() / 10.0
    };
    assert_eq!(
        [part(1, 2), part(2, 3), part(3, 4), part(4, 1 << 20)],
        [67.7, 3.9, 20.2, 8.2]
    );
    assert_eq!(sharing.max(), 124);
    // libCacheSim's LRU on the same blocks, and on the redirected stream.
    for (cache, miss) in [(8_192, 0.9968), (32_768, 0.9924), (131_072, 0.8071)] {
        let [plain, _, _] = stat.hit_ratios(cache);
        assert!((1.0 - plain - miss).abs() < 6e-5, "{cache}: {plain}");
    }
    for (cache, miss) in [
        (8_192, 0.9150),
        (32_768, 0.8108),
        (65_536, 0.6873),
        (131_072, 0.4454),
    ] {
        let [_, drive, _] = stat.hit_ratios(cache);
        assert!((1.0 - drive - miss).abs() < 6e-5, "{cache}: {drive}");
    }
}

#[test]
fn traces_without_contents_have_the_ratios_of_others() {
    const TEST: &str = "stat::traces_without_contents_have_the_ratios_of_others";
    for (name, requests, misses) in [
        ("OLTP.lis.zst", 914_145, [0.4114, 0.2880, 0.2070]),
        ("P3.lis.zst", 3_912_296, [0.9838, 0.9643, 0.5521]),
    ] {
        let Some((_, stat)) = real(TEST, name) else {
            return;
        };
        assert_eq!(stat.counts.accesses, [requests, 0], "{name}");
        for (cache, miss) in [8_192, 32_768, 131_072].into_iter().zip(misses) {
            let [plain, _, contents] = stat.hit_ratios(cache);
            assert!((1.0 - plain - miss).abs() < 6e-5, "{name} {cache}: {plain}");
            assert!(contents.abs() < 1e-12);
        }
    }
}
