"""Runs a test program and writes down how each of its tests ended.

    record.py FILE unittest MODULE [ARGUMENTS]
    record.py FILE trial [ARGUMENTS]

The program runs as `python -m MODULE` (or `trial`) does. Its own result class is kept;
one line `outcome<TAB>test` is appended to FILE as each test ends, so that a crash loses
nothing. Outcomes are passed, failed and skipped; an expected failure counts as passed.
"""

import os
import runpy
import sys
import unittest

# The tests replace functions of the module os while they run.
OPEN, WRITE, CLOSE = os.open, os.write, os.close
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

OUTCOMES = {
    "addSuccess": "passed",
    "addExpectedFailure": "passed",
    "addSkip": "skipped",
    "addError": "failed",
    "addFailure": "failed",
    "addUnexpectedSuccess": "failed",
}


def name_of(test):
    """The name of a test without what changes from run to run."""
    method = getattr(test, "id", None)
    return str(method() if method else test).replace("\n", " ").replace("\t", " ")


def write_down(path, outcome, test):
    """Appends one line; opened anew each time, for tests close what they did not open."""
    descriptor = OPEN(path, FLAGS, 0o644)
    WRITE(descriptor, f"{outcome}\t{name_of(test)}\n".encode("utf-8", "backslashreplace"))
    CLOSE(descriptor)


def record(result, path):
    """Makes the result class `result` write down what it is told."""

    def recording(method, outcome):
        original = getattr(result, method)

        def add(self, test, *rest, **named):
            write_down(path, outcome, test)
            return original(self, test, *rest, **named)

        return add

    for method, outcome in OUTCOMES.items():
        setattr(result, method, recording(method, outcome))


def record_subtests(result, path):
    """A failed part of a test, for which no other method is called."""
    original = result.addSubTest

    def add(self, test, subtest, error):
        if error is not None:
            write_down(path, "failed", test)
        return original(self, test, subtest, error)

    result.addSubTest = add


def main():
    path, kind = os.path.abspath(sys.argv[1]), sys.argv[2]
    if kind == "trial":
        from twisted.scripts import trial
        from twisted.trial import reporter

        record(reporter.VerboseTextReporter, path)
        sys.argv = ["trial", "--reporter=bwverbose", *sys.argv[3:]]
        sys.path.insert(0, os.getcwd())
        trial.run()
    else:
        record(unittest.TextTestResult, path)
        record_subtests(unittest.TextTestResult, path)
        sys.argv = sys.argv[3:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
