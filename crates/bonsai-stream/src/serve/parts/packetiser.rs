//! How samples become payloads.

use std::sync::Arc;

pub use bonsai_media::clip::{Codec, Format};
pub use bonsai_media::packets::{Packetiser, Payloads, Whole};
use bonsai_media::packets::{Single, Together};

use super::Parts;
use crate::serve::pipeline::payload;

pub(super) fn register(parts: &mut Parts) {
    parts.register_packetiser("single", |value| {
        let most = bytes("single", value)?;
        Ok(Arc::new(Single { most }))
    });
    parts.register_packetiser("together", |value| {
        let most = bytes("together", value)?;
        Ok(Arc::new(Together { most }))
    });
}

/// Bytes of payload, where they are said.
fn bytes(name: &str, value: &str) -> Result<Option<usize>, String> {
    match value {
        "" => Ok(None),
        text => payload(text)
            .map(Some)
            .map_err(|why| format!("{name}={text}: {why}")),
    }
}
