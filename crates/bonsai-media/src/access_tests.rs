//! Proofs of passwords: those of the standards, and all that are none.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// `Mufasa` with `Circle Of Life`, as in RFC 2617, 3.5 and RFC 7616, 3.9.1.
const FILE: &str = "# users\nMufasa:testrealm@host.com:939e7578ed9e3c518a452acee763bce9\n\n\
                    Skar:testrealm@host.com:00000000000000000000000000000000\n";

fn guard(is_http: bool) -> Guard {
    let users = Users::parse(FILE).expect("right");
    match is_http {
        true => Guard::for_http(users, [7; 32]),
        false => Guard::for_rtsp(users, [7; 32]),
    }
}

/// The header of a client that knows a password, for a challenge.
fn header(challenge: &str, (name, password): (&str, &str), method: &str, uri: &str) -> String {
    let of = Parameters::parse(challenge).expect("right");
    let (realm, nonce) = (
        of.get("realm").expect("said"),
        of.get("nonce").expect("said"),
    );
    let (first, second) = (
        hex(&md5(&[name, realm, password])),
        hex(&md5(&[method, uri])),
    );
    let mut text =
        format!("Digest username=\"{name}\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{uri}\"");
    let proof = match of.get("qop") {
        None => md5(&[&first, nonce, &second]),
        Some(_) => {
            text.push_str(", qop=auth, nc=00000001, cnonce=\"0a4f113b\"");
            md5(&[&first, nonce, "00000001", "0a4f113b", "auth", &second])
        }
    };
    text + &format!(", response=\"{}\"", hex(&proof))
}

fn asked<'a>(header: Option<&'a str>, uri: &'a str, now_ns: u64) -> AuthRequest<'a> {
    AuthRequest {
        header,
        method: "DESCRIBE",
        uri,
        now_ns,
        goes_on: false,
    }
}

const MUFASA: (&str, &str) = ("Mufasa", "Circle Of Life");

#[test]
fn the_proof_of_the_standard_is_right() {
    // RFC 2617, 3.5.
    let header = "Digest username=\"Mufasa\",\r\n realm=\"testrealm@host.com\", \
                  nonce=\"dcd98b7102dd2f0e8b11d0f600bfb0c093\", uri=\"/dir/index.html\", qop=auth, \
                  nc=00000001, cnonce=\"0a4f113b\", response=\"6629fae49393a05397450978507c4ef1\", \
                  opaque=\"5ccc069c403ebaf9f0171e9517f40e41\"";
    let asked = AuthRequest {
        method: "GET",
        ..asked(None, "/dir/index.html", 0)
    };
    let users = Users::parse(FILE).expect("right");
    let (name, nonce) = proved(header, &asked, &users).expect("proved");
    assert_eq!(name, "Mufasa");
    // The challenge is none of this server.
    assert_eq!(guard(true).age_s(nonce, 0), None);
    for (right, wrong) in [
        ("Mufasa", "Skar"),
        ("6629", "6628"),
        ("nc=00000001", "nc=00000002"),
        ("0a4f113b", "0a4f113c"),
        ("testrealm", "otherrealm"),
        ("/dir/", "/other/"),
        ("qop=auth", "qop=auth-int"),
        ("qop=auth", "algorithm=SHA-256"),
        ("qop=auth", "qop=\"auth\", qop=auth"),
        ("Digest ", "Basic "),
        ("username=", "user="),
    ] {
        let header = header.replace(right, wrong);
        proved(&header, &asked, &users).expect_err(wrong);
    }
}

#[test]
fn a_challenge_is_answered_for_five_minutes_with_the_right_password() {
    for is_http in [false, true] {
        let guard = guard(is_http);
        let uri = "rtsp://h/a%20b/clip.mp4";
        let denied = guard
            .check(&asked(None, uri, SECOND))
            .expect_err("no proof");
        assert!(!denied.challenge.contains("stale"));
        assert_eq!(denied.challenge.contains("qop"), is_http);
        let right = header(&denied.challenge, MUFASA, "DESCRIBE", uri);
        let check = |header: &str, uri: &str, now_s: u64| {
            let found = guard.check(&asked(Some(header), uri, now_s * SECOND));
            found.map_err(|denied| denied.challenge.contains("stale=true"))
        };
        assert_eq!(check(&right, uri, 1), Ok("Mufasa".to_owned()));
        assert_eq!(check(&right, uri, 301), Ok("Mufasa".to_owned()));
        assert_eq!(check(&right, uri, 302), Err(true));
        // A challenge of a time to come: after a restart of the machine's clock.
        assert_eq!(check(&right, uri, 0), Err(true));
        let goes_on = AuthRequest {
            goes_on: true,
            ..asked(Some(&right), uri, 10_000 * SECOND)
        };
        assert_eq!(guard.check(&goes_on).expect("known"), "Mufasa");
        for (of, is_right) in [
            ("/a b/clip.mp4", true),
            ("/a%20b/clip.mp4/track1", true),
            ("rtsp://other/a%20b/clip.mp4/", true),
            ("/a%20b/clip.mp4.bak", false),
            ("/a%20b", false),
            ("/", false),
        ] {
            assert_eq!(check(&right, of, 1).is_ok(), is_right, "{of}");
        }
        for user in [("Mufasa", "circle of life"), ("Nala", ""), ("Skar", "x")] {
            let wrong = header(&denied.challenge, user, "DESCRIBE", uri);
            assert_eq!(check(&wrong, uri, 1), Err(false), "{user:?}");
        }
        let other = header(&denied.challenge, MUFASA, "SETUP", uri);
        assert_eq!(check(&other, uri, 1), Err(false));
        // A challenge of another server.
        let other = Guard::for_rtsp(Users::parse(FILE).expect("right"), [8; 32]);
        let denied = other
            .check(&asked(None, uri, SECOND))
            .expect_err("no proof");
        let foreign = header(&denied.challenge, MUFASA, "DESCRIBE", uri);
        assert_eq!(check(&foreign, uri, 1), Err(true));
        // A user that is taken out of the file.
        let without = FILE.replace("Mufasa", "Simba");
        guard.replace(Users::parse(&without).expect("right"));
        assert_eq!(check(&right, uri, 1), Err(false));
    }
}

#[test]
fn a_line_that_is_none_of_a_user_is_named() {
    for (text, why) in [
        ("", "it has no user"),
        ("# nothing\n\n", "it has no user"),
        ("ann:secret", "line 1: a line is name:realm:MD5"),
        ("ann:r:secret", "line 1: \"secret\" is no MD5"),
        ("\n:r:939e7578ed9e3c518a452acee763bce9", "line 2: a line is"),
        (
            "a\"b:r:939e7578ed9e3c518a452acee763bce9",
            "without quotation marks",
        ),
        (
            "a:r:939e7578ed9e3c518a452acee763bce9\na:r:939e7578ed9e3c518a452acee763bce9",
            "line 2: \"a\" is there twice",
        ),
        (
            "a:r:939e7578ed9e3c518a452acee763bce9\nb:s:939e7578ed9e3c518a452acee763bce9",
            "line 2: \"s\" is another realm than \"r\"",
        ),
        ("a:r:+39e7578ed9e3c518a452acee763bce9", "is no MD5"),
    ] {
        let said = Users::parse(text).expect_err(text);
        assert!(
            said.contains(why) && !said.contains('\n'),
            "{text:?}: {said}"
        );
    }
}

proptest! {
    #[test]
    fn any_header_proves_nothing(header in "(?i)digest .{0,60}|[ -~]{0,80}|(Digest ([a-z]{1,8}=(\"[ -~]{0,9}\"|[a-z0-9]{0,9}),? ?){0,40})") {
        let denied = guard(false).check(&asked(Some(&header), "/clip.mp4", SECOND));
        prop_assert!(denied.is_err());
    }

    #[test]
    fn any_file_is_read_or_refused_in_a_sentence(text in "([a-c]{0,2}:[r]{0,2}:[0-9a-f]{32}\n|.{0,20}\n){0,4}") {
        if let Err(why) = Users::parse(&text) {
            prop_assert!(!why.contains('\n') && !why.is_empty());
        }
    }
}
