//! `bonsai daemon` and `bonsai config`.

use bonsai_daemon::Options;
use bonsai_services::refusal::Refusal;

use crate::cli::{ConfigCommand, Daemon};
use crate::output::print;

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

/// Looks at a configuration file.
///
/// # Errors
/// It could not be used.
pub(crate) fn config(command: &ConfigCommand) -> anyhow::Result<u8> {
    let ConfigCommand::Check { file } = command;
    let Some(path) = file.clone().or_else(bonsai_daemon::config_path) else {
        let text = "there is no configuration file at the usual place: name one (bonsai config check FILE)";
        return Err(Refusal::input(text));
    };
    let config = bonsai_daemon::read_config(&path)?;
    print(&format!(
        "{}: fine: {} services, {} groups, {} classes\n",
        path.display(),
        config.services.len(),
        config.groups.len(),
        config.classes.len()
    ))?;
    Ok(0)
}
