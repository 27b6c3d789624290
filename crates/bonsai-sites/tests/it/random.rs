//! Properties on random bytes, and on random bytes with the pieces that the search looks for.

use bonsai_sites::reject_branch_targets;
use bonsai_sites::{MAX_BACK, NR_END, SITE_LEN, Site, branch_into, build_id, scan, verify};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes that look like code: what the search looks for is frequent.
fn code() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => vec(any::<u8>(), 0..6),
        2 => Just(vec![0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff]),
        1 => Just(vec![0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]),
        2 => (0_u8..4, any::<u8>()).prop_map(|(high, low)| vec![0xb8, low, high, 0, 0]),
        1 => Just(vec![0x31, 0xc0]),
        1 => any::<u8>().prop_map(|to| vec![0xeb, to]),
        1 => any::<u8>().prop_map(|to| vec![0xe8, to, 0, 0, 0]),
        1 => any::<u8>().prop_map(|to| vec![0x0f, 0x84, to, 0xff, 0xff, 0xff]),
        3 => (1_usize..40).prop_map(|len| vec![0x90; len]),
    ];
    vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn check(text: &[u8]) -> Result<(), TestCaseError> {
    let found: Vec<Site> = scan(text).collect();
    for pair in found.windows(2) {
        prop_assert!(pair[0].offset < pair[1].offset);
    }
    for site in &found {
        let at = site.offset as usize;
        prop_assert!(verify(&text[at..at + SITE_LEN], site));
        prop_assert!(site.nr < NR_END);
        prop_assert!((2..=MAX_BACK).contains(&site.back));
        prop_assert!(usize::from(site.back) <= at);
    }
    let mut kept: Vec<Option<Site>> = found.iter().copied().map(Some).collect();
    kept.push(None);
    reject_branch_targets(text, &mut kept);
    for (site, kept) in found.iter().zip(&kept) {
        let lo = site.offset - u32::from(site.back);
        let hit = branch_into(text, lo, site.offset + 8);
        prop_assert_eq!(kept.is_none(), hit, "one pass and single checks agree");
        prop_assert!(kept.is_none_or(|kept| kept == *site));
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_bytes(text in vec(any::<u8>(), 0..2000)) {
        check(&text)?;
    }

    #[test]
    fn bytes_that_look_like_code(text in code()) {
        check(&text)?;
    }

    #[test]
    fn any_question_has_an_answer(
        text in code(),
        lo in any::<u32>(),
        hi in any::<u32>(),
        nr in any::<u16>(),
        back in any::<u8>(),
        cmp in any::<i32>(),
    ) {
        let _ = branch_into(&text, lo, hi);
        let site = Site { offset: lo, nr, back, cmp };
        let _ = verify(&text, &site);
        reject_branch_targets(&text, &mut [Some(site), None, Some(site)]);
        let _ = build_id(&text);
    }

    #[test]
    fn random_notes(notes in vec(prop_oneof![Just(0_u8), Just(3), Just(4), any::<u8>()], 0..200)) {
        if let Some(id) = build_id(&notes) {
            prop_assert!(!id.is_empty() && id.len() <= notes.len());
        }
    }
}
