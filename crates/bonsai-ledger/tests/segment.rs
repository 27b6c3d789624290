//! Making, opening and refusing segments.
#![cfg(all(feature = "std", not(any(loom, miri))))]

mod common;

use bonsai_ledger::{FIXED_LEN, Ledger, LedgerError, MAGIC, TOTAL_LEN, VERSION};
use common::{Scratch, skip};
use rustix::io::Errno;
use rustix::process::Uid;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The user that the tests turn into, "nobody" on Debian.
const NOBODY: u32 = 65534;

/// Every error is one sentence, and begins with the file that it is about.
fn said(error: &LedgerError, path: &Path) -> String {
    let text = error.to_string();
    let start = format!("{}: ", path.display());
    assert!(
        text.starts_with(&start) && text.lines().count() == 1,
        "{text}"
    );
    text
}

fn refused(path: &Path) -> LedgerError {
    let error = Ledger::open(path).expect_err("nothing that may be opened");
    said(&error, path);
    error
}

#[test]
fn a_new_segment_opens_and_keeps_its_name() {
    let scratch = Scratch::new();
    let other = scratch.open();
    for ledger in [&scratch.ledger, &other] {
        assert_eq!(ledger.name(), "vod");
        assert_eq!(ledger.path(), scratch.path);
        assert_eq!(ledger.epoch(), 2);
        assert_eq!(ledger.limits(0), []);
        assert!(ledger.process_table().is_empty());
        assert!(ledger.totals().iter().all(|t| (t.calls, t.bytes) == (0, 0)));
    }
    scratch.set_bytes("write", 1000, 10, 0);
    assert_eq!(other.epoch(), 3);
    assert_eq!(other.limits(0), scratch.ledger.limits(0));
    assert_eq!(other.limits(0).len(), 1);
}

#[test]
fn a_segment_is_private_and_small() {
    let scratch = Scratch::new();
    let meta = scratch.path.metadata().unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o600);
    assert_eq!(meta.len(), TOTAL_LEN as u64);
    // Pages of threads take no room before there are threads.
    let taken = meta.blocks() * 512;
    assert!(
        taken >= FIXED_LEN as u64 && taken <= 256 * 1024,
        "{taken} bytes"
    );
}

#[test]
fn a_name_of_64_bytes_is_kept() {
    let folder = TempDir::new().unwrap();
    let name = "ä".repeat(32);
    let path = folder.path().join("long");
    drop(Ledger::create(&path, &name).unwrap());
    assert_eq!(Ledger::open(&path).unwrap().name(), name);
}

#[test]
fn an_existing_file_is_left_alone() {
    let scratch = Scratch::new();
    scratch.set_bytes("write", 1000, 10, 0);
    let error = Ledger::create(&scratch.path, "other").unwrap_err();
    said(&error, &scratch.path);
    let exists = matches!(
        error,
        LedgerError::File {
            source: Errno::EXIST,
            ..
        }
    );
    assert!(exists, "{error:?}");
    assert_eq!(scratch.open().name(), "vod");
    assert_eq!(scratch.open().limits(0).len(), 1);
}

#[test]
fn links_folders_and_nothing_are_refused() {
    let scratch = Scratch::new();
    let folder = scratch.path.parent().unwrap();
    let link = folder.join("link");
    symlink(&scratch.path, &link).unwrap();
    for (path, errno) in [
        (link.as_path(), Errno::LOOP),
        (folder, Errno::ISDIR),
        (&folder.join("none"), Errno::NOENT),
        (&scratch.path.join("below"), Errno::NOTDIR),
    ] {
        let error = refused(path);
        assert!(
            matches!(error, LedgerError::File { source, .. } if source == errno),
            "{error:?}"
        );
    }
    let dangling = folder.join("dangling");
    symlink(folder.join("target"), &dangling).unwrap();
    let error = Ledger::create(&dangling, "vod").unwrap_err();
    assert!(
        matches!(
            error,
            LedgerError::File {
                source: Errno::EXIST,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!folder.join("target").exists());
}

#[test]
fn foreign_and_short_files_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("file");
    for len in [0, 1, 4095] {
        std::fs::write(&path, vec![b'x'; len]).unwrap();
        let error = refused(&path);
        assert!(
            matches!(
                error,
                LedgerError::Damaged {
                    what: "too short",
                    ..
                }
            ),
            "{error:?}"
        );
    }
    for content in [b'x', 0] {
        // Zeros are also what a creator leaves that is killed on the way.
        std::fs::write(&path, vec![content; TOTAL_LEN]).unwrap();
        assert!(matches!(refused(&path), LedgerError::Foreign { .. }));
    }
}

#[test]
fn another_version_is_named() {
    let scratch = Scratch::new();
    let file = std::fs::File::options()
        .write(true)
        .open(&scratch.path)
        .unwrap();
    let another = VERSION + 1;
    file.write_all_at(&another.to_le_bytes(), 8).unwrap();
    let error = refused(&scratch.path);
    assert!(
        matches!(error, LedgerError::Version { found, .. } if found == another),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&format!("version {another}"))
            && text.contains(&format!("version {VERSION}")),
        "{text}"
    );
}

#[test]
fn another_length_is_damage() {
    let scratch = Scratch::new();
    let file = std::fs::File::options()
        .write(true)
        .open(&scratch.path)
        .unwrap();
    let total = TOTAL_LEN as u64;
    for len in [4096, FIXED_LEN as u64, total - 1, total + 1, 2 * total] {
        file.set_len(len).unwrap();
        let error = refused(&scratch.path);
        assert!(
            matches!(
                error,
                LedgerError::Damaged {
                    what: "wrong length",
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

#[test]
fn every_flipped_bit_of_the_fixed_fields_is_found() {
    let scratch = Scratch::new();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&scratch.path)
        .unwrap();
    // The magic, the fields up to the checksum, and the name.
    for at in (0..56_u64).chain(64..128) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        for bit in 0..8 {
            file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
            let error = refused(&scratch.path);
            let right = match at {
                0..8 => matches!(error, LedgerError::Foreign { .. }),
                8..12 => matches!(error, LedgerError::Version { .. }),
                _ => matches!(error, LedgerError::Damaged { .. }),
            };
            assert!(right, "byte {at}, bit {bit}: {error:?}");
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert_eq!(scratch.open().name(), "vod");
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, 0).unwrap();
    assert_eq!(u64::from_le_bytes(magic), MAGIC);
}

/// Runs `body` in a thread that has become user [`NOBODY`]; `None` if that is
/// not possible here.
fn as_nobody<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        // The kernel keeps users per thread: nobody else is concerned.
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_uid(Uid::from_raw(NOBODY)).ok()?;
            Some(body())
        });
        thread.join().unwrap()
    })
}

fn everyone_may(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_segment_of_another_user_is_refused() {
    let scratch = Scratch::new();
    let root = rustix::process::geteuid().is_root();
    if !root || as_nobody(|| ()).is_none() {
        let name = "a_segment_of_another_user_is_refused";
        return skip(name, "it takes the right to become another user (root)");
    }
    everyone_may(scratch.path.parent().unwrap(), 0o777);
    // Not even one that the file's mode would let in.
    everyone_may(&scratch.path, 0o666);
    let error = as_nobody(|| refused(&scratch.path)).unwrap();
    let right = matches!(
        error,
        LedgerError::NotYours {
            owner: 0,
            uid: NOBODY,
            ..
        }
    );
    assert!(right, "{error:?}");

    // The administrator may look into everyone's.
    let theirs = scratch.path.with_file_name("theirs");
    as_nobody(|| drop(Ledger::create(&theirs, "theirs").unwrap())).unwrap();
    assert_eq!(theirs.metadata().unwrap().uid(), NOBODY);
    assert_eq!(Ledger::open(&theirs).unwrap().name(), "theirs");
}

#[test]
fn without_permission_nothing_is_opened_or_made() {
    let scratch = Scratch::new();
    let folder = scratch.path.parent().unwrap();
    let denied = |error: &LedgerError| {
        matches!(
            error,
            LedgerError::File {
                source: Errno::ACCESS,
                ..
            }
        )
    };
    let attempt = || {
        let opened = refused(&scratch.path);
        assert!(denied(&opened), "{opened:?}");
        let made = Ledger::create(&folder.join("new"), "new").unwrap_err();
        said(&made, &folder.join("new"));
        assert!(denied(&made), "{made:?}");
    };
    if rustix::process::geteuid().is_root() {
        everyone_may(folder, 0o755);
        if as_nobody(attempt).is_none() {
            let name = "without_permission_nothing_is_opened_or_made";
            return skip(name, "root is without the right to become another user");
        }
    } else {
        everyone_may(&scratch.path, 0);
        everyone_may(folder, 0o555);
        attempt();
        everyone_may(folder, 0o700);
    }
    assert!(!folder.join("new").exists());
}

/// Where a re-run of this test program finds its small tmpfs.
const SMALL: &str = "BONSAI_TEST_SMALL_TMPFS";

#[test]
fn no_room_is_said_and_leaves_nothing() {
    let name = "no_room_is_said_and_leaves_nothing";
    if let Some(folder) = std::env::var_os(SMALL) {
        let path = Path::new(&folder).join("vod");
        let error = Ledger::create(&path, "vod").unwrap_err();
        assert!(matches!(error, LedgerError::NoSpace { .. }), "{error:?}");
        let text = said(&error, &path);
        assert!(text.contains("BONSAI_RUNTIME_DIR"), "{text}");
        assert!(!path.exists());
        return;
    }
    let folder = TempDir::new().unwrap();
    // A mount that only the re-run sees and that goes with it.
    let mount = "mount -t tmpfs -o size=128k none \"$1\" || exit 77; shift; exec \"$@\"";
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    let run = unshare
        .args(["--mount", "sh", "-c", mount, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(SMALL, folder.path())
        .output();
    let Ok(run) = run else {
        return skip(name, "unshare(1) is not installed");
    };
    let text =
        String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    if !text.contains("running 1 test") {
        return skip(
            name,
            &format!("no tmpfs of its own can be mounted: {}", text.trim()),
        );
    }
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn sites_are_stored_until_there_is_no_room() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    assert!(
        !ledger.store_sites(b"none", [].into_iter()),
        "no sites, no library"
    );
    let id: Vec<u8> = (1..=20).collect();
    assert!(ledger.store_sites(&id, [11, 12, 13].into_iter()));
    assert!(
        ledger.store_sites(&[9; 40], [21].into_iter()),
        "a longer build-id is cut"
    );
    let words = |lib: usize| {
        let load =
            |w: &bonsai_ledger::sync::AtomicU64| w.load(bonsai_ledger::sync::Ordering::Relaxed);
        let bytes: Vec<u8> = ledger.sites.libs[lib]
            .build_id
            .iter()
            .flat_map(|w| load(w).to_le_bytes())
            .collect();
        let first = ledger.sites.libs[lib]
            .first
            .load(bonsai_ledger::sync::Ordering::Relaxed) as usize;
        let count = ledger.sites.libs[lib]
            .count
            .load(bonsai_ledger::sync::Ordering::Relaxed) as usize;
        let sites: Vec<u64> = ledger.sites.sites[first..first + count]
            .iter()
            .map(load)
            .collect();
        (bytes, sites)
    };
    let mut padded = id;
    padded.resize(24, 0);
    assert_eq!(words(0), (padded, vec![11, 12, 13]));
    assert_eq!(words(1), (vec![9; 24], vec![21]));

    let rest = bonsai_ledger::SITES - 4;
    assert!(
        !ledger.store_sites(b"big", vec![1; rest + 1].into_iter()),
        "one more than there is room for"
    );
    assert!(ledger.store_sites(b"big", vec![1; rest].into_iter()));
    assert!(!ledger.store_sites(b"one", [1].into_iter()));
    assert_eq!(words(2).1.len(), rest);
}

#[test]
fn libraries_are_stored_until_there_is_no_room() {
    let scratch = Scratch::new();
    let stored = (1..=20_u8)
        .filter(|i| scratch.ledger.store_sites(&[*i], [7].into_iter()))
        .count();
    assert_eq!(stored, bonsai_ledger::SITE_LIBS);
}

#[test]
fn sites_are_stored_once_and_not_beside_somebody_who_stores() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    assert!(ledger.store_sites(b"a", [1, 2].into_iter()));
    assert!(!ledger.store_sites(b"a", [1, 2].into_iter()), "known");
    // Somebody has begun, and was killed.
    let begun = &ledger.sites.libs[1].count;
    begun.store(u32::MAX, bonsai_ledger::sync::Ordering::Relaxed);
    assert!(!ledger.store_sites(b"b", [3].into_iter()));
    begun.store(0, bonsai_ledger::sync::Ordering::Relaxed);
    assert!(ledger.store_sites(b"b", [3].into_iter()));
}

#[test]
fn many_store_at_once_and_none_writes_over_another() {
    let scratch = Scratch::new();
    let ledger = &scratch.ledger;
    std::thread::scope(|scope| {
        for id in 1..=6_u8 {
            scope.spawn(move || {
                let sites = vec![u64::from(id); 100 + usize::from(id)];
                while !ledger.store_sites(&[id], sites.iter().copied()) {
                    std::thread::yield_now();
                }
            });
        }
    });
    let load = |w: &bonsai_ledger::sync::AtomicU32| {
        w.load(bonsai_ledger::sync::Ordering::Relaxed) as usize
    };
    for lib in ledger.sites.libs.iter().take(6) {
        let id = lib.build_id[0].load(bonsai_ledger::sync::Ordering::Relaxed);
        let (first, count) = (load(&lib.first), load(&lib.count));
        assert_eq!(count as u64, 100 + id);
        for word in &ledger.sites.sites[first..first + count] {
            assert_eq!(word.load(bonsai_ledger::sync::Ordering::Relaxed), id);
        }
    }
}
