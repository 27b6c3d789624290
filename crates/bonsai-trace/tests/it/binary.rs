//! Binary traces: vscsiStats, and the objects of libCacheSim.

use bonsai_trace::Op;
use bonsai_trace::import::{Format, Identity, Objects, Options, Reason, identify, recognise};

use crate::foreign::{of, read};
use crate::import::{line, with};

/// The first records of libCacheSim's cloudPhysicsIO, as its three files have them.
const CLOUD: [(u16, u32, u64, u64); 5] = [
    (0x2a, 512, 42_932_745, 5_633_898_368_802),
    (0x2a, 512, 42_932_746, 5_633_898_611_441),
    (0x2a, 6656, 40_409_911, 5_633_898_967_708),
    (0x28, 4096, 6_160_447, 5_633_899_970_576),
    (0x28, 4096, 6_160_447, 5_633_900_000_000),
];

fn vscsi(version: u16, records: &[(u16, u32, u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (command, length, block, time) in records {
        let (serial, segments) = (0x8000_0041_u32.to_le_bytes(), 1_u32.to_le_bytes());
        let (command, length) = (command.to_le_bytes(), length.to_le_bytes());
        let version_field = (version << 8).to_le_bytes();
        if version == 1 {
            bytes.extend([&serial[..], &length, &segments, &command, &version_field].concat());
        } else {
            bytes.extend([&command[..], &version_field, &serial, &length, &segments].concat());
        }
        bytes.extend(block.to_le_bytes());
        bytes.extend(time.to_le_bytes());
        if version == 2 {
            bytes.extend(77_u64.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn vscsi_is_read_in_both_versions_and_as_csv() {
    let mut csv = "version,time,op,size,lbn\n".to_owned();
    for (command, length, block, time) in CLOUD {
        csv += &format!("1,{},{command:x},{length},{block}\n", time / 1_000_000);
    }
    let (report, from_csv) = with(csv.as_bytes(), &Options::default()).expect("read");
    assert_eq!(
        (report.format, report.skipped.of(Reason::Heading)),
        (Some(Format::Csv), 1)
    );
    for version in [1, 2] {
        let bytes = vscsi(version, &CLOUD);
        assert_eq!(recognise(&bytes), Some(Format::Vscsi));
        for options in [Options::default(), of(Format::Vscsi)] {
            let (report, found) = with(&bytes, &options).expect("read");
            assert_eq!((report.records, report.requests), (5, 5));
            assert_eq!(
                found[2],
                line(
                    "vscsi",
                    5_633_898_967_708_000,
                    40_409_911 * 512,
                    6656,
                    Op::Write
                )
            );
            for (one, other) in found.iter().zip(&from_csv) {
                assert_eq!(
                    (one.1 / 1_000_000_000, one.2, one.3, one.4),
                    (other.1 / 1_000_000_000, other.2, other.3, other.4)
                );
            }
        }
        let cut = &bytes[..bytes.len() - 3];
        let error = with(cut, &Options::default()).expect_err("cut").to_string();
        assert!(
            error.starts_with("record 5") && error.contains("the input ends after"),
            "{error}"
        );
        let skipping = Options {
            skip_bad: 1,
            ..Options::default()
        };
        assert_eq!(with(cut, &skipping).expect("read").0.requests, 4);
    }
    let special = [
        (0x12, 96, u64::MAX, 1),
        (0xc1, 512, 0, 1),
        (0x42, 24, 0, 2),
        (0x42, 1 << 20, 2048, 3),
        (0x35, 0, 0, 4),
        (0x28, 0, 0, 5),
        (0x8a, 512, 9, 6),
    ];
    let (report, found) = with(&vscsi(2, &special), &of(Format::Vscsi)).expect("read");
    let ops: Vec<Op> = found.iter().map(|line| line.4).collect();
    assert_eq!(ops, [Op::Trim, Op::Flush, Op::Write]);
    assert_eq!(report.skipped.of(Reason::NoBlocks), 4);
    let error = with(
        b"no such trace, but text of some length\n",
        &of(Format::Vscsi),
    );
    assert!(
        error
            .expect_err("text")
            .to_string()
            .contains("no trace of vscsiStats")
    );
}

fn oracle(records: &[(u32, u64, u32, i64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (time, object, size, next) in records {
        bytes.extend(time.to_le_bytes());
        bytes.extend(object.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    bytes
}

#[test]
fn objects_of_libcachesim_are_blocks_or_addresses() {
    let hashed = u64::MAX - 7;
    let bytes = oracle(&[
        (10, 42_932_745, 512, -1),
        (10, 6_160_447, 4096, 5),
        (11, hashed, 100, 4),
        (12, hashed, 100, i64::MAX),
        (12, 6_160_447, 4096, -1),
        (13, 1 << 60, 1, -1),
    ]);
    assert_eq!(recognise(&bytes), Some(Format::OracleGeneral));
    let (report, found) = with(&bytes, &Options::default()).expect("read");
    assert_eq!(report.sizes_left_out, 4);
    let block = |volume, seconds: u64, block: u64| {
        line(
            volume,
            seconds * 1_000_000_000,
            block * 4096,
            4096,
            Op::Read,
        )
    };
    assert_eq!(
        found,
        [
            block("objects", 10, 42_932_745),
            block("objects", 10, 6_160_447),
            block("hashed objects", 11, 0),
            block("hashed objects", 12, 0),
            block("objects", 12, 6_160_447),
            block("hashed objects", 13, 1),
        ]
    );
    let options = Options {
        objects: "sector".parse::<Objects>().expect("a unit"),
        ..Options::default()
    };
    let found = read(&bytes[..48], &options);
    assert_eq!((found[0].2, found[0].3), (42_932_745 * 512, 512));
    let error = with(&bytes, &options).expect_err("no address").to_string();
    assert!(
        error.contains("without --objects each object is one block"),
        "{error}"
    );
    // Any other binary data is refused.
    let shuffled: Vec<u8> = bytes.iter().rev().copied().collect();
    assert_eq!(recognise(&shuffled), None);
    assert!(matches!(identify(&shuffled), Identity::Other { .. }));
}
