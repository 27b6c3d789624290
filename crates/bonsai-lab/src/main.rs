//! `bonsai-bench`: measures what Bonsai promises, side by side with its peers.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bonsai_lab::main()
}
