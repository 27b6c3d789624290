//! When the packets of a sample are sent.

use std::fmt;
use std::sync::Arc;

use super::Parts;

/// A sample some of whose packets have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceView {
    /// Whether it is a picture, and no sound.
    pub is_picture: bool,
    /// Whether decoding can begin with it.
    pub is_sync: bool,
    /// Its bytes,
    pub bytes: u32,
    /// and those of them that have been sent.
    pub sent: u32,
    /// Packets of it, if all but the last are full; units that are small make it more.
    pub packets: u32,
    /// From its first packet to when the next sample of its track is due, nanoseconds. Where the stream is
    /// late it is less than in the clip, down to half of it.
    pub room_ns: u64,
}

/// When the packets of a sample are sent, but for the first, which is sent when the sample is due.
///
/// The server's own is `media`: all of them then. A program has another by a name, for `pacer` in a
/// pipeline's file:
///
/// ```
/// use std::sync::Arc;
///
/// use bonsai_stream::serve::{Engine, PaceView, Pacer, Parts, Pipelines};
///
/// /// Full packets at that many nanoseconds after one another.
/// #[derive(Debug)]
/// struct Apart(u64);
///
/// impl Pacer for Apart {
///     fn at(&mut self, sample: &PaceView) -> u64 {
///         let share = u64::from(sample.sent) * u64::from(sample.packets);
///         self.0 * (share / u64::from(sample.bytes.max(1)))
///     }
/// }
///
/// let mut parts = Parts::builtin();
/// parts.register_pacer("apart", |value| {
///     let us: u64 = value
///         .parse()
///         .map_err(|_| format!("apart={value}: write microseconds, as apart=200"))?;
///     Ok(Arc::new(move |_stream| Ok(Box::new(Apart(us * 1000)))))
/// });
/// let file = "[[pipeline]]\nclips = [\"**\"]\npacer = \"apart=200\"\n";
/// assert!(Pipelines::read(file, Engine::Fast, &parts).is_ok());
/// ```
pub trait Pacer: fmt::Debug {
    /// When the next packet of a sample is sent, nanoseconds after its first one. It may be asked several
    /// times for one packet. What is more than `room_ns` is `room_ns`: no sample is still sent when the
    /// next is due.
    fn at(&mut self, sample: &PaceView) -> u64;
}

/// What is said of a part that is none.
const PART: &str = "write the part of the time to the next picture, from 0.1 to 1, as spread=0.8";

pub(super) fn register(parts: &mut Parts) {
    parts.register_pacer("spread", |value| {
        let part: f64 = match value {
            "" => 0.8,
            text => text.parse().map_err(|_| format!("spread={text}: {PART}"))?,
        };
        if !(0.1..=1.0).contains(&part) {
            return Err(format!("spread={value}: {PART}"));
        }
        Ok(Arc::new(move |_| Ok(Box::new(Spread { part }))))
    });
}

/// Packets of a sample evenly over a part of the time to the next one, by their bytes.
#[derive(Debug)]
struct Spread {
    part: f64,
}

impl Pacer for Spread {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part, from 0 to 1, of a time between two samples"
    )]
    fn at(&mut self, sample: &PaceView) -> u64 {
        let sent = f64::from(sample.sent) / f64::from(sample.bytes.max(1));
        (sample.room_ns as f64 * self.part * sent) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::StreamView;
    use super::*;

    #[test]
    fn packets_are_spread_over_a_part_of_the_time() {
        let parts = Parts::builtin();
        let view = StreamView {
            peer: SocketAddr::from(([127, 0, 0, 1], 5000)),
            clip: "clip.mp4",
        };
        let mut pacer = parts.pacer("spread=0.5").expect("known")(&view).expect("made");
        let mut sample = PaceView {
            is_picture: true,
            is_sync: true,
            bytes: 10_000,
            sent: 0,
            packets: 10,
            room_ns: 40_000_000,
        };
        let times = [0, 1000, 5000, 10_000].map(|sent| {
            sample.sent = sent;
            pacer.at(&sample)
        });
        assert_eq!(times, [0, 2_000_000, 10_000_000, 20_000_000]);
        parts.pacer("spread").expect("with a value of its own");
        for (text, words) in [
            ("spread=2", "from 0.1 to 1"),
            ("spread=NaN", "from 0.1 to 1"),
            ("spread=x", "from 0.1 to 1"),
            ("sprad", "there are media, spread"),
        ] {
            let error = parts.pacer(text).map(|_| ()).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
