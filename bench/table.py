"""table.py [--json FILE] RESULT...

Reads the output of Google Benchmark, and rows written by other benchmarks, and prints one table: each figure next to its baseline
of the same run.
"""

import argparse
import json
import math
import re
import statistics
from dataclasses import dataclass
from typing import Optional

# Factors from seconds, bytes, tokens per second and bytes per second to each unit.
SCALES = {"Mtok/s": 1e-6, "us": 1e6, "ms": 1e3, "B": 1, "GiB/s": 2**-30}


@dataclass
class Row:
    """One line of the table. `figure` and `baseline` name a benchmark and one of its counters, or its time."""
    name: str
    figure: str
    unit: str
    baseline: Optional[str] = None
    least: Optional[float] = None
    most: Optional[float] = None
    least_ratio: Optional[float] = None
    most_ratio: Optional[float] = None

    def bounds(self):
        """The bounds as (text, predicate of value and ratio)."""
        return [(text + f" {bound:g}", keeps) for text, bound, keeps in (
            (">=", self.least, lambda value, ratio: value >= self.least),
            ("<=", self.most, lambda value, ratio: value <= self.most),
            ("ratio >=", self.least_ratio, lambda value, ratio: ratio >= self.least_ratio),
            ("ratio <=", self.most_ratio, lambda value, ratio: ratio <= self.most_ratio),
        ) if bound is not None]


def throughput(name, figure, least=None, least_ratio=None, baseline="compare"):
    return Row(name, figure + ":tokens", "Mtok/s", baseline and baseline + ":tokens", least=least, least_ratio=least_ratio)


ROWS = [
    throughput("match, page 16", "match/16", 1000, 0.5),
    throughput("match, page 64", "match/64", 1000, 0.5),
    throughput("match, page 1", "match/1"),
    throughput("match of a prompt that left L1 page by page, over one that left at once", "match_demoted/by_page", least_ratio=0.5,
               baseline="match_demoted/at_once"),
    throughput("insert, page 16", "insert_all/plain/16", 1000, 0.5),
    throughput("insert, page 64", "insert_all/plain/64", 1000, 0.5),
    throughput("insert, page 1", "insert_all/plain/1"),
    throughput("insert with events, page 16", "insert_all/events/16", 100, baseline="insert_all/plain/16"),
    throughput("insert with events, page 64", "insert_all/events/64", 100, baseline="insert_all/plain/64"),
    throughput("insert with events, page 1", "insert_all/events/1", baseline="insert_all/plain/1"),
    throughput("cache: match and release, page 16", "match_and_release/plain/16"),
    throughput("cache: match and release, page 64", "match_and_release/plain/64"),
    throughput("cache: match and release, copies in L2, page 16", "match_and_release/copies/16", baseline="match_and_release/plain/16"),
    throughput("cache: match and release, copies in L2, page 64", "match_and_release/copies/64", baseline="match_and_release/plain/64"),
    throughput("cache: whole request, page 16", "whole_requests/plain/16"),
    throughput("cache: whole request, page 64", "whole_requests/plain/64"),
    throughput("cache: whole request, events and names, page 16", "whole_requests/events/16"),
    throughput("cache: whole request, events and names, page 64", "whole_requests/events/64"),
    throughput("naming pages (SHA-256), page 1", "name_pages/1", baseline=None),
    throughput("naming pages (SHA-256), page 16", "name_pages/16", baseline=None),
    throughput("naming pages (SHA-256), page 64", "name_pages/64", baseline=None),
    Row("lock and unlock a path of ten nodes", "lock_path:time", "us", most=0.4),
    Row("evict a leaf of 1 000", "evict/lru:victims", "us", most=1),
    Row("evict a leaf of 1 000 000", "evict/million:victims", "us", "evict/lru:victims", most_ratio=4),
    *(Row(f"evict a leaf of 1 000, {policy}", f"evict/{policy}:victims", "us", "evict/lru:victims", most=1)
      for policy in ("lfu", "fifo", "mru", "filo", "priority", "slru")),
    Row("memory of a leaf of one page of 16 tokens", "memory_of_leaves:bytes", "B", most=768),
    Row("memory of one page more, on the device", "memory_of_pages/device:bytes", "B", most=5),
    Row("memory of one page more, on both tiers, named", "memory_of_pages/everywhere:bytes", "B", most=42),
    Row("actor: match and release, asked by an actor", "actor_match:time", "us", "actor_bare:time", most_ratio=3),
    Row("actor: match and release, asked by a thread", "blocking_match:time", "us", "blocking_bare:time"),
    *(Row(f"node: {what}, {text}", f"node_{what}/{size}/threads:1:bytes", "GiB/s", f"{copy}/{size}/threads:1:bytes", least_ratio=0.8)
      for what, copy in (("put", "node_write"), ("get", "node_read"), ("view", "node_read")) for size, text in ((65536, "64 KiB"), (1048576, "1 MiB"))),
    *(Row(f"node: {what}, {text}, four clients beside one", f"node_{what}/{size}/threads:4:bytes", "GiB/s", f"node_{what}/{size}/threads:1:bytes",
          least_ratio=1)
      for what in ("put", "get", "view") for size, text in ((65536, "64 KiB"), (1048576, "1 MiB"))),
    Row("node: attach, memory of 1 GiB", "node_attach/1:time", "ms", most=200),
    Row("node: attach, memory of 8 GiB", "node_attach/8:time", "ms", "node_attach/1:time", most=200),
    *(Row(f"tiers: {what}", figure + ":bytes", "GiB/s", alone + ":bytes", least_ratio=least)
      for what, figure, alone, least in (
          ("get, one tier of memory, over memory alone", "get_tiered_memory", "get_memory", 0.97),
          ("get, one tier of files, over files alone", "get_tiered_file", "get_file", 0.97),
          ("get of what files have below memory, over files alone", "get_file_below_memory", "get_file", 1 / 1.2),
          ("put, one tier of memory, over memory alone", "put_tiered_memory", "put_memory", 0.97),
          ("put, one tier of files, over files alone", "put_tiered_file", "put_file", 0.97))),
]


def read_medians(results):
    """@returns medians over the repetitions: {"benchmark:counter": value}, times in seconds"""
    values = {}
    for result in results:
        for run in result.get("benchmarks", []):
            if run["run_type"] != "iteration":
                continue
            uses_real_time = "/real_time" in run["run_name"]
            name = re.sub(r"/(iterations:\d+|repeats:\d+|real_time|process_time)", "", run["run_name"])
            second = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[run["time_unit"]]
            time = run["real_time" if uses_real_time else "cpu_time"] * second
            values.setdefault(name + ":time", []).append(time)
            for counter in ("tokens", "victims", "bytes"):
                if counter in run:
                    values.setdefault(f"{name}:{counter}", []).append(run[counter])
    return {key: statistics.median(list_of) for key, list_of in values.items()}


def measure(row, medians):
    """@returns a row in the format of --json"""
    scale = SCALES[row.unit]
    value = medians[row.figure] * scale
    baseline = medians[row.baseline] * scale if row.baseline else None
    ratio = value / baseline if baseline else None
    bounds = row.bounds()
    return {
        "name": row.name,
        "value": value,
        "unit": row.unit,
        "baseline": baseline,
        "ratio": ratio,
        "target": ", ".join(text for text, _ in bounds) or None,
        "holds": all(keeps(value, ratio) for _, keeps in bounds) if bounds else None,
    }


def show_number(number):
    """Formats with three digits and no exponent."""
    if number is None:
        return ""
    digits = max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:.{digits}f}"


def print_table(rows):
    lines = [("what", "figure", "unit", "baseline", "ratio", "target", "holds")]
    for row in rows:
        lines.append((row["name"], show_number(row["value"]), row["unit"], show_number(row["baseline"]),
                      f"{row['ratio']:.2f}" if row["ratio"] else "", row["target"] or "",
                      {True: "yes", False: "NO", None: ""}[row["holds"]]))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = [cell.rjust(width) if i in (1, 3, 4) else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("results", nargs="+", metavar="RESULT")
    arguments = parser.parse_args()
    results = []
    for path in arguments.results:
        with open(path, encoding="utf-8") as file:
            results.append(json.load(file))
    medians = read_medians(results)
    rows = [measure(row, medians) for row in ROWS if row.figure in medians]
    for result in results:
        rows += result.get("rows", [])
    print_table(rows)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
