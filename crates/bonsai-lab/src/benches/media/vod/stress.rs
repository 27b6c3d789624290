//! What runs beside the media server: the paper's Filebench workloads by fio, and its iperf.
//!
//! Debian has no Filebench. What its personalities do to files is repeated with fio: 50 threads of a file
//! server, which read whole files of 128 KiB and write twice as often, whole or 16 KiB more; and 50 of a web
//! server, which open, read and close pages of 16 KiB, beside a log that grows. The paper's files were more than its machine had memory,
//! so that its disk was always busy; here they go past the page cache for the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use super::super::Cores;
use super::super::server::place;
use super::site::Site;
use crate::benches::web::Wrap;
use crate::child::{self, is_installed};
use crate::context::{Context, Effort};

/// How long something may take beside its length.
const PATIENCE: Duration = Duration::from_secs(60);
const PORT: &str = "5201";
/// As in the paper: what it got alone.
const UDP_RATE: &str = "95M";
/// With Bonsai, who reads and writes files is under this limit, and its weight on the processor is small.
const LIMITED: [&str; 6] = [
    "--name",
    "files",
    "--limit",
    "disk=20MB/s",
    "--cpu",
    "weight=10",
];
const THREADS: u32 = 50;

/// What runs beside.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stress {
    None,
    Fileserver,
    Webserver,
    TcpSend,
    TcpReceive,
    UdpSend,
    UdpReceive,
}

/// Files of a file server and of a web server.
#[derive(Debug)]
pub(super) struct Files {
    folder: TempDir,
    /// Of each thread.
    files: u32,
    pages: u32,
}

/// How long a stress runs: first without being counted, where that can be, and then while it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) uncounted: Duration,
    pub(super) counted: Duration,
}

/// A stress that runs.
#[derive(Debug)]
pub(super) struct Running {
    stress: Stress,
    main: child::Running,
    /// Its other end.
    other: Option<child::Running>,
    patience: Duration,
}

impl Stress {
    pub(super) const ALL: [Self; 7] = [
        Self::None,
        Self::Fileserver,
        Self::Webserver,
        Self::TcpSend,
        Self::TcpReceive,
        Self::UdpSend,
        Self::UdpReceive,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Fileserver => "file server",
            Self::Webserver => "web server",
            Self::TcpSend => "TCP send",
            Self::TcpReceive => "TCP receive",
            Self::UdpSend => "UDP send",
            Self::UdpReceive => "UDP receive",
        }
    }

    pub(super) const fn needs_files(self) -> bool {
        matches!(self, Self::Fileserver | Self::Webserver)
    }

    /// Why it cannot run here.
    pub(super) fn missing(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ if self.needs_files() => (!is_installed("fio")).then_some("fio is not installed"),
            _ => (!is_installed("iperf3")).then_some("iperf3 is not installed"),
        }
    }

    /// Starts it for so long; `None` for nothing.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        self,
        context: &mut Context,
        site: &Site,
        files: Option<&Files>,
        with: bool,
        times: Times,
    ) -> anyhow::Result<Option<Running>> {
        if self == Self::None {
            return Ok(None);
        }
        let cores = Cores::find();
        let patience = times.uncounted + times.counted + PATIENCE;
        let [uncounted, counted] =
            [times.uncounted, times.counted].map(|of| of.as_secs().to_string());
        let mut wrap = Wrap {
            cpu: cores.server,
            ..Wrap::default()
        };
        let mut other = None;
        let words = match files.filter(|_| self.needs_files()) {
            Some(files) => {
                if with {
                    let bonsai = context.library.with_file_name("bonsai");
                    wrap.tool = vec![bonsai.to_string_lossy().into_owned(), "run".to_owned()];
                    wrap.tool.extend(LIMITED.map(str::to_owned));
                    wrap.tool.push("--".to_owned());
                    let run = files.folder.path().join("run");
                    wrap.environment = vec![("BONSAI_RUNTIME_DIR".to_owned(), run.into())];
                }
                // All of its time counts: jobs of fio 3.33 with --ramp_time do not end.
                let all = (times.uncounted + times.counted).as_secs();
                files.words(self, &["--time_based", &format!("--runtime={all}")])
            }
            None => {
                other = Some(listener(context, site, cores)?);
                wrap.place = place(site.other());
                let to = site.outside_address().to_string();
                self.iperf(&to, [&uncounted, &counted])
            }
        };
        let mut command = wrap.command(context, None, &words)?;
        command.stderr(Stdio::null());
        Ok(Some(Running {
            stress: self,
            main: child::Running::start(&mut command)?,
            other,
            patience,
        }))
    }

    fn iperf(self, to: &str, [uncounted, counted]: [&str; 2]) -> Vec<String> {
        let more: &[&str] = match self {
            Self::TcpSend => &["-C", "cubic"],
            Self::TcpReceive => &["-C", "cubic", "-R"],
            Self::UdpSend => &["-u", "-b", UDP_RATE],
            _ => &["-u", "-b", UDP_RATE, "-R"],
        };
        let own = [
            "iperf3", "--json", "-c", to, "-p", PORT, "-O", uncounted, "-t", counted,
        ];
        own.iter()
            .chain(more)
            .map(|word| (*word).to_owned())
            .collect()
    }
}

/// The other end of iperf, outside.
fn listener(context: &mut Context, site: &Site, cores: Cores) -> anyhow::Result<child::Running> {
    let wrap = Wrap {
        place: place(site.outside()),
        cpu: cores.viewers,
        ..Wrap::default()
    };
    let words = ["iperf3", "-s", "-1", "-p", PORT, "--forceflush"].map(str::to_owned);
    let mut command = wrap.command(context, None, &words)?;
    command.stderr(Stdio::null());
    let mut running = child::Running::start(&mut command)?;
    // It says so when it listens.
    while !running.line(PATIENCE)?.contains("listening") {}
    Ok(running)
}

impl Running {
    /// Waits for its end: what it got, bytes a second.
    ///
    /// # Errors
    /// It fails.
    pub(super) fn finish(self) -> anyhow::Result<f64> {
        let said = self.main.finish(self.patience)?;
        drop(self.other);
        match self.stress.needs_files() {
            true => of_fio(&said),
            false => of_iperf(&said),
        }
    }
}

impl Files {
    /// Makes them, on the disk where temporary files are.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn make(context: &Context) -> anyhow::Result<Self> {
        let (files, pages) = match context.effort {
            Effort::Quick => (20, 100),
            Effort::Normal => (80, 400),
            // 1,024 MB, and 80,000 pages, as in the paper.
            Effort::Full => (160, 1_600),
        };
        let folder = tempfile::Builder::new().prefix("bonsai-bench-").tempdir()?;
        let made = Self {
            folder,
            files,
            pages,
        };
        for stress in [Stress::Fileserver, Stress::Webserver] {
            let words = made.words(stress, &["--create_only=1"]);
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).stderr(Stdio::null());
            child::Running::start(&mut command)?
                .finish(Duration::from_secs(600))
                .context("files cannot be made")?;
        }
        Ok(made)
    }

    fn words(&self, stress: Stress, more: &[&str]) -> Vec<String> {
        let folder = |name: &str| -> PathBuf { self.folder.path().join(name) };
        let own = match stress {
            Stress::Webserver => web_server(&folder("pages"), self.pages),
            _ => file_server(&folder("files"), self.files),
        };
        // Jobs that are processes have sessions of their own: they would outlive whoever is killed.
        let all = [
            "fio",
            "--output-format=json",
            "--ioengine=psync",
            "--direct=1",
            "--thread=1",
            "--group_reporting=1",
        ];
        let all = all.iter().chain(more).map(|word| (*word).to_owned());
        all.chain(own).collect()
    }
}

fn file_server(folder: &Path, files: u32) -> Vec<String> {
    let _ = std::fs::create_dir_all(folder);
    vec![
        "--name=files".to_owned(),
        format!("--directory={}", folder.display()),
        format!("--numjobs={THREADS}"),
        format!("--nrfiles={files}"),
        "--filesize=128k".to_owned(),
        "--openfiles=8".to_owned(),
        "--file_service_type=random".to_owned(),
        "--rw=randrw".to_owned(),
        "--rwmixread=33".to_owned(),
        // Reads; and writes, of which half are 16 KiB.
        "--bssplit=128k/100,128k/50:16k/50".to_owned(),
    ]
}

fn web_server(folder: &Path, pages: u32) -> Vec<String> {
    let _ = std::fs::create_dir_all(folder);
    vec![
        format!("--directory={}", folder.display()),
        "--name=pages".to_owned(),
        format!("--numjobs={THREADS}"),
        format!("--nrfiles={pages}"),
        "--filesize=16k".to_owned(),
        "--openfiles=1".to_owned(),
        "--file_service_type=random".to_owned(),
        "--rw=randread".to_owned(),
        "--bs=16k".to_owned(),
        "--name=log".to_owned(),
        "--numjobs=1".to_owned(),
        "--nrfiles=1".to_owned(),
        "--filesize=64m".to_owned(),
        "--rw=write".to_owned(),
        "--bs=16k".to_owned(),
        "--thinktime=1ms".to_owned(),
    ]
}

/// Bytes a second, read and written.
fn of_fio(said: &str) -> anyhow::Result<f64> {
    // Notes may stand before it.
    let from = said.find('{').context("fio: it says nothing")?;
    let said: Value = serde_json::from_str(&said[from..]).context("fio: no JSON")?;
    let jobs = said["jobs"].as_array().context("fio: no jobs")?;
    let rate = |job: &Value, of: &str| job[of]["bw_bytes"].as_f64().unwrap_or(0.0);
    Ok(jobs
        .iter()
        .map(|job| rate(job, "read") + rate(job, "write"))
        .sum())
}

/// Bytes of payload a second that the receiver got.
fn of_iperf(said: &str) -> anyhow::Result<f64> {
    let said: Value = serde_json::from_str(said).context("iperf3: no JSON")?;
    if let Some(error) = said.get("error") {
        anyhow::bail!("iperf3: {error}");
    }
    let end = &said["end"];
    let number = |sum: &str, of: &str| end[sum][of].as_f64();
    // Of datagrams, some versions have one sum of both ends, of what was sent and how much of it was lost.
    let received = number("sum_received", "bits_per_second").filter(|rate| *rate > 0.0);
    let rate = match (received, number("sum", "bits_per_second")) {
        (_, Some(rate)) if number("sum", "lost_percent").is_some() => {
            rate * (1.0 - number("sum", "lost_percent").unwrap_or(0.0) / 100.0)
        }
        (Some(rate), _) | (None, Some(rate)) => rate,
        (None, None) => anyhow::bail!("iperf3: it does not say what was received"),
    };
    Ok(rate / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_both_tools_are_read() {
        let fio = r#"fio: a note
            {"jobs":[{"read":{"bw_bytes":1000},"write":{"bw_bytes":500}},{"read":{"bw_bytes":20},"write":{}}]}"#;
        assert!((of_fio(fio).expect("read") - 1_520.0).abs() < 1e-9);
        let tcp = r#"{"end":{"sum_sent":{"bits_per_second":90.0},"sum_received":{"bits_per_second":80.0}}}"#;
        assert!((of_iperf(tcp).expect("read") - 10.0).abs() < 1e-9);
        let udp = r#"{"end":{"sum":{"bits_per_second":800.0,"lost_percent":25.0},"sum_received":{"bits_per_second":600.0}}}"#;
        assert!((of_iperf(udp).expect("read") - 75.0).abs() < 1e-9);
        for bad in ["", "{", r#"{"end":{}}"#, r#"{"error":"refused"}"#] {
            of_iperf(bad).expect_err("no report");
        }
        of_fio("fio: engine not loadable").expect_err("no report");
    }

    #[test]
    fn what_is_sent_and_received_is_seen_from_the_stress() {
        let words = |stress: Stress| stress.iperf("10.0.0.1", ["2", "3"]).join(" ");
        assert!(words(Stress::TcpSend).ends_with("-C cubic"));
        assert!(words(Stress::UdpReceive).ends_with("-u -b 95M -R"));
        assert!(!words(Stress::UdpSend).contains("-R"));
    }
}
