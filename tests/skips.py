#!/usr/bin/env python3
"""skips.py RESULT.xml PRESET

Fails if ctest, by its --output-junit, did not run a test that expected_skips.txt beside this file does not name for PRESET.
"""

import fnmatch
import pathlib
import sys
import xml.etree.ElementTree


def expected(preset):
    """The patterns of the sections whose headings name the preset."""
    patterns, holds = [], False
    for line in (pathlib.Path(__file__).parent / "expected_skips.txt").read_text().splitlines():
        if line.startswith("["):
            holds = preset in line.strip("[]").split()
        elif holds and line and not line.startswith("#"):
            patterns.append(line.split()[0])
    return patterns


def main(result, preset):
    patterns = expected(preset)
    cases = xml.etree.ElementTree.parse(result).getroot().iter("testcase")
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    odd = [name for name in skipped if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    for name in odd:
        print(f"{name} was skipped, and tests/expected_skips.txt does not name it for {preset}", file=sys.stderr)
    return 1 if odd else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
