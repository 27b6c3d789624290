//! What is in an epoll set that was filled before that was looked at: the kernel says it,
//! in `/proc/self/fdinfo`.

use crate::sets::nr_of;
use crate::sys::{call, nr};
use bonsai_calls as calls;

/// Told of a descriptor in a set: both, its events, and its data.
type Record = fn(usize, usize, u32, u64);

/// Tells of each descriptor in a set.
pub(crate) fn read(set: usize, record: Record) {
    let mut path = *b"/proc/self/fdinfo/\0\0\0\0\0\0\0\0";
    let mut digits = [0_u8; 8];
    let mut left = set;
    let mut len = 0;
    while len == 0 || left > 0 {
        #[expect(clippy::cast_possible_truncation, reason = "a digit")]
        let digit = b'0' + (left % 10) as u8;
        digits[len % 8] = digit;
        (left, len) = (left / 10, len + 1);
    }
    for i in 0..len {
        path[(18 + i) % 26] = digits[(len - 1 - i) % 8];
    }
    let (mut buffer, mut line) = ([0_u8; 1024], Line::default());
    // SAFETY: a C string, and a buffer of our own.
    unsafe {
        // O_RDONLY | O_CLOEXEC
        let file = call!(nr::OPEN, path.as_ptr(), 0o2_000_000, 0);
        if file < 0 {
            return;
        }
        while let got @ 1.. = call!(nr_of(calls::READ_FILE), file, buffer.as_mut_ptr(), 1024) {
            let read = buffer.get(..got.cast_unsigned()).unwrap_or_default();
            for byte in read {
                line.take(*byte, set, record);
            }
        }
        call!(nr::CLOSE, file);
    }
}

/// A line `tfd: 5 events: 19 data: 5 ...`: a decimal and two hexadecimal numbers, and
/// more of their kind.
#[derive(Default)]
struct Line {
    at: usize,
    /// It begins otherwise.
    other: bool,
    /// Labels so far.
    word: usize,
    /// A number has begun, and it has ended: letters belong to a label.
    begun: bool,
    ended: bool,
    numbers: [u64; 3],
}

impl Line {
    fn take(&mut self, byte: u8, set: usize, record: Record) {
        let [fd, asked, data] = self.numbers;
        match byte {
            b'\n' => {
                if !self.other && self.word >= 3 {
                    #[expect(clippy::cast_possible_truncation, reason = "a number, 32 bits")]
                    record(set, fd as usize, asked as u32, data);
                }
                *self = Self::default();
                return;
            }
            b':' => {
                self.word += 1;
                (self.begun, self.ended) = (false, false);
            }
            _ if self.at < 3 => self.other |= b"tfd".get(self.at) != Some(&byte),
            b'a'..=b'f' | b'0'..=b'9' if !self.ended => {
                self.begun = true;
                self.digit(byte);
            }
            _ => self.ended = self.begun,
        }
        self.at += 1;
    }

    fn digit(&mut self, byte: u8) {
        let value = u64::from(if byte.is_ascii_digit() {
            byte - b'0'
        } else {
            byte - b'a' + 10
        });
        let base = if self.word == 1 { 10 } else { 16 };
        if let Some(number) = self
            .word
            .checked_sub(1)
            .and_then(|i| self.numbers.get_mut(i))
        {
            *number = number.wrapping_mul(base).wrapping_add(value);
        }
    }
}
