//! Requests: those that make sense, and those that do not.

use std::io::Write;
use std::os::unix::net::UnixStream;

use super::fixture::{Ring, over_tcp, request};

const FILE: &str = "[capacity]\nread = \"20MB/s\"\n[services.vod.read]\nmin = \"15MB/s\"\n";

fn is_problem(ring: &Ring, bytes: &str, status: u16, expected: &str) {
    let answer = ring.raw(bytes.as_bytes());
    assert_eq!(answer.status, status, "{bytes:.200}: {answer:?}");
    assert!(
        answer.head.contains("application/problem+json"),
        "{answer:?}"
    );
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{problem}");
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains(expected)),
        "{problem}"
    );
}

#[test]
fn malformed_requests_are_answered() {
    let ring = Ring::started(FILE);
    let patch = |body: &str| request("PATCH", "/v1/services/vod", &[], body);
    let before = ring.get("/v1/config");
    for (bytes, status, expected) in [
        (patch("{"), 400, "EOF while parsing"),
        (patch("{} {}"), 400, "trailing characters"),
        (patch("[1]"), 422, "a change is a JSON object"),
        (
            patch("{\"read\":{\"min\":5}}"),
            422,
            "services.vod.read.min: ",
        ),
        (
            patch("{\"read\":{\"min\":\"5\"}}"),
            422,
            "services.vod.read.min: ",
        ),
        (patch("{\"read\":{\"min\":\"21MB/s\"}}"), 422, "21 MB/s"),
        (patch("{\"read\":{\"weight\":0}}"), 422, "0 is no weight"),
        (patch("{\"raed\":{}}"), 422, "there is no setting"),
        (patch("{\"group\":\"none\"}"), 422, "none"),
        (
            request(
                "PATCH",
                "/v1/config",
                &[],
                "{\"groups\":{\"a\":{\"parent\":\"b\"},\"b\":{\"parent\":\"a\"}}}",
            ),
            422,
            "a in b in a",
        ),
        (
            request(
                "PATCH",
                "/v1/config",
                &[],
                "{\"groups\":{\"a\":{\"parent\":\"a\"}}}",
            ),
            422,
            "a in a",
        ),
        (
            request("PATCH", "/v1/services/a%20b", &[], "{}"),
            422,
            "services.a b: ",
        ),
        (
            request("PATCH", "/v1/services/vod?for=1ms", &[], "{}"),
            422,
            "from 1s to a year",
        ),
        (
            request("PATCH", "/v1/services/vod?for=x", &[], "{}"),
            400,
            "for",
        ),
        (
            request("PATCH", "/v1/services/vod?four=1s", &[], "{}"),
            400,
            "four",
        ),
        (
            request(
                "PATCH",
                "/v1/config",
                &[],
                "{\"daemon\":{\"period\":\"1s\"}}",
            ),
            422,
            "is settled",
        ),
        (
            request("PATCH", "/v1/config", &["if-match: 7"], "{}"),
            400,
            "is no revision",
        ),
        (
            request("PATCH", "/v1/config", &["if-match: \"77777\""], "{}"),
            412,
            "changed meanwhile",
        ),
        (
            request("PATCH", "/v1/config", &["content-type: text/plain"], "{}"),
            415,
            "application/json",
        ),
        (
            request("GET", "/v1/services/nobody", &[], ""),
            404,
            "nobody",
        ),
        (request("GET", "/v1/nothing", &[], ""), 404, "there is no"),
        (
            request("DELETE", "/v1/services/vod", &[], ""),
            405,
            "not asked with this method",
        ),
        (request("GET", "/v1/audit?limit=0", &[], ""), 422, "limit"),
        (
            request("GET", "/v1/history?from=5&to=3", &[], ""),
            422,
            "from",
        ),
        (
            request("GET", "/v1/history?points=0", &[], ""),
            422,
            "0 points",
        ),
        (
            request("GET", "/v1/history?resource=disk", &[], ""),
            400,
            "disk",
        ),
        (
            request("GET", "/v1/events?interval=1ms", &[], ""),
            422,
            "100ms to 60s",
        ),
        (
            request("POST", "/v1/undo", &[], "{\"revision\":99}"),
            409,
            "no change to undo",
        ),
        (
            request("POST", "/v1/reports", &[], "{\"service\":\"x\",\"loss\":2}"),
            404,
            "x",
        ),
        (
            request(
                "POST",
                "/v1/admit",
                &[],
                "{\"service\":\"vod\",\"streams\":1,\"rate\":\"5%\"}",
            ),
            422,
            "rate",
        ),
        (request("DELETE", "/v1/tokens/none", &[], ""), 404, "none"),
    ] {
        is_problem(&ring, &bytes, status, expected);
    }
    assert_eq!(ring.get("/v1/config"), before, "nothing was half applied");
}

#[test]
fn requests_that_are_too_large_or_never_end_harm_nobody() {
    let ring = Ring::started(FILE);
    let large = format!("{{\"reason\":\"{}\"}}", "x".repeat(100_000));
    is_problem(
        &ring,
        &request("PATCH", "/v1/config", &[], &large),
        413,
        "larger",
    );
    let long = request("GET", &format!("/{}", "x".repeat(1 << 20)), &[], "");
    let answer = ring.raw(long.as_bytes());
    assert!(
        (400..500).contains(&answer.status) || answer.status == 0,
        "{answer:?}"
    );
    let twice = "{\"capacity\":{\"read\":\"1MB/s\",\"read\":\"2MB/s\"}}";
    is_problem(
        &ring,
        &request("PATCH", "/v1/config", &[], twice),
        400,
        "capacity: \"read\" is there twice",
    );
    let deep = "[".repeat(10_000);
    is_problem(
        &ring,
        &request("PATCH", "/v1/config", &[], &deep),
        400,
        "recursion limit",
    );
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        &[0xff; 4096],
    ] {
        let _ = ring.raw(garbage);
    }
    // Some who say nothing, or only a part.
    let slow: Vec<UnixStream> = (0..100)
        .map(|i| {
            let mut stream = UnixStream::connect(ring.socket()).expect("a connection");
            if i % 2 == 0 {
                stream
                    .write_all(b"PATCH /v1/config HTTP/1.1\r\nhost: x\r\ncontent-le")
                    .expect("sent");
            }
            stream
        })
        .collect();
    ring.get("/v1/status");
    drop(slow);
    ring.get("/v1/services");
}

#[test]
fn a_change_that_somebody_else_was_faster_with_is_refused() {
    let ring = Ring::started(FILE);
    let answer = ring.ask("GET", "/v1/config", "");
    let tag = answer
        .head
        .lines()
        .find_map(|line| line.strip_prefix("etag: ").map(str::to_owned));
    let tag = format!("if-match: {}", tag.expect("a tag"));
    let patch = |weight: u16| {
        let body = format!("{{\"read\":{{\"weight\":{weight}}}}}");
        ring.raw(request("PATCH", "/v1/services/vod", &[&tag], &body).as_bytes())
    };
    assert_eq!(patch(2).status, 200);
    assert_eq!(patch(3).status, 412);
    assert_eq!(
        ring.get("/v1/config")["services"]["vod"]["read"]["weight"],
        2
    );
}

#[test]
fn over_tcp_a_token_is_shown_and_names_are_checked() {
    let mut ring = Ring::new(FILE);
    let said = ring.start(&["--listen", "127.0.0.1:0"]);
    let address = said
        .trim()
        .rsplit(' ')
        .next()
        .expect("an address")
        .to_owned();
    let ask = |method: &str, path: &str, headers: &[&str], body: &str| {
        let host = format!("host: {address}");
        let mut all = vec![host.as_str()];
        if headers.iter().any(|header| header.starts_with("host:")) {
            all.clear();
        }
        all.extend(headers);
        over_tcp(&address, &request(method, path, &all, body))
    };
    assert_eq!(
        ask("GET", "/", &[], "").status,
        200,
        "the page is for everybody"
    );
    let nobody = ask("GET", "/v1/status", &[], "");
    assert_eq!(nobody.status, 401);
    assert!(
        nobody.head.contains("www-authenticate: bearer"),
        "{nobody:?}"
    );
    assert_eq!(
        ask("GET", "/v1/status", &["authorization: Bearer wrong"], "").status,
        401
    );
    let token = |scope: &str| {
        let made = ring.done(&["token", "create", scope, "--scope", scope]);
        format!("authorization: Bearer {}", made.trim())
    };
    let (read, write) = (token("read"), token("write"));
    ring.refused(&["token", "create", "read"], "revoke it first");
    assert_eq!(ask("GET", "/v1/status", &[&read], "").status, 200);
    let body = "{\"read\":{\"weight\":7}}";
    assert_eq!(
        ask("PATCH", "/v1/services/vod", &[&read], body).status,
        403,
        "it may only look"
    );
    assert_eq!(
        ask("PATCH", "/v1/config", &[&read], "{}").status,
        403,
        "it may only look"
    );
    assert_eq!(
        ask("PATCH", "/v1/services/vod", &[&write], body).status,
        200
    );
    assert_eq!(
        ask(
            "POST",
            "/v1/tokens",
            &[&write],
            "{\"name\":\"x\",\"scope\":\"read\"}"
        )
        .status,
        403
    );
    // Somebody else's name for this address, and somebody else's page.
    assert_eq!(
        ask("GET", "/v1/status", &[&read, "host: evil.example"], "").status,
        403
    );
    assert_eq!(ask("GET", "/", &["host: evil.example"], "").status, 403);
    assert_eq!(
        ask(
            "GET",
            "/v1/status",
            &[&read, "origin: http://evil.example"],
            ""
        )
        .status,
        403
    );
    let own = format!("origin: http://{address}");
    assert_eq!(ask("GET", "/v1/status", &[&read, &own], "").status, 200);
    ring.done(&["token", "revoke", "read"]);
    assert_eq!(ask("GET", "/v1/status", &[&read], "").status, 401);
    let kept = std::fs::read_to_string(ring.state().join("tokens.json")).expect("a file");
    assert!(
        !kept.contains(write.rsplit(' ').next().expect("a token")),
        "only its hash is kept"
    );
    ring.refused(&["config", "set", "api.listen=0.0.0.0:1"], "is settled");
}

#[test]
fn whoever_asks_too_often_is_told_to_wait() {
    let ring = Ring::started(&format!("{FILE}[api]\nrequests = 5\n"));
    let statuses: Vec<u16> = (0..30)
        .map(|_| ring.ask("GET", "/v1/status", "").status)
        .collect();
    assert!(
        statuses.contains(&200) && statuses.contains(&429),
        "{statuses:?}"
    );
}

#[test]
fn the_description_is_of_what_there_is() {
    let ring = Ring::started(FILE);
    let description = ring.get("/v1/openapi.json");
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../api/openapi.json");
    let committed = std::fs::read_to_string(committed).expect("api/openapi.json");
    let committed: serde_json::Value = serde_json::from_str(&committed).expect("JSON");
    assert_eq!(description, committed);
    for path in [
        "/v1/status",
        "/v1/services",
        "/v1/config",
        "/v1/audit",
        "/v1/qos",
        "/v1/history",
        "/v1/history/known",
        "/v1/tokens",
    ] {
        assert!(!description["paths"][path].is_null(), "{path}");
        ring.get(path);
    }
}

#[test]
fn events_come_as_they_happen() {
    use std::io::{BufRead, BufReader};
    let ring = Ring::started(FILE);
    let mut stream = UnixStream::connect(ring.socket()).expect("a connection");
    let bytes = "GET /v1/events?interval=100ms HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(bytes.as_bytes()).expect("sent");
    let reader = BufReader::new(stream);
    let mut seen = Vec::new();
    for line in reader.lines() {
        let line = line.expect("a line");
        if let Some(event) = line.strip_prefix("event: ") {
            if seen.is_empty() {
                ring.done(&["set", "vod", "read=16MB/s"]);
            }
            if !seen.iter().any(|known| known == event) {
                seen.push(event.to_owned());
            }
        }
        if seen.len() == 3 {
            break;
        }
    }
    assert_eq!(seen[0], "services", "{seen:?}");
    assert!(
        seen.contains(&"audit".to_owned()) && seen.contains(&"status".to_owned()),
        "{seen:?}"
    );
}

#[test]
fn metrics_are_those_of_the_dashboard() {
    let ring = Ring::started(FILE);
    let _vod = ring.reader("vod");
    ring.until("it is in the pool", |ring| {
        ring.of("vod", "read")["enforced"] == "pool"
    });
    ring.done(&["set", "vod", "read=16MB/s"]);
    // A client that does not ask for OpenMetrics gets the older format, in which a counter is described by its whole name.
    let plain = ring.ask("GET", "/metrics", "");
    assert!(
        plain.head.contains("text/plain; version=0.0.4"),
        "{plain:?}"
    );
    assert!(
        plain
            .body
            .contains("# TYPE bonsai_service_bytes_total counter\n"),
        "{plain:?}"
    );
    assert!(
        plain.body.contains("# HELP bonsai_service_bytes_total "),
        "{plain:?}"
    );
    assert!(!plain.body.contains("# EOF"), "{plain:?}");
    let open = ["accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"];
    let answer = ring.raw(request("GET", "/metrics", &open, "").as_bytes());
    assert!(
        answer.head.contains("application/openmetrics-text"),
        "{answer:?}"
    );
    assert!(answer.body.ends_with("# EOF\n"), "{answer:?}");
    assert!(
        answer
            .body
            .contains("# TYPE bonsai_service_bytes counter\n"),
        "{answer:?}"
    );
    assert!(
        answer.body.contains("bonsai_build_info{version="),
        "{answer:?}"
    );
    // One line after another: a type, a help, values with labels.
    let mut known = std::collections::BTreeSet::new();
    for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        assert!(name.starts_with("bonsai_"), "{line}");
        let value = line
            .rsplit(' ')
            .next()
            .and_then(|value| value.parse::<f64>().ok());
        assert!(value.is_some_and(f64::is_finite), "{line}");
        known.insert(name.to_owned());
    }
    let vod =
        "bonsai_service_guarantee_bytes_per_second{service=\"vod\",resource=\"read\"} 15000000.0";
    assert!(answer.body.contains(vod), "{}", answer.body);
    let dashboard = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/grafana/bonsai.json"
    );
    let dashboard = std::fs::read_to_string(dashboard).expect("a dashboard");
    let names = dashboard.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: Vec<&str> = names.filter(|name| name.starts_with("bonsai_")).collect();
    assert!(names.len() > 10, "{names:?}");
    // Interfaces are root's, and have a test of their own.
    for name in names
        .iter()
        .filter(|name| !name.starts_with("bonsai_link_"))
    {
        assert!(
            known.contains(*name),
            "{name} is in the dashboard, and not among {known:?}"
        );
    }
}

#[test]
fn a_further_limit_is_repeated_in_the_unit_that_it_was_written_in() {
    let ring = Ring::started("[services.vod.limits]\nrecvfrom = \"8Mbit/s\"\n");
    let _vod = ring.reader("vod");
    let said = ring.done(&["set", "vod", "sendto=2Mbit/s:burst=10ms"]);
    let expected = "vod.limits.sendto: nothing -> 2Mbit/s:burst=10ms\n";
    assert_eq!(said, expected);
    ring.done(&["set", "vod", "sendmsg=1MB/s"]);
    let limits = |ring: &Ring| ring.get("/v1/services/vod")["limits"].clone();
    let expected = serde_json::json!({
        "recvfrom": "8Mbit/s",
        "sendto": "2Mbit/s:burst=10ms",
        "sendmsg": "1MB/s",
    });
    ring.until("all are in force", |ring| limits(ring) == expected);
    // What somebody else has put there is not what was written here.
    let other = &["set", "vod", "recvfrom=16Mbit/s", "--direct"];
    ring.done(other);
    ring.until("the other one is shown", |ring| {
        limits(ring)["recvfrom"] == "2MB/s"
    });
}
