//! From the start of the daemon to its end.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use bonsai_api::Config;
use bonsai_services::refusal::Refusal;
use bonsai_services::service::Services;
use listenfd::ListenFd;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::desired::Desired;
use crate::enforce::{Enforcer, Limits, Pooled, Uplinks};
use crate::files::{Files, SYSTEM_FOLDER, be_the_one, read_config, socket_path};
use crate::http::{App, Doors, Tokens};
use crate::look::{Looker, Others};
use crate::past::Past;
use crate::ring::{Event, Ring};
use bonsai_services::observe::unix_ms;

/// What may be waiting for the owner.
const QUEUE: usize = 1024;

/// It is looked so often whether all threads are there.
const LOOK: Duration = Duration::from_millis(500);

/// Where the runtime directories of users are.
const USERS: [&str; 2] = ["/run/user/{uid}/bonsai", "/dev/shm/bonsai-{uid}"];

/// How the daemon is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file; without it the usual place, if there is one.
    pub config: Option<PathBuf>,
    /// Address and port of the interface over TCP, instead of the file's.
    pub listen: Option<String>,
    /// Called once everything is ready, with what to tell people.
    pub ready: Option<fn(&str)>,
}

/// Runs the daemon until it is told to end (SIGTERM, SIGINT).
///
/// # Errors
/// Whatever keeps it from starting.
pub fn run(options: &Options) -> anyhow::Result<()> {
    bonsai_host::one_arena();
    let passed = ListenFd::from_env().take_unix_listener(0);
    let passed = passed.map_err(|error| {
        Refusal::input(format!(
            "the socket that it is started with (LISTEN_FDS): {error}"
        ))
    })?;
    let path = options.config.clone().or_else(crate::config_path);
    let mut config = match &path {
        Some(path) => read_config(path)?,
        None => Config::default(),
    };
    if let Some(listen) = &options.listen {
        config.api.listen = Some(listen.clone());
        crate::plan(&config).map_err(Refusal::input)?;
    }
    let absent = crate::present::start(&config)?;
    let services = Services::open()?;
    let running = be_the_one(services.folder())?;
    let files = Files::new(path.clone(), &config)?;
    let (kept, mut notes) = files.kept();
    let (desired, left_out) = Desired::new(&config, kept, crate::plan::check)
        .map_err(|e| Refusal::input(e.to_string()))?;
    notes.extend(left_out);
    notes.extend(absent);
    let socket = match &config.daemon.socket {
        Some(socket) => socket.clone(),
        None => socket_path()?,
    };
    let places = places(&config, &services);
    let drives = crate::drives::Drives::new(services.folder().to_owned(), places.clone());
    let others = others(places, &services)?;
    if others.is_some() && socket.parent() == Some(services.folder()) {
        // Its folders stay closed; the way to the socket is open.
        let open = Permissions::from_mode(0o711);
        std::fs::set_permissions(services.folder(), open).with_context(|| {
            format!("{}: cannot be opened to users", services.folder().display())
        })?;
    }
    let mut enforcers: Vec<Box<dyn Enforcer>> = Vec::new();
    if config.daemon.pool {
        enforcers.push(Box::new(Pooled::default()));
    }
    enforcers.push(Box::new(Uplinks));
    enforcers.push(Box::new(Limits::default()));
    let tokens = Tokens::open(&files.state)?;
    let state = files.state.clone();
    let folder = services.folder().to_owned();
    let (events, queue) = sync_channel(QUEUE);
    let is_root = rustix::process::geteuid().is_root();
    let links = is_root.then(|| crate::links::start(folder.clone(), events.clone()));
    let (links, keeper) = links.transpose()?.unzip();
    let outsiders = links
        .clone()
        .map(|links| crate::placed::start(folder, links));
    let (outsiders, minder) = outsiders.transpose()?.unzip();
    let past = Past::open(&state, &config.history);
    let (ring, published) = Ring::new(
        files,
        desired,
        Looker::new(services, others, outsiders.clone())?,
        enforcers,
        links.clone(),
        past,
        &notes,
    )?;
    let app = Arc::new(App {
        published,
        events: events.clone(),
        past: state,
        tokens,
        doors: Doors::default(),
        started_unix_ms: unix_ms(),
        listeners: crate::http::streams(),
        exports: crate::http::exports(),
        names: Default::default(),
        limiter: crate::http::limiter(config.api.requests),
        probes: Default::default(),
        links: links.clone(),
        samples: Default::default(),
        drives,
        file: path,
        config,
    });
    // One thread owns what changes, one answers.
    let owner = thread::Builder::new()
        .name("ring".to_owned())
        .spawn(move || ring.run(&queue))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let is_passed = passed.is_some();
    let threads = Threads {
        ring: &owner,
        others: [("outsiders", minder.as_ref()), ("links", keeper.as_ref())],
    };
    let served = runtime.block_on(async {
        // A signal that comes before all is ready counts, too.
        let ends = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
        let [terminate, interrupt] = ends;
        let ends = (terminate?, interrupt?);
        serve(&app, &socket, passed, options).await?;
        end(&app, &threads, ends).await
    });
    let _ = events.send(Event::Stop);
    let ended = owner.join();
    if let (Some(outsiders), Some(minder)) = (outsiders, minder) {
        outsiders.end();
        let _ = minder.join();
    }
    if let (Some(links), Some(keeper)) = (links, keeper) {
        links.end();
        let _ = keeper.join();
    }
    // One that was passed belongs to whoever will start the next daemon when it is asked.
    if !is_passed {
        let _ = std::fs::remove_file(&socket);
    }
    drop(running);
    served?;
    ended.map_err(|_| anyhow::anyhow!("the owner of all that changes has failed"))
}

/// Where the runtime directories of users are, unless the configuration says otherwise.
#[must_use]
pub fn places_of_users() -> Vec<PathBuf> {
    USERS.into_iter().map(PathBuf::from).collect()
}

/// Where other users have their runtime directories, for a daemon of the whole machine: root's, unless it has one
/// that somebody has chosen for it.
fn places(config: &Config, services: &Services) -> Vec<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    match &config.daemon.users {
        _ if !is_root => Vec::new(),
        Some(places) => places.clone(),
        None if services.folder() == Path::new(SYSTEM_FOLDER) => places_of_users(),
        None => Vec::new(),
    }
}

/// The services of other users.
fn others(places: Vec<PathBuf>, services: &Services) -> anyhow::Result<Option<Others>> {
    if places.is_empty() {
        return Ok(None);
    }
    bonsai_host::bus::guard().context("ledgers of others cannot be mapped safely")?;
    // Each of their services costs a descriptor. Without more of them, some are not seen.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let others = Others::new(places, services.folder().to_owned());
    Ok(Some(
        others.context("there is no thread to look for users")?,
    ))
}

async fn serve(
    app: &Arc<App>,
    socket: &Path,
    passed: Option<UnixListener>,
    options: &Options,
) -> anyhow::Result<()> {
    app.doors.answer_with(crate::http::router(app));
    let mut said = match passed {
        Some(listener) => {
            app.doors.take_unix(listener)?;
            "listens on the socket that it was started with".to_owned()
        }
        None => {
            app.doors.open_unix(socket)?;
            format!("listens on {}", socket.display())
        }
    };
    let api = &app.config.api;
    if let Some(listen) = &api.listen {
        let address: SocketAddr = listen.parse().context("api.listen")?;
        let tls = api.tls.as_ref().map(crate::http::tls).transpose()?;
        let secure = tls.is_some();
        let address = app.doors.open_tcp(address, tls).await?;
        if address.ip().is_loopback() && !secure {
            app.doors.page_is_at(address);
            app.tokens.pages.are_at(address.port());
        }
        said.push_str(&format!(" and on {address}"));
    }
    // Pages that were open when the last one ended look for this one where that was.
    if let Some(port) = app.tokens.pages.awaited_at()
        && let Ok(address) = app.doors.open_page_at(port).await
    {
        app.doors.page_is_at(address);
    }
    if let Some(ready) = options.ready {
        ready(&said);
    }
    // Who started it as a service of type `notify` waits for this; nobody else does.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    Ok(())
}

/// Threads that never end before the daemon does.
struct Threads<'a> {
    ring: &'a JoinHandle<()>,
    others: [(&'static str, Option<&'a JoinHandle<()>>); 2],
}

impl Threads<'_> {
    /// One that has ended all the same.
    fn ended(&self) -> Option<&'static str> {
        let others = self
            .others
            .iter()
            .filter(|(_, thread)| thread.is_some_and(JoinHandle::is_finished));
        let ring = self.ring.is_finished().then_some("ring");
        ring.or_else(|| others.map(|(name, _)| *name).next())
    }
}

/// Waits until the daemon is told to end, or has to: without one of its threads it would go on to look healthy, and whatever starts it
/// again would not.
///
/// # Errors
/// Which thread has ended.
async fn end(
    app: &App,
    threads: &Threads<'_>,
    (mut terminate, mut interrupt): (Signal, Signal),
) -> anyhow::Result<()> {
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = look.tick() => {}
        }
        let keeping = app
            .published
            .written
            .has_changed()
            .is_err()
            .then_some("keeping");
        if let Some(name) = threads.ended().or(keeping) {
            anyhow::bail!("the thread {name} has ended, without which nothing is decided or kept");
        }
        // Whatever started it as a service may end one that has stopped deciding.
        if app.stalled().is_none() {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        }
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(())
}
