//! The router, asked directly and by a player.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use bonsai_davvi::{Import, Library, router};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::support::{events, film_of, folder, has, import, plain, played};

/// A library of one match, below a folder that holds a secret.
fn library(folder: &std::path::Path) -> Library {
    std::fs::write(folder.join("secret.mp4"), "secret").expect("written");
    let root = folder.join("library");
    let file = film_of(folder, "match.mp4", "8", "testsrc2=size=96x54:rate=10", &[]);
    let lines = [
        "time,type,players,text",
        "0:03,goal,8,A header",
        "0:07,tackle,14,Sliding",
    ];
    import(
        &root,
        &Import {
            events: events(folder, &lines),
            ..plain(&file)
        },
    );
    Library::open(&root).expect("a library")
}

struct Said {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Vec<u8>,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    fn header(&self, name: &header::HeaderName) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("text"))
    }
}

async fn ask(
    app: &Router,
    method: Method,
    uri: &str,
    headers: &[(header::HeaderName, &str)],
    body: &str,
) -> Said {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    let request = request
        .body(Body::from(body.to_owned()))
        .expect("a request");
    let response = app.clone().oneshot(request).await.expect("an answer");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes().to_vec();
    Said {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

async fn get(app: &Router, uri: &str) -> Said {
    ask(app, Method::GET, uri, &[], "").await
}

#[tokio::test]
async fn segments_come_with_ranges_and_etags() {
    if !has("ranges", "ffmpeg") {
        return;
    }
    let folder = folder();
    let library = library(folder.path());
    let file = std::fs::read(library.path().join("match/54p/00001.mp4")).expect("read");
    let app = router::<()>(library);
    let uri = "/media/match/54p/00001.mp4";
    let whole = get(&app, uri).await;
    assert_eq!(
        (whole.status, whole.header(&header::CONTENT_TYPE)),
        (StatusCode::OK, "video/mp4")
    );
    assert_eq!(whole.body, file);
    let etag = whole.header(&header::ETAG).to_owned();
    assert!(etag.starts_with('"') && whole.header(&header::CACHE_CONTROL).contains("max-age"));
    let part = ask(
        &app,
        Method::GET,
        uri,
        &[(header::RANGE, "bytes=100-199")],
        "",
    )
    .await;
    assert_eq!(part.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.body, &file[100..200]);
    let range = format!("bytes 100-199/{}", file.len());
    assert_eq!(part.header(&header::CONTENT_RANGE), range);
    let same = ask(
        &app,
        Method::GET,
        uri,
        &[(header::IF_NONE_MATCH, &etag)],
        "",
    )
    .await;
    assert_eq!(
        (same.status, same.body.len()),
        (StatusCode::NOT_MODIFIED, 0)
    );
    let rest = [
        (header::RANGE, "bytes=5-"),
        (header::IF_RANGE, etag.as_str()),
    ];
    let rest = ask(&app, Method::GET, uri, &rest, "").await;
    assert_eq!(
        (rest.status, rest.body.len()),
        (StatusCode::PARTIAL_CONTENT, file.len() - 5)
    );
    let other = [(header::RANGE, "bytes=5-"), (header::IF_RANGE, "\"other\"")];
    let other = ask(&app, Method::GET, uri, &other, "").await;
    assert_eq!(
        (other.status, other.body.len()),
        (StatusCode::OK, file.len())
    );
    let far = ask(
        &app,
        Method::GET,
        uri,
        &[(header::RANGE, "bytes=999999999-")],
        "",
    )
    .await;
    assert_eq!(far.status, StatusCode::RANGE_NOT_SATISFIABLE);
    let head = ask(&app, Method::HEAD, uri, &[], "").await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.header(&header::CONTENT_LENGTH), file.len().to_string());
    let list = get(&app, "/media/match/master.m3u8").await;
    assert_eq!(
        list.header(&header::CONTENT_TYPE),
        "application/vnd.apple.mpegurl"
    );
    assert_eq!(list.header(&header::CACHE_CONTROL), "no-cache");
    let posted = ask(&app, Method::POST, uri, &[], "x").await;
    assert_eq!(posted.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn no_path_leads_out_of_the_library() {
    if !has("traversal", "ffmpeg") {
        return;
    }
    let folder = folder();
    let library = library(folder.path());
    let link = library.path().join("match/54p/99999.mp4");
    std::os::unix::fs::symlink(folder.path().join("secret.mp4"), link).expect("linked");
    std::os::unix::fs::symlink(folder.path(), library.path().join("out")).expect("linked");
    std::fs::create_dir_all(folder.path().join("54p")).expect("made");
    std::fs::write(folder.path().join("54p/00000.mp4"), "secret").expect("written");
    let app = router::<()>(library);
    for uri in [
        "/media/match/54p/99999.mp4",
        "/media/out/54p/00000.mp4",
        "/media/../secret.mp4",
        "/media/match/../../secret.mp4",
        "/media/%2e%2e/54p/00000.mp4",
        "/media/match/54p/..%2f..%2f..%2fsecret.mp4",
        "/media/match/54p%2f00000.mp4",
        "/media/match/%2e%2e/00000.mp4",
        "/media/match/54p/%2e%2e%2f00000.mp4",
        "/media/match/54p/00000.mp4%00",
        "/media/match/video.json",
        "/media/match/events.json",
        "/media/.private/index.db",
        "/media/.private/54p/00000.mp4",
        "/media/match/54p/",
        "/media/match/54p",
        "/media/match/",
        "/media/",
        "//etc/passwd",
        "/media/match/54p/00099.mp4",
        "/media/MATCH/master.m3u8",
    ] {
        let said = get(&app, uri).await;
        let is_refused =
            said.status == StatusCode::NOT_FOUND || said.status == StatusCode::BAD_REQUEST;
        assert!(is_refused, "{uri}: {}", said.status);
        assert!(
            !said.body.windows(6).any(|window| window == b"secret"),
            "{uri}"
        );
    }
}

#[tokio::test]
async fn a_search_is_asked_and_answered() {
    if !has("asked", "ffmpeg") {
        return;
    }
    let folder = folder();
    let app = router::<()>(library(folder.path()));
    let found = get(&app, "/search?q=header&player=8,9&type=goal").await;
    assert_eq!(found.status, StatusCode::OK);
    let found = found.json();
    assert_eq!(
        (&found["total"], &found["hits"][0]["video"]),
        (&json!(1), &json!("match"))
    );
    assert_eq!(found["hits"][0]["event"]["at_ms"], 3000);
    for (uri, word) in [
        ("/search", "what to look for"),
        ("/search?q=%22", "quote"),
        ("/search?colour=red", "colour"),
        ("/search?q=a&from=90", "MM:SS"),
        ("/search?q=a&video=..", "no name of a video"),
        ("/search?q=a&video=nowhere", "no video is called nowhere"),
        ("/personal/master.m3u8?q=header&length=5", "unit"),
        ("/personal/master.m3u8?q=offside", "nothing was found"),
        ("/recommended", "nothing was watched"),
    ] {
        let said = get(&app, uri).await;
        assert_eq!(said.status, StatusCode::BAD_REQUEST, "{uri}");
        let text = said.json()["error"].to_string();
        assert!(
            text.contains(word) && !text.contains(folder.path().to_str().expect("UTF-8")),
            "{uri}: {text}"
        );
    }
    let json_type = [(header::CONTENT_TYPE, "application/json")];
    let noted = json!({"events": [{"video": "match", "number": 0}]}).to_string();
    let noted = ask(&app, Method::POST, "/watched", &json_type, &noted).await;
    assert_eq!(noted.status, StatusCode::NO_CONTENT);
    let bad = ask(
        &app,
        Method::POST,
        "/watched",
        &json_type,
        "{\"events\": [{\"video\": \"../x\", \"number\": 0}]}",
    )
    .await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    let all = get(&app, "/videos").await.json();
    assert_eq!(all["videos"][0]["length_ms"], 8000);
    let list = get(&app, "/personal/master.m3u8?q=header%22%0a&length=2min").await;
    assert_eq!(list.status, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_player_plays_what_is_served() {
    if !has("served", "ffmpeg") {
        return;
    }
    let folder = folder();
    let app = Router::new().nest("/films", router::<()>(library(folder.path())));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let play = async |path: &str| {
        let uri = format!("http://{address}/films/{path}");
        tokio::task::spawn_blocking(move || played(&uri, "0:v:0"))
            .await
            .expect("played")
    };
    assert_eq!(play("media/match/master.m3u8").await.0, 80);
    assert_eq!(play("media/match/manifest.mpd").await.0, 80);
    // A second on each side of 3 s is segment 1.
    let (pictures, _) = play("personal/master.m3u8?q=header&before=1s&after=1s&length=10s").await;
    assert_eq!(pictures, 20);
    // This player asks for one segment more of any DASH, and here it is there.
    let (pictures, _) = play("personal/manifest.mpd?q=header&before=1s&after=1s").await;
    assert_eq!(pictures, 20 + 20);
    server.abort();
}
