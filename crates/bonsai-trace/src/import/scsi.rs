//! SCSI commands by their operation codes (SPC-5 and SBC-4, T10).

use crate::model::Op;

/// What a command does to blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Command {
    /// Reads, writes, unmaps or flushes.
    Op(Op),
    /// Transfers no blocks, such as INQUIRY.
    NoBlocks,
}

/// The command with an operation code; `None` for codes that SBC and SPC do not name.
pub(super) const fn command(code: u8) -> Option<Command> {
    Some(match code {
        // READ of 6, 10, 12, 16 bytes.
        0x08 | 0x28 | 0xa8 | 0x88 => Command::Op(Op::Read),
        // WRITE, WRITE AND VERIFY, WRITE SAME, COMPARE AND WRITE, WRITE ATOMIC.
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x41 | 0x93 | 0x89 | 0x9c => {
            Command::Op(Op::Write)
        }
        // UNMAP.
        0x42 => Command::Op(Op::Trim),
        // SYNCHRONIZE CACHE.
        0x35 | 0x91 => Command::Op(Op::Flush),
        // TEST UNIT READY, REQUEST SENSE, INQUIRY, MODE SELECT, RESERVE, RELEASE, MODE SENSE, START STOP UNIT,
        // diagnostics, PREVENT ALLOW MEDIUM REMOVAL, READ CAPACITY, VERIFY, PRE-FETCH, buffers, logs,
        // persistent reservations, ATA PASS-THROUGH, SERVICE ACTION IN, REPORT LUNS, maintenance, COPY.
        0x00
        | 0x03
        | 0x12
        | 0x15..=0x17
        | 0x1a..=0x1e
        | 0x25
        | 0x2f
        | 0x34
        | 0x3b
        | 0x3c
        | 0x4c
        | 0x4d
        | 0x55..=0x57
        | 0x5a
        | 0x5e
        | 0x5f
        | 0x83..=0x85
        | 0x8c
        | 0x8f
        | 0x90
        | 0x9e
        | 0xa0..=0xa4
        | 0xaf => Command::NoBlocks,
        _ => return None,
    })
}

/// The operation code in two hexadecimal digits, with or without 0x before them.
pub(super) fn code(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let &[high, low] = digits else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_codes_are_two_hexadecimal_digits() {
        assert_eq!(code(b"2a"), Some(0x2a));
        assert_eq!(code(b"0x8A"), Some(0x8a));
        for wrong in [&b"2"[..], b"2a1", b"zz", b"0x", b""] {
            assert_eq!(code(wrong), None);
        }
        for (code, op) in [
            (0x28, Op::Read),
            (0x8a, Op::Write),
            (0x42, Op::Trim),
            (0x91, Op::Flush),
        ] {
            assert_eq!(command(code), Some(Command::Op(op)));
        }
        assert_eq!(command(0x12), Some(Command::NoBlocks));
        assert_eq!(command(0x40), None);
    }
}
