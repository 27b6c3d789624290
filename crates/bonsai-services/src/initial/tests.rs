use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn what_a_daemon_says_is_read_as_long_as_it_lives() {
    const FOLDER: &str = "BONSAI_TEST_PUBLISHES_IN";
    let test = "initial::tests::what_a_daemon_says_is_read_as_long_as_it_lives";
    let mut limits = InitialLimits::default();
    limits.part[0] = Some(7);
    if let Some(folder) = std::env::var_os(FOLDER) {
        // The daemon of this test: a process does not see its own locks.
        let _file = publish(Path::new(&folder), &limits, false).expect("a file");
        let _ = io::stdin().read(&mut [0]);
        return;
    }
    let folder = folder();
    let daemon = || {
        let mut daemon = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test])
            .env(FOLDER, folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let start = Instant::now();
        while read(folder.path(), false, uid()) == Ok(None) {
            assert!(start.elapsed() < Duration::from_secs(60), "never published");
            assert_eq!(daemon.try_wait().expect("known"), None, "it has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    };
    let mut first = daemon();
    assert_eq!(read(folder.path(), false, uid()), Ok(Some(limits.clone())));
    assert_eq!(read(folder.path(), true, uid()), Ok(None), "of others");
    assert_eq!(
        read(folder.path(), false, uid() + 1),
        Ok(None),
        "of another user"
    );
    first.kill().expect("killed");
    first.wait().expect("it ends");
    assert!(path(folder.path(), false).exists(), "it stays");
    assert_eq!(read(folder.path(), false, uid()), Ok(None));
    let mut second = daemon();
    drop(second.stdin.take());
    second.wait().expect("it ends");
    assert_eq!(read(folder.path(), false, uid()), Ok(None));
}

#[test]
fn only_its_own_file_is_withdrawn() {
    let folder = folder();
    let there = || path(folder.path(), false).exists();
    let publish = || publish(folder.path(), &InitialLimits::default(), false).expect("a file");
    let first = publish();
    assert!(first.is_there());
    let second = publish();
    assert!(!first.is_there() && second.is_there());
    first.withdraw();
    assert!(there(), "it is of the second");
    second.withdraw();
    assert!(!there());
    let third = publish();
    fs::remove_file(path(folder.path(), false)).expect("it was there");
    assert!(!third.is_there());
}

#[test]
fn a_file_that_would_not_be_read_is_not_written() {
    let folder = folder();
    let mut limits = InitialLimits::default();
    for i in 0..20_000 {
        limits
            .named
            .insert(format!("service-{i}"), [Some(u64::MAX); Resource::COUNT]);
    }
    publish(folder.path(), &limits, false).expect("thousands of services");
    let (text, _) = read_file(folder.path(), false, uid()).expect("all of it");
    assert_eq!(parsed(&text).expect("limits"), limits);
    limits.named.insert("x".repeat(16 << 20), Rates::default());
    let error = publish(folder.path(), &limits, false).expect_err("too long");
    assert!(error.to_string().contains("more than"), "{error}");
}

#[test]
fn a_file_of_a_newer_version_is_refused_and_one_without_a_version_read() {
    let folder = folder();
    let mut limits = InitialLimits::default();
    limits.part[0] = Some(7);
    publish(folder.path(), &limits, false).expect("a file");
    let text = fs::read_to_string(path(folder.path(), false)).expect("text");
    assert!(text.starts_with("{\"version\":1,"), "{text}");
    let of = |text: &str| parsed(text.as_bytes());
    assert_eq!(of(&text).as_ref(), Ok(&limits));
    assert_eq!(of(&text.replace("\"version\":1,", "")), Ok(limits));
    // The rest of it may have another form.
    let why = of("{\"version\":2,\"pool\":{}}").expect_err("newer");
    assert!(
        why.contains("version 2") && why.contains("up to 1"),
        "{why}"
    );
    of("{\"version\":1}").expect_err("damaged");
}

#[test]
fn no_link_is_followed_and_no_pipe_waited_for() {
    let folder = folder();
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "{}").expect("a file");
    std::os::unix::fs::symlink(&elsewhere, path(folder.path(), false)).expect("a link");
    assert!(read_file(folder.path(), false, uid()).is_none());
    fs::remove_file(path(folder.path(), false)).expect("it was there");
    let pipe = path(folder.path(), false);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a pipe");
    assert!(read_file(folder.path(), false, uid()).is_none());
}

#[test]
fn a_newcomer_has_a_limit_on_all_that_is_shared_or_has_a_ceiling() {
    let mut limits = InitialLimits::default();
    let [read, write, send] = [Resource::Read, Resource::Write, Resource::Send];
    limits.part[read.index()] = Some(100);
    limits.part[send.index()] = Some(100);
    limits.ceiling[send.index()] = Some(1000);
    let mut vod = Rates::default();
    vod[send.index()] = Some(50);
    vod[write.index()] = Some(9);
    limits.named.insert("vod".to_owned(), vod);
    let nowhere = |_: Resource| false;
    let other = limits.plain("other", nowhere);
    assert_eq!(other[read.index()], Some(100));
    assert_eq!(other[send.index()], Some(100));
    assert_eq!(other[write.index()], None);
    let vod = limits.plain("vod", nowhere);
    assert_eq!(vod[send.index()], Some(50));
    assert_eq!(vod[write.index()], Some(9));
    let lasting = limits.lasting("vod", vod);
    assert_eq!(lasting[send.index()], Some(50), "configured");
    assert_eq!(limits.lasting("other", other)[read.index()], None);
    limits.pool = true;
    assert_eq!(
        limits.plain("other", nowhere)[read.index()],
        Some(6),
        "the pool is full"
    );
    let pooled = limits.plain("vod", |resource| resource == Resource::Send);
    assert_eq!(pooled[send.index()], None, "the pool holds that");
    assert_eq!(pooled[write.index()], Some(9));
}

#[test]
fn as_many_as_may_come_at_once_have_no_more_than_there_is() {
    for others in [0, 1, 63, 64, 65, 500, 5000] {
        let part = InitialLimits::part_of(1_000_000_000, others);
        assert!(part * NEWCOMERS <= 1_000_000_000, "{others}: {part}");
        assert!(
            part * (others as u64 + 1) <= 1_000_000_000,
            "{others}: {part}"
        );
    }
    assert_eq!(
        InitialLimits::part_of(0, 3),
        1,
        "0 would stand for no limit"
    );
}
