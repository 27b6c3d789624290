//! `bonsai davvi play`: a film for a player of one's own.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_host::tenants::plain;
use bonsai_media::adapt::Settings;
use bonsai_services::observe::SCHEMA;
use bonsai_services::refusal::Refusal;
use bonsai_stream::play::proxy::{self, Plan, Proxy, Report};
use bonsai_web::{ProxyPlan, Site};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::DavviPlay;
use crate::output::{count, finish, print, print_json, say, table};
use crate::watch::asked::found;
use crate::watch::http::HTTP;

/// How often it is looked whether the player has ended.
const LOOKS: Duration = Duration::from_millis(50);

/// How long a player may take to end that was asked to.
const FAREWELL: Duration = Duration::from_secs(5);

/// So much is told of servers, and of refusals: one that comes and goes says nothing new.
const TOLD: u32 = 20;

/// Does it.
///
/// # Errors
/// What was asked for makes no sense, no server has it, there is no listening, or no such player.
pub(super) fn run(args: &DavviPlay) -> anyhow::Result<u8> {
    let told = AtomicU32::new(0);
    let on_server = Arc::new(move |event: &proxy::Event<'_>| {
        let text = match event {
            proxy::Event::Down { url, why } => format!("{url}: {why}; it is left for now"),
            proxy::Event::Up { url } => format!("{url}: it is there again"),
            proxy::Event::Other { url, why } => format!("{url}: {why}; it is not asked any more"),
        };
        say_some(&told, &text);
    });
    let proxy = Proxy::open(plan(args)?, on_server).map_err(refused)?;
    let site = listen(args, &proxy)?;
    let address = address(site.address(), proxy.token());
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    if proxy.is_by_headers() {
        say(
            "the film has its codec parameters in headers alone (hvc1), of which ffmpeg, VLC and GStreamer read one: \
             where the quality changes they show it wrongly, or end; pages with hls.js do not",
        );
    }
    say!("{address}");
    let mut player = start(&args.player, &address, args.json)?;
    let code = thread::scope(|scope| {
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let fetching = named("fetch").spawn_scoped(scope, || {
            let _last = Last(&stop);
            proxy.run(&stop)
        })?;
        let serving = named("http").spawn_scoped(scope, || {
            let _last = Last(&stop);
            site.serve(&stop)
        });
        let code = match serving.is_ok() {
            true => wait(player.as_mut(), &stop),
            false => Ok(0),
        };
        stop.store(true, Ordering::Relaxed);
        let gone = || anyhow::anyhow!("a thread has ended before its time");
        fetching.join().map_err(|_| gone())??;
        serving?.join().map_err(|_| gone())??;
        code
    });
    if code.is_err()
        && let Some(player) = &mut player
    {
        end(player)?;
    }
    let code = code?;
    let report = proxy.report();
    match args.json {
        true => {
            let document = json!({
                "schema": SCHEMA,
                "abr": args.abr,
                "buffer_ms": args.buffer.as_secs_f64() * 1e3,
                "player": code,
                "played": report,
            });
            print_json(&document, false)?;
        }
        false => print(&text(&report))?,
    }
    Ok(code)
}

/// Whoever has it ends all when it goes, by a panic, too.
struct Last<'a>(&'a AtomicBool);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// With the exit code for bad input where that is what it is.
fn refused(error: proxy::Error) -> anyhow::Error {
    use bonsai_media::adapt::Error::Setting;
    match error {
        proxy::Error::Setting(Setting {
            name: "buffer_ms",
            value,
            least,
            ..
        }) => Refusal::input(format!(
            "--buffer is {} s: it has to hold two of the film's segments, {} s",
            value / 1e3,
            least / 1e3
        )),
        error if error.is_input() => Refusal::input(error.to_string()),
        error => error.into(),
    }
}

/// What servers and pages have written in it moves no cursor.
fn say(text: &str) {
    say!("bonsai: {}", plain(text));
}

/// The same, so often.
fn say_some(told: &AtomicU32, text: &str) {
    let before = told.fetch_add(1, Ordering::Relaxed);
    if before < TOLD {
        say(text);
    } else if before == TOLD {
        say("no more of these are told of");
    }
}

fn plan(args: &DavviPlay) -> anyhow::Result<Plan> {
    let servers = args.urls.iter().map(|url| found(url, HTTP));
    Ok(Plan {
        servers: servers.collect::<anyhow::Result<_>>()?,
        step: args.patience,
        memory: u64::from(args.memory) << 20,
        settings: Settings {
            rule: args.abr,
            buffer_ms: args.buffer.as_secs_f64() * 1e3,
            ..Settings::default()
        },
    })
}

fn listen(args: &DavviPlay, proxy: &Proxy) -> anyhow::Result<Site> {
    let origin = args.allow_origin.as_deref();
    let plan = ProxyPlan {
        listen: args.listen,
        origin: origin.map(str::parse).transpose()?,
    };
    let told = AtomicU32::new(0);
    let token = proxy.token().to_owned();
    let on_event = move |event: &bonsai_web::Event<'_>| match event {
        // What the player is refused is told of where its reason is.
        bonsai_web::Event::Refused { why, .. } if why.contains(&token) => {}
        bonsai_web::Event::Refused { peer, why } => {
            say_some(&told, &format!("{peer}: refused: {why}"));
        }
        bonsai_web::Event::Listening(_)
        | bonsai_web::Event::Live { .. }
        | bonsai_web::Event::CutShort { .. } => {}
    };
    let site = Site::of_player(&plan, proxy.clone(), Arc::new(on_event));
    site.map_err(|error| match error {
        bonsai_web::Error::System(_) => error.into(),
        error => Refusal::input(error.to_string()),
    })
}

/// What a player on this machine is told.
fn address(mut at: SocketAddr, token: &str) -> String {
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("http://{at}/{token}/play.m3u8")
}

/// Starts the player, if there is to be one. Beside a report as JSON it writes where errors go.
fn start(player: &[OsString], address: &str, is_json: bool) -> anyhow::Result<Option<Child>> {
    let Some((program, arguments)) = player.split_first() else {
        return Ok(None);
    };
    let mut command = Command::new(program);
    let mut is_said = false;
    for argument in arguments {
        match argument.to_str() {
            Some(text) if text.contains("{}") => {
                is_said = true;
                command.arg(text.replace("{}", address));
            }
            _ => {
                command.arg(argument);
            }
        }
    }
    if !is_said {
        command.arg(address);
    }
    if is_json {
        command.stdout(std::io::stderr());
    }
    let started = command.spawn();
    started.map(Some).map_err(|error| {
        Refusal::input(format!(
            "{}: the player cannot be started: {error}",
            program.display()
        ))
    })
}

/// Waits until the player has ended or all is to stop; the player's exit code, or 0 without one.
fn wait(player: Option<&mut Child>, stop: &AtomicBool) -> anyhow::Result<u8> {
    let Some(player) = player else {
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(LOOKS);
        }
        return Ok(0);
    };
    while !stop.load(Ordering::Relaxed) {
        if let Some(status) = player.try_wait().context("the player")? {
            return Ok(code(status));
        }
        thread::sleep(LOOKS);
    }
    end(player)?;
    Ok(0)
}

/// Ends a player, at last by force.
fn end(player: &mut Child) -> anyhow::Result<()> {
    let until = Instant::now() + FAREWELL;
    if player.try_wait()?.is_none() {
        let pid = i32::try_from(player.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    while player.try_wait()?.is_none() {
        if Instant::now() >= until {
            player.kill()?;
            player.wait()?;
            break;
        }
        thread::sleep(LOOKS);
    }
    Ok(())
}

/// As a shell has it: 128 and the signal where that ended it.
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// What was fetched, for people.
fn text(report: &Report) -> String {
    let (seen, waits) = (&report.seen, &report.waits);
    let mut text = segments(report);
    text.push_str(&servers(report));
    let kbit = |value: f64| format!("{value:.0} kbit/s");
    text.push_str(&format!(
        "bitrate: {} over {:.1} s of film; {} up, {} down\n",
        kbit(seen.mean_kbps),
        seen.played_ms / 1e3,
        count(seen.switches_up, "switch", "switches"),
        seen.switches_down,
    ));
    text.push_str(&format!(
        "the player: {} given, {} waited for, {:.1} s in all, {:.1} s at most; {}\n",
        count(waits.given, "segment", "segments"),
        waits.waited,
        waits.waited_ms / 1e3,
        waits.longest_ms / 1e3,
        count(report.seeks, "seek", "seeks"),
    ));
    text.push_str(&format!(
        "as far as it is known: start-up {}, {} of {:.1} s, {} given up, {} failed, {:.1} of {:.1} MB wasted\n",
        seen.startup_ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.2} s", ms / 1e3)),
        count(seen.stalls, "stall", "stalls"),
        seen.stall_ms / 1e3,
        seen.abandoned,
        seen.failed,
        seen.wasted_bits / 8e6,
        seen.bits / 8e6,
    ));
    if let Some(score) = report.score {
        let weights = report.weights;
        text.push_str(&format!(
            "score: {} a segment (bitrate - {} x changes of bitrate - {} x seconds of stalls - {} x seconds of start-up)\n",
            kbit(score),
            weights.switch,
            weights.stall,
            weights.startup
        ));
    }
    text
}

fn segments(report: &Report) -> String {
    let header = [
        "segment", "quality", "kbit/s", "bytes", "took", "waited", "server",
    ];
    let mut table = table(&header, &[0, 1, 2, 3, 4, 5, 6]);
    for of in &report.segments {
        let quality = report.film.qualities.get(of.quality);
        let kbps = quality.and_then(|quality| quality.kbps);
        let waited = of.waited_ms.map(|ms| format!("{:.2} s", ms / 1e3));
        table.add_row(vec![
            of.segment.to_string(),
            of.quality.to_string(),
            kbps.map_or_else(|| "-".to_owned(), |kbps| format!("{kbps:.0}")),
            (of.bytes + of.sound_bytes).to_string(),
            format!("{:.2} s", of.time_ms / 1e3),
            waited.unwrap_or_else(|| "not given".to_owned()),
            of.server.to_string(),
        ]);
    }
    finish(&table)
}

fn servers(report: &Report) -> String {
    let mut table = table(
        &["server", "segments", "MB", "kbit/s", "failures", ""],
        &[0, 1, 2, 3, 4],
    );
    for (number, of) in report.servers.iter().enumerate() {
        table.add_row(vec![
            number.to_string(),
            of.segments.to_string(),
            format!("{:.1}", of.bytes as f64 / 1e6),
            of.kbps
                .map_or_else(|| "-".to_owned(), |kbps| format!("{kbps:.0}")),
            of.failures.to_string(),
            match &of.last_failure {
                Some(why) => format!("{}: {}", plain(&of.url), plain(why)),
                None => plain(&of.url),
            },
        ]);
    }
    finish(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_player_is_told_an_address_of_this_machine() {
        for (at, said) in [
            ("127.0.0.1:80", "http://127.0.0.1:80/t/play.m3u8"),
            ("0.0.0.0:81", "http://127.0.0.1:81/t/play.m3u8"),
            ("[::]:82", "http://[::1]:82/t/play.m3u8"),
        ] {
            assert_eq!(address(at.parse().expect("an address"), "t"), said);
        }
    }

    #[test]
    fn a_player_is_told_where_it_asks_to_be_told() {
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("said");
        let script = |arguments: &str| {
            let script = format!("echo \"$@\" > {}", file.display());
            let mut player: Vec<OsString> = ["sh", "-c", &script, "sh"].map(OsString::from).into();
            player.extend(arguments.split(' ').map(OsString::from));
            let mut child = start(&player, "ADDRESS", false)
                .expect("started")
                .expect("a player");
            let status = child.wait().expect("ended");
            assert_eq!(code(status), 0);
            std::fs::read_to_string(&file).expect("said")
        };
        assert_eq!(script("--fast"), "--fast ADDRESS\n");
        assert_eq!(script("-i {} -n x={}"), "-i ADDRESS -n x=ADDRESS\n");
        let none =
            start(&["/nonexistent/player".into()], "ADDRESS", false).expect_err("there is none");
        assert!(none.to_string().contains("cannot be started"), "{none}");
    }
}
