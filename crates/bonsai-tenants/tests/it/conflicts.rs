//! A control group that another program fights over: it is said, repaired less and less often, and holds up no other.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bonsai_tenants::Bodies;
use bonsai_tenants::bodies::Terms;
use tempfile::tempdir;

use crate::support::{Group, NOTHING, bodies, until};

/// Repairs in a row that make a conflict.
const MOST: u32 = 10;

/// The values of the other program and of Bonsai.
const THEIRS: &str = "77";
const OURS: [&str; 2] = ["300", "3072"];

fn weight() -> Terms {
    Terms {
        cpu: Some("weight=300".parse().expect("terms")),
        ..Terms::default()
    }
}

fn is_ours(file: &Path) -> bool {
    let text = fs::read_to_string(file).expect("readable");
    OURS.contains(&text.trim())
}

/// Looks for so long.
fn look_for(bodies: &mut Bodies, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        bodies.look(&NOTHING);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_group_that_is_fought_over_keeps_no_other_from_its_part() {
    let name = "a_group_that_is_fought_over_keeps_no_other_from_its_part";
    let (Some(fought), Some(other)) = (Group::new(name), Group::new(name)) else {
        return;
    };
    let folder = tempdir().expect("a folder");
    let places = [&fought, &other].map(|group| format!("cgroup:{}", group.path));
    let mut bodies = bodies(folder.path(), &[("a", &places[0]), ("b", &places[1])]);
    for id in ["a", "b"] {
        until(&mut bodies, &NOTHING, id, |body| body.there);
        bodies.put(id, &weight()).expect("set");
    }
    let files =
        [&fought, &other].map(|group| group.file("cpu.weight", "cpu.shares").expect("a file"));
    let (going, repairs) = (AtomicBool::new(true), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // At first it is as Bonsai made it, which is no repair.
            fs::write(&files[0], THEIRS).expect("written");
            while going.load(Ordering::Relaxed) {
                if is_ours(&files[0]) {
                    repairs.fetch_add(1, Ordering::Relaxed);
                    fs::write(&files[0], THEIRS).expect("written");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // Whatever is wrong ends the thread first.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(&mut bodies, &NOTHING, "a", |body| {
                let why = body.cpu_why.as_deref().unwrap_or_default();
                why.contains("another program keeps changing")
            });
            assert!(repairs.load(Ordering::Relaxed) >= MOST - 1);
            let before = repairs.load(Ordering::Relaxed);
            let start = Instant::now();
            // The other one is put right within its period meanwhile, again and again.
            for _ in 0..3 {
                fs::write(&files[1], THEIRS).expect("written");
                let told = until(&mut bodies, &NOTHING, "b", |_| is_ours(&files[1]));
                let why = told.cpu_why.unwrap_or_default();
                assert!(!why.contains("keeps"), "{why}");
                look_for(&mut bodies, Duration::from_millis(500));
            }
            let took = start.elapsed();
            assert!(took < Duration::from_secs(8), "{took:?}");
            look_for(&mut bodies, Duration::from_secs(8).saturating_sub(took));
            // After 1, 2 and 4 s, instead of 8 times.
            let more = repairs.load(Ordering::Relaxed) - before;
            assert!(more <= 4, "{more} repairs in 8 s");
            // Said as long as the conflict goes on.
            until(&mut bodies, &NOTHING, "a", |body| {
                let why = body.cpu_why.as_deref().unwrap_or_default();
                why.contains("not in force now") && why.contains("again in")
            });
        }));
        going.store(false, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    // A new wish is put into force at once.
    let more = Terms {
        cpu: Some("weight=400".parse().expect("terms")),
        ..Terms::default()
    };
    bodies.put("a", &more).expect("set");
    let text = fs::read_to_string(&files[0]).expect("readable");
    assert!(["400", "4096"].contains(&text.trim()), "{text}");
    for id in ["a", "b"] {
        bodies.release(id);
    }
}
