//! Where a server listens, and who may connect there.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use bonsai_nbd::server::{Access, Address, ServeError};
use bonsai_services::refusal::Refusal;
use listenfd::ListenFd;

use crate::cli::DriveServe;

/// More sockets than any unit passes on.
const MOST_PASSED: usize = 1024;

/// Sockets that a service manager has passed on (`sd_listen_fds(3)`).
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// For clients.
    pub(super) clients: Vec<OwnedFd>,
    /// The one whose name is `metrics` (`FileDescriptorName=`).
    pub(super) metrics: Option<TcpListener>,
}

/// Takes the sockets that were passed on to this process. It has to come before the first thread.
///
/// # Errors
/// Something else than sockets that listen was passed on.
pub(super) fn passed() -> anyhow::Result<Passed> {
    let variable = |name| std::env::var(name).ok();
    let mut passed = Passed::default();
    let pid = variable("LISTEN_PID").and_then(|pid| pid.parse().ok());
    let refuse =
        |why: String| Refusal::input(format!("sockets that were passed on (LISTEN_FDS): {why}"));
    // Those of the process that started this one are not for it.
    let (Some(count), true) = (variable("LISTEN_FDS"), pid == Some(std::process::id())) else {
        return Ok(passed);
    };
    let count: usize = count
        .parse()
        .map_err(|_| refuse(format!("{count:?} is no number")))?;
    if count > MOST_PASSED {
        return Err(refuse(format!(
            "{count} are too many: at most {MOST_PASSED}"
        )));
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    let mut sockets = ListenFd::from_env();
    for number in 0..count {
        if names.get(number) == Some(&"metrics") {
            let socket = sockets.take_tcp_listener(number);
            let socket = socket.map_err(|error| refuse(format!("metrics: {error}")))?;
            passed.metrics = socket.or(passed.metrics);
            continue;
        }
        // Which of both it is, the server finds out, as it does whether it listens.
        let socket = match sockets.take_unix_listener(number) {
            Ok(socket) => socket.map(OwnedFd::from),
            Err(_) => {
                let socket = sockets.take_tcp_listener(number);
                let socket = socket.map_err(|_| {
                    let name = names.get(number).copied().unwrap_or_default();
                    refuse(format!(
                        "number {number} ({name}) is no stream socket of Unix or TCP"
                    ))
                })?;
                socket.map(OwnedFd::from)
            }
        };
        passed.clients.extend(socket);
    }
    Ok(passed)
}

/// An address of this machine alone if it begins with a colon.
///
/// # Errors
/// A [`Refusal`] that names the option.
pub(super) fn parse(option: &str, text: &str) -> anyhow::Result<SocketAddr> {
    let own = |port: &str| {
        let port = port.parse().ok()?;
        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    };
    let at = text
        .strip_prefix(':')
        .map_or_else(|| text.parse().ok(), own);
    at.ok_or_else(|| {
        Refusal::input(format!(
            "{option} {text}: is no address such as :10809 or 192.0.2.1:10809"
        ))
    })
}

/// Where to listen on TCP, if that may be.
pub(super) fn address(text: &str, args: &DriveServe) -> anyhow::Result<SocketAddr> {
    let at = parse("--listen", text)?;
    check_reach(&format!("--listen {text}"), at, args)?;
    Ok(at)
}

/// Whether other machines may reach the images at an address.
fn check_reach(what: &str, at: SocketAddr, args: &DriveServe) -> anyhow::Result<()> {
    if !at.ip().is_loopback() && args.tls_cert.is_none() && !args.insecure {
        return Err(Refusal::input(format!(
            "{what}: other machines could read and write the images; give --tls-cert and --tls-key, or --insecure"
        )));
    }
    Ok(())
}

/// Checks options that mean something for TCP alone, once it is known where the server listens, and that sockets which were
/// passed on may be reached as they are.
///
/// # Errors
/// A [`Refusal`].
pub(super) fn check(addresses: &[Address], args: &DriveServe) -> anyhow::Result<()> {
    let mut has_tcp = false;
    for address in addresses {
        if let Address::Tcp(at) = address {
            has_tcp = true;
            check_reach(&format!("the socket at {at}"), *at, args)?;
        }
    }
    if has_tcp {
        return Ok(());
    }
    let idle = match args {
        DriveServe { insecure: true, .. } => "--insecure",
        DriveServe {
            tls_cert: Some(_),
            tls_unix: false,
            ..
        } => "--tls-cert",
        _ => return Ok(()),
    };
    Err(Refusal::input(format!(
        "{idle}: is for TCP, and the server listens on a Unix socket alone: --listen gives it an address{}",
        if idle == "--tls-cert" {
            ", and --tls-unix has TLS there as well"
        } else {
            ""
        }
    )))
}

/// Who may connect to the Unix socket.
///
/// # Errors
/// A [`Refusal`] of a group that is not there.
pub(super) fn access(args: &DriveServe) -> anyhow::Result<Access> {
    let group = args.socket_group.as_deref().map(group).transpose()?;
    Ok(Access {
        // A group that may not connect would have no use.
        mode: args.socket_mode.or(group.map(|_| 0o660)),
        group,
    })
}

fn group(name: &str) -> anyhow::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let group = nix::unistd::Group::from_name(name).ok().flatten();
    let group = group.ok_or_else(|| {
        Refusal::input(format!(
            "--socket-group {name}: this machine has no such group"
        ))
    })?;
    Ok(group.gid.as_raw())
}

/// A failure to listen, as bad input where it is.
pub(super) fn said(error: ServeError) -> anyhow::Error {
    match error {
        ServeError::Thread(_) => error.into(),
        error => Refusal::input(error.to_string()),
    }
}
