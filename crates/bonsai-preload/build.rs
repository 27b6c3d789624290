//! Generates the fast paths, one for each exported symbol and one for each slot
//! that a patched system call site can jump to, from the table of calls; and
//! passes the link arguments of an interposer.

#[path = "gen/doors.rs"]
mod doors;
#[path = "gen/first.rs"]
mod first;
#[path = "gen/pools.rs"]
mod pools;
#[path = "gen/quick.rs"]
mod quick;
#[path = "gen/second.rs"]
mod second;
#[path = "gen/symbols.rs"]
mod symbols;
#[path = "gen/threads.rs"]
mod threads;
#[path = "gen/unwind.rs"]
mod unwind;

use std::path::Path;

/// Whether this is the engine for programs without a loader: no exported symbols, no
/// thread storage, nothing from libc.
pub(crate) fn alone() -> bool {
    std::env::var_os("CARGO_FEATURE_ALONE").is_some()
}

/// Whether this is the extension: no doors at all, and nothing from libc.
fn extension() -> bool {
    std::env::var_os("CARGO_FEATURE_EXTENSION").is_some()
}

fn main() {
    let own: &[&str] = if extension() {
        &[
            "-Wl,-soname,libbonsai_extension.so",
            "-Wl,-e,bonsai_extension",
            "-Wl,--no-undefined",
            "-nodefaultlibs",
        ]
    } else if alone() {
        &[
            "-Wl,-soname,libbonsai_engine.so",
            "-Wl,-e,bonsai_enter",
            "-Wl,--no-undefined",
            "-nodefaultlibs",
        ]
    } else {
        &["-Wl,-soname,libbonsai_preload.so"]
    };
    for arg in own {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
    for arg in [
        "-Wl,--hash-style=gnu",
        // All of it is resolved when the program starts: nothing is looked up
        // later, when a lock of the loader might be held.
        "-Wl,-z,now",
        "-Wl,-z,nodelete",
        // Before every other constructor: no thread exists yet, and the I/O of
        // the others is seen.
        "-Wl,-z,initfirst",
        "-Wl,--gc-sections",
        // Functions that are alike are one.
        "-Wl,--icf=all",
        // One mapping for what is read and run, one for what is written: each
        // costs every start of a program several microseconds.
        "-Wl,--no-rosegment",
        "-Wl,-z,norelro",
        "-Wl,-z,noseparate-code",
        "-nostartfiles",
    ] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=gen");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let write = |name: &str, text: String| {
        std::fs::write(Path::new(&out).join(name), text).expect("OUT_DIR is writable");
    };
    for (name, rule) in [
        ("in_r11.s", unwind::in_r11(0)),
        ("in_r11_512.s", unwind::in_r11(512)),
        ("by_number.s", second::by_number()),
    ] {
        write(name, rule);
    }
    let first = if alone() {
        String::new()
    } else {
        symbols::targets() + &symbols::doors()
    };
    write("doors.s", first + &doors::paths() + &second::slots());
    write(
        "pools.rs",
        pools::rust_table() + &symbols::facts() + &quick::rust_table(),
    );
}
