//! The daemon, and what is asked of it.

mod capacity;
mod change;
mod look;
mod outside;
mod token;

use std::path::Path;
use std::time::Duration;

use bonsai_client::{Client, ClientError, PATIENCE};
use bonsai_daemon::Options;
use bonsai_services::refusal::Refusal;

use crate::cli::Daemon;
use crate::output::print;

pub(crate) use capacity::capacity;
pub(crate) use change::{config, how, lines, set, show, undo};
pub(crate) use look::{admit, log, page, past, report, shares};
pub(crate) use outside::{Outside, samplers};
pub(crate) use token::token;

/// Time for an answer that a command can do without: twenty periods, and the time in which a picture is made for the first look.
const SOON: Duration = Duration::from_secs(3);

/// Runs the daemon to its end.
///
/// # Errors
/// Whatever keeps it from starting.
pub(crate) fn run(args: &Daemon) -> anyhow::Result<u8> {
    let options = Options {
        config: args.config.clone(),
        listen: args.listen.clone(),
        ready: Some(|text| {
            // Whoever started it may not read what it says.
            let _ = print(&format!("bonsai daemon: {text}\n"));
        }),
    };
    bonsai_daemon::run(&options)?;
    Ok(0)
}

/// The user's daemon, if it runs; otherwise the machine's.
///
/// # Errors
/// Something is there and does not answer as it should.
pub(crate) fn running() -> anyhow::Result<Option<Client>> {
    if let Some(client) = answering(&bonsai_daemon::socket_path()?)? {
        return Ok(Some(client));
    }
    machines()
}

/// The same for a command that only looks, and does without a daemon that hangs: each answer has [`SOON`].
pub(crate) fn running_soon() -> Option<Client> {
    let of = |socket: &Path| answering_within(socket, SOON).ok().flatten();
    let own = bonsai_daemon::socket_path().ok();
    if let Some(client) = own.and_then(|own| of(&own)) {
        return Some(client);
    }
    let is_elsewhere = bonsai_host::is_runtime_dir_chosen();
    (!is_elsewhere)
        .then(|| of(Path::new(bonsai_daemon::SYSTEM_SOCKET)))
        .flatten()
}

/// The daemon that a change of a service goes to, if one runs: the machine's only if it knows
/// that service.
///
/// # Errors
/// Something is there and does not answer as it should.
pub(crate) fn running_for(service: &str) -> anyhow::Result<Option<Client>> {
    if let Some(client) = answering(&bonsai_daemon::socket_path()?)? {
        return Ok(Some(client));
    }
    let Some(client) = machines()? else {
        return Ok(None);
    };
    match client.service(service) {
        Err(ClientError::Refused(problem)) if problem.status == 404 => Ok(None),
        _ => Ok(Some(client)),
    }
}

/// Root's daemon, which keeps interfaces, if it runs.
///
/// # Errors
/// Something is there and does not answer as it should.
pub(crate) fn roots() -> anyhow::Result<Option<Client>> {
    if let Some(client) = answering(&bonsai_daemon::socket_path()?)?
        && client.status().map_err(said)?.uid == 0
    {
        return Ok(Some(client));
    }
    machines()
}

/// The machine's daemon, if it runs and this user's services are not elsewhere.
fn machines() -> anyhow::Result<Option<Client>> {
    if bonsai_host::is_runtime_dir_chosen() {
        return Ok(None);
    }
    answering(Path::new(bonsai_daemon::SYSTEM_SOCKET))
}

fn answering(socket: &Path) -> anyhow::Result<Option<Client>> {
    answering_within(socket, PATIENCE)
}

fn answering_within(socket: &Path, patience: Duration) -> anyhow::Result<Option<Client>> {
    if !socket.exists() {
        return Ok(None);
    }
    let client = Client::unix(socket)?.within(patience);
    match client.status() {
        Ok(_) => Ok(Some(client)),
        // One that was killed leaves its socket behind.
        Err(ClientError::Absent { .. }) => Ok(None),
        Err(error) => Err(said(error)),
    }
}

/// The user's daemon.
///
/// # Errors
/// A [`Refusal`]: there is none.
fn needed() -> anyhow::Result<Client> {
    let none = "no daemon runs for this user: start one (bonsai daemon), or as a service \
                (systemctl start bonsai)";
    running()?.ok_or_else(|| Refusal::input(none))
}

/// What the daemon will not do is bad input; what keeps it from answering is not.
pub(crate) fn said(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Refused(problem) if (400..500).contains(&problem.status) => {
            Refusal::input(problem.detail)
        }
        error => error.into(),
    }
}
