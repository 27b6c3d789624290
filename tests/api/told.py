"""Reads reports of schemathesis (JUnit XML) and says which operations stood, and whether the
daemon still does.

    told.py SOCKET REPORT...

One line for each operation, and all that is known about those that failed; the last line is
N passed, N failed, N skipped.
"""

import json
import socket
import sys
import time
from xml.etree import ElementTree

counts = {"ok": 0, "not ok": 0}


def tell(good, name, why=()):
    word = "ok" if good else "not ok"
    counts[word] += 1
    print(f"api {word} {name}", *why, sep="\n")


def periods():
    """How many periods the daemon has decided in so far."""
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(10)
        there.connect(sys.argv[1])
        there.sendall(b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = b""
        while piece := there.recv(65536):
            answer += piece
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["periods"]


for report in sys.argv[2:]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is None:
            wrong = case.findall("failure") + case.findall("error")
            why = [each.get("message", "") + (each.text or "") for each in wrong]
            tell(not wrong, case.get("name"), why)
try:
    before = periods()
    time.sleep(1)
    after = periods()
    tell(after > before, "the daemon answers and decides", [] if after > before else [f"{before} periods, then {after}"])
except (OSError, ValueError, KeyError, IndexError) as error:
    tell(False, "the daemon answers and decides", [repr(error)])
print(f"{counts['ok']} passed, {counts['not ok']} failed, 0 skipped")
sys.exit(counts["not ok"] > 0)
