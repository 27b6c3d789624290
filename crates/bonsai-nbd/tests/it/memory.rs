//! What the page cache has of images, after reads.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonsai_nbd::image::Image;

use crate::client::Client;
use crate::house::{House, skip};

const PAGE: u64 = 4096;
const SIZE: u64 = 8 << 20;

/// Two images with the same content, no block of which is another's duplicate; the page cache has
/// nothing of them. `None`, and the reason in the log, where it cannot be emptied.
fn house(test: &str) -> Option<House> {
    let folder = tempfile::tempdir().unwrap();
    // Before they are served: what is known of an image is forgotten where somebody writes to it.
    for name in ["a", "b"] {
        let file = File::create(folder.path().join(name)).unwrap();
        for block in 0..SIZE / PAGE {
            file.write_all_at(&bytes(block), block * PAGE).unwrap();
        }
        file.sync_all().unwrap();
    }
    let house = House::over(folder, &["a", "b"], SIZE, |_| {});
    for export in &house.exports {
        let image = export.image();
        image.forget(0, SIZE).unwrap();
        if pages(image, 0, SIZE) != Some(0) {
            skip(test, "the page cache keeps what it has, or does not say");
            return None;
        }
    }
    Some(house)
}

fn bytes(block: u64) -> Vec<u8> {
    let words = (0..PAGE / 8).flat_map(|at| (block << 32 | at).to_le_bytes());
    words.collect()
}

fn pages(image: &Image, offset: u64, length: u64) -> Option<u64> {
    image.resident_pages(offset, length)
}

fn until(what: &str, mut came: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !came() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_ahead_of_a_stream_is_fetched_and_nothing_else() {
    let Some(house) = house("what_is_ahead_of_a_stream_is_fetched_and_nothing_else") else {
        return;
    };
    let image = house.exports[0].image();
    let mut client = Client::new(&house.socket(), "a");
    // Jumps: what was asked for, and not a page more.
    for block in [2047, 1500, 1900, 1700] {
        assert_eq!(client.read(block * PAGE, 4096), Ok(bytes(block)));
    }
    assert_eq!(pages(image, 0, SIZE), Some(4));
    // A stream: as much as it has got, up to half a mebibyte.
    for block in 0..256 {
        assert_eq!(client.read(block * PAGE, 4096), Ok(bytes(block)));
    }
    until("nothing is fetched ahead", || {
        pages(image, 256 * PAGE, 128 * PAGE) >= Some(64)
    });
    assert_eq!(pages(image, 400 * PAGE, 1000 * PAGE), Some(0));
}

#[test]
fn memory_has_once_what_two_images_have() {
    let Some(house) = house("memory_has_once_what_two_images_have") else {
        return;
    };
    let [a, b] = [0, 1].map(|at| &house.exports[at]);
    let known = |blocks| {
        until("nothing is learned", || {
            a.member().unwrap().extent().known_blocks == blocks
        });
    };
    let [mut one, mut other] = ["a", "b"].map(|name| Client::new(&house.socket(), name));
    // Every other block, so that none is ahead of a stream.
    let blocks = || (0..512).map(|at| at * 2);
    for block in blocks() {
        assert_eq!(one.read(block * PAGE, 4096), Ok(bytes(block)));
    }
    known(512);
    for block in blocks() {
        assert_eq!(other.read(block * PAGE, 4096), Ok(bytes(block)));
    }
    known(1024);
    // The one that was read last keeps it. Some may be on their way to where the kernel can take them.
    until("it is there twice", || pages(a.image(), 0, SIZE) < Some(64));
    assert_eq!(pages(b.image(), 0, SIZE), Some(512));
    for block in blocks() {
        assert_eq!(one.read(block * PAGE, 4096), Ok(bytes(block)));
    }
    let counters = &a.member().unwrap().counters;
    let redirected = counters.redirected_bytes.load(Ordering::Relaxed);
    assert!(redirected > 400 * PAGE, "{counters:?}");
}
