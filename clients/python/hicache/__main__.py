"""python -m hicache COMMAND"""

import sys

from hicache import doctor, lm_server


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["lm-server"]:
        return lm_server.main(arguments[1:])
    if arguments[:1] == ["store-host"]:
        try:
            from hicache import store_host
        except ImportError as missing:
            print(missing, file=sys.stderr)
            return 2
        return store_host.main(arguments[1:])
    return doctor.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
