"""Prints the tables of docs/04-transparency.md from files that run.py has written.

    table.py RESULTS.json...

Of two results of the same module in the same mode the later one counts.
"""

import json
import sys

MODES = ("bare", "loose", "tight", "calls", "symbols", "loops", "streams", "enforced")


def rows(records):
    """By suite and mode: modules, counts, seconds, waits, differing tests."""
    found = {}
    for record in records:
        key = (record["suite"], record["version"])
        row = found.setdefault(key, {}).setdefault(
            record["mode"],
            {"modules": 0, "tests": 0, "counts": {}, "seconds": 0, "waits": 0, "different": 0},
        )
        row["modules"] += 1
        row["tests"] += sum(record["counts"].values())
        for outcome, count in record["counts"].items():
            row["counts"][outcome] = row["counts"].get(outcome, 0) + count
        row["seconds"] += record["seconds"]
        row["waits"] += record["counters"].get("waits", 0)
        row["different"] += len(record["differences"])
    return found


def main():
    records = {}
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            records.update(
                ((one["suite"], one["module"], one["mode"]), one) for one in json.load(file)
            )
    print("| suite | modules | mode | passed | failed | skipped | different | waits | seconds |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    for (suite, version), modes in rows(records.values()).items():
        for mode in MODES:
            row = modes.get(mode)
            if row is None:
                continue
            counts = (row["counts"].get(o, 0) for o in ("passed", "failed", "skipped"))
            cells = [f"{suite} {version}", row["modules"], mode, *counts]
            cells += ["" if mode == "bare" else row["different"]]
            cells += ["" if mode == "bare" else row["waits"], f"{row['seconds']:.0f}"]
            print("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |")


if __name__ == "__main__":
    main()
