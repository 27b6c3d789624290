//! How long an instruction is, and nothing else about it, from two tables: what a
//! process that searches its own libraries needs. The tests hold it against
//! [`decode`](super::decode).

use super::MAX_LEN;

/// What follows an opcode: a ModRM byte, and bytes behind it or the opcode.
const MODRM: u8 = 0x10;
/// The opcode of a three-byte map comes first.
const LONG: u8 = 0x20;
/// Execution goes on elsewhere, or may.
const LEAVES: u8 = 0x40;
/// It is no known instruction.
const UNKNOWN: u8 = 0x80;
/// Bytes behind: their number, or one of these.
const BEHIND: u8 = 0x0f;
/// Four, two with an operand size prefix.
const FULL: u8 = 0x0f;
/// Likewise, but eight with REX.W.
const MOVE: u8 = 0x0e;

/// The one-byte map. Prefixes and the opcodes of other maps do not come here.
const fn one(opcode: u8) -> u8 {
    match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => MODRM,
            4 => 1,
            5 => FULL,
            _ => UNKNOWN,
        },
        0x50..=0x5f | 0x6c..=0x6f | 0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf => 0,
        0xc9 | 0xd7 | 0xec..=0xef | 0xf5 | 0xf8..=0xfd => 0,
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xf6 | 0xf7 | 0xfe | 0xff => MODRM,
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => MODRM | 1,
        0x69 | 0x81 | 0xc7 => MODRM | FULL,
        0x6a | 0xa8 | 0xb0..=0xb7 | 0xe4..=0xe7 => 1,
        0x68 | 0xa9 => FULL,
        0xb8..=0xbf => MOVE,
        0xa0..=0xa3 => 8,
        0xc8 => 3,
        0x70..=0x7f | 0xe0..=0xe3 | 0xcd | 0xeb => LEAVES | 1,
        0xc2 | 0xca => LEAVES | 2,
        0xe8 | 0xe9 => LEAVES | 4,
        0xc3 | 0xcb | 0xcc | 0xcf | 0xf1 | 0xf4 => LEAVES,
        _ => UNKNOWN,
    }
}

/// The map behind `0f`.
const fn two(opcode: u8) -> u8 {
    match opcode {
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f => UNKNOWN,
        0x78 | 0x7a | 0x7b | 0xa6 | 0xa7 => UNKNOWN,
        0x05..=0x09 | 0x0e | 0x30..=0x35 | 0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa => 0,
        0xc8..=0xcf => 0,
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => MODRM | 1,
        0x38 => LONG | MODRM,
        0x3a => LONG | MODRM | 1,
        0x0b => LEAVES,
        0x80..=0x8f => LEAVES | 4,
        _ => MODRM,
    }
}

/// Both, one behind the other.
static MAPS: [u8; 512] = {
    let mut maps = [0; 512];
    let mut opcode = 0;
    loop {
        maps[opcode as usize] = one(opcode);
        maps[256 + opcode as usize] = two(opcode);
        if opcode == 255 {
            break maps;
        }
        opcode += 1;
    }
};

/// What follows the payload and the opcode of a VEX or EVEX prefix, and how long
/// the payload is.
fn vector(prefix: u8, payload: u8, opcode: u8) -> (u8, usize) {
    let (map, len) = match prefix {
        0xc5 => (1, 1),
        0xc4 => (payload & 0x1f, 2),
        _ => (payload & 7, 3),
    };
    let follows = match (map, opcode) {
        // `vzeroupper`
        (1, 0x77) => 0,
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3, _) => MODRM | 1,
        (1 | 2 | 5 | 6, _) => MODRM,
        _ => UNKNOWN,
    };
    (follows, len)
}

/// The length of the instruction at the beginning of `code`, and whether it does the
/// same wherever it stands.
pub(crate) fn length(code: &[u8]) -> Option<(usize, bool)> {
    let byte = |at: usize| code.get(at).copied();
    let (mut at, mut operand16, mut address32, mut wide) = (0, false, false, false);
    let mut opcode = byte(0)?;
    while let 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 = opcode {
        operand16 |= opcode == 0x66;
        address32 |= opcode == 0x67;
        at += 1;
        opcode = byte(at)?;
    }
    if let 0x40..=0x4f = opcode {
        wide = opcode & 8 != 0;
        at += 1;
        opcode = byte(at)?;
    }
    at += 1;
    let mut digits = false;
    let follows = match opcode {
        0x0f => {
            at += 1;
            *MAPS.get(256 + usize::from(byte(at - 1)?))?
        }
        0x62 | 0xc4 | 0xc5 => {
            let len = if opcode == 0x62 {
                3
            } else {
                usize::from(0xc6 - opcode)
            };
            let (follows, len) = vector(opcode, byte(at)?, byte(at + len)?);
            at += len + 1;
            follows
        }
        _ => {
            digits = true;
            *MAPS.get(usize::from(opcode))?
        }
    };
    let moffs = digits && matches!(opcode, 0xa0..=0xa3);
    if follows & UNKNOWN != 0 || (moffs && address32) {
        return None;
    }
    at += usize::from(follows & LONG != 0);
    let mut behind = match (follows & BEHIND, wide, operand16) {
        (MOVE, true, _) => 8,
        (MOVE | FULL, false, true) => 2,
        (MOVE | FULL, ..) => 4,
        (number, ..) => usize::from(number),
    };
    let mut stays = follows & LEAVES == 0;
    if follows & MODRM != 0 {
        let modrm = byte(at)?;
        let (mode, digit, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        at += 1;
        stays &= (mode, rm) != (0, 5);
        let mut base = rm;
        if mode != 3 && rm == 4 {
            base = byte(at)? & 7;
            at += 1;
        }
        at += match (mode, base) {
            (0, 5) | (2, _) => 4,
            (1, _) => 1,
            _ => 0,
        };
        match (opcode, digit) {
            _ if !digits => {}
            (0x8f, 1..) | (0xfe, 2..) | (0xff, 7) => return None,
            (0xf6, 0 | 1) => behind = 1,
            (0xf7, 0 | 1) => behind = if operand16 && !wide { 2 } else { 4 },
            // `xabort` and `xbegin`, calls and jumps.
            (0xc6 | 0xc7, 1..) | (0xff, 2..=5) => stays = false,
            _ => {}
        }
    }
    let len = at + behind;
    (len <= code.len().min(MAX_LEN)).then_some((len, stays))
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::length;
    use std::vec::Vec;

    /// Every opcode of every map with every ModRM byte, behind prefixes, and cut off.
    #[test]
    fn agrees_with_the_decoder() {
        let prefixes: [&[u8]; 5] = [&[], &[0x66], &[0x67], &[0x48], &[0x66, 0x4f]];
        let maps: [&[u8]; 10] = [
            &[],
            &[0x0f],
            &[0x0f, 0x38],
            &[0x0f, 0x3a],
            &[0xc5, 0xf8],
            &[0xc4, 0xe1, 0x78],
            &[0xc4, 0xe3, 0x79],
            &[0xc4, 0xe0, 0x79],
            &[0x62, 0xf1, 0x7c, 0x48],
            &[0x62, 0xf4, 0x7c, 0x48],
        ];
        for prefix in prefixes {
            for map in maps {
                for opcode in 0..=255_u8 {
                    for modrm in 0..=255_u8 {
                        let mut code: Vec<u8> = prefix.to_vec();
                        code.extend(map);
                        let sib = 0x24 | modrm >> 3 & 1;
                        code.extend([opcode, modrm, sib, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
                        same(&code);
                        if let Some((len, _)) = length(&code) {
                            same(&code[..len]);
                            same(&code[..len - 1]);
                        }
                    }
                }
            }
        }
    }

    fn same(code: &[u8]) {
        let whole = decode(code).map(|insn| (insn.len(), !insn.relative));
        assert_eq!(length(code), whole, "{code:02x?}");
    }
}
