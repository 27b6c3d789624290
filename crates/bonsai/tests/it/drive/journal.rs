//! A journal of what clients wrote: which contents each block of an image may have after its server or machine has gone.
//!
//! The protocol promises that a write is there if a flush was answered after it, or if it had FUA. Of another write, each block
//! of 4 KiB is as before or as after. So each block has a set of contents: the one at the last flush, and those written since.
//! Half of the contents are a few that all images have, so that reads of one image go to the other; the rest are told apart by
//! block and number, so that nothing old passes for new.

use std::path::Path;

use crate::nbd::{Client, FLUSH};

pub(super) const BLOCK: usize = 4096;
pub(super) const BLOCKS: u64 = 128;

pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, most: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % most
    }
}

/// What fills a block: a number, and what follows from it. 0 is zeroes.
pub(super) fn content(number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; BLOCK];
    }
    let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let words = std::iter::repeat_with(|| dice.below(1 << 31).to_le_bytes());
    words.take(BLOCK / 8).flatten().collect()
}

/// Of each block, numbers of contents that it may have; the last is what was written last.
pub(super) struct Allowed(pub(super) Vec<Vec<u64>>);

impl Allowed {
    /// Of an image of zeroes.
    pub(super) fn zeroes() -> Self {
        Self(vec![vec![0]; usize::try_from(BLOCKS).expect("small")])
    }

    pub(super) fn flushed(&mut self) {
        for numbers in &mut self.0 {
            numbers.drain(..numbers.len() - 1);
        }
    }

    /// Each block is one of those, whole; from now on it is what it is.
    pub(super) fn check(&mut self, client: &mut Client, export: &str) {
        for (block, numbers) in (0u64..).zip(&mut self.0) {
            let bytes = client.read(block * BLOCK as u64, BLOCK).expect("read");
            let right = numbers
                .iter()
                .rev()
                .find(|number| content(**number) == bytes);
            let Some(&right) = right else {
                panic!(
                    "{export}, block {block}: {:?} are not {numbers:?}",
                    &bytes[..16]
                );
            };
            *numbers = vec![right];
        }
    }
}

/// Writes until the server has gone.
pub(super) fn load(
    socket: &Path,
    export: &str,
    allowed: &mut Allowed,
    dice: &mut Dice,
    number: &mut u64,
) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut client = Client::new(socket, export);
        loop {
            let block = dice.below(BLOCKS);
            let at = usize::try_from(block).expect("small");
            let count = 1 + dice.below(4.min(BLOCKS - block));
            match dice.below(20) {
                0 => {
                    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
                    allowed.flushed();
                }
                1..14 => {
                    let mut bytes = Vec::new();
                    for (block, numbers) in (block..)
                        .zip(&mut allowed.0[at..])
                        .take(usize::try_from(count).expect("small"))
                    {
                        *number += 1;
                        let same = dice.below(2) == 0;
                        let what = if same {
                            dice.below(6)
                        } else {
                            *number << 8 | block
                        };
                        // Before it is sent: it may arrive though nobody says so.
                        numbers.push(what);
                        bytes.extend(content(what));
                    }
                    let fua = dice.below(20) == 0;
                    assert_eq!(client.write(block * BLOCK as u64, &bytes, fua), 0);
                    for numbers in allowed.0[at..].iter_mut().take(if fua {
                        usize::try_from(count).expect("small")
                    } else {
                        0
                    }) {
                        numbers.drain(..numbers.len() - 1);
                    }
                }
                _ => {
                    let bytes = client.read(block * BLOCK as u64, BLOCK).expect("read");
                    let last = allowed.0[at].last().copied().unwrap_or(0);
                    if content(last) != bytes {
                        panic!("WRONG: {export}, block {block} is not {last}");
                    }
                }
            }
        }
    }));
    // What ends it is the server's end; what it was given is another thing.
    let words = result.expect_err("without an end");
    let words = words.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(
        !words.starts_with("WRONG") && !words.contains("assertion"),
        "{words}"
    );
}

/// Threads of that name end with a panic that means the server's end; nobody has to see these.
pub(super) const LOAD: &str = "load";

/// Keeps quiet about panics of threads with that name.
pub(super) fn expect_ends() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() != Some(LOAD) {
                before(info);
            }
        }));
    });
}
