#!/bin/bash
# Measures how soon a change of a limit is in force while the disk is slow.
#
#   scripts/slow-disk.sh BONSAI FOLDER [CHANGES [FSYNC_MS]]
#
# BONSAI is the program with its libraries beside it, FOLDER gets samples.jsonl: of each change the time of the request, of the
# limit in the service's memory and of the answer, ns. CHANGES (200) are made one after another through a daemon whose fsync of
# its own files takes FSYNC_MS (4000, 0 for none). The last lines are percentiles of both times; the exit code is 1 where the
# limit of one change in a hundred is later than 10 ms. Needs cc and python3. Runs as any user, in a runtime directory of its own.
set -eu

if [ $# -lt 2 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
bonsai=$(realpath "$1")
mkdir -p "$2"
folder=$(realpath "$2")
changes=${3:-200}
fsync_ms=${4:-4000}
for tool in cc python3; do
  command -v "$tool" >/dev/null || {
    echo "slow-disk.sh: $tool is not installed; apt-get install gcc libc6-dev python3 adds it" >&2
    exit 2
  }
done

runtime=$(mktemp -d)
daemon='' service=''
end() {
  # A second signal ends a daemon that waits for its disk.
  kill $service $daemon 2>/dev/null || true
  sleep 0.1
  kill $daemon 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$runtime"
}
trap end EXIT
chmod 700 "$runtime"
export BONSAI_RUNTIME_DIR=$runtime/bonsai BONSAI_STATE_DIR=$runtime/state
cc -shared -fPIC -O2 -x c -o "$runtime/slow.so" - <<'END'
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void slow(int fd)
{
  char link[64], path[4096];
  const char *folder = getenv("SLOW_FOLDER"), *ms = getenv("SLOW_MS");
  ssize_t length;

  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  /* The start waits for its files. */
  if (folder && ms && !strncmp(path, folder, strlen(folder)) && !access(getenv("SLOW_FROM"), F_OK))
    usleep(atoi(ms) * 1000);
}

int fsync(int fd)
{
  slow(fd);
  return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
  slow(fd);
  return (int)syscall(SYS_fdatasync, fd);
}
END
printf '[policy]\nmode = "static"\n' >"$runtime/bonsai.toml"
"$bonsai" run --name slow -- sleep 100000 2>"$runtime/service.log" &
service=$!
SLOW_FOLDER=$BONSAI_STATE_DIR SLOW_MS=$fsync_ms SLOW_FROM=$runtime/slow LD_PRELOAD=$runtime/slow.so \
  "$bonsai" daemon --config "$runtime/bonsai.toml" \
  >"$runtime/daemon.log" 2>&1 &
daemon=$!

python3 - "$BONSAI_RUNTIME_DIR" "$folder/samples.jsonl" "$changes" "$fsync_ms" <<'END'
import glob, json, mmap, os, socket, sys, time

runtime, samples, changes, fsync_ms = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def begin(method, path, body=""):
    asked = socket.socket(socket.AF_UNIX)
    asked.settimeout(60)
    asked.connect(runtime + "/daemon.sock")
    asked.sendall(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
                  f"content-length: {len(body)}\r\n\r\n{body}".encode())
    return asked


def answer(asked):
    text = b""
    while piece := asked.recv(65536):
        text += piece
    head, _, body = text.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def limit(rate):
    return begin("PATCH", "/v1/services/slow", json.dumps({"write": {"max": f"{rate}B/s"}}))


def until(what, so):
    end = time.monotonic() + 60
    while True:
        try:
            if so():
                return
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit("slow-disk.sh: never: " + what)
        time.sleep(0.05)


until("the daemon knows the service", lambda: answer(begin("GET", "/v1/services/slow"))[0] == 200)
# The ledger: the largest file of the service. The rate of a limit stands in it in thousandths of a byte a second, in one of two
# copies by turns: two changes tell where.
files = [path for path in glob.glob(runtime + "/**", recursive=True) if "slow" in path and os.path.isfile(path)]
with open(max(files, key=os.path.getsize), "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
words = {}
for rate in (40_000_001, 40_000_002):
    answer(limit(rate))
    word = (rate * 1000).to_bytes(8, "little")
    words[word] = memory.find(word)
if len(set(words.values())) != 2 or -1 in words.values():
    sys.exit(f"slow-disk.sh: the limit is not in the ledger: {words}")

open(os.path.dirname(runtime) + "/slow", "w").close()
with open(samples, "w") as out:
    for number in range(changes):
        # A rate that no other limit has.
        rate = 50_000_000 + 1 + number
        word = (rate * 1000).to_bytes(8, "little")
        start = time.monotonic_ns()
        asked = limit(rate)
        while not any(memory[at:at + 8] == word for at in words.values()):
            if time.monotonic_ns() - start > 20e9:
                sys.exit(f"slow-disk.sh: change {number} is not in force after 20 s")
            time.sleep(0.0001)
        at = time.monotonic_ns()
        status, body = answer(asked)
        answered = time.monotonic_ns()
        if status != 200:
            sys.exit(f"slow-disk.sh: change {number}: {body}")
        out.write(json.dumps({"change": number, "fsync_ms": fsync_ms, "in_force_ns": at - start,
                              "answered_ns": answered - start, "not_on_disk_yet": bool(json.loads(body)["problems"])}) + "\n")

rows = [json.loads(line) for line in open(samples)]
late = 0
for key, what in (("in_force_ns", "in force"), ("answered_ns", "answered")):
    times = sorted(row[key] / 1e6 for row in rows)
    at = lambda part: times[min(len(times) - 1, int(len(times) * part))]
    print(f"{what} after p50 {at(0.5):.2f}, p99 {at(0.99):.2f}, most {times[-1]:.2f} ms, of {len(times)} changes, "
          f"fsync {fsync_ms} ms")
    late |= key == "in_force_ns" and at(0.99) > 10
print(f"{sum(row['not_on_disk_yet'] for row in rows)} answers said that the disk has not got the change yet")
sys.exit(late)
END
