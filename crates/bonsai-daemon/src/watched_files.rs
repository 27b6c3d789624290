//! Looks at what only disks and sockets tell, on a thread of its own: the configuration file, which may be on a disk that hangs, and
//! whether there is a daemon of the whole machine beside this one. The control thread is told, and waits for neither.

use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::files::{Above, Files, above};
use crate::ring::Event;

/// The configuration file is looked at so often,
const LOOK: Duration = Duration::from_secs(1);

/// and every so many looks, whether there is a daemon of the machine.
const ABOVE: u32 = 5;

/// Starts it; it ends when nobody is told any more.
pub(crate) fn start(
    mut files: Files,
    runtime: PathBuf,
    events: SyncSender<Event>,
) -> std::io::Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name("files".to_owned());
    thread.spawn(move || {
        let mut known = None;
        for look in 0.. {
            if look % ABOVE == 0 {
                match above(&runtime) {
                    Above::Unknown => {}
                    Above::Process(pid) if known == Some(pid) => {}
                    Above::Process(pid) => {
                        known = Some(pid);
                        if events.send(Event::Above(pid)).is_err() {
                            return;
                        }
                    }
                }
            }
            if let Some(read) = files.changed()
                && events.send(Event::File(Box::new(read))).is_err()
            {
                return;
            }
            thread::sleep(LOOK);
        }
    })
}
