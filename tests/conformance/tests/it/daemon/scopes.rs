//! One rule for each answer, by what is shown: nothing, a user with services of their own, what reads all, what writes
//! all, root. All routes of the description, and the two beside it.

use std::collections::BTreeSet;
use std::net::TcpListener;

use conformance::finish;
use serde_json::Value;

use super::machine::{Machine, User};
use crate::fixture::PATIENCE;

const CURL: &str = "/usr/bin/curl";

const CHANGE: &str = "{\"read\":{\"max\":\"1MB/s\"}}";
const LOWER: &str = "{\"read\":{\"max\":\"2MB/s\"}}";
const TOKEN: &str = "{\"name\":\"no name\",\"scope\":\"read\"}";
const LATER: &str = "{\"revision\":4000000000}";
const CALLS: &str = "{\"resource\":\"calls\"}";
const BULK: &str = "{\"service\":\"54322:bulk\",\"loss\":0}";
const VOD: &str = "{\"service\":\"54321:vod\",\"loss\":0}";
const FITS: &str =
    "{\"service\":\"54321:vod\",\"resource\":\"read\",\"streams\":1,\"rate\":\"1kB/s\"}";

/// Method, route, what is asked, with which body; and the status for: no token, the owner of `54321:vod`, a reader, a
/// writer, root.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    [u16; 5],
);

/// Services that an owner may not see are not there; all else that they may not do is forbidden.
const ROWS: [Row; 35] = [
    (
        "GET",
        "/v1/status",
        "/v1/status",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/services",
        "/v1/services",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/services/{id}",
        "/v1/services/54321:vod",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/services/{id}",
        "/v1/services/54322:bulk",
        "",
        [401, 404, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/services/{id}",
        "/v1/services/54322:none",
        "",
        [401, 404, 404, 404, 404],
    ),
    (
        "PATCH",
        "/v1/services/{id}",
        "/v1/services/54321:vod?dry_run=true",
        LOWER,
        [401, 200, 403, 200, 200],
    ),
    (
        "PATCH",
        "/v1/services/{id}",
        "/v1/services/54322:bulk?dry_run=true",
        CHANGE,
        [401, 404, 403, 422, 422],
    ),
    (
        "PATCH",
        "/v1/services/{id}",
        "/v1/services/54322:none?dry_run=true",
        CHANGE,
        [401, 404, 404, 200, 200],
    ),
    (
        "GET",
        "/v1/config",
        "/v1/config",
        "",
        [401, 403, 200, 200, 200],
    ),
    (
        "PATCH",
        "/v1/config",
        "/v1/config?dry_run=true",
        "{}",
        [401, 403, 403, 200, 200],
    ),
    (
        "GET",
        "/v1/links",
        "/v1/links",
        "",
        [401, 403, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/links/{target}",
        "/v1/links/lo",
        "",
        [401, 403, 200, 200, 200],
    ),
    (
        "PATCH",
        "/v1/links/{target}",
        "/v1/links/lo?dry_run=true",
        "{\"tx\":\"1Gbit/s\"}",
        [401, 403, 403, 200, 200],
    ),
    (
        "DELETE",
        "/v1/links/{target}",
        "/v1/links/lo?dry_run=true",
        "",
        [401, 403, 403, 404, 404],
    ),
    (
        "GET",
        "/v1/exports",
        "/v1/exports",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "POST",
        "/v1/undo",
        "/v1/undo",
        LATER,
        [401, 403, 403, 409, 409],
    ),
    (
        "POST",
        "/v1/capacity/probe",
        "/v1/capacity/probe",
        CALLS,
        [401, 403, 403, 422, 422],
    ),
    (
        "GET",
        "/v1/history",
        "/v1/history?resource=read",
        "",
        [401, 403, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/history",
        "/v1/history?service=54321:vod",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/history",
        "/v1/history?service=54322:bulk",
        "",
        [401, 404, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/history/known",
        "/v1/history/known",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/history/export",
        "/v1/history/export?format=csv",
        "",
        [401, 403, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/history/export",
        "/v1/history/export?format=csv&service=54322:bulk",
        "",
        [401, 404, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/audit",
        "/v1/audit",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/audit",
        "/v1/audit?service=54322:bulk",
        "",
        [401, 404, 200, 200, 200],
    ),
    ("GET", "/v1/qos", "/v1/qos", "", [401, 200, 200, 200, 200]),
    (
        "POST",
        "/v1/reports",
        "/v1/reports",
        VOD,
        [401, 204, 403, 204, 204],
    ),
    (
        "POST",
        "/v1/reports",
        "/v1/reports",
        BULK,
        [401, 404, 403, 204, 204],
    ),
    (
        "POST",
        "/v1/admit",
        "/v1/admit",
        FITS,
        [401, 403, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/events",
        "/v1/events?interval=100ms",
        "",
        [401, 200, 200, 200, 200],
    ),
    (
        "GET",
        "/v1/tokens",
        "/v1/tokens",
        "",
        [401, 403, 403, 403, 200],
    ),
    (
        "POST",
        "/v1/tokens",
        "/v1/tokens",
        TOKEN,
        [401, 403, 403, 403, 422],
    ),
    (
        "DELETE",
        "/v1/tokens/{name}",
        "/v1/tokens/none",
        "",
        [401, 403, 403, 403, 404],
    ),
    (
        "POST",
        "/v1/page",
        "/v1/page",
        "",
        [401, 200, 200, 200, 200],
    ),
    ("GET", "/metrics", "/metrics", "", [401, 200, 200, 200, 200]),
];

/// Asks, by a socket or over TCP: the status, and what is answered.
fn ask(by: &User, to: &[&str], method: &str, url: &str, body: &str) -> (u16, String) {
    let mut args = vec!["-s", "-N", "-w", "\n%{http_code}", "-X", method];
    args.extend([
        "--max-time",
        if url.contains("/events") { "1" } else { "20" },
    ]);
    args.extend(to);
    if !body.is_empty() {
        args.extend(["-H", "content-type: application/json", "-d", body]);
    }
    args.push(url);
    let said = finish(&mut by.bare(CURL, &args), PATIENCE).expect("it ends");
    let (body, status) = said.stdout.rsplit_once('\n').unwrap_or_default();
    (status.parse().unwrap_or(0), body.to_owned())
}

#[test]
fn each_answer_is_for_its_scope_and_tells_nothing_of_neighbours() {
    let test = "each_answer_is_for_its_scope_and_tells_nothing_of_neighbours";
    // A port that is free now.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.expect("an address").to_string();
    let config = format!(
        "[capacity]\nread = \"20MB/s\"\n[groups.g]\nread = {{ max = \"90%\" }}\n\
         [services.\"54321:vod\"]\ngroup = \"g\"\nread = {{ min = \"1234567B/s\" }}\n\
         [services.\"54322:bulk\"]\ngroup = \"g\"\nread = {{ min = \"9876543B/s\" }}\n\
         [api]\nread-group = \"daemon\"\nwrite-group = \"bin\"\nlisten = \"{address}\"\n"
    );
    let Some(machine) = Machine::started(test, &config) else {
        return;
    };
    let (alice, root) = (&machine.alice, &machine.root);
    let _vod = alice.reader("vod");
    let _bulk = machine.bob.reader("bulk");
    for id in ["54321:vod", "54322:bulk"] {
        machine.governs(id);
    }
    root.done(&[
        "set",
        "54322:bulk",
        "write=7654321B/s",
        "--reason",
        "secret",
    ]);
    machine.until("a history", |machine| {
        let known = machine.root.get("/v1/history/known");
        known.as_array().map(Vec::len) >= Some(2)
    });
    let (reader, writer) = (machine.user(54323, 1), machine.user(54324, 2));
    let token = |scope: &str| {
        let made = root.done(&["token", "create", scope, "--scope", scope]);
        format!("authorization: Bearer {}", made.trim())
    };
    let (reads, writes) = (token("read"), token("write"));
    let socket = ["--unix-socket", "/run/bonsai/daemon.sock"];
    let (tcp, local) = (format!("http://{address}"), "http://localhost".to_owned());
    let mut wrong = Vec::new();
    for (method, route, path, body, statuses) in ROWS {
        let [none, own, read, write, administers] = statuses;
        // The page is opened at the machine.
        let by_token = |status: u16| if route == "/v1/page" { 403 } else { status };
        for (by, to, base, status, what) in [
            (alice, &[][..], &tcp, none, "no token"),
            (alice, &socket, &local, own, "an owner"),
            (&reader, &socket, &local, read, "a reader"),
            (&writer, &socket, &local, write, "a writer"),
            (root, &socket, &local, administers, "root"),
            (
                alice,
                &["-H", &reads],
                &tcp,
                by_token(read),
                "a token to read",
            ),
            (
                alice,
                &["-H", &writes],
                &tcp,
                by_token(write),
                "a token to write",
            ),
        ] {
            let (got, answer) = ask(by, to, method, &format!("{base}{path}"), body);
            if got != status {
                wrong.push(format!(
                    "{method} {path} by {what}: {got}, not {status}: {answer}"
                ));
            }
            if what == "an owner" && !path.contains("bulk") && !body.contains("bulk") {
                for theirs in ["bulk", "9876543", "7654321", "secret"] {
                    assert!(
                        !answer.contains(theirs),
                        "{method} {path}: {theirs} in {answer}"
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    each_route_has_a_row(&root.get("/v1/openapi.json"));
    // A name that is taken and one that is not are the same to others.
    for path in [
        "/v1/services/",
        "/v1/history?service=",
        "/v1/audit?service=",
    ] {
        let answer = |name: &str| {
            alice
                .ask("GET", &format!("{path}{name}"), "")
                .1
                .replace(name, "")
        };
        assert_eq!(answer("54322:bulk"), answer("54322:none"), "{path}");
    }
    sums_are_of_ones_own(alice, root);
}

fn each_route_has_a_row(description: &Value) {
    let mut there = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            there.insert((method.to_uppercase(), path.clone()));
        }
    }
    let rows = ROWS
        .iter()
        .map(|(method, route, ..)| ((*method).to_owned(), (*route).to_owned()));
    let rows: BTreeSet<_> = rows.collect();
    let without: Vec<_> = there.difference(&rows).collect();
    assert!(
        without.is_empty(),
        "a route without a row here: {without:?}"
    );
}

/// With a sum of all and their own, they would have what others get.
fn sums_are_of_ones_own(alice: &User, root: &User) {
    assert_eq!(alice.get("/v1/status")["guaranteed"]["read"], 1_234_567.0);
    assert_eq!(root.get("/v1/status")["guaranteed"]["read"], 11_111_110.0);
    let services = alice.get("/v1/services");
    let resources = services["services"][0]["resources"].as_array();
    let read = resources.and_then(|all| all.iter().find(|of| of["resource"] == "read"));
    let read = read.expect("it reads");
    let group = &services["groups"][0];
    assert_eq!(group["name"], "g");
    assert_eq!(group["got"]["read"], read["got"]);
    assert_eq!(group["share"]["read"], read["share"]);
}
