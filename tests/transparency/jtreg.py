"""Compiles and runs tests that are written for jtreg, without jtreg.

    jtreg.py compile SOURCE CLASSES FOLDER...
    jtreg.py run REPORT SOURCE CLASSES FOLDER [-TEST]...

SOURCE is the root of OpenJDK's source; a folder is one below test/jdk/java/nio/channels.
Tests with a `main` are run as the @run lines of their header say, each in a Java machine
of its own; those of TestNG and JUnit, and those for other systems, are left out, as are
the -TESTs. The report has a line `OUTCOME<tab>FOLDER/TEST` for each.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLACE = Path("test/jdk/java/nio/channels")
# Header lines of tests that only jtreg itself, a person or another system can run.
FOREIGN = re.compile(r"/manual|/native|/fail|/java\.security\.policy|[Ww]indows|driver|testng|junit")
# A test that takes this many seconds hangs.
LONGEST = 120


def headers(text):
    """The comment blocks of the file that describe a test."""
    return [block for block in re.findall(r"/\*.*?\*/", text, re.S) if "@test" in block]


def tags(block, name):
    """The values of a tag in a header, continuation lines included."""
    lines = re.sub(r"\n\s*\*", "\n", block.removesuffix("*/"))
    found = re.findall(rf"@{name}\s+([^@]*)", lines)
    return [" ".join(value.split()) for value in found]


def module_options(block):
    """Options for `@modules java.base/sun.nio.ch:+open`; without --add-opens for javac."""
    names = [m.partition(":")[0] for m in " ".join(tags(block, "modules")).split() if "/" in m]
    exports = [f"--add-exports={name}=ALL-UNNAMED" for name in names]
    return exports, [f"--add-opens={name}=ALL-UNNAMED" for name in names]


def runs(source):
    """Name, Java options and arguments of each run of the test in a file."""
    text = source.read_text("utf-8", "replace")
    found = []
    for block in headers(text):
        requires = " ".join(tags(block, "requires"))
        if requires and not re.search(r"linux|windows", requires, re.I):
            requires = ""
        if requires and not re.search(r'linux|!= "windows"', requires, re.I):
            continue
        lines = tags(block, "run")
        if not lines and "static void main" in text:
            lines = [f"main {source.stem}"]
        for line in lines:
            kind, *words = line.split()
            if not kind.startswith("main") or FOREIGN.search(line):
                continue
            at = next((i for i, word in enumerate(words) if not word.startswith("-")), None)
            if at is None or words[at] != source.stem:
                continue
            exports, opens = module_options(block)
            options = exports + opens + words[:at]
            name = " ".join([source.stem, *words[:at], *words[at + 1 :]])
            found.append((name, options, words[at:]))
    return found


def tests(root, folder):
    """Files of the tests that are run here."""
    return [f for f in sorted((root / PLACE / folder).glob("*.java")) if runs(f)]


def class_path(classes, folder):
    return classes / (folder.replace("/", "_") or "_")


def compile_folder(root, classes, folder):
    """Compiles each test of a folder; one that cannot be compiled is left out."""
    where = root / PLACE / folder
    into = class_path(classes, folder)
    into.mkdir(parents=True, exist_ok=True)
    known = [where, root / PLACE, root / "test/lib"]
    common = [
        "javac", "-nowarn", "-Xlint:none", "-proc:none", "-d", into,
        "-sourcepath", ":".join(map(str, known)),
    ]  # fmt: skip
    files = tests(root, folder)
    options = set()
    for file in files:
        for block in headers(file.read_text("utf-8", "replace")):
            options.update(module_options(block)[0])
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": False}
    if subprocess.run([*common, *options, *files], **quiet).returncode:
        for file in files:
            subprocess.run([*common, *options, file], **quiet)


def run_folder(report, root, classes, folder, left_out):
    into = class_path(classes, folder)
    with open(report, "w", encoding="utf-8") as output:
        for file in tests(root, folder):
            for name, options, arguments in runs(file):
                if file.stem in left_out or not (into / f"{file.stem}.class").exists():
                    continue
                outcome = run_test(file.parent, into, options, arguments, name)
                print(f"{outcome}\t{folder or '.'}/{name}", file=output, flush=True)


def run_test(source, into, options, arguments, name):
    """Runs one test in an empty folder; jtreg's exit code 95 says passed."""
    folder = Path(tempfile.mkdtemp(prefix="jtreg-"))
    java = Path(shutil.which("java")).resolve()
    command = [
        java, "-Xmx256m", f"-Dtest.src={source}", f"-Dtest.classes={into}",
        f"-Dtest.class.path={into}", f"-Dtest.jdk={java.parent.parent}",
        "-Djava.security.manager=allow",
        f"-Djava.io.tmpdir={folder}", "-cp", into, *options, *arguments,
    ]  # fmt: skip
    log = folder.with_suffix(".log")
    start = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            # Java prints the stacks of all threads at this signal.
            process.send_signal(signal.SIGQUIT)
            time.sleep(2)
            process.kill()
            code = process.wait() or -signal.SIGKILL
    text = log.read_text("utf-8", "replace")
    log.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"== {name}: exit code {code}, {time.monotonic() - start:.1f} s", flush=True)
    if code in (0, 95):
        return "passed"
    print(text, flush=True)
    if "jtreg.SkippedException" in text:
        return "skipped"
    return "failed" if code > 0 else "crashed"


def main():
    kind, *rest = sys.argv[1:]
    if kind == "compile":
        root, classes, *folders = rest
        for folder in folders:
            compile_folder(Path(root), Path(classes), folder.strip("."))
        return 0
    report, root, classes, folder, *left_out = rest
    left = {name.removeprefix("-") for name in left_out}
    run_folder(report, Path(root), Path(classes).absolute(), folder.strip("."), left)
    return 0


if __name__ == "__main__":
    sys.exit(main())
