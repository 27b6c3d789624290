//! Scopes as they are written.

use crate::limits::{Limit, check_together};

fn name(text: &str) -> String {
    Limit::parse(text).expect(text).name
}

fn refusal(text: &str) -> String {
    let error = Limit::parse(text).expect_err(text).to_string();
    let start = format!("limit {text:?}: ");
    error.strip_prefix(&start).unwrap_or(&error).to_owned()
}

#[test]
fn a_scope_has_one_name() {
    for (text, wanted) in [
        ("send/stream=2Mbit/s", "send/stream"),
        ("read@/srv//video/./**=5MB/s", "read@/srv/video/**"),
        ("read@/srv/***/**/x=5MB/s", "read@/srv/**/x"),
        ("read@\"/srv/a:burst=1\"=5MB/s", "read@/srv/a:burst=1"),
        ("disk@mount:/proc/./=5MB/s", "disk@mount:/proc"),
        ("send@10.0.0.0/8=5MB/s", "send@10.0.0.0/8"),
        ("send@10.1.2.3/32=5MB/s", "send@10.1.2.3"),
        ("send@[::ffff:10.0.0.0]/104=5MB/s", "send@10.0.0.0/8"),
        ("send@fd00::/8=5MB/s", "send@[fd00::]/8"),
        ("send@[fd00:0::1]=5MB/s", "send@[fd00::1]"),
        ("send@0.0.0.0/0=5MB/s", "send@0.0.0.0/0"),
        ("send@[::]/0=5MB/s", "send@[::]/0"),
        ("send@port:443-443=5MB/s", "send@port:443"),
        (
            "net/stream@port:8000-8100, 10.0.0.0/8=5MB/s",
            "net/stream@10.0.0.0/8,port:8000-8100",
        ),
        ("accept@port:80=100/s", "accept@port:80"),
        ("connect@10.0.0.0/8=10/s", "connect@10.0.0.0/8"),
        ("sendfile@/srv/**=10MB/s", "sendfile@/srv/**"),
        ("fsync@/srv/**=10/s", "fsync@/srv/**"),
        ("open@/srv/**=10/s", "open@/srv/**"),
        ("read@mount:/no/such=unlimited", "read@mount:/no/such"),
    ] {
        assert_eq!(name(text), wanted, "{text}");
        let again = format!("{wanted}=unlimited");
        if !wanted.contains("burst") {
            assert_eq!(name(&again), wanted, "{again}");
        }
    }
}

#[test]
fn each_scope_that_makes_no_sense_has_its_sentence() {
    for (text, wanted) in [
        (
            "send@10.1.0.0/8=1MB/s",
            "\"10.1.0.0/8\" has bits set beyond its first 8: write 10.0.0.0/8",
        ),
        (
            "send@[fd00::1]/8=1MB/s",
            "has bits set beyond its first 8: write [fd00::]/8",
        ),
        (
            "send@10.0.0.0/33=1MB/s",
            "behind the / of 10.0.0.0 stands a number from 0 to 32",
        ),
        ("send@[fd00::]/129=1MB/s", "a number from 0 to 128"),
        ("send@10.0.0.0/=1MB/s", "a number from 0 to 32"),
        ("send@10.0.0.0/+8=1MB/s", "a number from 0 to 32"),
        ("send@10.0.0=1MB/s", "\"10.0.0\" is no address"),
        ("send@[10.0.0.1]=1MB/s", "is no address"),
        ("send@10.0.0.0/8,10.0.0.0/9=1MB/s", "names two networks"),
        ("send@port:1,port:2=1MB/s", "names two ranges of ports"),
        ("send@port:0=1MB/s", "\"port:0\" is no port"),
        ("send@port:70000=1MB/s", "is no port"),
        ("send@port:=1MB/s", "is no port"),
        ("send@port:+5=1MB/s", "is no port"),
        ("send@port:90-80=1MB/s", "write port:80-90"),
        ("read@srv/video=1MB/s", "\"srv/video\" is a relative path"),
        ("read@../srv=1MB/s", "is a relative path"),
        ("read@mount:srv=1MB/s", "is a relative path"),
        ("read@/srv/=1MB/s", "write /srv/** for all below it"),
        ("read@/srv/../x=1MB/s", "has .. in it"),
        ("read@/srv/x\\=1MB/s", "ends in a backslash"),
        (
            "read@mount:/no/such=1MB/s",
            "mount:/no/such cannot be looked at",
        ),
        (
            "read@video=1MB/s",
            "neither a path, nor a network, nor a port",
        ),
        ("read@10.0.0.0/8=1MB/s", "read is on no sockets"),
        ("open@10.0.0.0/8=1/s", "open is on no sockets"),
        ("send@/srv/**=1MB/s", "send is on no files"),
        ("open@mount:/=1/s", "open is on no open files"),
        ("accept@10.0.0.0/8=1/s", "accept@port:443"),
        ("stat/stream=1/s", "stat has no streams"),
        ("open/stream=1/s", "open has no streams"),
        (
            "send/streams=1MB/s",
            "there is no call or class \"send/streams\"",
        ),
    ] {
        let found = refusal(text);
        assert!(found.contains(wanted), "{text}: {found}");
        assert_eq!(found.lines().count(), 1);
    }
    let long = format!("read@/{}=1MB/s", "x".repeat(160));
    assert!(refusal(&long).contains("the limit's name has 166 bytes: at most 160"));
}

#[test]
fn the_same_scope_twice_is_refused_however_it_is_written() {
    let limits = |texts: &[&str]| -> Vec<Limit> {
        texts
            .iter()
            .map(|text| Limit::parse(text).expect(text))
            .collect()
    };
    let twice = check_together(&limits(&[
        "send@10.0.0.0/8=1MB/s",
        "send@::ffff:10.0.0.0/104=2MB/s",
    ]));
    let text = twice.expect_err("twice").to_string();
    assert_eq!(
        text,
        "the limit on send@10.0.0.0/8 is given twice: write it once"
    );
    check_together(&limits(&[
        "send=1MB/s",
        "send/stream=1MB/s",
        "send@10.0.0.0/8=1MB/s",
    ]))
    .expect("three limits");
    let streams = [
        "send/stream=1MB/s",
        "net/stream=1MB/s",
        "all/stream=1MB/s",
        "sendto/stream=1MB/s",
    ];
    check_together(&limits(&streams)).expect("four");
    let five = [&streams[..], &["send/stream=10/s"]].concat();
    let text = check_together(&limits(&five))
        .expect_err("five")
        .to_string();
    assert!(
        text.contains("under 5 limits per stream: at most 4"),
        "{text}"
    );
    let many: Vec<String> = (0..30).map(|i| format!("read@/srv/{i}/**=1MB/s")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    check_together(&limits(&many)).expect("a file is in one folder only");
}
