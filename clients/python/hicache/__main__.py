"""python -m hicache COMMAND"""

import sys

from hicache import doctor, lm_server, store_host


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["lm-server"]:
        return lm_server.main(arguments[1:])
    if arguments[:1] == ["store-host"]:
        return store_host.main(arguments[1:])
    return doctor.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
