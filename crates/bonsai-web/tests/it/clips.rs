//! A folder of clips.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::{Said, Server, bytes};

/// More than sockets take in between.
const LARGE: usize = 64 << 20;

fn folder() -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("clips")).expect("made");
    fs::write(place.path().join("secret.mp4"), "secret").expect("written");
    place
}

fn write(place: &Path, name: &str, bytes: &[u8]) {
    let path = place.join("clips").join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_clip_comes_whole_in_parts_and_not_again() {
    let place = folder();
    let film = bytes(300_000, 3);
    write(place.path(), "a b.mp4", &film);
    let server = Server::of_clips(&place.path().join("clips"));
    let path = "/a%20b.mp4";
    let whole = server.get(path);
    assert_eq!(
        (whole.status, whole.header("content-type")),
        (200, "video/mp4")
    );
    assert!(whole.body == film && whole.header("accept-ranges") == "bytes");
    let etag = whole.header("etag").to_owned();
    assert!(etag.starts_with('"'), "a strong one: {etag}");
    let ask = |lines: &[&str]| server.ask("GET", path, lines, "");
    for (range, from, to) in [
        ("bytes=100-199", 100, 200),
        ("bytes=299990-", 299_990, 300_000),
        ("bytes=-10", 299_990, 300_000),
        ("bytes=299999-400000", 299_999, 300_000),
        ("bytes=-400000", 0, 300_000),
        ("BYTES=0-9,", 0, 10),
    ] {
        let part = ask(&[&format!("Range: {range}")]);
        assert_eq!(part.status, 206, "{range}");
        assert_eq!(
            part.header("content-range"),
            format!("bytes {from}-{}/300000", to - 1)
        );
        assert!(part.body == film[from..to], "{range}");
    }
    let far = ask(&["Range: bytes=300000-"]);
    assert_eq!(
        (far.status, far.header("content-range")),
        (416, "bytes */300000")
    );
    assert!(far.error().contains("no such part"), "{far:?}");
    for whole in ["lines=1-2", "bytes=5-2", "bytes=x"] {
        assert_eq!(ask(&[&format!("Range: {whole}")]).status, 200, "{whole}");
    }
    let head = server.ask("HEAD", path, &["Range: bytes=0-9"], "");
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, "300000")
    );
    let changed = ask(&["If-Match: \"other\""]);
    assert_eq!(changed.status, 412);
    assert!(changed.error().contains("not the one"), "{changed:?}");
    let several = ask(&["Range: bytes=0-1,5-6"]);
    assert_eq!((several.status, several.body.len()), (200, film.len()));
    let same = ask(&[&format!("If-None-Match: \"x\", {etag}")]);
    assert_eq!((same.status, same.body.len()), (304, 0));
    let rest = ask(&["Range: bytes=5-", &format!("If-Range: {etag}")]);
    assert_eq!((rest.status, rest.body.len()), (206, film.len() - 5));
    let other = ask(&["Range: bytes=5-", "If-Range: \"other\""]);
    assert_eq!((other.status, other.body.len()), (200, film.len()));
    let head = server.ask("HEAD", path, &[], "");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), "300000");
    assert_eq!(head.header("etag"), etag);
    let post = server.ask("POST", path, &[], "x");
    assert_eq!((post.status, post.header("allow")), (405, "GET,HEAD"));
    assert!(post.error().contains("Allow"), "{post:?}");
    let policy = post.header("cross-origin-resource-policy");
    assert_eq!(policy, "same-origin");
    let summary = server.end();
    assert!(
        summary.requests >= 10 && summary.bytes >= 900_000,
        "{summary:?}"
    );
    assert_eq!(summary.cut_short, 0);
}

#[test]
fn nothing_outside_is_sent_and_nothing_hidden() {
    let place = folder();
    write(place.path(), "inside.mp4", b"inside");
    write(place.path(), ".hidden.mp4", b"secret");
    write(place.path(), ".git/a.mp4", b"secret");
    write(place.path(), "letter.txt", b"secret");
    fs::create_dir(place.path().join("clips/folder.mp4")).expect("made");
    let clips = place.path().join("clips");
    symlink("../secret.mp4", clips.join("link.mp4")).expect("linked");
    symlink(place.path().join("secret.mp4"), clips.join("absolute.mp4")).expect("linked");
    symlink("..", clips.join("up")).expect("linked");
    symlink("inside.mp4", clips.join("own.mp4")).expect("linked");
    let server = Server::of_clips(&clips);
    assert_eq!(server.get("/own.mp4").body, b"inside");
    for (path, status) in [
        ("/link.mp4", 403),
        ("/absolute.mp4", 403),
        ("/up/secret.mp4", 403),
        ("/folder.mp4", 403),
        ("/../secret.mp4", 404),
        ("/%2e%2e/secret.mp4", 404),
        ("/..%2fsecret.mp4", 404),
        ("/folder.mp4/../../secret.mp4", 404),
        ("//secret.mp4", 404),
        ("/.hidden.mp4", 404),
        ("/.git/a.mp4", 404),
        ("/letter.txt", 404),
        ("/inside.mp4/", 404),
        ("/inside.mp4%00", 404),
        ("/nowhere.mp4", 404),
        ("/%ff.mp4", 404),
        ("/-/../../secret.mp4", 404),
        ("/-/%ff", 404),
        ("/-/%2e%2e/src/lib.rs", 404),
    ] {
        let said = server.get(path);
        assert_eq!(said.status, status, "{path}: {said:?}");
        assert!(
            !said.body.windows(6).any(|window| window == b"secret"),
            "{path}"
        );
    }
    server.until_told("GET /link.mp4: 403 a link leads out of the folder");
    let listed = server.get("/clips").json();
    let paths: Vec<_> = listed["clips"].as_array().expect("clips").iter().collect();
    assert_eq!(paths.len(), 2, "{listed}");
    assert_eq!(
        (&paths[0]["path"], &paths[1]["path"]),
        (&"inside.mp4".into(), &"own.mp4".into())
    );
}

#[test]
fn the_list_is_for_people_too_and_no_name_in_it_is_markup() {
    let place = folder();
    write(place.path(), "deep/<b> & 'c'?.mp4", b"film");
    let server = Server::of_clips(&place.path().join("clips"));
    let page = server.get("/");
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, "text/html; charset=utf-8")
    );
    assert!(
        page.header("content-security-policy")
            .starts_with("default-src 'none'")
    );
    let text = String::from_utf8(page.body).expect("UTF-8");
    let link = text
        .split("<td><a href=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let link = link.expect("a link");
    assert!(text.contains("deep/&lt;b&gt; &amp; &#39;c&#39;?.mp4") && !text.contains("<b>"));
    // A film is played by the page, which has its address.
    assert_eq!(server.get(&format!("/{link}")).status, 200);
    let (_, film) = link.split_once("watch.html?film=").expect("a film");
    assert_eq!(server.get(&format!("/{film}")).body, b"film");
    assert_eq!(server.get("/-/css/base.css").status, 200);
}

/// Begins to ask for a clip, and reads so much of it.
fn begin(server: &Server, path: &str, much: usize) -> (std::net::TcpStream, Vec<u8>) {
    let mut stream = server.connect();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        server.at
    );
    stream.write_all(request.as_bytes()).expect("asked");
    let mut start = vec![0; much];
    stream.read_exact(&mut start).expect("its start");
    (stream, start)
}

/// The rest of an answer: how many bytes of the body came in all, and whether they are those of a film.
fn rest(stream: &mut std::net::TcpStream, start: &[u8], film: &[u8]) -> (usize, bool) {
    let mut bytes = start.to_vec();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let body = &bytes[end + 4..];
    (body.len(), film.starts_with(body))
}

#[test]
fn a_clip_that_is_replaced_while_it_is_sent_is_sent_as_it_was() {
    let place = folder();
    let film = bytes(LARGE, 4);
    write(place.path(), "a.mp4", &film);
    let server = Server::of_clips(&place.path().join("clips"));
    let (mut stream, start) = begin(&server, "/a.mp4", 1000);
    let other = place.path().join("other");
    fs::write(&other, bytes(LARGE, 99)).expect("written");
    fs::rename(&other, place.path().join("clips/a.mp4")).expect("replaced");
    assert_eq!(rest(&mut stream, &start, &film), (LARGE, true));
    assert!(
        server.get("/a.mp4").body == bytes(LARGE, 99),
        "the next one gets the other"
    );
    assert_eq!(server.end().cut_short, 0);
}

#[test]
fn a_clip_that_is_written_to_or_cut_while_it_is_sent_ends_before_its_end() {
    let place = folder();
    let film = bytes(LARGE, 5);
    for (name, edit) in [
        (
            "written.mp4",
            (|path| fs::write(path, bytes(LARGE, 9))) as fn(&Path) -> std::io::Result<()>,
        ),
        ("cut.mp4", |path| {
            fs::File::options()
                .write(true)
                .open(path)?
                .set_len(2_000_000)
        }),
    ] {
        write(place.path(), name, &film);
        write(place.path(), "other.mp4", &film);
        let server = Server::of_clips(&place.path().join("clips"));
        let (mut stream, start) = begin(&server, &format!("/{name}"), 1000);
        let (mut beside, start_beside) = begin(&server, "/other.mp4", 1000);
        edit(&place.path().join("clips").join(name)).expect("edited");
        let (came, is_of_film) = rest(&mut stream, &start, &film);
        assert!(came < LARGE && is_of_film, "{name}: {came}");
        server.until_told(&format!("/{name}: the file has changed"));
        // Nobody else notices.
        assert_eq!(rest(&mut beside, &start_beside, &film), (LARGE, true));
        let again: Said = server.ask("GET", "/other.mp4", &["Range: bytes=0-9"], "");
        assert_eq!(again.body, &film[..10]);
        assert_eq!(server.end().cut_short, 1);
    }
}

#[test]
fn pages_of_an_origin_may_read_clips() {
    let place = folder();
    write(place.path(), "a.mp4", &bytes(1000, 3));
    let clips = place.path().join("clips");
    let origin = "Origin: https://page.example";
    let server = Server::of_origin(&clips, "https://page.example");
    let asked = [
        origin,
        "Access-Control-Request-Method: GET",
        "Access-Control-Request-Headers: range",
    ];
    let told = server.ask("OPTIONS", "/a.mp4", &asked, "");
    assert_eq!((told.status, told.body.len()), (204, 0));
    assert!(
        told.header("access-control-allow-headers")
            .contains("range")
    );
    assert!(told.header("access-control-allow-methods").contains("GET"));
    for (path, status) in [("/a.mp4", 206), ("/no.mp4", 404)] {
        let part = server.ask("GET", path, &[origin, "Range: bytes=0-9"], "");
        assert_eq!(part.status, status, "{path}");
        assert_eq!(
            part.header("access-control-allow-origin"),
            "https://page.example"
        );
        assert_eq!(part.header("cross-origin-resource-policy"), "cross-origin");
        assert!(
            part.header("access-control-expose-headers")
                .contains("content-range")
        );
    }
    // Without the option, no page of elsewhere.
    let server = Server::of_clips(&clips);
    assert_eq!(server.ask("OPTIONS", "/a.mp4", &asked, "").status, 405);
    let whole = server.ask("GET", "/a.mp4", &[origin], "");
    assert_eq!(
        (whole.status, whole.header("access-control-allow-origin")),
        (200, "")
    );
}
