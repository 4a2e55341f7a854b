"""python -m hicache COMMAND"""

import sys

from hicache.doctor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
