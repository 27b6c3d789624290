//! What looks at each sample and at each packet, and leaves samples out.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::writer::Writer;
use super::{Parts, StreamView};

/// A sample that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub struct SampleView {
    /// Whether it is a picture, and no sound.
    pub is_picture: bool,
    /// Whether decoding can begin with it.
    pub is_sync: bool,
    /// Its bytes.
    pub bytes: u32,
    /// How late it is, nanoseconds.
    pub late_ns: u64,
    /// Which pictures the server leaves out of all streams (`bonsai_media::load::Pictures`): 0 for none, 1
    /// for those that no other is predicted from, 2 for as many as have to go behind each that decoding can
    /// begin with. It does so of the lowest quality that there is.
    pub level: u8,
}

/// A packet that is sent.
#[derive(Clone, Copy, Debug)]
pub struct PacketView<'a> {
    /// When, nanoseconds of CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// Of which track of the clip, counted from 0.
    pub track: usize,
    /// Its header of RTP, and what its payload begins with.
    pub head: &'a [u8],
    /// The rest of it.
    pub body: &'a [u8],
}

/// What becomes of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is sent.
    Send,
    /// It is left out.
    Drop,
}

/// Looks at what is sent of one stream.
///
/// A program has its own by a name, which `--handler` and a pipeline's file then know, too:
///
/// ```
/// use std::sync::Arc;
///
/// use bonsai_stream::serve::{Fate, Handler, Parts, SampleView};
///
/// /// Sends each picture that is smaller than that, and all of the sound.
/// #[derive(Debug)]
/// struct Smaller(u32);
///
/// impl Handler for Smaller {
///     fn sample(&mut self, sample: &SampleView) -> Fate {
///         match sample.is_picture && sample.bytes >= self.0 {
///             true => Fate::Drop,
///             false => Fate::Send,
///         }
///     }
/// }
///
/// let mut parts = Parts::builtin();
/// parts.register_handler("smaller", |value| {
///     let bytes: u32 = value
///         .parse()
///         .map_err(|_| format!("smaller={value}: write bytes, as smaller=20000"))?;
///     Ok(Arc::new(move |_stream| Ok(Box::new(Smaller(bytes)))))
/// });
/// parts.append("smaller=20000")?;
/// assert!(parts.append("smaller=few").is_err());
/// # Ok::<(), String>(())
/// ```
pub trait Handler: fmt::Debug {
    /// A sample is about to be sent; the first handler that drops it has decided.
    fn sample(&mut self, sample: &SampleView) -> Fate {
        let _ = sample;
        Fate::Send
    }

    /// A packet has been sent.
    fn packet(&mut self, packet: &PacketView<'_>) {
        let _ = packet;
    }

    /// The stream is over.
    fn end(&mut self) {}
}

pub(super) fn register(parts: &mut Parts) {
    let writers = Arc::clone(&parts.writers);
    parts.register_handler("tee", move |value| {
        let folder = Arc::<Path>::from(Path::new(value));
        if !folder.is_dir() {
            return Err(format!("tee={value}: there is no such folder"));
        }
        let (writer, number) = (new_writer(&writers), Arc::new(AtomicU64::new(0)));
        Ok(Arc::new(move |stream| match writer.take_failure() {
            Some(why) => Err(why),
            None => {
                let tee = Tee::new(&writer, (&folder, &number), stream.peer);
                Ok(Box::new(tee) as Box<dyn Handler>)
            }
        }))
    });
    let writers = Arc::clone(&parts.writers);
    parts.register_handler("statistics", move |value| {
        // Whoever cannot write hears of it before.
        let file = File::options().append(true).create(true).open(value);
        let file = file.map_err(|error| format!("statistics={value}: {error}"))?;
        let (writer, file) = (new_writer(&writers), Arc::new(file));
        Ok(Arc::new(move |stream| {
            let file = (writer.clone(), Arc::clone(&file));
            Ok(Box::new(Statistics::new(file, stream)))
        }))
    });
    parts.register_handler("keys", |value| match value {
        "" => Ok(Arc::new(|_| Ok(Box::new(Keys)))),
        other => Err(format!("keys={other}: it takes nothing")),
    });
}

fn new_writer(all: &Mutex<Vec<Writer>>) -> Writer {
    let writer = Writer::default();
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(writer.clone());
    writer
}

/// Pictures that decoding can begin with, and sound.
#[derive(Debug)]
struct Keys;

impl Handler for Keys {
    fn sample(&mut self, sample: &SampleView) -> Fate {
        match sample.is_picture && !sample.is_sync {
            true => Fate::Drop,
            false => Fate::Send,
        }
    }
}

/// Counts, and writes a line at the end.
#[derive(Debug)]
struct Statistics {
    file: (Writer, Arc<File>),
    peer: SocketAddr,
    clip: String,
    samples: u64,
    packets: u64,
    bytes: u64,
    late_max_ns: u64,
    /// When the first packet was sent, and the last.
    sent_ns: Option<(u64, u64)>,
}

impl Statistics {
    fn new(file: (Writer, Arc<File>), stream: &StreamView<'_>) -> Self {
        Self {
            file,
            peer: stream.peer,
            clip: stream.clip.to_owned(),
            samples: 0,
            packets: 0,
            bytes: 0,
            late_max_ns: 0,
            sent_ns: None,
        }
    }
}

impl Handler for Statistics {
    fn sample(&mut self, sample: &SampleView) -> Fate {
        self.samples += 1;
        self.late_max_ns = self.late_max_ns.max(sample.late_ns);
        Fate::Send
    }

    fn packet(&mut self, packet: &PacketView<'_>) {
        self.packets += 1;
        self.bytes += u64::try_from(packet.head.len() + packet.body.len()).unwrap_or(0);
        let (first, _) = self.sent_ns.unwrap_or((packet.now_ns, 0));
        self.sent_ns = Some((first, packet.now_ns));
    }

    fn end(&mut self) {
        let line = serde_json::json!({
            "peer": self.peer,
            "clip": self.clip,
            "samples": self.samples,
            "packets": self.packets,
            "bytes": self.bytes,
            "elapsed_ns": self.sent_ns.map_or(0, |(first, last)| last - first),
            "late_max_ns": self.late_max_ns,
        });
        let (line, file) = (format!("{line}\n"), Arc::clone(&self.file.1));
        self.file.0.run(line.len(), move || {
            // One call, so that lines of several servers do not mix; a full disk is no reason to send less.
            let _ = (&*file).write_all(line.as_bytes());
        });
    }
}

/// Writes packets to a file, as rtpdump does, which Wireshark reads.
#[derive(Debug)]
struct Tee {
    writer: Writer,
    /// The file, once the writer has made it, as its first work.
    file: Arc<OnceLock<File>>,
    /// Whole packets that are not written.
    buffer: Vec<u8>,
    began: Option<u64>,
}

impl Tee {
    /// Bytes that are written together.
    const TOGETHER: usize = 8 << 10;

    fn new(
        writer: &Writer,
        (folder, number): (&Arc<Path>, &Arc<AtomicU64>),
        peer: SocketAddr,
    ) -> Self {
        let file = Arc::new(OnceLock::new());
        let (made, of) = (Arc::clone(&file), writer.clone());
        let (folder, number) = (Arc::clone(folder), Arc::clone(number));
        writer.run(0, move || match create(&folder, &number) {
            Ok(file) => drop(made.set(file)),
            Err(why) => of.fail(why),
        });
        // rtptools: a line, and a header of the time, address and port that it came from.
        let mut buffer = format!("#!rtpplay1.0 {}/{}\n", peer.ip(), peer.port()).into_bytes();
        buffer.extend([0; 16]);
        Self {
            writer: writer.clone(),
            file,
            buffer,
            began: None,
        }
    }

    fn write(&mut self) {
        let bytes = std::mem::take(&mut self.buffer);
        let file = Arc::clone(&self.file);
        self.writer.run(bytes.len(), move || {
            // A full disk is no reason to send less.
            let _ = file.get().map(|mut file| file.write_all(&bytes));
        });
    }
}

/// Makes a file: those that are there stay.
fn create(folder: &Path, number: &AtomicU64) -> Result<File, String> {
    loop {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("stream-{number}.rtpdump"));
        match File::create_new(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
}

impl Handler for Tee {
    fn packet(&mut self, packet: &PacketView<'_>) {
        let began = *self.began.get_or_insert(packet.now_ns);
        let length = u16::try_from(packet.head.len() + packet.body.len()).unwrap_or(0);
        let ms = u32::try_from((packet.now_ns - began) / 1_000_000).unwrap_or(u32::MAX);
        let whole = length.saturating_add(8).to_be_bytes();
        let parts = [
            &whole[..],
            &length.to_be_bytes(),
            &ms.to_be_bytes(),
            packet.head,
            packet.body,
        ];
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
        if self.buffer.len() >= Self::TOGETHER {
            self.write();
        }
    }

    fn end(&mut self) {
        self.write();
        // A file system may hang when a file is closed, too.
        let file = std::mem::take(&mut self.file);
        self.writer.run(0, move || drop(file));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::*;

    const WAITS: Duration = Duration::from_secs(30);

    fn view() -> StreamView<'static> {
        StreamView {
            peer: SocketAddr::from(([127, 0, 0, 1], 5000)),
            clip: "clip.mp4",
        }
    }

    fn chain(parts: &Parts) -> Vec<Box<dyn Handler>> {
        let makers = parts.chain();
        let made = makers.iter().map(|maker| maker(&view()).expect("made"));
        made.collect()
    }

    #[test]
    fn handlers_are_named_and_one_can_be_added() {
        #[derive(Debug)]
        struct None;
        impl Handler for None {
            fn sample(&mut self, _: &SampleView) -> Fate {
                Fate::Drop
            }
        }
        let mut set = Parts::builtin();
        set.register_handler("none", |_| Ok(Arc::new(|_| Ok(Box::new(None)))));
        set.append("keys").expect("known");
        set.append("none").expect("added");
        let error = set.append("jump").expect_err("unknown");
        let known = "\"jump\" is no handler; there are keys, none, statistics, tee";
        assert_eq!(error, known);
        set.append("keys=2").expect_err("nothing is taken");
        set.append("tee=/nowhere").expect_err("no folder");
        set.append("statistics=/nowhere/x").expect_err("no file");
        let mut chain = chain(&set);
        let sample = |is_picture, is_sync| SampleView {
            is_picture,
            is_sync,
            bytes: 100,
            late_ns: 0,
            level: 0,
        };
        assert_eq!(chain[0].sample(&sample(true, false)), Fate::Drop);
        assert_eq!(chain[0].sample(&sample(true, true)), Fate::Send);
        assert_eq!(chain[0].sample(&sample(false, false)), Fate::Send);
        assert_eq!(chain[1].sample(&sample(false, true)), Fate::Drop);
    }

    #[test]
    fn packets_are_written_down_as_they_are_sent() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut set = Parts::builtin();
        set.append(&format!("tee={}", folder.path().display()))
            .expect("known");
        let mut chain = chain(&set);
        for now_ns in [5_000_000, 12_000_000] {
            chain[0].packet(&PacketView {
                now_ns,
                track: 0,
                head: b"head",
                body: b"body!",
            });
        }
        chain[0].end();
        assert!(set.settle(WAITS));
        let bytes = std::fs::read(folder.path().join("stream-0.rtpdump")).expect("a file");
        let line = b"#!rtpplay1.0 127.0.0.1/5000\n";
        assert_eq!(&bytes[..line.len()], line);
        let packets = &bytes[line.len() + 16..];
        assert_eq!(
            packets,
            b"\0\x11\0\x09\0\0\0\0headbody!\0\x11\0\x09\0\0\0\x07headbody!"
        );
    }

    #[test]
    fn a_stream_that_is_over_leaves_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("streams.jsonl");
        let mut set = Parts::builtin();
        set.append(&format!("statistics={}", file.display()))
            .expect("known");
        for _ in 0..2 {
            let mut chain = chain(&set);
            for now_ns in [5, 12] {
                chain[0].packet(&PacketView {
                    now_ns,
                    track: 0,
                    head: b"head",
                    body: b"body!",
                });
            }
            chain[0].end();
        }
        assert!(set.settle(WAITS));
        let text = std::fs::read_to_string(file).expect("a file");
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert_eq!((&line["packets"], &line["bytes"]), (&2.into(), &18.into()));
            assert_eq!(
                (&line["clip"], &line["elapsed_ns"]),
                (&"clip.mp4".into(), &7.into())
            );
        }
    }

    #[test]
    fn a_disk_that_hangs_holds_up_no_stream_that_is_written_down() {
        const STREAMS: usize = 2000;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("streams.jsonl");
        // A queue without a reader takes no more than 64 KiB.
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a queue");
        let mut reader = File::options();
        let mut reader = reader.read(true).write(true).open(&file).expect("open");
        let (tell, told) = std::sync::mpsc::channel();
        let mut set = Parts::builtin();
        set.append(&format!("statistics={}", file.display()))
            .expect("known");
        let all = set.clone();
        std::thread::spawn(move || {
            for _ in 0..STREAMS {
                chain(&all)[0].end();
            }
            let _ = tell.send(());
        });
        told.recv_timeout(WAITS).expect("nothing is waited for");
        assert!(!set.settle(Duration::ZERO));
        let mut lines = 0;
        let mut bytes = [0; 4096];
        while lines < STREAMS {
            let read = reader.read(&mut bytes).expect("lines");
            lines += bytes[..read].iter().filter(|byte| **byte == b'\n').count();
        }
        assert!(set.settle(WAITS));
    }

    #[test]
    fn the_next_stream_is_told_that_no_file_can_be_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let copies = folder.path().join("copies");
        std::fs::create_dir(&copies).expect("made");
        let mut set = Parts::builtin();
        set.append(&format!("tee={}", copies.display()))
            .expect("known");
        std::fs::remove_dir(&copies).expect("removed");
        let makers = set.chain();
        makers[0](&view()).expect("it is not known yet");
        assert!(set.settle(WAITS));
        let why = makers[0](&view()).expect_err("it is told");
        assert!(why.contains("stream-0.rtpdump: No such file"), "{why}");
        makers[0](&view()).expect("it is tried again");
        assert!(set.settle(WAITS));
    }
}
