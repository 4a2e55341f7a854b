// NIXL's back end HICACHE: objects in the memory of this host's hicache-node, over hicache.h.
//
// An object is a page: it is written and read whole, and what is written under a key first stays.
// docs/engines/nixl.md says how it is used.
#include "backend/backend_plugin.h"
#include "hicache.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache::nixl {
namespace {

/// Bytes of one call. The library does several at a time, and all of them have to stay below the
/// client's share at the node.
constexpr auto batch_bytes = size_t{2} << 20;

/// Memory or an object that NIXL was told of.
struct registered final : nixlBackendMD {
  explicit registered(hc_key of) : nixlBackendMD{true}, key{of} {}

  /// Of an object; unused for memory.
  hc_key key;
};

/// Calls of one transfer that are under way, with how many pages each has.
struct transfer final : nixlBackendReqH {
  std::vector<std::pair<hc_ticket, uint32_t>> calls;
  nixl_status_t status = NIXL_SUCCESS;
};

/// Pages of a transfer. Those of one object are next to each other there.
struct batch {
  std::vector<hc_page> pages;
  std::vector<hc_part> parts;
  std::vector<size_t> part_counts;
};

nixl_status_t status_of(int32_t code) {
  switch (code) {
    case HC_OK:
      return NIXL_SUCCESS;
    case HC_NOT_FOUND:
    case HC_CORRUPT_PAGE:
      return NIXL_ERR_NOT_FOUND;
    case HC_INVALID_ARGUMENT:
      // Of a page: it has another length.
      return NIXL_ERR_MISMATCH;
    default:
      return NIXL_ERR_BACKEND;
  }
}

/// Whether the pieces of each object follow one another from its beginning on.
bool is_whole(const nixl_meta_dlist_t& memory, const nixl_meta_dlist_t& objects) {
  if (memory.getType() != DRAM_SEG || objects.getType() != OBJ_SEG
      || memory.descCount() != objects.descCount())
    return false;
  const nixlBackendMD* last = nullptr;
  auto end = uint64_t{0};
  for (auto i = 0; i < objects.descCount(); ++i) {
    const auto& piece = objects[i];
    if (piece.metadataP == nullptr || piece.len == 0 || memory[i].len != piece.len)
      return false;
    if (piece.metadataP != last)
      end = 0;
    if (piece.addr != end)
      return false;
    last = piece.metadataP;
    end += piece.len;
  }
  return true;
}

/// Parameters that hc_open takes as they are.
constexpr auto passed_on
  = std::array<std::string_view, 6>{"socket", "address", "tls_cert", "tls_key", "tls_ca", "tenant"};

class engine final : public nixlBackendEngine {
public:
  /// @throws std::runtime_error a parameter is wrong; NIXL logs the sentence
  explicit engine(const nixlBackendInitParams* init) : nixlBackendEngine{init} {
    auto config = nlohmann::json::object();
    for (const auto& [name, value] : getCustomParams()) {
      if (value.empty())
        continue;
      if (std::ranges::find(passed_on, name) != passed_on.end())
        config[name] = value;
      else if (name == "namespace")
        config[name] = "nixl/" + value;
      else if (name == "threads")
        config[name] = number(name, value);
      else if (name == "timeout_ms")
        timeout_ms_ = number(name, value);
      else
        throw std::runtime_error{name + ": there is no such parameter"};
    }
    if (!config.contains("namespace"))
      throw std::runtime_error{"namespace: expected what makes objects differ that have the same "
                               "key: model, data type, layout, rank"};
    auto error = hc_error{};
    if (hc_open(config.dump().c_str(), nullptr, &client_, &error) != HC_OK)
      throw std::runtime_error{error.text};
  }

  ~engine() override { hc_close(client_); }

  bool supportsRemote() const override { return false; }

  bool supportsLocal() const override { return true; }

  bool supportsNotif() const override { return false; }

  nixl_mem_list_t getSupportedMems() const override { return {DRAM_SEG, OBJ_SEG}; }

  nixl_status_t registerMem(const nixlBlobDesc& what, const nixl_mem_t& kind,
                            nixlBackendMD*& made) override {
    auto key = hc_key{};
    if (kind == OBJ_SEG && (what.metaInfo.empty() || name(what.metaInfo, key) != HC_OK)) {
      NIXL_ERROR << "an object has no key: the number of a device is none that other processes "
                    "would know";
      return NIXL_ERR_INVALID_PARAM;
    }
    made = std::make_unique<registered>(key).release();
    return NIXL_SUCCESS;
  }

  nixl_status_t deregisterMem(nixlBackendMD* meta) override {
    delete meta;
    return NIXL_SUCCESS;
  }

  nixl_status_t connect(const std::string&) override { return NIXL_SUCCESS; }

  nixl_status_t disconnect(const std::string&) override { return NIXL_SUCCESS; }

  nixl_status_t unloadMD(nixlBackendMD*) override { return NIXL_SUCCESS; }

  nixl_status_t loadLocalMD(nixlBackendMD* meta, nixlBackendMD*& loaded) override {
    loaded = meta;
    return NIXL_SUCCESS;
  }

  nixl_status_t prepXfer(const nixl_xfer_op_t&, const nixl_meta_dlist_t& memory,
                         const nixl_meta_dlist_t& objects, const std::string&,
                         nixlBackendReqH*& handle, const nixl_opt_b_args_t*) const override {
    if (!is_whole(memory, objects)) {
      NIXL_ERROR << "objects are written and read whole: expected the pieces of each one in their "
                    "order, from offset 0 on";
      return NIXL_ERR_NOT_SUPPORTED;
    }
    handle = std::make_unique<transfer>().release();
    return NIXL_SUCCESS;
  }

  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& memory,
                         const nixl_meta_dlist_t& objects, const std::string&,
                         nixlBackendReqH*& handle, const nixl_opt_b_args_t*) const override {
    auto& asked = *static_cast<transfer*>(handle);
    if (!asked.calls.empty())
      return NIXL_ERR_REPOST_ACTIVE;
    if (!is_whole(memory, objects))
      return NIXL_ERR_NOT_SUPPORTED;
    asked.status = NIXL_SUCCESS;
    auto next = batch{};
    auto bytes = size_t{0};
    for (auto i = 0; i < objects.descCount(); ++i) {
      const auto is_first = objects[i].addr == 0;
      if (is_first && (bytes >= batch_bytes || next.pages.size() == HC_MAX_PAGES)) {
        begin(operation, next, asked);
        next = {};
        bytes = 0;
      }
      if (is_first) {
        next.pages.push_back({static_cast<registered*>(objects[i].metadataP)->key, {}, {}, 0, {}});
        next.part_counts.push_back(0);
      }
      // NIXL has addresses as numbers.
      next.parts.push_back({reinterpret_cast<void*>(memory[i].addr), memory[i].len}); // NOLINT
      ++next.part_counts.back();
      bytes += memory[i].len;
    }
    if (!next.pages.empty())
      begin(operation, next, asked);
    return checkXfer(handle);
  }

  nixl_status_t checkXfer(nixlBackendReqH* handle) const override {
    return progress(*static_cast<transfer*>(handle), 0);
  }

  /// Waits for what is under way: its memory is in use until then.
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override {
    auto* asked = static_cast<transfer*>(handle);
    while (progress(*asked, timeout_ms_) == NIXL_IN_PROG)
      continue;
    delete asked;
    return NIXL_SUCCESS;
  }

  /// Objects of other hosts are brought to this one's node, and count.
  nixl_status_t queryMem(const nixl_reg_dlist_t& objects,
                         std::vector<nixl_query_resp_t>& found) const override {
    for (auto first = 0; first < objects.descCount(); first += HC_MAX_PAGES) {
      const auto end = std::min(objects.descCount(), first + HC_MAX_PAGES);
      auto keys = std::vector<hc_key>(static_cast<size_t>(end - first));
      for (auto i = first; i < end; ++i) {
        if (name(objects[i].metaInfo, keys[static_cast<size_t>(i - first)]) != HC_OK)
          return NIXL_ERR_INVALID_PARAM;
      }
      auto codes = std::vector<int32_t>(keys.size(), HC_NOT_FOUND);
      auto how = call();
      how.codes = codes.data();
      auto ticket = hc_ticket{};
      const auto code = hc_prefetch(client_, keys.data(), keys.size(), &how, &ticket, nullptr);
      if (code != HC_OK)
        return status_of(code);
      auto done = hc_completion{};
      while (hc_wait(client_, ticket, timeout_ms_, &done) == HC_DEADLINE_EXCEEDED)
        continue;
      for (const auto each : codes)
        found.emplace_back(each == HC_OK ? nixl_query_resp_t{nixl_b_params_t{}} : std::nullopt);
    }
    return NIXL_SUCCESS;
  }

private:
  static uint32_t number(const std::string& name, const std::string& value) {
    auto end = size_t{0};
    auto parsed = 0UL;
    try {
      parsed = std::stoul(value, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end == 0 || end != value.size() || parsed > 3'600'000)
      throw std::runtime_error{name + ": \"" + value + "\" is not allowed"};
    return static_cast<uint32_t>(parsed);
  }

  int32_t name(const std::string& text, hc_key& key) const {
    const auto length = text.size();
    return hc_names(client_, text.data(), &length, 1, &key);
  }

  hc_call call() const { return {sizeof(hc_call), 0, timeout_ms_, nullptr, nullptr, nullptr}; }

  /// Begins one call of a transfer.
  void begin(nixl_xfer_op_t operation, batch& what, transfer& asked) const {
    auto part = size_t{0};
    for (auto i = size_t{0}; i < what.pages.size(); ++i) {
      what.pages[i].parts = &what.parts[part];
      what.pages[i].part_count = what.part_counts[i];
      part += what.part_counts[i];
    }
    const auto how = call();
    auto ticket = hc_ticket{};
    const auto function = operation == NIXL_WRITE ? hc_put : hc_get;
    const auto code
      = function(client_, what.pages.data(), what.pages.size(), &how, &ticket, nullptr);
    if (code == HC_OK)
      asked.calls.emplace_back(ticket, static_cast<uint32_t>(what.pages.size()));
    else
      asked.status = NIXL_ERR_BACKEND;
  }

  /// Takes what is done, waiting up to that time for each call.
  nixl_status_t progress(transfer& asked, uint32_t wait_ms) const {
    while (!asked.calls.empty()) {
      const auto [ticket, pages] = asked.calls.back();
      auto done = hc_completion{};
      const auto code = hc_wait(client_, ticket, wait_ms, &done);
      if (code == HC_DEADLINE_EXCEEDED)
        return NIXL_IN_PROG;
      asked.calls.pop_back();
      if (code != HC_OK)
        asked.status = NIXL_ERR_BACKEND;
      else if (done.pages < pages)
        asked.status = done.error.code != HC_OK ? status_of(done.error.code) : NIXL_ERR_NOT_FOUND;
    }
    return asked.status;
  }

  hc_client* client_ = nullptr;
  uint32_t timeout_ms_ = 10'000;
};

} // namespace
} // namespace hicache::nixl

extern "C" {

NIXL_PLUGIN_EXPORT nixlBackendPlugin* nixl_plugin_init() {
  return nixlBackendPluginCreator<hicache::nixl::engine>::create(NIXL_PLUGIN_API_VERSION, "HICACHE",
                                                                 HICACHE_VERSION,
                                                                 {{"socket", ""},
                                                                  {"address", ""},
                                                                  {"tls_cert", ""},
                                                                  {"tls_key", ""},
                                                                  {"tls_ca", ""},
                                                                  {"namespace", ""},
                                                                  {"tenant", ""},
                                                                  {"threads", ""},
                                                                  {"timeout_ms", ""}},
                                                                 {DRAM_SEG, OBJ_SEG});
}

NIXL_PLUGIN_EXPORT void nixl_plugin_fini() {}
}
