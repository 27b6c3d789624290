//! What a server says of a clip: SDP (RFC 8866), with what decoders need of H.264 (RFC 6184, 8.2.1) and of
//! AAC (RFC 3640, 4.1), as RTSP uses it (RFC 2326, appendix C).

use core::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sdp_types::{Attribute, Bandwidth, Connection, Media, Origin, Session};

use super::{Clip, Codec, Track};
use crate::packets::Packetiser;

/// The payload type of a clip's first track: of those that are given as needed (RFC 3551, 6).
const FIRST_TYPE: u8 = 96;

/// Who announces a clip, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced<'a> {
    /// What it is called.
    pub name: &'a str,
    /// A number that is another one for each version of it.
    pub version: u64,
    /// The server.
    pub address: IpAddr,
}

/// What is said of how a track is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its encoding and its clock, with channels of sound, as `H264/90000` (RFC 8866, 6.6: `rtpmap`).
    pub encoding: String,
    /// What a decoder has to know of it, as `packetization-mode=1;profile-level-id=64001E` (RFC 8866,
    /// 6.15: `fmtp`).
    pub parameters: String,
}

impl Clip {
    /// The payload type of a track's packets.
    #[must_use]
    pub fn payload_type(track: usize) -> u8 {
        FIRST_TYPE + u8::try_from(track).unwrap_or(0).min(31)
    }

    /// What its track is called, below the clip's address.
    #[must_use]
    pub fn control(track: usize) -> String {
        format!("track{}", track + 1)
    }

    /// Its description.
    #[must_use]
    pub fn describe(&self, announced: &Announced<'_>) -> Vec<u8> {
        self.describe_by(announced, None)
    }

    /// Its description, where samples go through a packetiser.
    #[must_use]
    pub fn describe_by(
        &self,
        announced: &Announced<'_>,
        packetiser: Option<&dyn Packetiser>,
    ) -> Vec<u8> {
        let origin = Origin::with_ip_addr(announced.version, announced.version, announced.address);
        let mut session = Session::new(origin, announced.name);
        // An address that is no destination: that is agreed upon later (RFC 2326, C.1.7).
        session.connection = Some(Connection::from_ip_addr(match announced.address {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0_u8; 16]),
        }));
        let ms = self.length_ns / 1_000_000;
        let range = format!("npt=0-{}.{:03}", ms / 1000, ms % 1000);
        session.attributes = vec![
            Attribute::with_value("control", "*"),
            Attribute::with_value("range", range),
        ];
        let medias = self.tracks.iter().enumerate();
        session.medias = medias
            .map(|(index, track)| track.media(index, packetiser))
            .collect();
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = session.write(&mut text);
        text
    }
}

impl Track {
    fn media(&self, index: usize, packetiser: Option<&dyn Packetiser>) -> Media {
        let payload_type = Clip::payload_type(index);
        let mut format = self.format();
        if let Some(packetiser) = packetiser.filter(|of| of.takes(&self.codec)) {
            packetiser.announce(&self.codec, &mut format);
        }
        let value = |text: &str| format!("{payload_type} {text}");
        Media {
            media: self.kind().to_owned(),
            port: 0,
            num_ports: None,
            proto: "RTP/AVP".to_owned(),
            fmt: payload_type.to_string(),
            media_title: None,
            connections: Vec::new(),
            bandwidths: vec![Bandwidth {
                bwtype: "AS".to_owned(),
                bandwidth: self.bits_per_sec.div_ceil(1000),
            }],
            key: None,
            attributes: vec![
                Attribute::with_value("rtpmap", value(&format.encoding)),
                Attribute::with_value("fmtp", value(&format.parameters)),
                Attribute::with_value("control", Clip::control(index)),
            ],
        }
    }

    /// What is said of it where it is cut by [`Cut`](crate::packets::Cut).
    fn format(&self) -> Format {
        let rate = self.clock_rate;
        let (encoding, parameters) = match &self.codec {
            Codec::H264 { profile, sets, .. } => {
                let [profile, constraints, level] = profile;
                let mut format = format!(
                    "packetization-mode=1;profile-level-id={profile:02X}{constraints:02X}{level:02X}"
                );
                if !sets.is_empty() {
                    let sets: Vec<String> = sets.iter().map(|set| STANDARD.encode(set)).collect();
                    format.push_str(";sprop-parameter-sets=");
                    format.push_str(&sets.join(","));
                }
                (format!("H264/{rate}"), format)
            }
            Codec::Aac { config, channels } => {
                let config: String = config.iter().map(|byte| format!("{byte:02X}")).collect();
                let format = format!(
                    "streamtype=5;profile-level-id=1;mode=AAC-hbr;sizelength=13;indexlength=3;\
                     indexdeltalength=3;config={config}"
                );
                let channels = (*channels).max(1);
                (format!("mpeg4-generic/{rate}/{channels}"), format)
            }
        };
        Format {
            encoding,
            parameters,
        }
    }
}
