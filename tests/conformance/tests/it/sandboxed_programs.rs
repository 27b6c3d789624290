//! Programs that people run, with their own sandboxes, under every kind of limit.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conformance::{Port, finish, skip};

use crate::fixture::{bonsai, installed};

const NOBODY: u32 = 65534;

const LIMITS: [&[&str]; 5] = [
    &["--limit", "net=10MB/s"],
    &["--limit", "read=100MB/s", "--limit", "write=100MB/s"],
    &["--limit", "send/stream=10MB/s", "--event-loops", "on"],
    &[
        "--limit",
        "read@/usr/**=100MB/s",
        "--limit",
        "send@port:80=1MB/s",
    ],
    &[
        "--no-patch",
        "--limit",
        "net=10MB/s",
        "--limit",
        "poll=5000/s",
    ],
];

/// Serves one page to everybody, on loopback; ends with the test.
fn serve_page() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let page = "<script>document.write('made by ' + 'script')</script>";
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = stream.read(&mut [0; 4096]);
                let _ = write!(
                    stream,
                    "HTTP/1.0 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}",
                    page.len()
                );
            });
        }
    });
    port
}

/// A browser with its sandbox loads a page, and runs its script in a process under a filter.
#[test]
fn a_sandboxed_browser_loads_pages_under_limits() {
    let test = "a_sandboxed_browser_loads_pages_under_limits";
    let Some(chromium) = installed(test, "/usr/bin/chromium") else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        skip(test, "only root can run it as another user");
        return;
    }
    let user = bonsai().of_user(NOBODY).expect("a copy for that user");
    let port = serve_page();
    let home = user.services();
    let run = |mut command: Command, what: &str| {
        let folder = format!("--user-data-dir={}/data", home.display());
        command
            .env("HOME", &home)
            .args(["--headless=new", "--disable-gpu", &folder, "--dump-dom"])
            .arg(format!("http://127.0.0.1:{port}/page"));
        finish(&mut command, Duration::from_secs(60))
            .unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    let bare = run(user.bare(&chromium), "bare");
    if !bare.stdout.contains("made by script") {
        skip(test, "the browser loads no page here without Bonsai");
        return;
    }
    for options in LIMITS {
        let (_, command) = user.run::<&str>(options, &chromium, &[]);
        let seen = run(command, &format!("{options:?}"));
        assert!(
            seen.stdout.contains("made by script"),
            "{options:?}: {}",
            seen.stderr
        );
    }
}

/// A server, ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// An sshd under limits, and its port; `None` if somebody else had that first.
fn listening(options: &[&str], sshd: &Path, folder: &Path) -> Option<(Server, Port)> {
    let port = Port::free();
    let number = port.number();
    let at = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "Port {number}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
         UsePAM no\nPidFile none\nPermitRootLogin yes\n",
        at("host"),
        at("id.pub")
    );
    std::fs::write(at("conf"), text).expect("a file");
    let (_, mut command) = bonsai().run(options, sshd, &["-D", "-f", &at("conf")]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Server(command.spawn().expect("it starts"));
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end && server.0.try_wait().expect("ours").is_none() {
        if std::net::TcpStream::connect(port.address()).is_ok() {
            return Some((server, port));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

/// OpenSSH confines the process that speaks with strangers.
#[test]
fn sshd_lets_its_users_in_under_limits() {
    let test = "sshd_lets_its_users_in_under_limits";
    let (Some(sshd), Some(ssh)) = (
        installed(test, "/usr/sbin/sshd"),
        installed(test, "/usr/bin/ssh"),
    ) else {
        return;
    };
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !rustix::process::geteuid().is_root() || !users.contains("\nsshd:") {
        skip(test, "sshd needs root and its own user");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    for key in ["host", "id"] {
        let mut command = Command::new("/usr/bin/ssh-keygen");
        command.args(["-qt", "ed25519", "-N", "", "-f", &at(key)]);
        let made = finish(&mut command, Duration::from_secs(20)).expect("ssh-keygen runs");
        assert!(made.status.success(), "{made:?}");
    }
    let _ = std::fs::create_dir_all("/run/sshd");
    let log_in = |port: u16| {
        let mut command = Command::new(&ssh);
        command
            .args([
                "-i",
                &at("id"),
                "-p",
                &port.to_string(),
                "-o",
                "StrictHostKeyChecking=no",
            ])
            .args([
                "-o",
                "UserKnownHostsFile=/dev/null",
                "root@127.0.0.1",
                "echo in",
            ]);
        finish(&mut command, Duration::from_secs(40)).expect("ssh runs")
    };
    for options in LIMITS.iter().chain(&[&["--limit", "send=100kB/s"][..]]) {
        let (_server, port) = (0..5)
            .find_map(|_| listening(options, Path::new(&sshd), folder.path()))
            .unwrap_or_else(|| panic!("{options:?}: it does not listen"));
        for _ in 0..2 {
            let seen = log_in(port.number());
            assert_eq!(seen.stdout, "in\n", "{options:?}: {}", seen.stderr);
        }
    }
}
