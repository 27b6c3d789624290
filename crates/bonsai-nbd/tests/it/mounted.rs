//! File systems and verifying programs on exports of one group, at the same time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bonsai_nbd::sharing::Shared;

use crate::below::{Loop, Mount};
use crate::house::{House, fused, has, skip};

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect(program);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {words}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An export as a file, by nbdfuse, until the end.
struct Fused {
    folder: PathBuf,
    nbdfuse: Child,
}

impl Fused {
    fn new(test: &str, house: &House, export: &str) -> Option<Self> {
        let folder = house.folder.path().join(format!("{export}.fuse"));
        std::fs::create_dir(&folder).unwrap();
        let pid = house.folder.path().join(format!("{export}.pid"));
        let mut command = Command::new("nbdfuse");
        command
            .arg("--pidfile")
            .args([&pid, &folder.join("disk")])
            .arg(house.uri(export));
        let nbdfuse = fused(test, &mut command, &pid)?;
        Some(Self { folder, nbdfuse })
    }

    fn file(&self) -> PathBuf {
        self.folder.join("disk")
    }
}

impl Drop for Fused {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
        self.nbdfuse.wait().unwrap();
    }
}

/// Bytes of files that hardly repeat, the same each time.
fn files(folder: &Path) {
    for number in 0..24u64 {
        let mut bytes = Vec::new();
        let mut word = number + 1;
        for _ in 0..(number + 1) * 4096 {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let inner = folder.join(format!("folder{}", number % 5));
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join(format!("file{number}")), bytes).unwrap();
    }
}

fn sums(folder: &Path) -> String {
    let script = "cd \"$0\" && find . -type f | sort | xargs md5sum";
    run("sh", &["-c", script, &folder.display().to_string()])
}

/// Out of the page cache of the server.
fn evict(house: &House) {
    for export in &house.exports {
        let image = export.image();
        image.flush().unwrap();
        image.forget(0, image.size()).unwrap();
    }
}

fn sum(house: &House, of: impl Fn(&Shared) -> &AtomicU64) -> u64 {
    let members = house.exports.iter().filter_map(|export| export.member());
    members
        .map(|member| of(&member.counters).load(Ordering::Relaxed))
        .sum()
}

#[test]
fn two_file_systems_with_the_same_files_are_whole() {
    let test = "two_file_systems_with_the_same_files_are_whole";
    if !has(test, "nbdfuse") || !has(test, "mkfs.ext4") {
        return;
    }
    let house = House::new(&["a", "b"], 48 << 20);
    let mut expected = None;
    // Twice: the second time, all is read anew.
    for time in 0..2 {
        for name in ["a", "b"] {
            let Some(fused) = Fused::new(test, &house, name) else {
                return;
            };
            let Some(device) = Loop::new(test, &fused.file(), &[]) else {
                return;
            };
            let disk = device.0.display().to_string();
            if time == 0 {
                run("mkfs.ext4", &["-q", "-b", "4096", &disk]);
            }
            run("e2fsck", &["-f", "-n", &disk]);
            let folder = house.folder.path().join(format!("{name}.mnt"));
            std::fs::create_dir_all(&folder).unwrap();
            run("mount", &[&disk, &folder.display().to_string()]);
            let mount = Mount(folder.clone());
            if time == 0 {
                files(&folder);
            }
            let sums = sums(&folder);
            assert_eq!(
                &sums,
                expected.get_or_insert(sums.clone()),
                "{name}, time {time}"
            );
            drop(mount);
            run("e2fsck", &["-f", "-n", &disk]);
            drop(device);
            drop(fused);
            std::fs::remove_dir(house.folder.path().join(format!("{name}.fuse"))).unwrap();
            std::fs::remove_file(house.folder.path().join(format!("{name}.pid"))).unwrap();
            // Only what one of them has read is there for the other.
            house.exports[usize::from(name == "b")]
                .image()
                .flush()
                .unwrap();
            if time == 0 || name == "b" {
                evict(&house);
            } else {
                house.exports[1].image().forget(0, 48 << 20).unwrap();
            }
        }
    }
    assert_eq!(sum(&house, |of| &of.wrong), 0);
    assert!(
        sum(&house, |of| &of.redirected_bytes) > 1 << 20,
        "nothing was shared"
    );
}

/// `BONSAI_NBD_FIO_GB`: how many gigabytes are written and verified (about 0.2 if nothing is said).
#[test]
fn fio_verifies_two_exports_with_duplicates_at_once() {
    const SIZE: u64 = 48 << 20;
    let test = "fio_verifies_two_exports_with_duplicates_at_once";
    if !has(test, "fio") {
        return;
    }
    let wanted = std::env::var("BONSAI_NBD_FIO_GB").ok();
    let wanted = wanted.map_or(0, |text| {
        text.parse::<u64>().expect("gigabytes") * 1_000_000_000
    });
    let house = House::new(&["a", "b"], SIZE);
    let over = AtomicBool::new(false);
    let (mut moved, mut round) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Out of the page cache, now of one and then of the other.
                for export in &house.exports {
                    let _ = export.image().flush();
                    let _ = export.image().forget(0, SIZE);
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        });
        while round == 0 || moved < wanted {
            round += 1;
            let mut fio = Command::new("fio");
            // Of each 64 KiB, the first block has what verifies all of it; the others are the same in both images, and of
            // every second round, all over them. (Where fio verifies, it makes no duplicates by percentage.)
            let place = if round % 2 == 0 { "%o" } else { "" };
            let pattern = 0x0100_0000 + round;
            fio.arg(format!("--verify_pattern=0x{pattern:08x}{place}"));
            fio.args(["--ioengine=nbd", "--rw=randwrite", "--bs=64k"]);
            fio.args(["--verify=crc32c", "--verify_fatal=1", "--verify_async=1"]);
            fio.args(["--verify_state_save=0", "--iodepth=8"]);
            fio.arg(format!("--size={SIZE}"));
            fio.arg(format!("--randseed={round}"));
            for (job, name) in ["a", "b"].into_iter().enumerate() {
                fio.arg(format!("--name=job{job}"));
                fio.arg(format!("--uri={}", house.uri(name)));
            }
            let output = fio.current_dir(house.folder.path()).output().unwrap();
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            if words.contains("engine nbd not loadable") {
                over.store(true, Ordering::Relaxed);
                return skip(test, "fio has no engine for NBD");
            }
            let fine = output.status.success() && !words.contains("verify:");
            if !fine {
                over.store(true, Ordering::Relaxed);
            }
            let out = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(fine, "round {round}: {out}{words}");
            // Written once and read once, by each of two.
            moved += 4 * SIZE;
        }
        over.store(true, Ordering::Relaxed);
    });
    let redirected = sum(&house, |of| &of.redirected_bytes);
    println!("{round} rounds, {moved} bytes written and verified, {redirected} redirected");
    assert_eq!(sum(&house, |of| &of.wrong), 0);
    // In a short run it may not come to it.
    assert!(redirected > 0 || wanted == 0, "nothing was tried");
}
