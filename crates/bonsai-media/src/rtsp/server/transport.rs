//! How packets are to come (RFC 2326, 12.39). Read here, as crate rtsp-types panics on some values of
//! that header (`dest_addr="`), and a stranger writes them.

use std::fmt;

/// What a viewer offers, the first of all that there is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// As datagrams to these ports, of packets and of reports.
    Datagrams(u16, u16),
    /// Among the messages, by these channels, if it says which.
    Interleaved(Option<(u8, u8)>),
}

/// How packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As datagrams.
    Datagrams {
        /// The viewer's ports, of packets and of reports.
        client: (u16, u16),
        /// The server's.
        server: (u16, u16),
        /// The sender.
        ssrc: u32,
    },
    /// Among the messages.
    Interleaved {
        /// Channels, of packets and of reports.
        channels: (u8, u8),
        /// The sender.
        ssrc: u32,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Datagrams {
                client,
                server,
                ssrc,
            } => write!(
                f,
                "RTP/AVP;unicast;client_port={}-{};server_port={}-{};ssrc={ssrc:08X};mode=\"PLAY\"",
                client.0, client.1, server.0, server.1
            ),
            Self::Interleaved { channels, ssrc } => write!(
                f,
                "RTP/AVP/TCP;unicast;interleaved={}-{};ssrc={ssrc:08X};mode=\"PLAY\"",
                channels.0, channels.1
            ),
        }
    }
}

impl Offer {
    /// Reads the header: offers apart by commas, the best first.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        text.split(',').find_map(Self::one)
    }

    fn one(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next()?;
        let mut ports = None;
        let mut channels = None;
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name.to_ascii_lowercase().as_str() {
                "multicast" => return None,
                "mode" if !value.trim_matches('"').eq_ignore_ascii_case("play") => return None,
                "client_port" => ports = Some(pair(value)?),
                "interleaved" => channels = Some(pair(value)?),
                _ => {}
            }
        }
        match kind.to_ascii_uppercase().as_str() {
            "RTP/AVP" | "RTP/AVP/UDP" => {
                let (first, second) = ports.filter(|(first, second)| *first > 0 && *second > 0)?;
                Some(Self::Datagrams(first, second))
            }
            "RTP/AVP/TCP" => {
                let channels = match channels {
                    Some((first, second)) => {
                        Some((first.try_into().ok()?, second.try_into().ok()?))
                    }
                    None => None,
                };
                Some(Self::Interleaved(channels))
            }
            _ => None,
        }
    }
}

/// `5000-5001`, or the first alone.
fn pair(text: &str) -> Option<(u16, u16)> {
    let (first, second) = match text.trim().split_once('-') {
        Some((first, second)) => (first.parse().ok()?, second.parse().ok()?),
        None => {
            let first: u16 = text.trim().parse().ok()?;
            (first, first.checked_add(1)?)
        }
    };
    (first != second).then_some((first, second))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offers_are_read() {
        for (text, expected) in [
            (
                "RTP/AVP;unicast;client_port=5000-5001",
                Some(Offer::Datagrams(5000, 5001)),
            ),
            (
                "rtp/avp/udp;unicast;client_port=5000",
                Some(Offer::Datagrams(5000, 5001)),
            ),
            (
                "RTP/AVP/TCP;unicast;interleaved=2-3",
                Some(Offer::Interleaved(Some((2, 3)))),
            ),
            ("RTP/AVP/TCP", Some(Offer::Interleaved(None))),
            (
                "RTP/AVP;multicast, RTP/SAVP;client_port=1-2, RTP/AVP/TCP;mode=\"PLAY\"",
                Some(Offer::Interleaved(None)),
            ),
            ("RTP/AVP;unicast", None),
            ("RTP/AVP;unicast;client_port=0-1", None),
            ("RTP/AVP;unicast;client_port=7-7", None),
            ("RTP/AVP;unicast;client_port=65535", None),
            ("RTP/AVP;unicast;client_port=99999-5", None),
            ("RTP/AVP/TCP;interleaved=255-256", None),
            ("RTP/AVP/TCP;mode=RECORD", None),
            ("RAW/RAW/UDP;unicast;client_port=1-2", None),
            ("dest_addr=\"", None),
            ("", None),
        ] {
            assert_eq!(Offer::read(text), expected, "{text}");
        }
    }

    #[test]
    fn ways_are_said() {
        let way = Way::Datagrams {
            client: (5000, 5001),
            server: (6970, 6971),
            ssrc: 0xabc,
        };
        let text = "RTP/AVP;unicast;client_port=5000-5001;server_port=6970-6971;ssrc=00000ABC;mode=\"PLAY\"";
        assert_eq!(way.to_string(), text);
        assert_eq!(Offer::read(text), Some(Offer::Datagrams(5000, 5001)));
    }

    proptest! {
        #[test]
        fn any_text_does_no_harm(text in "(RTP/AVP|/TCP|;|,|=|-|client_port|interleaved|[0-9]{1,6}|.){0,20}") {
            let _ = Offer::read(&text);
        }
    }
}
