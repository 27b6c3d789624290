use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::*;

fn place() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

#[test]
fn symbolic_links_stay_and_the_file_they_name_is_replaced() {
    let place = place();
    let [target, link, second] = ["target", "link", "second"].map(|name| place.path().join(name));
    fs::write(&target, "old").expect("written");
    fs::set_permissions(&target, Permissions::from_mode(0o640)).expect("a mode");
    symlink("target", &link).expect("a link");
    symlink(&link, &second).expect("a link");
    let mut output = Output::create(&second).expect("an output");
    output.write_all(b"new").expect("written");
    assert_eq!(read(&target), "old");
    output.commit().expect("committed");
    assert_eq!(read(&target), "new");
    assert_eq!(
        fs::metadata(&target).expect("a file").mode() & 0o7777,
        0o640
    );
    for link in [&link, &second] {
        assert!(fs::symlink_metadata(link).expect("a link").is_symlink());
    }
    // A link to nothing makes what it names.
    let [dangling, made] = ["dangling", "made"].map(|name| place.path().join(name));
    symlink("made", &dangling).expect("a link");
    write_output(&dangling, b"here").expect("written");
    assert_eq!(read(&made), "here");
    assert!(
        fs::symlink_metadata(&dangling)
            .expect("a link")
            .is_symlink()
    );
    let round = place.path().join("round");
    symlink("round", &round).expect("a link");
    assert!(Output::create(&round).is_err());
}

#[test]
fn an_output_that_is_not_committed_leaves_nothing() {
    let place = place();
    let path = place.path().join("file");
    fs::write(&path, "old").expect("written");
    let mut output = Output::create(&path).expect("an output");
    output.write_all(b"half").expect("written");
    drop(output);
    let mut output = Output::create(&place.path().join("other")).expect("an output");
    output.write_all(b"half").expect("written");
    drop(output);
    assert_eq!(read(&path), "old");
    assert_eq!(fs::read_dir(place.path()).expect("a folder").count(), 1);
}

#[test]
fn hard_links_keep_their_file() {
    let place = place();
    let [one, other] = ["one", "other"].map(|name| place.path().join(name));
    fs::write(&one, "a longer text").expect("written");
    fs::hard_link(&one, &other).expect("a link");
    write_output(&one, b"new").expect("written");
    assert_eq!((read(&one), read(&other)), ("new".into(), "new".into()));
    assert_eq!(fs::metadata(&one).expect("a file").nlink(), 2);
}

#[test]
fn fifos_are_written_and_stay() {
    let place = place();
    let path = place.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a FIFO");
    let reader = {
        let path = path.clone();
        std::thread::spawn(move || read(&path))
    };
    write_output(&path, b"through").expect("written");
    assert_eq!(reader.join().expect("a reader"), "through");
    let there = fs::symlink_metadata(&path).expect("a FIFO");
    assert!(there.file_type().is_fifo());
}

#[test]
fn folders_and_sockets_are_refused() {
    let place = place();
    let socket = place.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    for (path, what) in [
        (place.path(), "it is a folder; name a file"),
        (Path::new(".."), "it is a folder; name a file"),
        (socket.as_path(), "it is a socket; name a file"),
    ] {
        let error = Output::create(path).expect_err("refused");
        assert!(error.is_refused(), "{error}");
        assert!(error.to_string().ends_with(what), "{error}");
    }
    assert!(
        !Output::create(&place.path().join("none/file"))
            .expect_err("no folder")
            .is_refused()
    );
}

/// Device nodes of our own: never those of the machine.
#[test]
fn device_nodes_stay() {
    let place = place();
    let node = |name: &str, kind: &str, numbers: [&str; 2]| {
        let path = place.path().join(name);
        let mut mknod = Command::new("mknod");
        let made = mknod.arg(&path).arg(kind).args(numbers).output();
        made.is_ok_and(|made| made.status.success()).then_some(path)
    };
    let test = "bonsai_host::output::device_nodes_stay";
    let nodes = (
        node("full", "c", ["1", "7"]),
        node("null", "c", ["1", "3"]),
        node("loop", "b", ["7", "200"]),
    );
    let (Some(full), Some(null), Some(block)) = nodes else {
        return skip(test, "device nodes can be made by root alone");
    };
    if OpenOptions::new().write(true).open(&null).is_err() {
        return skip(test, "device nodes cannot be opened in this folder (nodev)");
    }
    write_output(&null, b"gone").expect("written");
    let error = write_output(&full, b"too much").expect_err("full");
    assert!(
        !error.is_refused() && crate::sentence(&error).contains("No space left on device"),
        "{error}"
    );
    let link = place.path().join("link");
    symlink(&null, &link).expect("a link");
    write_output(&link, b"gone").expect("written");
    let error = Output::create(&block).expect_err("refused");
    assert!(
        error.to_string().contains("it is a block device"),
        "{error}"
    );
    for path in [&full, &null] {
        let there = fs::symlink_metadata(path).expect("a node");
        assert!(there.file_type().is_char_device(), "{}", path.display());
    }
    let there = fs::symlink_metadata(&block).expect("a node");
    assert!(there.file_type().is_block_device());
}

#[test]
fn another_owner_stays() {
    let place = place();
    let path = place.path().join("file");
    fs::write(&path, "old").expect("written");
    if std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).is_err() {
        return skip(
            "bonsai_host::output::another_owner_stays",
            "owners can be changed by root alone",
        );
    }
    fs::set_permissions(&path, Permissions::from_mode(0o604)).expect("a mode");
    write_output(&path, b"new").expect("written");
    let there = fs::metadata(&path).expect("a file");
    assert_eq!(
        (there.uid(), there.gid(), there.mode() & 0o7777),
        (65_534, 65_534, 0o604)
    );
    assert_eq!(read(&path), "new");
}

#[test]
fn a_link_of_another_user_where_all_may_write_is_not_followed() {
    let place = place();
    let [shared, victim] = ["shared", "victim"].map(|name| place.path().join(name));
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).expect("a mode");
    fs::write(&victim, "untouched").expect("written");
    let link = shared.join("link");
    symlink(&victim, &link).expect("a link");
    if std::os::unix::fs::lchown(&link, Some(65_534), Some(65_534)).is_err() {
        return skip(
            "bonsai_host::output::a_link_of_another_user_where_all_may_write_is_not_followed",
            "owners can be changed by root alone",
        );
    }
    let error = Output::create(&link).expect_err("refused");
    let text = std::error::Error::source(&error)
        .expect("a reason")
        .to_string();
    assert!(text.contains("is a link of user 65534"), "{text}");
    assert_eq!(read(&victim), "untouched");
    // A link of the folder's own owner is followed.
    std::os::unix::fs::chown(&shared, Some(65_534), Some(65_534)).expect("given away");
    write_output(&link, b"by the folder's").expect("written");
    assert_eq!(read(&victim), "by the folder's");
}

/// Notes that a test cannot run here, and why.
fn skip(test: &str, reason: &str) {
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let log = OpenOptions::new().create(true).append(true).open(log);
        writeln!(log.expect("a log"), "{test}: {reason}").expect("written");
    }
}

#[test]
fn what_was_written_is_not_written_again() {
    let place = place();
    let [path, link, other] = ["file", "link", "other"].map(|name| place.path().join(name));
    symlink("file", &link).expect("a link");
    let mut second = Output::create(&link).expect("nothing is there yet");
    second.write_all(b"second").expect("written");
    write_output(&path, b"first").expect("written");
    for refused in [second.commit(), write_output(&path, b"third")] {
        let error = refused.expect_err("it is there now");
        assert!(error.is_refused(), "{error}");
    }
    assert_eq!(read(&path), "first");
    write_output(&other, b"fourth").expect("written");
}
