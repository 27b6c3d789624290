//! Files that are shipped, used as they are: the program where `scripts/install.sh` puts it, the example configuration with the
//! certificate that docs/12-daemon.md makes, and the scrape configuration of Prometheus.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::{Bonsai, Finished, finish, skip};

use crate::fixture::{PATIENCE, scratch};

/// A machine of the test's own, with `/etc`, `/run`, `/var/lib`, processes and interfaces that no other one sees; all ends with
/// the shell. `$1` is a folder with `etc` and `lib` in it. An interface `v0` is there. What follows is run in it, with what was installed first in the path.
const MACHINE: &str = r#"
set -eu
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$1/etc" /etc
mount --bind "$1/lib" /var/lib
mount -t sysfs sysfs /sys
ip link set lo up
ip link add v0 type veth peer name v1
ip link set v0 up
export PATH="$1/root/usr/local/bin:$PATH"
# Waits until the daemon of this machine answers.
answers() {
  for i in $(seq 600); do
    curl -sf --unix-socket /run/bonsai/daemon.sock http://localhost/v1/status && return
    sleep 0.05
  done
  echo "the daemon does not answer" >&2
  exit 1
}
"#;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A machine on which Bonsai is installed; `None`, with the reason said, where there can be none.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new(test: &str, tools: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "file systems of its own need root");
            return None;
        }
        for tool in tools.iter().chain(&["unshare", "curl", "ip", "install"]) {
            let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
            if !folders
                .iter()
                .any(|folder| Path::new(folder).join(tool).exists())
            {
                skip(test, &format!("{tool} is not installed"));
                return None;
            }
        }
        std::fs::create_dir_all(scratch()).expect("a folder");
        let folder = tempfile::tempdir_in(scratch()).expect("a folder");
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bonsai");
        // Said where it was not built.
        Bonsai::find(&built).unwrap_or_else(|error| panic!("{error}"));
        let built = std::env::var_os("BONSAI_BIN_DIR").map_or(built, PathBuf::from);
        let mut install = Command::new(repository("scripts/install.sh"));
        // As `make install DESTDIR=...` does.
        install.arg(built).arg(folder.path().join("root/usr/local"));
        let done = finish(&mut install, PATIENCE).expect("it ends");
        assert!(done.status.success(), "{done:?}");
        std::fs::create_dir(folder.path().join("lib")).expect("a folder");
        let mut copy = Command::new("cp");
        copy.args(["-a", "/etc"]).arg(folder.path());
        drop(finish(&mut copy, PATIENCE).expect("it ends"));
        let machine = Self(folder);
        if !machine.run("echo ready").stdout.ends_with("ready\n") {
            skip(test, "no namespaces of its own can be made here");
            return None;
        }
        Some(machine)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    fn run(&self, script: &str) -> Finished {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        command.args(["--propagation", "private", "sh", "-c"]);
        command
            .arg(format!("{MACHINE}\n{script}"))
            .arg("sh")
            .arg(self.0.path());
        command
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("BONSAI_RUNTIME_DIR");
        command
            .env_remove("BONSAI_STATE_DIR")
            .env_remove("BONSAI_BIN_DIR");
        finish(&mut command, PATIENCE).expect("it ends")
    }

    fn done(&self, script: &str) -> String {
        let done = self.run(script);
        assert!(done.status.success(), "{done:?}");
        done.stdout
    }
}

/// The block of a document that begins with a word, as it stands there.
fn block(document: &str, word: &str) -> String {
    let blocks = document.split("\n```").skip(1).step_by(2);
    let mut blocks = blocks.filter_map(|block| block.split_once('\n').map(|(_, text)| text));
    let found = blocks.find(|block| block.starts_with(word));
    found
        .unwrap_or_else(|| panic!("no block of {word}"))
        .to_owned()
}

/// Text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text
        .split_once(before)
        .unwrap_or_else(|| panic!("no {before}"));
    let (found, _) = rest
        .split_once(after)
        .unwrap_or_else(|| panic!("no {after}"));
    found
}

#[test]
fn the_example_configuration_runs_as_it_is_shipped() {
    let test = "the_example_configuration_runs_as_it_is_shipped";
    let Some(machine) = Installed::new(test, &["openssl"]) else {
        return;
    };
    machine.put("etc/bonsai/bonsai.toml", &text("config/bonsai.toml"));
    let certificate = block(&text("docs/12-daemon.md"), "openssl req");
    let said = machine.done(&format!(
        r#"
{certificate}
bonsai config check
bonsai daemon > /run/said &
answers
echo
bonsai token create reader --scope read > /run/token
curl -sf --cacert /etc/bonsai/tls.crt -H "authorization: Bearer $(cat /run/token)" https://127.0.0.1:7117/v1/status > /dev/null
bonsai run --name vod -- sleep 100 &
for i in $(seq 600); do
  bonsai shares vod > /run/shares
  grep -q '80 Mbit/s' /run/shares && break
  sleep 0.05
done
cat /run/shares
cat /run/said
"#
    ));
    assert!(said.contains("/run/bonsai/daemon.sock"), "{said}");
    assert!(said.contains("vod") && said.contains("80 Mbit/s"), "{said}");
    let status = said
        .lines()
        .find(|line| line.starts_with('{'))
        .expect("a status");
    let status: serde_json::Value = serde_json::from_str(status).expect("JSON");
    // Nothing is said but that what the example names is not on this machine.
    for problem in status["problems"].as_array().expect("problems") {
        let problem = problem.as_str().expect("text");
        let is_absent = ["eth0", "vnet3", "container:"]
            .iter()
            .any(|name| problem.contains(name));
        assert!(is_absent, "{problem}");
    }
}

#[test]
fn prometheus_is_answered_as_its_shipped_file_asks() {
    let test = "prometheus_is_answered_as_its_shipped_file_asks";
    let Some(machine) = Installed::new(test, &[]) else {
        return;
    };
    let file = text("packaging/prometheus/bonsai.yml");
    let target = between(&file, "targets: [\"", "\"]");
    let token = between(&file, "credentials_file: ", "\n");
    let create = between(&file, "# `bonsai token create", "`");
    let listen = between(&file, "(`[api] ", "`)");
    assert!(!file.contains("scheme:"), "by http, to this machine itself");
    machine.put(
        "etc/bonsai/bonsai.toml",
        &format!(
            "[api]\n{listen}\n[capacity]\nread = \"20MB/s\"\n[services.vod.read]\nmin = \"5MB/s\"\n[links.v0]\ntx = \"20Mbit/s\"\n"
        ),
    );
    machine.put(&token[1..], "");
    let scraped = machine.done(&format!(
        r#"
bonsai daemon > /run/said &
answers > /run/status
bonsai token create {create}
bonsai run --name vod -- sleep 100 &
for i in $(seq 600); do
  curl -sf -H "authorization: Bearer $(cat {token})" http://{target}/metrics > /run/scraped
  grep -q 'service="vod"' /run/scraped && break
  sleep 0.05
done
cat /run/scraped
"#
    ));
    let scraped: Vec<&str> = scraped
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let names = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: Vec<&str> = names.filter(|name| name.starts_with("bonsai_")).collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let is_there = scraped
            .iter()
            .any(|line| line.split(['{', ' ']).next() == Some(name));
        assert!(is_there, "{name} of a rule is not among {scraped:?}");
    }
}
