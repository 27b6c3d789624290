//! By which address and name the interface is asked: wildcards, IPv6, names, a tunnel, a proxy.

use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};

use conformance::{finish, skip};

use super::bounds::bearer;
use super::fixture::{Ends, Ring, over_tcp, request};
use super::secure::{certificate, curl};
use crate::fixture::{PATIENCE, installed};

/// An address of this machine that is not its own alone, if it has one.
fn outward() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then(|| ip.to_string())
}

#[test]
fn a_listener_at_all_addresses_answers_at_each() {
    let test = "a_listener_at_all_addresses_answers_at_each";
    if installed(test, "/usr/bin/openssl").is_none() || installed(test, "/usr/bin/curl").is_none() {
        return;
    }
    for (listen, hosts) in [
        ("0.0.0.0:0", &["127.0.0.1", "localhost"][..]),
        ("[::]:0", &["[::1]", "127.0.0.1", "localhost"]),
    ] {
        let mut ring = Ring::new("");
        let (pem, key) = certificate(ring.config().parent().expect("a folder"), "own");
        ring.configure(&format!(
            "[api]\nlisten = {listen:?}\ntls = {{ certificate = {pem:?}, key = {key:?} }}\n"
        ));
        if listen.starts_with('[') && TcpListener::bind("[::1]:0").is_err() {
            skip(test, "there is no IPv6 here");
            continue;
        }
        let said = ring.start(&[]);
        let port = said.trim().rsplit(':').next().expect("a port").to_owned();
        let bearer = bearer(&ring, "reader");
        let ask = |host: &str, more: &[&str]| {
            let url = format!("https://{host}:{port}/v1/status");
            let mut args = vec!["--insecure", "--globoff", "-H", &bearer];
            args.extend(more);
            curl(&url, &args).map(|(status, _)| status)
        };
        for host in hosts {
            assert_eq!(ask(host, &[]), Ok(200), "{listen} {host}");
        }
        assert_eq!(ask("127.0.0.1", &["-H", "host: evil.example"]), Ok(403));
        match outward() {
            None => skip(test, "this machine has no address but its own"),
            // Any name that leads here: without a token there is nothing.
            Some(ip) => {
                assert_eq!(ask(&ip, &[]), Ok(200), "{listen} {ip}");
                assert_eq!(ask(&ip, &["-H", "host: media.example"]), Ok(200));
                let url = format!("https://{ip}:{port}/v1/status");
                assert_eq!(curl(&url, &["--insecure"]).map(|(s, _)| s), Ok(401));
            }
        }
    }
}

/// Passes connections on to an address, as `ssh -L` does; where it takes them.
fn tunnel(to: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let at = listener.local_addr().expect("an address").port();
    let to = to.to_owned();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let pair = near.and_then(|near| Ok((near, TcpStream::connect(&to)?)));
            let Ok((near, far)) = pair else { return };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone(), to.try_clone());
                std::thread::spawn(move || -> io::Result<()> {
                    let (mut from, mut to) = (from?, to?);
                    io::copy(&mut from, &mut to)?;
                    to.shutdown(std::net::Shutdown::Write)
                });
            }
        }
    });
    format!("localhost:{at}")
}

#[test]
fn the_page_answers_through_a_tunnel_with_another_port_and_a_proxy() {
    let mut ring = Ring::new("[api]\nhosts = [\"media.example:8443\"]\n");
    ring.start(&["--listen", "127.0.0.1:0"]);
    let page = ring.done(&["page"]);
    let (address, token) = page
        .trim()
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once("/#token="))
        .expect("an address");
    let bearer = format!("authorization: Bearer {token}");
    let far = tunnel(address);
    for (path, host, origin, status) in [
        ("/", far.as_str(), "", 200),
        ("/v1/status", &far, "", 200),
        ("/v1/status", &far, &format!("http://{far}"), 200),
        ("/v1/status", "127.0.0.1:1", "http://127.0.0.1:1", 200),
        ("/v1/status", "[::1]:1", "", 200),
        // A proxy, by its own name or by the address that it asks at.
        ("/v1/status", "media.example", "https://media.example", 200),
        ("/v1/status", address, "https://media.example:8443", 200),
        // A page of another server of this machine, and of another machine.
        ("/v1/status", &far, "http://localhost:1", 403),
        ("/v1/status", &far, "http://evil.example", 403),
        ("/", "evil.example:80", "", 403),
        ("/", "localhost.evil.example", "", 403),
    ] {
        let mut headers = vec![bearer.clone(), format!("host: {host}")];
        if !origin.is_empty() {
            headers.push(format!("origin: {origin}"));
        }
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let answer = over_tcp(&far, &request("GET", path, &headers, ""));
        assert_eq!(answer.status, status, "{path} {host} {origin}: {answer:?}");
    }
    // At the other end of an ssh connection it is said how to get there.
    let mut command = ring.command(&["page"]);
    command.env("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22");
    let said = finish(&mut command, PATIENCE).expect("it ends");
    assert_eq!(said.stdout.lines().count(), 1, "{said:?}");
    let hint = format!("ssh -N -L 8700:{address}");
    assert!(
        said.stderr.contains(&hint) && said.stderr.contains("http://localhost:8700/#token="),
        "{said:?}"
    );
}

#[test]
fn a_page_without_ipv4_is_at_the_address_of_ipv6() {
    let test = "a_page_without_ipv4_is_at_the_address_of_ipv6";
    let ring = Ring::new("");
    let alone = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec \"$@\"";
    let daemon = ring.daemon_command(&[]);
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", alone, "sh"])
        .arg(daemon.get_program());
    command.args(daemon.get_args());
    for (name, value) in daemon.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut daemon = Ends(command.spawn().expect("it starts"));
    while !ring.socket().exists() {
        if daemon.0.try_wait().expect("asked").is_some() {
            skip(
                test,
                "no network of one's own can be made here (needs root and iproute2)",
            );
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let page = ring.done(&["page"]);
    assert!(page.starts_with("http://[::1]:"), "{page}");
    let (url, _) = page.split_once('#').expect("a token");
    let pid = daemon.0.id().to_string();
    let mut command = Command::new("nsenter");
    command.args([
        "--net",
        "--target",
        &pid,
        "curl",
        "--silent",
        "--globoff",
        "--noproxy",
        "*",
    ]);
    command.args(["--output", "/dev/null", "--write-out", "%{http_code}", url]);
    let said = finish(&mut command, PATIENCE).expect("it ends");
    assert_eq!(said.stdout, "200", "{said:?}");
}
