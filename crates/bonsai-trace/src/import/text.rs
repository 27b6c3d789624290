//! Fields, numbers and digests in lines.

use super::{Wrong, bad};

const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Fields between blanks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'l>(pub(super) &'l [u8]);

impl<'l> Fields<'l> {
    /// All from the next field on.
    #[inline]
    pub(super) fn ahead(&self) -> &'l [u8] {
        let start = self.0.iter().position(|byte| !is_blank(byte));
        &self.0[start.unwrap_or(self.0.len())..]
    }

    /// The next field.
    #[inline]
    pub(super) fn field(&mut self) -> Option<&'l [u8]> {
        let rest = Some(self.ahead()).filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(is_blank).unwrap_or(rest.len());
        self.0 = &rest[end..];
        Some(&rest[..end])
    }

    /// The next field as a number.
    #[inline]
    pub(super) fn number(&mut self, name: &str) -> Result<u64, Wrong> {
        if let Some(n) = self.short() {
            return Ok(n);
        }
        let field = self.field().ok_or_else(|| {
            bad(
                format!("there is no {name}"),
                "all fields of the format in each line",
            )
        })?;
        number(field, name)
    }

    /// The next field, where it is of at most 19 digits: those always fit. In one go.
    #[inline]
    pub(super) fn short(&mut self) -> Option<u64> {
        let rest = match self.0 {
            [b' ', rest @ ..] => rest,
            all => all,
        };
        let mut n = 0;
        for (at, byte) in rest.iter().enumerate().take(20) {
            let digit = byte.wrapping_sub(b'0');
            if digit <= 9 && at < 19 {
                n = n * 10 + u64::from(digit);
            } else {
                let is_whole = at > 0 && is_blank(byte);
                self.0 = if is_whole { &rest[at..] } else { self.0 };
                return is_whole.then_some(n);
            }
        }
        None
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(is_blank)
    }
}

/// A whole number.
#[inline]
pub(super) fn number(field: &[u8], name: &str) -> Result<u64, Wrong> {
    whole(field).ok_or_else(|| {
        bad(
            format!("{name} {} is no number", shown(field)),
            "a whole number from 0 to 2^64 - 1",
        )
    })
}

/// Digits only.
#[inline]
pub(super) fn whole(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    let mut n: u64 = 0;
    // 19 digits always fit.
    let (safe, more) = field.split_at(field.len().min(19));
    for byte in safe {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n = n * 10 + u64::from(digit);
    }
    for byte in more {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n = n.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(n)
}

/// A decimal number times `scale`, such as seconds in ns; digits beyond that are dropped.
pub(super) fn scaled(field: &[u8], scale: u64) -> Option<u64> {
    let dot = field.iter().position(|byte| *byte == b'.');
    let (before, after) = match dot {
        None => (field, &[][..]),
        Some(at) => (&field[..at], &field[at + 1..]),
    };
    let mut total = whole(before)?.checked_mul(scale)?;
    let mut unit = scale;
    for byte in after {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        unit /= 10;
        total = total.checked_add(u64::from(digit) * unit)?;
    }
    Some(total)
}

const NONE: u8 = 0xff;

/// What a hexadecimal digit counts.
const HEX: [u8; 256] = {
    let mut table = [NONE; 256];
    let mut n = 0;
    while n < 10 {
        table[b'0' as usize + n as usize] = n;
        n += 1;
    }
    while n < 16 {
        table[b'a' as usize + n as usize - 10] = n;
        table[b'A' as usize + n as usize - 10] = n;
        n += 1;
    }
    table
};

/// 32 hexadecimal digits.
#[inline]
pub(super) fn digest(field: &[u8; 32]) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut wrong = 0;
    for (byte, pair) in bytes.iter_mut().zip(field.as_chunks::<2>().0) {
        let [high, low] = pair.map(|digit| HEX[usize::from(digit)]);
        wrong |= high | low;
        *byte = high << 4 | low & 0xf;
    }
    (wrong < 16).then_some(bytes)
}

/// The beginning of what stands in an input, in quotes, for an error.
pub(super) fn shown(field: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(&field[..field.len().min(MOST)]);
    let more = if field.len() > MOST { "..." } else { "" };
    format!("\"{}{more}\"", text.escape_debug())
}
