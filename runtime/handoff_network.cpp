#include "runtime/handoff_network.hpp"

#include "rpc/tls.hpp"

#include <memory>

namespace hicache {

page_channel_options handoff_network(const rank_config& config) {
  auto options = page_channel_options{config.page_transport, nullptr};
  if (config.tls.given())
    options.tls = [source = std::make_shared<tls_source>(config.tls)] {
      return result<std::shared_ptr<ssl_ctx_st>>{source->get()};
    };
  return options;
}

uint32_t handoff_heads(const rank_config& config) {
  return config.attention == attention_kind::mha ? config.kv_heads : 1;
}

} // namespace hicache
