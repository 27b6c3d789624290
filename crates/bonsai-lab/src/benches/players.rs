//! How many players over HTTP a core carries: those of `bonsai watch`, against nginx with one worker on another
//! core.
//!
//! The film has segments of two seconds in three qualities up to 2 Mbit/s, of bytes that nobody decodes. Players
//! come one after the other, and each watches for a while. *Sustained* are those that watched to the end
//! without a stall. Beside them is the bare operation: plain sockets in turns that fetch the same segments.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_media::adapt::{Rule, Settings};
use bonsai_media::rtsp::Url;
use bonsai_stream::play::{Arrivals, Plan, Video, play};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::Benchmark;
use super::web::{Kind, Wrap, kept_in, tree_cpu_ms};
use crate::child::Running;
use crate::context::Context;
use crate::load::{Moment, doubt_of};
use crate::record::{Record, Sample};
use crate::report::{Section, Table, Verdict};
use crate::study::{estimate, median_or_zero, with_interval};

/// The benchmark "media-players".
#[derive(Debug)]
pub(crate) struct Players;

/// So many players of 2 Mbit/s a core carries, as the issue has it.
const LEAST: u32 = 5_000;
/// kbit/s of the qualities.
const QUALITIES: [usize; 3] = [500, 1_000, 2_000];
const SEGMENT_S: usize = 2;
const SEGMENTS: usize = 30;
/// In so long all players have come, s: each fills its buffer first, as fast as it can.
const COMING_S: u32 = 20;
const WATCHED: Duration = Duration::from_secs(20);
const BUFFER_MS: f64 = 8_000.0;
/// Of the bare operation: sockets, and segments of a sample.
const SOCKETS: usize = 200;
const FETCHED: usize = 2_000;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Bare,
    Players(u32),
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    what: What,
    /// Players that watched to the end without a stall, and those of them with top quality.
    sustained: u32,
    top: u32,
    /// Segments in all, and CPU time of one, us.
    segments: u64,
    segment_us: f64,
    /// The part of the core that players took: in all, and in its busiest half second.
    busy: f64,
    busiest: f64,
    /// The 99th percentile of what a segment took, ms.
    p99_ms: f64,
    /// Gbit/s of segments, the mean of all.
    gbits: f64,
    /// The part of a core that the server took.
    server: f64,
}

impl Benchmark for Players {
    fn name(&self) -> &'static str {
        "media-players"
    }

    fn about(&self) -> &'static str {
        "adaptive players over HTTP that a core carries, and CPU time of a segment"
    }

    fn run(&self, context: &mut Context) -> anyhow::Result<()> {
        if Kind::Nginx.program().is_none() {
            return context.skip("all of it", "nginx is not installed");
        }
        let folder = film(context)?;
        let server = serve(context, &folder)?;
        for _ in 0..context.effort.of(1, 2, 5) {
            for what in cells(context.effort.of(2, 5, 5)) {
                if !context.is_wanted(&describe(what)) {
                    continue;
                }
                context.progress(&describe(what));
                let before = Moment::now();
                let server_ms = tree_cpu_ms(server.running.pid());
                let begin = Instant::now();
                // Where there is one CPU, they share it.
                let cpu = crate::facts::cpus().saturating_sub(1);
                let measured = std::thread::scope(|scope| {
                    let measure = || {
                        stay(cpu)?;
                        match what {
                            What::Bare => bare(server.at),
                            What::Players(players) => many(server.at, players),
                        }
                    };
                    let thread = scope.spawn(measure);
                    thread
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                let mut measured = measured?;
                let server_ms = tree_cpu_ms(server.running.pid()) - server_ms;
                measured.server = server_ms as f64 / 1e3 / begin.elapsed().as_secs_f64();
                context.sample(before.until_now().less(server_ms), &measured)?;
            }
        }
        Ok(())
    }

    fn report(&self, record: &Record) -> Section {
        report(&record.samples(self.name()), record.run.seed)
    }
}

fn cells(count: usize) -> Vec<What> {
    let mut cells = vec![What::Bare];
    // The one that is promised first.
    cells.extend([LEAST, 1_000, 2_500, 6_000].map(What::Players));
    cells.truncate(count);
    cells
}

fn describe(what: What) -> String {
    match what {
        What::Bare => "plain sockets".to_owned(),
        What::Players(players) => format!("{players} players"),
    }
}

/// Writes the film; its folder.
fn film(context: &Context) -> anyhow::Result<PathBuf> {
    let folder = context.scratch().join("film");
    let mut master = "#EXTM3U\n".to_owned();
    for kbits in QUALITIES {
        let of = folder.join(kbits.to_string());
        std::fs::create_dir_all(&of)?;
        let mut list = format!("#EXTM3U\n#EXT-X-TARGETDURATION:{SEGMENT_S}\n");
        for segment in 0..SEGMENTS {
            std::fs::write(of.join(format!("{segment}.ts")), vec![b'x'; bytes(kbits)])?;
            list.push_str(&format!("#EXTINF:{SEGMENT_S},\n{segment}.ts\n"));
        }
        std::fs::write(of.join("list.m3u8"), list + "#EXT-X-ENDLIST\n")?;
        master.push_str(&format!(
            "#EXT-X-STREAM-INF:BANDWIDTH={kbits}000\n{kbits}/list.m3u8\n"
        ));
    }
    std::fs::write(folder.join("master.m3u8"), master)?;
    Ok(folder)
}

const fn bytes(kbits: usize) -> usize {
    kbits * 1_000 / 8 * SEGMENT_S
}

/// nginx that listens.
struct Server {
    running: Running,
    at: SocketAddr,
}

/// Starts one worker on the first CPU, for as many connections as there are players.
fn serve(context: &mut Context, folder: &Path) -> anyhow::Result<Server> {
    let program = Kind::Nginx.program().context("nginx is not installed")?;
    let at = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let own = context.scratch().join("players-nginx");
    let (user, temporary) = kept_in(&own)?;
    let text = format!(
        "daemon off;\n{user}\nworker_processes 1;\nworker_rlimit_nofile 32768;\npid {own}/pid;\n\
         error_log {own}/error.log;\nevents {{ worker_connections 16384; }}\n\
         http {{\naccess_log off;\nsendfile on;\ntcp_nopush on;\nkeepalive_requests 100000000;\n{temporary}\
         open_file_cache max=1000;\n\
         server {{ listen {at} backlog=16384; root {folder}; }}\n}}\n",
        own = own.display(),
        folder = folder.display()
    );
    let path = own.join("nginx.conf");
    std::fs::write(&path, text)?;
    let wrap = Wrap {
        cpu: Some(0),
        ..Wrap::default()
    };
    let words = [
        program,
        "-c".to_owned(),
        path.to_string_lossy().into_owned(),
    ];
    let mut running = Running::start_silent(&mut wrap.command(context, None, &words)?)?;
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(at).is_err() {
        anyhow::ensure!(running.is_alive(), "nginx has ended right after its start");
        anyhow::ensure!(Instant::now() < end, "nginx does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Server { running, at })
}

/// Stays on a CPU, with all threads that are started from now on.
fn stay(cpu: usize) -> anyhow::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu)?;
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).context("a CPU to stay on")
}

fn many(at: SocketAddr, players: u32) -> anyhow::Result<Measured> {
    let plan = Plan {
        videos: vec![Video {
            url: Url::parse(&format!("http://{at}/master.m3u8"))?,
            server: at,
        }],
        viewers: players,
        arrivals: Arrivals::Even(f64::from(players) / f64::from(COMING_S)),
        length: WATCHED,
        step: Duration::from_secs(10),
        threads: 1,
        seed: 1,
        settings: Settings {
            rule: Rule::Dynamic,
            buffer_ms: BUFFER_MS,
            ..Settings::default()
        },
        keeps_log: false,
    };
    let outcome = play(&plan, &|_, _| {})?;
    let count = |of: &dyn Fn(&&bonsai_stream::play::PlayerReport) -> bool| {
        u32::try_from(outcome.players.iter().filter(of).count()).unwrap_or(u32::MAX)
    };
    let seen = outcome
        .players
        .iter()
        .filter_map(|player| player.seen.as_ref());
    let bits: f64 = seen.map(|seen| seen.summary.bits).sum();
    let segments = outcome.times.segments;
    Ok(Measured {
        what: What::Players(players),
        sustained: count(&|player| {
            let seen = player.seen.as_ref();
            player.failure.is_none() && seen.is_some_and(|seen| seen.summary.stalls == 0)
        }),
        top: count(&|player| player.is_top()),
        segments,
        segment_us: outcome.cpu_s * 1e6 / segments.max(1) as f64,
        busy: outcome.busy,
        busiest: outcome.busiest,
        p99_ms: outcome.times.p99_ms,
        gbits: bits / outcome.elapsed_ns.max(1) as f64,
        server: 0.0,
    })
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// Segments of the highest quality, one after the other, by sockets in turns.
fn bare(at: SocketAddr) -> anyhow::Result<Measured> {
    let sockets = (0..SOCKETS).map(|_| {
        let socket = TcpStream::connect(at)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(socket)
    });
    let mut sockets = sockets.collect::<std::io::Result<Vec<_>>>()?;
    let highest = QUALITIES[QUALITIES.len() - 1];
    let mut buffer = vec![0; 32 << 10];
    let (begin, cpu) = (Instant::now(), thread_cpu_ns());
    for turn in 0..FETCHED {
        let socket = &mut sockets[turn % SOCKETS];
        let segment = turn / SOCKETS % SEGMENTS;
        let request = format!("GET /{highest}/{segment}.ts HTTP/1.1\r\nHost: {at}\r\n\r\n");
        socket.write_all(request.as_bytes())?;
        // Its head is shorter than a read takes.
        let mut came = socket.read(&mut buffer)?;
        let head = buffer[..came]
            .windows(4)
            .position(|four| four == b"\r\n\r\n");
        let head = head.context("nginx answers without a head")? + 4;
        anyhow::ensure!(buffer.starts_with(b"HTTP/1.1 200"), "nginx has no segment");
        while came < head + bytes(highest) {
            let more = socket.read(&mut buffer)?;
            anyhow::ensure!(more > 0, "nginx has closed a connection");
            came += more;
        }
    }
    let (cpu_ns, elapsed_ns) = (thread_cpu_ns() - cpu, begin.elapsed().as_nanos() as f64);
    Ok(Measured {
        what: What::Bare,
        sustained: 0,
        top: 0,
        segments: FETCHED as u64,
        segment_us: cpu_ns as f64 / 1e3 / FETCHED as f64,
        busy: cpu_ns as f64 / elapsed_ns,
        busiest: 0.0,
        p99_ms: 0.0,
        gbits: (FETCHED * bytes(highest) * 8) as f64 / elapsed_ns,
        server: 0.0,
    })
}

fn report(samples: &[Sample<Measured>], seed: u64) -> Section {
    let mut section = Section::default();
    section.text(format!(
        "Players of 2 Mbit/s (rule dynamic, buffer of {} s) on one core, nginx with one worker on another. They come \
         within {COMING_S} s, and each watches for {} s. us of CPU time a segment: of the highest quality where \
         plain sockets fetch it, of whatever players choose.",
        BUFFER_MS / 1e3,
        WATCHED.as_secs()
    ));
    let head = [
        "",
        "sustained",
        "top quality",
        "core",
        "busiest",
        "us a segment",
        "p99, ms",
        "Gbit/s",
        "server",
        "doubt",
    ];
    let mut table = Table::new(&head);
    for what in cells(usize::MAX) {
        let of: Vec<_> = samples
            .iter()
            .filter(|sample| sample.data.what == what)
            .collect();
        if of.is_empty() {
            continue;
        }
        let all = |value: &dyn Fn(&Measured) -> f64| -> Vec<f64> {
            of.iter().map(|sample| value(&sample.data)).collect()
        };
        let median = |value: &dyn Fn(&Measured) -> f64| median_or_zero(&all(value));
        let us = all(&|of| of.segment_us);
        let us = match estimate(&us, seed) {
            Some(us) => with_interval(&us, 0),
            None => format!("{:.0}", median_or_zero(&us)),
        };
        let least = of
            .iter()
            .map(|sample| sample.data.sustained)
            .min()
            .unwrap_or(0);
        let doubt = doubt_of(of.iter().map(|sample| &sample.conditions));
        let of_players = |text: String| match what {
            What::Bare => String::new(),
            What::Players(_) => text,
        };
        let percent = |part: f64| format!("{:.0} %", part * 100.0);
        table.row(vec![
            describe(what),
            of_players(least.to_string()),
            of_players(format!("{:.0}", median(&|of| of.top.into()))),
            percent(median(&|of| of.busy)),
            of_players(percent(median(&|of| of.busiest))),
            us,
            of_players(format!("{:.0}", median(&|of| of.p99_ms))),
            format!("{:.1}", median(&|of| of.gbits)),
            percent(median(&|of| of.server)),
            doubt.clone().unwrap_or_default(),
        ]);
        if what == What::Players(LEAST) {
            section.promise(
                format!("{LEAST} players a core"),
                format!("{LEAST} sustained"),
                least.to_string(),
                Verdict::of(least >= LEAST, doubt.as_ref()),
            );
        }
    }
    section.table(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_without_samples_is_left_out_and_the_others_are_told() {
        let sample = |what, sustained| Sample {
            conditions: crate::load::Conditions::default(),
            data: Measured {
                what,
                sustained,
                top: sustained,
                segments: 10,
                segment_us: 250.0,
                busy: 0.5,
                busiest: 0.75,
                p99_ms: 12.0,
                gbits: 9.5,
                server: 0.9,
            },
        };
        let all = [sample(What::Bare, 0), sample(What::Players(LEAST), LEAST)];
        let text = report(&all, 1).terminal();
        assert!(
            text.contains("5000 players") && text.contains("plain sockets"),
            "{text}"
        );
        assert!(
            !text.contains("1000 players") && text.contains("kept"),
            "{text}"
        );
    }
}
