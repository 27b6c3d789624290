//! What is kept beside an image.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bonsai_nbd::image::Image;
use bonsai_nbd::sharing::{KeptError, Member, Secret, Sharing};

const BLOCKS: u64 = 300;

struct Place {
    folder: tempfile::TempDir,
    secret: Secret,
}

impl Place {
    /// An image with holes, zeroes, duplicates and others, and less than a block at its end.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let block = |number: u64| match number % 10 {
            0..3 => vec![0; 4096],
            3..6 => vec![u8::try_from(number % 7 + 1).unwrap(); 4096],
            _ => number.to_le_bytes().repeat(512),
        };
        let mut bytes: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
        bytes.extend([9; 100]);
        std::fs::write(folder.path().join("a.raw"), bytes).unwrap();
        Self {
            secret: Secret::random().unwrap(),
            folder,
        }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("a.raw")
    }

    fn kept(&self) -> PathBuf {
        self.folder.path().join("a.raw.drive")
    }

    fn member(&self) -> Member {
        member(&self.image(), &self.secret, "g")
    }

    /// Goes over the image and keeps that.
    fn keep(&self) -> (u64, u64) {
        let image = Image::open(&self.image(), true).unwrap();
        let times = image.times().unwrap();
        let member = self.member();
        member.scan(|| false).unwrap().unwrap();
        member.keep(&times).unwrap();
        known(&member)
    }
}

fn member(image: &Path, secret: &Secret, group: &str) -> Member {
    let image = Arc::new(Image::open(image, true).unwrap());
    let sharing = Sharing::new(8 << 20, false, secret.clone()).unwrap();
    sharing.member(&image, group).unwrap()
}

fn known(member: &Member) -> (u64, u64) {
    let extent = member.extent();
    (extent.known_blocks, extent.contents)
}

#[test]
fn a_scan_passes_over_large_holes_and_keeps_room_for_what_there_is() {
    let place = Place::new();
    let file = std::fs::File::create(place.image()).unwrap();
    let size = 1 << 40;
    file.set_len(size).unwrap();
    let places = [3 << 20, (500 << 30) + 4096, size - 4096];
    for at in places {
        file.write_all_at(&[7; 4096], at).unwrap();
    }
    let member = place.member();
    let scanned = member.scan(|| false).unwrap().unwrap();
    assert_eq!(scanned.read, 3 << 20);
    assert_eq!(scanned.holes, size - scanned.read);
    // Zeroes beside them as well.
    assert_eq!(known(&member), (3 << 8, 1));
    assert!(member.scan(|| true).unwrap().is_none());
}

#[test]
fn what_was_found_is_known_again_and_only_its_owner_can_read_it() {
    let place = Place::new();
    let found = place.keep();
    assert_eq!(found.0, BLOCKS);
    let member = place.member();
    assert_eq!(member.recall().unwrap(), BLOCKS);
    assert_eq!(known(&member), found);
    let mode = place.kept().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(place.folder.path().read_dir().unwrap().count(), 2);
}

#[test]
fn an_image_that_was_changed_is_not_what_was_kept() {
    let place = Place::new();
    place.keep();
    let bytes = std::fs::read(place.image()).unwrap();
    std::fs::write(place.image(), bytes).unwrap();
    let member = place.member();
    assert!(matches!(member.recall(), Err(KeptError::Stale)));
    assert_eq!(known(&member), (0, 0));
    let old = Image::open(&place.image(), true).unwrap().times().unwrap();
    std::fs::File::options()
        .append(true)
        .open(place.image())
        .unwrap()
        .set_len(4096)
        .unwrap();
    assert!(matches!(member.keep(&old), Err(KeptError::Stale)));
}

#[test]
fn another_groups_or_users_is_of_no_use() {
    let place = Place::new();
    place.keep();
    let other = Secret::random().unwrap();
    for (secret, group) in [(&place.secret, "h"), (&other, "g")] {
        let member = member(&place.image(), secret, group);
        assert!(matches!(member.recall(), Err(KeptError::Damaged { .. })));
        assert_eq!(known(&member), (0, 0));
    }
}

#[test]
fn what_is_damaged_anywhere_is_not_taken() {
    let place = Place::new();
    assert!(matches!(place.member().recall(), Err(KeptError::None)));
    place.keep();
    let good = std::fs::read(place.kept()).unwrap();
    let bad = |bytes: &[u8]| {
        std::fs::write(place.kept(), bytes).unwrap();
        let member = place.member();
        assert!(member.recall().is_err());
        assert_eq!(known(&member), (0, 0));
    };
    for at in (0..good.len()).step_by(61) {
        bad(&good[..at]);
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        bad(&flipped);
    }
    bad(&[good.clone(), vec![0]].concat());
    std::fs::write(place.kept(), &good).unwrap();
    assert_eq!(place.member().recall().unwrap(), BLOCKS);
}
