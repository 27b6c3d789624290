"""The suites: where each is found, how a module of it is run, how its report is read."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
# How a test ended, the worst first: of two results of one name the worse one counts.
OUTCOMES = ("crashed", "failed", "skipped", "passed")
# Debian's own interpreter, to which its test suite belongs.
PYTHON = "/usr/bin/python3"
# Stands for a module as a whole when it ends without a report.
WHOLE = "(the module as a whole)"


class Missing(Exception):
    """A suite cannot be run here; the text says why."""


class Suite:
    """One suite. `prepare` raises Missing; `command` and `outcomes` go together."""

    def __init__(self, name, settings, store):
        self.name = name
        self.title = settings["title"]
        self.modules = settings["modules"]
        self.quick = settings.get("quick", [])
        self.not_in = settings.get("not_in", {})
        self.ignored = settings.get("ignored", {})
        self.settings = settings
        self.store = store
        self.version = "?"

    def report(self, folder):
        """The file that a run in `folder` leaves behind."""
        return folder / "report"

    def outcomes(self, folder, _log):
        """How each test ended, by name; empty without a report."""
        try:
            lines = self.report(folder).read_text("utf-8", "replace").splitlines()
        except OSError:
            return {}
        pairs = (line.split("\t", 1) for line in lines if "\t" in line)
        return worst((name, outcome) for outcome, name in pairs)


def worst(pairs):
    """Outcomes by name; the worse one of two."""
    found = {}
    for name, outcome in pairs:
        known = found.get(name, outcome)
        found[name] = min(known, outcome, key=OUTCOMES.index)
    return found


class Regrtest(Suite):
    """The tests of the Python standard library, by their own runner."""

    def prepare(self):
        code = "import test.test_os, platform; print(platform.python_version())"
        self.version = answer([PYTHON, "-c", code], "Debian's libpython3-testsuite")

    def command(self, module, folder):
        ignored = [part for pattern in self.ignored for part in ("-i", pattern)]
        resources = self.settings.get("resources", {}).get(module)
        use = ["-u", resources] if resources else []
        return [
            PYTHON, "-m", "test", "-v", *use, *ignored, "--tempdir", str(folder),
            "--junit-xml", str(self.report(folder)), module,
        ]  # fmt: skip

    def outcomes(self, folder, _log):
        try:
            root = ElementTree.parse(self.report(folder)).getroot()
        except (OSError, ElementTree.ParseError):
            return {}
        return worst((case.get("name"), junit_outcome(case)) for case in root.iter("testcase"))


def junit_outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


class FromPypi(Suite):
    """A suite inside a wheel, installed into a virtual environment of its own."""

    def prepare(self):
        self.program = self.store / "venv" / "bin" / "python"
        install(self.store)
        code = f"import importlib.metadata as m; print(m.version({self.name!r}))"
        self.version = answer([self.program, "-c", code], f"{self.title} from PyPI")


class Unittest(FromPypi):
    def command(self, module, folder):
        recorder = [str(self.program), str(HERE / "record.py"), str(self.report(folder))]
        return [*recorder, "unittest", module, *self.settings.get("arguments", [])]


class Standard(Unittest):
    """Modules of the standard library's tests that its own runner cannot run alone."""

    program = PYTHON
    prepare = Regrtest.prepare

    def command(self, module, folder):
        command = super().command("unittest", folder)
        return [*command, module]


class Trial(FromPypi):
    def command(self, module, folder):
        recorder = [str(self.program), str(HERE / "record.py"), str(self.report(folder))]
        return [*recorder, "trial", "--temp-directory", str(folder / "trial"), module]


def answer(command, what):
    """The first line that a command prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{what} is not installed") from error
    return done.stdout.splitlines()[0].strip()


def install(store):
    """Makes the virtual environment, unless it has just these packages."""
    wanted = (HERE / "requirements.txt").read_text()
    done = store / "venv" / "installed.txt"
    if done.exists() and done.read_text() == wanted:
        return
    shutil.rmtree(store / "venv", ignore_errors=True)
    pip = [store / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet"]
    pip += ["--disable-pip-version-check", "--only-binary", ":all:", "--no-deps"]
    steps = [
        [PYTHON, "-m", "venv", store / "venv"],
        [*pip, "-r", HERE / "requirements.txt"],
    ]
    for step in steps:
        try:
            subprocess.run(step, check=True, timeout=600, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"its packages cannot be installed: {error}") from error
    done.write_text(wanted)


class Redis(Suite):
    """The suite in Debian's source package, on Debian's own binaries."""

    NEEDED = ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb")
    LINE = re.compile(r"^\[(ok|err|skip|ignore|exception|timeout)\]: (.*)$")
    MEANING = {"ok": "passed", "skip": "skipped", "ignore": "skipped"}

    def prepare(self):
        for program in ("tclsh", *self.NEEDED):
            if shutil.which(program) is None:
                raise Missing(f"{program} is not installed")
        package = ["dpkg-query", "-W", "-f", "${Version}", "redis-server"]
        self.version = answer(package, "Debian's redis-server")
        self.source = fetch_source("redis", self.version, self.store)
        for program in self.NEEDED:
            at = self.source / "src" / program
            at.unlink(missing_ok=True)
            at.symlink_to(shutil.which(program))

    def command(self, module, _folder):
        return [
            "tclsh", "tests/test_helper.tcl", "--single", module, "--clients", "1",
            "--timeout", "240", "--baseport", "31111", "--portcount", "500",
        ]  # fmt: skip

    def outcomes(self, _folder, log):
        pairs = []
        for line in log.read_text("utf-8", "replace").splitlines():
            match = self.LINE.match(re.sub(r"\x1b\[[0-9;]*m", "", line))
            if match:
                # Without the time it took, and without the place of a failure.
                name = re.sub(r" \([0-9]+ ms\)$| in tests/.*$", "", match[2])
                pairs.append((re.sub(r"[0-9]{4,}", "N", name), self.MEANING.get(match[1], "failed")))
        return worst(pairs)


class OpenSSH(Suite):
    """OpenSSH's own tests, as Debian's openssh-tests installs them, on Debian's own binaries."""

    INSTALLED = Path("/usr/lib/openssh/regress")
    NEEDED = ("sshd", "ssh", "sftp", "scp", "ssh-keygen", "ssh-agent", "ssh-add", "ssh-keyscan")
    ENVIRONMENT = {
        "TEST_SHELL": "sh", "TEST_SSH_SSH": "ssh", "TEST_SSH_IPV6": "yes", "TEST_SSH_ECC": "yes",
        "TEST_SSH_SFTPSERVER": "/usr/lib/openssh/sftp-server",
        "TEST_SSH_UNSAFE_PERMISSIONS": "1",
        # Root needs no sudo; tests that ask for one are skipped when this is empty.
        "SUDO": "env", "TEST_SSH_PORT": "14242",
    }  # fmt: skip
    LINE = re.compile(r"^(ok|failed) (.*)$|^(test_\w+): \.+ \d+ tests ok$|^SKIPPED: (.*)$")

    def prepare(self):
        if os.geteuid() != 0:
            raise Missing("sshd separates its privileges as root only")
        os.environ["PATH"] += ":/usr/sbin"
        for program in self.NEEDED:
            if shutil.which(program) is None:
                raise Missing(f"{program} is not installed")
        if not (self.INSTALLED / "test-exec.sh").exists():
            raise Missing("Debian's openssh-tests is not installed")
        package = ["dpkg-query", "-W", "-f", "${Version}", "openssh-server"]
        self.version = answer(package, "Debian's openssh-server")
        # Privilege separation changes its root to this folder, which the service's start makes.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def command(self, module, folder):
        tests = folder / "regress"
        shutil.copytree(self.INSTALLED, tests, symlinks=True)
        if module.startswith("unittests/"):
            program = tests / module / f"test_{Path(module).name}"
            data = tests / module / "testdata"
            return [program, *(["-d", data] if data.exists() else [])]
        settings = [f"{name}={value}" for name, value in self.ENVIRONMENT.items()]
        return ["env", *settings, "sh", tests / "test-exec.sh", tests, tests / f"{module}.sh"]

    def outcomes(self, _folder, log):
        pairs = []
        for line in log.read_text("utf-8", "replace").splitlines():
            match = self.LINE.match(line)
            if match and match[4]:
                pairs.append((WHOLE, "skipped"))
            elif match:
                pairs.append((match[2] or match[3], "failed" if match[1] == "failed" else "passed"))
        return worst(pairs)


class Jtreg(Suite):
    """OpenJDK's tests of java.nio.channels, on Debian's own Java machine, without jtreg."""

    MEMBERS = ("test/jdk/java/nio/channels", "test/lib/jdk", "test/lib/jtreg")

    def prepare(self):
        if shutil.which("javac") is None:
            raise Missing("javac is not installed")
        version = ["java", "-XshowSettings:properties", "-version"]
        try:
            shown = subprocess.run(version, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing("java does not run") from error
        package = "openjdk-" + re.search(r"java.specification.version = (\d+)", shown.stderr)[1]
        installed = ["dpkg-query", "-W", "-f", "${Version}", f"{package}-jdk-headless"]
        self.version = answer(installed, f"Debian's {package}-jdk-headless")
        # A security update's source may be gone before its binaries; tests of its
        # predecessor are as good.
        self.root = fetch_source(package, self.version, self.store, self.MEMBERS, others=True)
        self.classes = self.root / "classes"
        complete = self.classes / "complete"
        if not complete.exists():
            compiler = [PYTHON, HERE / "jtreg.py", "compile", self.root, self.classes]
            subprocess.run([*compiler, *self.modules], check=True, timeout=900)
            complete.touch()

    def command(self, module, folder):
        left_out = [f"-{test}" for test in self.ignored]
        runner = [PYTHON, HERE / "jtreg.py", "run", self.report(folder), self.root, self.classes]
        return [*runner, module, *left_out]


def fetch_source(package, version, store, members=(), others=False):
    """The unpacked source of a Debian package, from the sources that apt knows.

    With `members` only these folders of it; with `others` of another version, if this one
    cannot be had.
    """
    folder = store / f"{package}-{version.replace(':', '_')}"
    unpacked = folder / "source"
    if (folder / "complete").exists():
        return unpacked
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    for known in Path("/etc/apt/sources.list.d").glob("*.sources"):
        text = re.sub(r"(?m)^Types:.*$", "Types: deb-src", known.read_text())
        (folder / "parts" / known.name).write_text(text)
    lines = Path("/etc/apt/sources.list")
    if lines.exists():
        text = re.sub(r"(?m)^deb ", "deb-src ", lines.read_text())
        (folder / "parts" / "main.list").write_text(text)
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": sys.stderr, "check": True, "timeout": 300}
    try:
        subprocess.run([*apt, "update"], **quiet)
        download(package, version, others, folder, apt, quiet)
        archives = [a for a in folder.glob(f"{package}_*.orig.tar.*") if a.suffix != ".asc"]
        unpacked.mkdir()
        unpack = ["tar", "-xf", archives[0], "-C", unpacked, "--strip-components=1"]
        unpack += ["--wildcards", *(f"*/{member}" for member in members)] if members else []
        subprocess.run(unpack, **quiet)
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise Missing(f"the source of {package} {version} cannot be had: {error}") from error
    (folder / "complete").touch()
    return unpacked


def download(package, version, others, folder, apt, quiet):
    """Downloads a source package into the folder; the version asked for first."""
    versions = [version]
    if others:
        listing = ["apt-cache", *apt[2:], "showsrc", package]
        shown = subprocess.run(listing, capture_output=True, text=True, timeout=60, check=False)
        known = re.findall(r"(?m)^Version: (.*)$", shown.stdout)
        versions += [other for other in dict.fromkeys(known) if other != version]
    for number, wanted in enumerate(versions):
        source = [*apt, "source", "--download-only", f"{package}={wanted}"]
        try:
            subprocess.run(source, cwd=folder, **quiet)
            return
        except subprocess.CalledProcessError:
            if number + 1 == len(versions):
                raise
            for partial in folder.glob(f"{package}_*"):
                partial.unlink()


KINDS = {
    "regrtest": Regrtest,
    "standard": Standard,
    "unittest": Unittest,
    "trial": Trial,
    "redis": Redis,
    "openssh": OpenSSH,
    "jtreg": Jtreg,
}


def load(store):
    """All suites of suites.toml."""
    with open(HERE / "suites.toml", "rb") as file:
        settings = tomllib.load(file)
    return {name: KINDS[s["kind"]](name, s, store) for name, s in settings.items()}


def expected():
    """The documented differences of expected.toml."""
    with open(HERE / "expected.toml", "rb") as file:
        return tomllib.load(file).get("difference", [])


def clean_environment(folder):
    """What every run gets, bare and under Bonsai: nothing that steers a test."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "USER", "LOGNAME")}
    return {**kept, "LC_ALL": "C.UTF-8", "TMPDIR": str(folder), "TERM": "dumb"}
