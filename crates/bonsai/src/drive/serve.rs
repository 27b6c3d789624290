//! `bonsai drive serve`.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use bonsai_nbd::control::{self, FOLDER};
use bonsai_nbd::export::Export;
use bonsai_nbd::record::Recording;
use bonsai_nbd::server::{Address, OnEvent, Plan, Server, Sockets, Stop};
use bonsai_nbd::sharing::Secret;
use bonsai_services::refusal::Refusal;
use rustix::process::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::escape::say;
use super::exports::{exports, record_raw};
use super::images::images;
use super::listen::{access, address, check, parse, passed, said};
use super::log::{log, tell};
use super::pid_file::PidFile;
use super::{lines, metrics, scan, tls};
use crate::cli::DriveServe;
use crate::output::count;
use crate::trace::create;

/// How long a client may take until it asks for an export.
const NEGOTIATION: Duration = Duration::from_secs(10);

/// `bonsai drive serve`.
///
/// # Errors
/// An image that cannot be served, or no listening.
pub(super) fn run(args: &DriveServe) -> anyhow::Result<u8> {
    // Before the first thread, as it changes the environment.
    let passed = passed()?;
    bonsai_host::ignore_file_size_signal();
    let _lines = lines::start()?;
    let images = images(args)?;
    // A secret is kept for what any of them keeps.
    let args = &DriveServe {
        scan: images.iter().any(|image| image.scan),
        ..args.clone()
    };
    raise_open_files(images.len())?;
    let tcp = args
        .listen
        .as_deref()
        .map(|at| address(at, args))
        .transpose()?;
    let tls = tls::config(args)?;
    let folder = bonsai_host::runtime_dir()?.join(FOLDER);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    let access = access(args)?;
    // The services go when it ends, however it does.
    let served = exports(args, &images)?;
    let exports = &served.exports;
    let unix = match &args.socket {
        Some(path) => Some(path.clone()),
        None if tcp.is_some() || !passed.clients.is_empty() => None,
        None => {
            // A name may have slashes, which lead elsewhere.
            let first = exports.first();
            let first = first.map(|export| export.info().name.replace('/', "_"));
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
                let _ = sd_notify::notify(&[NotifyState::Stopping]);
                asked.stop();
            }
        })?;
    let plan = Plan {
        exports: exports.clone(),
        unix,
        tcp,
        tls,
        connections: args.connections as usize,
        buffer_bytes: buffer_bytes(args),
        negotiation: NEGOTIATION,
        rings: !args.no_io_uring,
    };
    let sockets = Sockets {
        access,
        passed: passed.clients,
        tls_on_unix: args.tls_unix,
    };
    let server = Server::bind_with(plan, sockets).map_err(said)?;
    let addresses: Vec<Address> = server.addresses().collect();
    check(&addresses, args)?;
    let metrics = args.metrics.as_deref();
    let metrics = metrics.map(|at| parse("--metrics", at)).transpose()?;
    metrics::start(metrics, passed.metrics, exports)?;
    record_raw(exports, &images);
    let scan = match served.scanned.is_empty() {
        true => None,
        false => Some(scan::start(&served.scanned, &stop)?),
    };
    let recording = args.record.as_deref().map(|path| record(path, exports));
    let recording = recording.transpose()?;
    let _control = control::listen(&folder, exports.clone())?;
    let pid_file = args.pid_file.as_deref();
    let _pid_file = pid_file.map(PidFile::create).transpose()?;
    tell(exports, &addresses, args);
    let status = format!(
        "serving {}",
        count(exports.len() as u64, "export", "exports")
    );
    // Who started it as a service of type `notify` waits for this; nobody else does.
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    let verbose = args.verbose;
    let on_event: Arc<OnEvent> = Arc::new(move |event| log(event, verbose));
    // Whatever of the end fails, all of it is done.
    let ended = server.run(&stop, &on_event);
    if let Some(recording) = recording {
        recording.stop();
    }
    if scan.is_some_and(scan::has_ended) {
        scan::keep_all(&served.scanned);
    }
    ended?;
    Ok(0)
}

/// Raises the limit of open files. A client takes three, and two more with TLS; without more of them, some are not let in.
fn raise_open_files(images: usize) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    // Of the program and of each image, measured, and of one client.
    let least = 24 + 5 * images as u64;
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

/// What keys of groups are made of. It outlives the server only if something is kept that needs it.
pub(super) fn secret(args: &DriveServe) -> anyhow::Result<Secret> {
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

/// The folder of the sockets of this user's servers, made or not.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let folder = bonsai_host::runtime_dir_path().context("the runtime directory")?;
    Ok(folder.join(FOLDER))
}
