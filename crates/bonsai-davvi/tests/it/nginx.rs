//! The real nginx, with the configuration that is made for it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bonsai_davvi::{Import, Library, Nginx, nginx};

use crate::support::{film_of, folder, has, import, plain, played, run};

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Its workers end with it only when it is asked to end.
        let _ = Command::new("kill")
            .args(["-TERM", &self.0.id().to_string()])
            .status();
        let _ = self.0.wait();
    }
}

/// The answer to a request, its head and its body together.
fn asked(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("asked");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("answered");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn nginx_serves_a_library_and_nothing_else() {
    if !has("nginx", "ffmpeg") || !has("nginx", "nginx") {
        return;
    }
    let folder = folder();
    let root = folder.path().join("my library");
    let file = film_of(
        folder.path(),
        "match.mp4",
        "8",
        "testsrc2=size=96x54:rate=10",
        &[],
    );
    import(
        &root,
        &Import {
            is_readable: true,
            ..plain(&file)
        },
    );
    let library = Library::open(&root).expect("a library");
    std::os::unix::fs::symlink(folder.path(), root.join("out")).expect("linked");
    std::fs::write(root.join("match/54p/99.txt"), "x").expect("written");
    let port = conformance::Port::free();
    let address = port.address();
    let is_root = String::from_utf8_lossy(&run("id", &["-u"]).stdout).trim() == "0";
    let how = Nginx {
        listen: address,
        // The folder above is the test's own, and closed.
        user: is_root.then(|| "root".to_owned()),
        origin: Some("http://127.0.0.1:9".to_owned()),
    };
    let config = folder.path().join("nginx.conf");
    std::fs::write(&config, nginx(&library, &how).expect("a configuration")).expect("written");
    let config = config.to_str().expect("UTF-8");
    run("nginx", &["-e", "stderr", "-t", "-c", config]);
    let server = Command::new("nginx")
        .args(["-e", "stderr", "-c", config])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Server(server.expect("started"));
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        played(&format!("http://{address}/match/master.m3u8"), "0:v:0").0,
        80
    );
    assert_eq!(
        played(&format!("http://{address}/match/manifest.mpd"), "0:v:0").0,
        80
    );
    let list = asked(address, "GET /match/master.m3u8");
    assert!(
        list.contains("Content-Type: application/vnd.apple.mpegurl"),
        "{list}"
    );
    assert!(
        list.contains("Cache-Control: private, no-cache")
            && list.contains("Access-Control-Allow-Origin: http://127.0.0.1:9"),
        "{list}"
    );
    let segment = asked(address, "HEAD /match/54p/00000.mp4");
    for word in [
        "200 OK",
        "Content-Type: video/mp4",
        "ETag: ",
        "Accept-Ranges: bytes",
        "Cache-Control: private, no-cache",
        "Access-Control-Allow-Origin: http://127.0.0.1:9",
    ] {
        assert!(segment.contains(word), "{word}: {segment}");
    }
    for (request, status) in [
        ("GET /", "404"),
        ("GET /match/", "404"),
        ("GET /match/54p/", "404"),
        ("GET /match/video.json", "404"),
        ("GET /match/events.json", "404"),
        ("GET /match/54p/99.txt", "404"),
        ("GET /.private/index.db", "404"),
        ("GET /.private/54p/00000.mp4", "404"),
        ("GET /out/match.mp4", "404"),
        ("GET /../match.mp4", "400"),
        ("GET /match/%2e%2e/%2e%2e/match.mp4", "400"),
        ("POST /match/master.m3u8", "403"),
        ("DELETE /match/54p/00000.mp4", "403"),
    ] {
        let answer = asked(address, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
    }
}
