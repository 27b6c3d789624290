//! Formats and units as the tools themselves have them: fio(1), blkparse(1).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::data;
use crate::import::{line, with};
use bonsai_trace::Op;
use bonsai_trace::import::{Event, Format, Options};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bonsai-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How long fio's jobs took, ms, by its own account; `None` where there is no fio.
fn fio(test: &str, folder: &Path, args: &[&str]) -> Option<u64> {
    let mut command = Command::new("timeout");
    command.args([
        "60",
        "fio",
        "--name=x",
        "--ioengine=psync",
        "--output-format=json",
    ]);
    let Ok(done) = command.args(args).current_dir(folder).output() else {
        data::skip(test, "timeout(1) is not installed");
        return None;
    };
    if done.status.code() == Some(127) {
        data::skip(test, "fio is not installed");
        return None;
    }
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).expect("UTF-8");
    let start = text.find('{').expect("JSON");
    let json: serde_json::Value = serde_json::from_str(&text[start..]).expect("JSON");
    let job = &json["jobs"][0];
    let of = |op: &str| job[op]["runtime"].as_u64().unwrap_or(0);
    Some(of("read").max(of("write")))
}

/// The time of the last request of an iolog, ms.
fn last_ms(path: &Path) -> u64 {
    let text = fs::read(path).expect("an iolog");
    let (_, found) = with(&text, &Options::default()).expect("imported");
    found.last().expect("a request").1 / 1_000_000
}

#[test]
fn a_replay_of_fio_ends_when_the_import_says() {
    const TEST: &str = "tools::a_replay_of_fio_ends_when_the_import_says";
    let folder = Folder::new("fio-waits");
    fs::write(folder.0.join("f"), vec![0; 1 << 20]).expect("a file");
    // Absolute, in ms, from the start of fio itself; and stamps in us, of which the first counts for nothing.
    let two = "fio version 2 iolog\nf add\nf open\nf read 0 4096\nf wait 900 0\nf read 4096 4096\nf wait 1500 0\nf read 8192 4096\nf close\n";
    let three = "fio version 3 iolog\n1 f add\n1 f open\n1 f read 0 4096\n900000 f read 4096 4096\n1500000 f read 8192 4096\n1500000 f close\n";
    for (name, text) in [("two", two), ("three", three)] {
        let path = folder.0.join(name);
        fs::write(&path, text).expect("written");
        assert_eq!(last_ms(&path), 1_500, "{name}");
        let Some(ms) = fio(TEST, &folder.0, &[&format!("--read_iolog={name}")]) else {
            return;
        };
        // fio takes a part of a second to begin, of which version 2 counts the waits.
        assert!((1_000..4_000).contains(&ms), "{name}: {ms} ms");
    }
}

#[test]
fn what_fio_writes_takes_as_long_as_it_ran() {
    const TEST: &str = "tools::what_fio_writes_takes_as_long_as_it_ran";
    let folder = Folder::new("fio-log");
    let args = [
        "--filename=f",
        "--size=64k",
        "--bs=4k",
        "--rw=randrw",
        "--thinktime=50000",
        "--write_iolog=log",
    ];
    let Some(ms) = fio(TEST, &folder.0, &args) else {
        return;
    };
    let last = last_ms(&folder.0.join("log"));
    // 16 requests, a pause of 50 ms behind each.
    assert!(last >= 600 && last <= ms + 500, "{last} ms of {ms} ms");
}

/// Events of blktrace(8) as its files have them (`struct blk_io_trace` of linux/blktrace_api.h).
#[derive(Default)]
struct Events(Vec<u8>);

/// Categories of events, and the shift behind which they stand.
const READ: u32 = 1;
const WRITE: u32 = 1 << 1;
const FLUSH: u32 = 1 << 2;
const QUEUE: u32 = 1 << 4;
const ISSUE: u32 = 1 << 6;
const COMPLETE: u32 = 1 << 7;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;

impl Events {
    fn add(
        &mut self,
        time_ns: u64,
        sector: u64,
        bytes: u32,
        (act, category): (u32, u32),
        data: &[u8],
    ) {
        let to = &mut self.0;
        let sequence = u32::try_from(to.len() / 48).expect("few");
        to.extend(0x6561_7407_u32.to_le_bytes());
        to.extend(sequence.to_le_bytes());
        to.extend(time_ns.to_le_bytes());
        to.extend(sector.to_le_bytes());
        for word in [bytes, act | category << 16, 697, 8 << 20, 0] {
            to.extend(word.to_le_bytes());
        }
        to.extend([0, 0, data.len() as u8, 0]);
        to.extend(data);
    }
}

#[test]
fn what_blkparse_prints_is_read_also_of_several_runs() {
    const TEST: &str = "tools::what_blkparse_prints_is_read_also_of_several_runs";
    let folder = Folder::new("blkparse");
    let mut events = Events::default();
    let name: Vec<u8> = b"kjournald".iter().copied().chain([0; 7]).collect();
    events.add(0, 0, 0, (0, NOTIFY), &name);
    events.add(9_000_000, 223_488, 28_672, (1, QUEUE | WRITE), &[]);
    events.add(9_010_000, 223_488, 28_672, (7, ISSUE | WRITE), &[]);
    events.add(9_110_000, 4_096, 4_096, (7, ISSUE | READ), &[]);
    events.add(9_210_000, 0, 1 << 20, (7, ISSUE | WRITE | DISCARD), &[]);
    events.add(9_310_000, 0, 0, (7, ISSUE | WRITE | FLUSH), &[]);
    events.add(9_410_000, 4_096, 4_096, (8, COMPLETE | READ), &[]);
    fs::write(folder.0.join("sda.blktrace.0"), &events.0).expect("written");
    let mut texts = Vec::new();
    for option in [&[][..], &["-s"], &["-t"], &["-q"]] {
        let mut command = Command::new("blkparse");
        command
            .args(option)
            .args(["-i", "sda"])
            .current_dir(&folder.0);
        let Ok(done) = command.output() else {
            return data::skip(TEST, "blkparse is not installed");
        };
        assert!(done.status.success(), "{done:?}");
        texts.push(done.stdout);
    }
    let found = |event| {
        let options = Options {
            event,
            ..Options::default()
        };
        let (report, found) = with(&texts.concat(), &options).expect("imported");
        assert_eq!(report.format, Some(Format::Blkparse));
        assert_eq!(report.records, report.requests + report.ignored);
        found
    };
    // blkparse counts from the first event.
    let issued = [
        line("8:0", 10_000, 223_488 * 512, 28_672, Op::Write),
        line("8:0", 110_000, 4_096 * 512, 4_096, Op::Read),
        line("8:0", 210_000, 0, 1 << 20, Op::Trim),
        line("8:0", 310_000, 0, 0, Op::Flush),
    ];
    assert_eq!(found(Event::Issue), vec![issued; 4].concat());
    assert_eq!(
        found(Event::Queue),
        vec![line("8:0", 0, 223_488 * 512, 28_672, Op::Write); 4]
    );
    assert_eq!(
        found(Event::Complete),
        vec![line("8:0", 410_000, 4_096 * 512, 4_096, Op::Read); 4]
    );
}
