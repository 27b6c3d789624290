use std::fs;
use std::io::Write as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::loader::QUEUE;
use super::super::pool::Pool;
use super::*;

/// The body of a small film's movie box, in a file of a mebibyte.
const MOVIE: &[u8] = include_bytes!("../../../../../fuzz/seeds/movie.bin");

fn film() -> Vec<u8> {
    let size = |body: &[u8]| u32::try_from(body.len() + 8).expect("small").to_be_bytes();
    let brand = b"isom\0\0\x02\0isomavc1";
    let mut file = [
        &size(brand)[..],
        b"ftyp",
        brand,
        &size(MOVIE),
        b"moov",
        MOVIE,
    ]
    .concat();
    file.resize(1 << 20, 0);
    // What is behind the movie is a box, too.
    let at = size(brand)[3] as usize + MOVIE.len() + 8;
    let rest = u32::try_from((1 << 20) - at).expect("small");
    file[at..at + 4].copy_from_slice(&rest.to_be_bytes());
    file[at + 4..at + 8].copy_from_slice(b"mdat");
    file
}

fn root(path: &std::path::Path) -> Root {
    with(path, &Arc::new(Pool::new()))
}

fn with(path: &std::path::Path, pool: &Arc<Pool>) -> Root {
    let loader = Loader::new(Arc::clone(pool)).expect("a descriptor");
    Root::open(path, loader).expect("a folder")
}

/// The answer to a request of that time.
fn find(
    root: &mut Root,
    name: &str,
    lower: &[Lower],
    since: u64,
) -> Poll<Result<Arc<Film>, Refusal>> {
    let path = Path::read(name).expect("a path");
    root.find(&Wanted {
        path: &path,
        lower,
        payload: 1388,
        since,
    })
}

/// Waits until something has been opened or read; true where it was read.
fn wait(root: &mut Root) -> bool {
    let patience = Timespec::try_from(Duration::from_secs(20)).expect("short");
    let bell = PollFd::new(root.loader(), PollFlags::IN);
    assert_eq!(poll(&mut [bell], Some(&patience)), Ok(1), "nothing is read");
    let came = root.loaded();
    came.iter().any(|of| matches!(of, Awaited::File(_)))
}

/// The answer to a request of that time, and after how many times of reading.
fn found_since(
    root: &mut Root,
    name: &str,
    lower: &[Lower],
    since: u64,
) -> (Result<Arc<Film>, Refusal>, u32) {
    let mut read = 0;
    for _ in 0..1000 {
        match find(root, name, lower, since) {
            Poll::Ready(found) => return (found, read),
            Poll::Pending => read += u32::from(wait(root)),
        }
    }
    panic!("{name} is never read");
}

/// The answer to a request that comes now, and after how many times of reading.
fn found(root: &mut Root, name: &str, lower: &[Lower]) -> (Result<Arc<Film>, Refusal>, u32) {
    found_since(root, name, lower, now())
}

/// A request that comes now, up to where its clip is being read.
fn ask(root: &mut Root, name: &str) -> u64 {
    let since = now();
    for _ in 0..1000 {
        assert!(find(root, name, &[], since).is_pending());
        if matches!(root.awaited()[..], [Awaited::File(_)]) {
            return since;
        }
        assert!(!wait(root));
    }
    panic!("{name} is never opened");
}

#[test]
fn a_clip_is_read_once_and_not_by_whoever_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("clip.mp4"), film()).expect("written");
    let mut root = root(folder.path());
    let since = ask(&mut root, "clip.mp4");
    // Who asks meanwhile does not have it read again.
    assert!(find(&mut root, "clip.mp4", &[], since).is_pending());
    assert!(wait(&mut root));
    let (one, turns) = found_since(&mut root, "clip.mp4", &[], since);
    let one = one.expect("a clip");
    assert_eq!(turns, 0);
    // All who see it have one film, with one open file.
    let (other, _) = found(&mut root, "clip.mp4", &[]);
    assert!(Arc::ptr_eq(&one, &other.expect("a clip")));
    let clip = one.found.clip.clone();
    drop(one);
    let (again, turns) = found(&mut root, "clip.mp4", &[]);
    let again = again.expect("a clip");
    assert_eq!((turns, Arc::ptr_eq(&clip, &again.found.clip)), (0, true));
    // Another file under its name is another clip.
    fs::write(folder.path().join("new"), film()).expect("written");
    fs::rename(folder.path().join("new"), folder.path().join("clip.mp4")).expect("replaced");
    let (new, turns) = found(&mut root, "clip.mp4", &[]);
    assert_eq!(turns, 1);
    assert!(!Arc::ptr_eq(&new.expect("a clip").found.clip, &clip));
    assert_eq!(again.changed(0), None, "what is seen is still there");
}

#[test]
fn a_film_that_is_touched_is_seen_on_and_one_that_grows_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("clip.mp4");
    fs::write(&path, film()).expect("written");
    let mut root = root(folder.path());
    let (seen, _) = found(&mut root, "clip.mp4", &[]);
    let seen = seen.expect("a clip");
    let file = fs::File::options().append(true).open(&path);
    let mut file = file.expect("a file");
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    file.set_times(times).expect("touched");
    assert_eq!(seen.changed(0), None);
    // The next request has its tables read again.
    let (again, turns) = found(&mut root, "clip.mp4", &[]);
    again.expect("a clip");
    assert_eq!(turns, 1);
    file.write_all(b"more").expect("written");
    assert_eq!(seen.changed(0), Some("its file has changed"));
}

#[test]
fn what_is_broken_is_known_until_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("clip.mp4");
    fs::write(&path, "no film at all, but some text").expect("written");
    let mut root = root(folder.path());
    for turns in [1, 0, 0] {
        let (found, turn) = found(&mut root, "clip.mp4", &[]);
        let refusal = found.expect_err("no film");
        assert_eq!(
            (refusal.status, turn),
            (StatusCode::UnsupportedMediaType, turns)
        );
        assert!(
            refusal.why.starts_with("clip.mp4: it is no MP4"),
            "{}",
            refusal.why
        );
    }
    // However often, where it is found as it was read.
    for content in [&b"another text"[..], b"text", &film()] {
        fs::write(&path, content).expect("written");
        let (found, turns) = found(&mut root, "clip.mp4", &[]);
        assert_eq!((found.is_ok(), turns), (content.len() > 100, 1));
    }
}

#[test]
fn what_is_kept_is_bounded_by_its_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut root = root(folder.path());
    root.most_bytes = 10 * EACH;
    for number in 0..50 {
        let name = format!("{number}.mp4");
        let content = match number % 2 {
            0 => film(),
            _ => b"no film at all, but some text".to_vec(),
        };
        fs::write(folder.path().join(&name), content).expect("written");
        let (found, turns) = found(&mut root, &name, &[]);
        assert_eq!((found.is_ok(), turns), (number % 2 == 0, 1));
        let sum: usize = root.kept.values().map(|kept| kept.bytes).sum();
        assert_eq!(sum, root.bytes);
        assert!(sum <= root.most_bytes, "{sum}");
        assert!(root.asked.is_empty());
    }
    // What was used last is still known, and what was first is not.
    assert_eq!(found(&mut root, "49.mp4", &[]).1, 0);
    assert_eq!(found(&mut root, "0.mp4", &[]).1, 1);
}

#[test]
fn files_that_are_no_lower_quality_are_told_once_and_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["{}-1.mp4", "{}-2.mp4", "{}-3.mp4", "{}-4.mp4", "{}.mp4"];
    let lower = Lower::list(&names).expect("right");
    fs::write(folder.path().join("clip.mp4"), film()).expect("written");
    fs::write(folder.path().join("clip-1.mp4"), "some text").expect("written");
    fs::write(folder.path().join("clip-2.mp4"), film()).expect("written");
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("clip-4.mp4")).expect("linked");
    let mut root = root(folder.path());
    for _ in 0..3 {
        let (found, _) = found(&mut root, "clip.mp4", &lower);
        assert!(found.expect("a clip").lower.is_empty());
    }
    let told: Vec<String> = root
        .unfit
        .iter()
        .map(|of| format!("{} of {}: {}", of.file, of.clip, of.why))
        .collect();
    assert_eq!(told.len(), 3, "{told:?}");
    let expected = [
        "clip-4.mp4 of clip.mp4: a link leads out",
        "clip-1.mp4 of clip.mp4: it is no MP4",
        "clip-2.mp4 of clip.mp4: its pictures take ",
    ];
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}");
    }
}

#[test]
fn so_many_files_wait_to_be_read_and_whoever_asks_for_more_is_not_refused() {
    const CLIPS: usize = QUEUE + 36;
    let folder = tempfile::tempdir().expect("a folder");
    let pool = Arc::new(Pool::stopped());
    let mut root = with(folder.path(), &pool);
    let names: Vec<String> = (0..CLIPS).map(|number| format!("{number}.mp4")).collect();
    for (number, name) in names.iter().enumerate() {
        fs::write(folder.path().join(name), film()).expect("written");
        assert!(find(&mut root, name, &[], 0).is_pending(), "{name}");
        assert_eq!(root.openings.len(), QUEUE.min(number + 1));
        let awaited = root.awaited();
        assert_eq!(root.is_full(&awaited), number >= QUEUE);
        let is_room = matches!(awaited[..], [Awaited::Room(_)]);
        assert_eq!(is_room, number >= QUEUE);
    }
    pool.start();
    for name in &names {
        let (found, _) = found(&mut root, name, &[]);
        assert!(found.is_ok(), "{name}");
    }
    assert!(root.asked.is_empty());
}

#[test]
fn where_nothing_is_read_any_more_that_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("clip.mp4"), film()).expect("written");
    let mut root = with(folder.path(), &Arc::new(Pool::refused()));
    let Poll::Ready(Err(refusal)) = find(&mut root, "clip.mp4", &[], 0) else {
        panic!("it is waited for");
    };
    assert_eq!(refusal.status, StatusCode::InternalServerError);
}

/// What is found while somebody writes a file, and after how many times of reading.
fn found_while_written(root: &mut Root, written: &std::path::Path) -> Result<Arc<Film>, Refusal> {
    let lower = Lower::list(&["{}-1.mp4"]).expect("right");
    let since = now();
    for _ in 0..8 {
        let file = fs::File::options().append(true).open(written);
        file.expect("there").write_all(b"more").expect("written");
        match find(root, "clip.mp4", &lower, since) {
            Poll::Ready(found) => return found,
            Poll::Pending => wait(root),
        };
    }
    panic!("it is read again and again");
}

#[test]
fn a_file_that_is_being_written_holds_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let [clip, lower] = ["clip.mp4", "clip-1.mp4"].map(|name| folder.path().join(name));
    fs::write(&clip, film()).expect("written");
    fs::write(&lower, film()).expect("written");
    let mut one = root(folder.path());
    let film = found_while_written(&mut one, &lower).expect("a clip");
    assert!(film.lower.is_empty());
    let told: Vec<&str> = one.unfit.iter().map(|of| of.why.as_str()).collect();
    assert_eq!(told, ["it is being written"]);
    // The clip itself is refused.
    let mut other = root(folder.path());
    let refusal = found_while_written(&mut other, &clip).expect_err("no clip so far");
    assert_eq!(
        (refusal.status, refusal.why.as_str()),
        (
            StatusCode::ServiceUnavailable,
            "clip.mp4: it is being written"
        )
    );
}

#[test]
fn a_clip_whose_tables_are_larger_than_what_is_kept_is_found_in_all_its_qualities() {
    let folder = tempfile::tempdir().expect("a folder");
    let lower = Lower::list(&["{}-1.mp4", "{}-2.mp4"]).expect("right");
    for name in ["clip.mp4", "clip-1.mp4", "clip-2.mp4", "other.mp4"] {
        fs::write(folder.path().join(name), film()).expect("written");
    }
    let mut root = root(folder.path());
    root.most_bytes = EACH;
    for _ in 0..2 {
        let (clip, turns) = found(&mut root, "clip.mp4", &lower);
        clip.expect("a clip");
        assert_eq!((turns, root.kept.len()), (1, 3));
        // Two at a time take turns.
        let since = ask(&mut root, "other.mp4");
        assert!(wait(&mut root));
        let (other, turns) = found_since(&mut root, "other.mp4", &[], since);
        other.expect("another");
        assert_eq!((turns, root.kept.len()), (0, 1));
    }
}

#[test]
fn a_name_is_opened_anew_for_each_request_and_once_for_those_that_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("clip.mp4");
    fs::write(&path, film()).expect("written");
    let pool = Arc::new(Pool::stopped());
    let mut root = with(folder.path(), &pool);
    for _ in 0..3 {
        assert!(find(&mut root, "clip.mp4", &[], 1).is_pending());
        assert_eq!(root.awaited(), [Awaited::Clip("clip.mp4".to_owned())]);
    }
    assert_eq!(root.openings.len(), 1);
    pool.start();
    let (one, _) = found_since(&mut root, "clip.mp4", &[], 1);
    let one = one.expect("a clip");
    // A request that came later is answered by what is there then.
    fs::write(folder.path().join("new"), film()).expect("written");
    fs::rename(folder.path().join("new"), &path).expect("replaced");
    let (same, read) = found_since(&mut root, "clip.mp4", &[], 1);
    assert!(Arc::ptr_eq(&one, &same.expect("a clip")) && read == 0);
    let (other, _) = found(&mut root, "clip.mp4", &[]);
    assert!(!Arc::ptr_eq(&one, &other.expect("another")));
    // Nothing that was opened is kept for long.
    root.tidy(now());
    assert_eq!(root.openings.len(), 1);
    root.tidy(now() + PASSING);
    assert!(root.openings.is_empty());
}
