//! A folder of films by FUSE, in which calls for one film, and the lookup of another, can be made to hang.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Numbers of requests (linux/fuse.h).
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const FORGET_MANY: u32 = 42;

/// Reads go to the file system, and not to the page cache.
const DIRECT: u32 = 1;

const ROOT: u64 = 1;
const HUNG: u64 = 2;
const GOOD: u64 = 3;
const LOST: u64 = 4;

/// Lookups of a folder do not wait for each other (FUSE_PARALLEL_DIROPS).
const PARALLEL: u32 = 1 << 18;

/// `hung.mp4`, `lost.mp4` and `good.mp4`, all with the same bytes; it ends with this.
pub(crate) struct Folder {
    hangs: Arc<AtomicBool>,
    hung: Arc<AtomicU32>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Folder {
    /// Mounts it, for this thread and those that it starts alone.
    ///
    /// # Errors
    /// Why there is no FUSE here.
    pub(crate) fn mount(at: &Path, film: Vec<u8>) -> Result<Self, String> {
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let fuse = fuse.map_err(|error| format!("/dev/fuse: {error}"))?;
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| format!("a mount namespace: {error}"))?;
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none)
            .map_err(|error| format!("private mounts: {error}"))?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            fuse.as_raw_fd()
        );
        let flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID;
        mount(Some("films"), at, Some("fuse"), flags, Some(&options[..]))
            .map_err(|error| format!("a mount of FUSE: {error}"))?;
        let (hangs, hung) = (Arc::default(), Arc::default());
        let ends: Arc<AtomicBool> = Arc::default();
        let server = Server {
            fuse,
            film,
            hangs: Arc::clone(&hangs),
            hung: Arc::clone(&hung),
            waiting: Vec::new(),
        };
        let until = Arc::clone(&ends);
        Ok(Self {
            hangs,
            hung,
            ends,
            thread: Some(std::thread::spawn(move || server.run(&until))),
        })
    }

    /// Reads and closing of `hung.mp4` and the lookup of `lost.mp4` hang from now on, or go on.
    pub(crate) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Number of calls that hang.
    pub(crate) fn hung(&self) -> u32 {
        self.hung.load(Ordering::SeqCst)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Server {
    fuse: File,
    film: Vec<u8>,
    hangs: Arc<AtomicBool>,
    hung: Arc<AtomicU32>,
    /// Calls that hang, and their numbers.
    waiting: Vec<(u64, Hung)>,
}

enum Hung {
    /// From where, and how many bytes.
    Read(u64, u32),
    Lookup,
    Close,
}

impl Server {
    /// Answers up to the end; what hangs then fails.
    fn run(mut self, until: &AtomicBool) {
        let mut buffer = vec![0; 1 << 20];
        while !until.load(Ordering::SeqCst) {
            if !self.hangs.load(Ordering::SeqCst) {
                for (unique, hung) in std::mem::take(&mut self.waiting) {
                    match hung {
                        Hung::Read(offset, size) => self.read(unique, offset, size),
                        Hung::Lookup => self.found(unique, LOST),
                        Hung::Close => self.reply(unique, 0, &[]),
                    }
                }
            }
            let count = u32::try_from(self.waiting.len()).expect("few");
            self.hung.store(count, Ordering::SeqCst);
            let mut fds = [PollFd::new(&self.fuse, PollFlags::IN)];
            let timeout = Timespec::try_from(Duration::from_millis(10)).expect("short");
            if poll(&mut fds, Some(&timeout)) == Ok(0) {
                continue;
            }
            match self.fuse.read(&mut buffer) {
                Ok(len) => self.answer(&buffer[..len]),
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn answer(&mut self, request: &[u8]) {
        let hangs = self.hangs.load(Ordering::SeqCst);
        let (opcode, unique, node) = (u32_at(request, 4), u64_at(request, 8), u64_at(request, 16));
        let body = &request[40..];
        match opcode {
            INIT => {
                let mut out = vec![0; 64];
                let values = [
                    (0, 7),
                    (4, 31),
                    (8, 1 << 17),
                    (12, PARALLEL),
                    (20, 1 << 17),
                    (24, 1),
                ];
                for (at, value) in values {
                    out[at..at + 4].copy_from_slice(&u32::to_ne_bytes(value));
                }
                self.reply(unique, 0, &out);
            }
            LOOKUP => {
                let node = match body.split(|byte| *byte == 0).next() {
                    Some(b"hung.mp4") => HUNG,
                    Some(b"good.mp4") => GOOD,
                    Some(b"lost.mp4") if hangs => {
                        return self.waiting.push((unique, Hung::Lookup));
                    }
                    Some(b"lost.mp4") => LOST,
                    _ => return self.reply(unique, -nix::libc::ENOENT, &[]),
                };
                self.found(unique, node);
            }
            GETATTR => {
                let out = [vec![0; 16], self.attributes(node)].concat();
                self.reply(unique, 0, &out);
            }
            OPEN | OPENDIR => {
                let out = [&[0; 8][..], &DIRECT.to_ne_bytes(), &[0; 4]].concat();
                self.reply(unique, 0, &out);
            }
            READ => {
                let (offset, size) = (u64_at(body, 8), u32_at(body, 16));
                if node == HUNG && hangs {
                    self.waiting.push((unique, Hung::Read(offset, size)));
                } else {
                    self.read(unique, offset, size);
                }
            }
            FLUSH if node == HUNG && hangs => self.waiting.push((unique, Hung::Close)),
            RELEASE | RELEASEDIR | FLUSH => self.reply(unique, 0, &[]),
            FORGET | FORGET_MANY | INTERRUPT => {}
            _ => self.reply(unique, -nix::libc::ENOSYS, &[]),
        }
    }

    fn found(&self, unique: u64, node: u64) {
        // The entry is valid for no time, so that each look asks again.
        let head = [node, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
        let out = [head, self.attributes(node)].concat();
        self.reply(unique, 0, &out);
    }

    fn read(&self, unique: u64, offset: u64, size: u32) {
        let from = usize::try_from(offset).expect("small").min(self.film.len());
        let to = (from + usize::try_from(size).expect("small")).min(self.film.len());
        self.reply(unique, 0, &self.film[from..to]);
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (0o040_755, 0),
            _ => (0o100_644, self.film.len() as u64),
        };
        // Number, size, blocks, three times; their parts of a second.
        let mut out = [node, size, size.div_ceil(512), 1, 1, 1]
            .map(u64::to_ne_bytes)
            .concat();
        for value in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0_u32] {
            out.extend_from_slice(&value.to_ne_bytes());
        }
        out
    }

    fn reply(&self, unique: u64, error: i32, body: &[u8]) {
        let len = u32::try_from(16 + body.len()).expect("small");
        let (len, error) = (len.to_ne_bytes(), error.to_ne_bytes());
        let out = [&len[..], &error, &unique.to_ne_bytes(), body].concat();
        // A request that was taken back has no answer.
        let _ = (&self.fuse).write(&out);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"))
}
