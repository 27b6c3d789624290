#!/usr/bin/env bash
# Random and hostile calls, bare and in each mode: the same result, errno, memory, files, positions and queues, and the
# bytes charged are the bytes moved. tests/conformance/c/transparency/odd_calls.c makes the calls, and go/odd those of the
# mode go; each of their lines stands for up to 4,000 of them. The call behind a line that differs is looked for, and printed with the
# commands that repeat it.
#
#   FUZZ_CALLS    calls in each mode (1000000)
#   MODES         default, streams, places, elsewhere, no-patch, trap, static, attach, event-loops, enforced, go (these), static-trap,
#                 go-attach, static-streams; in streams a limit is on each descriptor, in places on files and peers, in elsewhere on others only
#   FUZZ_SEED     the first seed (the time, so that each run makes other calls)
#   FUZZ_JOBS     runs at a time (three for two CPUs, as some wait)
#   FUZZ_PART     calls of one run, a multiple of 4,000
#   FUZZ_SECONDS  nothing begins after so many seconds
#   FUZZ_AGAIN    a part that differs is made again, bare and in its mode, and counts if it differs again
#   FUZZ_PAUSE    nothing begins while this file is there
#
# Fifty million in each mode, in the background and in as many runs as it takes:
#
#   make build
#   FUZZ_CALLS=50000000 FUZZ_SECONDS=28800 nice -n 19 scripts/fuzz-calls.sh
#
# The last lines are one for each mode, with the sum of all runs so far, and the command that goes on. Exit code 1: something differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bonsai=$(realpath -m "${BONSAI_BIN_DIR:-target/bonsai}/bonsai")
calls=${FUZZ_CALLS:-1000000}
read -ra modes <<<"${MODES:-default streams places elsewhere no-patch trap static attach event-loops enforced go}"
seed=${FUZZ_SEED:-$(date +%s)}
jobs=${FUZZ_JOBS:-$((($(nproc) * 3 + 1) / 2))}
# At least sixteen parts, as these differ in what they do (`words_of`), and no more than a mode makes in some seconds.
part=${FUZZ_PART:-$((calls / 16 > 400000 ? 400000 : (calls / 16 + 999) / 1000 * 1000))}
seconds=${FUZZ_SECONDS:-10000000}
pause=${FUZZ_PAUSE:-}
again=${FUZZ_AGAIN:-}
limits=(read write send recv)

[ -x "$bonsai" ] || { echo "fuzz-calls: $bonsai is not there; run make build first" >&2; exit 2; }
command -v "${CC:-cc}" >/dev/null || { echo "SKIP: fuzz-calls: there is no C compiler"; exit 0; }

base=/dev/shm
[ -w "$base" ] || base=${TMPDIR:-/tmp}
work=$(mktemp -d "$base/fuzz-calls.XXXXXX")
# What differed stays in `kept`.
kept=${CARGO_TARGET_DIR:-target}/fuzz-calls
mkdir -p "$kept"
kept=$(realpath "$kept")
export BONSAI_RUNTIME_DIR=$work/run
mkdir -m 700 "$BONSAI_RUNTIME_DIR"
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

source=tests/conformance/c/transparency/odd_calls.c
"${CC:-cc}" -O2 -pthread "$source" -o "$work/odd"
if ! "${CC:-cc}" -O2 -pthread -static "$source" -o "$work/odd-static" 2>/dev/null; then
  echo "SKIP: fuzz-calls: static programs cannot be linked here"
  modes=("${modes[@]/static*/}")
fi

if [[ " ${modes[*]}" == *" go"* ]] && ! CGO_ENABLED=0 GOFLAGS='' GO111MODULE=off GOCACHE=${GOCACHE:-$kept/go-cache} \
  go build -o "$work/odd-go" tests/conformance/go/odd/main.go 2>"$work/tried"; then
  echo "SKIP: fuzz-calls: go: $(head -n 1 "$work/tried")"
  modes=("${modes[@]/go*/}")
fi

if [[ " ${modes[*]} " == *" enforced "* ]] && ! "$bonsai" run --enforce --limit write=1MB/s -- /bin/true >"$work/tried" 2>&1; then
  echo "SKIP: fuzz-calls: enforced: $(head -n 1 "$work/tried")"
  modes=("${modes[@]/enforced/}")
fi

# Words and rate of a part. Most parts have the limits that never bind; long transfers and calls that are each looked at
# take long, so that there are fewer of these; a divisor of the number of calls comes last.
words_of() { # PART
  case $(($1 % 16)) in
    2) echo "lean,shared 100GB/s 4" ;;
    3) echo "lean 100GB/s 100" ;;
    4 | 12) echo "lean,small,wide 100GB/s 2" ;;
    5 | 13) echo "lean,small,threads 100GB/s 1" ;;
    6 | 14) echo "lean,small,signals 100GB/s 1" ;;
    7) echo "lean,small,pieces 200MB/s:burst=64kB 10" ;;
    9) echo "lean,shared 200MB/s:burst=64kB 20" ;;
    11) echo "small 100GB/s 100" ;;
    15) echo "lean,shared 20MB/s:burst=64kB 100" ;;
    *) echo "lean,small 100GB/s 1" ;;
  esac
}

# Calls of one line.
line_of() { # WORDS
  case " $* " in
    *" shared "*) echo 1000 ;;
    *" lean "*) echo 4000 ;;
    "  ") echo 4000 ;;
    *) echo 100 ;;
  esac
}

# Runs the probe in a mode: OUT has its output, OUT.counters what the service counted.
probe() { # MODE RATE OUT ARG...
  local mode=$1 rate=$2 out=$3 options=() program=$work/odd code=0
  shift 3
  case $mode in
    bare | bare-go | bare-static)
      case $mode in bare-go) program=$work/odd-go ;; bare-static) program=$work/odd-static ;; esac
      GODEBUG=asyncpreemptoff=1,updatemaxprocs=0 "$program" "$@" >"$out" 2>"$out.err" || echo "exit code $?" >>"$out"
      return
      ;;
    default) ;;
    # Calls wait, as they do under other limits.
    streams | places | elsewhere) options=(--event-loops off) ;;
    static-streams) program=$work/odd-static options=(--event-loops off) ;;
    no-patch) options=(--no-patch) ;;
    trap) options=(--unpatched trap) ;;
    static) program=$work/odd-static ;;
    static-trap) program=$work/odd-static options=(--unpatched trap) ;;
    event-loops) options=(--event-loops on) ;;
    enforced) options=(--enforce) ;;
    attach) attached "$program" "$rate" "$out" "$@"; return ;;
    # A signal to a thread that runs for long would end its transfers.
    go) program=$work/odd-go ;;
    go-attach) attached "$work/odd-go" "$rate" "$out" "$@"; return ;;
    *) echo "fuzz-calls: no such mode: $mode" >&2; exit 2 ;;
  esac
  case $mode in
    *streams) for name in "${limits[@]}"; do options+=(--limit "$name/stream=$rate"); done ;;
    places)
      for name in read write; do options+=(--limit "$name@/**=$rate"); done
      for name in send recv; do options+=(--limit "$name@127.0.0.0/8=$rate"); done
      ;;
    elsewhere)
      for name in read write; do options+=(--limit "$name@/nowhere/**=$rate"); done
      for name in send recv; do options+=(--limit "$name@192.0.2.0/24=$rate"); done
      ;;
    *) for name in "${limits[@]}"; do options+=(--limit "$name=$rate"); done ;;
  esac
  GODEBUG=asyncpreemptoff=1,updatemaxprocs=0 "$bonsai" run --json --name "fuzz-$me" "${options[@]}" -- "$program" "$@" >"$out" 2>"$out.err" || code=$?
  grep '^{' "$out.err" | tail -n 1 >"$out.counters" || true
  [ "$code" = 0 ] || echo "exit code $code" >>"$out"
}

# Bare mode that the runs of a mode are compared with.
bare_of() { # MODE
  case $1 in go*) echo bare-go ;; static*) echo bare-static ;; *) echo bare ;; esac
}

# A probe that has ended already is a difference, and no end of this.
byte_to() { # DESCRIPTOR
  (trap '' PIPE; printf x >&"$1") 2>/dev/null || true
}

# The probe runs already, and begins and ends at a byte of a pipe.
attached() { # PROGRAM RATE OUT ARG...
  local program=$1 rate=$2 out=$3 options=() name=fuzz-$me code=0 pid to
  shift 3
  for name_of in "${limits[@]}"; do options+=(--limit "$name_of=$rate"); done
  rm -f "$out.fifo"
  mkfifo "$out.fifo"
  GODEBUG=asyncpreemptoff=1,updatemaxprocs=0 "$program" "$@" held <"$out.fifo" >"$out" 2>"$out.err" &
  pid=$!
  exec {to}>"$out.fifo"
  "$bonsai" attach --keep --name "$name" "${options[@]}" "$pid" >>"$out.err" 2>&1 || echo "not attached" >>"$out"
  byte_to "$to"
  # The last of the lines says that all calls have been made.
  while ! tail -n 1 "$out" | grep -q '^# moved vmsplice .*' && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  "$bonsai" stats "$name" --json >"$out.counters" 2>>"$out.err" || true
  byte_to "$to"
  exec {to}>&-
  wait "$pid" || code=$?
  [ "$code" = 0 ] || echo "exit code $code" >>"$out"
}

# ENTRY BYTES, as the service counted.
charged() { # OUT
  tr -d ' \n' <"$1.counters" | sed 's/{"call"/\n&/g' |
    sed -n 's/^{"call":"\([^"]*\)","kind":"\([^"]*\)","number":[0-9]*,"calls":[0-9]*,"bytes":\([0-9]*\),.*/\1.\2 \3/p' | sed 's/\.any / /'
}

# ENTRY BYTES, as the calls said, with the lines that say so.
moved() { # OUT
  sed -n 's/^# moved //p' "$1"
  echo "write.file $(grep '^#' "$1" | wc -c)"
}

# ENTRY CHARGED MOVED of each entry that has either.
bytes() { # OUT
  { charged "$1" | sed 's/^/charged /'; moved "$1" | sed 's/^/moved /'; } |
    awk '{ of[$1, $2] += $3; all[$2] } END { for (e in all) printf "%s %.0f %.0f\n", e, of["charged", e], of["moved", e] }' | sort
}

# Finds the call of a line that differs, and says how to see it again.
bisect() { # MODE RATE SEED AT WORDS...
  local mode=$1 rate=$2 of=$3 at=$4 out=$work/bisect-$me try size first bare
  shift 4
  bare=$(bare_of "$mode")
  size=$(line_of "$@")
  for try in 1 2 3 4 5; do
    probe "$bare" "$rate" "$out.bare" "$of" "$at" "$size" all "$@"
    probe "$mode" "$rate" "$out.mode" "$of" "$at" "$size" all "$@"
    first=$(diff <(sort -n "$out.bare" | grep -v '^#') <(sort -n "$out.mode" | grep -v '^#') |
      grep '^[<>]' | awk '$2 !~ /:$/ && !seen[$1]++' || true)
    if [ -n "$first" ]; then
      echo "$first"
      echo "  again (try $try): in a folder of /dev/shm: odd_calls $of $at $size all $*; $mode, each limit $rate"
      return
    fi
  done
  echo "  not seen again in 5 tries: odd_calls $of $at $size all $*; $mode, each limit $rate"
}

# What is charged before and after the calls.
without() { # MODE
  local out=$work/without-$me
  probe "$1" 100GB/s "$out" 1 0 0
  bytes "$out" | awk '{ printf "%s %.0f\n", $1, $2 - $3 }' >"$work/none-$me-$1"
}

# Entries of which more or less is charged than has moved go to OUT.unlike.
unlike() { # MODE OUT
  # Threads of Go wake each other by an eventfd, eight bytes at a time.
  awk -v mode="$1" 'NR == FNR { none[$1] = $2; next }
    mode ~ /^go/ && $1 ~ /other$/ && ($2 - $3 - none[$1]) % 8 == 0 { next }
    $2 - $3 != none[$1] + 0 { printf "  %s: charged %.0f, moved %.0f\n", $1, $2 - none[$1], $3 }' \
    "$work/none-$me-$1" "$2.bytes" >"$2.unlike"
}

# Lines that two runs do not share, but for those of bytes and counts.
differences() { # OUT OUT
  diff <(sort -n "$1" | grep -v '^#') <(sort -n "$2" | grep -v '^#') || true
}

# One part in one mode, beside the bare run BARE. A line `result MODE CALLS DIFFERENCES MOVED CHARGED NS` goes to RESULTS.
compare() { # MODE RATE SEED COUNT BARE RESULTS WORDS...
  local mode=$1 rate=$2 of=$3 count=$4 bare=$5 results=$6 out=$work/out-$me began differs=0 at sums
  shift 6
  # Enforced, a call waits for all that its registers say, which is 2 GiB in the end.
  case $mode:" $* " in *" shared "*) ;; event-loops:* | enforced:*) rate=100GB/s ;; esac
  [ -f "$work/none-$me-$mode" ] || without "$mode"
  if grep -q '^exit code 3$' "$bare"; then
    echo "NOTE: $mode: odd_calls $of 0 $count $* cannot make its files, and is left out: is $base full?"
    return
  fi
  began=$(date +%s%N)
  probe "$mode" "$rate" "$out" "$of" 0 "$count" "$@"
  began=$(($(date +%s%N) - began))
  differences "$bare" "$out" >"$out.diff"
  # Which memory is there is another in a static program, and a few results with it.
  if [ -s "$out.diff" ] && { [ -n "$again" ] || [ "$(bare_of "$mode")" = bare-static ]; }; then
    echo "NOTE: $mode, $rate: odd_calls $of 0 $count $* differs, and is made again" | tee -a "$kept/differences"
    probe "$(bare_of "$mode")" "$rate" "$out.bare" "$of" 0 "$count" "$@"
    probe "$mode" "$rate" "$out" "$of" 0 "$count" "$@"
    bare=$out.bare
    differences "$bare" "$out" >"$out.diff"
  fi
  if [ -s "$out.diff" ]; then
    differs=$(grep -c '^>' "$out.diff" || true)
    cp "$out" "$kept/$mode-$of"
    cp "$out.err" "$kept/$mode-$of.err"
    cp "$bare" "$kept/bare-$of"
    {
      echo "DIFFERENCE: $mode, $rate: odd_calls $of 0 $count $* ($differs lines; $kept/$mode-$of)"
      for at in $(sed -n 's/^[<>] \([0-9]*\):.*/\1/p' "$out.diff" | sort -nu | head -n 3); do
        bisect "$mode" "$rate" "$of" "$at" "$@"
      done
      grep '^[<>]' "$out.diff" | grep -v '^[<>] [0-9]*:' | head -n 3 || true
    } | tee -a "$kept/differences"
  fi
  bytes "$out" >"$out.bytes"
  unlike "$mode" "$out"
  if [ -s "$out.unlike" ]; then
    # What Go reads of the mounts changes with them.
    without "$mode"
    unlike "$mode" "$out"
  fi
  if [ -s "$out.unlike" ]; then
    differs=$((differs + $(wc -l <"$out.unlike")))
    cp "$out.counters" "$kept/$mode-$of.counters"
    { echo "BYTES: $mode, $rate: odd_calls $of 0 $count $*"; cat "$out.unlike"; } | tee -a "$kept/differences"
  fi
  sums=$(awk 'NR == FNR { none += $2; next } { charged += $2; moved += $3 } END { printf "%.0f %.0f", moved, charged - none }' \
    "$work/none-$me-$mode" "$out.bytes")
  echo "result $mode $count $differs $sums $began" >>"$results"
  echo "$mode $count $differs" >>"$kept/calls"
}

# Waits while the file FUZZ_PAUSE is there.
pause_if_told() {
  while [ -n "$pause" ] && [ -e "$pause" ]; do sleep 1; done
}

# Every `jobs`th part, in all modes.
worker() { # NUMBER
  local at=$1 of count words rate less mode bare line
  me=$1
  mkdir -p "$work/$1"
  cd "$work/$1"
  for (( ; at * part < calls && SECONDS < seconds; at += jobs)); do
    pause_if_told
    of=$((seed + at))
    read -r words rate less < <(words_of "$at")
    read -ra words <<<"${words//,/ }"
    line=$(line_of "${words[@]}")
    count=$(((part / less + line - 1) / line * line))
    bare=$work/bare-$1
    probe bare "$rate" "$bare" "$of" 0 "$count" "${words[@]}"
    for mode in "${modes[@]}"; do
      pause_if_told
      case $mode:" ${words[*]} " in
        :*) ;;
        *:*" shared "*)
          case $mode in go*) continue ;; esac
          compare "$mode" "$rate" "$of" "$count" "$bare" "$work/results-$1" "${words[@]}"
          ;;
        # A call on a descriptor that does not block may be too early there (docs/02-how-a-call-waits.md): limits must never bind.
        event-loops:*" pieces "* | event-loops:" small ")
          probe bare "$rate" "$bare.loops" "$of" 0 "$count" "${words[@]}" loops
          compare "$mode" "$rate" "$of" "$count" "$bare.loops" "$work/results-$1" "${words[@]}" loops
          ;;
        # Bare, the others end the same with that word.
        event-loops:*" small "*) compare "$mode" "$rate" "$of" "$count" "$bare" "$work/results-$1" "${words[@]}" loops ;;
        event-loops:*) ;;
        enforced:*)
          probe bare "$rate" "$bare.copied" "$of" 0 "$count" "${words[@]}" copied
          compare "$mode" "$rate" "$of" "$count" "$bare.copied" "$work/results-$1" "${words[@]}" copied
          ;;
        go*)
          count=$(((count + 3999) / 4000 * 4000))
          probe bare-go "$rate" "$bare.go" "$of" 0 "$count"
          compare "$mode" "$rate" "$of" "$count" "$bare.go" "$work/results-$1"
          ;;
        *) compare "$mode" "$rate" "$of" "$count" "$bare" "$work/results-$1" "${words[@]}" ;;
      esac
    done
  done
  echo "next $((seed + at))" >>"$work/results-$1"
}

echo "fuzz-calls: seeds from $seed on, parts of $part calls"
workers=()
for ((number = 0; number < jobs; number++)); do
  worker "$number" &
  workers+=($!)
done
failed=0
for pid in "${workers[@]}"; do wait "$pid" || failed=1; done
cat "$kept/calls" "$work"/results-* | awk -v failed="$failed" '
  NF == 3 { total[$1] += $2 }
  $1 == "next" && $2 > following { following = $2 }
  $1 == "result" { if (!($2 in calls)) order[++n] = $2; calls[$2] += $3; differ[$2] += $4; moved[$2] += $5; charged[$2] += $6; ns[$2] += $7 }
  END {
    for (i = 1; i <= n; i++) {
      m = order[i]
      printf "fuzz-calls: %s: %d calls (%.0f a second and CPU), %d differences, %.0f bytes moved, %.0f charged; %d calls in all runs\n",
        m, calls[m], calls[m] / (ns[m] / 1e9), differ[m], moved[m], charged[m], total[m]
      sum += differ[m]
    }
    printf "fuzz-calls: more: FUZZ_SEED=%.0f scripts/fuzz-calls.sh\n", following
    exit sum > 0 || failed
  }'
