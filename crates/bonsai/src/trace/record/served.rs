//! Exports of a block server.

use std::io::{Read, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use bonsai_nbd::control;
use bonsai_services::refusal::Refusal;
use bonsai_trace::{Error, Op, Reader};

use super::{LOOK, Recorded, Target, Until};
use crate::cli::TraceRecord;

/// Records until it is over. The trace comes from the server as it is to be kept; it is read on the way, to be sure of
/// it, and to say what is in it.
pub(super) fn record(args: &TraceRecord) -> anyhow::Result<Recorded> {
    let folder = crate::drive::folder()?;
    let until = Until::new(args.lasts)?;
    let target = Target::new(&args.output)?;
    let begun = Instant::now();
    let stream = control::record_from(&folder, &args.nbd).map_err(|why| {
        // Of a recording that never began nothing is left.
        if args.output.as_os_str() != "-" {
            let _ = std::fs::remove_file(&args.output);
        }
        Refusal::input(why)
    })?;
    let done = Arc::new(AtomicBool::new(false));
    let (asker, over) = (stream.try_clone()?, Arc::clone(&done));
    let watch = thread::Builder::new().name("end".to_owned());
    let watch = watch.spawn(move || {
        while !until.is_over() && !over.load(Ordering::SeqCst) {
            thread::sleep(LOOK);
        }
        // The server ends the trace then. It fails where the server has gone.
        let _ = asker.shutdown(Shutdown::Write);
    })?;
    let mut recorded = Recorded {
        has_contents: true,
        ..Recorded::default()
    };
    let mut both = Both { stream, target };
    let read = go_through(&mut both, &mut recorded);
    done.store(true, Ordering::SeqCst);
    // It only waits for the flag.
    let _ = watch.join();
    if let Some(error) = both.target.said(&args.output, recorded.requests) {
        return Err(error);
    }
    match read {
        Ok(()) => recorded.is_whole = true,
        Err(Error::Truncated { .. } | Error::NoTrace) => {}
        Err(error) => return Err(error.into()),
    }
    recorded.seconds = begun.elapsed().as_secs_f64();
    recorded.bytes = both.target.bytes;
    Ok(recorded)
}

fn go_through(both: &mut Both, recorded: &mut Recorded) -> Result<(), Error> {
    let mut reader = Reader::new(both)?;
    while let Some(batch) = reader.next_batch()? {
        for request in batch.iter() {
            recorded.requests += 1;
            let has_bytes = matches!(request.op, Op::Read | Op::Write);
            if !request.is_aligned() {
                recorded.unaligned += 1;
            } else if has_bytes && request.contents.is_empty() {
                recorded.without_contents += 1;
            }
        }
        recorded.lost = reader.lost();
    }
    recorded.lost = reader.lost();
    Ok(())
}

/// What is read is kept.
struct Both {
    stream: UnixStream,
    target: Target,
}

impl Read for Both {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let got = self.stream.read(to)?;
        self.target.write_all(to.get(..got).unwrap_or_default())?;
        Ok(got)
    }
}
