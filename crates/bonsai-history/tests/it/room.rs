//! A disk that is full.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use bonsai_history::{AuditFilter, History, Reader, State, Tick};
use bonsai_units::Resource;

use crate::support::{MIDNIGHT, entry, folder, options, point, sample, seconds, skip};

/// Where a re-run of this test program finds its small tmpfs.
const SMALL: &str = "BONSAI_TEST_SMALL_TMPFS";

/// Fills the file system with a file.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

fn why(state: &State) -> &str {
    let State::Off(why) = state else {
        panic!("it is written");
    };
    assert_eq!(why.lines().count(), 1, "{why}");
    why
}

fn tick(second: u64) -> Tick {
    let points = (0..50).map(|i| {
        let rate = sample(second.wrapping_mul(2_654_435_761 + i) % 1_000_000_007);
        point(&format!("service-{i}"), Resource::Send, rate)
    });
    Tick {
        second,
        points: points.collect(),
    }
}

#[test]
fn a_full_disk_costs_points_and_nothing_else() {
    let name = "room::a_full_disk_costs_points_and_nothing_else";
    if let Some(folder) = std::env::var_os(SMALL) {
        return on_a_small_disk(Path::new(&folder));
    }
    let folder = folder();
    // A mount that only the re-run sees and that goes with it.
    let mount = "mount -t tmpfs -o size=6m none \"$1\" || exit 77; shift; exec \"$@\"";
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    let run = unshare
        .args(["--mount", "sh", "-c", mount, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().expect("this program"))
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

fn on_a_small_disk(disk: &Path) {
    let path = disk.join("history");
    let reserve = disk.join("reserve");
    fs::write(&reserve, vec![1; 2 << 20]).expect("room");
    let rest = disk.join("rest");
    fill(&rest);

    // Full from the start: off, and that is said; nothing is lost of the audit trail.
    let mut history = History::open(&path, options()).expect("a writer that is off");
    history.tick(&tick(MIDNIGHT));
    history.audit(entry(1));
    let status = history.status();
    assert!(
        why(&status.points).contains("No space") || why(&status.points).contains("full"),
        "{status:?}"
    );
    why(&status.records);
    assert_eq!(
        (
            status.counters.dropped_ticks,
            status.counters.dropped_points
        ),
        (1, 50)
    );
    assert_eq!(status.counters.waiting_audit, 1);

    // There is room: it goes on by itself.
    fs::remove_file(&rest).expect("removed");
    let reader = Reader::new(&path);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut written = Vec::new();
    let mut second = MIDNIGHT + 1;
    let mut step = |history: &mut History, written: &mut Vec<u64>| {
        let before = history.status().counters.written_ticks;
        history.tick(&tick(second));
        let done = history.status().counters.written_ticks > before;
        if done {
            written.push(second);
        }
        second += 1;
        done
    };
    assert!(step(&mut history, &mut written), "{:?}", history.status());
    assert_eq!(history.status().counters.waiting_audit, 0);

    // Until it is full again.
    while step(&mut history, &mut written) {
        assert!(written.len() < 100_000, "6 MB are full at some time");
    }
    let status = history.status();
    assert!(why(&status.points).contains("full"), "{status:?}");
    for _ in 0..20 {
        step(&mut history, &mut written);
    }
    history.audit(entry(2));
    // What is there can be read meanwhile.
    check(&reader, &written);

    // There is room again.
    fs::remove_file(&reserve).expect("removed");
    std::thread::sleep(std::time::Duration::from_millis(2500));
    for _ in 0..100 {
        step(&mut history, &mut written);
    }
    let status = history.status();
    assert_eq!(
        (&status.points, &status.records),
        (&State::Writing, &State::Writing)
    );
    assert!(status.counters.dropped_ticks >= 2);
    check(&reader, &written);
    let entries = reader.audit(&AuditFilter::default()).expect("entries");
    let revisions: Vec<u64> = entries.iter().map(|row| row.entry.revision).collect();
    assert_eq!(revisions, [2, 1], "each once");
    assert_eq!(status.notes, [""; 0], "nothing was damaged");
}

fn check(reader: &Reader, written: &[u64]) {
    let (first, last) = (written[0], written[written.len() - 1]);
    // 20,000 s at most at a time.
    for from in (first..=last).step_by(10_000) {
        let to = (from + 10_000).min(last + 1);
        let series = seconds(reader, "service-7", from, to);
        let found: Vec<u64> = series.slots.iter().map(|slot| slot.at).collect();
        let expected: Vec<u64> = written
            .iter()
            .copied()
            .filter(|s| (from..to).contains(s))
            .collect();
        assert_eq!(found, expected, "what was written and nothing else");
    }
}
