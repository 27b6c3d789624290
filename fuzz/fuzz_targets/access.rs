//! Any bytes as a file of users and as proofs of a password: read, or refused in a sentence; nothing that is made up is granted.
#![no_main]

use bonsai_media::access::{AuthRequest, Guard, Users};
use libfuzzer_sys::fuzz_target;

const FILE: &str = "ann:bonsai:3fdbf97863c35cc7d0dfc546df717deb\n";

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Err(why) = Users::parse(text) {
        assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
    }
    let users = Users::parse(FILE).expect("right");
    let guard = Guard::for_http(users, [0; 32]);
    for header in [text.to_owned(), format!("Digest username=\"ann\", realm=\"bonsai\", {text}")] {
        let asked = AuthRequest {
            header: Some(&header),
            method: "GET",
            uri: "/",
            now_ns: 0,
            goes_on: false,
        };
        let denied = guard.check(&asked).expect_err("no password is known here");
        assert!(!denied.challenge.contains(['\r', '\n']));
    }
});
