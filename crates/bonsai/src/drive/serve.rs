//! `bonsai drive serve`.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bonsai_nbd::control::{self, FOLDER};
use bonsai_nbd::export::{Export, Options};
use bonsai_nbd::image::{Image, ImageError, Times};
use bonsai_nbd::record::Recording;
use bonsai_nbd::server::{Event, OnEvent, Plan, ServeError, Server, Stop, server_config};
use bonsai_nbd::sharing::{KeptError, Member, Secret, Sharing};
use bonsai_services::limits::{self, Limit};
use bonsai_services::refusal::Refusal;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::service::Made;
use crate::cli::DriveServe;
use crate::output::{count, say};
use crate::trace::create;

/// How long a client may take until it asks for an export.
const NEGOTIATION: Duration = Duration::from_secs(10);

/// `bonsai drive serve`.
///
/// # Errors
/// An image that cannot be served, or no listening.
pub(super) fn run(args: &DriveServe) -> anyhow::Result<u8> {
    raise_open_files(args)?;
    let tcp = args
        .listen
        .as_deref()
        .map(|at| address(at, args))
        .transpose()?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            let config = server_config(certificate, key);
            Some(config.map_err(|error| Refusal::input(error.to_string()))?)
        }
        _ => None,
    };
    let folder = bonsai_host::runtime_dir()?.join(FOLDER);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    // The services go when it ends, however it does.
    let (exports, _services) = exports(args)?;
    let unix = match (&args.socket, tcp) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) => {
            let first = exports.first().map(|export| export.info().name.clone());
            Some(folder.join(first.unwrap_or_default() + ".sock"))
        }
    };
    let stop = Stop::new()?;
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let asked = stop.clone();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _ in &mut signals {
                asked.stop();
            }
        })?;
    let server = Server::bind(Plan {
        exports: exports.clone(),
        unix: unix.clone(),
        tcp,
        tls,
        connections: args.connections as usize,
        buffer_bytes: buffer_bytes(args),
        negotiation: NEGOTIATION,
        rings: !args.no_io_uring,
    });
    let server = server.map_err(said)?;
    if args.scan {
        scan(&exports, &stop)?;
    }
    // Whoever waits for the exports is not told of them then.
    if stop.is_asked() {
        return Ok(0);
    }
    let recording = args.record.as_deref().map(|path| record(path, &exports));
    let recording = recording.transpose()?;
    let _control = control::listen(&folder, exports.clone())?;
    tell(&exports, unix.as_deref(), server.tcp());
    let verbose = args.verbose;
    let on_event: Arc<OnEvent> = Arc::new(move |event| log(event, verbose));
    // Whatever of the end fails, all of it is done.
    let ended = server.run(&stop, &on_event);
    if let Some(recording) = recording {
        recording.stop();
    }
    // What was not written to is kept already; of what was, only the kernel tells whether by others as well.
    let written = |export: &&Arc<Export>| {
        let watched = export.member().is_some_and(Member::is_watched);
        watched && export.counters.writes.load(Ordering::Relaxed) > 0
    };
    for export in exports.iter().filter(|_| args.scan).filter(written) {
        if !export.look_outside() {
            keep(export, export.image().times());
        }
    }
    ended?;
    Ok(0)
}

/// Raises the limit of open files. A client takes three, and two more with TLS; without more of them, some are not let in.
fn raise_open_files(args: &DriveServe) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    // Of the program and of each image, measured, and of one client.
    let least = 16 + 4 * args.images.len() as u64;
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if most < least {
        return Err(Refusal::input(format!(
            "the limit of open files is {most}: these images need {least}; raise it (ulimit -n, or LimitNOFILE= of a unit)"
        )));
    }
    Ok(())
}

/// What is held for clients, at most, in bytes: as was said, or enough for each of many.
fn buffer_bytes(args: &DriveServe) -> usize {
    let each = (args.connections as usize) << 20;
    let said = args
        .buffers
        .map(|said| usize::try_from(said.0).unwrap_or(usize::MAX));
    said.unwrap_or(each.max(256 << 20))
}

/// Records all exports from now on. What ends the recording does not end the server.
fn record(path: &Path, exports: &[Arc<Export>]) -> anyhow::Result<Recording> {
    let file = create(path)?;
    let name = path.display().to_string();
    let recording = Recording::start(exports, file, move |how| match how {
        Ok(of) => {
            let requests = count(of.requests, "request", "requests");
            let lost = match of.lost {
                0 => String::new(),
                lost => format!(", and {lost} were lost, as they came too quickly"),
            };
            say!("bonsai: {name}: {requests} recorded{lost}");
        }
        Err(error) => {
            say!("bonsai: {name}: the recording has ended, the images are served on: {error}");
        }
    });
    Ok(recording?)
}

fn exports(args: &DriveServe) -> anyhow::Result<(Vec<Arc<Export>>, Made)> {
    let limits: Vec<Limit> = args
        .limits
        .iter()
        .map(|text| Limit::parse(text))
        .collect::<Result<_, _>>()?;
    limits::check_together(&limits).map_err(|problem| Refusal::input(problem.to_string()))?;
    let mut services = Made::default();
    let sharing = match args.plain {
        true => None,
        false => Some(Sharing::new(
            (args.memory as usize) << 20,
            args.verify,
            secret(args)?,
        )?),
    };
    let mut names = BTreeSet::new();
    let mut exports = Vec::new();
    for path in &args.images {
        let name = name_of(path);
        if !names.insert(name.clone()) {
            return Err(Refusal::input(format!(
                "{}: there is an export {name:?} already; images are told apart by the names of their files",
                path.display()
            )));
        }
        let image = Image::open(path, args.read_only).map_err(|error| match error {
            ImageError::Open { source, path } if source.raw_os_error() == Some(libc_erofs()) => {
                Refusal::input(format!(
                    "{}: cannot be written; --read-only serves it",
                    path.display()
                ))
            }
            error => Refusal::input(error.to_string()),
        })?;
        let image = Arc::new(image);
        let group = args.group.as_ref().unwrap_or(&name);
        let member = sharing
            .as_ref()
            .map(|sharing| sharing.member(&image, group));
        let options = Options {
            name: name.clone(),
            workers: args.workers as usize,
        };
        let throttle = services.make(&name, &limits)?;
        let export = Export::new(image, member.transpose()?, &options).under(throttle);
        exports.push(Arc::new(export));
    }
    Ok((exports, services))
}

/// What keys of groups are made of. It outlives the server only if something is kept that needs it.
fn secret(args: &DriveServe) -> anyhow::Result<Secret> {
    if !args.scan {
        return Ok(Secret::random()?);
    }
    let kept = || {
        let folder = bonsai_host::state_dir()?;
        let path = folder.join("drive.secret");
        let of = Secret::of_file(&path);
        of.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    };
    match kept() {
        Ok(secret) => Ok(secret),
        Err(error) => {
            say!("bonsai: what a scan finds is not kept for the next time: {error}");
            Ok(Secret::random()?)
        }
    }
}

/// Learns what images hold, before anybody asks; what was kept of an image that has not changed since is taken instead.
/// It ends early where the server is asked to.
fn scan(exports: &[Arc<Export>], stop: &Stop) -> anyhow::Result<()> {
    for export in exports {
        let Some(member) = export.member() else {
            continue;
        };
        let path = export.image().path().display();
        match member.recall() {
            Ok(blocks) => {
                say!("bonsai: {path} is as it was: {blocks} blocks are known from before");
                continue;
            }
            Err(KeptError::None) => {}
            Err(error) => say!("bonsai: {path} is gone over again: {error}"),
        }
        let start = Instant::now();
        let times = export.image().times();
        let scanned = member
            .scan(|| stop.is_asked())
            .with_context(|| format!("{path}: cannot be read"))?;
        let Some(scanned) = scanned else {
            return Ok(());
        };
        let seconds = start.elapsed().as_secs_f64();
        say!(
            "bonsai: {path} was gone over: {} bytes read, {} of holes, in {seconds:.2} s",
            scanned.read,
            scanned.holes
        );
        keep(export, times);
    }
    Ok(())
}

/// Keeps what is known of an image, as of these times.
fn keep(export: &Export, times: Option<Times>) {
    let (Some(member), Some(times)) = (export.member(), times) else {
        return;
    };
    if let Err(error) = member.keep(&times) {
        let path = export.image().path().display();
        say!("bonsai: what is known of {path} is not kept for the next time: {error}");
    }
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

/// The name of a file without what all of them end in.
fn name_of(path: &Path) -> String {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let short = name
        .strip_suffix(".raw")
        .or_else(|| name.strip_suffix(".img"));
    short
        .filter(|short| !short.is_empty())
        .unwrap_or(&name)
        .to_owned()
}

/// Where to listen on TCP, if that may be.
fn address(text: &str, args: &DriveServe) -> anyhow::Result<SocketAddr> {
    let own = |port: &str| {
        let port = port.parse().ok()?;
        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    };
    let at = text
        .strip_prefix(':')
        .map_or_else(|| text.parse().ok(), own);
    let at = at.ok_or_else(|| {
        Refusal::input(format!(
            "--listen {text}: is no address such as :10809 or 192.0.2.1:10809"
        ))
    })?;
    if !at.ip().is_loopback() && args.tls_cert.is_none() && !args.insecure {
        return Err(Refusal::input(format!(
            "--listen {text}: other machines could read and write the images; give --tls-cert and --tls-key, or --insecure"
        )));
    }
    Ok(at)
}

fn said(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Thread(_) => error.into(),
        error => Refusal::input(error.to_string()),
    }
}

/// As a part of a URI (RFC 3986, section 2): what has a meaning there, or is not ASCII, by its number.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

/// What is served where, as clients write it.
fn tell(exports: &[Arc<Export>], unix: Option<&Path>, tcp: Option<SocketAddr>) {
    for export in exports {
        let name = escaped(export.info().name.as_bytes());
        let unix = unix.map(|path| {
            let path = escaped(path.as_os_str().as_encoded_bytes());
            format!("nbd+unix:///{name}?socket={path}")
        });
        let tcp = tcp.map(|at| format!("nbd://{at}/{name}"));
        for uri in unix.into_iter().chain(tcp) {
            say!(
                "bonsai: {} is served at {uri}",
                export.image().path().display()
            );
        }
    }
}

fn log(event: &Event<'_>, verbose: bool) {
    match event {
        Event::Image { export, what } => say!("bonsai: {export}: {what}"),
        Event::Full { most } => {
            say!("bonsai: a client was sent away: there are {most} already");
        }
        Event::Exhausted { error } => {
            say!(
                "bonsai: no more clients are let in for now: {error}; each takes some open files (ulimit -n) and a thread"
            );
        }
        Event::Failed {
            export,
            operation,
            offset,
            length,
            error,
            omitted,
        } => {
            say!(
                "bonsai: {export}: {operation} of {length} bytes at {offset} failed: {error}{}",
                omitted_text(*omitted)
            );
        }
        Event::Omitted { export, count } => {
            say!("bonsai: {export}: {count} more requests failed");
        }
        Event::Closed {
            export,
            peer,
            why: Some(why),
        } if verbose => {
            say!("bonsai: {export}: {peer} was left: {why}");
        }
        Event::Closed {
            export,
            peer,
            why: None,
        } if verbose => say!("bonsai: {export}: {peer} has ended"),
        Event::Open { export, peer } if verbose => say!("bonsai: {export}: {peer} has come"),
        _ => {}
    }
}

fn omitted_text(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!(" ({count} more before this one)"),
    }
}

/// The folder of the sockets of this user's servers, made or not.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let folder = bonsai_host::runtime_dir_path().context("the runtime directory")?;
    Ok(folder.join(FOLDER))
}
