//! Contexts that signal handlers will go back to: on a thread's stacks, as the kernel
//! has written them (`struct sigcontext`).

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::maps::Mapping;
use super::sites::Sites;

/// As much of a stack is looked through; Go's signal stacks are 32 KiB, and a thread's
/// own one ends where its mapping ends.
const MOST: u64 = 1 << 20;

/// The leaf function's own room below the stack pointer.
const RED_ZONE: u64 = 128;

/// Handlers that interrupt each other on stacks of their own.
const NESTED: usize = 8;

/// Words of a context: the stack pointer, where it goes on, flags, selectors.
const CONTEXT: usize = 4;

/// The code selector of 64-bit programs.
const USER_CODE: u64 = 0x33;

/// Places of saved instruction pointers that sites cover, and what they are to become.
pub(crate) fn covered(
    memory: &File,
    maps: &[Mapping],
    stack: u64,
    sites: &Sites,
) -> Vec<(u64, u64)> {
    let all = saved(memory, maps, stack).into_iter();
    all.filter_map(|(place, rip)| Some((place, sites.instead_of(rip)?)))
        .collect()
}

/// Places of saved instruction pointers, and what is there.
pub(crate) fn saved(memory: &File, maps: &[Mapping], stack: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut stacks = vec![stack];
    let mut looked = 0;
    while let Some(stack) = stacks.get(looked).copied().filter(|_| looked < NESTED) {
        looked += 1;
        let from = stack.saturating_sub(RED_ZONE) & !7;
        let Some(map) = maps.iter().find(|map| map.at.contains(&stack)) else {
            continue;
        };
        let from = from.max(map.at.start);
        let len = (map.at.end - from).min(MOST);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        // A page that is gone was not in use.
        let Ok(read) = memory.read_at(&mut bytes, from) else {
            continue;
        };
        let words: Vec<u64> = bytes
            .get(..read & !7)
            .unwrap_or_default()
            .chunks_exact(8)
            .map(|word| {
                word.iter()
                    .rev()
                    .fold(0, |n, byte| n << 8 | u64::from(*byte))
            })
            .collect();
        for (i, context) in words.windows(CONTEXT).enumerate() {
            let [saved, rip, flags, selectors] = *context else {
                continue;
            };
            // Bit 1 of the flags is always set; the upper half never is.
            if selectors & 0xffff != USER_CODE || flags >> 32 != 0 || flags & 2 == 0 {
                continue;
            }
            // It interrupted something, maybe on another stack.
            if !(from..from + len).contains(&saved) && !stacks.contains(&saved) {
                stacks.push(saved);
            }
            found.push((from + 8 * (i as u64 + 1), rip));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::maps;
    use super::super::shared::Patch;
    use super::*;

    #[test]
    fn only_contexts_are_taken_for_contexts() {
        let site = Patch {
            at: 0x1000,
            old: [0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
            new: [0xe9, 0, 0x10, 0, 0, 0x0f, 0x1f, 0],
            back: 0,
            moved: false,
        };
        let sites = Sites::new(&[site], 0x9000);
        // A stack with a context in it, and with two things that are none.
        let stack: Box<[u64; 64]> = Box::new(std::array::from_fn(|i| match i {
            20 => 0x1002,
            30 => 0x7fff_0000_0000,
            31 => 0x1002,
            32 => 0x246,
            33 => 0x002b_0000_0000_0033,
            40 => 0x1002,
            41 => 0,
            42 => 0x33,
            _ => 0,
        }));
        let memory = File::open("/proc/self/mem").expect("memory");
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let maps = maps::of(pid).expect("maps");
        let at = stack.as_ptr() as u64;
        let found = covered(&memory, &maps, at, &sites);
        assert!(found.contains(&(at + 8 * 31, 0x9002)), "{found:x?}");
        let among = found
            .iter()
            .filter(|(place, _)| (at..at + 512).contains(place));
        assert_eq!(among.count(), 1, "{found:x?}");
    }
}
