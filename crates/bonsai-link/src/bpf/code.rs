//! The programs, instruction by instruction.

use std::os::fd::BorrowedFd;

use super::raw;

/// Which of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    /// For what comes in: into the class, and out through the block.
    Incoming,
    /// For what leaves by an uplink: into the class of where it came in, or of who sends it.
    Outgoing,
}

impl Which {
    /// The name that `tc filter show` shows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Incoming => "bonsai-in",
            Self::Outgoing => "bonsai-out",
        }
    }
}

/// An instruction: operation, registers (target in the lower half), offset, number.
const fn insn(op: u8, registers: u8, offset: i16, number: u32) -> u64 {
    op as u64
        | (registers as u64) << 8
        | (offset.cast_unsigned() as u64) << 16
        | (number as u64) << 32
}

// Places in `struct __sk_buff`.
const PRIORITY: i16 = 32;
const INGRESS_IFINDEX: i16 = 36;
const IFINDEX: i16 = 40;
// Helpers.
const MAP_LOOKUP_ELEM: u32 = 1;
const REDIRECT: u32 = 23;
const SKB_ANCESTOR_CGROUP_ID: u32 = 83;
/// `TC_ACT_UNSPEC`: the next filter is asked, and the packet goes its way.
const GO_ON: u32 = u32::MAX;

/// `if r0 != 0`, `if r1 != 0`, and always: to a place that is known later.
const IF_R0: u64 = insn(0x55, 0x00, 0, 0);
const IF_R1: u64 = insn(0x55, 0x01, 0, 0);

/// The code of a program. `groups` is their table, and the deepest level that is looked at.
pub(super) fn code(
    which: Which,
    table: BorrowedFd<'_>,
    groups: Option<(BorrowedFd<'_>, u8)>,
) -> Vec<u64> {
    let key = match which {
        Which::Incoming => IFINDEX,
        Which::Outgoing => INGRESS_IFINDEX,
    };
    // r6 is the packet, r0 what was found.
    let mut code = vec![
        insn(0xbf, 0x16, 0, 0),   // r6 = r1
        insn(0x61, 0x12, key, 0), // r2 = *(u32 *)(r1 + key)
        insn(0x63, 0x2a, -4, 0),  // *(u32 *)(r10 - 4) = r2
    ];
    code.extend(lookup(table, -4));
    let found = hole(&mut code, IF_R0);
    let mut classes = Vec::new();
    if let Some((groups, deepest)) = groups {
        code.extend([
            insn(0x61, 0xa2, -4, 0),      // r2 = *(u32 *)(r10 - 4)
            insn(0x15, 0x02, 2, 0),       // if r2 == 0 skip 2: the machine itself sends it
            insn(0xb4, 0x00, 0, GO_ON),   // w0 = GO_ON
            insn(0x95, 0x00, 0, 0),       // exit
            insn(0x61, 0x62, IFINDEX, 0), // r2 = the uplink
            insn(0x63, 0x2a, -16, 0),     // *(u32 *)(r10 - 16) = r2
            insn(0x62, 0x0a, -12, 0),     // *(u32 *)(r10 - 12) = 0
            insn(0xb7, 0x07, 0, 0),       // r7 = 0: none below is a newcomer
        ]);
        for level in (0..=deepest).rev() {
            classes.extend(at_level(&mut code, groups, level));
        }
    }
    code.extend([
        insn(0xb4, 0x00, 0, GO_ON), // w0 = GO_ON
        insn(0x95, 0x00, 0, 0),     // exit
    ]);
    fill(&mut code, found);
    code.push(insn(0x61, 0x01, 0, 0)); // r1 = class
    for class in classes {
        fill(&mut code, class);
    }
    code.push(insn(0x63, 0x16, PRIORITY, 0)); // packet's priority = r1
    if which == Which::Incoming {
        code.extend([
            insn(0x61, 0x01, 4, 0),        // r1 = block
            insn(0x15, 0x01, 3, 0),        // if r1 == 0 skip 3
            insn(0xb4, 0x02, 0, 0),        // w2 = 0
            insn(0x85, 0x00, 0, REDIRECT), // r0 = redirect(r1, r2)
            insn(0x95, 0x00, 0, 0),        // exit
        ]);
    }
    code.extend([
        insn(0xb4, 0x00, 0, GO_ON), // w0 = GO_ON
        insn(0x95, 0x00, 0, 0),     // exit
    ]);
    code
}

/// Whether the group of the packet at a level says its class, which is in r1 then; the places that
/// go on with it. r7 says whether the one below is a newcomer, and is left so for the one above.
fn at_level(code: &mut Vec<u64>, groups: BorrowedFd<'_>, level: u8) -> [usize; 2] {
    code.extend([
        insn(0xbf, 0x61, 0, 0),                      // r1 = r6
        insn(0xb4, 0x02, 0, level.into()),           // w2 = level
        insn(0x85, 0x00, 0, SKB_ANCESTOR_CGROUP_ID), // r0 = the group's number
    ]);
    let there = hole(code, IF_R0);
    let above = hole(code, insn(0x05, 0x00, 0, 0)); // its group is further up
    fill(code, there);
    code.push(insn(0x7b, 0x0a, -24, 0)); // *(u64 *)(r10 - 24) = r0
    code.extend(lookup(groups, -24));
    let known = hole(code, IF_R0);
    code.push(insn(0xb7, 0x07, 0, 1)); // r7 = 1: it is a newcomer
    let newcomer = hole(code, insn(0x05, 0x00, 0, 0));
    fill(code, known);
    code.extend([
        insn(0x15, 0x07, 2, 0), // if r7 == 0 skip 2
        insn(0x61, 0x01, 4, 0), // r1 = class of newcomers
    ]);
    let pending = hole(code, IF_R1);
    code.extend([
        insn(0xb7, 0x07, 0, 0), // r7 = 0
        insn(0x61, 0x01, 0, 0), // r1 = its own class
    ]);
    let own = hole(code, IF_R1);
    fill(code, above);
    fill(code, newcomer);
    [pending, own]
}

/// r0 = what a table has under the key that stands at a place of the stack.
fn lookup(table: BorrowedFd<'_>, place: i32) -> [u64; 5] {
    [
        insn(0x18, 0x11, 0, raw(table)),            // r1 = table
        0,                                          //
        insn(0xbf, 0xa2, 0, 0),                     // r2 = r10
        insn(0x07, 0x02, 0, place.cast_unsigned()), // r2 += place
        insn(0x85, 0x00, 0, MAP_LOOKUP_ELEM),       // r0 = lookup(r1, r2)
    ]
}

/// A jump that is filled in later: its place.
fn hole(code: &mut Vec<u64>, jump: u64) -> usize {
    code.push(jump);
    code.len() - 1
}

/// Lets a jump lead to what comes next.
fn fill(code: &mut [u64], jump: usize) {
    let over = code.len() - jump - 1;
    // Some thousand instructions at most.
    let over = u16::try_from(over).unwrap_or(0);
    code[jump] |= u64::from(over) << 16;
}
