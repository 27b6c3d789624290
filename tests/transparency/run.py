"""Runs test suites bare and under Bonsai, and compares how each test ends.

Every module runs bare first, then in each mode. Where a test ends in a mode as it did
not bare, its module runs twice more, bare and in the mode: a test that is unreliable by
itself shows bare, too, how it may end. What never ended so bare is a difference, and how
often it was seen is printed. The last line counts modules times modes:
N passed, N failed, N skipped.
"""

import argparse
import ctypes
import fnmatch
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import suites

MODES = {
    "loose": ["--limit", "all=10GB/s"],
    "tight": [
        "--limit", "read=20MB/s", "--limit", "write=20MB/s",
        "--limit", "send=20MB/s", "--limit", "recv=20MB/s",
    ],
    "calls": [
        "--limit", "open=500/s", "--limit", "close=1000/s", "--limit", "stat=1000/s",
        "--limit", "poll=3000/s", "--limit", "accept=100/s", "--limit", "connect=100/s",
        "--limit", "fork=30/s", "--limit", "exec=30/s",
    ],
    "symbols": ["--no-patch", "--limit", "all=10GB/s"],
    "loops": [
        "--event-loops", "on", "--limit", "read=20MB/s", "--limit", "write=20MB/s",
        "--limit", "send=20MB/s", "--limit", "recv=20MB/s",
    ],
    "streams": ["--limit", "send/stream=5MB/s", "--limit", "recv/stream=5MB/s"],
    "enforced": [
        "--enforce", "--limit", "read=20MB/s", "--limit", "write=20MB/s",
        "--limit", "send=20MB/s", "--limit", "recv=20MB/s",
    ],
}  # fmt: skip
ABOUT = {
    "loose": "a limit that does not bind (all=10GB/s)",
    "tight": "limits that bind (read, write, send and recv at 20MB/s each)",
    "calls": "limits in calls that bind (open, close, stat, poll, accept, connect, fork, exec)",
    "symbols": "as loose, with --no-patch",
    "loops": "as tight, with --event-loops on",
    "streams": "limits per stream (send/stream and recv/stream at 5MB/s each)",
    "enforced": "as tight, with --enforce",
}
# A module that takes this many seconds hangs; the second holds for --quick.
LONGEST, LONGEST_QUICK = 400, 60
# Seconds for what a program leaves behind under --enforce.
GRACE = 3
# How often a module with a difference is run again, bare and in the mode.
AGAIN = 2
# Descriptors of a test at a time: some walk through all numbers that there may be, which
# under a limit of 1,000 calls a second takes its time.
DESCRIPTORS = 1024


class Runner:
    """Runs modules one at a time, in a folder and a process tree of their own."""

    def __init__(self, options, store):
        self.options = options
        self.store = store
        self.runtime = Path(tempfile.mkdtemp(prefix="bonsai-t-"))
        self.longest = options.longest or (LONGEST_QUICK if options.quick else LONGEST)
        self.number = 0
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
        # Orphans of a test come to us, so that no process is left behind.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        os.nice(5)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        # A shell starts what runs in the background with these ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    def run(self, suite, module, mode):
        """Outcomes by test, seconds, and the counters of Bonsai."""
        self.number += 1
        folder = Path(tempfile.mkdtemp(prefix="bonsai-t-"))
        environment = suites.clean_environment(folder)
        command = [str(part) for part in suite.command(module, folder)]
        if mode != "bare":
            environment["BONSAI_RUNTIME_DIR"] = str(self.runtime)
            command = [
                self.options.bonsai, "run", "--name", f"t{self.number}", "--json",
                *MODES[mode], "--", *command,
            ]  # fmt: skip
        ended = folder / "ended"
        if mode == "enforced":
            at = command.index("--") + 1
            command[at:at] = ["sh", "-c", '"$@"; code=$?; : >"$0"; exit $code', str(ended)]
        where = getattr(suite, "source", folder)
        log = self.store / "logs" / f"{suite.name}.{module.replace('/', '.')}.{mode}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, cwd=where, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                code = wait_for(process, self.longest, ended)
            except subprocess.TimeoutExpired:
                code = f"killed after {self.longest} s"
            seconds = time.monotonic() - start
            end_children()
            process.poll()
        outcomes = suite.outcomes(folder, log)
        # Killed by us, or ended by a signal; `bonsai run` passes that on as a shell does.
        if not isinstance(code, int) or not 0 <= code <= 128:
            outcomes[suites.WHOLE] = "crashed"
        elif not outcomes:
            outcomes[suites.WHOLE] = "failed" if code else "skipped"
        shutil.rmtree(folder, ignore_errors=True)
        return {"outcomes": outcomes, "seconds": seconds, "code": code, **counters(log)}

    def close(self):
        end_children()
        shutil.rmtree(self.runtime, ignore_errors=True)


def wait_for(process, longest, ended):
    """The exit code of a run; what its program leaves behind is killed.

    `bonsai run --enforce` stays until the last process of its service has ended, and some
    tests leave processes that sleep for minutes.
    """
    limit = time.monotonic() + longest
    while True:
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            if time.monotonic() > limit:
                raise
        reap_orphans(process.pid)
        if ended.exists() and time.time() - ended.stat().st_mtime > GRACE:
            for pid in descendants(process.pid):
                try:
                    if Path(f"/proc/{pid}/comm").read_text().strip() != "bonsai":
                        os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue


def reap_orphans(own):
    """Waits for ended processes that were left to us, as init does: a zombie still takes signals."""
    for pid in children(os.getpid()):
        if pid != own:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def descendants(pid):
    """Process ids of all that a process has started and that have not left its tree."""
    found = children(pid)
    return found + [pid for child in found for pid in descendants(child)]


def end_children():
    """Kills what a run left behind: our children, and what they leave to us."""
    for _ in range(50):
        own = children(os.getpid())
        if not own:
            return
        for pid in own:
            os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                # Somebody else in this process has waited for it.
                continue


def children(parent):
    """Process ids of a process's children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def counters(log):
    """Waits and calls that went through unshaped, as `bonsai run --json` tells them."""
    for line in reversed(log.read_bytes().splitlines()):
        if line.startswith(b'{"schema"'):
            document = json.loads(line)
            waits = [call["waits"] for call in document["calls"]]
            return {
                "calls": sum(call["calls"] for call in document["calls"]),
                "waits": sum(wait["count"] for wait in waits),
                "waited": sum(wait["total_ns"] for wait in waits) / 1e9,
                "unshaped": document["unshaped"],
            }
    return {}


def differences(bare, run):
    """Tests that ended as they never did bare: name, how bare, how here."""
    seen = {}
    for one in bare:
        for name in set(seen) | set(one):
            seen.setdefault(name, set()).add(one.get(name, "not run"))
    names = set(seen) | set(run)
    return {
        name: (sorted(seen.get(name, {"not run"})), run.get(name, "not run"))
        for name in sorted(names)
        if run.get(name, "not run") not in seen.get(name, {"not run"})
    }


def reason_for(known, suite, name, mode):
    for one in known:
        if one["suite"] == suite and mode in one["modes"] and fnmatch.fnmatchcase(name, one["test"]):
            return one["reason"]
    return None


class Comparison:
    """Everything that was found out, and the count of it."""

    def __init__(self, runner, modes):
        self.runner, self.modes = runner, modes
        self.known = suites.expected()
        self.record = []
        self.passed = self.failed = self.skipped = 0

    def skip(self, what, why, count):
        print(f"SKIP: transparency of {what}: {why}", flush=True)
        self.skipped += count

    def module(self, suite, module):
        run = self.runner.run(suite, module, "bare")
        bare = [run["outcomes"]]
        self.note(suite, module, "bare", run, {})
        for mode in self.modes:
            if mode in suite.not_in:
                continue
            run = self.runner.run(suite, module, mode)
            found = differences(bare, run["outcomes"])
            repeated = {name: 1 for name in found}
            unknown = [n for n in found if reason_for(self.known, suite.name, n, mode) is None]
            for _ in range(AGAIN if unknown else 0):
                bare.append(self.runner.run(suite, module, "bare")["outcomes"])
                again = differences(bare, self.runner.run(suite, module, mode)["outcomes"])
                for name in again:
                    repeated[name] = repeated.get(name, 0) + 1
            found = {n: d for n, d in found.items() if n in differences(bare, run["outcomes"])}
            self.note(suite, module, mode, run, {n: (*d, repeated[n]) for n, d in found.items()})

    def note(self, suite, module, mode, run, found):
        counts = {}
        for outcome in run["outcomes"].values():
            counts[outcome] = counts.get(outcome, 0) + 1
        unexpected = 0
        for name, (bare, here, times) in found.items():
            reason = reason_for(self.known, suite.name, name, mode)
            unexpected += reason is None
            seen = reason if reason else f"in {times} of {1 + AGAIN} runs"
            print(f"  {name}: bare {'/'.join(bare)}, {mode} {here}: {seen}")
        if mode != "bare":
            self.passed += unexpected == 0
            self.failed += unexpected != 0
        tests = ", ".join(f"{counts[o]} {o}" for o in reversed(suites.OUTCOMES) if o in counts)
        waits = f", {run['waits']} waits of {run['waited']:.1f} s" if "waits" in run else ""
        verdict = "" if mode == "bare" else ", DIFFERENT" if unexpected else ", equal"
        print(f"{suite.name} {module} {mode}: {tests}, {run['seconds']:.1f} s{waits}{verdict}",
              flush=True)  # fmt: skip
        self.record.append(
            {
                "suite": suite.name, "version": suite.version, "module": module, "mode": mode,
                "counts": counts, "seconds": round(run["seconds"], 2), "code": run["code"],
                "counters": {k: run[k] for k in ("calls", "waits", "waited", "unshaped") if k in run},
                "differences": found,
            }
        )  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(prog="tests/transparency/run.sh", description=__doc__)
    parser.add_argument("modules", nargs="*", help="only these modules")
    parser.add_argument("--suite", action="append", help="only this suite; may be repeated")
    parser.add_argument("--mode", action="append", choices=list(MODES), help="only this mode")
    parser.add_argument("--quick", action="store_true", help="the part that make test runs")
    parser.add_argument("--longest", type=int, help="seconds after which a module is ended")
    parser.add_argument("--bonsai", required=True, type=os.path.abspath, help="the program bonsai")
    parser.add_argument("--store", required=True, type=Path, help="folder for what is made")
    return parser.parse_args()


def main():
    options = parse()
    options.store.mkdir(parents=True, exist_ok=True)
    store = options.store.resolve()
    runner = Runner(options, store)
    modes = options.mode or (["loose", "tight"] if options.quick else list(MODES))
    comparison = Comparison(runner, modes)
    for mode in modes:
        print(f"{mode}: {ABOUT[mode]}", flush=True)
    try:
        for suite in suites.load(store).values():
            if options.suite and suite.name not in options.suite:
                continue
            modules = suite.quick if options.quick else suite.modules
            modules = [m for m in modules if not options.modules or m in options.modules]
            if not modules:
                continue
            try:
                suite.prepare()
            except suites.Missing as missing:
                comparison.skip(suite.title, missing, len(modules) * len(modes))
                continue
            for mode in modes:
                if mode in suite.not_in:
                    what = f"{suite.title} in the mode {mode}"
                    comparison.skip(what, suite.not_in[mode], len(modules))
            for module in modules:
                comparison.module(suite, module)
                (store / "results.json").write_text(json.dumps(comparison.record, indent=1))
    finally:
        runner.close()
    print(f"{comparison.passed} passed, {comparison.failed} failed, {comparison.skipped} skipped")
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
