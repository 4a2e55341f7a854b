#!/usr/bin/env python3
"""skips.py RESULT.xml

Complains about tests that ctest did not run, by its --output-junit, and that expected_skips.txt beside this file does not name.
"""

import fnmatch
import pathlib
import sys
import xml.etree.ElementTree


def main(result):
    listed = (pathlib.Path(__file__).parent / "expected_skips.txt").read_text().splitlines()
    patterns = [line.split()[0] for line in listed if line and not line.startswith("#")]
    cases = xml.etree.ElementTree.parse(result).getroot().iter("testcase")
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    odd = [name for name in skipped if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    for name in odd:
        print(f"{name} was skipped, and tests/expected_skips.txt does not name it", file=sys.stderr)
    return 1 if odd else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
