//! Cancellation points: the one instruction by which the functions of a libc make calls that may be cancelled.
//!
//! musl has had one since 2015 (`__syscall_cp_asm`, `src/thread/x86_64/syscall_cp.s`), glibc since 2.41 (`__syscall_cancel_arch`,
//! `sysdeps/unix/sysv/linux/x86_64/syscall_cancel.S`). Both are hand-written, get the thread's word as their first argument and the
//! number of the call as their second, and end alike:
//! ```text
//!   mov (%rdi),%eax; is the thread cancelled? then to the function that ends it
//!   mov %rdi,%r11; mov %rsi,%rax; ...; mov %r11,8(%rsp)
//!   syscall
//!   ret
//! ```
//! A thread in such a call is cancelled if its instruction pointer is between the beginning and the `syscall`. So the call must be made
//! by that very instruction. When it is reached, the word at `8(%rsp)` is the address of the thread's word.

use crate::{ANY, Site, find_syscall, moved_at};

/// Kinds of points, by their test for a cancelled thread. The caller of either ends such a thread if it gets `EINTR` from the call; but
/// musl does not from `close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The word is not 0.
    Musl,
    /// The word has this bit.
    Glibc(u8),
}

/// From the copy of the first argument to the `ret`.
const TAIL: [u8; 36] = [
    0x49, 0x89, 0xfb, // mov %rdi,%r11
    0x48, 0x89, 0xf0, // mov %rsi,%rax
    0x48, 0x89, 0xd7, // mov %rdx,%rdi
    0x48, 0x89, 0xce, // mov %rcx,%rsi
    0x4c, 0x89, 0xc2, // mov %r8,%rdx
    0x4d, 0x89, 0xca, // mov %r9,%r10
    0x4c, 0x8b, 0x44, 0x24, 0x08, // mov 8(%rsp),%r8
    0x4c, 0x8b, 0x4c, 0x24, 0x10, // mov 16(%rsp),%r9
    0x4c, 0x89, 0x5c, 0x24, 0x08, // mov %r11,8(%rsp)
    0x0f, 0x05, // syscall
    0xc3, // ret
];

/// Where the `syscall` is in it.
const CALL: usize = 33;

/// Returns the kind of the cancellation point with its `syscall` at offset `at`, if there is one.
#[must_use]
pub fn cancellation_point(text: &[u8], at: usize) -> Option<Point> {
    let first = at.checked_sub(CALL)?;
    let behind = text.get(first..)?.strip_prefix(&TAIL)?;
    match *text.get(..first)?.last_chunk::<11>()? {
        // mov (%rdi),%eax; test %eax,%eax; jne to the jump behind the ret
        [.., 0x8b, 0x07, 0x85, 0xc0, 0x75, 0x24] => {
            matches!(behind, [0xe9 | 0xeb, ..]).then_some(Point::Musl)
        }
        // mov (%rdi),%eax; testb $bit,(%rdi); jne near, or short
        [0x8b, 0x07, 0xf6, 0x07, bit, 0x0f, 0x85, ..]
        | [.., 0x8b, 0x07, 0xf6, 0x07, bit, 0x75, _] => {
            bit.is_power_of_two().then_some(Point::Glibc(bit))
        }
        _ => None,
    }
}

/// True if the `syscall` at `at` is that of libc's function `syscall`, which takes its number from the caller: its last argument, the
/// seventh, comes from the stack just before it.
#[must_use]
pub fn is_open(text: &[u8], at: usize) -> bool {
    // mov 8(%rsp),%r9
    const LAST_ARGUMENT: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 8];
    text.get(..at)
        .is_some_and(|before| before.ends_with(&LAST_ARGUMENT))
}

/// The most system calls by which the cancellation points of one libc are made.
pub const CANCELLING: usize = 4;

/// The system calls of a libc by which all its cancellation points are made, with any number: that of the [`cancellation_point`], and
/// what is made instead by a thread that cannot be cancelled, in the function that calls the point.
///
/// Empty where there is no such point: in glibc before 2.41. They are to be entered together or not at all, as one function
/// makes either call; two at least, as a build of which only the point is found is not understood. In no order.
#[must_use]
pub fn cancelling(text: &[u8]) -> [Option<Site>; CANCELLING] {
    let mut sites = [None; CANCELLING];
    let mut points = calls(text, 0..text.len());
    let Some(point) = points.find(|at| cancellation_point(text, *at).is_some()) else {
        return sites;
    };
    let others = caller(text, point).into_iter().flat_map(|call| {
        let near = call.saturating_sub(NEAR)..call.saturating_add(NEAR).min(text.len());
        calls(text, near).filter(|at| *at != point)
    });
    let any = |at| moved_at(text, at).filter(|site| site.nr == ANY);
    let found = core::iter::once(point).chain(others).filter_map(any);
    for (slot, site) in sites.iter_mut().zip(found) {
        *slot = Some(site);
    }
    sites
}

/// Reach of a function around its call of the point, bytes.
const NEAR: usize = 192;

/// The offsets of `0f 05` within a range.
fn calls(text: &[u8], range: core::ops::Range<usize>) -> impl Iterator<Item = usize> {
    let text = text.get(..range.end).unwrap_or_default();
    let mut at = range.start;
    core::iter::from_fn(move || {
        let found = find_syscall(text, at)?;
        at = found + 2;
        Some(found)
    })
}

/// Offset of the call of the point (its first instruction, or an `endbr64` before it).
fn caller(text: &[u8], point: usize) -> Option<usize> {
    let tail = point.checked_sub(CALL)?;
    // mov (%rdi),%eax, and a test
    let is_first = |at: &usize| {
        let code = text.get(*at..).unwrap_or_default();
        code.starts_with(&[0x8b, 0x07, 0xf6, 0x07]) || code.starts_with(&[0x8b, 0x07, 0x85, 0xc0])
    };
    let heads = [11, 7, 6].map(|len| tail.checked_sub(len));
    let first = heads.into_iter().flatten().find(is_first)?;
    text.windows(5).enumerate().find_map(|(at, code)| {
        let [0xe8, distance @ ..] = *code.first_chunk::<5>()? else {
            return None;
        };
        let distance = i64::from(i32::from_le_bytes(distance));
        let target = i64::try_from(at).ok()? + 5 + distance;
        let target = usize::try_from(target).ok()?;
        (target == first || target + 4 == first).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::{CALL, Point, TAIL, cancellation_point, cancelling};
    use crate::{ANY, moved_at};

    const MUSL: [u8; 6] = [0x8b, 0x07, 0x85, 0xc0, 0x75, 0x24];
    const GLIBC: [u8; 11] = [
        0x8b, 0x07, 0xf6, 0x07, 8, 0x0f, 0x85, 0xd5, 0x4b, 0xff, 0xff,
    ];
    const SHORT: [u8; 7] = [0x8b, 0x07, 0xf6, 0x07, 8, 0x75, 0x40];

    /// A point among no-ops, and where its `syscall` is.
    fn text(head: &[u8]) -> (Vec<u8>, usize) {
        let mut text: Vec<u8> = std::vec![0x90; 200];
        text.extend(head);
        let at = text.len() + CALL;
        text.extend(TAIL);
        text.extend([0xe9, 0, 0, 0, 0]);
        text.resize(600, 0x90);
        (text, at)
    }

    #[test]
    fn each_is_known_by_all_of_its_bytes() {
        for (head, point) in [
            (&MUSL[..], Point::Musl),
            (&GLIBC, Point::Glibc(8)),
            (&SHORT, Point::Glibc(8)),
        ] {
            let (whole, at) = text(head);
            assert_eq!(cancellation_point(&whole, at), Some(point));
            // The jump takes the place of the last instruction before it, and leaves it as it is.
            let site = moved_at(&whole, at).expect("a site");
            assert_eq!((site.nr, site.back), (ANY, 5));
            let first = at - CALL - head.len();
            let targets = match point {
                Point::Musl => 0..0,
                Point::Glibc(_) => at - CALL - (head.len() - 6)..at - CALL,
            };
            for changed in (first..at + 3).filter(|at| !targets.contains(at)) {
                let mut text = whole.clone();
                text[changed] ^= 0x40;
                assert_ne!(cancellation_point(&text, at), Some(point), "{changed}");
            }
            assert_eq!(cancellation_point(&whole, 3), None);
            assert_eq!(cancellation_point(&whole[..at + 2], at), None);
        }
    }

    /// A glibc in short: the point, and a function that calls it or makes the call itself.
    fn glibc(head: &[u8], other: &[u8]) -> (Vec<u8>, usize) {
        let (mut text, at) = text(head);
        let first = at - CALL - head.len();
        let call = text.len();
        let distance =
            i32::try_from(first).expect("small") - i32::try_from(call + 5).expect("small");
        text.push(0xe8);
        text.extend(distance.to_le_bytes());
        text.resize(text.len() + 20, 0x90);
        text.extend(other);
        text.resize(1000, 0x90);
        (text, at)
    }

    #[test]
    fn what_is_made_instead_of_the_point_is_found_beside_its_call() {
        // mov 16(%rsp),%rax; syscall; pop %rbx; ret
        let (text, at) = glibc(
            &GLIBC,
            &[0x48, 0x8b, 0x44, 0x24, 0x10, 0x0f, 0x05, 0x5b, 0xc3],
        );
        let found = cancelling(&text)
            .map(|site| site.map(|site| (site.offset as usize, site.nr, site.back)));
        assert_eq!(found, [Some((at, ANY, 5)), Some((630, ANY, 5)), None, None]);
        // A build with frame pointers: mov 24(%rbp),%rax
        for head in [&SHORT[..], &MUSL] {
            let (text, at) = glibc(head, &[0x48, 0x8b, 0x45, 0x18, 0x0f, 0x05, 0x5d, 0xc3]);
            let found =
                cancelling(&text).map(|site| site.map(|site| (site.offset as usize, site.back)));
            assert_eq!(found, [Some((at, 5)), Some((629, 4)), None, None]);
        }
    }

    #[test]
    fn what_cannot_be_moved_is_found_all_the_same() {
        // mov 0x1000(%rip),%rax; syscall
        let (whole, _) = glibc(&GLIBC, &[0x48, 0x8b, 0x05, 0, 0x10, 0, 0, 0x0f, 0x05, 0xc3]);
        let found = cancelling(&whole).map(|site| site.map(|site| site.back));
        assert_eq!(found, [Some(5), Some(0), None, None]);
        // A build without a second call beside the point.
        let (alone, _) = glibc(&GLIBC, &[]);
        let found = cancelling(&alone).map(|site| site.map(|site| site.back));
        assert_eq!(found, [Some(5), None, None, None]);
        assert_eq!(cancelling(&[0x90; 300]), [None; 4]);
    }
}
