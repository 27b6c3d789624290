//! Addresses of a server as others have to write them.

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::say;

/// Most addresses that are told: a host of containers has hundreds.
const MOST: usize = 8;

/// Tells the addresses that a server is reached at.
pub(super) fn tell(scheme: &str, at: SocketAddr) {
    for at in reached(at, &own()) {
        say(&format!("{scheme}://{at}/"));
    }
}

/// Addresses that a listener at `at` is reached at, of those of the machine.
fn reached(at: SocketAddr, own: &[IpAddr]) -> Vec<SocketAddr> {
    if !at.ip().is_unspecified() {
        return vec![at];
    }
    // A listener at [::] has those of IPv4, too (ipv6(7): IPV6_V6ONLY is off by default).
    let is_its = |ip: &&IpAddr| ip.is_ipv4() || at.is_ipv6();
    let of = own.iter().filter(is_its).take(MOST);
    let reached: Vec<SocketAddr> = of.map(|ip| SocketAddr::new(*ip, at.port())).collect();
    match reached.is_empty() {
        true => vec![at],
        false => reached,
    }
}

/// Addresses of the machine that another one can write: of interfaces that are up, none of this machine or link alone.
fn own() -> Vec<IpAddr> {
    let Ok(all) = getifaddrs() else {
        return Vec::new();
    };
    let up = all.filter(|of| of.flags.contains(InterfaceFlags::IFF_UP));
    let ips = up.filter_map(|of| {
        let address = of.address?;
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip())))
    });
    let mut ips: Vec<IpAddr> = ips.filter(is_of_others).collect();
    // Addresses of IPv4 are typed more easily.
    ips.sort_by_key(IpAddr::is_ipv6);
    ips
}

fn is_of_others(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_server_of_all_addresses_tells_those_that_others_can_write() {
        let own = ["192.0.2.7", "2001:db8::7"].map(|ip| ip.parse().expect("an address"));
        for (listens, told) in [
            ("127.0.0.1:80", &["127.0.0.1:80"][..]),
            ("192.0.2.7:80", &["192.0.2.7:80"]),
            ("0.0.0.0:80", &["192.0.2.7:80"]),
            ("[::]:80", &["192.0.2.7:80", "[2001:db8::7]:80"]),
            ("[::1]:80", &["[::1]:80"]),
        ] {
            let told: Vec<SocketAddr> = told.iter().map(|text| at(text)).collect();
            assert_eq!(reached(at(listens), &own), told, "{listens}");
        }
        assert_eq!(reached(at("0.0.0.0:80"), &[]), [at("0.0.0.0:80")]);
        assert!(super::own().iter().all(is_of_others));
    }
}
