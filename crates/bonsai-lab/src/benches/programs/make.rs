//! The programs, and how they are started.

use std::path::{Path, PathBuf};
use std::process::Command;

use bonsai_host::elf::Cover;

use crate::context::Context;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    /// It writes to its standard output.
    Pours,
    /// It serves the path by HTTP on a port that it is told.
    Serves(&'static str),
    /// It serves on a port that it says.
    SaysPort,
    /// It fetches from a server and writes that to its standard output.
    Fetches,
    /// It fetches from a server and says how long that took.
    Times,
}

/// One program at work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// What it is made by: see [`make`].
    from: From,
    arguments: &'static [&'static str],
    pub(super) way: Way,
    /// The limit that it is under.
    pub(super) limit: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum From {
    /// `bench/NAME`, by a compiler with these options.
    C(&'static str),
    Rust,
    /// cgo or not, and options.
    Go(&'static str, &'static [&'static str]),
    Busybox,
}

const STRIPPED: &[&str] = &["-ldflags", "-s -w"];

const fn case(
    name: &'static str,
    from: From,
    arguments: &'static [&'static str],
    way: Way,
    limit: &'static str,
) -> Case {
    Case {
        name,
        from,
        arguments,
        way,
        limit,
    }
}

/// A file that is served, and what it is served as.
pub(super) const SERVED: &str = "zeros";

const SERVE: &[&str] = &["serve"];
const GET: &[&str] = &["get"];

pub(super) const CASES: [Case; 13] = [
    case(
        "Go server",
        From::Go("0", &[]),
        SERVE,
        Way::SaysPort,
        "send",
    ),
    case("Go client", From::Go("0", &[]), GET, Way::Times, "recv"),
    case(
        "Go server, stripped",
        From::Go("0", STRIPPED),
        SERVE,
        Way::SaysPort,
        "send",
    ),
    case(
        "Go client, stripped",
        From::Go("0", STRIPPED),
        GET,
        Way::Times,
        "recv",
    ),
    case(
        "Go server with libc",
        From::Go("1", &[]),
        SERVE,
        Way::SaysPort,
        "send",
    ),
    case(
        "Go client with libc",
        From::Go("1", &[]),
        GET,
        Way::Times,
        "recv",
    ),
    case(
        "busybox cat",
        From::Busybox,
        &["cat", "/dev/zero"],
        Way::Pours,
        "write",
    ),
    case(
        "busybox dd",
        From::Busybox,
        &["dd", "if=/dev/zero", "bs=64k"],
        Way::Pours,
        "read",
    ),
    case(
        "busybox wget",
        From::Busybox,
        &["wget", "-q", "-O", "-"],
        Way::Fetches,
        "recv",
    ),
    case(
        "busybox httpd",
        From::Busybox,
        &["httpd", "-f"],
        Way::Serves(SERVED),
        "send",
    ),
    case("static glibc", From::C("cc"), &[], Way::Pours, "write"),
    case("static musl", From::C("musl-gcc"), &[], Way::Pours, "write"),
    case("Rust with musl", From::Rust, &[], Way::Pours, "write"),
];

impl Case {
    /// The words of its command line, for bytes from or to `port` at `folder`.
    pub(super) fn words(
        &self,
        program: &Path,
        port: u16,
        bytes: u64,
        folder: &Path,
    ) -> Vec<String> {
        let mut words = vec![program.display().to_string()];
        words.extend(self.arguments.iter().map(|word| (*word).to_owned()));
        match self.way {
            Way::Pours | Way::SaysPort => {}
            Way::Serves(_) => {
                let port = format!("127.0.0.1:{port}");
                words.extend(["-p".to_owned(), port, "-h".to_owned()]);
                words.push(folder.display().to_string());
            }
            Way::Fetches => words.push(format!("http://127.0.0.1:{port}/{bytes}")),
            Way::Times => words.extend([port.to_string(), bytes.to_string()]),
        }
        words
    }

    /// The program; why not, where it cannot be made.
    pub(super) fn make(&self, context: &Context) -> Result<PathBuf, String> {
        if matches!(self.from, From::Busybox) {
            return busybox();
        }
        let program = context
            .scratch()
            .join(format!("program-{:?}", self.from).replace('"', ""));
        if program.is_file() {
            return Ok(program);
        }
        let cache = context.scratch().join("go-cache");
        let made = compiler(self.from, context, &program)
            .env("GOCACHE", cache)
            .output();
        match made {
            Ok(output) if output.status.success() => Ok(program),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Debian's, if it is the static one.
pub(in crate::benches) fn busybox() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH");
    let found = bonsai_host::lookup_program("busybox".as_ref(), path.as_deref());
    let program = found.map_err(|_| "busybox is not installed".to_owned())?;
    let looked = bonsai_host::elf::inspect(&program).map_err(|error| error.to_string())?;
    match looked.cover {
        Cover::Static { .. } => Ok(program),
        _ => Err("busybox is not the static one (busybox-static)".to_owned()),
    }
}

fn compiler(from: From, context: &Context, program: &Path) -> Command {
    let (name, source) = match from {
        From::C(name) => (name, "pour.c"),
        From::Rust => ("rustc", "pour.rs"),
        From::Go(..) | From::Busybox => ("go", "web.go"),
    };
    let mut command = Command::new(name);
    match from {
        From::C(_) => command.args(["-O2", "-static"]),
        From::Rust => command.args(["-O", "--target=x86_64-unknown-linux-musl"]),
        From::Go(cgo, options) => {
            command.envs([
                ("CGO_ENABLED", cgo),
                ("GO111MODULE", "off"),
                ("GOFLAGS", ""),
            ]);
            command.arg("build").args(options)
        }
        From::Busybox => &mut command,
    };
    command.arg("-o").arg(program).arg(context.source(source));
    command
}
