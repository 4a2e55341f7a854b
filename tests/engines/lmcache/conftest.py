"""A real node for each test of LMCache, which does not report that it is used."""

import os

from node_fixtures import damage, node  # noqa: F401

os.environ["LMCACHE_TRACK_USAGE"] = "false"
