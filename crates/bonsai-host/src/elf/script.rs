//! The `#!` line, read as the kernel reads it (`fs/binfmt_script.c`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The kernel looks at this many bytes (`BINPRM_BUF_SIZE`).
pub(super) const HEAD_LEN: usize = 256;

/// One step from a script to its interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shebang {
    /// The script.
    pub script: PathBuf,
    /// The interpreter that its first line names.
    pub interpreter: PathBuf,
    /// All that follows in that line, which the interpreter gets as one argument.
    pub argument: Option<OsString>,
}

/// What the beginning of a file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// It is not a script.
    No,
    /// It starts with `#!`, but the kernel will not run it.
    Broken(&'static str),
    /// It names an interpreter.
    Yes {
        interpreter: PathBuf,
        argument: Option<OsString>,
    },
}

/// Reads the first [`HEAD_LEN`] bytes of a file, or all of a shorter one.
pub(super) fn parse(head: &[u8]) -> Script {
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Script::No;
    };
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line_end = rest.iter().position(|byte| *byte == b'\n');
    let line = rest.get(..line_end.unwrap_or(rest.len())).unwrap_or(rest);
    let start = line
        .iter()
        .position(|byte| !blank(byte))
        .unwrap_or(line.len());
    let line = line.get(start..).unwrap_or_default();
    // What follows a zero byte is not seen; the padding of a short file is zero bytes.
    let name_end = line.iter().position(|byte| blank(byte) || *byte == 0);
    if line_end.is_none() && name_end.is_none() && head.len() >= HEAD_LEN {
        return Script::Broken("the name of its interpreter is longer than the kernel reads");
    }
    let (name, rest) = line.split_at(name_end.unwrap_or(line.len()));
    if name.is_empty() {
        return Script::Broken("its `#!` line names no interpreter");
    }
    let mut argument = match rest.first() {
        Some(0) | None => &[][..],
        Some(_) => rest,
    };
    argument = argument.split(|byte| *byte == 0).next().unwrap_or_default();
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = argument {
        argument = rest;
    }
    Script::Yes {
        interpreter: PathBuf::from(OsStr::from_bytes(name)),
        argument: (!argument.is_empty()).then(|| OsStr::from_bytes(argument).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{HEAD_LEN, Script, parse};

    fn yes(interpreter: &str, argument: Option<&str>) -> Script {
        Script::Yes {
            interpreter: interpreter.into(),
            argument: argument.map(Into::into),
        }
    }

    #[test]
    fn interpreter_and_argument() {
        assert_eq!(parse(b"#!/bin/sh\necho"), yes("/bin/sh", None));
        assert_eq!(parse(b"#! \t/bin/sh -e  \n"), yes("/bin/sh", Some("-e")));
        assert_eq!(
            parse(b"#!/usr/bin/env -S a  b\n"),
            yes("/usr/bin/env", Some("-S a  b"))
        );
        assert_eq!(
            parse(b"#!/bin/sh"),
            yes("/bin/sh", None),
            "without a line end"
        );
        assert_eq!(parse(b"#!/bin/sh\0 -x\n"), yes("/bin/sh", None));
        assert_eq!(parse(b"#!sh\r\n"), yes("sh\r", None));
    }

    #[test]
    fn no_script_and_broken_script() {
        assert_eq!(parse(b""), Script::No);
        assert_eq!(parse(b"#"), Script::No);
        assert_eq!(parse(b" #!/bin/sh\n"), Script::No);
        assert!(matches!(parse(b"#!"), Script::Broken(_)));
        assert!(matches!(parse(b"#!  \n/bin/sh"), Script::Broken(_)));
        assert!(matches!(parse(b"#!\0/bin/sh\n"), Script::Broken(_)));
    }

    #[test]
    fn a_name_that_is_cut_off_is_refused_and_an_argument_is_not() {
        let mut long = b"#!/".to_vec();
        long.resize(HEAD_LEN, b'x');
        assert!(matches!(parse(&long), Script::Broken(_)));
        long[10] = b' ';
        assert!(matches!(
            parse(&long),
            Script::Yes {
                argument: Some(_),
                ..
            }
        ));
    }
}
