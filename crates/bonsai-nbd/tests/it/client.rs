//! A client that can ask for anything, also for what no library would.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const ZEROES: u16 = 6;
pub(crate) const STATUS: u16 = 7;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) cookie: u64,
}

impl Client {
    /// Without structured replies.
    pub(crate) fn new(socket: &Path, export: &str) -> Self {
        let mut stream = greeted(socket);
        let mut go = u32::try_from(export.len()).unwrap().to_be_bytes().to_vec();
        go.extend_from_slice(export.as_bytes());
        go.extend_from_slice(&[0, 0]);
        option(&mut stream, 7, &go);
        loop {
            let (kind, _) = answer(&mut stream);
            assert_eq!(kind >> 31, 0, "GO is refused");
            if kind == 1 {
                break;
            }
        }
        Self { stream, cookie: 0 }
    }

    /// With structured replies and `base:allocation`.
    pub(crate) fn structured(socket: &Path, export: &str) -> Self {
        let mut stream = greeted(socket);
        option(&mut stream, 8, &[]);
        assert_eq!(answer(&mut stream).0, 1);
        let length = |text: &str| u32::try_from(text.len()).unwrap().to_be_bytes();
        let mut context = length(export).to_vec();
        context.extend_from_slice(export.as_bytes());
        context.extend_from_slice(&1u32.to_be_bytes());
        context.extend_from_slice(&length("base:allocation"));
        context.extend_from_slice(b"base:allocation");
        option(&mut stream, 10, &context);
        while answer(&mut stream).0 != 1 {}
        let mut go = length(export).to_vec();
        go.extend_from_slice(export.as_bytes());
        go.extend_from_slice(&[0, 0]);
        option(&mut stream, 7, &go);
        while answer(&mut stream).0 != 1 {}
        Self { stream, cookie: 0 }
    }

    /// Sends a request again and again, each at the next `step`, and receives nothing, until the server takes no more for a
    /// while; says how many it took.
    pub(crate) fn flood(&mut self, kind: u16, (length, step): (u32, u64), size: u64) -> u64 {
        let pause = Some(Duration::from_millis(200));
        self.stream.set_write_timeout(pause).unwrap();
        let mut offset = 0;
        for count in 0..20_000 {
            let header = header((0, kind), count, offset, length);
            if self.stream.write_all(&header).is_err() {
                return count;
            }
            offset = (offset + step) % (size - u64::from(length) + 1);
        }
        20_000
    }

    pub(crate) fn send(
        &mut self,
        (flags, kind): (u16, u16),
        offset: u64,
        length: u32,
        data: &[u8],
    ) {
        self.cookie += 1;
        let mut bytes = header((flags, kind), self.cookie, offset, length);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The error of the next reply.
    pub(crate) fn reply(&mut self) -> u32 {
        let (error, cookie) = self.any_reply();
        assert_eq!(cookie, self.cookie, "its own cookie");
        error
    }

    /// The error and the cookie of whatever reply comes next.
    pub(crate) fn any_reply(&mut self) -> (u32, u64) {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes(), "a simple reply");
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(head[8..].try_into().unwrap()))
    }

    pub(crate) fn data(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    pub(crate) fn ask(&mut self, what: (u16, u16), offset: u64, length: u32, data: &[u8]) -> u32 {
        self.send(what, offset, length, data);
        self.reply()
    }

    pub(crate) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, u32> {
        match self.ask((0, READ), offset, u32::try_from(length).unwrap(), &[]) {
            0 => Ok(self.data(length)),
            error => Err(error),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> u32 {
        let length = u32::try_from(data.len()).unwrap();
        self.ask((u16::from(fua), WRITE), offset, length, data)
    }
}

/// A request without its payload.
pub(crate) fn header((flags, kind): (u16, u16), cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// A connection whose flags have been said.
pub(crate) fn greeted(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream
}

pub(crate) fn option(stream: &mut UnixStream, number: u32, data: &[u8]) {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes).unwrap();
}

pub(crate) fn answer(stream: &mut UnixStream) -> (u32, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let mut data = vec![0; word(16) as usize];
    stream.read_exact(&mut data).unwrap();
    (word(12), data)
}
