//! What was asked for is in the trace, as it was.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bonsai_nbd::control;
use bonsai_nbd::record::{Output, RecordError, Recording, Summary};
use bonsai_trace::{Op, Reader};
use twox_hash::XxHash3_128;

use crate::client::{Client, FLUSH, READ, TRIM, ZEROES};
use crate::house::{House, has};

const SIZE: u64 = 4 << 20;
const BLOCK: usize = 4096;

/// What a test looks at while it grows.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Kept {}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Got {
    volume: u32,
    op: Op,
    offset: u64,
    length: u32,
    contents: Vec<u32>,
}

/// Begins, and gives where it will be said how it ended.
fn recorded(house: &House, to: impl Output + 'static) -> (Recording, Receiver<Ended>) {
    let (tell, told) = channel();
    let recording = Recording::start(&house.exports, to, move |how| {
        tell.send(how.map_err(|error| error.to_string())).unwrap();
    });
    (recording.unwrap(), told)
}

type Ended = Result<Summary, String>;

/// Requests, and how many were lost.
fn read(trace: &[u8]) -> (Vec<Got>, u64) {
    let mut reader = Reader::new(trace).unwrap();
    let mut all = Vec::new();
    let mut last = 0;
    while let Some(batch) = reader.next_batch().unwrap() {
        for of in batch.iter() {
            assert!(of.time_ns > 1_500_000_000_000_000_000, "since 1970");
            last = last.max(of.time_ns);
            all.push(Got {
                volume: of.volume,
                op: of.op,
                offset: of.offset,
                length: of.length,
                contents: of.contents.to_vec(),
            });
        }
    }
    (all, reader.lost())
}

fn block(fill: u8) -> Vec<u8> {
    vec![fill; BLOCK]
}

#[test]
fn requests_are_recorded_as_they_were_and_equal_contents_are_equal() {
    let house = House::new(&["a", "b"], SIZE);
    let kept = Kept::default();
    let (recording, told) = recorded(&house, kept.clone());
    let [mut a, mut b] = ["a", "b"].map(|name| Client::new(&house.socket(), name));
    let two = [block(1), block(2)].concat();
    assert_eq!(a.write(8192, &two, false), 0);
    assert_eq!(b.write(0, &block(2), false), 0);
    assert_eq!(a.read(8192, 8192).unwrap(), two);
    assert_eq!(b.write(0, &block(3), false), 0);
    assert_eq!(b.read(0, BLOCK).unwrap(), block(3));
    // A part of a block, after which the rest of it is another content.
    assert_eq!(a.write(8192, &[9; 100], false), 0);
    let found = a.read(8192, BLOCK).unwrap();
    assert_eq!(a.ask((0, ZEROES), 12288, 4096, &[]), 0);
    assert_eq!(a.read(12288, BLOCK).unwrap(), block(0));
    assert_eq!(a.read(1 << 20, BLOCK).unwrap(), block(0), "a hole");
    assert_eq!(a.ask((0, TRIM), 8192, 8192, &[]), 0);
    assert_eq!(a.ask((0, FLUSH), 0, 0, &[]), 0);
    assert_eq!(a.read(SIZE - 1, 10), Err(22), "no request of a trace");
    recording.stop();
    let summary = told.recv().unwrap().unwrap();
    let trace = kept.0.lock().unwrap().clone();
    let (all, lost) = read(&trace);
    assert_eq!((lost, summary.lost, summary.bare), (0, 0, 0));
    assert_eq!((summary.requests, summary.unaligned), (all.len() as u64, 1));
    let brief: Vec<_> = all
        .iter()
        .map(|of| (of.volume, of.op, of.offset, of.length, of.contents.len()))
        .collect();
    assert_eq!(
        brief,
        [
            (0, Op::Write, 8192, 8192, 2),
            (1, Op::Write, 0, 4096, 1),
            (0, Op::Read, 8192, 8192, 2),
            (1, Op::Write, 0, 4096, 1),
            (1, Op::Read, 0, 4096, 1),
            (0, Op::Write, 8192, 100, 0),
            (0, Op::Read, 8192, 4096, 1),
            (0, Op::Write, 12288, 4096, 1),
            (0, Op::Read, 12288, 4096, 1),
            (0, Op::Read, 1 << 20, 4096, 1),
            (0, Op::Trim, 8192, 8192, 0),
            (0, Op::Flush, 0, 0, 0),
        ]
    );
    let content = |n: usize, block: usize| all[n].contents[block];
    assert_eq!(all[0].contents, all[2].contents);
    assert_eq!(content(1, 0), content(0, 1), "the same on another export");
    assert_ne!(content(3, 0), content(1, 0), "written anew");
    assert_eq!(content(3, 0), content(4, 0));
    assert!(found[..100] == [9; 100] && !all[0].contents.contains(&content(6, 0)));
    assert_eq!(content(7, 0), content(8, 0));
    assert_eq!(content(7, 0), content(9, 0), "zeroes are zeroes");
    let mut reader = Reader::new(&trace[..]).unwrap().keeping_fingerprints();
    while reader.next_batch().unwrap().is_some() {}
    assert_eq!(reader.volumes()[0].name, "a");
    assert_eq!(reader.volumes()[0].bytes, Some(SIZE));
    let prints = reader.fingerprints();
    assert_eq!(prints[content(7, 0) as usize].0, [0; 16]);
    // Nobody who knows a content knows its fingerprint.
    let print = prints[content(0, 0) as usize].0;
    assert_ne!(print, blake3::hash(&block(1)).as_bytes()[..16]);
    assert_ne!(print, XxHash3_128::oneshot(&block(1)).to_le_bytes());
}

/// Another program has the image open, and writes beside the server: what a block held before is not known then.
#[test]
fn what_somebody_else_wrote_has_its_own_fingerprint() {
    let house = House::new(&["a"], SIZE);
    let kept = Kept::default();
    let (recording, told) = recorded(&house, kept.clone());
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(client.write(0, &block(1), false), 0);
    let path = house.folder.path().join("a");
    for round in 0..20_u8 {
        let file = File::options().write(true).open(&path).unwrap();
        for fill in [7, 8] {
            file.write_all_at(&block(fill + 2 * round), 0).unwrap();
            assert_eq!(client.read(0, BLOCK).unwrap(), block(fill + 2 * round));
            assert_eq!(client.write(8192, &block(200), false), 0);
        }
        drop(file);
        // Whether the lease is held again by then or not.
        assert_eq!(client.read(0, BLOCK).unwrap(), block(8 + 2 * round));
        std::thread::sleep(Duration::from_millis(u64::from(round) * 5));
    }
    recording.stop();
    assert!(told.recv().unwrap().is_ok());
    let trace = kept.0.lock().unwrap().clone();
    let mut reads: Vec<u32> = read(&trace)
        .0
        .iter()
        .filter(|of| of.op == Op::Read)
        .map(|of| of.contents[0])
        .collect();
    assert_eq!(reads.len(), 60);
    for three in reads.as_chunks::<3>().0 {
        assert!(three[0] != three[1] && three[1] == three[2], "{reads:?}");
    }
    reads.sort_unstable();
    reads.dedup();
    assert_eq!(reads.len(), 40, "{reads:?}");
}

#[test]
fn a_second_recording_has_other_fingerprints_and_two_at_once_are_refused() {
    let house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    let mut prints = Vec::new();
    for _ in 0..2 {
        let kept = Kept::default();
        let (recording, _told) = recorded(&house, kept.clone());
        let second = Recording::start(&house.exports, Kept::default(), |_| {});
        assert!(matches!(second, Err(RecordError::Taken(name)) if name == "a"));
        assert_eq!(client.write(0, &block(7), false), 0);
        recording.stop();
        let trace = kept.0.lock().unwrap().clone();
        let mut reader = Reader::new(&trace[..]).unwrap().keeping_fingerprints();
        while reader.next_batch().unwrap().is_some() {}
        prints.push(reader.fingerprints().to_vec());
    }
    assert_eq!((prints[0].len(), prints[1].len()), (1, 1));
    assert_ne!(prints[0], prints[1]);
}

/// Contents of races: who reads one knows which it is.
const TAGS: u8 = 16;
/// What was read while it was written; the page cache does not keep one from the other.
const TORN: u8 = 255;
const RACED: u64 = 24;

#[test]
fn contents_are_those_of_the_bytes_while_connections_race() {
    let house = House::new(&["a"], SIZE);
    let kept = Kept::default();
    let (recording, told) = recorded(&house, kept.clone());
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(client.read(0, BLOCK).unwrap(), block(0));
    for tag in 1..=TAGS {
        assert_eq!(client.write(u64::from(tag) * 4096, &block(tag), false), 0);
    }
    let threads: Vec<_> = (0..4_u64)
        .map(|seed| {
            let socket = house.socket();
            std::thread::spawn(move || race(&socket, seed))
        })
        .collect();
    let mut wanted: HashMap<(u64, Op, u8), i64> = HashMap::new();
    for thread in threads {
        for done in thread.join().unwrap() {
            *wanted.entry(done).or_default() += 1;
        }
    }
    recording.stop();
    let summary = told.recv().unwrap().unwrap();
    assert_eq!((summary.lost, summary.bare), (0, 0));
    let (all, _) = read(&kept.0.lock().unwrap());
    let (first, raced) = all.split_at(usize::from(TAGS) + 1);
    let tags: HashMap<u32, u8> = first
        .iter()
        .map(|of| (of.contents[0], tag(of.offset / 4096)))
        .collect();
    assert_eq!(tags.len(), first.len(), "different ones differ");
    for of in raced {
        let tag = tags.get(&of.contents[0]).copied().unwrap_or(TORN);
        *wanted.entry((of.offset / 4096, of.op, tag)).or_default() -= 1;
    }
    let wrong: Vec<_> = wanted.iter().filter(|(_, count)| **count != 0).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

fn tag(n: u64) -> u8 {
    u8::try_from(n).unwrap()
}

fn race(socket: &std::path::Path, seed: u64) -> Vec<(u64, Op, u8)> {
    let mut client = Client::new(socket, "a");
    let mut state = seed * 2 + 1;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    // There is room for all of them, also if none were written meanwhile.
    (0..1_000)
        .map(|_| {
            let at = 100 + draw(RACED);
            if draw(3) == 0 {
                let fill = tag(1 + draw(u64::from(TAGS)));
                assert_eq!(client.write(at * 4096, &block(fill), false), 0);
                return (at, Op::Write, fill);
            }
            let found = client.read(at * 4096, BLOCK).unwrap();
            let fill = found[0];
            let whole = found.iter().all(|byte| *byte == fill);
            (at, Op::Read, if whole { fill } else { TORN })
        })
        .collect()
}

/// Takes nothing while it is shut.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>, Kept);

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shut = self.0.0.lock().unwrap();
        while *shut {
            shut = self.0.1.wait(shut).unwrap();
        }
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Gate {}

#[test]
fn what_there_is_no_room_for_is_counted_and_told() {
    let house = House::new(&["a"], SIZE);
    let gate = Gate::default();
    let (recording, told) = recorded(&house, gate.clone());
    *gate.0.0.lock().unwrap() = true;
    let mut client = Client::new(&house.socket(), "a");
    const ALL: u64 = 160_000;
    for _ in 0..ALL / 200 {
        for _ in 0..200 {
            client.send((0, READ), 5, 1, &[]);
        }
        let mut replies = [0; 200 * 17];
        client.stream.read_exact(&mut replies).unwrap();
    }
    *gate.0.0.lock().unwrap() = false;
    gate.0.1.notify_all();
    // The server answers, and records again.
    assert_eq!(client.read(0, BLOCK).unwrap(), block(0));
    recording.stop();
    let summary = told.recv().unwrap().unwrap();
    let (all, lost) = read(&gate.1.0.lock().unwrap());
    assert!(lost > 0, "{summary:?}");
    assert_eq!(lost, summary.lost);
    assert_eq!(all.len() as u64 + lost, ALL + 1);
}

/// A disk of so many bytes.
struct Full(Kept, usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.1.min(bytes.len());
        if room == 0 {
            return Err(io::Error::from_raw_os_error(28));
        }
        self.1 -= room;
        self.0.write(&bytes[..room])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Full {}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_server() {
    let house = House::new(&["a"], SIZE);
    let (recording, told) = recorded(&house, Full(Kept::default(), 300));
    let mut client = Client::new(&house.socket(), "a");
    let mut ended = None;
    for n in 0..200_000_u64 {
        let at = n % 1000 * 4096;
        let mut bytes = block(1);
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        assert_eq!(client.write(at, &bytes, false), 0);
        ended = told.try_recv().ok();
        if ended.is_some() {
            break;
        }
    }
    let error = ended.expect("it has ended").unwrap_err();
    assert!(error.contains("No space left"), "{error}");
    assert!(house.exports.iter().all(|export| {
        let second = Recording::start(&[Arc::clone(export)], Kept::default(), |_| {});
        second.is_ok()
    }));
    recording.stop();
    assert_eq!(client.read(0, 1).unwrap().len(), 1);
}

#[test]
fn the_control_socket_gives_the_status_or_a_trace() {
    let house = House::new(&["a", "b c"], SIZE);
    let folder = tempfile::tempdir().unwrap();
    let control = control::listen(folder.path(), house.exports.clone()).unwrap();
    let path = folder
        .path()
        .join(format!("{}.control", std::process::id()));
    // Somebody of before, who says nothing and does not close.
    let mut text = String::new();
    let mut old = UnixStream::connect(&path).unwrap();
    old.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("{\"pid\":"), "{text}");
    let refused = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        control::record_from(folder.path(), &names).unwrap_err()
    };
    assert_eq!(refused(&["x"]), "x: no server has it; there are a, b c");
    let mut odd = UnixStream::connect(&path).unwrap();
    odd.write_all(b"dance\n").unwrap();
    text.clear();
    odd.read_to_string(&mut text).unwrap();
    assert_eq!(text, "{\"refused\":\"dance: is not known here\"}\n");

    let names = ["b c".to_owned(), "a".to_owned()];
    let mut stream = control::record_from(folder.path(), &names).unwrap();
    assert!(refused(&["a"]).ends_with("a: is recorded already"));
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(client.write(0, &block(1), false), 0);
    let patience = std::time::Duration::from_secs(10);
    let ask = control::Ask::Status;
    let asked = control::ask_all::<control::ServerStatus>(folder.path(), ask, patience, |_| true);
    let status = asked.unwrap().remove(0).answer.unwrap();
    let recording = status.exports[0].recording.unwrap();
    assert_eq!((recording.requests, recording.lost), (1, 0));
    stream.shutdown(Shutdown::Write).unwrap();
    let mut trace = Vec::new();
    stream.read_to_end(&mut trace).unwrap();
    let (all, _) = read(&trace);
    assert_eq!((all.len(), all[0].volume), (1, 1));

    // Who goes without a word leaves room for the next.
    drop(control::record_from(folder.path(), &names).unwrap());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut last = loop {
        match control::record_from(folder.path(), &names) {
            Ok(stream) => break stream,
            Err(why) => assert!(std::time::Instant::now() < end, "{why}"),
        }
    };
    // The end of the server is the end of the trace.
    assert_eq!(client.write(0, &block(2), false), 0);
    drop(control);
    trace.clear();
    last.read_to_end(&mut trace).unwrap();
    assert_eq!(read(&trace).0.len(), 1);
}

/// Bytes of each number, of what is on the image now.
fn held(trace: &[Got], image: &[u8]) -> usize {
    let mut last: HashMap<u64, u32> = HashMap::new();
    for of in trace {
        for (content, block) in of.contents.iter().zip(of.offset / 4096..) {
            last.insert(block, *content);
        }
    }
    let mut by_number: HashMap<u32, &[u8]> = HashMap::new();
    let mut by_bytes: HashMap<&[u8], u32> = HashMap::new();
    for (block, content) in &last {
        let at = usize::try_from(block * 4096).unwrap();
        let bytes = &image[at..at + BLOCK];
        assert_eq!(*by_number.entry(*content).or_insert(bytes), bytes);
        assert_eq!(*by_bytes.entry(bytes).or_insert(*content), *content);
    }
    last.len()
}

#[test]
fn what_fio_asks_for_is_in_the_trace() {
    const TEST: &str = "what_fio_asks_for_is_in_the_trace";
    if !has(TEST, "fio") {
        return;
    }
    let house = House::new(&["a"], SIZE);
    let kept = Kept::default();
    let (recording, told) = recorded(&house, kept.clone());
    let mut fio = Command::new("fio");
    fio.args(["--name=r", "--ioengine=nbd", "--rw=randrw", "--bs=4k,16k"]);
    fio.args([
        "--iodepth=16",
        "--size=4M",
        "--io_size=24M",
        "--norandommap",
    ]);
    fio.args(["--dedupe_percentage=40", "--output-format=json"]);
    fio.arg(format!("--uri={}", house.uri("a")));
    let output = fio.current_dir(house.folder.path()).output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("engine nbd not loadable") {
        return crate::house::skip(TEST, "fio has no engine for NBD");
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    recording.stop();
    let summary = told.recv().unwrap().unwrap();
    let (all, lost) = read(&kept.0.lock().unwrap());
    assert_eq!((lost, summary.bare), (0, 0));
    let start = text.find('{').unwrap();
    let said: serde_json::Value = serde_json::from_str(&text[start..]).unwrap();
    for (op, name) in [(Op::Read, "read"), (Op::Write, "write")] {
        let of = all.iter().filter(|of| of.op == op);
        let count = of.clone().count() as u64;
        let bytes: u64 = of.map(|of| u64::from(of.length)).sum();
        let job = &said["jobs"][0][name];
        assert_eq!(Some(count), job["total_ios"].as_u64(), "{name}");
        assert_eq!(Some(bytes), job["io_bytes"].as_u64(), "{name}");
    }
    // Only writes that were under way together may have another order in the trace than on the image: there are none
    // at the end of a second, slower turn.
    let kept = Kept::default();
    let (recording, _told) = recorded(&house, kept.clone());
    let mut copy = Command::new("nbdcopy");
    if has(TEST, "nbdcopy") {
        let to = house.folder.path().join("copy");
        let done = copy
            .args(["--no-extents"])
            .arg(house.uri("a"))
            .arg(&to)
            .status();
        assert!(done.unwrap().success());
        recording.stop();
        let (all, _) = read(&kept.0.lock().unwrap());
        let image = std::fs::read(house.folder.path().join("a")).unwrap();
        assert_eq!(held(&all, &image) as u64, SIZE / 4096);
    }
}

#[test]
fn what_qemu_asks_for_is_in_the_trace() {
    if !has("what_qemu_asks_for_is_in_the_trace", "qemu-io") {
        return;
    }
    let house = House::new(&["a"], SIZE);
    let kept = Kept::default();
    let (recording, _told) = recorded(&house, kept.clone());
    let mut io = Command::new("qemu-io");
    io.args(["-f", "raw", "--cache=writeback"]);
    let commands = [
        "write -P 1 0 64k",
        "write -P 2 64k 64k",
        "write -P 1 1M 64k",
        "read 32k 64k",
        "write -P 3 0 4k",
        "read 0 8k",
        "write -z 2M 64k",
        "discard 3M 64k",
        "flush",
    ];
    for command in commands {
        io.args(["-c", command]);
    }
    let done = io.arg(house.uri("a")).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    recording.stop();
    let (all, _) = read(&kept.0.lock().unwrap());
    let of = |op, offset, length| {
        let found = all
            .iter()
            .filter(|of| (of.op, of.offset, of.length) == (op, offset, length));
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), 1, "{op:?} {offset} {length}: {all:?}");
        found[0].contents.clone()
    };
    const KIB: u64 = 1024;
    let one = of(Op::Write, 0, 64 << 10);
    assert_eq!(one, of(Op::Write, 1 << 20, 64 << 10));
    assert!(one.iter().all(|content| *content == one[0]));
    let two = of(Op::Write, 64 * KIB, 64 << 10);
    assert_eq!(
        of(Op::Read, 32 * KIB, 64 << 10),
        [&one[..8], &two[..8]].concat()
    );
    let three = of(Op::Write, 0, 4096);
    assert_eq!(of(Op::Read, 0, 8192), [three[0], one[0]]);
    assert_eq!(of(Op::Write, 2 << 20, 64 << 10).len(), 16);
    assert!(of(Op::Trim, 3 << 20, 64 << 10).is_empty());
    assert!(all.iter().any(|of| of.op == Op::Flush));
    let image = std::fs::read(house.folder.path().join("a")).unwrap();
    held(&all, &image);
}
