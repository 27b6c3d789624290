//! Formats of others: each by lines as others write them.

use std::cell::{Cell, RefCell};
use std::io::Read;

use bonsai_trace::import::{Columns, Event, Format, Options, Report, import, recognise};
use bonsai_trace::{Digest, Error, Interning, Op, Reader, Request, Sink};

use crate::data;

/// What was imported: volume, time, offset, length, op, digests.
pub(crate) type Line = (String, u64, u64, u32, Op, Vec<String>);

pub(crate) fn with(text: &[u8], options: &Options) -> Result<(Report, Vec<Line>), Error> {
    let mut sink = Interning::new(Vec::new())?;
    let report = import(text, options, &mut sink)?;
    let (file, written) = sink.finish()?;
    assert_eq!(written.requests, report.requests);
    let mut reader = Reader::new(&file[..])?.keeping_fingerprints();
    let mut lines = Vec::new();
    while let Some(batch) = reader.next_batch()? {
        let batch = batch.clone();
        for request in batch.iter() {
            let digest = |n: &u32| reader.fingerprints()[*n as usize].to_string();
            lines.push((
                reader.volumes()[request.volume as usize].name.clone(),
                request.time_ns,
                request.offset,
                request.length,
                request.op,
                request.contents.iter().map(digest).collect(),
            ));
        }
    }
    Ok((report, lines))
}

fn lines(text: &str) -> Vec<Line> {
    with(text.as_bytes(), &Options::default()).expect("read").1
}

pub(crate) fn wrong(text: &str, options: &Options) -> String {
    with(text.as_bytes(), options).expect_err("bad").to_string()
}

pub(crate) fn line(volume: &str, time_ns: u64, offset: u64, length: u32, op: Op) -> Line {
    (volume.to_owned(), time_ns, offset, length, op, Vec::new())
}

const ZEROS: &str = "bf619eac0cdf3f68d496ea9344137e8b";

#[test]
fn fiu_with_a_digest_for_each_block_or_sector() {
    let one = "b5e9f4e5ab62a4fff5313a606b0ad4e3";
    let text = format!(
        "89966527996712 4253 nfsd 508516680 8 W 6 0 {one}\n\
         89966527996713 4253 a b 508516680 16 R 6 16 {one}{one}\n\
         89966527996714 1 x 0 8 R 6 0 {}\r\n\
         89966527996715 1 x 8 8 R 6 0 {}{ZEROS}\n\
         89966527996716 1 x 8 8 R 6 0",
        ZEROS.repeat(8),
        ZEROS.repeat(7),
    );
    let text = text.replace(
        &format!("{}{ZEROS}\n", ZEROS.repeat(7)),
        &format!("{}{one}\n", ZEROS.repeat(7)),
    );
    let found = lines(&text);
    assert_eq!(found[0].0, "6:0");
    assert_eq!(found[0].1, 89_966_527_996_712);
    assert_eq!(
        (found[0].2, found[0].3, found[0].4),
        (508_516_680 * 512, 4096, Op::Write)
    );
    assert_eq!(found[0].5, [one]);
    assert_eq!(
        (found[1].0.as_str(), found[1].3, found[1].5.len()),
        ("6:16", 8192, 2)
    );
    // Eight digests make one, and another where one of them differs.
    assert_eq!(
        (found[2].5.len(), found[3].5.len(), found[4].5.len()),
        (1, 1, 0)
    );
    assert_ne!(found[2].5, found[3].5);
}

#[test]
fn what_is_unaligned_is_counted_and_can_be_put_right() {
    let text = format!("5 1 p 63 8 R 8 0 {ZEROS}\n6 1 p 71 8 R 8 0 {ZEROS}\n");
    let (report, found) = with(text.as_bytes(), &Options::default()).expect("read");
    assert_eq!((report.unaligned, report.contents_left_out), (2, 2));
    assert_eq!(found[0].5, Vec::<String>::new());
    let options = Options {
        first_sector: 63,
        ..Options::default()
    };
    let (report, found) = with(text.as_bytes(), &options).expect("read");
    assert_eq!((report.unaligned, report.contents_left_out), (0, 0));
    assert_eq!((found[0].2, found[1].2), (64 * 512, 72 * 512));
    assert_eq!(found[0].5, [ZEROS]);
}

#[test]
fn blkparse_takes_one_event_of_each_request() {
    // As in the manual of blkparse(1), with its summary.
    let text = "\
  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  P   R [kjournald]
  8,0    3        3     0.000002197   697  Q   W 223490 + 8 [kjournald]
  8,0    3        4     0.000005533   697  M   W 223498 + 8 [kjournald]
  8,0    3       11     0.009507758   697  D  WS 223490 + 56 [kjournald]
  8,0    3       12     0.009538995   697  C  WS 223490 + 56 [0]
  8,16   1        1     1.5           700  D  FN [kworker/1:1H]
  8,16   1        2     1.6           700  D   D 0 + 16 [fstrim]
  8,0    1        0     1.700000000     0  m   N cfq697 insert_request
CPU0 (sda):
 Reads Queued:           0,        0KiB\t Writes Queued:           7,      128KiB
Total (sda):
";
    let (report, found) = with(text.as_bytes(), &Options::default()).expect("read");
    assert_eq!(report.format, Some(Format::Blkparse));
    assert_eq!(
        found,
        [
            line("8:0", 9_507_758, 223_490 * 512, 56 * 512, Op::Write),
            line("8:16", 1_500_000_000, 0, 0, Op::Flush),
            line("8:16", 1_600_000_000, 0, 8192, Op::Trim),
        ]
    );
    assert_eq!(report.ignored, 9);
    let options = |event| Options {
        event,
        ..Options::default()
    };
    let queued = with(text.as_bytes(), &options(Event::Queue))
        .expect("read")
        .1;
    assert_eq!(queued, [line("8:0", 2_197, 223_490 * 512, 4096, Op::Write)]);
    let only = text.lines().nth(2).expect("a line");
    let error = wrong(only, &options(Event::Complete));
    assert!(error.contains("no event C, but there are of Q"), "{error}");
}

#[test]
fn tracefs_as_the_kernel_writes_it() {
    // Linux 6.18, and the older form without a priority.
    let text = "\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
              dd-20521   [001] .....  4069.229554: block_rq_issue: 254,0 RA 16384 () 12580504 + 32 be,0,4 [bash]
          <idle>-0       [001] ..s1.  4069.229809: block_rq_complete: 254,0 RA () 12580504 + 32 be,0,4 [0]
 Web Content (x)-7       [001] .....  4069.231601: block_rq_issue: 254,0 WS 65536 () 321669416 + 128 [dd]
     kworker/1:1-41      [001] ..s1.  4069.233682: sched_switch: prev_comm=a
     kworker/1:1-41      [001] .....  4069.300000: block_rq_issue: 254,0 FF 0 () 0 + 0 be,0,4 [kworker/1:1H]
CPU:1 [LOST 50 EVENTS]
          fstrim-9       [000] .....  4070.000001: block_rq_issue: 254,0 DS 3221225472 () 8 + 6291456 be,0,4 [fstrim]
";
    let (report, found) = with(text.as_bytes(), &Options::default()).expect("read");
    assert_eq!(report.format, Some(Format::Tracefs));
    assert_eq!(report.lost, 50);
    assert_eq!(
        found[0],
        line(
            "254:0",
            4_069_229_554_000,
            12_580_504 * 512,
            16_384,
            Op::Read
        )
    );
    assert_eq!(found[1].4, Op::Write);
    assert_eq!(found[2], line("254:0", 4_069_300_000_000, 0, 0, Op::Flush));
    // 3 GiB are trimmed at once, in parts that there can be.
    assert_eq!(found.len(), 6);
    let trims: Vec<u64> = found[3..].iter().map(|trim| trim.2).collect();
    assert_eq!(trims, [4096, 4096 + (1 << 30), 4096 + (2 << 30)]);
    let options = Options {
        event: Event::Complete,
        ..Options::default()
    };
    assert_eq!(with(text.as_bytes(), &options).expect("read").1.len(), 1);
}

#[test]
fn msr_counts_from_1601() {
    let text = "128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,0,Write,2822144,4096,100\n";
    let found = lines(text);
    // 2007-02-22 in ns since 1970.
    assert_eq!(
        found[0],
        line(
            "hm:1",
            1_172_163_600_306_162_900,
            383_496_192,
            32_768,
            Op::Read
        )
    );
    assert_eq!(found[1].0, "hm:0");
    let error = wrong(&text.replace("Write", "Wipe"), &Options::default());
    assert!(error.contains("not recognised"), "{error}");
    let options = Options {
        format: Some(Format::Msr),
        ..Options::default()
    };
    let error = wrong(&text.replace("Write", "Wipe"), &options);
    assert_eq!(
        error,
        "record 2 (byte 49): \"Wipe\" is no type; right would be Read or Write"
    );
}

#[test]
fn fio_of_both_versions() {
    let three = "fio version 3 iolog\n18 f1 add\n157 f1 open\n161 f1 read 0 4096\n2627 f1 write 24576 4096\n9007 f1 close\n";
    assert_eq!(
        lines(three),
        [
            line("f1", 161_000, 0, 4096, Op::Read),
            line("f1", 2_627_000, 24_576, 4096, Op::Write)
        ]
    );
    let two = "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 512 1024\n/dev/sda wait 500 0\n/dev/sda sync 0 0\n/dev/sda trim 0 4096\n";
    assert_eq!(
        lines(two),
        [
            line("/dev/sda", 0, 512, 1024, Op::Read),
            line("/dev/sda", 500_000_000, 0, 0, Op::Flush),
            line("/dev/sda", 500_000_000, 0, 4096, Op::Trim)
        ]
    );
    let error = wrong("fio version 4 iolog\n", &Options::default());
    assert!(error.contains("version 2 iolog, or 3"), "{error}");
}

#[test]
fn arc_counts_in_blocks() {
    let found = lines("110765 64 0 0\n110888 1 0 1\n");
    assert_eq!(
        found[0],
        line("lis", 0, 110_765 * 4096, 64 * 4096, Op::Read)
    );
    assert_eq!(found[1].1, 1);
}

#[test]
fn csv_by_numbers_and_headings() {
    let read = |text: &str, columns: &str| {
        let columns: Columns = columns.parse().expect("columns");
        let options = Options {
            columns: Some(columns),
            ..Options::default()
        };
        with(text.as_bytes(), &options)
    };
    let mail = format!(
        "\t0\t1\t2\t3\t4\t5\t6\t7\t8\n0\t89966811921625\t4257\tnfsd\t488846200\t8\tW\t6\t0\t{ZEROS}\n"
    );
    let columns = "time=2,offset=5:sector,length=6:sector,op=7,volume=8+9,digest=10";
    let (_, found) = read(&mail, columns).expect("read");
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].0.as_str(), found[0].2, found[0].4),
        ("6:0", 488_846_200 * 512, Op::Write)
    );
    assert_eq!(found[0].5, [ZEROS]);
    let named = "when,\"the, disk\",kind,addr\n1.5,\"a \"\"b\"\"\",read,7\n2,b,1,8\n";
    let columns = "time=when:s,offset=addr:block,op=kind,volume=2";
    let (report, found) = read(named, columns).expect("read");
    assert_eq!(
        found[0],
        line("a \"b\"", 1_500_000_000, 7 * 4096, 4096, Op::Read)
    );
    assert_eq!(
        found[1],
        line("b", 2_000_000_000, 8 * 4096, 4096, Op::Write)
    );
    assert_eq!((report.records, report.ignored), (3, 1));
    let error = read("a,b\n1,2\n", "offset=c")
        .expect_err("none")
        .to_string();
    assert!(error.contains("no heading is \"c\""), "{error}");
    let error = read("1,2\n3\n", "offset=1,length=2")
        .expect_err("none")
        .to_string();
    assert!(
        error.contains("record 2 (byte 4)") && error.contains("no column 2"),
        "{error}"
    );
    for wrong in [
        "",
        "offset",
        "offset=0",
        "offset=1:mile",
        "op=1",
        "offset=1,op=2:ns",
        "where=1,offset=2",
    ] {
        assert!(wrong.parse::<Columns>().is_err(), "{wrong}");
    }
}

#[test]
fn bad_records_say_where_and_may_be_passed_over() {
    let good = "5 1 p 0 8 R 8 0\n";
    let text = format!("{good}5 1 p 0 x R 8 0\n{good}5 1 p 0 8 Z 8 0\n{good}");
    let fiu = |skip_bad| Options {
        format: Some(Format::Fiu),
        skip_bad,
        ..Options::default()
    };
    assert_eq!(
        wrong(&text, &fiu(0)),
        "record 2 (byte 16): size \"x\" is no number; right would be a whole number from 0 to 2^64 - 1"
    );
    assert!(wrong(&text, &fiu(1)).starts_with("record 4 (byte 48): \"Z\" is no operation"));
    let (report, found) = with(text.as_bytes(), &fiu(2)).expect("read");
    assert_eq!((report.bad, found.len(), report.ignored), (2, 3, 0));
    assert!(
        report
            .first_bad
            .is_some_and(|first| first.starts_with("record 2"))
    );
    for (text, what) in [
        ("5 1 p 0 0 R 8 0\n", "it has no length"),
        ("5 1 p 18446744073709551615 8 R 8 0\n", "beyond"),
        ("5 1 p 0 4194304 R 8 0\n", "at most 1 GiB"),
        ("5 1 p 0 8 R 8 0 12\n", "2 digits"),
        (
            "5 1 p 0 8 R 8 0 xx619eac0cdf3f68d496ea9344137e8b\n",
            "is no digest",
        ),
        ("5 1 p 0 8 R 8 5000000000\n", "no device"),
    ] {
        let error = wrong(text, &fiu(0));
        assert!(
            error.contains("record 1 (byte 0)") && error.contains(what),
            "{error}"
        );
    }
    let long = format!("{good}{}\n{good}", "9".repeat(3 << 20));
    assert!(wrong(&long, &fiu(0)).starts_with("record 2 (byte 16): the line is longer than 1 MiB"));
    assert_eq!(with(long.as_bytes(), &fiu(1)).expect("read").1.len(), 2);
}

#[test]
fn what_is_no_trace_is_refused() {
    for text in ["", "hello\n", "1 2\n", "{\"a\": 1}\n", "\u{89}PNG\r\n"] {
        let error = wrong(text, &Options::default());
        assert!(
            error.contains("record 1") && error.contains("right would be fiu"),
            "{error}"
        );
    }
    assert_eq!(recognise(b"\n\n"), None);
}

#[test]
fn the_real_samples_are_read() {
    const TEST: &str = "import::the_real_samples_are_read";
    for (name, devices) in [
        ("homes-sample.1", &["6:0", "6:16"][..]),
        ("mail-01-sample", &["6:0"]),
        ("web-vm-sample", &["3:0"]),
    ] {
        let path = format!("fiu-samples/lightdedup-{name}.blkparse");
        let Some(mut file) = data::open(TEST, &path) else {
            return;
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text).expect("read");
        let (report, found) = with(&text, &Options::default()).expect("read");
        assert_eq!(
            (report.requests, report.unaligned, report.bad),
            (1_000, 0, 0),
            "{name}"
        );
        assert!(found.iter().all(|line| line.5.len() == 1), "{name}");
        let mut volumes: Vec<&str> = found.iter().map(|line| line.0.as_str()).collect();
        volumes.sort_unstable();
        volumes.dedup();
        assert_eq!(volumes, devices, "{name}");
    }
}

#[test]
fn other_white_space_is_part_of_a_field() {
    let options = Options {
        format: Some(Format::Fiu),
        by_process: true,
        ..Options::default()
    };
    for strange in ["\x0c", "\r", "\x0b\x0c"] {
        let text = format!("1 1 {strange} a\n");
        assert!(wrong(&text, &options).starts_with("record 1"));
        assert!(recognise(text.as_bytes()).is_none());
        for name in [strange, &format!("{strange}foo"), &format!("a {strange}")] {
            let text = format!("1 1 {name} 8 8 R 6 0\n");
            let (_, found) = with(text.as_bytes(), &options).expect("read");
            assert_eq!(found[0].0, format!("{name}@6:0"));
        }
    }
}

#[test]
fn digests_are_numbered_once() {
    // Each comes twice at first, and behind the first thousand all have come before: some in the same batch.
    let digests: Vec<Digest> = (0..5_000_u128)
        .map(|n| if n < 1_000 { n } else { n * n % 1_000 })
        .map(|n| Digest((n / 2).to_be_bytes()))
        .collect();
    let [mut one_by_one, mut together] = [(); 2].map(|()| Interning::new(Vec::new()).unwrap());
    let numbers: Vec<u32> = digests
        .iter()
        .map(|digest| one_by_one.content(*digest).unwrap())
        .collect();
    let half = |n: u32| n / 2;
    assert!((0..1_000).map(half).eq(numbers[..1_000].iter().copied()));
    let mut found = vec![7];
    together.contents(&digests, &mut found).unwrap();
    assert_eq!((found[0], &found[1..]), (7, &numbers[..]));
    assert_eq!(together.finish().unwrap().1.contents, 500);
}

/// Gives a line at a time, and notes how many requests had come when it was asked for the next.
struct Slowly<'a> {
    lines: Vec<String>,
    came: &'a Cell<u64>,
    seen: &'a RefCell<Vec<u64>>,
}

impl Read for Slowly<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        self.seen.borrow_mut().push(self.came.get());
        let line = self.lines.pop().unwrap_or_default();
        to[..line.len()].copy_from_slice(line.as_bytes());
        Ok(line.len())
    }
}

struct Counting<'a>(&'a Cell<u64>);

impl Sink for Counting<'_> {
    fn volume(&mut self, _: &str) -> Result<u32, Error> {
        Ok(0)
    }

    fn content(&mut self, _: Digest) -> Result<u32, Error> {
        Ok(0)
    }

    fn request(&mut self, _: &Request<'_>) -> Result<(), Error> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
}

#[test]
fn nothing_waits_while_more_is_waited_for() {
    let (came, seen) = (Cell::new(0), RefCell::default());
    // The third comes in two parts.
    let parts = [
        "",
        "R 8 0\n",
        "3 1 p 0 8 ",
        "1 1 p 0 8 R 8 0\n2 1 p 8 8 R 8 0\n",
    ];
    let slowly = Slowly {
        lines: parts.map(str::to_owned).to_vec(),
        came: &came,
        seen: &seen,
    };
    let options = Options {
        format: Some(Format::Fiu),
        ..Options::default()
    };
    import(slowly, &options, &mut Counting(&came)).unwrap();
    assert_eq!(*seen.borrow(), [0, 2, 2, 3]);
}
