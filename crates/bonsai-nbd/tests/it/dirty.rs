//! Clients that ask and do not receive, that vanish, and that leave no memory to others.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonsai_nbd::server::{Plan, Server, smallest_buffers};

use crate::client::{CACHE, Client, FLUSH, READ, STATUS, WRITE, answer, greeted, header, option};
use crate::house::House;
use crate::model::Dice;
use crate::own_client::Own;

const SIZE: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn until(what: &str, mut came: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !came() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client whose connection is counted.
fn counted(house: &House) -> Client {
    let client = Client::new(&house.socket(), "a");
    let connections = &house.exports[0].counters.connections;
    until("it is not there", || {
        connections.load(Ordering::Relaxed) == 1
    });
    client
}

/// What each connection has for itself: whatever does not fit there goes in parts.
fn least(plan: &mut Plan) {
    plan.buffer_bytes = smallest_buffers(plan.connections, false);
}

/// Any operation of any size, with a model of each byte.
fn work(house: &House, seed: u64, structured: bool) {
    let size = usize::try_from(SIZE).unwrap();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
    let uri = house.uri("a").parse().unwrap();
    let mut client = Own::new(&uri, structured);
    let mut model = vec![0; size];
    for round in 0..150_u8 {
        let most = [5000, 200_000, 700_000, 5 << 20][usize::from(round % 4)];
        let start = dice.below(SIZE);
        let length = (1 + dice.below(most)).min(SIZE - start);
        let (start, length) = match dice.below(2) {
            0 => (start, length),
            _ => (start / 4096 * 4096, (length / 4096).max(1) * 4096),
        };
        let range = usize::try_from(start).unwrap()..usize::try_from(start + length).unwrap();
        if dice.below(2) == 0 {
            let word = dice.below(u64::MAX >> 33).to_le_bytes();
            let bytes: Vec<u8> = word.into_iter().cycle().take(range.len()).collect();
            assert_eq!(client.write(start, &bytes, dice.below(8) == 0), 0);
            model[range].copy_from_slice(&bytes);
        } else {
            let bytes = client.read(start, range.len()).unwrap();
            assert!(
                bytes == model[range],
                "{length} bytes at {start}, round {round}"
            );
        }
        if dice.below(8) == 0 {
            assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
            house.exports[0].image().forget(0, SIZE).unwrap();
        }
    }
}

#[test]
fn requests_go_in_parts_where_no_memory_is_left() {
    for (seed, structured) in [(1, true), (2, false)] {
        let house = House::with(&["a"], SIZE, least);
        work(&house, seed, structured);
        let of = &house.exports[0].counters;
        assert_eq!(of.failed.load(Ordering::Relaxed), 0);
    }
    // With memory they are as they were.
    let house = House::new(&["a"], SIZE);
    work(&house, 3, true);
}

#[test]
fn a_read_in_parts_that_fails_is_an_error_or_the_end() {
    let house = House::with(&["a"], SIZE, least);
    let path = house.folder.path().join("a");
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(SIZE / 2).unwrap();
    let uri = house.uri("a").parse().unwrap();
    let mut client = Own::new(&uri, true);
    assert_eq!(client.read(SIZE / 2 - (1 << 20), 2 << 20), Err(5));
    assert_eq!(client.read(0, 1 << 20), Ok(vec![0; 1 << 20]), "it goes on");
    // Without chunks there is no way to say it, once a part has gone.
    let mut client = Client::new(&house.socket(), "a");
    client.send((0, READ), SIZE / 2 - (1 << 20), 2 << 20, &[]);
    assert_eq!(client.reply(), 0);
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut client.stream, &mut all).unwrap();
    assert!(all.len() <= 1 << 20, "{}", all.len());
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(
        client.read(SIZE / 2, 2 << 20),
        Err(5),
        "the first part fails"
    );
    // A write fails as a whole, and the next request is heard.
    assert_eq!(
        client.write(SIZE / 2 - (1 << 20), &vec![1; 2 << 20], false),
        5
    );
    assert_eq!(client.write(0, &[1; 4096], false), 0);
    let failed = house.exports[0].counters.failed.load(Ordering::Relaxed);
    let events = house.events.lock().unwrap().clone();
    let said = events.iter().filter(|of| of.starts_with("Failed")).count();
    assert_eq!((failed, said), (4, 4), "{events:?}");
}

#[test]
fn block_status_is_told_where_no_memory_is_left() {
    for change in [least, |_: &mut Plan| {}] {
        let house = House::with(&["a"], SIZE, change);
        let mut client = Client::new(&house.socket(), "a");
        for at in (0..SIZE).step_by(1 << 20) {
            assert_eq!(client.write(at, &[7; 65536], false), 0);
        }
        let mut client = Client::structured(&house.socket(), "a");
        for _ in 0..300 {
            client.send((0, STATUS), 0, u32::try_from(SIZE).unwrap(), &[]);
        }
        for _ in 0..300 {
            let head = client.data(20);
            assert_eq!(head[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5]);
            let length = u32::from_be_bytes(head[16..].try_into().unwrap());
            let extents = client.data(usize::try_from(length).unwrap());
            let extents = extents[4..].as_chunks::<8>().0;
            let bytes = |of: &[u8; 8]| u64::from(u32::from_be_bytes(of[..4].try_into().unwrap()));
            assert_eq!(extents.iter().map(bytes).sum::<u64>(), SIZE);
            assert!(extents.len() >= 16, "{}", extents.len());
        }
    }
}

#[test]
fn reads_of_a_client_that_has_gone_are_not_done() {
    for rings in [true, false] {
        let house = House::with(&["a"], 32 << 20, |plan| plan.rings = rings);
        let counters = &house.exports[0].counters;
        for length in [32 << 20, 1 << 20, 64 << 10] {
            let before = counters.reads.load(Ordering::Relaxed);
            let mut client = counted(&house);
            // As many as the server takes of a client that does not receive.
            let asked = client.flood(READ, (length, 0), 32 << 20);
            drop(client);
            until("it goes on", || {
                counters.connections.load(Ordering::Relaxed) == 0
            });
            let done = counters.reads.load(Ordering::Relaxed) - before;
            let most = (80 << 20) / u64::from(length) + 8;
            assert!(
                done <= most,
                "{done} of {asked} reads of {length} bytes, rings: {rings}"
            );
            assert!(asked > 20, "nothing was tried: {asked} of {length} bytes");
        }
    }
}

#[test]
fn what_is_to_be_cached_for_a_client_that_has_gone_is_not() {
    const LARGE: u64 = 1 << 30;
    let house = House::new(&["a"], LARGE);
    let mut all = Vec::new();
    for at in 0..1024 {
        all.extend(header((0, CACHE), at, at << 20, 1 << 20));
    }
    let mut client = counted(&house);
    std::io::Write::write_all(&mut client.stream, &all).unwrap();
    drop(client);
    let counters = &house.exports[0].counters;
    until("it goes on", || {
        counters.connections.load(Ordering::Relaxed) == 0
    });
    if let Some(pages) = house.exports[0].image().resident_pages(0, LARGE) {
        assert!(pages < LARGE / 4096 / 2, "{pages} pages are there");
    }
}

#[test]
fn writes_that_came_as_a_whole_are_done_when_their_client_has_gone() {
    for change in [|_: &mut Plan| {}, least] {
        let house = House::with(&["a"], 32 << 20, change);
        let mut all = Vec::new();
        for at in 0..20 {
            all.extend(header((0, READ), at, 0, 32 << 20));
        }
        for at in 0..4 {
            let flags = u16::from(at == 1);
            let length = if at == 2 { 16384 } else { 4096 };
            all.extend(header((flags, WRITE), at, at * 65536, length));
            all.resize(all.len() + length as usize, 9);
        }
        // And one that is cut off.
        all.extend(header((0, WRITE), 9, 1 << 20, 8192));
        all.resize(all.len() + 5000, 9);
        let mut client = counted(&house);
        std::io::Write::write_all(&mut client.stream, &all).unwrap();
        drop(client);
        let counters = &house.exports[0].counters;
        until("it goes on", || {
            counters.connections.load(Ordering::Relaxed) == 0
        });
        let file = File::open(house.folder.path().join("a")).unwrap();
        for (at, length) in [(0, 4096), (1, 4096), (2, 16384), (3, 4096)] {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at * 65536).unwrap();
            let events = house.events.lock().unwrap();
            assert!(
                bytes.iter().all(|byte| *byte == 9),
                "write {at}: {events:?}"
            );
        }
        let mut bytes = [1; 8192];
        file.read_exact_at(&mut bytes, 1 << 20).unwrap();
        assert_eq!(bytes, [0; 8192], "half a write is none");
        assert!(counters.reads.load(Ordering::Relaxed) < 5);
    }
}

#[test]
fn a_client_that_only_ended_its_own_side_gets_its_replies() {
    let house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    for at in 0..8 {
        client.send((0, READ), at << 20, 2 << 20, &[]);
    }
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..8 {
        assert_eq!(client.any_reply().0, 0);
        client.data(2 << 20);
    }
}

#[test]
fn greedy_clients_leave_others_what_they_need() {
    for rings in [true, false] {
        let house = House::with(&["a"], SIZE, |plan| plan.rings = rings);
        let mut greedy: Vec<Client> = (0..12).map(|_| Client::new(&house.socket(), "a")).collect();
        for (client, at) in greedy.iter_mut().zip(0..) {
            match at % 3 {
                0 => drop(client.flood(READ, (1 << 20, 1 << 20), SIZE)),
                1 => drop(client.flood(READ, (16 << 20, 0), SIZE)),
                _ => {
                    client.send((0, WRITE), 8 << 20, 8 << 20, &[]);
                    let pause = Some(Duration::from_millis(200));
                    client.stream.set_write_timeout(pause).unwrap();
                    let _ = std::io::Write::write_all(&mut client.stream, &vec![3; 4 << 20]);
                }
            }
        }
        let mut other = Client::new(&house.socket(), "a");
        for round in 0..4_u8 {
            let bytes = vec![round + 1; 3 << 20];
            assert_eq!(other.write(5 << 20, &bytes, false), 0);
            house.exports[0].image().flush().unwrap();
            house.exports[0].image().forget(0, SIZE).unwrap();
            assert!(other.read(5 << 20, 3 << 20).unwrap() == bytes);
            assert_eq!(other.read(4096, 100), Ok(vec![0; 100]));
        }
        drop(greedy);
        let counters = &house.exports[0].counters;
        until("they stay", || {
            counters.connections.load(Ordering::Relaxed) == 1
        });
    }
}

#[test]
fn failures_are_told_once_each_or_counted() {
    let mut house = House::new(&["a"], SIZE);
    let path = house.folder.path().join("a");
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(SIZE / 2).unwrap();
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(client.read(SIZE / 2 + 4096, 512), Err(5));
    assert_eq!(client.ask((0, READ), SIZE, 512, &[]), 22);
    let first = house.events.lock().unwrap().clone();
    let of: Vec<&String> = first.iter().filter(|of| of.starts_with("Failed")).collect();
    assert_eq!(of.len(), 2, "{first:?}");
    let offset = format!("offset: {}", SIZE / 2 + 4096);
    for words in [
        "export: \"a\"",
        "operation: \"read\"",
        &offset,
        "length: 512",
    ] {
        assert!(of[0].contains(words), "{words:?} is not in {}", of[0]);
    }
    for at in 0..500 {
        assert_eq!(client.write(SIZE / 2 + at * 512, &[1; 512], at % 2 == 0), 5);
    }
    drop(client);
    house.end();
    let events = house.events.lock().unwrap();
    let mut told = 0;
    let mut omitted = 0;
    for event in events.iter() {
        let number = |after: &str| {
            let text = event.split_once(after).unwrap().1;
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().unwrap()
        };
        if event.starts_with("Failed") {
            told += 1;
            omitted += number("omitted: ");
        } else if event.starts_with("Omitted") {
            omitted += number("count: ");
        }
    }
    assert_eq!(told + omitted, 502, "{events:?}");
    assert!(told < 60, "{told} lines");
}

#[test]
fn a_long_list_of_exports_is_told_as_it_is_taken() {
    let names: Vec<String> = (0..120).map(|at| format!("{at:0>250}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let house = House::new(&names, 4096);
    let mut stream = greeted(&house.socket());
    // More than is held at once, and more than any socket takes.
    for _ in 0..50 {
        option(&mut stream, 3, &[]);
    }
    for _ in 0..50 {
        for name in &names {
            let (kind, data) = answer(&mut stream);
            assert_eq!(kind, 2);
            assert!(data[4..].starts_with(name.as_bytes()));
        }
        assert_eq!(answer(&mut stream).0, 1);
    }
}

#[test]
fn buffers_that_are_too_small_are_refused() {
    let house = House::new(&["a"], 4096);
    let plan = |buffer_bytes| Plan {
        exports: house.exports.clone(),
        unix: None,
        tcp: None,
        tls: None,
        connections: 100,
        buffer_bytes,
        negotiation: PATIENCE,
        rings: true,
    };
    let least = smallest_buffers(100, false);
    assert!(Server::bind(plan(least)).is_ok());
    let error = Server::bind(plan(least - 1)).unwrap_err().to_string();
    assert!(error.contains("100 connections"), "{error}");
    assert!(Server::bind(plan(usize::MAX)).is_err());
}

#[test]
fn who_goes_while_waiting_for_a_limit_waits_no_more_and_gives_it_back() {
    use bonsai_nbd::export::{Export, Options};
    use bonsai_nbd::image::Image;
    use bonsai_nbd::throttle::Throttle;
    use std::sync::Arc;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    File::create(&path).unwrap().set_len(32 << 20).unwrap();
    let ledger = bonsai_ledger::Ledger::create(&folder.path().join("ledger"), "limited").unwrap();
    // 1 MiB/s and a burst of 64 KiB.
    let mut editor = ledger.edit(0).unwrap();
    let read = bonsai_calls::select("read").unwrap();
    let milli = 1000 * (1 << 20);
    editor.set("read", read, true, milli, 64 << 10).unwrap();
    editor.commit();
    let image = Arc::new(Image::open(&path, false).unwrap());
    let options = Options {
        name: "a".to_owned(),
        workers: 2,
    };
    let export = Arc::new(Export::new(image, None, &options).under(Throttle::new(ledger)));
    let house = House::with(&["b"], SIZE, |plan| {
        plan.exports.insert(0, Arc::clone(&export));
    });
    let mut client = Client::new(&house.socket(), "a");
    for _ in 0..4 {
        client.send((0, READ), 0, 32 << 20, &[]);
    }
    std::thread::sleep(Duration::from_millis(100));
    drop(client);
    // 32 MiB would be due in half a minute. A place in line that another client takes before they are given back is
    // behind them.
    let start = Instant::now();
    let connections = &export.counters.connections;
    while connections.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "it waits on");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut other = Client::new(&house.socket(), "a");
    assert!(other.read(0, 4096).is_ok());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}
