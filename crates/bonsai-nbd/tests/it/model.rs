//! Random operations over eight connections, with a model in memory.
//!
//! Each connection has every eighth block of two images of one group, and fills blocks with few
//! different contents, so that nearly all of them have duplicates in the others' parts, which are read, redirected, overwritten and trimmed all the
//! time. Half of them want structured replies. Each reads back what it wrote last, and nothing else.
//! `BONSAI_NBD_OPERATIONS` is how many operations each does (1,500 if nothing is said).

use bonsai_nbd::client::Uri;

use crate::client::{TRIM, ZEROES};
use crate::house::House;
use crate::own_client::Own;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
const CONNECTIONS: u64 = 8;

pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % most
    }
}

fn content(number: u64) -> Vec<u8> {
    let mut dice = Dice(number + 1);
    (0..BLOCK)
        .map(|_| u8::try_from(dice.below(256)).unwrap())
        .collect()
}

fn work(uris: &[Uri; 2], number: u64, operations: u64, forget: &dyn Fn()) {
    let mut dice = Dice(0x9e37_79b9 + number);
    let structured = number.is_multiple_of(2);
    let mut clients = uris.each_ref().map(|uri| Own::new(uri, structured));
    let mut model = vec![vec![vec![0; BLOCK]; usize::try_from(BLOCKS / CONNECTIONS).unwrap()]; 2];
    for _ in 0..operations {
        let image = usize::try_from(dice.below(2)).unwrap();
        let at = dice.below(BLOCKS / CONNECTIONS);
        let offset = (at * CONNECTIONS + number) * BLOCK as u64;
        let known = &mut model[image][usize::try_from(at).unwrap()];
        let client = &mut clients[image];
        match dice.below(20) {
            0..6 => {
                *known = content(dice.below(6));
                assert_eq!(client.write(offset, known, dice.below(40) == 0), 0);
            }
            6 => {
                let (start, length) = (dice.below(3000), 1 + dice.below(1000));
                let range =
                    usize::try_from(start).unwrap()..usize::try_from(start + length).unwrap();
                known[range.clone()].fill(0x5a);
                assert_eq!(client.write(offset + start, &known[range], false), 0);
            }
            7 => {
                known.fill(0);
                let flags = u16::try_from(2 * dice.below(2)).unwrap();
                assert_eq!(client.ask((flags, ZEROES), offset, 4096, &[]), 0);
            }
            8 => {
                known.fill(0);
                assert_eq!(client.ask((0, TRIM), offset, 4096, &[]), 0);
            }
            9 if dice.below(8) == 0 => forget(),
            _ => assert_eq!(
                &client.read(offset, BLOCK).unwrap(),
                known,
                "image {image}, block {offset}"
            ),
        }
    }
    for (client, blocks) in clients.iter_mut().zip(model) {
        for (at, known) in (0..).zip(blocks) {
            let offset = (at * CONNECTIONS + number) * BLOCK as u64;
            assert_eq!(
                client.read(offset, BLOCK).unwrap(),
                known,
                "at the end, block {offset}"
            );
        }
    }
}

#[test]
fn eight_connections_read_what_they_wrote() {
    race(true);
}

#[test]
fn they_do_so_where_the_kernel_has_no_rings() {
    race(false);
}

fn race(rings: bool) {
    let operations = std::env::var("BONSAI_NBD_OPERATIONS").ok();
    let operations = operations.map_or(1_500, |text| text.parse().expect("a number of operations"));
    let size = BLOCKS * BLOCK as u64;
    let house = House::with(&["a", "b"], size, |plan| plan.rings = rings);
    let forget = || {
        // Out of the page cache, so that reads are redirected at all; dirty pages have to go first.
        let image = house.exports[1].image();
        let _ = image.flush();
        let _ = image.forget(0, size);
    };
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            let uris = ["a", "b"].map(|name| house.uri(name).parse().unwrap());
            let forget = &forget;
            scope.spawn(move || work(&uris, number, operations, forget));
        }
    });
    let shared = house.exports.iter().filter_map(|export| export.member());
    let load = |of: &std::sync::atomic::AtomicU64| of.load(std::sync::atomic::Ordering::Relaxed);
    let (redirected, wrong) = shared.fold((0, 0), |(all, wrong), member| {
        let of = &member.counters;
        (
            all + load(&of.redirected_bytes) + load(&of.zero_bytes),
            wrong + load(&of.wrong),
        )
    });
    assert_eq!(wrong, 0, "the map said what was not so");
    assert!(
        redirected > 0,
        "nothing was redirected, so that nothing was tried"
    );
}
