//! The loader's empty function, by which it tells debuggers of libraries that come and go.

/// Whether a function does nothing, and has room for a jump.
#[must_use]
pub fn does_nothing(code: &[u8]) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let (code, marked) = match code.strip_prefix(&ENDBR64) {
        Some(rest) => (rest, true),
        None => (code, false),
    };
    match code {
        // push %rbp; mov %rsp,%rbp; pop %rbp; ret: a frame, as distributions keep it for profilers.
        [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, ..] => true,
        [0xc3, ..] if marked => true,
        // ret, and a no-op that fills up.
        [0xc3, rest @ ..] => {
            let filler = rest.iter().position(|b| !matches!(b, 0x66 | 0x2e));
            matches!(
                rest.get(filler.unwrap_or(0)..),
                Some([0x0f, 0x1f, ..] | [0x90 | 0xcc, ..])
            )
        }
        _ => false,
    }
}
