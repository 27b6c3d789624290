//! What an unwinder needs to get from a slot to the code around the patched site:
//! a cancelled thread runs the destructors of the frames above from there, and a
//! debugger shows them.
//!
//! A jump to a slot changes neither the stack nor any register that is kept, so
//! the frame below is the present one; only the return address is not on the stack.
//! It is a word of the slot's record, so all that is to be said is where that is.

/// `DW_CFA_def_cfa` of `rsp`, and `DW_CFA_expression` of the return address, column
/// 16: the expression gives the address of that word.
fn frame(below: usize, record: &[u8]) -> String {
    let mut text = format!(".cfi_def_cfa rsp, {below}\n.cfi_escape 0x10, 0x10");
    for byte in [u8::try_from(record.len()).expect("short")]
        .iter()
        .chain(record)
    {
        text += &format!(", {byte:#x}");
    }
    text + "\n"
}

/// With the record in `r11` and `below` bytes pushed.
pub(crate) fn in_r11(below: usize) -> String {
    frame(below, &[BREG0 + 11, RET])
}

/// With the record on top of `below` bytes pushed.
pub(crate) fn on_stack(below: usize) -> String {
    frame(below, &[BREG0 + 7, 0, DEREF, PLUS_UCONST, RET])
}

/// In slots: `lea record(%rip),%r11` and a jump. Behind the first, seven bytes back.
pub(crate) fn slots() -> String {
    let lea = [
        DUP,
        DEREF_SIZE,
        2,
        CONST2U,
        0x4c,
        0x8d,
        NE,
        LIT0 + 7,
        MUL,
        MINUS,
    ];
    let mut at = vec![BREG0 + 16, 0];
    at.extend(lea);
    at.extend([
        DUP,
        PLUS_UCONST,
        3,
        DEREF_SIZE,
        4,
        PLUS,
        PLUS_UCONST,
        7 + RET,
    ]);
    frame(0, &at)
}

/// Offset of `Slot::ret`.
const RET: u8 = 8;

// Operations of DWARF expressions (DWARF 5, section 7.7.1).
const DEREF: u8 = 0x06;
const CONST2U: u8 = 0x0a;
const DUP: u8 = 0x12;
const MINUS: u8 = 0x1c;
const MUL: u8 = 0x1e;
const PLUS: u8 = 0x22;
const PLUS_UCONST: u8 = 0x23;
const NE: u8 = 0x2e;
const LIT0: u8 = 0x30;
const BREG0: u8 = 0x70;
const DEREF_SIZE: u8 = 0x94;
