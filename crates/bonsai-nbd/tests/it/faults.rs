//! What goes wrong around a server.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bonsai_nbd::image::{Image, ImageError};

use crate::client::{Client, FLUSH, READ, WRITE, greeted};
use crate::house::House;

const SIZE: u64 = 4 << 20;

#[test]
fn an_image_in_use_is_refused() {
    let house = House::new(&["a"], SIZE);
    let path = house.folder.path().join("a");
    for read_only in [false, true] {
        let error = Image::open(&path, read_only).unwrap_err();
        assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    }
    drop(house);
    let other = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(
        Image::open(other.path(), false),
        Err(ImageError::Empty { .. })
    ));
    other.as_file().set_len(SIZE).unwrap();
    let first = Image::open(other.path(), true).unwrap();
    let second = Image::open(other.path(), true).unwrap();
    let writer = Image::open(other.path(), false);
    assert!(
        matches!(writer, Err(ImageError::InUse { .. })),
        "readers keep it from writers"
    );
    drop((first, second));
    std::fs::write(other.path(), b"QFI\xfb and so on").unwrap();
    assert!(matches!(
        Image::open(other.path(), false),
        Err(ImageError::Format { .. })
    ));
    assert!(matches!(
        Image::open(other.path().parent().unwrap(), false),
        Err(ImageError::Kind { .. })
    ));
}

#[test]
fn the_socket_is_its_owners_and_a_stale_one_is_replaced() {
    let mut house = House::new(&["a"], SIZE);
    let mode = std::fs::metadata(house.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    house.end();
    assert!(!house.socket().exists());
    // What a server that was killed leaves.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let stale = House::with(&["a"], SIZE, |plan| plan.unix = Some(path.clone()));
    assert_eq!(Client::new(&path, "a").read(0, 1), Ok(vec![0]));
    let plan = bonsai_nbd::server::Plan {
        exports: Vec::new(),
        unix: Some(path),
        tcp: None,
        tls: None,
        connections: 1,
        buffer_bytes: 1 << 20,
        negotiation: Duration::from_secs(1),
        rings: true,
    };
    let second = bonsai_nbd::server::Server::bind(plan);
    assert!(second.unwrap_err().to_string().contains("another server"));
    drop(stale);
}

#[test]
fn a_shrunk_image_fails_and_is_not_made_long_again() {
    let house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(client.write(SIZE - 4096, &[7; 4096], true), 0);
    let path = house.folder.path().join("a");
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(SIZE / 2)
        .unwrap();
    assert_eq!(client.read(SIZE - 4096, 4096), Err(5));
    assert_eq!(client.write(SIZE - 4096, &[8; 4096], false), 5);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE / 2);
    assert_eq!(
        client.read(0, 4096),
        Ok(vec![0; 4096]),
        "what is left is served"
    );
    let image = house.exports[0].image();
    assert!(image.look().is_some());
    let left = image.extents(0, SIZE, 100).unwrap();
    let left: u64 = left.iter().map(|of| u64::from(of.length)).sum();
    assert_eq!(left, SIZE / 2, "what is gone is no hole");
    assert!(image.extents(SIZE / 2, 4096, 1).is_err());
    // An error is not remembered.
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(SIZE)
        .unwrap();
    assert_eq!(client.read(SIZE - 4096, 4096), Ok(vec![0; 4096]));
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    let house = House::new(&["a"], SIZE);
    for _ in 0..20 {
        let mut client = Client::new(&house.socket(), "a");
        client.send((0, READ), 0, 1 << 20, &[]);
        client.send((0, READ), 1, 1 << 20, &[]);
        client.send((0, WRITE), 4096, 8192, &[9; 100]);
    }
    let mut client = Client::new(&house.socket(), "a");
    assert_eq!(
        client.read(4096, 8192),
        Ok(vec![0; 8192]),
        "half a write is none"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    let connections = &house.exports[0].counters.connections;
    while connections.load(std::sync::atomic::Ordering::Relaxed) > 1 {
        assert!(Instant::now() < deadline, "connections stay");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let house = House::new(&["a"], SIZE);
    let mut greedy = Client::new(&house.socket(), "a");
    greedy.stream.set_nonblocking(true).unwrap();
    let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
    header.extend_from_slice(&[0; 20]);
    header.extend_from_slice(&(2u32 << 20).to_be_bytes());
    // Unread replies of 2 MiB each, by workers, until the server takes no more.
    while greedy.stream.write_all(&header).is_ok() {}
    let mut other = Client::new(&house.socket(), "a");
    for offset in 0..200 {
        assert_eq!(other.write(offset * 512, &[3; 512], false), 0);
    }
}

#[test]
fn who_never_asks_for_an_export_is_left() {
    let house = House::with(&["a"], SIZE, |plan| {
        plan.negotiation = Duration::from_millis(200);
    });
    let mut slow = greeted(&house.socket());
    slow.write_all(b"IHAVE").unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn connections_have_a_limit() {
    let house = House::with(&["a"], SIZE, |plan| plan.connections = 2);
    let _held = [(); 2].map(|()| Client::new(&house.socket(), "a"));
    let mut third = UnixStream::connect(house.socket()).unwrap();
    assert_eq!(third.read(&mut [0; 18]).unwrap(), 0);
}

#[test]
fn the_end_lets_what_is_under_way_be_done() {
    let mut house = House::new(&["a"], SIZE);
    let mut client = Client::new(&house.socket(), "a");
    client.send((1, WRITE), 0, 4096, &[5; 4096]);
    assert_eq!(client.reply(), 0);
    assert_eq!(client.ask((0, FLUSH), 0, 0, &[]), 0);
    house.end();
    let bytes = std::fs::read(house.folder.path().join("a")).unwrap();
    assert_eq!(bytes[..4096], [5; 4096]);
    assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_full_disk_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(folder.path())
        .output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        return crate::house::skip("a_full_disk_is_told", "no mount without privileges");
    }
    let path = folder.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let errors = {
        let house = House::with(&["a"], SIZE, |plan| {
            let image = std::sync::Arc::new(Image::open(&path, false).unwrap());
            let options = bonsai_nbd::export::Options {
                name: "full".to_owned(),
                workers: 2,
            };
            let export = bonsai_nbd::export::Export::new(image, None, &options);
            plan.exports.push(std::sync::Arc::new(export));
        });
        let mut client = Client::new(&house.socket(), "full");
        (0..SIZE / 65536)
            .map(|at| client.write(at * 65536, &[1; 65536], false))
            .collect::<Vec<_>>()
    };
    let unmounted = std::process::Command::new("umount")
        .arg(folder.path())
        .status();
    assert!(unmounted.unwrap().success());
    assert_eq!(errors.first(), Some(&0));
    assert_eq!(errors.last(), Some(&28));
}

#[test]
fn a_limit_holds_for_its_export_alone() {
    use bonsai_ledger::Ledger;
    use bonsai_nbd::export::{Export, Options};
    use bonsai_nbd::throttle::Throttle;
    use std::sync::Arc;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let ledger = Ledger::create(&folder.path().join("ledger"), "limited").unwrap();
    // 4 MiB/s and a burst of 64 KiB.
    let mut editor = ledger.edit(0).unwrap();
    let read = bonsai_calls::select("read").unwrap();
    let milli = 1000 * (4 << 20);
    editor.set("read", read, true, milli, 64 << 10).unwrap();
    editor.commit();
    let house = House::with(&["a"], SIZE, |plan| {
        let image = Arc::new(Image::open(&path, false).unwrap());
        let options = Options {
            name: "limited".to_owned(),
            workers: 2,
        };
        let export = Export::new(image, None, &options).under(Throttle::new(ledger));
        plan.exports.push(Arc::new(export));
    });
    let mut limited = Client::new(&house.socket(), "limited");
    let mut free = Client::new(&house.socket(), "a");
    let start = Instant::now();
    limited.send((0, READ), 0, 1 << 20, &[]);
    limited.stream.set_nonblocking(true).unwrap();
    for _ in 0..20 {
        assert!(free.read(0, 1 << 16).is_ok());
    }
    limited.stream.set_nonblocking(false).unwrap();
    assert_eq!(limited.reply(), 0);
    // It may take longer on a busy machine, and never less: 1 MiB without the burst.
    assert!(
        start.elapsed() >= Duration::from_millis(234),
        "{:?}",
        start.elapsed()
    );
}
