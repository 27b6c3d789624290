//! Web servers and their clients, on the loopback and at ports that are free.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_host::proc::Processes;
use serde::{Deserialize, Serialize};

use crate::child::{Running, is_installed};
use crate::context::Context;

/// A file of this name is empty: to fetch it takes what starting a client takes.
pub(super) const EMPTY: &str = "empty";

/// A program that serves files.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Nginx,
    Python,
    Java,
}

/// How a command is started.
#[derive(Clone, Debug, Default)]
pub(super) struct Wrap {
    /// Before everything: where it is started.
    pub(super) place: Vec<String>,
    /// Before the program: what limits it.
    pub(super) tool: Vec<String>,
    /// Set for the program alone.
    pub(super) environment: Vec<(String, OsString)>,
    /// The CPU that it runs on.
    pub(super) cpu: Option<usize>,
}

impl Wrap {
    /// A command for `program`, started by `launch` so that it ends with us;
    /// with `outcome`, launch waits for its end and writes there.
    pub(super) fn command(
        &self,
        context: &mut Context,
        outcome: Option<&Path>,
        program: &[String],
    ) -> anyhow::Result<Command> {
        let launch = context.program_path("launch")?;
        let mut words: Vec<OsString> = self.place.iter().map(OsString::from).collect();
        words.push(launch.into());
        if let Some(outcome) = outcome {
            words.push("-o".into());
            words.push(outcome.into());
        }
        if let Some(cpu) = self.cpu {
            words.push("-c".into());
            words.push(cpu.to_string().into());
        }
        for (name, value) in &self.environment {
            let mut setting = OsString::from(format!("{name}="));
            setting.push(value);
            words.push("-e".into());
            words.push(setting);
        }
        words.extend(self.tool.iter().chain(program).map(OsString::from));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }
}

/// A server that runs.
#[derive(Debug)]
pub(super) struct Web {
    pub(super) running: Running,
    pub(super) port: u16,
}

/// What a client got.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Fetched {
    pub(super) answers: u64,
    pub(super) bytes: u64,
    pub(super) ns: u64,
    pub(super) failures: u64,
}

impl Kind {
    /// The program that is started, if it is installed.
    pub(super) fn program(self) -> Option<String> {
        let choices: &[&str] = match self {
            Self::Nginx => &["nginx", "/usr/sbin/nginx"],
            // A version manager's `python3` is a shell script around it.
            Self::Python => &["/usr/bin/python3", "python3"],
            Self::Java => &["java"],
        };
        choices
            .iter()
            .find(|name| is_installed(name))
            .map(|name| (*name).to_owned())
    }

    fn words(self, context: &Context, folder: &Path, port: u16) -> anyhow::Result<Vec<String>> {
        let program = self
            .program()
            .with_context(|| format!("{self} is not installed"))?;
        let folder_text = folder.to_string_lossy().into_owned();
        let port_text = port.to_string();
        let words = match self {
            Self::Nginx => vec![
                program,
                "-c".to_owned(),
                configuration(context, folder, port)?,
            ],
            Self::Python => [
                &program,
                "-m",
                "http.server",
                "--bind",
                "127.0.0.1",
                "--directory",
                &folder_text,
                &port_text,
            ]
            .map(str::to_owned)
            .to_vec(),
            Self::Java => {
                let source = context.source("Server.java").to_string_lossy().into_owned();
                vec![program, source, port_text, folder_text]
            }
        };
        Ok(words)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Python => "python http.server",
            Self::Java => "java HttpServer",
        })
    }
}

/// A folder of nginx's own, made if there is none, and what keeps it there: as whom it works, and where it puts
/// what it writes in between.
pub(super) fn kept_in(own: &Path) -> anyhow::Result<(&'static str, String)> {
    std::fs::create_dir_all(own)?;
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {}/{name};\n", own.display()))
        .collect();
    Ok((user, temporary))
}

/// Writes nginx's configuration; returns its path.
fn configuration(context: &Context, folder: &Path, port: u16) -> anyhow::Result<String> {
    let own = context.scratch().join(format!("nginx-{port}"));
    let (user, temporary) = kept_in(&own)?;
    let path = own.join("nginx.conf");
    let text = format!(
        "daemon off;\n{user}\nworker_processes 1;\npid {own}/pid;\nerror_log {own}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\naccess_log off;\nsendfile on;\nkeepalive_requests 100000000;\n{temporary}\
         server {{ listen 127.0.0.1:{port}; root {folder}; }}\n}}\n",
        own = own.display(),
        folder = folder.display()
    );
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

/// Makes a folder with files of these names and sizes, and [`EMPTY`].
pub(super) fn folder(
    context: &Context,
    name: &str,
    files: &[(&str, usize)],
) -> anyhow::Result<PathBuf> {
    let folder = context.scratch().join(name);
    std::fs::create_dir_all(&folder)?;
    for (file, size) in files.iter().copied().chain([(EMPTY, 0)]) {
        std::fs::write(folder.join(file), vec![b'x'; size])?;
    }
    Ok(folder)
}

/// Starts a server and waits until it answers.
pub(super) fn serve(
    context: &mut Context,
    kind: Kind,
    folder: &Path,
    wrap: &Wrap,
) -> anyhow::Result<Web> {
    // Free now; who takes it in the next millisecond makes the server fail loudly.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let words = kind.words(context, folder, port)?;
    let mut running = Running::start_silent(&mut wrap.command(context, None, &words)?)?;
    let end = Instant::now() + Duration::from_secs(60);
    let client = Wrap {
        place: wrap.place.clone(),
        ..Wrap::default()
    };
    loop {
        if fetch(context, &client, port, EMPTY, 1, None).is_ok_and(|got| got.answers == 1) {
            return Ok(Web { running, port });
        }
        anyhow::ensure!(running.is_alive(), "{kind} has ended right after its start");
        anyhow::ensure!(Instant::now() < end, "{kind} does not answer");
        std::thread::sleep(Duration::from_millis(20));
        context.check()?;
    }
}

/// Fetches `path`, once or for so long, with as many threads.
pub(super) fn fetch(
    context: &mut Context,
    wrap: &Wrap,
    port: u16,
    path: &str,
    threads: u32,
    time: Option<Duration>,
) -> anyhow::Result<Fetched> {
    let program = context
        .program_path("fetch")?
        .to_string_lossy()
        .into_owned();
    let mut words = vec![
        program,
        port.to_string(),
        path.to_owned(),
        threads.to_string(),
    ];
    words.extend(time.map(|time| time.as_millis().to_string()));
    let mut command = wrap.command(context, None, &words)?;
    let patience = time.unwrap_or_default() + Duration::from_secs(60);
    let answer = Running::start(&mut command)?.finish(patience)?;
    Ok(serde_json::from_str(&answer)?)
}

/// CPU time of a process and its descendants so far, in ticks of 10 ms.
pub(super) fn tree_cpu_ms(pid: u32) -> u64 {
    let Ok(all) = Processes::read() else { return 0 };
    let pids = all
        .descendants(pid)
        .into_iter()
        .map(|process| process.pid)
        .chain([pid]);
    let ticks = |pid: u32| -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name
            .split_ascii_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|n| n.parse::<u64>().ok())
            .sum()
    };
    pids.map(ticks).sum::<u64>() * 10
}
