//! What is in an epoll set that was filled before that was looked at: the kernel says it,
//! in `/proc/self/fdinfo`.

use crate::paths::AT_FDCWD;
use crate::seccomp::{Helper, ask, forbids};

/// Told of a descriptor in a set: that, both, its events, and its data.
type Record = fn(usize, usize, u32, u64);

/// A path as a C string.
pub(crate) struct Path {
    bytes: [u8; 48],
    len: usize,
}

impl Path {
    const fn new() -> Self {
        Self {
            bytes: [0; 48],
            len: 0,
        }
    }

    fn and(mut self, part: &[u8]) -> Self {
        for byte in part {
            // The last one stays zero.
            if let Some(slot) = self.bytes.get_mut(self.len).filter(|_| self.len < 47) {
                *slot = *byte;
                self.len += 1;
            }
        }
        self
    }

    fn and_number(self, number: usize) -> Self {
        let mut digits = [0_u8; 20];
        let (mut left, mut at) = (number, 20);
        while at == 20 || left > 0 {
            at -= 1;
            #[expect(clippy::cast_possible_truncation, reason = "a digit")]
            let digit = b'0' + (left % 10) as u8;
            digits[at % 20] = digit;
            left /= 10;
        }
        self.and(digits.get(at..).unwrap_or_default())
    }

    /// What a thread of this process does just now.
    pub(crate) fn task(tid: u32) -> Self {
        let folder = Self::new().and(b"/proc/self/task/");
        folder.and_number(tid as usize).and(b"/syscall")
    }
}

/// A number in digits of a base.
pub(crate) fn number(digits: &[u8], base: u64) -> Option<u64> {
    let step = |value: u64, digit: &u8| {
        let digit = u64::from(char::from(*digit).to_digit(16)?);
        (digit < base).then(|| value.wrapping_mul(base).wrapping_add(digit))
    };
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, step)
}

/// Whether threads, sets and what is in them can be found.
pub(crate) fn can_look() -> bool {
    let needed = [
        Helper::OpenRead,
        Helper::Read,
        Helper::Getdents,
        Helper::Readlink,
        Helper::Close,
    ];
    !needed.into_iter().any(forbids)
}

/// Reads a file piece by piece, or a folder.
fn each_piece(path: &Path, buffer: &mut [u8], is_folder: bool, mut by: impl FnMut(&[u8])) {
    // SAFETY: a C string, and a buffer that is as long as is said.
    unsafe {
        // O_RDONLY | O_CLOEXEC
        let file = ask!(OpenRead, AT_FDCWD, path.bytes.as_ptr(), 0o2_000_000, 0);
        if file < 0 {
            return;
        }
        loop {
            let (at, len) = (buffer.as_mut_ptr(), buffer.len());
            let got = match is_folder {
                true => ask!(Getdents, file, at, len),
                false => ask!(Read, file, at, len),
            };
            let Some(piece) = usize::try_from(got).ok().and_then(|got| buffer.get(..got)) else {
                break;
            };
            if piece.is_empty() {
                break;
            }
            by(piece);
        }
        ask!(Close, file);
    }
}

/// What a small file says, as far as there is room.
pub(crate) fn read_file<'a>(path: &Path, buffer: &'a mut [u8]) -> &'a [u8] {
    let (mut len, mut piece) = (0, [0_u8; 192]);
    each_piece(path, &mut piece, false, |piece| {
        let room = buffer.get_mut(len..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(piece) {
            *to = *from;
            len += 1;
        }
    });
    buffer.get(..len).unwrap_or_default()
}

/// The names of a folder that are numbers.
fn each_number(path: &Path, mut by: impl FnMut(usize)) {
    let mut buffer = [0_u8; 2048];
    each_piece(path, &mut buffer, true, |entries| {
        let mut rest = entries;
        // struct linux_dirent64: the length of an entry stands at 16, its name at 19.
        while let Some([low, high]) = rest.get(16..18) {
            let len = usize::from(u16::from_le_bytes([*low, *high])).max(19);
            let name = rest.get(19..len).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if let Some(number) = number(name, 10).and_then(|n| usize::try_from(n).ok()) {
                by(number);
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    });
}

/// Tells of each thread of the process.
pub(crate) fn each_thread(mut by: impl FnMut(u32)) {
    let folder = Path::new().and(b"/proc/self/task");
    each_number(&folder, |tid| by(u32::try_from(tid).unwrap_or(0)));
}

/// Tells of each epoll set of the process.
pub(crate) fn each_set(mut by: impl FnMut(usize)) {
    const NAME: &[u8] = b"anon_inode:[eventpoll]";
    let folder = Path::new().and(b"/proc/self/fd");
    each_number(&folder, |fd| {
        let path = Path::new().and(b"/proc/self/fd/").and_number(fd);
        let mut name = [0_u8; 32];
        // SAFETY: a C string, and a buffer of that length.
        let len = unsafe { ask!(Readlink, path.bytes.as_ptr(), name.as_mut_ptr(), 32) };
        if usize::try_from(len).ok().and_then(|len| name.get(..len)) == Some(NAME) {
            by(fd);
        }
    });
}

/// Tells of each descriptor in a set, by a number of that.
pub(crate) fn read(number: usize, slot: usize, record: Record) {
    let (mut buffer, mut line) = ([0_u8; 1024], Line::default());
    let path = Path::new().and(b"/proc/self/fdinfo/").and_number(number);
    each_piece(&path, &mut buffer, false, |piece| {
        for byte in piece {
            line.take(*byte, slot, record);
        }
    });
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
