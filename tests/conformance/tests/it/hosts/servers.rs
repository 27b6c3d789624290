//! Servers and runtimes of other releases: what their clients get, or what they read, by the clock of the client or their own.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use conformance::{finish, skip};

use super::{BURST, FILE, Host, RATE, larger_hosts, print_table, said, verdict};
use crate::fixture::scratch;
use crate::probe::PATIENCE;

/// Beginning of the scripts below. All that they start ends with them, as their namespace of processes does.
const BEGIN: &str = r#"
file=$0
limited() { limit=$1; shift; /mnt/bonsai/bonsai run --limit "$limit=$RATE" -- "$@" 2>/run/said & }
until_it() {
  n=0
  until "$@" >/dev/null 2>&1; do n=$((n + 1)); if [ $n -gt 300 ]; then cat /run/said >&2; exit 9; fi; sleep 0.05; done
}
timed() {
  a=$(date +%s%N); "$@" >/run/out || exit 8; b=$(date +%s%N)
  if [ "$(wc -c </run/out)" -lt 3000000 ]; then echo "got $(wc -c </run/out) bytes" >&2; exit 7; fi
  cat /run/said >&2
  printf '# elapsed %d.%03d ms\n' $(((b - a) / 1000000)) $(((b - a) / 1000 % 1000)) >&2
}
nginx_with() {
  mkdir -p /run/n /var/log/nginx
  echo "daemon off; user root; worker_processes 2; pid /run/nginx.pid; error_log stderr; events {} http { access_log off; $1
    client_body_temp_path /run/n; proxy_temp_path /run/n; fastcgi_temp_path /run/n; uwsgi_temp_path /run/n; scgi_temp_path /run/n;
    server { listen 127.0.0.1:8080; root /; location /up { return 200; } } }" >/run/nginx.conf
}
nginx_up() { limited "$1" nginx -c /run/nginx.conf; until_it curl -sf http://127.0.0.1:8080/up; timed curl -sf "http://127.0.0.1:8080$file"; }
redis_up() {
  limited send redis-server --port 6379 --bind 127.0.0.1 --save '' --dir /run "$@" >/run/log
  until_it redis-cli ping
  redis-cli -x set key <"$file" >/dev/null
  timed redis-cli get key
}
sshd_up() {
  mkdir -p /run/sshd
  for key in host id; do ssh-keygen -qt ed25519 -N '' -f /run/$key; done
  echo "Port 22
ListenAddress 127.0.0.1
HostKey /run/host
AuthorizedKeysFile /run/id.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
Subsystem sftp internal-sftp" >/run/conf
  echo 'Host *
IdentityFile /run/id
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
ControlPath /run/control' >/run/client
  "$@" /usr/sbin/sshd -D -e -f /run/conf
}
# Later ones go through this connection, so that their time is that of the bytes.
connect() { until_it ssh -F /run/client -fNM root@127.0.0.1; }
bare() { : >/run/said; "$@" 2>/dev/null & }
"#;

/// Heading, the program that has to be there, and the rest of the script.
const SERVERS: [(&str, &str, &str); 9] = [
    ("nginx, sendfile", "nginx", "nginx_with 'sendfile on;'; nginx_up read"),
    ("nginx, read", "nginx", "nginx_with 'sendfile off;'; nginx_up read"),
    ("nginx, threads", "nginx", "nginx_with 'sendfile off; aio threads;'; nginx_up read"),
    ("nginx, send", "nginx", "nginx_with 'sendfile on;'; nginx_up send"),
    ("redis", "redis-server", "redis_up"),
    ("redis, threads", "redis-server", "redis_up --io-threads 2 --io-threads-do-reads yes"),
    ("sshd", "sshd", "sshd_up limited send; connect; timed ssh -F /run/client root@127.0.0.1 cat \"$file\""),
    (
        "sshd, sftp",
        "sshd",
        "sshd_up limited send; connect; echo \"get $file /run/got\" >/run/batch
         got() { sftp -q -F /run/client -b /run/batch root@127.0.0.1 >&2 && cat /run/got; }; timed got",
    ),
    (
        "ssh",
        "sshd",
        "sshd_up bare; until_it ssh -F /run/client -S none root@127.0.0.1 true
         limited recv ssh -F /run/client -NM root@127.0.0.1; until_it ssh -F /run/client -O check root@127.0.0.1
         timed ssh -F /run/client root@127.0.0.1 cat \"$file\"",
    ),
];

/// Programs under the limit on reads, by their own clocks: heading, the program that has to be there, and the command.
const RUNTIMES: [(&str, &str, &str); 6] = [
    ("java", "java", "java -cp /mnt/work Moves stream \"$0\" >&2"),
    ("java, threads", "java", "java -cp /mnt/work Moves threads \"$0\" >&2"),
    ("java, channel", "java", "java -cp /mnt/work Moves channel \"$0\" >&2"),
    (
        "node",
        "node",
        "node -e 'const fs = require(\"fs\"), a = process.hrtime(); fs.readFileSync(process.argv[1]); const b = process.hrtime(a);
         console.error(`# elapsed ${b[0] * 1e3 + b[1] / 1e6} ms`)' \"$0\"",
    ),
    (
        "node, threads",
        "node",
        "node -e 'const fs = require(\"fs\"), a = process.hrtime(); fs.readFile(process.argv[1], () => { const b = process.hrtime(a);
         console.error(`# elapsed ${b[0] * 1e3 + b[1] / 1e6} ms`) })' \"$0\"",
    ),
    (
        "node, stream",
        "node",
        "node -e 'const fs = require(\"fs\"), a = process.hrtime(); fs.createReadStream(process.argv[1]).on(\"data\", () => 0)
         .on(\"end\", () => { const b = process.hrtime(a); console.error(`# elapsed ${b[0] * 1e3 + b[1] / 1e6} ms`) })' \"$0\"",
    ),
];

/// Makes the class that Java runs; left out where it cannot be made.
fn make_class(test: &str) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("java/Moves.java");
    let mut javac = Command::new("javac");
    javac.args(["-nowarn", "--release", "8", "-Xlint:-options", "-d"]);
    javac.arg(scratch()).arg(source);
    let made = finish(&mut javac, PATIENCE);
    let is_made = made.as_ref().is_ok_and(|made| made.status.success());
    if !is_made {
        skip(test, &format!("no Java compiler: {made:?}"));
    }
    is_made
}

/// One cell; `None` where the release does not have the program.
fn cell(
    host: &Host,
    heading: &str,
    program: &str,
    run: impl Fn() -> conformance::Finished,
) -> Option<String> {
    if !host.has_program(program) {
        return None;
    }
    let what = format!("{}: {heading}", host.release);
    let finished = run();
    let elapsed = said(&finished).unwrap_or_else(|| panic!("{what}: {finished:?}"));
    let part = verdict(&what, &finished, elapsed);
    // Limited, and held up by no more than what else runs on the machine.
    let is_near = part.parse::<f64>().is_ok_and(|part| part > 0.3);
    assert!(is_near || part == "named", "{what}: {part} of its limit");
    Some(part)
}

#[test]
fn servers_and_runtimes_of_each_release_are_limited_or_named() {
    let test = "servers_and_runtimes_of_each_release_are_limited_or_named";
    let Some(hosts) = larger_hosts(test) else {
        return;
    };
    let has_java = make_class(test);
    let rate = format!("RATE={RATE}B/s:burst={BURST}B");
    let row = |host: &Host| -> String {
        let mut row = format!("| {} |", host.release);
        let finished =
            |what: &str, run: Result<conformance::Finished, conformance::ProcessError>| {
                run.unwrap_or_else(|error| panic!("{}: {what}: {error}", host.release))
            };
        for (heading, program, script) in SERVERS {
            let script = format!("{rate}\n{BEGIN}\n{script}\n");
            let cell = cell(host, heading, program, || {
                finished(heading, host.enter(&script, &[FILE]))
            });
            write!(row, " {} |", cell.as_deref().unwrap_or("-")).expect("a string");
        }
        for (heading, program, command) in RUNTIMES {
            let is_there = program != "java" || has_java;
            let cell = is_there.then(|| {
                cell(host, heading, program, || {
                    finished(heading, host.limited(command, &[FILE]))
                })
            });
            write!(row, " {} |", cell.flatten().as_deref().unwrap_or("-")).expect("a string");
        }
        row
    };
    // One after the other, as their clients measure.
    let rows: Vec<String> = hosts.iter().map(row).collect();
    let headings = SERVERS
        .iter()
        .chain(&RUNTIMES)
        .map(|(heading, ..)| *heading);
    let headings: Vec<&str> = headings.collect();
    let mut lines = vec![format!("| release | {} |", headings.join(" | "))];
    lines.push(format!("|---|{}", "---|".repeat(headings.len())));
    lines.extend(rows);
    print_table(&lines);
}
