//! Parts of a configuration that are not on this machine: files that keep the daemon from starting, and names that nothing has. The same
//! is looked at by `bonsai config check` and when the daemon starts.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use bonsai_api::Config;
use bonsai_services::refusal::Refusal;

use crate::users;

/// Names of groups and interfaces that are not there, in words. The daemon starts all the same, since they may come.
fn absent(config: &Config) -> Vec<String> {
    let api = &config.api;
    let mut found = Vec::new();
    for (name, group, what) in [
        ("api.read-group", &api.read_group, "sees"),
        ("api.write-group", &api.write_group, "changes"),
    ] {
        if let Some(group) = group.as_ref().filter(|group| !users::is_group(group)) {
            found.push(format!(
                "{name}: there is no group {group:?} on this machine, so no user {what} more by it"
            ));
        }
    }
    found
}

/// The same of interfaces, which the daemon itself shows as waiting.
fn absent_interfaces(config: &Config) -> Vec<String> {
    let is_interface = |target: &&String| !target.contains([':', '/']);
    let mut found = Vec::new();
    for target in config.links.keys().filter(is_interface) {
        if !Path::new("/sys/class/net").join(target).exists() {
            found.push(format!(
                "links.{target}: there is no interface of that name now, and its limits wait for one"
            ));
        }
    }
    found
}

/// Checks all that the start of the daemon needs, short of opening sockets; returns what has no effect or waits.
///
/// # Errors
/// The reason that would keep the daemon from starting, or from taking that file.
pub fn check_start(config: &Config) -> anyhow::Result<Vec<String>> {
    let mut found = start(config)?;
    found.extend(absent_interfaces(config));
    Ok(found)
}

/// The same at the start itself; what waits for an interface is shown there as long as it waits.
pub(crate) fn start(config: &Config) -> anyhow::Result<Vec<String>> {
    crate::plan::check(config).map_err(Refusal::input)?;
    if let Some(tls) = &config.api.tls {
        crate::http::Secure::open(tls)?;
    }
    let kind = |path: &Path| std::fs::metadata(path).map(|meta| meta.file_type());
    if let Some(state) = &config.daemon.state {
        // The nearest that is there: what is below it is made.
        let there = state.ancestors().find(|path| path.exists());
        if let Some(path) = there.filter(|path| !path.is_dir()) {
            return Err(Refusal::input(format!(
                "daemon.state: {} is no folder",
                path.display()
            )));
        }
    }
    if let Some(socket) = &config.daemon.socket {
        let folder = socket.parent().unwrap_or(Path::new("/"));
        // The runtime directory is made at the start, where there is none yet.
        let is_made = bonsai_host::runtime_dir_path().is_ok_and(|own| own == folder);
        if !is_made && !folder.is_dir() {
            return Err(Refusal::input(format!(
                "daemon.socket: there is no folder {}",
                folder.display()
            )));
        }
        if kind(socket).is_ok_and(|kind| !kind.is_socket()) {
            return Err(Refusal::input(format!(
                "daemon.socket: {} is there, and is no socket",
                socket.display()
            )));
        }
    }
    Ok(absent(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> anyhow::Result<Vec<String>> {
        check_start(&toml::from_str(text).expect("TOML of the right form"))
    }

    #[test]
    fn what_keeps_the_daemon_from_starting_is_refused_before() {
        for (text, why) in [
            (
                "[api]\nlisten = \"127.0.0.1:1\"\ntls = { certificate = \"/nowhere/x\", key = \"/nowhere/y\" }",
                "/nowhere/x",
            ),
            (
                "[daemon]\nsocket = \"/nowhere/x.sock\"",
                "daemon.socket: there is no folder /nowhere",
            ),
            ("[daemon]\nsocket = \"/etc/passwd\"", "is no socket"),
            (
                "[daemon]\nstate = \"/etc/passwd/x\"",
                "daemon.state: /etc/passwd is no folder",
            ),
            (
                "[daemon]\nstate = \"relative\"",
                "daemon.state: relative is no absolute path",
            ),
        ] {
            let error = checked(text).expect_err(text);
            let error = bonsai_host::sentence(error.as_ref());
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_not_there_yet_is_said() {
        let found =
            checked("[api]\nread-group = \"no-such-group-anywhere\"").expect("it can start");
        assert!(
            found.len() == 1 && found[0].starts_with("api.read-group: "),
            "{found:?}"
        );
        assert_eq!(
            checked("[api]\nread-group = \"root\"").expect("fine"),
            Vec::<String>::new()
        );
        if rustix::process::geteuid().is_root() {
            let found = checked("[links.nosuchif0]\ntx = \"1Mbit/s\"").expect("it can start");
            assert!(found[0].starts_with("links.nosuchif0: "), "{found:?}");
        }
    }
}
