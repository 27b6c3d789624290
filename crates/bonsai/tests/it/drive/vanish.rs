//! Clients that vanish, and clients that are too many.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::server::{Drive, image};
use crate::nbd::{Client, READ, WRITE, greeted};
use crate::support::{PATIENCE, Place};

const SIZE: u64 = 4 << 20;

/// Waits until it holds what it did.
fn until_as_before(drive: &Drive, before: [usize; 2]) {
    // Workers stay for 10 s.
    let end = Instant::now() + PATIENCE + Duration::from_secs(10);
    while drive.holds() != before {
        assert!(
            Instant::now() < end,
            "{:?}, {before:?} before",
            drive.holds()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_that_vanish_anywhere_leave_no_thread_and_no_descriptor() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let drive = Drive::start(&place, &["--connections", "64", &path]);
    let before = drive.holds_at_rest();
    let mut other = Client::new(&drive.socket, "a");
    for round in 0..5u64 {
        // In the middle of the greeting, of an option, of a header, and of the data of a small and a large write.
        let bare = UnixStream::connect(&drive.socket).expect("connected");
        let mut option = greeted(&drive.socket);
        option.write_all(b"IHAVEOPT\0\0").expect("sent");
        let mut header = Client::new(&drive.socket, "a");
        header.stream.write_all(&[0x25, 0x60, 0x95]).expect("sent");
        let mut small = Client::new(&drive.socket, "a");
        small.send((0, WRITE), 65536, 8192, &[9; 5000]);
        let mut large = Client::new(&drive.socket, "a");
        large.send((0, WRITE), 131_072, 1 << 20, &[9; 300_000]);
        // With 256 reads under way, no reply of which is ever read.
        let mut greedy = Client::new(&drive.socket, "a");
        for at in 0..256 {
            greedy.send((0, READ), at * 4096 + 1, 256 << 10, &[]);
        }
        // With a half of one reply read.
        let mut half = Client::new(&drive.socket, "a");
        half.send((0, READ), 0, 1 << 20, &[]);
        assert_eq!(half.reply(), 0);
        half.data(100_000);
        // Others go on meanwhile.
        for at in 0..20 {
            let byte = [u8::try_from(round + at).expect("small"); 512];
            assert_eq!(other.write(at * 512, &byte, false), 0);
            assert_eq!(other.read(at * 512, 512), Ok(byte.to_vec()));
        }
        drop((bare, option, header, small, large, greedy, half));
    }
    assert_eq!(
        other.read(65536, 8192),
        Ok(vec![0; 8192]),
        "half a write is none"
    );
    assert_eq!(
        other.read(131_072, 65536),
        Ok(vec![0; 65536]),
        "half a write is none"
    );
    drop(other);
    until_as_before(&drive, before);
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn clients_beyond_the_descriptors_wait_and_harm_nobody() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let bonsai = place.bonsai(&["drive", "serve", &path]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 40 && exec \"$0\" \"$@\""]);
    command.arg(bonsai.get_program()).args(bonsai.get_args());
    for (name, value) in bonsai.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let drive = Drive::of(command, &[&path]);
    let mut first = Client::new(&drive.socket, "a");
    let held: Vec<UnixStream> = (0..60)
        .map(|_| UnixStream::connect(&drive.socket).expect("in the line"))
        .collect();
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", drive.pid()));
        let stat = stat.expect("a process");
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        // utime and stime, in hundredths of a second (proc_pid_stat(5)).
        [12, 13]
            .map(|at| fields[at].parse::<u64>().expect("a number"))
            .iter()
            .sum::<u64>()
    };
    let (before, began) = (ticks(), Instant::now());
    for at in 0..100 {
        assert_eq!(first.write(at * 512, &[1; 512], false), 0);
        std::thread::sleep(Duration::from_millis(10));
    }
    let used = Duration::from_millis((ticks() - before) * 10);
    // Trying again all the time would take all of a processor.
    let took = began.elapsed();
    assert!(used < took * 6 / 10, "{used:?} of {took:?}");
    drop(held);
    let mut last = Client::new(&drive.socket, "a");
    assert_eq!(last.read(0, 512), Ok(vec![1; 512]));
    let said = drive.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("no more clients are let in"), "{said:?}");
    assert!(!said.err.contains("there are 256"), "{said:?}");
}
