//! Real clients and servers for which other tools' limits are wrong: too slow by
//! four fifths (curl), four times too fast (four processes), without effect (nginx,
//! Python's http.server). See docs/06-measurements.md.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Bonsai, Finished};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{PYTHON, bonsai, installed, scratch};
use crate::probe::PATIENCE;

const CURL: &str = "/usr/bin/curl";

const FILE: usize = 3_000_000;

/// A server that ends with this.
struct Server {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // `bonsai run` passes it on, and waits for the end.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts `program` in a folder with a file, as `arrange` says for a port and
    /// that folder; under Bonsai, if that is given with its limits.
    fn start(
        program: &Path,
        arrange: impl FnOnce(u16, &Path) -> Vec<String>,
        service: Option<(&Bonsai, &[&str])>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), vec![b'x'; FILE]).expect("room for a file");
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address").port()
        };
        let args = arrange(port, folder.path());
        let mut command = match service {
            Some((bonsai, options)) => bonsai.run(options, program, &args).1,
            None => {
                let mut command = Command::new(program);
                command.args(&args);
                command
            }
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be started");
        let server = Self {
            child,
            port,
            folder,
        };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "no server at port {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn python(python: &Path, service: Option<(&Bonsai, &[&str])>) -> Self {
        let arrange = |port: u16, folder: &Path| {
            let folder = folder.display().to_string();
            let port = port.to_string();
            [
                "-m",
                "http.server",
                "--bind",
                "127.0.0.1",
                "--directory",
                &folder,
                &port,
            ]
            .map(str::to_owned)
            .to_vec()
        };
        Self::start(python, arrange, service)
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.port)
    }

    /// Fetches the file bare; returns how long that took from the first byte sent.
    fn fetch(&self) -> Duration {
        self.fetch_from("127.0.0.1", "file")
    }

    /// The same of a file by its path, from an address of this machine.
    fn fetch_from(&self, address: &str, path: &str) -> Duration {
        let mut stream = TcpStream::connect((address, self.port)).expect("a connection");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a time limit");
        let began = Instant::now();
        stream
            .write_all(format!("GET /{path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())
            .expect("it can be asked");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let took = began.elapsed();
        let head = answer.windows(4).position(|w| w == b"\r\n\r\n");
        assert_eq!(answer.len() - head.expect("a head") - 4, FILE);
        took
    }
}

/// No faster than `bytes` at `rate` with a burst of 20 ms.
#[expect(clippy::cast_precision_loss, reason = "amounts are small")]
fn assert_not_faster(took: Duration, bytes: usize, rate: usize) {
    let least = bytes as f64 / rate as f64 - 0.020;
    let took = took.as_secs_f64();
    assert!(
        took >= least * 0.98,
        "{bytes} bytes at {rate}/s in {took:.3} s"
    );
}

/// A client that runs to its end as a service.
fn client(program: &Path, args: &[&str]) -> (Finished, conformance::Counters) {
    let limit = ["--limit", "net=6MB/s"];
    let (finished, counters) = bonsai()
        .counted(&limit, program, args, &scratch(), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(finished.status.success(), "{finished:?}");
    (finished, counters)
}

#[test]
fn curl_gets_its_limit_and_no_less() {
    let test = "curl_gets_its_limit_and_no_less";
    let (Some(curl), Some(python)) = (installed(test, CURL), installed(test, PYTHON)) else {
        return;
    };
    let server = Server::python(&python, None);
    let to = server.folder.path().join("got").display().to_string();
    let (finished, counters) = client(&curl, &["-s", "-o", &to, &server.url()]);
    assert_eq!(std::fs::read(&to).expect("the file").len(), FILE);
    assert_not_faster(finished.elapsed, FILE, 6_000_000);
    // It is made to wait for what it gets and for no more: at most twice as long, on
    // whatever machine this is.
    let least = Duration::from_millis(500);
    let waited = Duration::from_nanos(counters.waited_ns);
    assert!(waited >= least / 2 && waited <= 2 * least, "{waited:?}");
}

#[test]
fn four_processes_share_one_limit() {
    let test = "four_processes_share_one_limit";
    let (Some(curl), Some(python)) = (installed(test, CURL), installed(test, PYTHON)) else {
        return;
    };
    let server = Server::python(&python, None);
    let fetch = format!("{} -s -o /dev/null {} &", curl.display(), server.url());
    let script = format!("{fetch} {fetch} {fetch} {fetch} wait");
    let (finished, counters) = client(Path::new("/bin/sh"), &["-c", &script]);
    let got: u64 = ["recvfrom", "recvmsg", "read.socket"]
        .iter()
        .map(|entry| counters.of(entry).1)
        .sum();
    assert!(got >= 4 * FILE as u64, "{counters:?}");
    assert_not_faster(finished.elapsed, 4 * FILE, 6_000_000);
}

/// Arranges nginx with two workers in a folder that has two more of them.
fn nginx_in(port: u16, folder: &Path, listen: &str) -> Vec<String> {
    let at = folder.display();
    let conf = folder.join("conf");
    let text = format!(
        "daemon off; worker_processes 2; pid {at}/pid; error_log {at}/error.log;\n\
         events {{}}\n\
         http {{ access_log off; sendfile on; default_type text/plain;\n\
           client_body_temp_path {at}/1; proxy_temp_path {at}/2; fastcgi_temp_path {at}/3;\n\
           uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;\n\
           server {{ listen {listen}:{port}; root {at}; }} }}\n"
    );
    std::fs::write(&conf, text).expect("room for a file");
    for name in ["a", "b"] {
        let within = folder.join(name);
        std::fs::create_dir(&within).expect("a folder");
        std::fs::write(within.join("file"), vec![b'x'; FILE]).expect("room for a file");
    }
    // Workers of a server that root starts belong to somebody else.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder, open).expect("our own folder");
    vec![
        "-e".to_owned(),
        format!("{at}/error.log"),
        "-c".to_owned(),
        conf.display().to_string(),
    ]
}

#[test]
fn nginx_is_shaped_as_a_server() {
    let test = "nginx_is_shaped_as_a_server";
    let Some(nginx) = installed(test, "/usr/sbin/nginx") else {
        return;
    };
    let arrange = |port: u16, folder: &Path| nginx_in(port, folder, "127.0.0.1");
    let bonsai = bonsai();
    let server = Server::start(&nginx, arrange, Some((&bonsai, &["--limit", "send=6MB/s"])));
    assert_not_faster(server.fetch(), FILE, 6_000_000);
}

#[test]
fn pythons_http_server_is_shaped() {
    let test = "pythons_http_server_is_shaped";
    let Some(python) = installed(test, PYTHON) else {
        return;
    };
    let bonsai = bonsai();
    let server = Server::python(&python, Some((&bonsai, &["--limit", "send=6MB/s"])));
    assert_not_faster(server.fetch(), FILE, 6_000_000);
}

/// Its workers have another user, if it was started by root: what they need is mapped
/// before that.
#[test]
fn nginx_serves_two_folders_and_two_networks_at_rates_of_their_own() {
    let test = "nginx_serves_two_folders_and_two_networks_at_rates_of_their_own";
    let Some(nginx) = installed(test, "/usr/sbin/nginx") else {
        return;
    };
    let arrange = |port: u16, folder: &Path| nginx_in(port, folder, "0.0.0.0");
    let bonsai = bonsai();
    let limits = [
        "--limit",
        "read@/**/a/file=3MB/s",
        "--limit",
        "read@/**/b/*=12MB/s",
        "--limit",
        "send@127.0.0.2=6MB/s",
    ];
    let server = Server::start(&nginx, arrange, Some((&bonsai, &limits)));
    assert_not_faster(server.fetch_from("127.0.0.1", "a/file"), FILE, 3_000_000);
    assert_not_faster(server.fetch_from("127.0.0.1", "b/file"), FILE, 12_000_000);
    let Some(curl) = installed(test, CURL) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/b/file", server.port);
    let began = Instant::now();
    let mut client = Command::new(curl);
    client.args(["-s", "--interface", "127.0.0.2", "-o", "/dev/null", &url]);
    assert!(client.status().expect("it can be started").success());
    assert_not_faster(began.elapsed(), FILE, 6_000_000);
}

/// Clients of curl, of two networks.
#[test]
fn curl_is_shaped_by_the_network_that_it_fetches_from() {
    let test = "curl_is_shaped_by_the_network_that_it_fetches_from";
    let (Some(curl), Some(nginx)) = (installed(test, CURL), installed(test, "/usr/sbin/nginx"))
    else {
        return;
    };
    let arrange = |port: u16, folder: &Path| nginx_in(port, folder, "0.0.0.0");
    let server = Server::start(&nginx, arrange, None);
    let bonsai = bonsai();
    for (address, rate) in [("127.0.0.1", 6_000_000), ("127.0.0.2", 2_000_000)] {
        let url = format!("http://{address}:{}/file", server.port);
        let to = server.folder.path().join("got").display().to_string();
        let limits = [
            "--limit",
            "recv@127.0.0.1/32=6MB/s",
            "--limit",
            "recv@127.0.0.2/32=2MB/s",
        ];
        let (finished, _) = bonsai
            .counted(
                &limits,
                &curl,
                &["-s", "-o", &to, &url],
                &scratch(),
                PATIENCE,
            )
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(std::fs::read(&to).expect("the file").len(), FILE);
        assert_not_faster(finished.elapsed, FILE, rate);
    }
}
