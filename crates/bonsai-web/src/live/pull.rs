//! The source of a live stream, which is asked for again when it has gone.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bonsai_media::clip::stored::Media;
use bonsai_media::hls::live::{Input, Unit};
use futures_util::StreamExt as _;
use percent_encoding::percent_decode_str;
use retina::client::{
    Credentials, Demuxed, InitialTimestampPolicy, PlayOptions, Session, SessionOptions,
    SetupOptions, Stream, Transport,
};
use retina::codec::{CodecItem, FrameFormat, ParametersRef};
use tokio::time::{sleep, timeout};
use url::Url;

use crate::house::House;

use super::Channel;

/// Longest answer to a request, and longest silence, of a source that is there.
const STEP: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(10);

/// Pause before a source that has gone is asked for again: the first, and the longest.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(30);

/// A source that has played for this time begins with the first pause again.
const STEADY: Duration = Duration::from_secs(60);

/// The longest name of a stream.
const MOST_NAME: usize = 64;

/// A live stream of another server.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    /// Name of the stream here.
    pub(crate) name: String,
    url: Url,
    creds: Option<(String, String)>,
    transport: Way,
}

/// Transport of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tcp,
    Udp,
}

/// Mistake in a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// No name, or a bad one.
    #[error(
        "write NAME=rtsp://HOST/PATH; a name is made of letters, digits, - and _, {MOST_NAME} at most"
    )]
    Name,
    /// No address of RTSP.
    #[error("write rtsp:// for packets in the connection, or rtspu:// for datagrams, and a host")]
    Address,
}

impl Source {
    /// Reads `NAME=rtsp://USER:PASSWORD@HOST/PATH`.
    ///
    /// # Errors
    /// The text makes no sense.
    pub fn read(text: &str) -> Result<Self, SourceError> {
        let (name, address) = text.split_once('=').ok_or(SourceError::Name)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > MOST_NAME || !name.chars().all(is_plain) {
            return Err(SourceError::Name);
        }
        let (transport, address) = match address.strip_prefix("rtspu://") {
            Some(rest) => (Way::Udp, format!("rtsp://{rest}")),
            None => (Way::Tcp, address.to_owned()),
        };
        let mut url = Url::parse(&address).map_err(|_| SourceError::Address)?;
        if url.scheme() != "rtsp" || url.host_str().is_none_or(str::is_empty) {
            return Err(SourceError::Address);
        }
        let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let creds = (!url.username().is_empty()).then(|| {
            (
                plain(url.username()),
                plain(url.password().unwrap_or_default()),
            )
        });
        // Neither is said or logged anywhere.
        url.set_username("").map_err(|()| SourceError::Address)?;
        url.set_password(None).map_err(|()| SourceError::Address)?;
        Ok(Self {
            name: name.to_owned(),
            url,
            creds,
            transport,
        })
    }

    /// Name of the stream.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.url)
    }
}

/// Asks for a source, again and again.
pub(super) async fn run(channel: Arc<Channel>, house: Arc<House>) {
    let mut again = AGAIN;
    loop {
        let began = Instant::now();
        let why = match once(&channel, &house).await {
            Ok(()) => "it has ended".to_owned(),
            Err(why) => why,
        };
        channel.live().end();
        channel.has_changed();
        if began.elapsed() >= STEADY {
            again = AGAIN;
        }
        let source = &channel.source;
        house.live(
            &source.name,
            &format!(
                "{}: {why}; asking again in {} s",
                source.url,
                again.as_secs()
            ),
        );
        sleep(again).await;
        again = (again * 2).min(SELDOM);
    }
}

/// Does a step, in time or not at all.
async fn in_time<T>(
    step: &str,
    work: impl Future<Output = Result<T, retina::Error>>,
) -> Result<T, String> {
    match timeout(STEP, work).await {
        Ok(done) => done.map_err(|error| format!("{step}: {error}")),
        Err(_) => Err(format!("{step}: no answer in {} s", STEP.as_secs())),
    }
}

/// One connection, to its end.
async fn once(channel: &Channel, house: &House) -> Result<(), String> {
    let source = &channel.source;
    let creds = source
        .creds
        .clone()
        .map(|(username, password)| Credentials { username, password });
    let options = SessionOptions::default()
        .creds(creds)
        .user_agent(concat!("bonsai/", env!("CARGO_PKG_VERSION")).to_owned());
    let mut session = in_time("DESCRIBE", Session::describe(source.url.clone(), options)).await?;
    let mut shown: Vec<usize> = Vec::new();
    for media in ["video", "audio"] {
        let is_it = |stream: &Stream| stream.media() == media && is_shown(stream);
        if let Some(track) = session.streams().iter().position(is_it) {
            let transport = match source.transport {
                Way::Tcp => Transport::Tcp(<_>::default()),
                Way::Udp => Transport::Udp(<_>::default()),
            };
            let options = SetupOptions::default()
                .transport(transport)
                .frame_format(FrameFormat::MP4);
            in_time("SETUP", session.setup(track, options)).await?;
            shown.push(track);
        }
    }
    if shown.is_empty() {
        let there: Vec<&str> = session
            .streams()
            .iter()
            .map(Stream::encoding_name)
            .collect();
        return Err(format!(
            "none of its tracks can be shown ({}): H.264, H.265 and AAC can",
            there.join(", ")
        ));
    }
    let options = PlayOptions::default().initial_timestamp(InitialTimestampPolicy::Permissive);
    let playing = in_time("PLAY", session.play(options)).await?;
    let demuxed = playing.demuxed().map_err(|error| error.to_string())?;
    house.live(&source.name, &format!("{}: it plays", source.url));
    Playing::default().go_on(channel, demuxed, &shown).await
}

fn is_shown(stream: &Stream) -> bool {
    ["h264", "h265", "mpeg4-generic"].contains(&stream.encoding_name())
}

/// A connection that plays.
#[derive(Default)]
struct Playing {
    inputs: Vec<Input>,
    /// The number of each track of the source in the live stream.
    places: Vec<Option<usize>>,
    /// The time that the live stream began at, as the tracks' clocks count it, s.
    begun_s: f64,
    is_broken: bool,
}

impl Playing {
    async fn go_on(
        mut self,
        channel: &Channel,
        mut demuxed: Demuxed,
        shown: &[usize],
    ) -> Result<(), String> {
        loop {
            let Ok(item) = timeout(SILENCE, demuxed.next()).await else {
                return Err(format!("nothing came for {} s", SILENCE.as_secs()));
            };
            let Some(item) = item else {
                return Ok(());
            };
            let (track, timestamp, unit) = match item.map_err(|error| error.to_string())? {
                CodecItem::VideoFrame(frame) => {
                    let track = frame.stream_id();
                    let is_key = frame.is_random_access_point();
                    if self.inputs.is_empty() || frame.has_new_parameters() {
                        let at_s = frame.timestamp().elapsed_secs();
                        self.begin(channel, demuxed.streams(), shown, at_s);
                    }
                    // Pictures that refer to a lost one would be shown broken.
                    self.is_broken = (self.is_broken || frame.loss() > 0) && !is_key;
                    if self.is_broken {
                        continue;
                    }
                    let timestamp = frame.timestamp();
                    (track, timestamp, (frame.into_data(), is_key))
                }
                CodecItem::AudioFrame(frame) => {
                    if self.inputs.is_empty() {
                        let at_s = frame.timestamp().elapsed_secs();
                        self.begin(channel, demuxed.streams(), shown, at_s);
                    }
                    (
                        frame.stream_id(),
                        frame.timestamp(),
                        (frame.data().to_vec(), true),
                    )
                }
                _ => continue,
            };
            let Some(Some(place)) = self.places.get(track).copied() else {
                continue;
            };
            let clock = f64::from(timestamp.clock_rate().get());
            #[expect(
                clippy::cast_possible_truncation,
                reason = "ticks of a connection that has been there for years"
            )]
            let begun = (self.begun_s * clock).round() as i64;
            let unit = Unit {
                bytes: unit.0,
                shown: timestamp.elapsed() - begun,
                is_key: unit.1,
            };
            let has_changed = channel.live().push(place, unit);
            if has_changed {
                channel.has_changed();
            }
        }
    }

    /// Begins, or begins anew where the parameters of a track have changed.
    fn begin(&mut self, channel: &Channel, streams: &[Stream], shown: &[usize], at_s: f64) {
        let mut inputs = Vec::new();
        let mut tracks = Vec::new();
        for &track in shown {
            let (media, entry) = match streams[track].parameters() {
                Some(ParametersRef::Video(of)) => (Media::Video, of.mp4_sample_entry().build()),
                Some(ParametersRef::Audio(of)) => (Media::Audio, of.mp4_sample_entry().build()),
                // The parameters of some pictures come among these.
                Some(ParametersRef::Message(_)) | None => continue,
            };
            if let Ok(entry) = entry {
                inputs.push(Input {
                    media,
                    entry,
                    clock_rate: streams[track].clock_rate_hz(),
                });
                tracks.push(track);
            }
        }
        let has_pictures = |of: &[Input]| of.iter().any(|input| input.media == Media::Video);
        let waits =
            shown.iter().any(|track| streams[*track].media() == "video") && !has_pictures(&inputs);
        if inputs == self.inputs || waits {
            return;
        }
        let places = channel.live().begin(&inputs);
        self.places = vec![None; streams.len()];
        for (track, place) in tracks.into_iter().zip(places) {
            self.places[track] = place;
        }
        (self.inputs, self.begun_s) = (inputs, at_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_and_its_password_is_not_shown() {
        let source = Source::read("cam-1=rtsp://ann:s%40cret@host:554/a?b=1").expect("a source");
        assert_eq!(source.creds, Some(("ann".to_owned(), "s@cret".to_owned())));
        assert_eq!(format!("{source:?}"), "cam-1=rtsp://host:554/a?b=1");
        let source = Source::read("b=rtspu://host/a").expect("a source");
        assert_eq!(
            (source.transport, source.url.as_str()),
            (Way::Udp, "rtsp://host/a")
        );
        for (text, error) in [
            ("rtsp://host/a", SourceError::Name),
            ("=rtsp://host/a", SourceError::Name),
            ("a b=rtsp://host/a", SourceError::Name),
            ("a/b=rtsp://host/a", SourceError::Name),
            ("a=http://host/a", SourceError::Address),
            ("a=host", SourceError::Address),
            ("a=rtsp://", SourceError::Address),
        ] {
            assert_eq!(Source::read(text), Err(error), "{text}");
        }
    }
}
