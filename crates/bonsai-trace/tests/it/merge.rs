//! Several traces as one.

use bonsai_trace::{Digest, Error, Interning, Merged, Op, Reader, Request, Sink, Which};

/// A trace of `count` requests, every `step` ns from `start` on, of one volume; each third has a content that all have.
fn trace(start: u64, step: u64, count: u64, own: u8) -> Vec<u8> {
    let mut trace = Interning::new(Vec::new()).expect("begun");
    let volume = trace.volume("8:0").expect("added");
    for n in 0..count {
        let tag = if n % 3 == 0 { 0 } else { own };
        let content = trace.content(Digest([tag; 16])).expect("added");
        let request = Request {
            time_ns: start + n * step,
            volume,
            offset: n * 4096,
            length: 4096,
            op: Op::Read,
            contents: &[content],
        };
        trace.request(&request).expect("pushed");
    }
    trace.finish().expect("written").0
}

type Got = (u64, u32, u64, u32);

fn merged(traces: &[Vec<u8>]) -> Result<(Vec<Got>, u32), Which> {
    let readers = traces
        .iter()
        .map(|trace| Reader::new(&trace[..]).expect("a trace"));
    let mut merged = Merged::new(readers)?;
    let mut all = Vec::new();
    merged.for_each(|of| {
        all.push((of.time_ns, of.volume, of.offset, of.contents[0]));
        Ok::<(), Which>(())
    })?;
    Ok((all, merged.volumes()))
}

#[test]
fn traces_are_merged_by_their_times_and_devices_stay_apart() {
    // More than a frame each, so that one is read while another waits.
    let traces = [
        trace(0, 7, 150_000, 1),
        trace(500, 3, 100_000, 2),
        trace(0, 7, 10, 3),
    ];
    let (all, volumes) = merged(&traces).expect("merged");
    assert_eq!((all.len(), volumes), (250_010, 3));
    assert!(all.is_sorted_by_key(|(time, ..)| *time));
    for (volume, count) in [(0, 150_000), (1, 100_000), (2, 10)] {
        let own = all.iter().filter(|of| of.1 == volume);
        assert!(own.clone().count() == count && own.is_sorted_by_key(|of| of.2));
    }
    // Of equal times, the one that was given first.
    assert_eq!((all[0].1, all[1].1), (0, 2));
    // One content that all have, and one of each trace's own.
    let mut contents: Vec<u32> = all.iter().map(|of| of.3).collect();
    contents.sort_unstable();
    contents.dedup();
    assert_eq!(contents.len(), 4);
    let shared = all[0].3;
    assert!(
        all.iter()
            .all(|of| (of.3 == shared) == (of.2 / 4096 % 3 == 0))
    );
}

#[test]
fn one_that_is_damaged_is_named() {
    let whole = trace(0, 1, 10, 1);
    let cut = whole[..whole.len() - 3].to_vec();
    let (which, error) = merged(&[whole.clone(), cut]).expect_err("cut off");
    assert_eq!(which, 1);
    assert!(
        matches!(error, Error::Truncated { record: 10, .. }),
        "{error}"
    );
    assert_eq!(merged(&[]).expect("nothing"), (Vec::new(), 0));
    assert_eq!(merged(&[whole]).expect("one").0.len(), 10);
}
