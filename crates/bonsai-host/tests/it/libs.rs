//! The C library of this machine, on disk and in this process.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bonsai_host::Error;
use bonsai_host::elf::inspect;
use bonsai_host::libs::{find_libc, libc_sites};
use bonsai_sites::{SITE_LEN, verify};
use tempfile::tempdir;

use crate::find_program;

fn loader() -> PathBuf {
    let program = inspect(&find_program("ls").expect("ls")).expect("readable");
    let loader = program.elf.and_then(|elf| elf.interpreter);
    loader.expect("a dynamically linked ls").path
}

/// The lowest address at which this process has mapped `file`.
fn load_base(file: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/maps").expect("readable");
    let name = file.to_str().expect("a plain name");
    let line = maps.lines().find(|line| line.ends_with(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not mapped"));
    let start = line.split('-').next().expect("an address");
    u64::from_str_radix(start, 16).expect("an address")
}

#[test]
fn the_libraries_found_are_those_of_this_process() {
    let found = find_libc(&loader()).expect("a C library");
    // They are mapped here under these very names.
    load_base(&found.libc);
    load_base(&found.loader);
}

#[test]
fn sites_are_at_their_places_in_file_and_memory() {
    let found = find_libc(&loader()).expect("a C library");
    for (path, least) in [(found.libc, 300), (found.loader, 10)] {
        let sites = libc_sites(&path).expect("a library");
        assert!(
            sites.sites.len() >= least,
            "{}: {}",
            path.display(),
            sites.sites.len()
        );
        assert!(sites.sites.is_sorted_by_key(|site| site.offset));
        assert_eq!(sites.build_id.len(), 20);
        assert_eq!(sites.text.len(), 1);
        let text = sites.text[0];
        let file = File::open(&path).expect("readable");
        let memory = File::open("/proc/self/mem").expect("readable");
        let base = load_base(&path);
        for site in &sites.sites {
            let within = u64::from(site.offset - text.address);
            assert!(within + 8 <= u64::from(text.len));
            let (mut on_disk, mut in_memory) = ([0; SITE_LEN], [0; SITE_LEN]);
            file.read_exact_at(&mut on_disk, text.file_offset + within)
                .expect("in the file");
            assert!(verify(&on_disk, site), "{site:?}: {on_disk:02x?}");
            memory
                .read_exact_at(&mut in_memory, base + u64::from(site.offset))
                .expect("mapped");
            assert_eq!(on_disk, in_memory, "{site:?}");
        }
        println!("{}: {} sites", path.display(), sites.sites.len());
    }
}

#[test]
fn what_is_no_library_is_refused() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("file");
    assert!(matches!(libc_sites(&path), Err(Error::Read { .. })));
    for contents in [&b""[..], b"text", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0]] {
        fs::write(&path, contents).expect("writable");
        assert!(
            matches!(libc_sites(&path), Err(Error::Damaged { .. })),
            "{contents:?}"
        );
    }
    let libc = find_libc(&loader()).expect("a C library").libc;
    let whole = fs::read(libc).expect("readable");
    fs::write(&path, &whole[..whole.len() / 2]).expect("writable");
    let error = libc_sites(&path).expect_err("cut off");
    assert!(
        error.to_string().contains("cut off within a segment"),
        "{error}"
    );
}

#[test]
fn loaders_elsewhere_have_their_library_beside_them() {
    let directory = tempdir().expect("a directory");
    let directory = directory.path().canonicalize().expect("a directory");
    let path = |name: &str| directory.join(name);
    assert!(matches!(
        find_libc(&path("ld-linux-x86-64.so.2")),
        Err(Error::Read { .. })
    ));
    fs::write(path("ld-linux-x86-64.so.2"), "").expect("writable");
    let elsewhere = find_libc(&path("ld-linux-x86-64.so.2")).expect("the system's");
    assert_eq!(
        elsewhere.libc,
        find_libc(&loader()).expect("the system's").libc
    );
    fs::write(path("libc.so.6"), "").expect("writable");
    let beside = find_libc(&path("ld-linux-x86-64.so.2")).expect("the one beside it");
    assert_eq!(beside.libc, path("libc.so.6"));
    fs::write(path("ld-musl-x86_64.so.1"), "").expect("writable");
    let musl = find_libc(&path("ld-musl-x86_64.so.1")).expect("musl");
    assert_eq!(
        (&musl.libc, &musl.loader),
        (&path("ld-musl-x86_64.so.1"), &musl.libc)
    );
}
