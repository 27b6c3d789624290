//! What a server says of a clip: SDP (RFC 8866), with what decoders need of H.264 (RFC 6184, 8.2.1), of H.265
//! (RFC 7798, 7.1), of AAC (RFC 3640, 4.1), MPEG audio and Opus, as RTSP uses it (RFC 2326, appendix C).

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
        let payload_type = self.payload_type(index);
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
            attributes: {
                let map = Attribute::with_value("rtpmap", value(&format.encoding));
                let has_none = format.parameters.is_empty();
                let parameters =
                    (!has_none).then(|| Attribute::with_value("fmtp", value(&format.parameters)));
                let control = Attribute::with_value("control", Clip::control(index));
                [Some(map), parameters, Some(control)]
                    .into_iter()
                    .flatten()
                    .collect()
            },
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
                let sets: Vec<String> = sets.iter().map(|set| STANDARD.encode(set)).collect();
                if !sets.is_empty() {
                    format.push_str(";sprop-parameter-sets=");
                    format.push_str(&sets.join(","));
                }
                (format!("H264/{rate}"), format)
            }
            Codec::H265 { sets, .. } => {
                // RFC 7798, 7.1.
                let of = |(name, kind): (&str, u8)| {
                    let sets = sets.iter().filter(|set| set[0] >> 1 & 0x3f == kind);
                    let sets: Vec<String> = sets.map(|set| STANDARD.encode(set)).collect();
                    (!sets.is_empty()).then(|| format!("{name}={}", sets.join(",")))
                };
                let sets = [("sprop-vps", 32), ("sprop-sps", 33), ("sprop-pps", 34)];
                let sets: Vec<String> = sets.into_iter().filter_map(of).collect();
                (format!("H265/{rate}"), sets.join(";"))
            }
            // Always with two channels (RFC 7587, 7).
            Codec::Opus { channels } => {
                let stereo = u8::from(*channels > 1);
                let format = format!("sprop-stereo={stereo}");
                (format!("opus/{rate}/2"), format)
            }
            Codec::Mpeg => (format!("MPA/{rate}"), String::new()),
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
