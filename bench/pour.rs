//! The same as pour.c, with Rust's standard library.

use std::io::Write;

fn main() {
    let bytes = [0; 1 << 16];
    let mut out = std::io::stdout().lock();
    while out.write_all(&bytes).and_then(|()| out.flush()).is_ok() {}
}
