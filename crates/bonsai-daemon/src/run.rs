//! From the start of the daemon to its end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::Context;
use bonsai_api::Config;
use bonsai_services::refusal::Refusal;
use bonsai_services::service::Services;
use tokio::signal::unix::{SignalKind, signal};

use crate::desired::Desired;
use crate::enforce::{Enforcer, Limits, Pooled};
use crate::files::{Files, be_the_one, read_config, socket_path};
use crate::http::{App, Doors, Tokens};
use crate::look::Looker;
use crate::past::Past;
use crate::ring::{Event, Ring};
use bonsai_services::observe::unix_ms;

/// What may be waiting for the owner.
const QUEUE: usize = 1024;

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
    let path = options.config.clone().or_else(crate::config_path);
    let mut config = match &path {
        Some(path) => read_config(path)?,
        None => Config::default(),
    };
    if let Some(listen) = &options.listen {
        config.api.listen = Some(listen.clone());
        crate::plan(&config).map_err(Refusal::input)?;
    }
    let services = Services::open()?;
    let running = be_the_one(services.folder())?;
    let files = Files::new(path.clone(), &config)?;
    let (kept, mut notes) = files.kept();
    let (desired, left_out) = Desired::new(&config, kept, crate::plan::check)
        .map_err(|e| Refusal::input(e.to_string()))?;
    notes.extend(left_out);
    let socket = match &config.daemon.socket {
        Some(socket) => socket.clone(),
        None => socket_path()?,
    };
    let mut enforcers: Vec<Box<dyn Enforcer>> = Vec::new();
    if config.daemon.pool {
        enforcers.push(Box::new(Pooled::default()));
    }
    enforcers.push(Box::new(Limits::default()));
    let tokens = Tokens::open(files.state.join("tokens.json"))?;
    let state = files.state.clone();
    let past = Past::open(&state, &config.history);
    let (ring, published) = Ring::new(
        files,
        desired,
        Looker::new(services)?,
        enforcers,
        past,
        &notes,
    )?;
    let (events, queue) = sync_channel(QUEUE);
    let app = Arc::new(App {
        published,
        events: events.clone(),
        past: state,
        tokens,
        doors: Doors::default(),
        started_unix_ms: unix_ms(),
        listeners: Default::default(),
        limiter: crate::http::limiter(config.api.requests),
        probes: Default::default(),
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
    let served = runtime.block_on(serve(&app, &socket, options));
    let _ = events.send(Event::Stop);
    let ended = owner.join();
    let _ = std::fs::remove_file(&socket);
    drop(running);
    served?;
    ended.map_err(|_| anyhow::anyhow!("the owner of all that changes has failed"))
}

async fn serve(app: &Arc<App>, socket: &std::path::Path, options: &Options) -> anyhow::Result<()> {
    let mut ends = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    ];
    app.doors.answer_with(crate::http::router(app));
    app.doors.open_unix(socket)?;
    let mut said = format!("listens on {}", socket.display());
    let api = &app.config.api;
    if let Some(listen) = &api.listen {
        let address: SocketAddr = listen.parse().context("api.listen")?;
        let tls = api.tls.as_ref().map(crate::http::tls).transpose()?;
        let secure = tls.is_some();
        let address = app.doors.open_tcp(address, tls).await?;
        if address.ip().is_loopback() && !secure {
            app.doors.page_is_at(address);
        }
        said.push_str(&format!(" and on {address}"));
    }
    if let Some(ready) = options.ready {
        ready(&said);
    }
    // Who started it as a service of type `notify` waits for this; nobody else does.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let [terminate, interrupt] = &mut ends;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(())
}
