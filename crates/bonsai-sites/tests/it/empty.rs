//! The loader's empty function, as compilers and distributions build it.

use bonsai_sites::does_nothing;

const MARK: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

#[test]
fn the_loaders_empty_function_is_known_in_each_build() {
    let ret = [0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00];
    let frame = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x66, 0x90];
    for code in [&ret[..], &frame] {
        assert!(does_nothing(code), "{code:x?}");
        assert!(does_nothing(&[&MARK, code].concat()), "marked {code:x?}");
    }
    assert!(does_nothing(&[&MARK[..], &[0xc3]].concat()));
}

#[test]
fn other_functions_are_not_replaced() {
    // Functions that do something, or are too short for a jump.
    for code in [
        &[0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x5d, 0xc3][..],
        &[0xc3, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3],
        &[0xc3],
        &MARK,
        &[],
    ] {
        assert!(!does_nothing(code), "{code:x?}");
    }
}
