#!/bin/bash
# Measures which part of its limit each of many services with many senders gets, by what arrives.
#
#   scripts/many-senders.sh BONSAI FOLDER [SERVICES [SENDERS [LIMIT [SECONDS [AFTER]]]]]
#
# BONSAI is the program with its libraries beside it, FOLDER gets a file of each service: bytes that arrived, and ns. SERVICES
# (200) are started at once, each with SENDERS threads (100) that send 1,000 bytes each time through one socket, under LIMIT
# (50000) bytes a second; what arrives in SECONDS (10) is counted by a thread of the program that reads it, AFTER seconds (60)
# when all have started. The last line is the least, the most and the mean; the exit code is 1 where one is out of 0.98 to
# 1.02. Needs cc.
set -eu

if [ $# -lt 2 ]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
bonsai=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
services=${3:-200}
senders=${4:-100}
limit=${5:-50000}
seconds=${6:-10}
after=${7:-60}
command -v cc >/dev/null || {
  echo "many-senders.sh: cc is not installed; apt-get install gcc libc6-dev adds it" >&2
  exit 2
}

runtime=$(mktemp -d)
trap 'rm -rf "$runtime"' EXIT
chmod 700 "$runtime"
export BONSAI_RUNTIME_DIR=$runtime/bonsai
cc -O2 -pthread -x c -o "$runtime/many" - <<'END'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int ends[2];
static long long total;

static void *sender(void *unused)
{
  static char piece[1000];

  for (;;)
    if (send(ends[0], piece, sizeof piece, 0) < 0)
      return unused;
}

static void *receiver(void *unused)
{
  static char buffer[65536];
  ssize_t n;

  while ((n = read(ends[1], buffer, sizeof buffer)) > 0)
    __atomic_add_fetch(&total, n, __ATOMIC_RELAXED);
  return unused;
}

static long long now(void)
{
  struct timespec t;

  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int count, char **args)
{
  pthread_attr_t small;
  pthread_t thread;
  long long start, end, before, then;

  if (count < 4 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
    return 2;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 65536);
  if (pthread_create(&thread, NULL, receiver, NULL))
    return 1;
  for (int i = atoi(args[1]); i > 0; i--)
    if (pthread_create(&thread, &small, sender, NULL))
      return 1;
  sleep(atoi(args[2]));
  start = now();
  before = __atomic_load_n(&total, __ATOMIC_RELAXED);
  sleep(atoi(args[3]));
  end = now();
  then = __atomic_load_n(&total, __ATOMIC_RELAXED);
  printf("%lld %lld\n", then - before, end - start);
  fflush(stdout);
  _exit(0);
}
END

rm -f "$folder"/service-*
for i in $(seq "$services"); do
  timeout $((after + seconds + 60)) "$bonsai" run --name "s$i" --limit "send=${limit}B/s" -- \
    "$runtime/many" "$senders" "$after" "$seconds" >"$folder/service-$i" 2>"$folder/service-$i.log" &
done
wait

cat "$folder"/service-*[0-9] | awk -v limit="$limit" -v wanted="$services" '
  { part = $1 / limit / ($2 / 1e9); sum += part }
  NR == 1 || part < least { least = part }
  part > most { most = part }
  END {
    if (NR) printf "%d services: least %.4f, most %.4f, mean %.4f of the limit\n", NR, least, most, sum / NR
    if (NR != wanted) { print wanted - NR " services gave no number"; exit 1 }
    exit least < 0.98 || most > 1.02
  }'
