//! Servers in event loops, at ports that are free.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_host::proc::Processes;
use serde::{Deserialize, Serialize};

use super::super::web::Wrap;
use crate::child::{Running, is_installed};
use crate::context::Context;

/// A server in an event loop.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Nginx,
    Redis,
    Node,
    Asyncio,
}

pub(super) const ALL: [Kind; 4] = [Kind::Nginx, Kind::Redis, Kind::Node, Kind::Asyncio];

/// Bytes of an answer to the crowd, and of one to the greedy connection.
const SMALL: usize = 1000;
const BIG: usize = 256 << 20;
/// What redis holds in memory of the latter: it copies all of it for each answer.
const BIG_VALUE: usize = 4 << 20;

/// A server that runs.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) kind: Kind,
    pub(super) port: u16,
    running: Running,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Redis => "redis",
            Self::Node => "node",
            Self::Asyncio => "python asyncio",
        })
    }
}

impl Kind {
    /// The program that is started, if it is installed.
    pub(super) fn program(self) -> Option<String> {
        let choices: &[&str] = match self {
            Self::Nginx => &["nginx", "/usr/sbin/nginx"],
            Self::Redis => &["redis-server"],
            Self::Node => &["node"],
            // A version manager's `python3` is a shell script around it.
            Self::Asyncio => &["/usr/bin/python3", "python3"],
        };
        let found = choices.iter().find(|name| is_installed(name));
        found.map(|name| (*name).to_owned())
    }

    /// As `crowd.c` calls it.
    pub(super) const fn protocol(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            _ => "http",
        }
    }

    /// What the crowd asks for, and what the greedy connection does.
    pub(super) const fn asked(self) -> (&'static str, &'static str) {
        match self {
            Self::Nginx | Self::Redis => ("small", "big"),
            Self::Node | Self::Asyncio => ("1000", "268435456"),
        }
    }

    /// Requests per second that leave it and its client most of their CPUs.
    pub(super) const fn rate(self) -> u32 {
        match self {
            Self::Nginx | Self::Redis => 4000,
            Self::Node => 1500,
            Self::Asyncio => 500,
        }
    }

    fn words(self, context: &Context, port: u16) -> anyhow::Result<Vec<String>> {
        let program = self
            .program()
            .with_context(|| format!("{self} is not installed"))?;
        let source = |name: &str| context.source(name).to_string_lossy().into_owned();
        let port_text = port.to_string();
        Ok(match self {
            Self::Nginx => vec![program, "-c".to_owned(), configuration(context, port)?],
            Self::Redis => {
                let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
                let own = [program.as_str(), "--port", &port_text];
                let words = own.into_iter().chain(options);
                words.map(str::to_owned).collect()
            }
            Self::Node => vec![program, source("loop.js"), port_text],
            Self::Asyncio => vec![program, source("loop.py"), port_text],
        })
    }
}

impl Server {
    /// CPU time of it and its descendants so far, ns.
    pub(super) fn cpu_ns(&self) -> u64 {
        let Ok(all) = Processes::read() else { return 0 };
        let pid = self.running.pid();
        let pids = all.descendants(pid).into_iter().map(|process| process.pid);
        pids.chain([pid]).map(process_cpu_ns).sum()
    }
}

/// CPU time of a process's threads, ns.
fn process_cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let of = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(|task| of(task.path())).sum()
}

/// Servers and clients need a descriptor for each connection.
pub(super) fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What stays too few says so itself.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Writes nginx's configuration; returns its path.
fn configuration(context: &Context, port: u16) -> anyhow::Result<String> {
    let own = context.scratch().join(format!("loop-{port}"));
    std::fs::create_dir_all(&own)?;
    std::fs::write(own.join("small"), vec![b'x'; SMALL])?;
    // A hole, of which nothing is read from a disk.
    std::fs::File::create(own.join("big"))?.set_len(BIG as u64)?;
    let root = rustix::process::geteuid().is_root();
    let user = if root { "user root;" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {}/{name};\n", own.display()))
        .collect();
    let text = format!(
        "daemon off;\n{user}\nworker_processes 1;\npid {own}/pid;\nerror_log {own}/error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\naccess_log off;\nsendfile on;\nkeepalive_requests 100000000;\n\
         keepalive_timeout 600s;\n{temporary}\
         server {{ listen 127.0.0.1:{port} backlog=4096; root {own}; }}\n}}\n",
        own = own.display(),
    );
    let path = own.join("nginx.conf");
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

/// Starts a server and waits until it listens, with what it is to be asked for.
pub(super) fn start(context: &mut Context, kind: Kind, wrap: &Wrap) -> anyhow::Result<Server> {
    // Free now; who takes it in the next millisecond makes the server fail loudly.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let words = kind.words(context, port)?;
    let mut running = Running::start_silent(&mut wrap.command(context, None, &words)?)?;
    let end = Instant::now() + Duration::from_secs(60);
    let mut connection = loop {
        if let Ok(connection) = TcpStream::connect(("127.0.0.1", port)) {
            break connection;
        }
        anyhow::ensure!(running.is_alive(), "{kind} has ended right after its start");
        anyhow::ensure!(Instant::now() < end, "{kind} does not listen");
        std::thread::sleep(Duration::from_millis(20));
        context.check()?;
    };
    if kind == Kind::Redis {
        for (key, len) in [("small", SMALL), ("big", BIG_VALUE)] {
            let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len());
            let command = [head.as_bytes(), &vec![b'x'; len], b"\r\n"].concat();
            connection.write_all(&command)?;
            let mut answer = [0; 5];
            connection.read_exact(&mut answer)?;
            anyhow::ensure!(&answer == b"+OK\r\n", "redis does not take {key}");
        }
    }
    Ok(Server {
        kind,
        port,
        running,
    })
}
