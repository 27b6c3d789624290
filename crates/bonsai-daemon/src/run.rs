//! From the start of the daemon to its end.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use bonsai_api::Config;
use bonsai_history::Writer;
use bonsai_services::refusal::Refusal;
use bonsai_services::service::Services;
use listenfd::ListenFd;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::desired::Desired;
use crate::enforce::{Enforcer, Limits, Pooled, Uplinks};
use crate::files::{Files, SYSTEM_FOLDER, be_the_one, read_config, socket_path};
use crate::http::{App, Doors, Tokens};
use crate::look::{Looker, Others};
use crate::past::Past;
use crate::ring::{Before, Event, Ring};
use bonsai_services::observe::unix_ms;

/// What may be waiting for the owner.
const QUEUE: usize = 1024;

/// The longest that the end takes; [`crate::keeping`] and the history have their own, shorter times.
const END: Duration = Duration::from_secs(15);

/// It is looked so often whether all threads are there.
const LOOK: Duration = Duration::from_millis(500);

/// Files that could not be written are tried again so often.
const AGAIN: Duration = Duration::from_secs(5);

/// Threads for what takes long, so that the one that answers does not wait. All that strangers may ask for on them is
/// bounded: exports, questions of the past, names of users, lists.
const BESIDE: usize = 64;

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
    let (kept, trail, mut notes) = files.kept()?;
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
    open_more();
    let others = others(places, &services)?;
    if others.is_some() && socket.parent() == Some(services.folder()) {
        // Its folders stay closed; the way to the socket is open.
        let open = Permissions::from_mode(0o711);
        std::fs::set_permissions(services.folder(), open).with_context(|| {
            format!("{}: cannot be opened to users", services.folder().display())
        })?;
    }
    let is_passed = passed.is_some();
    let listener = match passed {
        Some(listener) => listener,
        None => crate::http::bind(&socket)?,
    };
    let bound = (!is_passed).then(|| Bound::new(&socket));
    let enforcers: Vec<Box<dyn Enforcer>> = vec![
        Box::new(Pooled::new(config.daemon.pool)),
        Box::new(Uplinks),
        Box::new(Limits::default()),
    ];
    let tokens = Tokens::open(&files.state)?;
    let state = files.state.clone();
    let folder = services.folder().to_owned();
    let (events, queue) = sync_channel(QUEUE);
    let is_root = rustix::process::geteuid().is_root();
    let links = is_root.then(|| crate::links::start(folder.clone(), events.clone()));
    let (links, keeper) = links.transpose()?.unzip();
    let outsiders = links
        .clone()
        .map(|links| crate::placed::start(folder.clone(), links));
    let (outsiders, minder) = outsiders.transpose()?.unzip();
    let past = Past::open(&state, &config.history);
    let history = past.writer().as_ref().map(Arc::downgrade);
    let watched = crate::watched_files::start(files.clone(), folder.clone(), events.clone())?;
    let (ring, published) = Ring::new(
        files,
        desired,
        Looker::new(services, others, outsiders.clone())?,
        enforcers,
        links.clone(),
        past,
        Before { trail, notes },
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
        questions: crate::http::questions(),
        lists: Default::default(),
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
        .max_blocking_threads(BESIDE)
        .build()?;
    let threads = Threads {
        ring: &owner,
        others: [
            ("outsiders", minder.as_ref()),
            ("links", keeper.as_ref()),
            ("files", Some(&watched)),
        ],
        history,
    };
    // A signal that comes before all is ready counts, too.
    let ends = runtime.block_on(async { Ends::new() });
    let mut ends = ends?;
    let served = runtime.block_on(async {
        let at = (!is_passed).then_some(&*socket);
        serve(&app, at, listener, options).await?;
        let bound = bound.as_ref();
        let is_gone = || {
            running
                .replaced()
                .or_else(|| bound.and_then(Bound::replaced))
        };
        end(&app, &threads, is_gone, &mut ends).await
    });
    let (done, ending) = oneshot::channel();
    let last = move || {
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
        let _ = done.send(ended.is_ok());
    };
    thread::Builder::new()
        .name("ending".to_owned())
        .spawn(last)?;
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = ending => Ok(ended.unwrap_or(false)),
            () = ends.next() => Err("it was told to end once more"),
            () = tokio::time::sleep(END) => Err("what is to be written has not been written in time"),
        }
    });
    // Requests that wait for a disk would be waited for otherwise.
    runtime.shutdown_background();
    drop(bound);
    drop(running);
    served?;
    match ended {
        Ok(true) => Ok(()),
        Ok(false) => anyhow::bail!("the owner of all that changes has failed"),
        Err(why) => anyhow::bail!(
            "ended before all was written, for {why}: limits stay in force; what was not confirmed as kept may be lost"
        ),
    }
}

/// Signals that end the daemon.
struct Ends(Signal, Signal);

impl Ends {
    fn new() -> std::io::Result<Self> {
        Ok(Self(
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        ))
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
    }
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
    let others = Others::new(places, services.folder().to_owned());
    Ok(Some(
        others.context("there is no thread to look for users")?,
    ))
}

/// The name of a socket that this daemon has opened, which ends with it. A passed socket belongs to the service manager,
/// and one that is there instead by now to another daemon.
struct Bound<'a> {
    path: &'a Path,
    number: Option<(u64, u64)>,
}

impl<'a> Bound<'a> {
    fn new(path: &'a Path) -> Self {
        Self {
            path,
            number: number(path),
        }
    }

    /// Says why nothing reaches this daemon by its socket any more, if that is so.
    fn replaced(&self) -> Option<String> {
        let own = self.number?;
        let there = std::fs::symlink_metadata(self.path);
        let is_own = match there {
            Ok(meta) => (meta.dev(), meta.ino()) == own,
            Err(error) => {
                let is_removed = error.kind() == std::io::ErrorKind::NotFound;
                // A directory that was taken away as a whole may come back.
                !is_removed || !self.path.parent().is_some_and(Path::is_dir)
            }
        };
        (!is_own).then(|| {
            format!(
                "{}: the socket of this daemon was removed, and nothing reaches it: start it again",
                self.path.display()
            )
        })
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if self.number.is_some() && number(self.path) == self.number {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Device and number of a file.
fn number(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Each service of others and each connection costs a descriptor. Without more of them, some are not seen.
fn open_more() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn serve(
    app: &Arc<App>,
    at: Option<&Path>,
    listener: UnixListener,
    options: &Options,
) -> anyhow::Result<()> {
    app.doors.answer_with(crate::http::router(app));
    app.doors.take_unix(listener)?;
    let mut said = match at {
        None => "listens on the socket that it was started with".to_owned(),
        Some(socket) => format!("listens on {}", socket.display()),
    };
    let api = &app.config.api;
    if let Some(listen) = &api.listen {
        let address: SocketAddr = listen.parse().context("api.listen")?;
        let tls = api
            .tls
            .as_ref()
            .map(crate::http::Secure::open)
            .transpose()?;
        let secure = tls.is_some();
        if let Some(tls) = &tls {
            app.doors.renews(tls);
        }
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
    tokio::spawn(write_pages_again(Arc::clone(app)));
    // Who started it as a service of type `notify` waits for this; nobody else does.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    Ok(())
}

/// Has tokens of pages written that could not be, for as long as the daemon runs.
async fn write_pages_again(app: Arc<App>) {
    loop {
        tokio::time::sleep(AGAIN).await;
        let app = Arc::clone(&app);
        let _ = tokio::task::spawn_blocking(move || app.tokens.pages.write_again()).await;
    }
}

/// Threads that never end before the daemon does.
struct Threads<'a> {
    ring: &'a JoinHandle<()>,
    others: [(&'static str, Option<&'a JoinHandle<()>>); 3],
    /// The thread that writes points and the audit trail, as long as it is wanted.
    history: Option<Weak<Writer>>,
}

impl Threads<'_> {
    /// One that has ended all the same.
    fn ended(&self) -> Option<&'static str> {
        let others = self
            .others
            .iter()
            .filter(|(_, thread)| thread.is_some_and(JoinHandle::is_finished));
        let ring = self.ring.is_finished().then_some("ring");
        let history = self.history.as_ref().and_then(Weak::upgrade);
        let history = history.filter(|history| history.has_ended());
        ring.or_else(|| others.map(|(name, _)| *name).next())
            .or(history.map(|_| "history"))
    }
}

/// Waits until the daemon is told to end, or has to: without one of its threads it would go on to look healthy, and whatever starts it
/// again would not.
///
/// # Errors
/// Which thread has ended, or what of the runtime directory is another daemon's or gone.
async fn end(
    app: &App,
    threads: &Threads<'_>,
    replaced: impl Fn() -> Option<String>,
    ends: &mut Ends,
) -> anyhow::Result<()> {
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = ends.next() => break,
            _ = look.tick() => {}
        }
        let keeping = app
            .published
            .written
            .has_changed()
            .is_err()
            .then_some("keeping");
        if let Some(why) = replaced() {
            anyhow::bail!(why);
        }
        if let Some(what) = app.doors.ended() {
            anyhow::bail!("no connection to {what} is accepted any more: its task has ended");
        }
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
