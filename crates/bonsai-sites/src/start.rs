//! Where instructions start, told from the bytes before.
//!
//! x86 code can be decoded from any byte on, mostly wrongly, but wrong ways fall into step with the
//! true one after a few instructions.

use crate::insn::length;

/// How far before an offset [`start`] begins to decode, in bytes.
const RUN_UP: usize = 64;

/// Within these first bytes of the run-up every offset is tried as the start of an instruction, so
/// that one of them is a true one (no instruction is longer than 15 bytes). The rest of the run-up is for the
/// wrong ones to fall into step, which takes them a few instructions.
const STARTS: usize = 32;

/// Whether an instruction starts at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All ways to decode the bytes before it say so.
    Always,
    /// None says so.
    Never,
    /// Some do, or there is nothing to decode.
    Unsure,
}

/// Whether an instruction starts at offset `at` of `text`, which begins with one.
///
/// Decodes from each of the first offsets of a run-up before `at` and looks whether the ways meet
/// there. One of them starts at a true instruction, so the true answer is among them.
pub(crate) fn start(text: &[u8], at: usize) -> Start {
    if at == 0 {
        return Start::Always;
    }
    let run_up = at.min(RUN_UP);
    let first = at - run_up;
    // What becomes of the way that starts `i` bytes after `first`; filled from the end.
    let mut hits = [None::<bool>; RUN_UP];
    for i in (0..run_up).rev() {
        let window = text.get(first + i..).unwrap_or_default();
        let Some((len, _)) = length(window) else {
            continue;
        };
        let next = i + len;
        let hit = match next {
            _ if next == run_up => Some(true),
            _ if next > run_up => Some(false),
            _ => hits.get(next).copied().flatten(),
        };
        if let Some(slot) = hits.get_mut(i) {
            *slot = hit;
        }
    }
    // Close to the beginning of the text there is only one start to rely on: the beginning.
    let starts = if run_up == RUN_UP { STARTS } else { 1 };
    let ways = hits.get(..starts.min(run_up)).unwrap_or_default();
    let hit = ways.iter().flatten().any(|hit| *hit);
    let missed = ways.iter().flatten().any(|hit| !*hit);
    match (hit, missed) {
        (true, false) => Start::Always,
        (false, true) => Start::Never,
        _ => Start::Unsure,
    }
}
