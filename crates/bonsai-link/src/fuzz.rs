//! What the fuzz targets call. No part of the interface.

use crate::links::link;
use crate::netlink::message::messages;
use crate::tc::seen::{class, qdisc};
use crate::tc::{filter, htb};

/// Reads any bytes as a datagram of the kernel: nothing is read beyond it, and what was read of a
/// class or a discipline is what its own bytes say.
pub fn datagram(bytes: &[u8]) {
    let mut length = 0;
    for message in messages(bytes) {
        length += 16 + message.payload.len();
        assert!(length <= bytes.len(), "messages overlap");
        let payload = message.payload;
        if let Some(link) = link(payload) {
            assert!(link.name.len() <= 3 * payload.len());
        }
        if let Some(qdisc) = qdisc(payload) {
            assert!(qdisc.options.len() < payload.len());
            let mut options = qdisc.options;
            htb::as_taken(&mut options);
            let once = options.clone();
            htb::as_taken(&mut options);
            assert_eq!(options, once);
        }
        let _ = (class(payload), filter::filter(payload));
    }
}

/// Reads any bytes as what is kept of somebody's disciplines.
pub fn saved(bytes: &[u8]) {
    if let Ok(saved) = serde_json::from_slice::<crate::Saved>(bytes) {
        let text = serde_json::to_vec(&saved).expect("it can be written");
        assert_eq!(
            serde_json::from_slice::<crate::Saved>(&text).ok(),
            Some(saved)
        );
    }
}
