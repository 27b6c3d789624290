//! Builds the program by which `bonsai doctor` asks a C library (`libc-probe/`): it has to start with the loader of any, so it is no
//! target of cargo's, which would link it with the one of this build.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let sources = Path::new("libc-probe");
    println!("cargo::rerun-if-changed=libc-probe");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // The linker wants a library by that name; any will do, as nothing of it is bound before the start.
    let libc = out.join("libc.so.6");
    let library = ["--crate-type=cdylib", "-Clink-arg=-Wl,-soname,libc.so.6"];
    compile(&sources.join("libc.rs"), &libc, &library);
    let program = [
        "--crate-type=bin",
        "-Clink-arg=-nostartfiles",
        "-Clink-arg=-Wl,--unresolved-symbols=ignore-all,--no-as-needed,--hash-style=both",
        &format!("-Clink-arg={}", libc.display()),
    ];
    compile(&sources.join("probe.rs"), &out.join("libc-probe"), &program);
}

fn compile(source: &Path, to: &Path, options: &[&str]) {
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = std::ffi::OsString::from("-Clinker=");
        option.push(linker);
        rustc.arg(option);
    }
    rustc.arg(source).arg("-o").arg(to);
    rustc.args(["--edition=2024", "--target"]);
    rustc.arg(env::var_os("TARGET").expect("cargo sets TARGET"));
    rustc.args(["-Cpanic=abort", "-Copt-level=s", "-Ccodegen-units=1"]);
    rustc
        .args(["-Cstrip=symbols", "-Clink-arg=-nostdlib"])
        .args(options);
    let status = rustc.status().expect("the compiler runs");
    assert!(status.success(), "{} does not compile", source.display());
}
