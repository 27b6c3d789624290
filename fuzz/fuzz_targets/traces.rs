//! Any bytes as a trace, in each format: it is refused, or what is read can be written and is read as the same.
#![no_main]

use bonsai_trace::import::{Event, Format, Identity, Objects, Options, identify, import};
use bonsai_trace::stat::Stat;
use bonsai_trace::{Error, Interning, Reader, Writer};
use libfuzzer_sys::fuzz_target;

/// Blocks of a request of which statistics are made: a request may have a quarter of a million.
const FEW: u64 = 1_000;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let identity = identify(rest);
    assert_eq!(
        identity.problem().is_some(),
        recognised(&identity).is_none()
    );
    if first % 10 == 9 {
        return own(rest);
    }
    let events = [Event::Issue, Event::Queue, Event::Complete];
    let columns = "time=1:s,offset=2:sector,length=3:sector,op=4,volume=5+6,digest=7";
    let options = Options {
        format: Format::ALL.get(usize::from(first % 10)).copied(),
        columns: (first % 10 == 6).then(|| columns.parse().expect("columns")),
        delimiter: None,
        objects: if first & 0x40 > 0 {
            Objects::Addresses(512)
        } else {
            Objects::Blocks
        },
        event: events[usize::from(first / 10 % 3)],
        by_process: first & 0x80 > 0,
        first_sector: u64::from(first / 27),
        skip_bad: u64::MAX,
    };
    let mut sink = Interning::new(Vec::new()).expect("begun");
    let Ok(report) = import(rest, &options, &mut sink) else {
        return;
    };
    assert!(report.records >= report.ignored + report.bad);
    let (file, written) = sink.finish().expect("finished");
    assert_eq!(written.requests, report.requests);
    own(&file);
});

/// The format of an input that can be imported as it is.
fn recognised(identity: &Identity) -> Option<Format> {
    match identity {
        Identity::Format(format) => Some(*format),
        Identity::Csv { .. } => Some(Format::Csv),
        _ => None,
    }
}

/// As a file of our own.
fn own(file: &[u8]) {
    let Ok(reader) = Reader::new(file) else {
        return;
    };
    let mut reader = reader.keeping_fingerprints();
    let mut stat = Stat::default();
    let mut again = Writer::new(Vec::new()).expect("begun");
    let mut requests = Vec::new();
    let done = reader.for_each(|request| {
        let blocks = request.blocks();
        if blocks.end - blocks.start <= FEW {
            stat.add(request);
        }
        requests.push((request.offset, request.contents.to_vec()));
        Ok::<(), Error>(())
    });
    if done.is_err() {
        return;
    }
    for volume in reader.volumes() {
        again.add_volume(volume).expect("it was there");
    }
    for digest in reader.fingerprints() {
        again.add_content(*digest).expect("it was there");
    }
    let mut same = Reader::new(file).expect("read before");
    same.for_each(|request| again.push(request))
        .expect("written");
    let (file, _) = again.finish().expect("finished");
    let mut n = 0;
    let read = Reader::new(&file[..])
        .expect("a trace")
        .for_each(|request| {
            assert_eq!(
                (request.offset, request.contents),
                (requests[n].0, &requests[n].1[..])
            );
            n += 1;
            Ok::<(), Error>(())
        });
    read.expect("read");
    assert_eq!(n, requests.len());
}
