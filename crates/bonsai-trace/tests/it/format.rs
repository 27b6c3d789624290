//! The format: what is written is read, and what was changed or cut off is refused.

use bonsai_trace::{Access, Digest, Error, Op, Reader, Request, Volume, Writer};
use proptest::prelude::*;

/// A request with its contents.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Owned {
    time_ns: u64,
    volume: u32,
    offset: u64,
    length: u32,
    op: Op,
    contents: Vec<u32>,
}

impl Owned {
    fn request(&self) -> Request<'_> {
        Request {
            time_ns: self.time_ns,
            volume: self.volume,
            offset: self.offset,
            length: self.length,
            op: self.op,
            contents: &self.contents,
        }
    }
}

const VOLUMES: u32 = 3;
const CONTENTS: u32 = 300;

fn requests() -> impl Strategy<Value = Owned> {
    let offset = prop_oneof![
        (0..1_000_u64).prop_map(|block| block * 4096),
        0..1_u64 << 61,
        (0..1_u64 << 30).prop_map(|sector| sector * 512),
    ];
    let length = prop_oneof![
        Just(4096),
        1..1_u32 << 30,
        (1..64_u32).prop_map(|n| n * 4096)
    ];
    let contents = prop_oneof![Just(Vec::new()), prop::collection::vec(0..CONTENTS, 1..=64)];
    let op = prop::sample::select(&Op::ALL);
    (any::<u64>(), 0..VOLUMES, offset, length, op, contents).prop_map(
        |(time_ns, volume, mut offset, mut length, op, contents)| {
            if !contents.is_empty() {
                offset &= !4095;
                length = contents.len() as u32 * 4096;
            }
            Owned {
                time_ns,
                volume,
                offset,
                length,
                op,
                contents,
            }
        },
    )
}

fn write(requests: &[Owned]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("begun");
    for n in 0..VOLUMES {
        let volume = Volume {
            name: format!("8:{n}"),
            bytes: (n == 1).then_some(1 << 40),
        };
        writer.add_volume(&volume).expect("added");
    }
    for n in 0..CONTENTS {
        writer
            .add_content(Digest(u128::from(n).to_le_bytes()))
            .expect("added");
    }
    for request in requests {
        writer.push(&request.request()).expect("written");
    }
    let (file, written) = writer.finish().expect("finished");
    assert_eq!(written.requests, requests.len() as u64);
    assert_eq!(written.bytes, file.len() as u64);
    file
}

fn read(file: &[u8]) -> Result<Vec<Owned>, Error> {
    let mut found = Vec::new();
    Reader::new(file)?.for_each(|request| {
        found.push(Owned {
            time_ns: request.time_ns,
            volume: request.volume,
            offset: request.offset,
            length: request.length,
            op: request.op,
            contents: request.contents.to_vec(),
        });
        Ok::<(), Error>(())
    })?;
    Ok(found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(requests in prop::collection::vec(requests(), 0..60)) {
        let file = write(&requests);
        prop_assert_eq!(read(&file).expect("read"), requests.clone());
        let mut reader = Reader::new(&file[..]).expect("a trace").keeping_fingerprints();
        let few: usize = requests.iter().map(|r| r.request().blocks().count()).filter(|n| *n < 1_000).sum();
        if requests.iter().all(|r| r.length < 1 << 21) {
            let found: Result<Vec<Access>, Error> = reader.accesses().collect();
            let wanted: Vec<Access> = requests.iter().flat_map(|r| r.request().accesses().collect::<Vec<_>>()).collect();
            prop_assert_eq!(found.expect("read"), wanted);
            prop_assert!(few > 0 || requests.is_empty());
            prop_assert_eq!(reader.fingerprints().len(), CONTENTS as usize);
            prop_assert_eq!(reader.volumes()[1].bytes, Some(1 << 40));
        }
    }
}

fn some() -> Vec<Owned> {
    (0..500_u32)
        .map(|n| Owned {
            time_ns: u64::from(n) * 1_000_003,
            volume: n % VOLUMES,
            offset: u64::from(n * 7919 % 1_000) * 4096,
            length: 4096,
            op: Op::ALL[n as usize % 2],
            contents: vec![n % CONTENTS],
        })
        .collect()
}

#[test]
fn any_flipped_bit_is_found() {
    let file = write(&some());
    assert!(file.len() < 16_000, "{}", file.len());
    let mut changed = file.clone();
    for at in 0..file.len() {
        // All bits of what is small, and one of each byte of the rest.
        let bits = if at < 200 || at + 60 > file.len() {
            0..8
        } else {
            at % 8..at % 8 + 1
        };
        for bit in bits {
            changed[at] ^= 1 << bit;
            let error = read(&changed).expect_err("damaged").to_string();
            assert!(
                error.contains("at byte") || at < 8,
                "byte {at}, bit {bit}: {error}"
            );
            changed[at] ^= 1 << bit;
        }
    }
}

#[test]
fn every_cut_is_found() {
    let file = write(&some());
    for length in (0..file.len()).rev().step_by(13).chain(0..60) {
        let error = read(&file[..length]).expect_err("cut off");
        let is_said = match error {
            Error::NoTrace => length < 16,
            Error::Truncated { record, offset } => {
                (record == 0 || record == 500) && offset <= length as u64
            }
            _ => false,
        };
        assert!(is_said, "{length}: {error}");
    }
    let more = [&file[..], b"x"].concat();
    let error = read(&more).expect_err("more").to_string();
    assert!(
        error.contains("after record 500") && error.contains("follows"),
        "{error}"
    );
}

#[test]
fn frames_that_are_moved_or_doubled_are_found() {
    let requests: Vec<Owned> = some().into_iter().cycle().take(140_000).collect();
    let file = write(&requests);
    assert_eq!(read(&file).expect("read").len(), requests.len());
    // Where frames begin.
    let mut starts = vec![16];
    while let Some(header) = file
        .get(*starts.last().expect("one")..)
        .filter(|rest| !rest.is_empty())
    {
        let stored = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes"));
        starts.push(starts.last().expect("one") + 24 + stored as usize);
    }
    let frame = |n: usize| &file[starts[n]..starts[n + 1]];
    let last = starts.len() - 2;
    assert!(last >= 4, "{starts:?}");
    let put = |order: &[usize]| {
        let frames = order.iter().flat_map(|n| frame(*n).to_vec());
        file[..16]
            .iter()
            .copied()
            .chain(frames)
            .collect::<Vec<u8>>()
    };
    assert!(read(&put(&(0..=last).collect::<Vec<_>>())).is_ok());
    for order in [
        vec![0, 1, 3, 2, 4],
        vec![0, 1, 2, 2, 3, 4],
        vec![0, 1, 2, 4],
    ] {
        assert!(read(&put(&order)).is_err(), "{order:?}");
    }
}

#[test]
fn requests_are_small() {
    let mut random = bonsai_stats::SplitMix64::new(1);
    let mut writer = Writer::new(std::io::sink()).expect("begun");
    for n in 0..4 {
        let name = format!("vd{n}");
        writer
            .add_volume(&Volume { name, bytes: None })
            .expect("added");
    }
    let mut contents = 0;
    let mut time_ns = 0;
    for _ in 0..200_000 {
        time_ns += random.below(1 << 27);
        if contents < 1 << 17 {
            contents = 1 + writer.add_content(Digest([0; 16])).expect("added");
        }
        let content = [random.below(u64::from(contents)) as u32];
        let request = Request {
            time_ns,
            volume: random.below(4) as u32,
            offset: random.below(1 << 28) * 4096,
            length: 4096,
            op: Op::Read,
            contents: &content,
        };
        writer.push(&request).expect("written");
    }
    let (_, written) = writer.finish().expect("finished");
    let each = written.packed as f64 / written.requests as f64;
    assert!(each <= 16.0, "{each} bytes a request, without any order");
}

#[test]
fn what_cannot_be_is_not_written() {
    let mut writer = Writer::new(Vec::new()).expect("begun");
    let request = some()[0].clone();
    let error = writer.push(&request.request()).expect_err("no volume");
    assert!(error.to_string().contains("request 1"), "{error}");
    let volume = Volume {
        name: "x".repeat(256),
        bytes: None,
    };
    assert!(writer.add_volume(&volume).is_err());
}

#[test]
fn other_files_and_versions_are_refused() {
    assert!(matches!(read(b""), Err(Error::NoTrace)));
    assert!(matches!(read(&[7; 100]), Err(Error::NoTrace)));
    let mut newer = write(&[]);
    newer[8] = 2;
    let sum = crc32fast::hash(&newer[..12]).to_le_bytes();
    newer[12..16].copy_from_slice(&sum);
    let error = read(&newer).expect_err("newer").to_string();
    assert!(
        error.contains("version 2") && error.contains("version 1 is read"),
        "{error}"
    );
}

#[test]
fn what_was_flushed_can_be_read_though_the_rest_is_missing() {
    let all = some();
    let mut writer = Writer::new(Vec::new()).expect("begun");
    for n in 0..VOLUMES {
        let name = format!("8:{n}");
        writer
            .add_volume(&Volume { name, bytes: None })
            .expect("added");
    }
    for n in 0..CONTENTS {
        writer.add_content(Digest([n as u8; 16])).expect("added");
    }
    for request in &all[..200] {
        writer.push(&request.request()).expect("pushed");
    }
    writer.flush().expect("written");
    for request in &all[200..] {
        writer.push(&request.request()).expect("pushed");
    }
    let file = writer.get_ref().clone();
    assert_eq!(writer.bytes(), file.len() as u64);
    let mut reader = Reader::new(&file[..]).expect("begun");
    let found = reader.next_batch().expect("read").expect("some").iter();
    assert_eq!(found.count(), 200);
    let error = reader.next_batch().expect_err("cut off");
    assert!(
        matches!(error, Error::Truncated { record: 200, offset } if offset == file.len() as u64),
        "{error}"
    );
}

#[test]
fn requests_that_were_lost_are_told() {
    let mut writer = Writer::new(Vec::new()).expect("begun");
    let name = "vda".to_owned();
    writer
        .add_volume(&Volume { name, bytes: None })
        .expect("added");
    let flush = Request {
        time_ns: 0,
        volume: 0,
        offset: 0,
        length: 0,
        op: Op::Flush,
        contents: &[],
    };
    writer.lost(0).expect("nothing");
    writer.push(&flush).expect("pushed");
    writer.lost(7).expect("written");
    writer.push(&flush).expect("pushed");
    writer.lost(5).expect("written");
    let (file, written) = writer.finish().expect("written");
    assert_eq!(written.requests, 2);
    let mut reader = Reader::new(&file[..]).expect("begun");
    assert_eq!(reader.next_batch().expect("read").expect("one").len(), 1);
    assert_eq!(reader.lost(), 0, "so far");
    assert_eq!(reader.next_batch().expect("read").expect("one").len(), 1);
    assert!(reader.next_batch().expect("read").is_none());
    assert_eq!(reader.lost(), 12);
}
