#pragma once

#include "backends/index_link.hpp"
#include "backends/storage_backend.hpp"
#include "messages/page_header.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/page_channel.hpp"

#include <caf/actor_system.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

namespace hicache {

/// How readers reach the memory of other members.
enum class read_path : uint8_t {
  /// Mapped memory on the same machine, UCX elsewhere.
  automatic,
  /// Always UCX, also on the same machine: for tests and measurements.
  remote,
};

/// What the `cluster` backend works with. Everything referred to outlives it.
struct cluster_options {
  caf::actor_system* system = nullptr;
  index_link* index = nullptr;
  /// This process's segment; null if it lends no memory: then set fails with store_full.
  segment_actor segment;
  /// The memory of that segment, written to by this backend between reserve and publish.
  std::span<std::byte> segment_memory;
  /// This process as a member; 0 if it lends no memory.
  uint64_t member = 0;
  /// `fingerprint_of` the namespace; pages with another one are not served.
  uint64_t fingerprint = 0;
  read_path path = read_path::automatic;
  const clock_source* clock = nullptr;
};

/// L3 as the pooled memory of all members (`store.md`): writes go to this process's own segment,
/// reads come from whoever holds the page. Every page read is verified: generation, key, namespace,
/// length and checksum; what does not verify is a miss.
class cluster_backend final : public storage_backend {
public:
  explicit cluster_backend(cluster_options options);

  ~cluster_backend() override;

  std::string name() const override { return "cluster"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override;

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override;

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override;

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override;

  backend_health health() override;

private:
  /// A member's memory as this process reaches it.
  struct route {
    /// Own or mapped memory; empty if the member is on another machine.
    std::span<const std::byte> memory;
    std::shared_ptr<const mapped_peer_memory> mapping;
    std::string page_address;
  };

  /// One page and one replica of it to try.
  struct attempt {
    const page_read* page;
    size_t position;
    replica from;
  };

  placements locate(std::span<const page_key> keys, time_point deadline);

  /// Enters a shard's answer for the keys at these positions.
  void enter(placements& found, std::span<const size_t> positions, const index_actor& shard,
             placements& all) const;

  /// Knows how to read from these members, asking the index about those it has not met.
  std::map<uint64_t, route> routes_to(const std::vector<attempt>& attempts, time_point deadline);

  route open_route(const member_info& member) const;

  /// Reads one replica from memory that this process can address.
  result<void> read_memory(std::span<const std::byte> memory, const attempt& what) const;

  /// Reads replicas of one member by UCX.
  std::vector<result<void>> read_remote(const route& from, const std::vector<attempt>& what,
                                        time_point deadline);

  /// Compares a header with what was asked for.
  result<page_header> verify_header(std::span<const std::byte> bytes, const attempt& what) const;

  /// Writes header and object into a reserved slot of the own segment.
  void fill(const segment_slot& slot, const page_write& page);

  /// What is left of the time until `deadline`.
  caf::timespan left(time_point deadline) const;

  cluster_options options_;
  std::mutex mutex_; // Guards what follows.
  std::map<uint64_t, route> routes_;
  std::unique_ptr<page_client> client_;
  backend_counters counters_;
};

} // namespace hicache
