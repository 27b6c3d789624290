//! Clients that nobody here wrote.

use std::process::{Command, Output};

use crate::house::{House, has};

const SIZE: u64 = 32 << 20;

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {text}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

#[test]
fn nbdcopy_both_ways_and_nbdinfo() {
    if !has("nbdcopy_both_ways_and_nbdinfo", "nbdcopy") {
        return;
    }
    let house = House::new(&["a"], SIZE);
    let [from, to] = ["from", "to"].map(|name| house.folder.path().join(name));
    let bytes: Vec<u8> = (0..SIZE / 2)
        .map(|at| (at / 4096 % 251).to_le_bytes()[0])
        .collect();
    std::fs::write(&from, &bytes).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&from)
        .unwrap()
        .set_len(SIZE)
        .unwrap();
    run(Command::new("nbdcopy")
        .arg("--flush")
        .arg(&from)
        .arg(house.uri("a")));
    run(Command::new("nbdcopy").arg(house.uri("a")).arg(&to));
    assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
    let info = run(Command::new("nbdinfo").arg("--json").arg(house.uri("a"))).stdout;
    let info = String::from_utf8(info).unwrap();
    for expected in [
        "\"export-size\": 33554432",
        "\"can_multi_conn\": true",
        "base:allocation",
    ] {
        assert!(info.contains(expected), "{expected} is not in {info}");
    }
    let map = run(Command::new("nbdinfo").arg("--map").arg(house.uri("a"))).stdout;
    assert!(String::from_utf8(map).unwrap().contains("hole,zero"));
}

#[test]
fn qemu_writes_patterns_and_compares() {
    if !has("qemu_writes_patterns_and_compares", "qemu-io") {
        return;
    }
    let house = House::new(&["a"], SIZE);
    let commands = [
        "write -P 0x5a 4096 64k",
        "read -P 0x5a 4096 64k",
        "write -z 8192 8192",
        "read -P 0 8192 8192",
        "discard 0 4k",
        "write -f -P 7 1000 200",
        "read -P 7 1000 200",
        "write -zu 1M 1M",
        "read -P 0 1M 1M",
        "aio_write -P 3 5M 2M",
        "aio_flush",
        "read -P 3 5M 2M",
        "flush",
    ];
    let mut io = Command::new("qemu-io");
    io.args(["-f", "raw"]);
    for command in commands {
        io.args(["-c", command]);
    }
    let output = run(io.arg(house.uri("a"))).stdout;
    assert!(!String::from_utf8_lossy(&output).contains("verification failed"));
    let copy = house.folder.path().join("copy");
    run(Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "raw"])
        .arg(house.uri("a"))
        .arg(&copy));
    run(Command::new("qemu-img")
        .args(["compare", "-f", "raw", "-F", "raw"])
        .arg(house.uri("a"))
        .arg(&copy));
    // QEMU sees the lock.
    let mut refused = Command::new("qemu-io");
    refused
        .args(["-f", "raw", "-c", "read 0 1"])
        .arg(house.folder.path().join("a"));
    let text = String::from_utf8(refused.output().unwrap().stderr).unwrap();
    assert!(text.contains("lock"), "{text}");
}

#[test]
fn qemu_moves_images_between_exports() {
    if !has("qemu_moves_images_between_exports", "qemu-img") {
        return;
    }
    let house = House::new(&["a", "b"], SIZE);
    let io = |export: &str, commands: &[&str]| {
        let mut io = Command::new("qemu-io");
        io.args(["-f", "raw", "-d", "unmap"]);
        for command in commands {
            io.args(["-c", command]);
        }
        let output = run(io.arg(house.uri(export))).stdout;
        let text = String::from_utf8_lossy(&output).into_owned();
        assert!(!text.contains("failed"), "{text}");
    };
    let image = |args: &[&str]| {
        let mut image = Command::new("qemu-img");
        String::from_utf8(run(image.args(args)).stdout).unwrap()
    };
    let [a, b] = ["a", "b"].map(|name| house.uri(name));
    io(
        "a",
        &["write -P 1 0 8M", "write -P 2 16M 1M", "write -P 1 24M 4M"],
    );
    // From one export to the other, with the holes left out.
    image(&["convert", "-n", "-f", "raw", "-O", "raw", "-W", &a, &b]);
    let same = image(&["compare", "-f", "raw", "-F", "raw", &a, &b]);
    assert!(same.contains("identical"), "{same}");
    // QEMU has no promise that what is discarded reads as zeroes: it is read until it does.
    io("b", &["discard 0 8M", "read -P 0 0 8M", "read -P 2 16M 1M"]);
    let map = image(&["map", "--output=json", "-f", "raw", &b]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    assert_eq!(map[0]["data"], false, "{map}");
    assert!(map[0]["length"].as_u64() >= Some(8 << 20), "{map}");
    let mut differs = Command::new("qemu-img");
    differs.args(["compare", "-f", "raw", "-F", "raw", &a, &b]);
    assert_eq!(differs.output().unwrap().status.code(), Some(1));
    for write in [&["-w", "--pattern=7"][..], &[]] {
        let asked = ["bench", "-f", "raw", "-c", "2000", "-d", "16", "-s", "4096"];
        image(&[&asked[..], write, &[&b]].concat());
    }
    // 2,000 writes of 4 KiB, one after the other.
    io("b", &["read -P 7 0 8000k", "read -P 2 16M 1M"]);
}

#[test]
fn fio_verifies() {
    if !has("fio_verifies", "fio") {
        return;
    }
    let house = House::new(&["a"], SIZE);
    let mut fio = Command::new("fio");
    fio.args([
        "--name=v",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--iodepth=16",
    ]);
    fio.args([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--size=32M",
        "--blockalign=512",
    ]);
    fio.arg(format!("--uri={}", house.uri("a")))
        .current_dir(house.folder.path());
    let output = fio.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if String::from_utf8_lossy(&output.stderr).contains("engine nbd not loadable") {
        return crate::house::skip("fio_verifies", "fio has no engine for NBD");
    }
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

const PYTHON: &str = r#"
import nbd, sys
h = nbd.NBD()
h.set_strict_mode(0)
h.add_meta_context("base:allocation")
h.connect_uri(sys.argv[1])
size = h.get_size()
def fails(what):
    try:
        what()
    except nbd.Error as error:
        return error.errno
    return None
assert fails(lambda: h.pread(10, size - 5)) == "EINVAL", "behind the end"
assert fails(lambda: h.pwrite(b"x" * 10, size - 5)) == "ENOSPC", "behind the end"
assert fails(lambda: h.zero(10, size - 5)) == "ENOSPC", "zeroes behind the end"
h.pwrite(b"abc", 4095, nbd.CMD_FLAG_FUA)
assert h.pread(5, 4094) == b"\0abc\0"
assert h.pread(5, 4094, nbd.CMD_FLAG_DF) == b"\0abc\0"
h.zero(1 << 20, 0, nbd.CMD_FLAG_FAST_ZERO)
h.trim(4096, 8192)
h.cache(4096, 0)
seen = []
h.block_status(size, 0, lambda context, offset, entries, error: seen.append((context, entries)) or 0)
assert seen and seen[0][0] == "base:allocation" and sum(seen[0][1][0::2]) <= size, seen
one = []
h.block_status(size, 0, lambda context, offset, entries, error: one.append(len(entries)) or 0, nbd.CMD_FLAG_REQ_ONE)
assert one == [2], one
h.flush()
h.shutdown()
"#;

#[test]
fn libnbd_asks_odd_things() {
    let test = "libnbd_asks_odd_things";
    let has_library = Command::new("/usr/bin/python3")
        .args(["-c", "import nbd"])
        .output();
    if !has_library.is_ok_and(|output| output.status.success()) {
        return crate::house::skip(test, "python3 has no libnbd");
    }
    let house = House::new(&["a"], SIZE);
    run(Command::new("/usr/bin/python3")
        .args(["-c", PYTHON])
        .arg(house.uri("a")));
}
