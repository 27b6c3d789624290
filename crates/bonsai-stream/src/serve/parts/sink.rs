//! Where else packets go than to the viewer.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use super::{PacketView, Parts};

/// A report of a sender (RFC 3550, 6.4.1), with its name, and a farewell where the stream ends.
#[derive(Clone, Copy, Debug)]
pub struct ReportView<'a> {
    /// Of which track of the clip, counted from 0.
    pub track: usize,
    /// The packet of RTCP.
    pub bytes: &'a [u8],
}

/// Takes a copy of all that a viewer is sent, packet by packet, whatever way it goes there.
///
/// The ways to the viewer are the server's own: `udp` and `tcp`, of which the viewer chooses one. Sinks
/// stand beside them, and take what has been sent:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use bonsai_stream::serve::{Engine, PacketView, Parts, Pipelines, Sink};
///
/// /// Counts bytes of all streams.
/// #[derive(Debug)]
/// struct Meter(Arc<AtomicU64>);
///
/// impl Sink for Meter {
///     fn packet(&mut self, packet: &PacketView<'_>) -> std::io::Result<()> {
///         let bytes = packet.head.len() + packet.body.len();
///         self.0.fetch_add(bytes as u64, Ordering::Relaxed);
///         Ok(())
///     }
/// }
///
/// let bytes = Arc::new(AtomicU64::new(0));
/// let mut parts = Parts::builtin();
/// parts.register_sink("meter", move |_value| {
///     let bytes = Arc::clone(&bytes);
///     Ok(Arc::new(move |_stream| Ok(Box::new(Meter(Arc::clone(&bytes))))))
/// });
/// let file = "[[pipeline]]\nclips = [\"**\"]\nsink = [\"udp\", \"meter\"]\n";
/// assert!(Pipelines::read(file, Engine::Fast, &parts).is_ok());
/// ```
/// It runs in the thread that sends to all viewers: what takes long in it, all of them wait for. It is dropped
/// when the stream is over, after its farewell.
pub trait Sink: fmt::Debug {
    /// A packet has been sent.
    ///
    /// # Errors
    /// Its copy is lost, which is counted; the stream goes on.
    fn packet(&mut self, packet: &PacketView<'_>) -> io::Result<()>;

    /// A report has been sent: by default, nothing is done with it.
    ///
    /// # Errors
    /// As of packets.
    fn report(&mut self, report: &ReportView<'_>) -> io::Result<()> {
        let _ = report;
        Ok(())
    }
}

/// Ports that a clip's tracks need: two for each of two.
const PORTS: u16 = 4;

pub(super) fn register(parts: &mut Parts) {
    parts.register_sink("udp-to", |value| {
        const WRITE: &str = "write ADDRESS:PORT, as 239.1.2.3:5004";
        let to: SocketAddr = value
            .parse()
            .map_err(|_| format!("udp-to={value}: {WRITE}"))?;
        if to.port() == 0 || to.port().checked_add(PORTS - 1).is_none() {
            let most = u16::MAX - PORTS + 1;
            return Err(format!("udp-to={value}: a port from 1 to {most}; {WRITE}"));
        }
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(|error| format!("udp-to={value}: {error}"))?;
        let socket = Arc::new(socket);
        Ok(Arc::new(move |_| {
            let socket = Arc::clone(&socket);
            let bytes = Vec::new();
            Ok(Box::new(UdpTo { socket, to, bytes }))
        }))
    });
}

/// Sends copies to an address: the first track's packets to its port and reports to the one above, the
/// second's to the two after these.
#[derive(Debug)]
struct UdpTo {
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl UdpTo {
    fn at(&self, track: usize, is_report: bool) -> SocketAddr {
        let behind = 2 * u16::from(track > 0) + u16::from(is_report);
        SocketAddr::new(self.to.ip(), self.to.port() + behind)
    }
}

impl Sink for UdpTo {
    fn packet(&mut self, packet: &PacketView<'_>) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend_from_slice(packet.head);
        self.bytes.extend_from_slice(packet.body);
        let to = self.at(packet.track, false);
        self.socket.send_to(&self.bytes, to).map(|_| ())
    }

    fn report(&mut self, report: &ReportView<'_>) -> io::Result<()> {
        let to = self.at(report.track, true);
        self.socket.send_to(report.bytes, to).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::super::StreamView;
    use super::*;

    #[test]
    fn copies_go_to_ports_of_their_own() {
        let receivers = [0; 4].map(|_| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        // Four ports in a row may be somebody else's: each is asked for by itself.
        let parts = Parts::builtin();
        let view = StreamView {
            peer: SocketAddr::from(([127, 0, 0, 1], 5000)),
            clip: "clip.mp4",
        };
        for (index, receiver) in receivers.iter().enumerate() {
            let (track, is_report) = (index / 2, index % 2 == 1);
            let port = receiver.local_addr().expect("its address").port();
            let first = port - u16::try_from(index).expect("small");
            let maker = parts.sink(&format!("udp-to=127.0.0.1:{first}"));
            let mut sink = maker.expect("right")(&view).expect("made");
            let sent = match is_report {
                true => sink.report(&ReportView {
                    track,
                    bytes: b"report",
                }),
                false => sink.packet(&PacketView {
                    now_ns: 0,
                    track,
                    head: b"head",
                    body: b"body",
                }),
            };
            sent.expect("sent");
            let mut buffer = [0; 100];
            let length = receiver.recv(&mut buffer).expect("it came");
            let expected: &[u8] = if is_report { b"report" } else { b"headbody" };
            assert_eq!(&buffer[..length], expected);
        }
    }

    #[test]
    fn an_address_that_is_none_is_told() {
        let parts = Parts::builtin();
        for (text, words) in [
            ("udp-to", "write ADDRESS:PORT"),
            ("udp-to=239.1.2.3", "write ADDRESS:PORT"),
            ("udp-to=239.1.2.3:0", "a port from 1 to 65532"),
            ("udp-to=239.1.2.3:65533", "a port from 1 to 65532"),
            ("upd-to=239.1.2.3:5004", "there are tcp, udp, udp-to"),
        ] {
            let error = parts.sink(text).map(|_| ()).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
