//! What the map is, and is not, believed of.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use super::*;

/// A member of 1 GiB, and what its blocks may be learned by.
fn member() -> (tempfile::NamedTempFile, Arc<Sharing>, Member) {
    member_guarded(Guarding::Trust)
}

fn member_guarded(by: Guarding) -> (tempfile::NamedTempFile, Arc<Sharing>, Member) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 30).expect("made long");
    let image = Arc::new(Image::open(file.path(), false).expect("an image"));
    let secret = Secret::random().expect("random bytes");
    let sharing = Sharing::new(64 << 20, false, secret).expect("a thread");
    let member = sharing.member(&image, "g", by).expect("room");
    (file, sharing, member)
}

fn fill(sharing: &Sharing, member: &Member) {
    let blocks = 0..(1 << 30) / BLOCK;
    for block in blocks {
        let key = u32::try_from(block).expect("a small number");
        let mut map = sharing.state.map_mut();
        map.learn(
            member.volume(),
            block,
            Content::Key([key, 0, key]),
            How::Scan,
        );
    }
    assert_eq!(sharing.extent().known_blocks, (1 << 30) / BLOCK);
}

/// What others see of the number of known blocks while something is done.
fn seen_while(sharing: &Sharing, act: impl FnOnce() + Send) -> BTreeSet<u64> {
    let mut seen = BTreeSet::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            act();
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            seen.insert(sharing.extent().known_blocks);
        }
    });
    seen
}

#[test]
fn a_huge_change_lets_others_have_the_map() {
    let (_file, sharing, member) = member();
    fill(&sharing, &member);
    let change = || {
        let changed = member.change((0, 1 << 30), Written::Zeroes, || Ok(()));
        changed.expect("changed");
    };
    let seen = seen_while(&sharing, change);
    // Of 64 slices.
    assert!(seen.len() > 8, "{seen:?}");
    assert_eq!(sharing.extent().known_blocks, (1 << 30) / BLOCK);
    assert_eq!(sharing.extent().contents, 0);
}

#[test]
fn zeroes_are_not_learned_of_an_image_that_others_have_open() {
    // The test has the file open, so that there is no lease.
    let (_file, sharing, member) = member_guarded(Guarding::Lease);
    assert!(member.unguarded().is_some());
    let changed = member.change((0, 1 << 20), Written::Zeroes, || Ok(()));
    changed.expect("changed");
    assert_eq!(sharing.extent().known_blocks, 0);
}

#[test]
fn what_is_forgotten_goes_at_once_and_its_memory_by_and_by() {
    let (_file, sharing, member) = member();
    fill(&sharing, &member);
    let bytes = sharing.extent().bytes;
    member.forget();
    assert_eq!(sharing.extent().known_blocks, 0);
    let mut seen = BTreeSet::new();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while sharing.extent().contents > 0 || sharing.extent().bytes > bytes / 2 {
        seen.insert(sharing.extent().contents);
        assert!(std::time::Instant::now() < end, "it is taken apart");
    }
    assert!(seen.len() > 8, "{} at once", seen.len());
}

#[test]
fn a_map_that_was_left_half_changed_is_believed_no_more() {
    let (_file, sharing, member) = member();
    assert!(member.is_believed() && member.unguarded().is_none());
    thread::scope(|scope| {
        let broken = scope.spawn(|| {
            let _half = sharing.state.map_mut();
            panic!("in the middle of a change, as this test wants it");
        });
        assert!(broken.join().is_err());
    });
    assert!(!member.is_believed());
    let problem = member.unguarded().expect("it is said");
    assert!(problem.starts_with("the server has a fault"), "{problem}");
    assert!(matches!(member.keep(), Err(KeptError::Stale(_))));
    let mut bytes = [1; 4096];
    member.read(&mut bytes, 0).expect("read where it is");
    assert_eq!(bytes, [0; 4096]);
}

/// Whoever reads has the map while somebody else has it for reading, a survey or what keeps it in a file.
#[test]
fn readers_do_not_wait_for_each_other() {
    let (_file, sharing, member) = member();
    let held = sharing.state.map();
    thread::scope(|scope| {
        let asked = scope.spawn(|| sharing.state.map().peek(member.volume(), 5));
        asked.join().expect("it had the map");
    });
    drop(held);
}
