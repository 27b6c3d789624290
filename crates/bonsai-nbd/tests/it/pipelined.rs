//! Many requests of one client at once, of which the page cache has nothing.

use std::collections::{HashMap, HashSet};
use std::io::Read as _;

use crate::client::{Client, FLUSH, READ, WRITE};
use crate::house::House;
use bonsai_nbd::server::smallest_buffers;

const SIZE: u64 = 16 << 20;
const REQUESTS: u64 = 600;

/// What a block holds; each of four holds the same as another.
fn block(number: u64) -> [u8; 4096] {
    let content = if number.is_multiple_of(4) {
        number % 64
    } else {
        number
    };
    let mut block = [0; 4096];
    for (word, at) in block.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
        *word = (content * 512 + at + 1).to_le_bytes();
    }
    block
}

fn bytes(offset: u64, length: u64) -> Vec<u8> {
    let blocks = offset / 4096..(offset + length).div_ceil(4096);
    let all: Vec<u8> = blocks.flat_map(block).collect();
    let start = usize::try_from(offset % 4096).unwrap();
    all[start..][..usize::try_from(length).unwrap()].to_vec()
}

/// Whole blocks and parts of them, small and large.
fn places() -> Vec<(u64, u64)> {
    let place = |number: u64| {
        let offset = number * 0x9e37_79b9 % (SIZE - (3 << 20)) / 4096 * 4096;
        match number % 8 {
            0 => (offset + 100, 5000),
            1 => (offset, 131_072),
            2 if number % 64 == 2 => (offset, 3 << 20),
            _ => (offset, 4096 * (1 + number % 3)),
        }
    };
    (0..REQUESTS).map(place).collect()
}

fn ask_all(rings: bool, buffer_bytes: Option<usize>) {
    let house = House::with(&["a"], SIZE, |plan| {
        plan.rings = rings;
        plan.buffer_bytes = buffer_bytes.unwrap_or(plan.buffer_bytes);
    });
    let mut client = Client::new(&house.socket(), "a");
    for at in (0..SIZE).step_by(1 << 20) {
        assert_eq!(client.write(at, &bytes(at, 1 << 20), false), 0);
    }
    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
    house.exports[0].image().forget(0, SIZE).unwrap();
    let mut answers = client.stream.try_clone().unwrap();
    let places = places();
    let asked = places.clone();
    let sender = std::thread::spawn(move || {
        for (offset, length) in asked {
            client.send((0, READ), offset, u32::try_from(length).unwrap(), &[]);
        }
        // What was asked for before is answered all the same.
        client.send((0, WRITE), 0, 4096, &block(0));
        client
    });
    let first = 1 + SIZE / (1 << 20) + 1;
    let mut left: HashMap<u64, (u64, u64)> = (first..).zip(places).collect();
    let write = first + REQUESTS;
    let mut written = false;
    while !left.is_empty() || !written {
        let mut head = [0; 16];
        answers.read_exact(&mut head).unwrap();
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        if cookie == write {
            written = true;
            continue;
        }
        let (offset, length) = left
            .remove(&cookie)
            .expect("a request that was not answered");
        let mut data = vec![0; usize::try_from(length).unwrap()];
        answers.read_exact(&mut data).unwrap();
        assert!(data == bytes(offset, length), "{length} bytes at {offset}");
    }
    drop(sender.join().unwrap());
}

#[test]
fn each_of_many_cold_reads_is_answered_with_its_own_bytes() {
    ask_all(true, None);
}

#[test]
fn so_it_is_where_the_kernel_has_no_rings() {
    ask_all(false, None);
}

/// Large reads are answered in parts, of which the last is sent before the reply of a worker.
#[test]
fn replies_in_parts_are_not_interleaved_with_others() {
    for _ in 0..5 {
        ask_all(false, Some(smallest_buffers(32, false) + (2 << 20)));
    }
}

#[test]
fn a_client_that_goes_leaves_nothing_under_way() {
    let house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    for at in (0..SIZE).step_by(1 << 20) {
        assert_eq!(client.write(at, &bytes(at, 1 << 20), false), 0);
    }
    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
    drop(client);
    for _ in 0..20 {
        house.exports[0].image().forget(0, SIZE).unwrap();
        let mut client = Client::new(&house.socket(), "a");
        for at in 0..100 {
            client.send((0, READ), at * 131_072, 131_072, &[]);
        }
    }
    let mut client = Client::new(&house.socket(), "a");
    assert!(client.read(0, 4096).unwrap() == block(0));
    drop(client);
    // Their threads as well.
    let connections = &house.exports[0].counters.connections;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while connections.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        assert!(
            std::time::Instant::now() < end,
            "{connections:?} connections stay"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A client that waits for each reply is answered by the connection's own thread after a while, one that asks for much at once
/// by workers: each request is answered once, and the image has the bytes, wherever one becomes the other.
#[test]
fn synchronous_writes_alone_and_many_at_once_are_each_answered() {
    const FUA: u16 = 1;
    let house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    let mut number = 0;
    let mut next = || {
        number += 1;
        (number % 997 * 4096, block(number))
    };
    let mut written = HashMap::new();
    for round in 0..5 {
        for at in 0..40 {
            let (offset, bytes) = next();
            assert_eq!(client.write(offset, &bytes, true), 0);
            written.insert(offset, bytes);
            if at % 7 == round {
                assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
                assert!(client.read(offset, 4096).unwrap() == bytes);
            }
        }
        let first = client.cookie + 1;
        for at in 0..60 {
            if at % 9 == round {
                client.send((0, FLUSH), 0, 0, &[]);
            }
            let (offset, bytes) = next();
            client.send((FUA, WRITE), offset, 4096, &bytes);
            written.insert(offset, bytes);
        }
        let mut left: HashSet<u64> = (first..=client.cookie).collect();
        while !left.is_empty() {
            let (error, cookie) = client.any_reply();
            assert_eq!(error, 0);
            assert!(left.remove(&cookie), "a request that was not answered");
        }
    }
    for (offset, bytes) in written {
        assert!(client.read(offset, 4096).unwrap() == bytes);
    }
}
