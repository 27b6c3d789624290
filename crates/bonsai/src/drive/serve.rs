//! `bonsai drive serve`.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bonsai_nbd::control::{self, FOLDER};
use bonsai_nbd::export::{Export, Options};
use bonsai_nbd::image::{Image, ImageError};
use bonsai_nbd::record::Recording;
use bonsai_nbd::server::{Event, OnEvent, Plan, ServeError, Server, Stop, server_config};
use bonsai_nbd::sharing::{Guarding, Member, MemberError, Secret, Sharing};
use bonsai_services::limits::{self, Limit};
use bonsai_services::refusal::Refusal;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::scan;
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
    // A client takes three descriptors, and two more with TLS. Without more of them, some are not let in.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
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
        negotiation: NEGOTIATION,
        rings: !args.no_io_uring,
    });
    let server = server.map_err(said)?;
    let scan = args
        .scan
        .then(|| scan::start(&exports, &stop))
        .transpose()?;
    let recording = args.record.as_deref().map(|path| record(path, &exports));
    let recording = recording.transpose()?;
    let _control = control::listen(&folder, exports.clone())?;
    tell(&exports, unix.as_deref(), server.tcp());
    let verbose = args.verbose;
    let on_event: Arc<OnEvent> = Arc::new(move |event| log(event, verbose));
    let served = server.run(&stop, &on_event);
    if let Some(recording) = recording {
        recording.stop();
    }
    if scan.is_some_and(scan::has_ended) {
        scan::keep_all(&exports);
    }
    served.map_err(|(export, error)| {
        anyhow!("{export}: what was written last may not be on the disk: {error}")
    })?;
    Ok(0)
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
            .and_then(|sharing| member(sharing, &image, group, args));
        let options = Options {
            name: name.clone(),
            workers: args.workers as usize,
        };
        let throttle = services.make(&name, &limits)?;
        let export = Export::new(image, member, &options).under(throttle);
        exports.push(Arc::new(export));
    }
    Ok((exports, services))
}

/// The part of an image in what is shared; an image that other programs could change unseen has none.
fn member(
    sharing: &Arc<Sharing>,
    image: &Arc<Image>,
    group: &str,
    args: &DriveServe,
) -> Option<Member> {
    let guarding = match args.trust {
        true => Guarding::Trust,
        false => Guarding::Lease,
    };
    let path = image.path().display();
    match sharing.member(image, group, guarding) {
        Ok(member) => Some(member),
        Err(error @ MemberError::Full) => {
            say!("bonsai: {path}: is served without sharing: {error}");
            None
        }
        Err(error) => {
            say!(
                "bonsai: {path}: is served without sharing: {error}; --trust shares it if nothing else writes to it"
            );
            None
        }
    }
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

/// The folder of the sockets of this user's servers, made or not.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let folder = bonsai_host::runtime_dir_path().context("the runtime directory")?;
    Ok(folder.join(FOLDER))
}
