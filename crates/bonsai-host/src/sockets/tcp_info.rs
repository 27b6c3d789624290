//! `TCP_INFO` of a socket (tcp(7)): what the kernel counts of a connection.
#![expect(
    unsafe_code,
    reason = "getsockopt(2) of this option has no safe interface"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes asked for: all fields up to those of Linux 4.19. Older kernels answer with fewer, newer ones
/// leave out what is behind.
const SIZE: usize = 232;

// Offsets in `struct tcp_info` (linux/tcp.h), which only ever grows at its end.
const SND_MSS: usize = 16;
const RTT: usize = 68;
const TOTAL_RETRANS: usize = 100;
const BYTES_ACKED: usize = 120;
const MIN_RTT: usize = 148;

/// Some of what the kernel counts of a connection; zero where it is too old to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments that were sent again, since the beginning.
    pub retransmitted: u64,
    /// Bytes that the peer has acknowledged.
    pub acknowledged: u64,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u64,
    /// The least round-trip time of late, microseconds.
    pub least_rtt_us: u64,
    /// Payload of a full segment, bytes.
    pub segment: u64,
}

impl TcpInfo {
    fn read(bytes: &[u8]) -> Self {
        let u32_at = |at: usize| {
            let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
            four.map_or(0, |four| u64::from(u32::from_ne_bytes(four)))
        };
        let eight = bytes.get(BYTES_ACKED..BYTES_ACKED + 8);
        let eight = eight.and_then(|b| b.try_into().ok());
        Self {
            retransmitted: u32_at(TOTAL_RETRANS),
            acknowledged: eight.map_or(0, u64::from_ne_bytes),
            rtt_us: u32_at(RTT),
            least_rtt_us: u32_at(MIN_RTT),
            segment: u32_at(SND_MSS),
        }
    }
}

/// What the kernel knows of a connection.
///
/// # Errors
/// The descriptor is no TCP socket.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0_u8; SIZE];
    let mut length = libc::socklen_t::try_from(SIZE).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes to `bytes`, and how many to `length`; both
    // live until it has returned, and any bytes are valid in them.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let length = usize::try_from(length).unwrap_or(0).min(SIZE);
    Ok(TcpInfo::read(&bytes[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_connection_says_what_its_peer_has() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(address).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        client.write_all(&[7; 10_000]).expect("written");
        server.read_exact(&mut [0; 10_000]).expect("read");
        // An answer carries the acknowledgement of all that was read.
        server.write_all(b"x").expect("written");
        client.read_exact(&mut [0]).expect("read");
        let info = tcp_info(&client).expect("an answer");
        // The connection's own beginning counts as a byte in some kernels.
        assert!((10_000..=10_001).contains(&info.acknowledged), "{info:?}");
        assert!(info.segment > 500 && info.rtt_us > 0, "{info:?}");
        assert!(info.least_rtt_us <= info.rtt_us, "{info:?}");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        tcp_info(&udp).expect_err("no connection");
    }

    #[test]
    fn a_short_answer_is_one_with_zeros() {
        assert_eq!(TcpInfo::read(&[1; 8]), TcpInfo::default());
        assert_eq!(TcpInfo::read(&[0xff; 104]).acknowledged, 0);
    }
}
