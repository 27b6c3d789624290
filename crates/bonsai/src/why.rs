//! `bonsai why`: is a service slow because of Bonsai, the disk, the network or its
//! own CPU?
//!
//! ```text
//! collect, net   looks at ledger, threads and sockets, again and again    (I/O)
//!   activity       what a thread waits for at a moment                   (pure)
//!   spent          what its time was spent on                            (pure)
//!   blame          which limit the waits of a call are due to            (pure)
//! judge, say     the cause, and the sentence                             (pure)
//! show           the sentence and its numbers, as text and JSON
//! ```

mod activity;
mod blame;
mod collect;
mod judge;
mod net;
mod say;
mod show;
mod spent;

use bonsai_services::service::Services;

use crate::cli::Why;
use crate::output::{Paint, print, print_json};

/// Watches a service and says why it is as slow as it is.
///
/// # Errors
/// There is no such service, or its ledger cannot be read.
pub(crate) fn run(args: &Why) -> anyhow::Result<u8> {
    let service = Services::open()?.find(&args.service)?;
    let mut evidence = collect::watch(&service, &service.ledger()?, args.window)?;
    evidence.seen.service = crate::whose::shown(&service.name);
    let verdict = judge::judge(&evidence.seen);
    let document = show::document(&evidence, &verdict);
    if args.json {
        print_json(&document, false)?;
    } else {
        print(&show::text(&document, Paint::stdout()))?;
    }
    Ok(0)
}
