//! What being asked about costs a call on this machine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::filter;
use super::listener::{Listener, Nothing};

/// Calls that are measured, in groups of which the fastest half is believed.
const GROUPS: usize = 40;
const CALLS: u32 = 50;

const GETPPID: u32 = 110;

/// The time that one call takes longer, answered at once; measured in a few
/// milliseconds, in threads of its own.
///
/// # Errors
/// There are no listeners here.
pub fn price() -> io::Result<Duration> {
    let (made, listener) = channel::<io::Result<OwnedFd>>();
    let (go, told) = channel::<()>();
    let caller = std::thread::Builder::new().spawn(move || {
        let bare = median();
        let installed = rustix::thread::set_no_new_privs(true)
            .map_err(io::Error::from)
            .and_then(|()| filter::install(&[GETPPID]));
        // The other end waits for it.
        let _ = made.send(installed);
        // Whoever cannot listen drops its end.
        told.recv().ok()?;
        Some(median().saturating_sub(bare))
    })?;
    let listener = listener.recv().map_err(io::Error::other)?;
    let listening = listener.map(Listener::new);
    if let Ok(listener) = &listening {
        // The caller waits, or the next call tells.
        let _ = go.send(());
        while !caller.is_finished() {
            match listener.receive() {
                Ok(asked) => drop(listener.go_on(asked.id)),
                Err(Nothing::Gone) => {}
                Err(Nothing::End) => break,
            }
        }
    }
    drop(go);
    let price = caller.join().ok().flatten();
    listening?;
    price.ok_or_else(|| io::Error::other("not measured"))
}

/// Lets every call behind a listener go at once, until nobody is left: what the mechanism
/// costs by itself.
pub fn let_all_go(listener: OwnedFd) {
    let listener = Listener::new(listener);
    loop {
        match listener.receive() {
            Ok(asked) => drop(listener.go_on(asked.id)),
            Err(Nothing::Gone) => {}
            Err(Nothing::End) => return,
        }
    }
}

fn median() -> Duration {
    let mut groups = [Duration::ZERO; GROUPS];
    for group in &mut groups {
        let start = Instant::now();
        for _ in 0..CALLS {
            let _ = rustix::process::getppid();
        }
        *group = start.elapsed() / CALLS;
    }
    groups.sort_unstable();
    groups[GROUPS / 2]
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_call_that_is_asked_about_costs_more() {
        match super::price() {
            Ok(price) => assert!(price.as_nanos() > 500, "{price:?}"),
            Err(error) => eprintln!("SKIP: no listener here: {error}"),
        }
    }
}
