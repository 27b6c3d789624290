//! Numbers of any length: seven bits a byte, the lowest first, the top bit says "more".

use super::DecodeError;

/// Writes a number.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

/// The bytes that a number takes.
pub(crate) const fn length_of(value: u64) -> usize {
    ((u64::BITS - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// Puts the number of bytes behind `from` in front of them.
pub(crate) fn put_length(out: &mut Vec<u8>, from: usize) {
    let end = out.len();
    let length = (end - from) as u64;
    put(out, length);
    out[from..].rotate_left(end - from);
}

/// A difference as a number that is small where the difference is: 0, -1, 1, -2, ...
pub(crate) const fn zigzag(value: u64, from: u64) -> u64 {
    let difference = value.wrapping_sub(from).cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

/// The value that is so far from another.
pub(crate) const fn unzigzag(coded: u64, from: u64) -> u64 {
    let difference = (coded >> 1) ^ (coded & 1).wrapping_neg();
    from.wrapping_add(difference)
}

/// Bytes that are read from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.0.split_first().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (part, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(part)
    }

    /// Eight bytes, little endian.
    pub(crate) fn word(&mut self) -> Result<u64, DecodeError> {
        let (word, rest) = self.0.split_first_chunk().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// A number; ten bytes at most, none of its bits beyond 64.
    pub(crate) fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(DecodeError::Range);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Range)
    }

    /// A number that counts bytes of the rest.
    pub(crate) fn length(&mut self) -> Result<usize, DecodeError> {
        let length = usize::try_from(self.number()?).map_err(|_| DecodeError::Range)?;
        if length > self.0.len() {
            return Err(DecodeError::Short);
        }
        Ok(length)
    }
}
