//! `bonsai gen`: manual pages, completions and references, from the definition of
//! the command line and the table of calls.

mod calls;
mod config;
mod reference;

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap_complete::Shell;

use crate::cli::{Gen, definition};
use crate::trace::write_output;

/// Width of what is generated, whatever the terminal.
const WIDTH: usize = 100;

/// Writes all files below a folder.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn run(args: &Gen) -> anyhow::Result<u8> {
    let folder = &args.folder;
    let mut command = definition().term_width(WIDTH);
    command.build();
    manual(folder, &command)?;
    for (shell, path) in [
        (Shell::Bash, "completions/bash/bonsai.bash"),
        (Shell::Zsh, "completions/zsh/_bonsai"),
        (Shell::Fish, "completions/fish/bonsai.fish"),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut without_hidden(), "bonsai", &mut text);
        write(folder, path, &text)?;
    }
    write(
        folder,
        "docs/reference/cli.md",
        reference::page(&command).as_bytes(),
    )?;
    write(folder, "docs/reference/calls.md", calls::page().as_bytes())?;
    let description = bonsai_daemon::openapi();
    write(
        folder,
        "docs/reference/config.md",
        config::page(&description)?.as_bytes(),
    )?;
    write(folder, "api/openapi.json", description.as_bytes())?;
    let coverage = crate::doctor::coverage::page();
    write(folder, "docs/reference/coverage.md", coverage.as_bytes())?;
    Ok(0)
}

/// The subcommands that people are told of.
fn shown(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// The definition without what people are not told of: completions do not leave
/// it out by themselves.
fn without_hidden() -> clap::Command {
    let whole = definition();
    let command = clap::Command::new("bonsai")
        .version(env!("CARGO_PKG_VERSION"))
        .about(whole.get_about().cloned().unwrap_or_default())
        .subcommand_required(true);
    command.subcommands(shown(&whole).cloned())
}

fn manual(folder: &Path, command: &clap::Command) -> anyhow::Result<()> {
    let page = |command: clap::Command| -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::new();
        clap_mangen::Man::new(command)
            .manual("Bonsai")
            .render(&mut text)?;
        Ok(text)
    };
    write(folder, "man/bonsai.1", &page(command.clone())?)?;
    for sub in shown(command) {
        let name = format!("bonsai-{}", sub.get_name());
        let path = format!("man/{name}.1");
        write(
            folder,
            &path,
            &page(sub.clone().name(name).version(env!("CARGO_PKG_VERSION")))?,
        )?;
    }
    Ok(())
}

fn write(folder: &Path, path: &str, text: &[u8]) -> anyhow::Result<()> {
    let path = folder.join(path);
    let failed = || format!("{}: cannot be written", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(failed)?;
    }
    write_output(&path, text)
}
