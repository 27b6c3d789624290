//! Any operation at any place, as `fsx` has it for file systems, with a model of every byte.
//!
//! Four clients have an image each, all of one group: a file, three times, and a block device where there can be one.
//! What is written is one of a few contents in half of all cases, at whole blocks in half of all cases, so that reads are
//! redirected all the time; what is known of a part is forgotten from the page cache now and then. Each read is
//! compared with the model, and each hole that is told of.
//! `BONSAI_NBD_FSX` is how many operations all of them do together (20,000 if nothing is said), and `BONSAI_NBD_SEED`
//! where they begin.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::below::Loop;
use crate::client::{CACHE, Client, FLUSH, READ, TRIM, ZEROES};
use crate::house::House;
use crate::model::Dice;

const SIZE: u64 = 2 << 20;
const BLOCK: u64 = 4096;
/// A request, at most.
const MOST: u64 = 64 << 10;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

struct Exerciser<'a> {
    house: &'a House,
    number: usize,
    client: Client,
    dice: Dice,
    model: Vec<u8>,
    /// What is written, if it is nothing of its own.
    contents: &'a [Vec<u8>],
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

impl Exerciser<'_> {
    /// A part of the image: at whole blocks, or anywhere.
    fn part(&mut self) -> (u64, u64) {
        let start = self.dice.below(SIZE);
        let most = if self.dice.below(2) == 0 {
            MOST
        } else {
            4 * BLOCK
        };
        let length = 1 + self.dice.below(most.min(SIZE - start));
        if self.dice.below(2) == 0 {
            return (start, length);
        }
        let start = start / BLOCK * BLOCK;
        (start, length.next_multiple_of(BLOCK).min(SIZE - start))
    }

    fn fill(&mut self, start: u64, length: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size(length));
        let own = self.dice.below(2) == 0;
        while bytes.len() < size(length) {
            let content = &self.contents[size(self.dice.below(self.contents.len() as u64))];
            bytes.extend_from_slice(content);
            if own {
                let at = bytes.len() - 8;
                bytes[at..].copy_from_slice(&self.dice.0.to_le_bytes());
            }
        }
        bytes.truncate(size(length));
        self.model[size(start)..size(start + length)].copy_from_slice(&bytes);
        bytes
    }

    fn zero(&mut self, start: u64, length: u64) {
        self.model[size(start)..size(start + length)].fill(0);
    }

    fn check(&self, what: &str, start: u64, bytes: &[u8]) {
        let known = &self.model[size(start)..][..bytes.len()];
        if let Some(at) = known.iter().zip(bytes).position(|(a, b)| a != b) {
            let at = start + at as u64;
            panic!(
                "{what} of {} bytes at {start} of {}: byte {at} is {:#x}, and should be {:#x}",
                bytes.len(),
                NAMES[self.number],
                bytes[size(at - start)],
                self.model[size(at)]
            );
        }
    }

    fn step(&mut self) {
        let (start, length) = self.part();
        let short = u32::try_from(length).unwrap();
        let image = self.house.exports[self.number].image();
        match self.dice.below(100) {
            0..45 => {
                let bytes = self.client.read(start, size(length)).unwrap();
                self.check("a read", start, &bytes);
            }
            45..78 => {
                let bytes = self.fill(start, length);
                let fua = self.dice.below(1000) == 0;
                assert_eq!(self.client.write(start, &bytes, fua), 0);
            }
            78..84 => {
                // No hole, or quick, or both, or neither.
                let flags = [0, 2, 16, 18][size(self.dice.below(4))];
                let error = self.client.ask((flags, ZEROES), start, short, &[]);
                if error == 0 {
                    self.zero(start, length);
                } else {
                    assert!(error == 95 && flags & 16 > 0, "{error}");
                }
            }
            84..88 => {
                assert_eq!(self.client.ask((0, TRIM), start, short, &[]), 0);
                // What is trimmed may be anything; here it is zeroes, but for what is less than a sector.
                let bytes = self.client.read(start, size(length)).unwrap();
                let known = &self.model[size(start)..size(start + length)];
                let (zero, as_before) =
                    (bytes.iter().filter(|b| **b == 0), known.iter().zip(&bytes));
                let fine = zero.count() + as_before.filter(|(a, b)| a == b && **b != 0).count();
                assert_eq!(fine, bytes.len(), "a trim made something up");
                self.model[size(start)..size(start + length)].copy_from_slice(&bytes);
            }
            88 if self.dice.below(4) == 0 => {
                assert_eq!(self.client.ask((0, FLUSH), 0, 0, &[]), 0);
            }
            88..91 => {
                // Out of the page cache, so that reads are redirected at all; what is dirty stays.
                image.forget(0, SIZE).unwrap();
            }
            91..93 => assert_eq!(self.client.ask((0, CACHE), start, short, &[]), 0),
            93..95 => {
                let mut at = start;
                for extent in image.extents(start, length, 100).unwrap() {
                    if extent.hole {
                        self.check("a hole", at, &vec![0; extent.length as usize]);
                    }
                    at += u64::from(extent.length);
                }
                assert_eq!(at, start + length);
            }
            95 if self.dice.below(4) == 0 => {
                image.flush().unwrap();
                image.forget(0, SIZE).unwrap();
            }
            95..99 => image.forget(start, MOST).unwrap(),
            _ => self.many_or_again(),
        }
    }

    /// Several reads at once, or another connection.
    fn many_or_again(&mut self) {
        if self.dice.below(2) == 0 {
            let socket = self.house.socket();
            self.client = Client::new(&socket, NAMES[self.number]);
            return;
        }
        let parts: Vec<_> = (0..16).map(|_| self.part()).collect();
        let first = self.client.cookie + 1;
        for &(start, length) in &parts {
            let length = u32::try_from(length).unwrap();
            self.client.send((0, READ), start, length, &[]);
        }
        for _ in 0..parts.len() {
            let (error, cookie) = self.client.any_reply();
            assert_eq!(error, 0);
            let (start, length) = parts[size(cookie - first)];
            let bytes = self.client.data(size(length));
            self.check("one of many reads", start, &bytes);
        }
    }
}

#[test]
fn any_operation_anywhere_is_as_the_model_has_it() {
    let number = |name, otherwise| {
        let text = std::env::var(name).ok();
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let operations: u64 = number("BONSAI_NBD_FSX", 20_000);
    let seed: u64 = number("BONSAI_NBD_SEED", 1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    let device = Loop::new("any_operation_anywhere_is_as_the_model_has_it", &file, &[]);
    if let Some(device) = &device {
        symlink(&device.0, folder.path().join("d")).unwrap();
    }
    let house = House::over(folder, &NAMES, SIZE, |_| {});
    let contents: Vec<Vec<u8>> = (0..6)
        .map(|number| {
            let mut dice = Dice(number + 77);
            let random = || u8::try_from(dice.below(256)).unwrap();
            if number == 0 {
                vec![0; 4096]
            } else {
                std::iter::repeat_with(random).take(4096).collect()
            }
        })
        .collect();
    std::thread::scope(|scope| {
        for (number, name) in NAMES.into_iter().enumerate() {
            let (house, contents) = (&house, &contents);
            scope.spawn(move || {
                let mut of = Exerciser {
                    house,
                    number,
                    client: Client::new(&house.socket(), name),
                    dice: Dice(0x1234_5678_9abc_def1 ^ (seed * 4 + number as u64)),
                    model: vec![0; size(SIZE)],
                    contents,
                };
                for _ in 0..operations / NAMES.len() as u64 {
                    of.step();
                }
                for start in (0..SIZE).step_by(size(MOST)) {
                    let bytes = of.client.read(start, size(MOST)).unwrap();
                    of.check("the last read", start, &bytes);
                }
            });
        }
    });
    let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let members = || house.exports.iter().filter_map(|export| export.member());
    let sum = |of: &dyn Fn(&bonsai_nbd::sharing::Shared) -> u64| {
        members().map(|member| of(&member.counters)).sum::<u64>()
    };
    assert_eq!(
        sum(&|of| load(&of.wrong)),
        0,
        "the map said what was not so"
    );
    let redirected = sum(&|of| load(&of.redirected_bytes));
    let zeroes = sum(&|of| load(&of.zero_bytes));
    println!("{operations} operations, {redirected} bytes redirected, {zeroes} bytes of zeroes");
    assert!(redirected > 0 && zeroes > 0, "nothing was tried");
    let outside: u64 = members().map(|member| member.outside_writes()).sum();
    assert_eq!(outside, 0, "nobody else wrote");
}
