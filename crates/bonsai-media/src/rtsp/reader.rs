//! Messages out of a stream of bytes.

use rtsp_types::{Message, ParseError};

use super::head;

/// More than that is no message: descriptions have some kilobytes, interleaved packets at most 65,539.
const MOST: usize = 256 * 1024;

const ENDLESS: &str = "it sends a message without an end";
const FOREIGN: &str = "it sends what is no RTSP";

/// Bytes that came, up to the next message.
#[derive(Debug)]
pub struct Reader {
    bytes: Vec<u8>,
    read: usize,
    /// Where the last message began.
    last: usize,
    most: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self::with_most(MOST)
    }
}

impl Reader {
    /// One that takes no message of that many bytes or more.
    #[must_use]
    pub const fn with_most(most: usize) -> Self {
        Self {
            bytes: Vec::new(),
            read: 0,
            last: 0,
            most,
        }
    }

    /// Whether a message has begun that is not there as a whole.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.read < self.bytes.len()
    }

    /// More has come.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.read == self.bytes.len() {
            self.bytes.clear();
            self.read = 0;
        } else if self.read > self.most {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        self.last = self.read;
        self.bytes.extend_from_slice(bytes);
    }

    /// Gives the last message again, next time; until then nothing may be added.
    pub const fn again(&mut self) {
        self.read = self.last;
    }

    /// The next message, if it is there. Its body stays where it is.
    ///
    /// # Errors
    /// What has come is no message: nothing behind it can be read.
    pub fn message(&mut self) -> Result<Option<Message<&[u8]>>, String> {
        // Empty lines between messages are passed over (RFC 2326, 4.1).
        while let [b'\r' | b'\n', ..] = &self.bytes[self.read..] {
            self.read += 1;
        }
        self.last = self.read;
        let rest = &self.bytes[self.read..];
        if rest.is_empty() {
            return Ok(None);
        }
        if rest[0] != b'$' && self.plain()?.is_none() {
            return Ok(None);
        }
        let rest = &self.bytes[self.read..];
        match Message::parse(rest) {
            Ok((message, length)) => {
                self.read += length;
                Ok(Some(message))
            }
            Err(ParseError::Incomplete(_)) if rest.len() < self.most => Ok(None),
            Err(ParseError::Incomplete(_)) => Err(ENDLESS.to_owned()),
            Err(ParseError::Error) => Err(FOREIGN.to_owned()),
        }
    }

    /// Makes the head of the next message one that the parser takes; `None` if the head is not there as a whole.
    fn plain(&mut self) -> Result<Option<()>, String> {
        let rest = &self.bytes[self.read..];
        let Some(length) = head::length(rest) else {
            return match rest.len() < self.most {
                true if head::may_begin(rest) => Ok(None),
                true => Err(FOREIGN.to_owned()),
                false => Err(ENDLESS.to_owned()),
            };
        };
        if let Some(plain) = head::plain(&rest[..length]) {
            self.bytes.splice(self.read..self.read + length, plain);
        }
        Ok(Some(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_any_pieces() {
        let mut all = b"RTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: 3\r\n\r\nabc\r\n".to_vec();
        all.extend_from_slice(b"$\x02\x00\x04wxyz");
        all.extend_from_slice(b"RTSP/1.0 404 Not Found\r\nCSeq: 2\r\n\r\n");
        for size in [1, 2, 3, 7, all.len()] {
            let mut reader = Reader::default();
            let mut seen = Vec::new();
            for piece in all.chunks(size) {
                reader.add(piece);
                while let Some(message) = reader.message().expect("good") {
                    seen.push(match message {
                        Message::Response(of) => {
                            format!("{} {:?}", u16::from(of.status()), of.body())
                        }
                        Message::Data(of) => format!("${} {:?}", of.channel_id(), of.as_slice()),
                        Message::Request(of) => format!("{:?}", of.method()),
                    });
                }
            }
            assert_eq!(
                seen,
                ["200 [97, 98, 99]", "$2 [119, 120, 121, 122]", "404 []"]
            );
        }
    }

    #[test]
    fn a_message_is_given_again() {
        let mut reader = Reader::default();
        reader
            .add(b"\r\nOPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\nOPTIONS * RTSP/1.0\r\nCSeq: 2\r\n\r\n");
        let mut number = || {
            let message = reader.message().expect("good");
            let Some(Message::Request(of)) = message else {
                panic!("{message:?}");
            };
            let number = of.header(&rtsp_types::headers::CSEQ).expect("a number");
            let number = number.as_str().to_owned();
            if number == "1" {
                reader.again();
            }
            number
        };
        assert_eq!([number(), number(), number()], ["1", "1", "1"]);
        reader.message().expect("good").expect("the first");
        reader.add(b"\r\n");
        reader.again();
        let message = reader.message().expect("good");
        assert!(matches!(message, Some(Message::Request(_))), "{message:?}");
    }

    #[test]
    fn lines_end_with_a_line_feed_alone_and_in_any_pieces() {
        let all = "OPTIONS * RTSP/1.0\nCSeq: 1\n\nPLAY rtsp://h/日 本 RTSP/1.0\r\nCSeq: 2\r\n\r\n$\x01\0\x02\n\n";
        for size in [1, 2, 5, all.len()] {
            let (mut reader, mut seen) = (Reader::default(), 0);
            for piece in all.as_bytes().chunks(size) {
                reader.add(piece);
                while let Some(message) = reader.message().expect("good") {
                    seen += 1;
                    if let Message::Data(data) = message {
                        assert_eq!((seen, data.as_slice()), (3, &b"\n\n"[..]), "{size}");
                    }
                }
            }
            assert_eq!(seen, 3, "{size}");
        }
    }

    #[test]
    fn what_is_no_message_is_said() {
        let mut reader = Reader::default();
        reader.add(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        reader.message().expect_err("no RTSP");
        let mut endless = Reader::default();
        endless.add(b"RTSP/1.0 200 OK\r\nContent-Length: 999999999\r\n\r\n");
        endless.add(&vec![b'x'; MOST]);
        endless.message().expect_err("no end");
    }
}
