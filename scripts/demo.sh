#!/usr/bin/env bash
# A first look: a video server (nginx) and a nightly backup (rsync) share a link of
# 100 Mbit/s. The video alone, disturbed by the backup, and protected by a limit on
# the backup that is set, tightened, lifted and set again while both run. Ends with a
# table and the page TARGET/demo/index.html; takes about 65 seconds.
#
#   scripts/demo.sh            after `make build`; `make demo` does both
#
# DEMO_LINK says what the link is made of:
#   netns   two network namespaces with a shaped pair of interfaces between them;
#           needs no root where users may make namespaces
#   relay   a stand-in in user space, on the loopback interface; needs nothing
#   auto    the first, and where that is not allowed the second (the default)
#
# Everything runs in a folder and a runtime directory of its own and is gone at the
# end, also after Ctrl-C. The namespaces have no names: they end with their processes,
# which end with this script, even if that is killed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin

readonly link_rate=100Mbit/s film_rate=8Mbit/s players=6 copies=24
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/demo"
target=$(cd "$target" && pwd)
out=$target/demo
bin=${BONSAI_BIN_DIR:-$target/bonsai}

say() { printf '%s\n' "$*"; }
die() {
  printf 'demo: %s\n' "$*" >&2
  exit 1
}

# ---- before: what is needed, and what the link can be made of

# Whether this process may have a network namespace whose links it may shape; the
# options of unshare for it go into $unshare, the reason why not into $why.
may_unshare() {
  local wanted
  for wanted in "--net" "--user --map-current-user --keep-caps --net"; do
    read -ra unshare <<<"$wanted"
    if why=$(unshare "${unshare[@]}" sh -c '
      ip link add name uplink type veth peer name viewers &&
        tc qdisc add dev uplink root tbf rate 100mbit burst 32kb limit 1250kb' 2>&1); then
      return 0
    fi
  done
  why=${why%%$'\n'*}
  return 1
}

if [ "${1-}" != --inside ]; then
  [ $# -eq 0 ] || die "it takes no arguments; DEMO_LINK=relay or netns chooses the link"
  for command in nginx rsync ip tc unshare nsenter setpriv flock; do
    command -v "$command" >/dev/null || die "$command is not installed; as root, scripts/deps.sh demo installs it"
  done
  [ -x "$bin/bonsai" ] || die "$bin/bonsai is not there; run make build first"
  read -ra flags <<<"${CARGO_FLAGS-}"
  CARGO_TARGET_DIR=$target "${CARGO:-cargo}" build "${flags[@]}" --quiet --release --package bonsai-demo

  case ${DEMO_LINK:=auto} in
    netns | auto)
      if may_unshare; then
        exec unshare "${unshare[@]}" "$0" --inside netns
      fi
      [ "$DEMO_LINK" = auto ] || die "no network namespace can be made here: $why"
      say "No network namespace can be made here ($why)."
      say "A relay in user space stands in for the link; all else is the same."
      ;;
    relay) ;;
    *) die "DEMO_LINK is $DEMO_LINK; it must be auto, netns or relay" ;;
  esac
  exec "$0" --inside relay
fi

# ---- the stage: a folder, a link, and whoever must be ended at the end

readonly kind=$2
began=$SECONDS
exec 9>"$out/lock"
flock -w 5 9 || die "another demonstration is running from this folder; its lock is $out/lock"

# What a run left behind that was killed.
old=$(cat "$out/work" 2>/dev/null || true)
if [[ $old == */bonsai-demo.?????? && -d $old && -O $old && ! -L $old ]]; then
  rm -rf "$old"
fi

work='' groups=() meter=''
# Waits up to 2 s for the children of this shell to end.
# shellcheck disable=SC2317 # finish calls it
ended() {
  local tries=40
  while [ -n "$(jobs -pr)" ] && [ "$tries" -gt 0 ]; do
    sleep 0.05
    tries=$((tries - 1))
  done
}

# shellcheck disable=SC2317 # the trap calls it
finish() {
  local code=$? signal group
  trap '' INT TERM HUP
  trap - EXIT
  if [ "$code" -ge 128 ]; then say $'\n'"Interrupted; ending what runs."; fi
  # From the front to the back, so that each sees the one before it go, and is silent.
  kill -TERM "$meter" 2>/dev/null || true
  for group in "${groups[@]}"; do
    kill -TERM -- "-$group" 2>/dev/null || true
  done
  sleep 0.2
  for signal in TERM KILL; do
    jobs -pr | xargs --no-run-if-empty kill "-$signal" 2>/dev/null || true
    ended
    for group in "${groups[@]}"; do
      kill "-$signal" -- "-$group" 2>/dev/null || true
    done
  done
  exec 3>&-
  wait
  if [ "$code" -gt 1 ] && [ "$code" -lt 128 ] && [ -s "$work/log" ]; then
    tail -n 20 "$work/log" >&2
  fi
  rm -rf "$work" "$out/work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
# Not ignored, which children would inherit: whoever writes to nobody gets an error.
trap : PIPE

shm=/dev/shm
[ -w $shm ] || shm=${TMPDIR:-/tmp}
work=$(mktemp -d "$shm/bonsai-demo.XXXXXX")
say "$work" >"$out/work"
# The server's worker is another user when this one is root.
chmod 755 "$work"
mkdir -p "$work"/{www,tmp,disks,nightly}
mkdir -m 700 "$work/run"
export BONSAI_RUNTIME_DIR=$work/run
# What the page is made of stays.
seen=$out/seen
rm -rf "$seen" "$out/record.json" "$out/index.html"
mkdir "$seen"
log=$work/log
bonsai=$bin/bonsai demo=$target/release/bonsai-demo
: >"$log"

# start PROGRAM...   in the background; it gets SIGTERM when this script ends, however
start() {
  setpriv --pdeathsig TERM "$@" >>"$log" 2>&1 3>&- 9>&- &
}

# The services need no power over the namespace.
powers=() nginx_user='' rsync_user='' send_buffer=() paced=()
if [ "$(id -u)" = 0 ]; then
  nginx_user='user nobody nogroup;'
  rsync_user=$'uid = nobody\ngid = nogroup'
  chown nobody:nogroup "$work/nightly"
  user=root
else
  powers=(--inh-caps -all --ambient-caps -all)
  user="an ordinary user"
fi

there=()
congestion=$(cat /proc/sys/net/ipv4/tcp_congestion_control)
if [ "$kind" = netns ]; then
  server=10.83.0.1 client=10.83.0.2
  start unshare --net sleep 300
  holder=$!
  while [ "$(readlink "/proc/$holder/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do
    kill -0 "$holder" 2>/dev/null || die "no network namespace can be made for the clients"
    sleep 0.02
  done
  there=(nsenter "--net=/proc/$holder/ns/net")
  ip link set dev lo up
  ip link add name uplink type veth peer name viewers netns "$holder"
  ip addr add $server/24 dev uplink
  ip link set dev uplink up
  "${there[@]}" ip link set dev lo up
  "${there[@]}" ip addr add $client/24 dev viewers
  "${there[@]}" ip link set dev viewers up
  # The kernel's usual one, also where the machine is set to another.
  if ip route change 10.83.0.0/24 dev uplink src $server congctl cubic 2>/dev/null; then
    congestion=cubic
  fi
  # The queue of a usual uplink: 100 ms.
  tc qdisc add dev uplink root tbf rate 100mbit burst 32kb limit 1250kb
  brief="a veth pair between two network namespaces, shaped by tc tbf"
  link="a veth pair between two network namespaces, shaped by tc tbf to 100 Mbit/s with a queue of 100 ms"
else
  # An address of our own on the loopback interface: no port can be in use.
  server=127.83.$((RANDOM % 256)).$((RANDOM % 254 + 1)) client=$server
  paced=(--link "$link_rate")
  # What has not had its turn must wait in rsync, as it would before a real link.
  send_buffer=(--sockopts=SO_SNDBUF=32768)
  brief="a relay on the loopback interface, where connections take turns"
  link="a relay in user space on the loopback interface, in which all connections take turns at 100 Mbit/s"
fi

# fill FILE USER   the configuration of that name, with our addresses and paths
fill() {
  sed -e "s|@LISTEN@|$server:8080|" -e "s|@WORK@|$work|" demo/"$1" |
    awk -v user="$2" '$0 == "@USER@" { print user; next } { print }' >"$work/$1"
}
fill nginx.conf "$nginx_user"
fill rsyncd.conf "$rsync_user"
cp demo/backup.sh "$work/backup.sh"
# Files without blocks: they cost no space, and travel like any other.
truncate -s 1G "$work/www/film"
for ((disk = 1; disk <= copies; disk++)); do
  truncate -s 1G "$work/disks/$(printf 'disk%02d.img' "$disk")"
done

# ---- the programs

say "A video server and a nightly backup share a link of 100 Mbit/s."
say "  video   nginx, $players players that need ${film_rate/Mbit/ Mbit} each and buffer 1 s"
say "  backup  rsync, $copies at once"
say "  link    $brief"
say "  watch   BONSAI_RUNTIME_DIR=$BONSAI_RUNTIME_DIR ${bin#"$PWD"/}/bonsai top"
say

load=$(cut -d ' ' -f 1-3 /proc/loadavg)
backup_url=rsync://$client:8731/nightly/
vod=(run --name vod -- nginx -p . -c nginx.conf)
backup=(run --name backup -- ./backup.sh "$backup_url" "${send_buffer[@]}")

start_service() {
  (cd "$work" && exec setpriv --pdeathsig TERM "${powers[@]}" setsid "$bonsai" "$@") \
    >>"$log" 2>&1 3>&- 9>&- &
  groups+=("$!")
}
start_service "${vod[@]}"
start "${there[@]}" rsync --daemon --no-detach --config="$work/rsyncd.conf" \
  --address="$client" --port=8730

mkfifo "$work/marks"
setpriv --pdeathsig TERM "${there[@]}" "$demo" measure --server "$server:8080" \
  --players "$players" --rate "$film_rate" --relay "$client:8731" "$client:8730" "${paced[@]}" \
  --full "$link_rate" --ready "$work/ready" --record "$out/record.json" \
  <"$work/marks" 9>&- &
meter=$!
exec 3>"$work/marks"

# pause SECONDS   ends early, and everything with it, when the measurement has ended
pause() {
  local sleeper
  setpriv --pdeathsig TERM sleep "$1" 3>&- 9>&- &
  sleeper=$!
  wait -n "$sleeper" "$meter" || true
  if ! kill -0 "$meter" 2>/dev/null; then
    kill "$sleeper" 2>/dev/null || true
    exit 2
  fi
}

# phase KEY SECONDS TITLE LIMIT BONSAI-ARGUMENT...   what begins it, then measure
phase() {
  local key=$1 seconds=$2 title=$3 limit=$4
  shift 4
  printf '%s\t%s\t%s\t%s\n' "$key" "$title" "$limit" "bonsai $*" >&3
  case ${key}:$1 in
    alone:*) ;;
    *:run) start_service "$@" ;;
    *) "$bonsai" "$@" >>"$log" 3>&- ;;
  esac
  # What was on its way before is left out of the table, and so it is here.
  pause 3
  setpriv --pdeathsig TERM "$bonsai" status --json --interval $((seconds - 4))s \
    >"$seen/status-$key.json" 3>&- 9>&- &
  pause $((seconds - 3))
}

while [ ! -e "$work/ready" ]; do pause 0.1; done

phase alone 9 "video alone" absent "${vod[@]}"
phase disturbed 12 "backup beside it" unlimited "${backup[@]}"
phase protected 12 "backup limited" 30Mbit/s set backup send=30Mbit/s
phase tightened 8 "limit tightened" 10Mbit/s set backup send=10Mbit/s
phase lifted 10 "limit lifted" unlimited set backup send=unlimited
phase restored 10 "limited again" 30Mbit/s set backup send=30Mbit/s
"$bonsai" stats backup --json >"$seen/stats.json" 3>&-
"$bonsai" audit backup --json >"$seen/audit.json" 3>&-
say end >&3
exec 3>&-
wait "$meter" || exit 2

# ---- the page

fact() { printf '%s\t%s\n' "$1" "$2"; }
{
  fact link "$link"
  fact "congestion control" "$congestion"
  fact kernel "$(uname -srm)"
  fact system "$(. /etc/os-release && printf '%s' "$PRETTY_NAME")"
  fact processor "$(awk -F ': ' '/^model name/ { print $2; exit }' /proc/cpuinfo), $(nproc) CPUs"
  fact "load before" "$load (1, 5, 15 minutes)"
  fact user "$user"
  fact nginx "$(nginx -v 2>&1 | sed 's|.*/||')"
  fact rsync "$(rsync --version | awk 'NR == 1 { print $3 }')"
  fact bonsai "$("$bonsai" --version | awk '{ print $2 }')"
} >"$seen/facts.tsv"
code=0
"$demo" page --record "$out/record.json" --seen "$seen" --backup-script demo/backup.sh \
  --page "$out/index.html" || code=$?
say
say "The page with the plots: $out/index.html ($((SECONDS - began)) s)"
exit "$code"
