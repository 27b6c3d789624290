//! `bonsai confine`: what `bonsai run --enforce` starts in the program's place, and what
//! becomes the program.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use bonsai_host::inherit_sigpipe;
use bonsai_services::refusal::Refusal;
use bonsai_supervisor::enforce::{ConfineError, User, become_program, inherited};

use crate::cli::Confine;

/// The exit code for a program that is there and cannot be executed.
const CANNOT_EXECUTE: u8 = 126;

/// Becomes the program.
///
/// # Errors
/// It cannot be executed, or not be put under the filter.
pub(crate) fn run(args: Confine) -> anyhow::Result<u8> {
    let unusable = || Refusal::input("bonsai confine is of no use by hand: bonsai run --enforce");
    let socket = inherited(args.socket).map_err(|_| unusable())?;
    let [path, name, rest @ ..] = args.program.as_slice() else {
        return Err(unusable());
    };
    let user = match args.user.as_slice() {
        [] => None,
        [uid, gid, groups @ ..] => Some(User {
            uid: *uid,
            gid: *gid,
            groups: groups.to_vec(),
            home: std::path::PathBuf::new(),
        }),
        [_] => return Err(unusable()),
    };
    let mut command = Command::new(path);
    command.arg0(name).args(rest);
    // As every shell and execvp(3) do with text that names no interpreter.
    let mut text = Command::new("/bin/sh");
    text.arg(path).args(rest);
    for command in [&mut command, &mut text] {
        inherit_sigpipe(command);
    }
    let shown = path.display().to_string();
    Err(
        match become_program(command, text, args.asked, user, &socket) {
            ConfineError::Exec(error) => Refusal::code(
                CANNOT_EXECUTE,
                format!("{shown} cannot be executed: {error}"),
            ),
            ConfineError::Step { what, source } if source.raw_os_error() == Some(EBUSY) => {
                Refusal::input(format!(
                    "{what}: there is a seccomp listener already, and Linux allows one: \
                 bonsai run --enforce cannot be used within another, nor below such a supervisor"
                ))
            }
            error => Refusal::input(format!("limits cannot be enforced here: {error}")),
        },
    )
}

const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
