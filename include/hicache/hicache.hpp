#pragma once

/// The public API for engines. Where to start:
///
/// - config.hpp: fill in a `rank_config` and call `finish`.
/// - rank_reducer.hpp: join the ranks of the instance, with or without MPI.
/// - runtime.hpp: `rank_runtime::start` runs this rank; `tree()` is the actor that takes
/// operations.
/// - interfaces.hpp, operations.hpp: the messages and the operations they carry.
/// - geometry.hpp, device.hpp: where the KV of a token lies in L1.
///
/// Only if needed: events.hpp (cache events for routers), eviction_policy.hpp (a custom eviction
/// order), handoff.hpp (prefill and decode in different instances), storage_backend.hpp (a custom
/// store), store.hpp (a store without ranks), system_config.hpp (an actor system for the engine's
/// actors), error.hpp and caf_error.hpp (errors as values and as messages).
///
/// examples/minimal_engine.cpp is a complete engine; docs/integrating.md states the guarantees.

#include "hicache/caf_error.hpp"
#include "hicache/clock.hpp"
#include "hicache/config.hpp"
#include "hicache/device.hpp"
#include "hicache/error.hpp"
#include "hicache/events.hpp"
#include "hicache/eviction_policy.hpp"
#include "hicache/geometry.hpp"
#include "hicache/handoff.hpp"
#include "hicache/ids.hpp"
#include "hicache/interfaces.hpp"
#include "hicache/operations.hpp"
#include "hicache/policies.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/runtime.hpp"
#include "hicache/storage_backend.hpp"
#include "hicache/storage_policies.hpp"
#include "hicache/store.hpp"
#include "hicache/system_config.hpp"
#include "hicache/tls_files.hpp"
