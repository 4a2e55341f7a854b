// Where the index is: a first byte of 'd' makes the rest an answer of the DNS, 'p' what --index
// says, any other input is an answer of etcd.

#include "backends/cluster/dns_client.hpp"
#include "backends/cluster/etcd_protocol.hpp"
#include "backends/cluster/index_place.hpp"
#include "base/check.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace {

using namespace hicache;

template <class T>
void check(const result<T>& read, ec otherwise) {
  HICACHE_CHECK(read || (read.error().code == otherwise && !read.error().detail.empty()));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span{data, size});
  const auto text = std::string{reinterpret_cast<const char*>(data), size};
  if (text.starts_with('d')) {
    check(read_srv_records(bytes.subspan(1)), ec::malformed_message);
  } else if (text.starts_with('p')) {
    check(parse_index_place(text.substr(1)), ec::invalid_argument);
  } else {
    check(etcd::read_list(text), ec::malformed_message);
    check(etcd::read_lease(text), ec::malformed_message);
    check(etcd::read_refresh(text), ec::malformed_message);
    static_cast<void>(etcd::read_refusal(text));
  }
  return 0;
}
