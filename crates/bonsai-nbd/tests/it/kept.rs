//! What is kept beside an image.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bonsai_nbd::image::Image;
use bonsai_nbd::sharing::{Guarding, KeptError, Member, Secret, Sharing};

const BLOCKS: u64 = 300;

struct Place {
    folder: tempfile::TempDir,
    secret: Secret,
}

impl Place {
    /// An image with holes, zeroes, duplicates and others, and less than a block at its end.
    fn new() -> Self {
        // Nothing is kept on tmpfs, which /tmp may be.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
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

    /// Scans the image and keeps the fingerprints.
    fn keep(&self) -> (u64, u64) {
        let member = self.member();
        member.scan(|| false).unwrap().unwrap();
        member.keep().unwrap();
        known(&member)
    }
}

fn member(image: &Path, secret: &Secret, group: &str) -> Member {
    let image = Arc::new(Image::open(image, true).unwrap());
    let sharing = Sharing::new(8 << 20, false, secret.clone()).unwrap();
    sharing.member(&image, group, Guarding::Lease).unwrap()
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
    drop(file);
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
    assert!(matches!(member.recall(), Err(KeptError::Stale(_))));
    assert_eq!(known(&member), (0, 0));
}

#[test]
fn nothing_is_kept_while_another_program_has_the_image_open() {
    let place = Place::new();
    let member = place.member();
    member.scan(|| false).unwrap().unwrap();
    let writer = std::fs::File::options()
        .write(true)
        .open(place.image())
        .unwrap();
    assert!(matches!(member.keep(), Err(KeptError::Unguarded)));
    assert!(!place.kept().exists());
    drop(writer);
    // And nothing that was kept is taken.
    place.keep();
    let writer = std::fs::File::options()
        .write(true)
        .open(place.image())
        .unwrap();
    let member = place.member();
    assert!(matches!(member.recall(), Err(KeptError::Unguarded)));
    drop(writer);
}

#[test]
fn what_another_program_writes_before_the_file_is_loaded_is_not_overlooked() {
    let place = Place::new();
    place.keep();
    let member = place.member();
    std::fs::File::options()
        .write(true)
        .open(place.image())
        .unwrap()
        .write_all_at(&[8; 4096], 0)
        .unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while member.unguarded().is_some() {
        assert!(std::time::Instant::now() < end, "no lease");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(matches!(member.recall(), Err(KeptError::Unguarded)));
    assert_eq!(known(&member), (0, 0));
}

/// Each way in which a server changes an image, by one that shares and by one that does not.
#[test]
fn the_first_change_makes_what_was_kept_void_before_it() {
    type Change = fn(&Image);
    let changes: [Change; 4] = [
        |image| image.write(&[8; 512], 0, false).unwrap(),
        |image| image.write(&[8; 512], 0, true).unwrap(),
        |image| image.zero(0, 8192, false, false).unwrap(),
        |image| image.trim(0, 8192).unwrap(),
    ];
    for change in changes {
        let place = Place::new();
        place.keep();
        let times = std::fs::metadata(place.image())
            .unwrap()
            .modified()
            .unwrap();
        let image = Image::open(&place.image(), false).unwrap();
        change(&image);
        drop(image);
        // As after a power cut: the bytes are new, the times are not. Only the inode's own time cannot be set here.
        let file = std::fs::File::options()
            .write(true)
            .open(place.image())
            .unwrap();
        file.set_modified(times).unwrap();
        drop(file);
        let error = place.member().recall().unwrap_err();
        let KeptError::Stale(why) = error else {
            panic!("{error}");
        };
        assert_eq!(why, "the image was written to since");
    }
}

#[test]
fn blocks_that_are_written_before_the_file_is_loaded_are_not_taken_from_it() {
    let place = Place::new();
    place.keep();
    let house = crate::house::House::around(place.folder.path(), "a.raw", &place.secret);
    let member = house.exports[0].member().unwrap();
    let mut client = crate::client::Client::new(&house.socket(), "a.raw");
    // Block 4 was as blocks 3 and 5 were.
    assert_eq!(client.write(4 * 4096, &[77; 4096], false), 0);
    assert!(member.recall().unwrap() > 0);
    let image = house.exports[0].image();
    image.flush().unwrap();
    image.forget(0, image.size()).unwrap();
    for (block, byte) in [(4, 77), (11, 5), (4, 77)] {
        let right = match block {
            4 => vec![byte; 4096],
            _ => vec![0; 4096],
        };
        assert_eq!(client.read(block * 4096, 4096), Ok(right));
    }
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
