//! Hostile clients, and the memory that they get of a server.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};

use super::server::{Drive, image};
use crate::nbd::{Client, READ, STATUS, WRITE, greeted, header};
use crate::support::{PATIENCE, Place};

const SIZE: u64 = 128 << 20;
const MIB: u64 = 1 << 20;
/// What a server may take beside its buffers: the program, threads, the map.
const BESIDE_MIB: u64 = 64;

impl Drive {
    /// Memory in MiB: `VmRSS` is what it takes, `VmHWM` the most that it took (proc_pid_status(5)).
    fn memory_mib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("a process");
        let line = status.lines().find(|line| line.starts_with(name));
        let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
        words[1].parse::<u64>().expect("kB") / 1024
    }
}

/// A client of some kind that asks for much and receives nothing.
fn hostile(drive: &Drive, number: usize) -> UnixStream {
    let pause = Some(Duration::from_millis(200));
    let mut client = match number % 8 {
        // Block status needs structured replies.
        4 => Client::structured(&drive.socket, "a"),
        5 => {
            let mut stream = greeted(&drive.socket);
            stream.set_write_timeout(pause).expect("a timeout");
            let list: Vec<u8> = [&b"IHAVEOPT\0\0\0\x03\0\0\0\0"[..]; 500].concat();
            let _ = stream.write_all(&list);
            return stream;
        }
        _ => Client::new(&drive.socket, "a"),
    };
    match number % 8 {
        0 => drop(client.flood(READ, (32 << 20, 0), SIZE)),
        1 => drop(client.flood(READ, (1 << 20, 1 << 20), SIZE)),
        2 => drop(client.flood(READ, (64 << 10, 1_000_001), SIZE)),
        4 => drop(client.flood(STATUS, (32 << 20, 0), SIZE)),
        6 => {
            let _ = client
                .stream
                .write_all(&header((0, READ), 1, 0, 4096)[..17]);
        }
        _ => {
            // The data of a write that never comes as a whole.
            client.stream.set_write_timeout(pause).expect("a timeout");
            let _ = client
                .stream
                .write_all(&header((0, WRITE), 1, 64 << 20, 32 << 20));
            let _ = client.stream.write_all(&vec![0; 20 << 20]);
        }
    }
    client.stream
}

fn forty(args: &[&str]) {
    const BUFFERS_MIB: u64 = 128;
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let file = std::fs::File::options().write(true).open(&path);
    let file = file.expect("the image");
    for at in 0..2000 {
        file.write_all_at(&[1; 4096], at * 16384).expect("written");
    }
    let own = [
        "--buffers",
        "128MiB",
        "--connections",
        "64",
        "--memory",
        "16",
    ];
    let drive = Drive::start(&place, &[&own[..], args, &[&path]].concat());
    let mut other = Client::new(&drive.socket, "a");
    let held: Vec<UnixStream> = (0..40).map(|at| hostile(&drive, at)).collect();
    let start = Instant::now();
    for round in 0..5_u8 {
        let bytes = vec![round + 2; 2 << 20];
        assert_eq!(other.write(40 * MIB, &bytes, false), 0);
        assert!(other.read(40 * MIB, 2 << 20).expect("read") == bytes);
        assert_eq!(other.read(16384, 4096), Ok(vec![1; 4096]));
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    let status = place.json(&["drive", "status", "--json"]);
    let connections = &status["servers"][0]["exports"][0]["connections"];
    assert_eq!(connections, 36, "but for those who only ask for lists");
    let (now, most) = (drive.memory_mib("VmRSS"), drive.memory_mib("VmHWM"));
    println!("{args:?}: {now} MiB with 40 hostile clients, {most} MiB at most");
    assert!(most <= BUFFERS_MIB + BESIDE_MIB, "{most} MiB");
    // Half of them close, and half only end their own side.
    for (number, stream) in held.into_iter().enumerate() {
        if number % 2 == 0 {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
    let end = Instant::now() + PATIENCE;
    while drive.memory_mib("VmRSS") > BESIDE_MIB + 32 {
        assert!(
            Instant::now() < end,
            "{} MiB stay",
            drive.memory_mib("VmRSS")
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(other.read(16384, 4096), Ok(vec![1; 4096]));
    drop(other);
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn forty_hostile_clients_take_the_buffers_and_no_more() {
    forty(&[]);
}

#[test]
fn so_they_do_where_the_kernel_has_no_rings_and_nothing_is_shared() {
    forty(&["--no-io-uring", "--plain"]);
}

#[test]
fn hundreds_that_vanish_leave_nothing() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let drive = Drive::start(&place, &["--memory", "16", &path]);
    let before = drive.holds_at_rest();
    let held: Vec<UnixStream> = (0..250)
        .map(|at| match at % 2 {
            0 => hostile(&drive, 6),
            _ => hostile(&drive, 5),
        })
        .collect();
    let mut other = Client::new(&drive.socket, "a");
    assert_eq!(other.write(0, &[1; 4096], true), 0);
    let most = drive.memory_mib("VmHWM");
    assert!(most <= 256 + BESIDE_MIB, "{most} MiB");
    drop((held, other));
    let end = Instant::now() + PATIENCE + Duration::from_secs(10);
    while drive.holds() != before {
        assert!(Instant::now() < end, "{:?} of {before:?}", drive.holds());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let place = Place::bare();
    let path = image(&place, "a.raw", MIB);
    let socket = place.path().join("s.sock").display().to_string();
    let args = [
        "--connections",
        "8",
        "--listen",
        ":0",
        "--socket",
        &socket,
        &path,
    ];
    let drive = Drive::start(&place, &args);
    let tcp = drive.uris.iter().find_map(|uri| uri.strip_prefix("nbd://"));
    let at = tcp
        .and_then(|rest| rest.split('/').next())
        .expect("an address");
    let connect = || TcpStream::connect(at).expect("a port that listens");
    let mut silent: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
    let mut first = Client::new(&drive.socket, "a");
    silent.extend((0..50).map(|_| connect()));
    let mut second = Client::new(&drive.socket, "a");
    for client in [&mut first, &mut second] {
        assert_eq!(client.write(0, &[1; 4096], false), 0);
    }
    assert_eq!(drive.end("TERM").code, Some(0));
}

#[test]
fn an_error_of_the_disk_is_in_the_log() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    let drive = Drive::start(&place, &[&path]);
    let mut client = Client::new(&drive.socket, "a");
    let file = std::fs::File::options().write(true).open(&path);
    file.expect("the image").set_len(SIZE / 2).expect("shorter");
    let offset = SIZE - 8192;
    assert_eq!(client.read(offset, 512), Err(5));
    for _ in 0..100 {
        assert_eq!(client.write(offset, &[1; 512], false), 5);
    }
    assert_eq!(client.ask((0, READ), SIZE, 512, &[]), 22);
    drop(client);
    let said = drive.end("TERM").err;
    let line = format!("a: read of 512 bytes at {offset} failed: ");
    assert!(said.contains(&line), "{line:?} is not in {said}");
    let lines = said.lines().filter(|line| line.contains("failed")).count();
    assert!((2..40).contains(&lines), "{said}");
    assert!(
        said.contains("more requests failed") || said.contains("more before"),
        "{said}"
    );
}

/// A stalled reader of the log blocks no client, and shutdown only for a while.
#[test]
fn a_log_that_nobody_reads_holds_up_no_client() {
    let place = Place::bare();
    let paths = ["a.raw", "b.raw"].map(|name| image(&place, name, SIZE));
    let drive = Drive::start(&place, &[&paths[0], &paths[1]]);
    let clients = ["a", "b"].map(|name| Client::new(&drive.socket, name));
    for path in &paths {
        let file = std::fs::File::options().write(true).open(path);
        file.expect("the image").set_len(SIZE / 2).expect("shorter");
    }
    let log = format!("/proc/{}/fd/2", drive.pid());
    let log = open(log, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
    let mut log = std::fs::File::from(log.expect("its standard error"));
    while log.write_all(&[b' '; 64]).is_ok() {}
    drop(log);
    for mut client in clients {
        for _ in 0..20 {
            assert_eq!(client.write(SIZE - 8192, &[1; 512], false), 5);
        }
        assert_eq!(client.write(0, &[1; 512], false), 0);
    }
    let said = drive.end("TERM");
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn buffers_and_open_files_that_are_too_few_are_refused() {
    let place = Place::bare();
    let path = image(&place, "a.raw", SIZE);
    for (buffers, words) in [
        ("1MiB", "too small for 256 connections"),
        ("0B", "too small"),
        ("9000000TiB", "no memory for buffers"),
        ("12", "--buffers"),
    ] {
        let said = place.say(&["drive", "serve", "--buffers", buffers, &path]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(words), "{said:?}");
    }
    let bonsai = place.bonsai(&["drive", "serve", &path]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 12 && exec \"$0\" \"$@\""]);
    command.arg(bonsai.get_program()).args(bonsai.get_args());
    let output = command.output().expect("sh");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the limit of open files is 12"), "{said}");
}
