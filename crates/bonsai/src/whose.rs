//! Services of other users, by the names that the daemon shows (`redis:vod`): a command about one goes on as that user, which may look
//! at it and change it, so that nothing of theirs is trusted further than they are.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::Context;
use bonsai_daemon::Owner;
use bonsai_services::refusal::Refusal;
use bonsai_services::service::check_name;
use rustix::process::geteuid;

use crate::cli::{Command, GroupCommand};

/// Set in the environment of a command that goes on as the owner of a service, to what ids of their services begin with.
const SHOWN_AS: &str = "BONSAI_SHOWN_AS";

/// The name by which the caller knows a service.
pub(crate) fn shown(name: &str) -> String {
    match std::env::var(SHOWN_AS) {
        Ok(label) if check_name(&label).is_ok() => format!("{label}:{name}"),
        _ => name.to_owned(),
    }
}

/// The service that a command is about, where it has to be looked at by its owner.
fn named(command: &Command) -> Option<&str> {
    match command {
        Command::Status(args) => args.service.as_deref(),
        Command::Top(args) => args.service.as_deref(),
        Command::Why(args) => Some(&args.service),
        Command::Stats(args) => Some(&args.service),
        Command::Audit(args) => Some(&args.service),
        Command::Detach(args) => args
            .targets
            .iter()
            .find(|of| of.contains(':'))
            .map(String::as_str),
        Command::Group(GroupCommand::Join(args)) => Some(&args.service),
        Command::Group(GroupCommand::Leave(args)) => Some(&args.service),
        _ => None,
    }
}

/// Goes on as the owner of the service that a command is about, if that is another user's; otherwise does nothing.
///
/// # Errors
/// A [`Refusal`]: there is no such user, or no service of theirs, or the caller is not root.
pub(crate) fn go_on(command: &Command) -> anyhow::Result<()> {
    let Some((id, (label, name))) = named(command).and_then(|id| Some((id, id.split_once(':')?)))
    else {
        return Ok(());
    };
    check_name(name)?;
    // A service that is no `bonsai run` has the name that is written in the configuration.
    let client = crate::daemon::running().ok().flatten();
    let known = client.and_then(|client| client.service(id).ok());
    if known.is_some_and(|known| known.target.is_some()) {
        return Ok(());
    }
    let Some(owner) = bonsai_daemon::owner(label) else {
        return Err(Refusal::input(format!(
            "{id}: there is no user {label:?} on this machine (bonsai shares lists the services of all)"
        )));
    };
    let own = geteuid().as_raw();
    if own != 0 && own != owner.uid {
        return Err(Refusal::input(format!(
            "{id} is a service of {label}, and this is user {own}: root looks at services of other users"
        )));
    }
    let program = std::env::current_exe().context("cannot tell where bonsai itself is")?;
    let mut next = std::process::Command::new(program);
    next.args(with_name(std::env::args_os().skip(1), id, name));
    next.env(SHOWN_AS, label);
    if own != owner.uid {
        let folder = home(&owner, name).ok_or_else(|| {
            Refusal::input(format!(
                "there is no service {id:?}: {label} has none of that name that runs"
            ))
        })?;
        next.env("BONSAI_RUNTIME_DIR", folder)
            .uid(owner.uid)
            .gid(owner.gid)
            .current_dir("/");
    }
    Err(next.exec()).with_context(|| format!("{id}: its owner cannot run bonsai"))
}

/// The runtime directory of a user in which a service of that name has its folder.
fn home(owner: &Owner, name: &str) -> Option<PathBuf> {
    let client = crate::daemon::running().ok().flatten();
    let configured = client.and_then(|client| client.config().ok()?.daemon.users);
    let places = configured.unwrap_or_else(bonsai_daemon::places_of_users);
    let folders = places.iter().map(|place| {
        let text = place.to_string_lossy();
        PathBuf::from(text.replace(bonsai_services::theirs::UID, &owner.uid.to_string()))
    });
    // A link in the place of a folder leads nowhere that its owner could not go: it is followed as that user.
    folders.into_iter().find(|folder| {
        folder
            .join(name)
            .symlink_metadata()
            .is_ok_and(|meta| meta.is_dir())
    })
}

/// The arguments with the name that the owner has for it.
fn with_name<'a>(
    args: impl Iterator<Item = OsString> + 'a,
    id: &'a str,
    name: &'a str,
) -> impl Iterator<Item = OsString> + 'a {
    args.map(move |arg| match arg == OsStr::new(id) {
        true => OsString::from(name),
        false => arg,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_alone_is_replaced() {
        let args = ["status", "redis:vod", "--json", "xredis:vod"].map(OsString::from);
        let next: Vec<OsString> = with_name(args.into_iter(), "redis:vod", "vod").collect();
        assert_eq!(next, ["status", "vod", "--json", "xredis:vod"]);
    }
}
