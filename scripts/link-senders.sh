#!/bin/bash
# Measures which part of a limit each kind of sender reaches, by the counters of the limit's class.
#
#   scripts/link-senders.sh BONSAI FOLDER [SECONDS [RATES [SENDERS [FLOWS [WAYS]]]]]
#
# BONSAI is the program, FOLDER gets samples.jsonl: each sample as it was read (bytes and time at both ends, the command
# line of iperf3), one a line. SECONDS are measured of each (8); RATES are in Mbit/s ("1 5 10 20 100 1000"; bare is
# the interface without a limit under the senders of 1000, to compare with), SENDERS
# congestion controls or udp ("bbr cubic reno udp"), FLOWS how many at once ("1 16"), WAYS local or forwarded. The last
# lines are a table, and how many were out of 0.97 to 1.01. As root, with iproute2, iperf3 and python3. All of it is done
# in network namespaces of its own, which end with it.
set -eu

if [ $# -lt 2 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
bonsai=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
for tool in ip tc iperf3 python3; do
  command -v "$tool" >/dev/null || {
    echo "link-senders.sh: $tool is not installed; apt-get install iproute2 iperf3 python3 adds it" >&2
    exit 2
  }
done
if [ "${BONSAI_LINK_SENDERS:-}" != inside ]; then
  BONSAI_LINK_SENDERS=inside exec unshare --net --mount --pid --fork --kill-child "$0" "$@"
fi

seconds=${3:-8}
rates=${4:-1 5 10 20 100 1000}
senders=${5:-bbr cubic reno udp}
flows=${6:-1 16}
ways=${7:-local forwarded}

mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
mkdir -m 700 /run/bonsai
export XDG_RUNTIME_DIR=/run/bonsai BONSAI_RUNTIME_DIR=/run/bonsai
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1
number=0
for of in a b; do
  number=$((number + 1))
  ip netns add $of
  ip link add v$of type veth peer name eth0 netns $of
  ip addr add 10.9.$number.1/24 dev v$of
  ip link set v$of up
  ip -n $of addr add 10.9.$number.2/24 dev eth0
  ip -n $of link set eth0 up
  ip -n $of link set lo up
  ip -n $of route add default via 10.9.$number.1
done

# Bytes that the class of all that leaves by va has let out, and the time before and after they were read, ns.
counted() {
  local bytes before
  before=$(date +%s%N)
  if [ "$1" = bare ]; then
    read -r bytes </sys/class/net/va/statistics/tx_bytes
    echo "$bytes $before $(date +%s%N)"
    return
  fi
  bytes=$(tc -s class show dev va | awk '$1 == "class" { of = $3 } of == "b05a:1" && $1 == "Sent" { print $2 }')
  echo "$bytes $before $(date +%s%N)"
}

measure() {
  local way=$1 sender=$2 flows=$3 limit=$4 rate=${4/bare/1000} before after client server command
  command="-c 10.9.1.2 -t $((seconds + 3)) -P $flows"
  case $sender in
    # A fifth more than the limit, of all flows together.
    udp) command+=" -u -l 1400 -b $((rate * 1200000 / flows))" ;;
    *) command+=" -C $sender" ;;
  esac
  ip netns exec a iperf3 -s -1 >/dev/null 2>&1 &
  server=$!
  sleep 0.5
  # shellcheck disable=SC2086
  if [ "$way" = local ]; then
    iperf3 $command >/dev/null 2>&1 &
  else
    ip netns exec b iperf3 $command >/dev/null 2>&1 &
  fi
  client=$!
  sleep 2
  before=$(counted "$limit")
  sleep "$seconds"
  after=$(counted "$limit")
  kill $client $server 2>/dev/null || true
  wait $client $server 2>/dev/null || true
  echo "$way $sender $flows $limit $rate $before $after $command" | python3 -c '
import json, sys
way, sender, flows, limit, rate, b0, t0, t1, b1, t2, t3, *command = sys.stdin.read().split()
print(json.dumps({"way": way, "sender": sender, "flows": int(flows), "rate_mbit": int(rate), "bare": limit == "bare", "bytes": [int(b0), int(b1)],
    "ns": [int(t0), int(t1), int(t2), int(t3)], "iperf3": " ".join(command)}))' >>"$folder/samples.jsonl"
}

: >"$folder/samples.jsonl"
for rate in $rates; do
  if [ "$rate" = bare ]; then
    "$bonsai" link clear va >/dev/null
  else
    "$bonsai" link set va "tx=${rate}Mbit/s" >/dev/null
  fi
  for way in $ways; do
    for sender in $senders; do
      for flow in $flows; do
        measure "$way" "$sender" "$flow" "$rate"
      done
    done
  done
done
"$bonsai" link clear va >/dev/null

python3 - "$folder/samples.jsonl" <<'END'
import json, sys

bad = 0
print("part of the limit: way, sender, flows, Mbit/s")
for line in open(sys.argv[1]):
    one = json.loads(line)
    a, b, c, d = one["ns"]
    bits = (one["bytes"][1] - one["bytes"][0]) * 8
    # What it certainly was, however long reading took.
    least, part, most = (bits * 1e3 / ns / one["rate_mbit"] for ns in (d - a, (c + d - a - b) / 2, c - b))
    out = not one["bare"] and (most < 0.97 or least > 1.01)
    bad += out
    print(f"{part:.4f}  {one['way']}, {one['sender']}, {one['flows']}, {'bare, of 1000' if one['bare'] else one['rate_mbit']}" + ("  OUT" if out else ""))
print(f"{bad} out of 0.97 to 1.01")
END
