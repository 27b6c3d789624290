//! Where a thread goes on that was stopped at a site about to be patched.
//!
//! ```text
//!   syscall; cmp $-4096,%rax; ...    becomes    jmp slot; nop; ...
//!          ^ here stand those that are in the call
//! ```
//! Such a thread is sent to the site's *twin*, which means the same and stays as it is:
//! two bytes that make the call, and then what was behind it. So the kernel, if a signal
//! arrives, or if the call is to be made again, does exactly what it would have done:
//! for both it counts two bytes back from where the thread is. The two bytes are a jump
//! to the decision, so that a call that is made again is decided on.

use super::shared::Patch;

/// Bytes of a twin.
pub(crate) const TWIN: u64 = 40;

/// Where the twin goes on behind its call.
const BEHIND: u64 = 2;

impl Patch {
    /// Where the decision on this site is: what its jump leads to, behind what is moved.
    fn decision(&self) -> u64 {
        let [_, distance @ .., _, _, _] = self.new;
        let distance = i64::from(i32::from_le_bytes(distance));
        let target = self.at.wrapping_add(5).wrapping_add_signed(distance);
        target + if self.moved { self.back } else { 0 }
    }

    fn call(&self) -> u64 {
        self.at + if self.moved { self.back } else { 0 }
    }

    /// Whether a thread must not be found at `rip` when the site is patched.
    pub(crate) fn covers(&self, rip: u64) -> bool {
        let end = if self.moved {
            self.call() + 2
        } else {
            self.call() + 7
        };
        (self.at + 1..=end).contains(&rip)
    }

    /// Where a thread at `rip` goes on instead, which the site covers.
    pub(crate) fn instead_of(&self, rip: u64, twin: u64) -> u64 {
        let behind = self.call() + 2;
        if rip == behind {
            twin + BEHIND
        } else if self.moved {
            // Among what is moved, or right before the call.
            self.decision() - self.back + (rip - self.at)
        } else {
            rip
        }
    }

    /// Its twin.
    pub(crate) fn twin(&self) -> [u8; 40] {
        let mut code = [0xcc; 40];
        // jmp 14
        code[0..2].copy_from_slice(&[0xeb, 12]);
        let behind = if self.moved {
            // A no-op of six bytes.
            code[2..8].copy_from_slice(&[0x66, 0x0f, 0x1f, 0x44, 0, 0]);
            self.call() + 2
        } else {
            code[2..8].copy_from_slice(&self.old[2..8]);
            self.at + 8
        };
        // 8: jmp *24; 14: jmp *32
        code[8..14].copy_from_slice(&[0xff, 0x25, 10, 0, 0, 0]);
        code[14..20].copy_from_slice(&[0xff, 0x25, 12, 0, 0, 0]);
        code[24..32].copy_from_slice(&behind.to_le_bytes());
        code[32..40].copy_from_slice(&self.decision().to_le_bytes());
        code
    }
}

/// Where all sites are.
#[derive(Debug)]
pub(crate) struct Sites {
    /// By address, each with its number.
    sorted: Vec<(Patch, usize)>,
    twins: u64,
}

impl Sites {
    pub(crate) fn new(patches: &[Patch], twins: u64) -> Self {
        let mut sorted: Vec<_> = patches.iter().copied().zip(0..).collect();
        sorted.sort_by_key(|(patch, _)| patch.at);
        Self { sorted, twins }
    }

    /// Where a thread at `rip` goes on instead; `None` if it can stay there.
    pub(crate) fn instead_of(&self, rip: u64) -> Option<u64> {
        let behind = self.sorted.partition_point(|(patch, _)| patch.at < rip);
        let (patch, number) = self.sorted.get(behind.checked_sub(1)?)?;
        if !patch.covers(rip) {
            return None;
        }
        let instead = patch.instead_of(rip, self.twins + *number as u64 * TWIN);
        (instead != rip).then_some(instead)
    }

    /// The twins of all of them, in order.
    pub(crate) fn twins(patches: &[Patch]) -> Vec<u8> {
        patches.iter().flat_map(Patch::twin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A site of libc at 0x1000, whose slot is at 0x2005.
    fn compared() -> Patch {
        Patch {
            at: 0x1000,
            old: [0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
            new: [0xe9, 0, 0x10, 0, 0, 0x0f, 0x1f, 0],
            back: 0,
            moved: false,
        }
    }

    /// One whose call is at 0x3007, with an entry at 0x4000.
    fn moved() -> Patch {
        Patch {
            at: 0x3000,
            old: [0x31, 0xff, 0xb8, 3, 0, 0, 0, 0x0f],
            new: [0xe9, 0xfb, 0x0f, 0, 0, 0, 0, 0x0f],
            back: 7,
            moved: true,
        }
    }

    #[test]
    fn whoever_is_in_a_call_goes_to_its_twin() {
        let sites = Sites::new(&[moved(), compared()], 0x9000);
        assert_eq!(sites.instead_of(0x1002), Some(0x9000 + TWIN + 2));
        assert_eq!(sites.instead_of(0x3009), Some(0x9002));
    }

    #[test]
    fn whoever_is_before_or_behind_stays() {
        let sites = Sites::new(&[moved(), compared()], 0x9000);
        for rip in [0, 0xfff, 0x1000, 0x1008, 0x2fff, 0x3000, 0x300a, u64::MAX] {
            assert_eq!(sites.instead_of(rip), None, "{rip:#x}");
        }
    }

    #[test]
    fn whoever_is_among_moved_instructions_goes_on_where_they_are_now() {
        let sites = Sites::new(&[moved()], 0x9000);
        assert_eq!(sites.instead_of(0x3002), Some(0x4002));
        assert_eq!(sites.instead_of(0x3007), Some(0x4007));
    }

    #[test]
    fn twins_lead_to_the_decision_and_back() {
        let word = |code: &[u8], at: usize| {
            u64::from_le_bytes(code[at..at + 8].try_into().expect("eight bytes"))
        };
        let twin = compared().twin();
        assert_eq!(twin[2..8], compared().old[2..8]);
        assert_eq!((word(&twin, 24), word(&twin, 32)), (0x1008, 0x2005));
        let twin = moved().twin();
        assert_eq!((word(&twin, 24), word(&twin, 32)), (0x3009, 0x4007));
    }
}
