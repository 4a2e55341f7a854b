#include "launch/program_settings.hpp"

#include "base/limits.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/rank_settings.hpp"

#include <array>

namespace hicache {

namespace {

constexpr auto metrics_port_meaning
  = "port at which Prometheus finds [metrics](operations.md#metrics); 0 is nowhere";
constexpr auto metrics_host_meaning
  = "address at which Prometheus may ask; every machine that reaches it may";
constexpr auto log_level_meaning = "`trace`, `debug`, `info`, `warn`, `error` or `critical`";

constexpr auto of_index = std::to_array<setting<index_flags>>({
  {"listen", "HOST:PORT", at<&index_flags::listen>,
   "address to listen on; port 0 picks a free one; `unix:PATH` is a socket in the file system, for "
   "this user's processes on this machine"},
  {"advertise", "HOST:PORT", at<&index_flags::advertise>,
   "address under which members and other processes of the index reach this one, where it is not "
   "that of `--listen`"},
  {"shards", "N", at<&index_flags::shards>,
   "shards that this process serves; each has a thread of its own if there are cores enough",
   within(1, limits::index_shards)},
  {"shard", "N", at<&index_flags::first_shard>,
   "number of the first one; a number is served by one process of the cluster",
   within(0, limits::index_shards - 1)},
  {"join", index_place_type, at<&index_flags::join>,
   "processes of the index that this one belongs to; one that runs is enough. Or [where to find "
   "them](cluster.md#finding-the-index), as for `--index`; with `etcd://…` others find this "
   "process there, too"},
  {"member-ttl", "TIME", at<&index_flags::member_ttl>, "forget a member that is silent for longer",
   within(0.1, 86400)},
  {"metrics-port", "PORT", at<&index_flags::metrics, &metrics_options::port>, metrics_port_meaning,
   within(0, 65535)},
  {"metrics-host", "HOST", at<&index_flags::metrics, &metrics_options::host>, metrics_host_meaning},
  {"insecure", "", at<&index_flags::insecure>,
   "lets `--listen` be reached by other machines without TLS: any client that reaches the port can "
   "read "
   "and change the index; see [security.md](security.md)"},
  {"log-level", "NAME", [](index_flags& x) { return by_name(x.log_level); }, log_level_meaning},
});

constexpr auto of_node = std::to_array<setting<node_flags>>({
  {"memory", "SIZE", bytes_at<&node_flags::host, &node_host_options::memory_bytes>,
   "memory for pages, such as `64GiB`, taken at the start; has to be given"},
  {"memory-file", "PATH", at<&node_flags::host, &node_host_options::memory_file>,
   "file that is this memory, of that size, and [keeps the pages](node.md#memory-in-a-file) for "
   "the next node; without, pages end with the node"},
  {"disk", "PATH", at<&node_flags::host, &node_host_options::disk>,
   "folder [below the memory](node.md#a-disk-below-the-memory): pages are written there, too, and "
   "read from there when memory has them no more"},
  {"disk-bytes", "SIZE", bytes_at<&node_flags::host, &node_host_options::disk_bytes>,
   "bound on that folder, such as `500GiB`; has to be given with `--disk`"},
  {"storage-backend-extra-config", "JSON|@FILE",
   at<&node_flags::host, &node_host_options::extra_config>,
   "instead of `--disk`: [stores below the memory](node.md#other-stores-below-the-memory), the "
   "`tiers` of an [extra configuration](#extra-configuration-of-l3)"},
  {"socket", "PATH", at<&node_flags::host, &node_host_options::socket>,
   "where clients connect: a socket in the file system, for this user's processes; has to be "
   "given, unless a [service manager](node.md#as-a-service) has opened it"},
  {"listen", "HOST:PORT", at<&node_flags::listen>,
   "where [clients on other machines](node.md#clients-on-other-machines) connect; port 0 is one of "
   "the kernel's choice. Without, nowhere. An address that other machines reach needs TLS or "
   "`--insecure`"},
  {"group", "NAME|NUMBER", at<&node_flags::group>,
   "group whose processes are clients too, whatever their user, and so may write to the memory"},
  {"lease-time", "TIME", at<&node_flags::host, &node_host_options::lease_time>,
   "how long a client may keep what it reads from eviction without asking again",
   within(1, std::chrono::duration<double>(limits::node_lease_time).count())},
  {"index", index_place_type, at<&node_flags::host, &node_host_options::index>,
   "the index of the cluster store, or [where to find it](cluster.md#finding-the-index); without, "
   "this host's pages stay on this host"},
  {"index-connect-time", "TIME", at<&node_flags::host, &node_host_options::index_connect_time>,
   "with `--index`: how long the start tries to reach it before it fails", within(0, 3600)},
  {"listen-host", "HOST", at<&node_flags::host, &node_host_options::listen_host>,
   "with `--index`: address where members on other machines read pages and ask the node for "
   "copies"},
  {"repair-bytes-per-second", "SIZE",
   bytes_at<&node_flags::host, &node_host_options::repair, &repair_policy::bytes_per_second>,
   "with `--index`: most bytes a second that others read from this node to replace [lost "
   "copies](cluster.md#placement); 0 is without bound"},
  {"repair-delay", "TIME", at<&node_flags::host, &node_host_options::repair, &repair_policy::delay>,
   "with `--index`: how long the node waits with that after the index has told it of the loss",
   within(0, 3600)},
  {"shutdown-grace", "TIME", at<&node_flags::host, &node_host_options::shutdown_grace>,
   "with a store below the memory: how long a node that ends keeps writing there what waits for "
   "it",
   within(0, 3600)},
  {"metrics-port", "PORT", at<&node_flags::metrics, &metrics_options::port>, metrics_port_meaning,
   within(0, 65535)},
  {"metrics-host", "HOST", at<&node_flags::metrics, &metrics_options::host>, metrics_host_meaning},
  {"insecure", "", at<&node_flags::insecure>,
   "lets `--listen` and `--listen-host` be reached by other machines without TLS: any client that "
   "reaches "
   "the port can read and change what is cached; see [security.md](security.md)"},
  {"log-level", "NAME", [](node_flags& x) { return by_name(x.log_level); }, log_level_meaning},
});

} // namespace

std::span<const setting<index_flags>> index_settings() {
  return of_index;
}

std::span<const setting<node_flags>> node_settings() {
  return of_node;
}

} // namespace hicache
