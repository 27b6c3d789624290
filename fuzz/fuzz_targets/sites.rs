//! Any bytes as the text of a library and as its notes: what is found lies within it
//! and is what it is said to be.
#![no_main]

use bonsai_sites::{
    ANY, MAX_BACK, NR_END, SITE_LEN, build_id, find_syscall, guess_at, guess_moved, is_go,
    is_left_alone, movable, moved_at, reject_branch_targets, scan, verify,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    assert!(build_id(input).is_none_or(|id| id.len() <= input.len()));
    let _ = (is_go(input), is_left_alone(input), movable(input));
    let mut sites: Vec<_> = scan(input).map(Some).collect();
    let mut at = 0;
    while let Some(next) = find_syscall(input, at) {
        assert_eq!(input[next..next + 2], [0x0f, 0x05]);
        for site in [guess_at(input, next), guess_moved(input, next), moved_at(input, next)] {
            sites.extend(site.map(Some));
        }
        at = next + 2;
    }
    for site in sites.iter().flatten() {
        let offset = usize::try_from(site.offset).expect("within the text");
        assert_eq!(input[offset..offset + 2], [0x0f, 0x05]);
        assert!(site.back <= MAX_BACK && usize::from(site.back) <= offset);
        assert!(site.nr < NR_END || (site.nr == ANY && site.is_moved()));
        if !site.is_moved() {
            assert!(verify(&input[offset..offset + SITE_LEN], site));
        }
    }
    let before = sites.len();
    reject_branch_targets(input, &mut sites);
    assert_eq!(sites.len(), before);
});
