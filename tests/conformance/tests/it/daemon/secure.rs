//! The interface over TCP: with TLS, who trusts the certificate gets answers, nobody else, and one
//! that cannot be used is said before anything starts; pages, when the daemon starts anew.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::finish;
use rustix::process::Signal;

use super::fixture::{Ring, over_tcp, request};
use crate::fixture::{PATIENCE, installed};

/// Certificate and key for this machine's own address, made as docs/12-daemon.md says.
pub(super) fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (certificate, key) = (
        folder.join(format!("{name}.pem")),
        folder.join(format!("{name}.key")),
    );
    let mut openssl = Command::new("/usr/bin/openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:prime256v1", "-noenc", "-days", "2"])
        .args(["-subj", "/CN=bonsai"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    let made = finish(&mut openssl, PATIENCE).expect("it ends");
    assert!(made.status.success(), "{}", made.stderr);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
    (certificate, key)
}

fn config(certificate: &Path, key: &Path) -> String {
    format!(
        "[api]\nlisten = \"127.0.0.1:0\"\ntls = {{ certificate = {certificate:?}, key = {key:?} }}\n"
    )
}

/// Status and body that curl gets; the text of its error if there is no answer.
pub(super) fn curl(url: &str, args: &[&str]) -> Result<(u16, String), String> {
    let mut curl = Command::new("/usr/bin/curl");
    curl.args([
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        "--noproxy",
        "*",
    ])
    .args(["--write-out", "\n%{http_code}"])
    .args(args)
    .arg(url);
    let said = finish(&mut curl, PATIENCE).expect("it ends");
    let (body, status) = said.stdout.rsplit_once('\n').unwrap_or(("", ""));
    match status.parse() {
        Ok(status) if said.status.success() => Ok((status, body.to_owned())),
        _ => Err(said.stderr),
    }
}

#[test]
fn with_a_certificate_answers_are_encrypted_and_for_bearers_of_a_token() {
    let test = "with_a_certificate_answers_are_encrypted_and_for_bearers_of_a_token";
    if installed(test, "/usr/bin/openssl").is_none() || installed(test, "/usr/bin/curl").is_none() {
        return;
    }
    let mut ring = Ring::new("");
    let (pem, key) = certificate(ring.config().parent().expect("a folder"), "own");
    ring.configure(&config(&pem, &key));
    let said = ring.start(&[]);
    let address = said.trim().rsplit(' ').next().expect("an address");
    let port = address.rsplit(':').next().expect("a port");
    let token = ring.done(&["token", "create", "reader", "--scope", "read"]);
    let bearer = format!("authorization: Bearer {}", token.trim());
    let trusted = pem.to_str().expect("a path");
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("https://{host}:{port}/v1/status");
        let (status, body) = curl(&url, &["--cacert", trusted, "-H", &bearer]).expect("an answer");
        assert_eq!(status, 200, "{body}");
        assert!(body.contains("\"revision\""), "{body}");
    }
    let url = format!("https://{address}/v1/status");
    for old in ["1.2", "1.3"] {
        let range = format!("--tlsv{old}");
        let args = ["--cacert", trusted, "-H", &bearer, &range, "--tls-max", old];
        assert_eq!(
            curl(&url, &args).map(|(status, _)| status),
            Ok(200),
            "{old}"
        );
    }
    // A certificate is no reason to tell anybody anything.
    let (status, body) = curl(&url, &["--cacert", trusted]).expect("an answer");
    assert_eq!(status, 401, "{body}");
    let foreign = [
        "--cacert",
        trusted,
        "-H",
        &bearer,
        "-H",
        "host: evil.example",
    ];
    assert_eq!(curl(&url, &foreign).map(|(status, _)| status), Ok(403));
    // Who does not trust it sends no token.
    let refused = curl(&url, &["-H", &bearer]).expect_err("nobody trusts it");
    assert!(refused.contains("certificate"), "{refused}");
    // Plain HTTP ends, without an answer and at once.
    let mut plain = TcpStream::connect(address).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("a time");
    plain
        .write_all(
            format!("GET /v1/status HTTP/1.1\r\nhost: {address}\r\n{bearer}\r\n\r\n").as_bytes(),
        )
        .expect("sent");
    let mut got = Vec::new();
    plain.read_to_end(&mut got).expect("an end, not a reset");
    assert!(!got.starts_with(b"HTTP"), "{got:?}");
    assert!(got.len() < 100, "an alert at most: {got:?}");
    // Some who never shake hands.
    let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(address)).collect();
    assert_eq!(
        curl(&url, &["--cacert", trusted, "-H", &bearer]).map(|(status, _)| status),
        Ok(200)
    );
    drop(silent);
}

#[test]
fn a_certificate_that_cannot_be_used_is_said_before_anything_starts() {
    let test = "a_certificate_that_cannot_be_used_is_said_before_anything_starts";
    if installed(test, "/usr/bin/openssl").is_none() {
        return;
    }
    let ring = Ring::new("");
    let folder = ring.config().parent().expect("a folder").to_owned();
    let (pem, key) = certificate(&folder, "own");
    let (_, other) = certificate(&folder, "other");
    let (none, text, open) = (
        folder.join("none"),
        folder.join("text"),
        folder.join("open"),
    );
    fs::write(&text, "no PEM\n").expect("a file");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::copy(&key, &open).expect("a copy");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).expect("a mode");
    for (certificate, key, expected) in [
        (&none, &key, "none: cannot be read: No such file"),
        (&pem, &none, "none: cannot be read: No such file"),
        (&text, &key, "text: has no certificate in PEM"),
        (&pem, &text, "text: has no private key in PEM"),
        (
            &pem,
            &open,
            "open: mode 640, by which others can read it: chmod 600",
        ),
        (&pem, &other, "is not the key of the certificate in"),
        (&key, &pem, "has no certificate in PEM"),
    ] {
        ring.configure(&config(certificate, key));
        let said = finish(&mut ring.daemon_command(&[]), PATIENCE).expect("it ends");
        assert_eq!(said.status.code(), Some(2), "{expected}: {said:?}");
        assert!(
            said.stderr.contains(expected),
            "{expected}: {}",
            said.stderr
        );
        assert_eq!(said.stderr.matches('\n').count(), 1, "{}", said.stderr);
        assert!(!ring.socket().exists(), "{expected}: nothing was left");
    }
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let test = "a_renewed_certificate_is_used_without_a_restart";
    if installed(test, "/usr/bin/openssl").is_none() || installed(test, "/usr/bin/curl").is_none() {
        return;
    }
    let mut ring = Ring::new("");
    let folder = ring.config().parent().expect("a folder").to_owned();
    let (pem, key) = certificate(&folder, "own");
    let (next, next_key) = certificate(&folder, "next");
    let before = folder.join("before.pem");
    fs::copy(&pem, &before).expect("a copy");
    ring.configure(&config(&pem, &key));
    let said = ring.start(&[]);
    let url = format!(
        "https://{}/",
        said.trim().rsplit(' ').next().expect("an address")
    );
    let trusts = |certificate: &Path| {
        let path = certificate.to_str().expect("a path");
        curl(&url, &["--cacert", path]).is_ok_and(|(status, _)| status == 200)
    };
    let problems = |ring: &Ring| ring.get("/v1/status")["problems"].to_string();
    assert!(trusts(&before) && !trusts(&next));
    // One after the other, as whatever renews them does.
    fs::rename(&next_key, &key).expect("renewed");
    ring.until("that they do not fit is said", |ring| {
        problems(ring).contains("is not the key of the certificate in")
    });
    assert!(trusts(&before), "the one before is used");
    fs::copy(&next, folder.join("new")).expect("a copy");
    fs::rename(folder.join("new"), &pem).expect("renewed");
    ring.until("the renewed one is used", |_| trusts(&next));
    assert!(!trusts(&before));
    assert_eq!(problems(&ring), "[]");
    // Written in its place.
    fs::write(&pem, "no PEM\n").expect("written");
    ring.until("that it is none is said", |ring| {
        problems(ring).contains("has no certificate in PEM")
    });
    assert!(trusts(&next));
}

#[test]
fn tokens_are_listed_with_their_end() {
    let ring = Ring::started("");
    ring.done(&["token", "create", "short", "--for", "1s"]);
    ring.done(&["token", "create", "long", "--for", "720h"]);
    ring.done(&["token", "create", "lasting"]);
    let line = |ring: &Ring, name: &str| {
        let text = ring.done(&["token", "list"]);
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        line.expect("a line").to_owned()
    };
    ring.until("it has expired", |ring| {
        line(ring, "short").contains("expired")
    });
    assert!(
        line(&ring, "long").ends_with("more"),
        "{}",
        line(&ring, "long")
    );
    assert!(line(&ring, "lasting").ends_with("for good"));
    let json = ring.done(&["token", "list", "--json"]);
    let tokens: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let expired = |name: &str| {
        let all = tokens.as_array().expect("tokens");
        let token = all.iter().find(|token| token["name"] == name).expect("it");
        token["expired"].as_bool().expect("a word")
    };
    assert!(expired("short") && !expired("long") && !expired("lasting"));
    let made = ring.done(&["token", "create", "more", "--for", "1h", "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    assert_eq!(made["token"].as_str().map(str::len), Some(64));
}

#[test]
fn one_page_is_ended_and_the_others_go_on() {
    let ring = Ring::started("");
    let open = || -> (String, String) {
        let opened = ring.done(&["page", "--json"]);
        let opened: serde_json::Value = serde_json::from_str(&opened).expect("JSON");
        let url = opened["url"].as_str().expect("an address");
        let (address, token) = url.split_once('#').expect("a token");
        let address = address.trim_start_matches("http://").trim_end_matches('/');
        (
            address.to_owned(),
            token.trim_start_matches("token=").to_owned(),
        )
    };
    let status = |page: &(String, String)| {
        let bearer = format!("authorization: Bearer {}", page.1);
        let host = format!("host: {}", page.0);
        over_tcp(
            &page.0,
            &request("GET", "/v1/status", &[&bearer, &host], ""),
        )
        .status
    };
    let pages = || -> Vec<String> {
        let tokens: serde_json::Value =
            serde_json::from_str(&ring.done(&["token", "list", "--json"])).expect("JSON");
        let tokens = tokens.as_array().expect("tokens").iter();
        let pages = tokens.filter(|token| token["page_of"].is_string());
        pages
            .map(|page| page["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    let first = open();
    let names = pages();
    assert_eq!(names.len(), 1, "{names:?}");
    let second = open();
    assert_eq!(pages().len(), 2);
    assert_eq!((status(&first), status(&second)), (200, 200));
    ring.refused(&["token", "revoke", "page:0123456789ab"], "no open page");
    ring.done(&["token", "revoke", &names[0]]);
    assert_eq!((status(&first), status(&second)), (401, 200));
    assert_eq!(pages().len(), 1);
    let listed = ring.done(&["token", "list"]);
    assert!(
        listed.contains("page:") && !listed.contains(&names[0]),
        "{listed}"
    );
}

#[test]
fn a_page_goes_on_after_a_restart_where_nobody_else_can_take_its_port() {
    let mut ring = Ring::started("");
    let opened: serde_json::Value =
        serde_json::from_str(&ring.done(&["page", "--json"])).expect("JSON");
    let url = opened["url"].as_str().expect("an address");
    let (address, token) = url
        .trim_start_matches("http://")
        .split_once("/#token=")
        .expect("a token");
    let ask = || {
        let headers = [
            &*format!("host: {address}"),
            &*format!("authorization: Bearer {token}"),
        ];
        let request = request("GET", "/v1/status", &headers, "");
        TcpStream::connect(address).map(|_| over_tcp(address, &request).status)
    };
    assert_eq!(ask().expect("an answer"), 200);
    let port: u16 = address
        .rsplit(':')
        .next()
        .expect("a port")
        .parse()
        .expect("a number");
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first: u16 = first.expect("a number").trim().parse().expect("a number");
    let kept = ring.state().join("pages.json");
    ring.end(Signal::KILL);
    ring.start(&[]);
    if port >= first {
        // Whoever listens there meanwhile has seen a token that opens nothing any more.
        assert!(!kept.exists());
        let again = ring.done(&["page", "--json"]);
        assert!(!again.contains(token), "{again}");
        let answer = ask();
        assert!(!matches!(answer, Ok(200)), "{answer:?}");
        return;
    }
    assert_eq!(
        ask().expect("an answer"),
        200,
        "at once, and without a new page"
    );
    let text = fs::read_to_string(&kept).expect("a file");
    assert!(!text.contains(token), "only its hash is kept");
    let mode = fs::metadata(&kept).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Damaged, it opens nothing, and keeps nothing from starting.
    ring.end(Signal::TERM);
    fs::write(&kept, &text[..text.len() / 2]).expect("a file");
    ring.start(&[]);
    let answer = ask();
    assert!(!matches!(answer, Ok(200)), "{answer:?}");
    ring.done(&["page"]);
}
