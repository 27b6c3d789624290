//! By which interfaces a namespace is left.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use bonsai_link::ways_out;

use crate::room::Room;

#[test]
fn the_way_out_is_the_one_that_the_kernel_takes() {
    let Some(room) = Room::new("the_way_out_is_the_one_that_the_kernel_takes", 0) else {
        return;
    };
    let ways = || ways_out(Some(room.host.as_fd())).expect("asked");
    assert_eq!(ways(), BTreeSet::new());
    room.host("ip addr add 10.9.0.200/24 dev br0");
    room.host("ip link add vpn type veth peer name far");
    room.host("ip addr add 10.8.0.1/24 dev vpn");
    room.host("ip link set vpn up");
    room.host("ip link set far up");
    let (bridge, vpn) = (room.index("br0"), room.index("vpn"));
    for (line, expected) in [
        (
            "ip route add default via 10.9.0.100 metric 100",
            vec![bridge],
        ),
        // Of the first of the table and the one with the smaller metric, the latter.
        ("ip route add default via 10.8.0.2 metric 50", vec![vpn]),
        ("ip route del default via 10.8.0.2 metric 50", vec![bridge]),
        // As VPNs do it.
        ("ip route add 0.0.0.0/1 via 10.8.0.2", vec![vpn]),
        ("ip route del 0.0.0.0/1 via 10.8.0.2", vec![bridge]),
        // By a rule.
        ("ip route add default via 10.8.0.2 table 77", vec![bridge]),
        ("ip rule add pref 5 table 77", vec![vpn]),
        ("ip rule del pref 5", vec![bridge]),
        ("ip route add blackhole default metric 1", vec![]),
        ("ip route del blackhole default metric 1", vec![bridge]),
        (
            "ip route add default metric 7 nexthop via 10.9.0.100 nexthop via 10.8.0.2",
            vec![bridge, vpn],
        ),
    ] {
        room.host(line);
        let expected: BTreeSet<u32> = expected.into_iter().collect();
        assert_eq!(ways(), expected, "{line}");
    }
}
