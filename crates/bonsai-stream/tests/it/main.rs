//! The crate as its users see it, on files and sockets.

mod capture;
mod film;
mod programs;
mod serve;
mod support;

/// Says that a test cannot run here, and why.
fn skip(test: &str, why: &str) {
    use std::io::Write as _;
    println!("SKIP {test}: {why}");
    if let Some(log) = std::env::var_os("BONSAI_SKIP_LOG") {
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(log);
        writeln!(log.expect("a log"), "{test}: {why}").expect("written");
    }
}
