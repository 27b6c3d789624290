//! Hand-made code, one property of the search each.

use bonsai_sites::{MAX_BACK, Site, scan, verify};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const CMP_4096: [u8; 6] = [0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
const CMP_4095: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];

/// `before`, behind enough padding for every way to decode it to fall into step, and a site.
fn code(before: &[u8]) -> Vec<u8> {
    let mut code = vec![0x90; 100];
    code.extend(before);
    code.extend(SYSCALL);
    code.extend(CMP_4096);
    code.extend([0x77, 0x01, 0xc3, 0xc3]);
    code
}

/// The number that is found for a site behind `before`.
fn number(before: &[u8]) -> Option<u16> {
    let code = code(before);
    let sites: Vec<Site> = scan(&code).collect();
    assert!(sites.len() <= 1, "{sites:?}");
    let site = sites.first()?;
    assert_eq!(site.offset as usize, 100 + before.len());
    Some(site.nr)
}

#[test]
fn numbers_that_are_certain() {
    let cases: [(&str, &[u8], u16); 11] = [
        ("mov $1,%eax", &[0xb8, 1, 0, 0, 0], 1),
        ("mov $0x1b4,%eax", &[0xb8, 0xb4, 1, 0, 0], 436),
        ("xor %eax,%eax", &[0x31, 0xc0], 0),
        ("xor %eax,%eax, the other form", &[0x33, 0xc0], 0),
        ("test %eax,%eax; jne", &[0x85, 0xc0, 0x75, 0x14], 0),
        (
            "test %eax,%eax; jne far; mov %rcx,%r10",
            &[0x85, 0xc0, 0x0f, 0x85, 0x14, 1, 0, 0, 0x49, 0x89, 0xca],
            0,
        ),
        (
            "test %eax,%eax; jne; mov $1,%eax",
            &[0x85, 0xc0, 0x75, 0x14, 0xb8, 1, 0, 0, 0],
            1,
        ),
        (
            "mov; mov %rcx,%r10",
            &[0xb8, 18, 0, 0, 0, 0x49, 0x89, 0xca],
            18,
        ),
        (
            "mov; xor %r8d,%r8d",
            &[0xb8, 45, 0, 0, 0, 0x45, 0x31, 0xc0],
            45,
        ),
        (
            "the nearest of two",
            &[0xb8, 9, 0, 0, 0, 0xb8, 3, 0, 0, 0],
            3,
        ),
        (
            "mov; je over; nop",
            &[0xb8, 17, 0, 0, 0, 0x74, 0x40, 0x90],
            17,
        ),
    ];
    for (what, before, nr) in cases {
        assert_eq!(number(before), Some(nr), "{what}");
    }
}

#[test]
fn sites_without_a_certain_number_are_skipped() {
    let cases: [(&str, &[u8]); 14] = [
        ("nothing sets it", &[]),
        ("from a register", &[0x44, 0x89, 0xc0]),
        ("from memory", &[0x8b, 0x47, 0x08]),
        ("mov $1,%r8d", &[0x41, 0xb8, 1, 0, 0, 0]),
        ("movabs $1,%rax", &[0x48, 0xb8, 1, 0, 0, 0, 0, 0, 0, 0]),
        ("mov $1024,%eax", &[0xb8, 0, 4, 0, 0]),
        ("mov $-1,%eax", &[0xb8, 0xff, 0xff, 0xff, 0xff]),
        ("changed later", &[0xb8, 1, 0, 0, 0, 0x83, 0xc8, 2]),
        ("a syscall in between", &[0xb8, 1, 0, 0, 0, 0x0f, 0x05]),
        ("a call in between", &[0xb8, 1, 0, 0, 0, 0xe8, 0, 1, 0, 0]),
        ("behind a jump", &[0xb8, 1, 0, 0, 0, 0xeb, 0x40]),
        ("behind a return", &[0xb8, 1, 0, 0, 0, 0xc3]),
        (
            "inside `mov $0xb8,%edx`",
            &[0x8b, 0x07, 0xba, 0xb8, 0, 0, 0],
        ),
        (
            "an instruction that is not known",
            &[0xb8, 1, 0, 0, 0, 0x06],
        ),
    ];
    for (what, before) in cases {
        assert_eq!(number(before), None, "{what}");
    }
}

#[test]
fn the_number_is_looked_for_in_48_bytes() {
    let mut before = vec![0xb8, 1, 0, 0, 0];
    before.resize(usize::from(MAX_BACK), 0x90);
    assert_eq!(number(&before), Some(1));
    before.push(0x90);
    assert_eq!(number(&before), None);
}

#[test]
fn both_comparisons_and_no_other() {
    for (cmp, expected) in [
        (CMP_4096, Some(-4096)),
        (CMP_4095, Some(-4095)),
        ([0x48, 0x3d, 0x02, 0xf0, 0xff, 0xff], None),
        ([0x48, 0x3d, 0x00, 0xf0, 0xff, 0x7f], None),
        ([0x90, 0x3d, 0x00, 0xf0, 0xff, 0xff], None),
        ([0x48, 0x3c, 0x00, 0xf0, 0xff, 0xff], None),
    ] {
        let mut code = vec![0x90; 64];
        code.extend([0x31, 0xc0]);
        code.extend(SYSCALL);
        code.extend(cmp);
        assert_eq!(
            scan(&code).next().map(|site| site.cmp),
            expected,
            "{cmp:02x?}"
        );
    }
}

#[test]
fn finds_sites_at_every_alignment_and_at_both_ends() {
    for padding in 0..200 {
        let mut code = vec![0x90; padding];
        code.extend([0xb8, 1, 0, 0, 0]);
        code.extend(SYSCALL);
        code.extend(CMP_4095);
        let found: Vec<u32> = scan(&code).map(|site| site.offset).collect();
        assert_eq!(found, [u32::try_from(padding + 5).expect("small")]);
        code.pop();
        assert_eq!(scan(&code).count(), 0, "the comparison is cut off");
    }
}

#[test]
fn finds_all_sites_in_order() {
    let one = code(&[0xb8, 7, 0, 0, 0]);
    let many = one.repeat(50);
    let found: Vec<usize> = scan(&many).map(|site| site.offset as usize).collect();
    let expected: Vec<usize> = (0..50).map(|i| i * one.len() + 105).collect();
    assert_eq!(found, expected);
}

#[test]
fn verify_compares_all_eight_bytes() {
    let code = code(&[0x31, 0xc0]);
    let site = scan(&code).next().expect("a site");
    let at = site.offset as usize;
    let bytes = &code[at..at + 8];
    assert!(verify(bytes, &site));
    assert!(!verify(&bytes[..7], &site));
    assert!(!verify(&code[at..at + 9], &site));
    assert!(!verify(bytes, &Site { cmp: -4095, ..site }));
    for i in 0..8 {
        let mut changed = bytes.to_vec();
        changed[i] ^= 0x40;
        assert!(!verify(&changed, &site), "byte {i}");
    }
}
