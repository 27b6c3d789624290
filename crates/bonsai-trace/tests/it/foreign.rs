//! Formats as the tools of the field write them: several files in one, encodings, delimiters, binary records.

use std::collections::BTreeSet;

use bonsai_trace::Op;
use bonsai_trace::import::{
    Columns, Delimiter, Event, Format, Identity, Options, Reason, identify, recognise,
};
use proptest::prelude::*;

use crate::import::{Line, line, with, wrong};

const BLKPARSE: &str = "  8,0    3        1     0.009507758   697  D   W 223490 + 56 [kjournald]
  8,0    3        2     0.010507758   697  Q   R 4096 + 8 [cat]
  8,0    3        3     0.010517758   697  D   R 4096 + 8 [cat]
kjournald (697)
 Reads Queued:           0,        0KiB\t Writes Queued:           1,       28KiB
CPU3 (8,0):
 Reads Queued:           1,        4KiB\t Writes Queued:           1,       28KiB
Total (8,0):
 Reads Queued:           1,        4KiB\t Writes Queued:           1,       28KiB

Throughput (R/W): 4KiB/s / 28KiB/s
Events (8,0): 3 entries
Skips: 0 forward (0 -   0.0%)
";
const FIO_2: &str =
    "fio version 2 iolog\nf add\nf open\nf read 0 4096\nf wait 20 0\nf write 4096 4096\nf close\n";
const FIO_3: &str =
    "fio version 3 iolog\n5 f add\n6 f open\n7 f read 0 4096\n900 f sync 0 0\n901 f close\n";
const MSR: &str = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\r\n128166372003061629,h,0,Read,0,4096,100\r\n";
const TRACEFS: &str = "# tracer: nop\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n   dd-1   [001] .....  9.229554: block_rq_issue: 254,0 RA 4096 () 80 + 8 [bash]\nCPU:1 [LOST 5 EVENTS]\n   dd-1   [001] .....  9.329554: block_rq_issue: 254,0 FF 0 () 0 + 0 [bash]\n";
const TRACE_CMD: &str = "cpus=2\n   fio-1234  [001]   100.123456: block_rq_issue:  8,0 R 4096 () 2048 + 8 [fio]\n     a b-12  [000]   100.123457: block_rq_issue:       8,0 W 4096 () 4096 + 8 [a b]\nCPU:1 [7 EVENTS DROPPED]\n";
const FIU: &str = "5 1 p 0 8 R 8 0\n6 1 q r 8 8 W 8 16\n";
const ARC: &str = "7 2 0 1\n9 1 0 2\n";
const CSV: &str = "when,addr,op\n1,8,R\n2,16,W\n";

/// Linux 6.18, perf 6.1, a loop device: `dd` of 64 KiB, then of 4 KiB with flushes.
const PERF: &str = "\
              dd 13530 [000]  2384.498386:    block:block_rq_issue: 7,0 RS 65536 () 0 + 128 0x2,0,4 [dd]
     ksoftirqd/0    14 [000]  2384.506881: block:block_rq_complete: 7,0 RS () 0 + 128 0x2,0,4 [0]
              dd 13532 [000]  2384.508314:    block:block_rq_issue: 7,0 WS 4096 () 0 + 8 0x2,0,4 [dd]
 kworker/0:1H-kb    54 [000]  2384.508378:    block:block_rq_issue: 7,0 FF 0 () 0 + 0 0x0,0,0 [kworker/0:1H]
     ksoftirqd/0    14 [000]  2384.581732: block:block_rq_complete: 7,0 FF () 18446744073709551615 + 0 0x0,0,0 [0]
     ksoftirqd/0    14 [000]  2384.581739: block:block_rq_complete: 7,0 WS () 0 + 0 0x2,0,4 [0]
              dd 12426 [001]  2384.594155:   block:block_bio_queue: 254,0 RA 12580568 + 8 [dd]
";

fn columns(text: &str) -> Options {
    Options {
        columns: Some(text.parse::<Columns>().expect("columns")),
        ..Options::default()
    }
}

pub(crate) fn of(format: Format) -> Options {
    Options {
        format: Some(format),
        ..Options::default()
    }
}

/// Texts of each format, with the options that they need.
fn samples() -> Vec<(&'static str, Options)> {
    let plain = [
        BLKPARSE, FIO_2, FIO_3, MSR, TRACEFS, TRACE_CMD, PERF, FIU, ARC,
    ];
    let mut all: Vec<_> = plain.map(|text| (text, Options::default())).to_vec();
    all.push((CSV, columns("time=when:s,offset=addr:sector,op=op")));
    all
}

pub(crate) fn read(text: &[u8], options: &Options) -> Vec<Line> {
    with(text, options).expect("read").1
}

#[test]
fn two_files_in_one_give_the_requests_of_both() {
    let mut formats = BTreeSet::new();
    for (text, options) in samples() {
        let (report, one) = with(text.as_bytes(), &options).expect(text);
        formats.insert(report.format.map(Format::word));
        assert!(!one.is_empty(), "{text}");
        for seam in ["", "\n", "\u{feff}"] {
            let both = format!("{text}{seam}{text}");
            let (report, found) = with(both.as_bytes(), &options).expect(&both);
            assert_eq!(found, [one.clone(), one.clone()].concat(), "{both}");
            // Each line is a request, skipped for a reason, or bad.
            assert_eq!(report.records, report.requests + report.ignored, "{both}");
            let backwards = u64::from(one.len() > 1 && report.format != Some(Format::Msr));
            assert_eq!(report.backwards, backwards, "{both}");
        }
    }
    assert_eq!(formats.len(), 7, "{formats:?}");
    let mixed = [FIO_2, FIO_3].concat();
    let (report, found) = with(mixed.as_bytes(), &Options::default()).expect("read");
    let times: Vec<u64> = found.iter().map(|line| line.1).collect();
    assert_eq!(times, [0, 20_000_000, 7_000, 900_000]);
    assert_eq!((report.parts, report.skipped.of(Reason::Heading)), (1, 2));
}

#[test]
fn what_is_skipped_is_counted_by_reason() {
    let both = [BLKPARSE, BLKPARSE].concat();
    let (report, _) = with(both.as_bytes(), &Options::default()).expect("read");
    assert_eq!(
        report.skipped.iter().collect::<Vec<_>>(),
        [
            (Reason::Blank, 2),
            (Reason::Summary, 18),
            (Reason::OtherEvent, 2)
        ]
    );
    assert_eq!((report.parts, report.backwards), (1, 1));
    // A damaged event is no line of a summary.
    let damaged = BLKPARSE.replace("  8,0    3        1 ", "0    3        1 ");
    let error = wrong(&[BLKPARSE, &damaged].concat(), &Options::default());
    assert!(
        error.starts_with("record 14 (byte 575): \"0\" is no device"),
        "{error}"
    );
    let (report, _) = with(FIO_2.as_bytes(), &Options::default()).expect("read");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(
        json["skipped"],
        serde_json::json!({"heading": 1, "file_action": 3, "wait": 1})
    );
}

proptest! {
    /// Lines of all kinds in any order: whatever holds no request has a reason.
    #[test]
    fn every_line_is_accounted_for(
        format in 0..10_usize,
        picked in prop::collection::vec((0..10_usize, 0..40_usize), 0..40),
    ) {
        let samples = samples();
        let (_, options) = &samples[format];
        let format = if options.columns.is_some() { Some(Format::Csv) } else { recognise(samples[format].0.as_bytes()) };
        let lines: Vec<&str> = picked.iter().filter_map(|(from, n)| samples[*from].0.lines().nth(*n)).collect();
        let options = Options { format, skip_bad: u64::MAX, ..options.clone() };
        if let Ok((report, _)) = with(lines.join("\n").as_bytes(), &options) {
            prop_assert_eq!(report.records, report.requests + report.ignored + report.bad);
        }
    }
}

#[test]
fn waits_of_fio_are_milliseconds_since_the_start() {
    let text = "fio version 2 iolog\nx wait 1000 0\nx read 0 4096\nx wait 1500 0\nx read 4096 4096\nx wait 20 0\nx wait 9000\nx sync 0 0\n";
    let (report, found) = with(text.as_bytes(), &Options::default()).expect("read");
    let times: Vec<u64> = found.iter().map(|line| line.1).collect();
    assert_eq!(times, [1_000_000_000, 1_500_000_000, 1_500_000_000]);
    // fio says "bad iolog2" of a wait without a third value, and goes on.
    assert_eq!(report.skipped.of(Reason::IgnoredWait), 1);
    let text = "fio version 3 iolog\n5 x wait 1000 0\n7 x read 0 4096\n";
    let (report, found) = with(text.as_bytes(), &Options::default()).expect("read");
    assert_eq!(found, [line("x", 7_000, 0, 4096, Op::Read)]);
    assert_eq!(report.skipped.of(Reason::IgnoredWait), 1);
}

#[test]
fn the_kernels_events_are_read_as_each_tool_writes_them() {
    let found = read(TRACE_CMD.as_bytes(), &Options::default());
    assert_eq!(
        found,
        [
            line("8:0", 100_123_456_000, 2048 * 512, 4096, Op::Read),
            line("8:0", 100_123_457_000, 4096 * 512, 4096, Op::Write)
        ]
    );
    let (report, found) = with(PERF.as_bytes(), &Options::default()).expect("read");
    assert_eq!(report.format, Some(Format::Tracefs));
    assert_eq!(
        found,
        [
            line("7:0", 2_384_498_386_000, 0, 65_536, Op::Read),
            line("7:0", 2_384_508_314_000, 0, 4096, Op::Write),
            line("7:0", 2_384_508_378_000, 0, 0, Op::Flush)
        ]
    );
    let event = |event| Options {
        event,
        ..Options::default()
    };
    let (report, found) = with(PERF.as_bytes(), &event(Event::Complete)).expect("read");
    assert_eq!(
        found[1],
        line("7:0", 2_384_581_732_000, 0, 0, Op::Flush),
        "the kernel gives it the last sector there can be"
    );
    assert_eq!((found.len(), report.skipped.of(Reason::NoBlocks)), (2, 1));
    assert_eq!(read(PERF.as_bytes(), &event(Event::Queue)).len(), 1);
    let report = with(TRACE_CMD.as_bytes(), &Options::default())
        .expect("read")
        .0;
    assert_eq!((report.lost, report.skipped.of(Reason::Tool)), (7, 2));
    // The name of a task may be that of an event.
    let nasty = PERF.replace("dd 13530", "block_rq_issue: 13530");
    assert_eq!(read(nasty.as_bytes(), &Options::default()).len(), 3);
    // Behind thousands of other events, too.
    let others = "   a-1  [001]   100.1: sched_switch: a\n".repeat(20_000);
    let late = format!("cpus=2\n{others}{TRACE_CMD}");
    assert_eq!(read(late.as_bytes(), &Options::default()).len(), 2);
}

#[test]
fn clocks_that_do_not_count_seconds_are_refused() {
    let counted = TRACE_CMD.replace("100.123456", "14352346234");
    let error = wrong(&counted, &of(Format::Tracefs));
    assert!(
        error.contains("\"14352346234\" is not in seconds"),
        "{error}"
    );
}

#[test]
fn a_byte_order_mark_is_passed_over_and_utf_16_refused() {
    for (text, options) in samples() {
        let one = read(text.as_bytes(), &options);
        let marked = format!("\u{feff}{text}");
        assert_eq!(read(marked.as_bytes(), &options), one, "{text}");
        let units: Vec<u16> = text.encode_utf16().collect();
        let bytes =
            |to: fn(u16) -> [u8; 2]| units.iter().copied().flat_map(to).collect::<Vec<u8>>();
        for wide in [
            bytes(u16::to_le_bytes),
            bytes(u16::to_be_bytes),
            [b"\xff\xfe".to_vec(), bytes(u16::to_le_bytes)].concat(),
        ] {
            let format = with(text.as_bytes(), &options).expect("read").0.format;
            let said = Options {
                format,
                ..options.clone()
            };
            for options in [&options, &said] {
                let error = with(&wide, options).expect_err("UTF-16").to_string();
                assert!(
                    error.contains("text in UTF-16") && error.contains("iconv"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn lines_that_end_in_carriage_returns_alone_are_named() {
    for (text, options) in samples() {
        let format = with(text.as_bytes(), &options).expect("read").0.format;
        let said = Options {
            format,
            ..options.clone()
        };
        let line = text.trim_end();
        let old = [line; 3].join("\n").replace('\n', "\r");
        for (text, options) in [(&old, &options), (&(old.clone() + "\r"), &said)] {
            let error = wrong(text, options);
            assert!(
                error.contains("carriage returns alone") && error.contains("tr '\\r'"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_row_of_msr_has_seven_values() {
    let row = "128166372003061629,usr,0,Read,7014609920,24576,41286";
    let options = of(Format::Msr);
    assert_eq!(read(row.as_bytes(), &options).len(), 1);
    let error = wrong(&format!("{row},{row}"), &options);
    assert!(error.contains("has more than 7 values"), "{error}");
}

#[test]
fn a_first_record_that_is_bad_is_no_heading() {
    let numbers = columns("offset=1,length=2");
    for first in [
        "-4096,4096",
        "18446744073709551616,4096",
        "0x1000,4096",
        "1e6,4096",
        "+1,4096",
        ".5,4096",
        ",4096",
        "lbn,4096",
        "4096,length",
    ] {
        let text = format!("{first}\n8192,4096\n");
        let error = wrong(&text, &numbers);
        assert!(error.starts_with("record 1 (byte 0)"), "{first}: {error}");
        let options = Options {
            skip_bad: 1,
            ..numbers.clone()
        };
        let report = with(text.as_bytes(), &options).expect("read").0;
        assert_eq!((report.bad, report.requests, report.heading), (1, 1, None));
    }
    for heading in ["lbn,size", "Start LBA (sectors),Size", "\"lbn\",\"size\""] {
        let text = format!("{heading}\n8192,4096\n");
        let (report, found) = with(text.as_bytes(), &numbers).expect("read");
        assert_eq!(found.len(), 1, "{heading}");
        assert_eq!(
            report.heading,
            Some(format!("\"{}\"", heading.escape_debug()))
        );
    }
    // A heading is named once, and is there.
    let named = columns("offset=lbn,length=size");
    let error = wrong("lbn,lbn,size\n1,2,3\n", &named);
    assert!(error.contains("stands over columns 1 and 2"), "{error}");
    let error = wrong(
        "a,size\n1,2\n",
        &Options {
            skip_bad: 9,
            ..named
        },
    );
    assert!(
        error.contains("record 1") && error.contains("the first line has \"a\", \"size\""),
        "{error}"
    );
}

#[test]
fn what_stands_between_values_is_guessed_or_said() {
    let four = "time=1:us,offset=2:sector,length=3:sector,op=4";
    let read_as = |text: &str, columns_text: &str, expected: Delimiter| {
        let (report, found) = with(text.as_bytes(), &columns(columns_text)).expect(text);
        assert_eq!(report.delimiter, Some(expected), "{text}");
        found
    };
    let comma = Delimiter::Byte(b',');
    let heading = "Arrival Time (us),Start LBA (sectors),Size (sectors),Op\n1,8,8,R\n";
    let expected = [line("csv", 1_000, 4096, 4096, Op::Read)];
    assert_eq!(read_as(heading, four, comma), expected);
    for (text, delimiter) in [
        (
            "# a comment, with commas, in it\n1\t8\t8\tR\n",
            Delimiter::Byte(b'\t'),
        ),
        ("1;8;8;R\n#2;8;8;R\n", Delimiter::Byte(b';')),
        ("1|8|8|R\n", Delimiter::Byte(b'|')),
        ("   1     8    8\tR   \n", Delimiter::Blanks),
        ("1, 8, 8, R\n", comma),
        ("\"1\",\"8\",\"8\",\"R\"\n", comma),
        ("1.0,8.0,8.00,R\n", comma),
    ] {
        assert_eq!(read_as(text, four, delimiter), expected, "{text}");
    }
    // Commas before decimals.
    assert_eq!(
        read_as(
            "0,001;8;8;R\n",
            "time=1:ms,offset=2:sector,length=3:sector",
            Delimiter::Byte(b';')
        )[0]
        .1,
        1_000
    );
    let libcachesim = "# timestamp (ms), op type, object id, object size (byte)\n5, R, 2, 4096\n";
    let names =
        "time=timestamp (ms):ms,op=op type,offset=object id:block,length=object size (byte)";
    assert_eq!(
        read_as(libcachesim, names, comma),
        [line("csv", 5_000_000, 8192, 4096, Op::Read)]
    );
    let numbers = "time=1:ms,op=2,offset=3:block,length=4";
    assert_eq!(read_as(libcachesim, numbers, comma).len(), 1);
    let long = format!("{}1;8;8;R\n", "# made by, a, tool, of, ours\n".repeat(50));
    assert_eq!(read_as(&long, four, Delimiter::Byte(b';')), expected);
    // What is said counts.
    let said = Options {
        delimiter: Some(Delimiter::Byte(b'/')),
        ..columns("offset=2,length=1")
    };
    assert_eq!(
        read(b"4096/8192\n", &said),
        [line("csv", 0, 8192, 4096, Op::Read)]
    );
    let said = Options {
        delimiter: Some(Delimiter::Byte(b';')),
        ..columns("offset=1,length=2")
    };
    let error = wrong("4096,8192\n", &said);
    assert!(
        error.contains("offset \"4096,8192\" is no number"),
        "{error}"
    );
}

#[test]
fn columns_are_named_once() {
    for text in ["offset=1,offset=2", "offset=1,op=2,op=2"] {
        let error = text.parse::<Columns>().expect_err("twice").to_string();
        assert!(error.contains("named twice"), "{error}");
    }
}

#[test]
fn scsi_operation_codes_are_operations() {
    let options = columns("offset=1,length=2,op=3");
    for (code, op) in [
        ("28", Op::Read),
        ("0x28", Op::Read),
        ("88", Op::Read),
        ("2a", Op::Write),
        ("2A", Op::Write),
        ("8a", Op::Write),
        ("93", Op::Write),
        ("42", Op::Trim),
        ("0", Op::Read),
        ("1", Op::Write),
    ] {
        let text = format!("8192,4096,{code}\n");
        assert_eq!(
            read(text.as_bytes(), &options),
            [line("csv", 0, 8192, 4096, op)],
            "{code}"
        );
    }
    let (report, _) = with(b"0,0,12\n0,0,00\n0,4096,28\n", &options).expect("read");
    assert_eq!(
        (report.requests, report.skipped.of(Reason::NoBlocks)),
        (1, 2)
    );
    assert!(wrong("0,4096,40\n", &options).contains("in hexadecimal"));
}

#[test]
fn a_trim_becomes_a_bounded_number_of_requests() {
    let options = columns("offset=1,length=2,op=3");
    let text = format!("0,{},T\n", 1_u64 << 46);
    assert_eq!(
        with(text.as_bytes(), &options).expect("read").0.requests,
        1 << 16
    );
    for length in [(1_u64 << 46) + 1, 1 << 61, (1 << 62) - (1 << 31)] {
        let error = wrong(&format!("0,{length},T\n"), &options);
        assert!(error.contains("at most 64 TiB a trim"), "{error}");
    }
}

#[test]
fn an_empty_input_is_an_error_in_each_format() {
    for format in Format::ALL {
        let error = wrong("", &of(format));
        assert!(error.contains("the input is empty"), "{format:?}: {error}");
        let error = wrong("", &columns("offset=1"));
        assert!(error.contains("the input is empty"), "{error}");
    }
}

#[test]
fn what_is_no_trace_is_named() {
    for (start, what) in [
        (&b"PERFILE2h\0\0\0"[..], "perf script"),
        (b"\x17\x08\x44tracing6\0", "trace-cmd report"),
        (b"\x07tae\0\0\0\0", "blkparse -i"),
        (
            b"\xf0\xde\xbc\x9a\x78\x56\x34\x12",
            "libCacheSim in its format lcs",
        ),
        (b"\xfd7zXZ\0", "compressed by xz"),
        (b"BZh91AY", "compressed by bzip2"),
        (b"PK\x03\x04", "zip archive"),
        (b"\x1f\x8b\x08", "compressed twice"),
        (b"<!DOCTYPE html>\n<html>", "web page"),
        (
            b"1,2,3,4,5\n6,7,8,9,0\n",
            "5 values a line (comma between them)",
        ),
        (b"17\n18\n", "a list of numbers"),
        (b"\0\x01\x02\x03\0\0\0\0\0", "binary data"),
    ] {
        let error = with(start, &Options::default())
            .expect_err("none")
            .to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let Identity::Rows {
        values, delimiter, ..
    } = identify(b"a;b;c\n1;2;x\n3;4;y\n")
    else {
        panic!("rows");
    };
    assert_eq!((values, delimiter), (3, Delimiter::Byte(b';')));
}

#[test]
fn a_number_of_the_row_in_front_is_no_time() {
    let row =
        "\t89966811921625\t4257\tnfsd\t488846200\t8\tW\t6\t0\tbf619eac0cdf3f68d496ea9344137e8b\n";
    let text = format!("0{row}1{row}");
    assert_eq!(recognise(text.as_bytes()), None);
    let Identity::Rows { values, .. } = identify(text.as_bytes()) else {
        panic!("rows");
    };
    assert_eq!(values, 10);
}

#[test]
fn biosnoop_is_csv_with_a_known_heading() {
    let text = "TIME(s)     COMM           PID    DISK    T SECTOR     BYTES  LAT(ms)\n0.000004    supervise      1950   xvda1   W 13092560   4096      0.74\n0.000178    supervise      1950   xvda1   R 13092432   8192      0.61\n";
    let found = read(text.as_bytes(), &Options::default());
    assert_eq!(
        found[0],
        line("xvda1", 4_000, 13_092_560 * 512, 4096, Op::Write)
    );
    assert_eq!(found.len(), 2);
}
