//! A sample of each format, made by the tool that writes it where that is installed and by hand otherwise.

use std::process::{Command, Stdio};

use super::*;

fn detected(bytes: &[u8]) -> Option<&'static str> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("written");
    detect(&file, bytes.len() as u64).expect("read")
}

/// A disk of so many bytes with some at an offset.
fn disk(size: usize, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; size];
    disk[at..at + bytes.len()].copy_from_slice(bytes);
    disk
}

#[test]
fn each_format_is_named_by_its_signature_where_it_stands() {
    const SIZE: usize = 1 << 20;
    for (at, magic, name) in SIGNATURES {
        // Sizes that are multiples of a sector, and one that is not; and the signature alone.
        for size in [SIZE, SIZE + 77, 1024] {
            let places = match *at {
                At::Start(at) => vec![at],
                At::End(back) => vec![size as u64 - back],
                At::Last(back) => vec![size as u64 - back, size as u64 - 512, size as u64 - 600],
            };
            for place in places {
                let place = usize::try_from(place).expect("small");
                let bytes = disk(size, place, magic);
                assert_eq!(
                    detected(&bytes),
                    Some(*name),
                    "{magic:?} at {place} of {size}"
                );
                // A byte further it is content.
                let beyond = disk(size + 4096, place + 2048, magic);
                assert_eq!(detected(&beyond), None, "{magic:?} at {}", place + 2048);
            }
        }
    }
    for text in [
        "# Disk DescriptorFile\nversion=1\nencoding=\"UTF-8\"\n",
        "# disk descriptorfile\r\nversion=1\r\n",
        "\n# a comment\n\nversion=1\nCID=fffffffe\n",
        "\u{feff}# Disk DescriptorFile\n",
    ] {
        let found = detected(&disk(1 << 16, 0, text.as_bytes()));
        assert_eq!(found, Some("a vmdk descriptor"), "{text:?}");
    }
    let qcow = |version: u8| detected(&disk(4096, 0, &[b'Q', b'F', b'I', 0xfb, 0, 0, 0, version]));
    assert_eq!(
        [qcow(1), qcow(2), qcow(3)],
        [Some("qcow"), Some("qcow2"), Some("qcow2")]
    );
}

#[test]
fn what_is_on_raw_disks_is_no_format() {
    let boot = disk(1 << 20, 510, &[0x55, 0xaa]);
    let gpt = disk(1 << 20, 512, b"EFI PART");
    let iso = disk(1 << 20, 32769, b"CD001");
    let luks = disk(1 << 20, 0, b"LUKS\xba\xbe\0\x02");
    let ext4 = disk(1 << 20, 1080, &[0x53, 0xef]);
    let xfs = disk(1 << 20, 0, b"XFSB");
    let lvm = disk(1 << 20, 512, b"LABELONE");
    let squashfs = disk(1 << 20, 0, b"hsqs");
    let small = vec![1; 13];
    let script = disk(4096, 0, b"#!/bin/sh\nexit\n");
    assert_eq!(detected(&script), None);
    for bytes in [
        boot,
        gpt,
        iso,
        luks,
        ext4,
        xfs,
        lvm,
        squashfs,
        small,
        vec![0],
    ] {
        assert_eq!(
            detected(&bytes),
            None,
            "{:?}",
            &bytes[..bytes.len().min(16)]
        );
    }
}

#[test]
fn images_of_qemu_img_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for (format, options, name) in [
        ("qcow", "", "qcow"),
        ("qcow2", "compat=0.10", "qcow2"),
        ("qcow2", "", "qcow2"),
        ("qed", "", "qed"),
        ("vmdk", "", "vmdk"),
        ("vmdk", "subformat=streamOptimized", "vmdk"),
        ("vmdk", "subformat=monolithicFlat", "a vmdk descriptor"),
        ("vhdx", "", "vhdx"),
        ("vpc", "subformat=dynamic", "vhd"),
        ("vpc", "subformat=fixed", "vhd"),
        ("vdi", "", "vdi"),
        ("parallels", "", "parallels"),
    ] {
        let path = folder.path().join(format!("{format}-{options}"));
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", format]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let made = command.arg(&path).arg("16M").stdin(Stdio::null()).status();
        if !made.is_ok_and(|made| made.success()) {
            return skip("qemu-img is not installed");
        }
        let file = File::open(&path).expect("an image");
        let size = file.metadata().expect("metadata").len();
        assert_eq!(
            detect(&file, size).expect("read"),
            Some(name),
            "{format} {options}"
        );
    }
}

#[test]
fn compressed_images_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.raw");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    for (program, name) in [
        ("gzip", "gzip"),
        ("xz", "xz"),
        ("bzip2", "bzip2"),
        ("zstd", "zstd"),
        ("lz4", "lz4"),
    ] {
        let packed = Command::new(program).arg("-c").arg(&path).output();
        let Ok(packed) = packed else {
            // Its signature is in the list above in any case.
            continue;
        };
        assert!(packed.status.success(), "{program}");
        assert_eq!(detected(&packed.stdout), Some(name), "{program}");
    }
}

#[test]
fn an_image_that_was_served_is_raw_from_then_on_and_its_copies_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let known = RawImages::new(folder.path().join("state/raw"));
    let open = |path: &Path| File::options().read(true).write(true).open(path);
    let opening = Opening {
        known: Some(known.clone()),
        ..Opening::default()
    };
    let path = folder.path().join("a.raw");
    std::fs::write(&path, vec![0; 1 << 20]).expect("written");
    let image = open(&path).expect("an image");
    assert_eq!(opening.foreign(&image, 1 << 20).expect("read"), None);
    assert!(!known.contains(&image, 1 << 20).expect("known"));
    known.insert(&image, 1 << 20, &path).expect("recorded");
    known
        .insert(&image, 1 << 20, &path)
        .expect("recorded again");
    // Its guest writes; it is renamed, and opened anew.
    image
        .write_all_at(b"QFI\xfb\0\0\0\x03", 0)
        .expect("written");
    let moved = folder.path().join("b.raw");
    std::fs::rename(&path, &moved).expect("renamed");
    let image = open(&moved).expect("an image");
    assert_eq!(opening.foreign(&image, 1 << 20).expect("read"), None);
    let plain = Opening::default();
    assert_eq!(plain.foreign(&image, 1 << 20).expect("read"), Some("qcow2"));
    let said = Opening {
        raw: true,
        ..Opening::default()
    };
    assert_eq!(said.foreign(&image, 1 << 20).expect("read"), None);
    // Another file, though it has the name and all bytes.
    std::fs::copy(&moved, &path).expect("copied");
    std::fs::rename(&path, &moved).expect("renamed");
    let copy = open(&moved).expect("an image");
    assert_eq!(
        opening.foreign(&copy, 1 << 20).expect("read"),
        Some("qcow2")
    );
    // The first one again, resized; and written over in place by an image that is shorter.
    image.set_len(3 << 20).expect("extended");
    assert_eq!(opening.foreign(&image, 3 << 20).expect("read"), None);
    known.insert(&image, 3 << 20, &moved).expect("recorded");
    let records = std::fs::read_dir(folder.path().join("state/raw"));
    assert_eq!(records.expect("a folder").count(), 1);
    let foreign = opening.foreign(&image, 2 << 20).expect("read");
    assert_eq!(foreign, Some("qcow2"));
    image.set_len(196_616).expect("shortened");
    assert_eq!(
        opening.foreign(&image, 196_616).expect("read"),
        Some("qcow2")
    );
}

fn skip(reason: &str) {
    let line = format!("bonsai-nbd image::format: {reason}");
    println!("SKIP: {line}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let log = OpenOptions::new().append(true).create(true).open(log);
        log.and_then(|mut log| writeln!(log, "{line}"))
            .expect("the log");
    }
}
