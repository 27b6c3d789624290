//! Services of other users, by the names that the daemon shows (`redis:vod`): a command about one goes on as that user, which may look
//! at it and change it, so that nothing of theirs is trusted further than they are.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Context;
use bonsai_daemon::Owner;
use bonsai_services::refusal::Refusal;
use bonsai_services::service::check_name;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::geteuid;

use crate::cli::{Command, GroupCommand};

/// What ids of the services of the user begin with that the command goes on as.
static LABEL: OnceLock<String> = OnceLock::new();

/// The name by which the caller knows a service.
pub(crate) fn shown(name: &str) -> String {
    match LABEL.get() {
        Some(label) => format!("{label}:{name}"),
        None => name.to_owned(),
    }
}

/// The names of services in a command that has to be done by the owner.
fn named(command: &mut Command) -> Vec<&mut String> {
    match command {
        Command::Status(args) => args.service.as_mut().into_iter().collect(),
        Command::Top(args) => args.service.as_mut().into_iter().collect(),
        Command::Why(args) => vec![&mut args.service],
        Command::Stats(args) => vec![&mut args.service],
        Command::Audit(args) => vec![&mut args.service],
        Command::Detach(args) => args.targets.iter_mut().collect(),
        Command::Group(GroupCommand::Join(args)) => vec![&mut args.service],
        Command::Group(GroupCommand::Leave(args)) => vec![&mut args.service],
        _ => Vec::new(),
    }
}

/// Goes on as the owner of the service that a command is about, if that is another user's; otherwise does nothing.
///
/// # Errors
/// A [`Refusal`]: there is no such user, or no service of that user, or the caller is not root.
pub(crate) fn go_on(command: &mut Command) -> anyhow::Result<()> {
    let mut names = named(command);
    let Some(id) = names.iter().find(|name| name.contains(':')) else {
        return Ok(());
    };
    let id = id.to_string();
    let (label, name) = id.split_once(':').unwrap_or_default();
    check_name(name)?;
    // A service that is no `bonsai run` has the name that is written in the configuration.
    let client = crate::daemon::running_soon();
    let known = client.and_then(|client| client.service(&id).ok());
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
    if own != owner.uid {
        let folder = home(&owner, name).ok_or_else(|| {
            Refusal::input(format!(
                "there is no service {id:?}: {label} has none of that name that runs"
            ))
        })?;
        bonsai_host::choose_runtime_dir(folder);
        become_user(&owner).with_context(|| format!("{id}: cannot go on as {label}"))?;
    }
    let _ = LABEL.set(label.to_owned());
    for each in names.iter_mut().filter(|each| ***each == id) {
        name.clone_into(each);
    }
    Ok(())
}

/// Gives up root's rights for those of a user, in all threads and for good.
///
/// No program is executed after that: the kernel keeps a process that has changed its user undumpable until then, so
/// that the user can neither trace it nor read what root had in its environment and has open.
fn become_user(owner: &Owner) -> anyhow::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    setgroups(&[gid])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    Ok(())
}

/// The runtime directory of a user in which a service of that name has its folder.
fn home(owner: &Owner, name: &str) -> Option<PathBuf> {
    let client = crate::daemon::running_soon();
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_command_about_one_service_names_it() {
        for line in [
            "bonsai status redis:vod",
            "bonsai top redis:vod",
            "bonsai why redis:vod",
            "bonsai stats redis:vod",
            "bonsai audit redis:vod",
            "bonsai detach 17 redis:vod",
            "bonsai group join house redis:vod",
            "bonsai group leave redis:vod",
        ] {
            let mut cli = Cli::try_parse_from(line.split(' ')).expect(line);
            let names = named(&mut cli.command);
            assert!(names.iter().any(|name| *name == "redis:vod"), "{line}");
        }
    }
}
