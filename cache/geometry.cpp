#include "hicache/geometry.hpp"

#include "base/check.hpp"
#include "base/names.hpp"
#include "cache/copy_strips.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace hicache {

namespace {

constexpr std::array mha_parts = {kv_part::key, kv_part::value};
constexpr std::array mla_parts = {kv_part::latent};
constexpr std::array nsa_parts = {kv_part::latent, kv_part::index_key};
constexpr auto attention_parts
  = std::to_array<std::span<const kv_part>>({mha_parts, mla_parts, nsa_parts});

constexpr auto part_names
  = std::to_array<std::string_view>({"key", "value", "latent", "index_key"});
constexpr auto attention_names = std::to_array<std::string_view>({"mha", "mla", "nsa"});
constexpr auto layout_names = std::to_array<std::string_view>(
  {"layer_first", "page_first", "page_first_direct", "page_head"});

/// Parts that are split into heads; the others have one row for all heads.
bool has_heads(kv_part part) {
  return part == kv_part::key || part == kv_part::value;
}

uint64_t row_bytes_of(const pool_shape& shape, kv_part part) {
  switch (part) {
    case kv_part::key:
    case kv_part::latent:
      return uint64_t{shape.kv_heads} * shape.head_dim * shape.element_bytes;
    case kv_part::value:
      return uint64_t{shape.kv_heads} * shape.v_head_dim * shape.element_bytes;
    case kv_part::index_key:
      return shape.index_key_bytes;
  }
  return 0;
}

/// Bytes of one layer of one token, over the parts before `end`; over all without one.
uint64_t token_bytes(const pool_shape& shape, std::optional<kv_part> end = {}) {
  auto bytes = uint64_t{0};
  for (const auto part : parts_of(shape.attention)) {
    if (part == end)
      break;
    bytes += row_bytes_of(shape, part);
  }
  return bytes;
}

bool fits_its_attention(const pool_shape& shape) {
  if (shape.layers == 0 || shape.kv_heads == 0 || shape.head_dim == 0 || shape.element_bytes == 0
      || shape.page_size == 0)
    return false;
  if (shape.attention == attention_kind::mha)
    return shape.v_head_dim > 0 && shape.index_key_bytes == 0;
  return shape.kv_heads == 1 && shape.v_head_dim == 0
         && (shape.index_key_bytes > 0) == (shape.attention == attention_kind::nsa);
}

uint32_t common_word_bytes(const copy_strip& strip) {
  const auto bits = strip.device_address | strip.device_page_stride | strip.device_row_stride
                    | strip.host_address | strip.host_page_stride | strip.host_row_stride
                    | strip.row_bytes | 16;
  return uint32_t{1} << std::countr_zero(bits);
}

copy_strip make_strip(const layer_buffer& buffer, uint64_t column_offset, const strided_run& host,
                      uint64_t host_page_stride, uint64_t l2_address) {
  auto strip = copy_strip{};
  strip.device_address = buffer.address + column_offset;
  strip.device_page_stride = buffer.page_stride;
  strip.device_row_stride = buffer.token_stride;
  strip.host_address = l2_address + host.offset;
  strip.host_page_stride = host_page_stride;
  strip.host_row_stride = host.stride;
  strip.row_bytes = host.row_bytes;
  strip.rows = static_cast<uint32_t>(host.rows);
  if (buffer.token_stride == host.row_bytes && host.stride == host.row_bytes) {
    strip.row_bytes *= host.rows;
    strip.rows = 1;
    strip.device_row_stride = strip.host_row_stride = strip.row_bytes;
  }
  strip.word_bytes = common_word_bytes(strip);
  return strip;
}

/// Whether `next` starts where `last` ends on both sides, so that they can be merged.
bool continues(const row_copy& last, const row_copy& next) {
  return last.rows == 1 && next.rows == 1
         && next.device_address == last.device_address + last.row_bytes
         && next.host_address == last.host_address + last.row_bytes;
}

} // namespace

const char* to_string(attention_kind kind) noexcept {
  return name_of(attention_names, kind);
}

result<attention_kind> parse_attention_kind(std::string_view name) {
  return find_name<attention_kind>(attention_names, name, "a kind of attention");
}

std::span<const kv_part> parts_of(attention_kind kind) noexcept {
  const auto at = static_cast<size_t>(kind);
  return at < attention_parts.size() ? attention_parts[at] : std::span<const kv_part>{};
}

const char* to_string(host_layout layout) noexcept {
  return name_of(layout_names, layout);
}

result<host_layout> parse_host_layout(std::string_view name) {
  return find_name<host_layout>(layout_names, name, "a memory layout");
}

std::string to_string(const pool_shape& shape) {
  const auto number = [](const char* name, uint32_t value) {
    return std::string{" "} + name + "=" + std::to_string(value);
  };
  auto text = to_string(shape.attention) + number("layers", shape.layers);
  if (shape.attention == attention_kind::mha)
    text += number("kv_heads", shape.kv_heads);
  text += number("head_dim", shape.head_dim);
  if (shape.attention == attention_kind::mha)
    text += number("v_head_dim", shape.v_head_dim);
  if (shape.attention == attention_kind::nsa)
    text += number("index_key_bytes", shape.index_key_bytes);
  return text + number("element_bytes", shape.element_bytes) + number("page_size", shape.page_size);
}

std::optional<head_split> split_heads(uint32_t heads, uint32_t ranks) noexcept {
  HICACHE_CHECK(heads > 0 && ranks > 0);
  if (heads % ranks == 0)
    return head_split{heads / ranks, 1};
  return ranks % heads == 0 ? std::optional{head_split{1, ranks / heads}} : std::nullopt;
}

pool_geometry::pool_geometry(const pool_shape& shape, host_layout layout, uint32_t pages)
  : shape_(shape), layout_(layout), pages_(pages) {
  HICACHE_CHECK(fits_its_attention(shape));
  HICACHE_CHECK(pages > 0);
}

uint64_t pool_geometry::row_bytes(kv_part part) const noexcept {
  return row_bytes_of(shape_, part);
}

uint64_t pool_geometry::page_bytes() const noexcept {
  return token_bytes(shape_) * shape_.layers * shape_.page_size;
}

uint32_t pool_geometry::columns(kv_part part) const noexcept {
  return layout_ == host_layout::page_head && has_heads(part) ? shape_.kv_heads : 1;
}

strided_run pool_geometry::rows(uint32_t layer, kv_part part, page_index page,
                                uint32_t column) const noexcept {
  HICACHE_CHECK(std::ranges::find(parts(), part) != parts().end());
  HICACHE_CHECK(layer < shape_.layers && page < pages_ && column < columns(part));
  const auto row = row_bytes(part) / columns(part);
  const auto tokens = uint64_t{shape_.page_size};
  // Bytes of the parts before this one in the unit that they split: the pool, a page, or one head.
  const auto part_offset = token_bytes(shape_, part) / columns(part) * shape_.layers * tokens;
  switch (layout_) {
    case host_layout::layer_first:
      return {part_offset * pages_ + (uint64_t{layer} * pages_ + page) * tokens * row, row, row,
              tokens};
    case host_layout::page_first:
      return {page * page_bytes() + part_offset + layer * row, row, row * shape_.layers, tokens};
    case host_layout::page_first_direct:
      return {page * page_bytes() + part_offset + layer * tokens * row, row, row, tokens};
    case host_layout::page_head:
      return {page * page_bytes() + column * (page_bytes() / columns(part)) + part_offset
                + layer * tokens * row,
              row, row, tokens};
  }
  return {};
}

uint64_t pool_geometry::page_stride(kv_part part) const noexcept {
  return layout_ == host_layout::layer_first ? row_bytes(part) * shape_.page_size : page_bytes();
}

std::vector<byte_run> pool_geometry::object_runs(page_index page, head_range heads) const {
  HICACHE_CHECK(heads.count > 0 && heads.first + heads.count <= shape_.kv_heads);
  const auto whole = heads == all_heads();
  if (layout_ == host_layout::page_head || (whole && layout_ != host_layout::layer_first))
    return {{page * page_bytes() + object_bytes(heads.first), object_bytes(heads.count)}};
  // The other layouts are blocks of rows, in object order: a part of the page, or one layer of it.
  const auto blocks = layout_ == host_layout::layer_first ? shape_.layers : 1;
  const auto block_rows = uint64_t{shape_.layers} / blocks * shape_.page_size;
  auto runs = std::vector<byte_run>{};
  runs.reserve(parts().size() * blocks * (whole ? 1 : block_rows));
  for (const auto part : parts()) {
    const auto row = row_bytes(part);
    const auto head = row / shape_.kv_heads;
    for (auto block = uint32_t{0}; block < blocks; ++block) {
      const auto start = rows(block, part, page).offset;
      if (whole)
        runs.push_back({start, block_rows * row});
      else
        for (auto i = uint64_t{0}; i < block_rows; ++i)
          runs.push_back({start + i * row + heads.first * head, heads.count * head});
    }
  }
  return runs;
}

uint64_t pool_geometry::object_bytes(uint32_t heads) const noexcept {
  return page_bytes() / shape_.kv_heads * heads;
}

std::string pool_geometry::object_fingerprint(uint32_t heads) const {
  auto text = to_string(shape_) + " heads_per_object=" + std::to_string(heads);
  if (layout_ == host_layout::page_first)
    return text + " order=token,layer";
  // With one head, head order makes no difference.
  if (layout_ == host_layout::page_head && heads > 1)
    return text + " order=head,layer,token";
  return text + " order=layer,token";
}

std::vector<head_group> pool_geometry::head_groups(uint32_t part, uint32_t heads) const {
  HICACHE_CHECK(heads > 0 && shape_.kv_heads % heads == 0);
  if (shape_.attention != attention_kind::mha)
    return {{all_heads(), "latent"}};
  auto groups = std::vector<head_group>{};
  for (auto first = uint32_t{0}; first < shape_.kv_heads; first += heads)
    groups.push_back(
      {{first, heads},
       "heads " + std::to_string(part * shape_.kv_heads + first) + "+" + std::to_string(heads)});
  return groups;
}

device_layers device_layers::of(const pool_geometry& pool, uint64_t address) {
  HICACHE_CHECK(pool.layout() == host_layout::layer_first);
  auto layers = device_layers{pool.shape(), pool.pages(), {}};
  for (const auto part : pool.parts())
    for (auto layer = uint32_t{0}; layer < pool.shape().layers; ++layer)
      layers.buffers.push_back(
        {address + pool.rows(layer, part, 0).offset, pool.page_stride(part), pool.row_bytes(part)});
  return layers;
}

result<void> device_layers::check() const {
  const auto parts = parts_of(shape.attention);
  if (!fits_its_attention(shape) || pages < 2)
    return fail(
      ec::invalid_argument,
      "the registered pool needs a complete shape and at least two pages (one is padding)");
  if (buffers.size() != parts.size() * shape.layers)
    return fail(ec::invalid_argument,
                "the registered pool has " + std::to_string(buffers.size()) + " buffers; expected "
                  + std::to_string(parts.size() * shape.layers) + ", one per part and layer");
  for (auto i = size_t{0}; i < buffers.size(); ++i) {
    const auto part = parts[i / shape.layers];
    const auto row = row_bytes_of(shape, part);
    // Pages could also interleave with the gaps of rows; only one order is known to be in use.
    if (buffers[i].address == 0 || buffers[i].token_stride < row
        || buffers[i].page_stride < buffers[i].token_stride * (shape.page_size - 1) + row)
      return fail(ec::invalid_argument, std::string{"the registered "} + name_of(part_names, part)
                                          + " buffer of layer " + std::to_string(i % shape.layers)
                                          + " has a null address or strides in which "
                                            "rows of "
                                          + std::to_string(row) + " bytes overlap");
  }
  return {};
}

std::vector<copy_strip> make_copy_strips(const device_layers& l1, const pool_geometry& l2,
                                         uint64_t l2_address) {
  HICACHE_CHECK(l1.shape == l2.shape() && l1.check());
  auto strips = std::vector<copy_strip>{};
  const auto& shape = l2.shape();
  for (auto layer = uint32_t{0}; layer < shape.layers; ++layer)
    for (auto part = size_t{0}; part < l2.parts().size(); ++part) {
      const auto kind = l2.parts()[part];
      for (auto column = uint32_t{0}; column < l2.columns(kind); ++column) {
        const auto host = l2.rows(layer, kind, 0, column);
        strips.push_back(make_strip(l1.buffers[part * shape.layers + layer],
                                    column * host.row_bytes, host, l2.page_stride(kind),
                                    l2_address));
      }
    }
  return strips;
}

void append_copies(std::span<const copy_strip> strips, std::span<const page_index> l1_pages,
                   std::span<const page_index> l2_pages, std::vector<row_copy>& copies) {
  HICACHE_CHECK(l1_pages.size() == l2_pages.size());
  for (const auto& strip : strips)
    for (auto i = size_t{0}; i < l1_pages.size(); ++i) {
      const auto next = row_copy{strip.device_address + l1_pages[i] * strip.device_page_stride,
                                 strip.device_row_stride,
                                 strip.host_address + l2_pages[i] * strip.host_page_stride,
                                 strip.host_row_stride,
                                 strip.row_bytes,
                                 strip.rows};
      if (copies.empty() || !continues(copies.back(), next)) {
        copies.push_back(next);
        continue;
      }
      auto& last = copies.back();
      last.row_bytes += next.row_bytes;
      last.device_stride = last.host_stride = last.row_bytes;
    }
}

} // namespace hicache
