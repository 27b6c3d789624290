//! Blocks as any that can be, and bytes as any at all.

use super::*;
use proptest::prelude::*;

fn cells(level: Level) -> impl Strategy<Value = Option<Cells>> {
    let number = prop_oneof![Just(0), 0..1000_u64, any::<u64>()];
    let columns = prop::collection::vec(number, level.columns());
    prop::option::of(columns.prop_map(|columns| {
        let mut cells = [0; SUMMARY];
        cells[..columns.len()].copy_from_slice(&columns);
        cells
    }))
}

fn block(level: Level) -> impl Strategy<Value = Block> {
    let slot = (
        0..level.slots(),
        0..4000_u16,
        prop::array::uniform5(cells(level)),
    );
    prop::collection::vec(slot, 0..70).prop_map(move |mut slots| {
        slots.sort_by_key(|slot| slot.0);
        slots.dedup_by_key(|slot| slot.0);
        let mut block = Block::default();
        for (slot, seconds, cells) in slots {
            let seconds = if level == Level::Second { 1 } else { seconds };
            let slot = u8::try_from(slot).expect("few slots");
            block.push(level, slot, seconds, &cells);
        }
        block
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_block_is_decoded_to_what_was_encoded(
        (level, block) in prop::sample::select(&Level::ALL[..])
            .prop_flat_map(|level| (Just(level), block(level))),
    ) {
        let bytes = block.encoded(level);
        prop_assert_eq!(Block::decode(&bytes, level, None), Ok(block.clone()));
        let one = Block::decode(&bytes, level, Some(2)).expect("one resource");
        for i in 0..block.slots.len() {
            prop_assert_eq!(one.cells(2, i), block.cells(2, i));
        }
    }

    #[test]
    fn one_damaged_byte_is_found(
        block in block(Level::Second),
        at in any::<prop::sample::Index>(),
        bits in 1..=u8::MAX,
    ) {
        let mut bytes = block.encoded(Level::Second);
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        prop_assert_eq!(
            Block::decode(&bytes, Level::Second, None),
            Err(DecodeError::Checksum)
        );
    }

    #[test]
    fn any_bytes_are_a_block_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::fuzz::blocks(&bytes);
        // Nearly a block: its first bytes are right.
        for level in Level::ALL {
            let mut near = vec![level.tag(), 0, 1];
            near.extend(&bytes);
            crate::fuzz::blocks(&near);
        }
    }

    #[test]
    fn longer_slots_add_up_in_any_order(
        a in cells(Level::Minute), b in cells(Level::Minute), c in cells(Level::Minute),
    ) {
        // Sums of what was measured stay far below 2^64.
        let small = |cells: Option<Cells>| {
            let mut cells = cells?.map(|cell| cell >> 8);
            if cells[LIMITED] == 0 {
                cells[3 * LIMIT..3 * LIMIT + 3].fill(0);
            }
            Some(cells)
        };
        let [a, b, c] = [a, b, c].map(|cells| [small(cells); Resource::COUNT]);
        prop_assert_eq!(combined(&a, &b), combined(&b, &a));
        prop_assert_eq!(combined(&combined(&a, &b), &c), combined(&a, &combined(&b, &c)));
    }
}
