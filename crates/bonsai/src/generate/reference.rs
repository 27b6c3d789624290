//! `docs/reference/cli.md`: the help of every subcommand.

use super::shown;

/// The page.
pub(super) fn page(command: &clap::Command) -> String {
    let mut text = String::from(
        "# Command line\n\nWritten by `cargo xtask gen` from the program itself: this is what \
         `bonsai --help` and `bonsai COMMAND --help` print.\n\nExit codes: 0 for success, 1 for a \
         failure, 2 for bad input; `bonsai run` ends with the program's own, with 126 if it cannot \
         be executed and 127 if it was not found.\n",
    );
    section(&mut text, "bonsai", command);
    for sub in shown(command) {
        let title = format!("bonsai {}", sub.get_name());
        section(&mut text, &title, sub);
        for part in shown(sub) {
            section(&mut text, &format!("{title} {}", part.get_name()), part);
        }
    }
    text
}

fn section(text: &mut String, title: &str, command: &clap::Command) {
    let help = command.clone().render_long_help().to_string();
    text.push_str(&format!("\n## {title}\n\n```text\n"));
    for line in help.trim_end().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str("```\n");
}
