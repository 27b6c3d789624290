//! Fingerprints of all images, beside serving them: `drive serve --scan`.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bonsai_nbd::export::Export;
use bonsai_nbd::server::Stop;
use bonsai_nbd::sharing::{KeptError, Member, ScanPhase};

use super::escape::say;

/// How often images are looked at that are not scanned.
const WAIT: Duration = Duration::from_millis(100);
/// How long the read of a piece is waited for at the end.
const LAST: Duration = Duration::from_secs(5);

/// Loads what was kept of each image, and then scans the others, on a thread of its own.
///
/// # Errors
/// There is no thread for it.
pub(super) fn start(exports: &[Arc<Export>], stop: &Stop) -> io::Result<JoinHandle<()>> {
    let exports: Vec<_> = exports
        .iter()
        .filter(|export| export.member().is_some())
        .map(Arc::clone)
        .collect();
    for member in exports.iter().filter_map(|export| export.member()) {
        member.set_scan_phase(ScanPhase::Queued);
    }
    let stop = stop.clone();
    let thread = thread::Builder::new().name("nbd-scan".to_owned());
    thread.spawn(move || {
        // Guests come first (nice(2): of this thread alone).
        let _ = rustix::process::nice(10);
        exports.iter().for_each(|export| load(export));
        let mut said = false;
        let mut rests = vec![Instant::now(); exports.len()];
        while !stop.is_asked() {
            // Also what was forgotten, as another program had the image open: however often that is, a scan takes a tenth of the
            // time at most.
            for (export, rest) in exports.iter().zip(&mut rests) {
                let start = Instant::now();
                if start >= *rest && scan(export, &stop) {
                    *rest = Instant::now() + start.elapsed() * 9;
                }
            }
            let mut members = exports.iter().filter_map(|export| export.member());
            if !said && members.all(Member::is_scanned) {
                said = true;
                say!("bonsai: all images are scanned");
            }
            thread::sleep(WAIT);
        }
    })
}

/// Waits for the thread after the server was stopped; false if its disk does not answer.
pub(super) fn has_ended(scan: JoinHandle<()>) -> bool {
    let deadline = Instant::now() + LAST;
    while !scan.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    scan.is_finished() && scan.join().is_ok()
}

/// Loads the fingerprints that were kept of an image.
fn load(export: &Export) {
    let Some(member) = export.member() else {
        return;
    };
    let path = export.image().path().display();
    member.set_scan_phase(ScanPhase::Loading);
    match member.recall() {
        Ok(blocks) => say!("bonsai: {path}: unchanged, loaded {blocks} fingerprints"),
        Err(KeptError::None) => {}
        Err(error) => say!("bonsai: {path}: is scanned again: {error}"),
    }
    member.set_scan_phase(match member.is_scanned() {
        true => ScanPhase::Done,
        false => ScanPhase::Queued,
    });
}

/// Scans an image, if it was not scanned as a whole and no other program has it open; false if there was nothing to do.
fn scan(export: &Export, stop: &Stop) -> bool {
    let Some(member) = export.member().filter(|member| !member.is_scanned()) else {
        return false;
    };
    // It would fail again at the same place.
    if member.scan_progress().phase == ScanPhase::Failed {
        return false;
    }
    if member.unguarded().is_some() {
        member.set_scan_phase(ScanPhase::Waiting);
        return false;
    }
    let path = export.image().path().display();
    let start = Instant::now();
    match member.scan(|| stop.is_asked()) {
        Ok(None) => {}
        Ok(Some(scanned)) => {
            let seconds = start.elapsed().as_secs_f64();
            say!(
                "bonsai: {path}: scanned, {} bytes read, {} bytes of holes, {seconds:.2} s",
                scanned.read,
                scanned.holes
            );
            // An image that is written to is kept at the end.
            keep(export, member);
        }
        Err(error) => {
            say!("bonsai: {path}: the scan has failed, what was read so far is known: {error}");
        }
    }
    true
}

/// Keeps the fingerprints of images that were changed since they were kept.
pub(super) fn keep_all(exports: &[Arc<Export>]) {
    for export in exports {
        if let Some(member) = export.member().filter(|member| !member.is_kept()) {
            keep(export, member);
        }
    }
}

fn keep(export: &Export, member: &Member) {
    // A device has no times that would vouch for it.
    if export.image().is_device() {
        return;
    }
    match member.keep() {
        // It is tried again at the end.
        Ok(()) | Err(KeptError::Busy) => {}
        Err(error) => {
            let path = export.image().path().display();
            say!("bonsai: {path}: its fingerprints are not kept for the next time: {error}");
        }
    }
}
