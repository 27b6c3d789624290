//! Just enough of an x86-64 decoder: how long an instruction is, whether execution goes on behind
//! it, and whether it may change `eax`.
//!
//! Lengths follow the opcode maps of the Intel manual, volume 2, appendix A. What is not in them, or
//! so rare that it is not worth its bytes here (XOP, 3DNow! operands, AMD's `extrq`), is refused;
//! the callers then leave a site out.

/// An instruction is never longer (Intel manual, volume 2, section 2.3.11).
const MAX_LEN: usize = 15;

/// What happens to `eax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eax {
    /// It surely keeps its value.
    Kept,
    /// It is set to this value, and the upper half of `rax` to zero.
    Set(u32),
    /// It may change.
    Lost,
}

/// Where execution goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// At the next instruction.
    Next,
    /// At the next instruction or at the target of a conditional jump.
    Branch,
    /// At a function that returns, if it does, to the next instruction.
    Call,
    /// Elsewhere.
    Stop,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Insn {
    len: u8,
    pub(crate) flow: Flow,
    pub(crate) eax: Eax,
    /// It means something else in another place: an operand or its target is given by the distance
    /// from itself, or execution may go on elsewhere.
    pub(crate) relative: bool,
}

impl Insn {
    /// Length in bytes, 1 to 15.
    pub(crate) fn len(self) -> usize {
        usize::from(self.len)
    }
}

/// Reads the bytes of one instruction; every read past the end or past 15 bytes gives `None`.
struct Reader<'a> {
    code: &'a [u8],
    at: usize,
    relative: bool,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.code.get(self.at)?;
        self.skip(1)?;
        Some(byte)
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.at += len;
        (self.at <= self.code.len().min(MAX_LEN)).then_some(())
    }

    /// Reads a ModRM byte with its SIB byte and displacement.
    fn modrm(&mut self, rex: u8) -> Option<ModRm> {
        let byte = self.byte()?;
        let (mode, reg, rm) = (byte >> 6, byte >> 3 & 7, byte & 7);
        let base = if mode != 3 && rm == 4 {
            self.byte()? & 7
        } else {
            rm
        };
        self.relative |= mode == 0 && rm == 5;
        match mode {
            0 if base == 5 => self.skip(4)?,
            1 => self.skip(1)?,
            2 => self.skip(4)?,
            _ => {}
        }
        Some(ModRm {
            digit: reg,
            reg: reg | (rex & 4) << 1,
            rm: (mode == 3).then_some(rm | (rex & 1) << 3),
        })
    }
}

/// The operands that a ModRM byte names.
struct ModRm {
    /// The three bits of `reg`, where they extend the opcode.
    digit: u8,
    /// The register in `reg`, 0 to 15.
    reg: u8,
    /// The register in `rm`, 0 to 15, if it is not a memory operand.
    rm: Option<u8>,
}

impl ModRm {
    /// The effect of a write to the operand in `reg`.
    fn writes_reg(&self, width: Width) -> Eax {
        writes(Some(self.reg), width)
    }

    /// The effect of a write to the operand in `rm`.
    fn writes_rm(&self, width: Width) -> Eax {
        writes(self.rm, width)
    }
}

/// Whether an operand is a byte or larger.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Byte,
    Full,
}

impl Width {
    /// By the lowest bit of most opcodes.
    fn of(opcode: u8) -> Self {
        if opcode & 1 == 0 {
            Self::Byte
        } else {
            Self::Full
        }
    }
}

fn writes(register: Option<u8>, width: Width) -> Eax {
    match register {
        Some(0) => Eax::Lost,
        // `ah`; with a REX prefix it is `spl`, and the doubt costs nothing.
        Some(4) if width == Width::Byte => Eax::Lost,
        _ => Eax::Kept,
    }
}

/// Decodes the instruction at the beginning of `code`; `None` if it is not a known one or is cut
/// off.
pub(crate) fn decode(code: &[u8]) -> Option<Insn> {
    let mut reader = Reader {
        code,
        at: 0,
        relative: false,
    };
    let (mut operand16, mut address32) = (false, false);
    let mut opcode = reader.byte()?;
    while let 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 = opcode {
        operand16 |= opcode == 0x66;
        address32 |= opcode == 0x67;
        opcode = reader.byte()?;
    }
    let mut rex = 0;
    if let 0x40..=0x4f = opcode {
        rex = opcode;
        opcode = reader.byte()?;
    }
    let (flow, eax) = match opcode {
        // `mov moffs`, the only instruction that this makes shorter: no compiler writes it.
        0xa0..=0xa3 if address32 => return None,
        0x0f => two_byte(&mut reader, rex)?,
        0x62 | 0xc4 | 0xc5 => vector(&mut reader, opcode)?,
        _ => one_byte(&mut reader, opcode, rex, operand16)?,
    };
    let len = u8::try_from(reader.at).ok()?;
    Some(Insn {
        len,
        flow,
        eax,
        relative: reader.relative || flow != Flow::Next,
    })
}

/// The rest of an instruction of the one-byte opcode map.
fn one_byte(r: &mut Reader<'_>, opcode: u8, rex: u8, operand16: bool) -> Option<(Flow, Eax)> {
    let immediate = if operand16 && rex & 8 == 0 { 2 } else { 4 };
    let eax = match opcode {
        0x00..=0x3f => arithmetic(r, opcode, rex, immediate)?,
        0x70..=0x7f | 0xe0..=0xe3 => return r.skip(1).map(|()| (Flow::Branch, Eax::Kept)),
        0x50..=0x6f => stack_and_extension(r, opcode, rex, immediate)?,
        0xb8..=0xbf => load_immediate(r, opcode, rex, operand16)?,
        0x80..=0xb7 => moves(r, opcode, rex, immediate)?,
        0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xdf | 0xf6 | 0xf7 => {
            extended(r, opcode, rex, immediate)?
        }
        0xe4..=0xe7 => r.skip(1).map(|()| Eax::Lost)?,
        0xc8 => r.skip(3).map(|()| Eax::Lost)?,
        0xf5 => Eax::Kept,
        0xc9 | 0xec..=0xef | 0xf8..=0xfd => Eax::Lost,
        _ => return transfer(r, opcode, rex),
    };
    Some((Flow::Next, eax))
}

/// `push`, `pop`, `movslq`, `imul` with an immediate, `ins`, `outs`: opcodes 50 to 6f.
fn stack_and_extension(r: &mut Reader<'_>, opcode: u8, rex: u8, immediate: usize) -> Option<Eax> {
    match opcode {
        0x50..=0x57 => Some(Eax::Kept),
        0x58..=0x5f => Some(writes(Some(opcode & 7 | (rex & 1) << 3), Width::Full)),
        0x63 => Some(r.modrm(rex)?.writes_reg(Width::Full)),
        0x68 => r.skip(immediate).map(|()| Eax::Kept),
        0x6a => r.skip(1).map(|()| Eax::Kept),
        0x69 | 0x6b => {
            let eax = r.modrm(rex)?.writes_reg(Width::Full);
            r.skip(if opcode == 0x69 { immediate } else { 1 })?;
            Some(eax)
        }
        0x6c..=0x6f => Some(Eax::Lost),
        _ => None,
    }
}

/// Arithmetic with an immediate, `test`, `mov`, `lea`, string operations: opcodes 80 to b7.
fn moves(r: &mut Reader<'_>, opcode: u8, rex: u8, immediate: usize) -> Option<Eax> {
    let width = Width::of(opcode);
    Some(match opcode {
        0x80 | 0x81 | 0x83 => {
            let operand = r.modrm(rex)?;
            r.skip(if opcode == 0x81 { immediate } else { 1 })?;
            match operand.digit {
                // `cmp`
                7 => Eax::Kept,
                _ => operand.writes_rm(width),
            }
        }
        0x84 | 0x85 => r.modrm(rex).map(|_| Eax::Kept)?,
        0x88 | 0x89 => r.modrm(rex)?.writes_rm(width),
        0x8a | 0x8b => r.modrm(rex)?.writes_reg(width),
        0x8d => r.modrm(rex)?.writes_reg(Width::Full),
        0x86 | 0x87 | 0x8c | 0x8e => r.modrm(rex).map(|_| Eax::Lost)?,
        // With another digit this is an XOP prefix.
        0x8f => (r.modrm(rex)?.digit == 0).then_some(Eax::Lost)?,
        // `nop`, but `xchg %r8,%rax` with REX.B
        0x90 if rex & 1 == 0 => Eax::Kept,
        0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf => Eax::Lost,
        0xa0..=0xa3 => r.skip(8).map(|()| Eax::Lost)?,
        0xa8 => r.skip(1).map(|()| Eax::Kept)?,
        0xa9 => r.skip(immediate).map(|()| Eax::Kept)?,
        0xb0..=0xb7 => {
            r.skip(1)?;
            writes(Some(opcode & 7 | (rex & 1) << 3), Width::Byte)
        }
        _ => return None,
    })
}

/// Shifts, `mov` of an immediate, floating point, `not`, `neg`, `mul`, `div`: opcodes whose meaning
/// the ModRM byte completes.
fn extended(r: &mut Reader<'_>, opcode: u8, rex: u8, immediate: usize) -> Option<Eax> {
    let width = Width::of(opcode);
    if opcode == 0xd7 {
        // `xlat`, the only one without a ModRM byte
        return Some(Eax::Lost);
    }
    if let 0xd4..=0xd6 = opcode {
        return None;
    }
    let operand = r.modrm(rex)?;
    r.skip(match (opcode, operand.digit) {
        (0xc0 | 0xc1 | 0xc6, _) | (0xf6, 0 | 1) => 1,
        (0xc7, _) | (0xf7, 0 | 1) => immediate,
        _ => 0,
    })?;
    Some(match (opcode, operand.digit) {
        // `xabort`, `xbegin`
        (0xc6 | 0xc7, 1..) => {
            r.relative = true;
            Eax::Lost
        }
        // `test`
        (0xf6 | 0xf7, 0 | 1) => Eax::Kept,
        // `mul`, `div` and floating point, which can store the status word in `ax`
        (0xf6 | 0xf7, 4..) | (0xd8..=0xdf, _) => Eax::Lost,
        _ => operand.writes_rm(width),
    })
}

/// Jumps, calls, returns and traps, and what shares their opcodes.
fn transfer(r: &mut Reader<'_>, opcode: u8, rex: u8) -> Option<(Flow, Eax)> {
    if let 0xfe | 0xff = opcode {
        let operand = r.modrm(rex)?;
        return Some(match (opcode, operand.digit) {
            // `inc`, `dec`
            (_, 0 | 1) => (Flow::Next, operand.writes_rm(Width::of(opcode))),
            (0xff, 2 | 3) => (Flow::Call, Eax::Lost),
            (0xff, 4 | 5) => (Flow::Stop, Eax::Lost),
            // `push`
            (0xff, 6) => (Flow::Next, Eax::Kept),
            _ => return None,
        });
    }
    let (flow, operand_len) = match opcode {
        0xe8 => (Flow::Call, 4),
        0xe9 => (Flow::Stop, 4),
        0xc2 | 0xca => (Flow::Stop, 2),
        0xcd | 0xeb => (Flow::Stop, 1),
        0xc3 | 0xcb | 0xcc | 0xcf | 0xf1 | 0xf4 => (Flow::Stop, 0),
        _ => return None,
    };
    r.skip(operand_len).map(|()| (flow, Eax::Lost))
}

/// `add`, `or`, `adc`, `sbb`, `and`, `sub`, `xor` and `cmp` in their first six forms.
fn arithmetic(r: &mut Reader<'_>, opcode: u8, rex: u8, immediate: usize) -> Option<Eax> {
    let width = Width::of(opcode);
    let compares = opcode >= 0x38;
    let eax = match opcode & 7 {
        form @ 0..=3 => {
            let operand = r.modrm(rex)?;
            // `xor %eax,%eax`, also with REX.W
            let same = operand.reg == 0 && operand.rm == Some(0);
            if matches!(opcode, 0x31 | 0x33) && same && immediate == 4 {
                return Some(Eax::Set(0));
            }
            match form {
                0 | 1 => operand.writes_rm(width),
                _ => operand.writes_reg(width),
            }
        }
        4 => r.skip(1).map(|()| Eax::Lost)?,
        5 => r.skip(immediate).map(|()| Eax::Lost)?,
        _ => return None,
    };
    Some(if compares { Eax::Kept } else { eax })
}

/// `mov $imm,register`, the only instruction with an 8-byte immediate.
fn load_immediate(r: &mut Reader<'_>, opcode: u8, rex: u8, operand16: bool) -> Option<Eax> {
    let value = r.code.get(r.at..).and_then(<[u8]>::first_chunk::<4>);
    let wide = rex & 8 != 0;
    r.skip(match (wide, operand16) {
        (true, _) => 8,
        (false, true) => 2,
        (false, false) => 4,
    })?;
    let register = opcode & 7 | (rex & 1) << 3;
    Some(match (register, value) {
        (0, Some(value)) if !wide && !operand16 => Eax::Set(u32::from_le_bytes(*value)),
        _ => writes(Some(register), Width::Full),
    })
}

/// The rest of an instruction of the `0f` maps.
fn two_byte(r: &mut Reader<'_>, rex: u8) -> Option<(Flow, Eax)> {
    let opcode = r.byte()?;
    let mut flow = Flow::Next;
    let eax = match opcode {
        0x38 => {
            r.byte()?;
            r.modrm(rex).map(|_| Eax::Lost)?
        }
        0x3a => {
            r.byte()?;
            r.modrm(rex)?;
            r.skip(1).map(|()| Eax::Lost)?
        }
        0x0b => {
            flow = Flow::Stop;
            Eax::Lost
        }
        // No operand: `syscall`, `rdtsc`, `emms`, `cpuid`, `bswap` and their like.
        0x05..=0x09 | 0x0e | 0x30..=0x35 | 0x37 | 0x77 | 0xa0..=0xa2 | 0xa8..=0xaa => Eax::Lost,
        0xc8..=0xcf => writes(Some(opcode & 7 | (rex & 1) << 3), Width::Full),
        0x80..=0x8f => {
            flow = Flow::Branch;
            r.skip(4).map(|()| Eax::Kept)?
        }
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => {
            r.modrm(rex)?;
            r.skip(1).map(|()| Eax::Lost)?
        }
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f | 0x7a | 0x7b => return None,
        0x78 | 0xa6 | 0xa7 => return None,
        0x1e => {
            let operand = r.modrm(rex)?;
            match operand.digit {
                // `endbr64`, or a `nop` of any length
                7 => Eax::Kept,
                // `rdssp`
                _ => operand.writes_rm(Width::Full),
            }
        }
        // Loads and stores of vector registers, prefetches, `nop` and `endbr64`: nothing here
        // writes a general register.
        0x0d | 0x10..=0x1d | 0x1f | 0x28 | 0x29 | 0x2b | 0x2e | 0x2f | 0x51 | 0x54..=0x6f => {
            r.modrm(rex).map(|_| Eax::Kept)?
        }
        0x74..=0x76 | 0x7f | 0xd1..=0xd6 | 0xd8..=0xff => r.modrm(rex).map(|_| Eax::Kept)?,
        // `cmovcc`, `movzx`, `movsx`
        0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf => r.modrm(rex)?.writes_reg(Width::Full),
        0x90..=0x9f => r.modrm(rex)?.writes_rm(Width::Byte),
        0xa3 => r.modrm(rex).map(|_| Eax::Kept)?,
        _ => r.modrm(rex).map(|_| Eax::Lost)?,
    };
    Some((flow, eax))
}

/// The rest of an instruction with a VEX or EVEX prefix. Some write general registers.
fn vector(r: &mut Reader<'_>, prefix: u8) -> Option<(Flow, Eax)> {
    let payload = r.byte()?;
    let map = match prefix {
        0xc5 => 1,
        0xc4 => payload & 0x1f,
        _ => payload & 7,
    };
    r.skip(match prefix {
        0xc5 => 0,
        0xc4 => 1,
        _ => 2,
    })?;
    let opcode = r.byte()?;
    if (map, opcode) == (1, 0x77) {
        // `vzeroupper` has no operand.
        return Some((Flow::Next, Eax::Kept));
    }
    r.modrm(0)?;
    let has_immediate = match map {
        1 => matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6),
        3 => true,
        2 | 5 | 6 => false,
        _ => return None,
    };
    r.skip(usize::from(has_immediate))?;
    Some((Flow::Next, Eax::Lost))
}

mod length;
#[cfg(test)]
mod tests;

pub(crate) use length::length;
