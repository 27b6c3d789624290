//! Who is at the other end of a socket, from `/proc/PID/net`.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The peers of the TCP and UDP sockets of the network namespace of a process, by inode
/// number; an address of zeros for a socket without one.
#[must_use]
pub fn peers(pid: u32) -> BTreeMap<u64, SocketAddr> {
    let mut peers = BTreeMap::new();
    for name in ["tcp", "tcp6", "udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        peers.extend(text.lines().skip(1).filter_map(parse));
    }
    peers
}

/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...`
fn parse(line: &str) -> Option<(u64, SocketAddr)> {
    let mut fields = line.split_ascii_whitespace();
    let peer = address(fields.nth(2)?)?;
    let inode = fields.nth(6)?.parse().ok()?;
    Some((inode, peer))
}

/// `0100007F:1F90`: words of four bytes as they stand in memory, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(8 * at..8 * at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_le_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_families() {
        let line = "   1: 0100007F:1F90 0200007F:C350 01 00000000:00000000 02:000 00000000  1000        0 4711 1 x";
        assert_eq!(
            parse(line),
            Some((4711, "127.0.0.2:50000".parse().expect("v4")))
        );
        let v6 = "0: 00000000000000000000000000000000:1F90 B80D0120000000000000000001000000:0050 01 0:0 0:0 0 0 0 12";
        assert_eq!(
            parse(v6),
            Some((12, "[2001:db8::1]:80".parse().expect("v6")))
        );
        let mapped = "0: 0:0 0000000000000000FFFF00000100007F:0050 01 0:0 0:0 0 0 0 13";
        assert_eq!(
            parse(mapped),
            Some((13, "127.0.0.1:80".parse().expect("mapped")))
        );
        for line in [
            "",
            "sl local rem",
            "0: a b c d e f g h i",
            "0: 0:0 0:0 1 2 3 4 5 6 7",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_connection_of_this_process_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("its address");
        let _client = std::net::TcpStream::connect(there).expect("a connection");
        let found = peers(std::process::id());
        assert!(found.values().any(|peer| *peer == there), "{there}");
    }
}
