#include "backends/s3/s3_replies.hpp"

#include <pugixml.hpp>

#include <charconv>
#include <cstddef>
#include <sstream>
#include <system_error>
#include <utility>

namespace hicache {

namespace {

/// The element `root` of a document; none if the document has another root or is damaged.
pugi::xml_node load(pugi::xml_document& document, std::string_view text, const char* root) {
  return document.load_buffer(text.data(), text.size()) ? document.child(root) : pugi::xml_node{};
}

/// Takes a number from the beginning of the text, and the text that must precede it.
std::optional<uint64_t> take_number(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix))
    return std::nullopt;
  text.remove_prefix(prefix.size());
  auto number = uint64_t{0};
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc{})
    return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end.ptr - text.data()));
  return number;
}

} // namespace

s3_fault parse_s3_fault(std::string_view body) {
  auto document = pugi::xml_document{};
  const auto root = load(document, body, "Error");
  return {root.child_value("Code"), root.child_value("Message")};
}

std::optional<std::string> parse_upload_id(std::string_view body) {
  auto document = pugi::xml_document{};
  const auto root = load(document, body, "InitiateMultipartUploadResult");
  auto id = std::string{root.child_value("UploadId")};
  return id.empty() ? std::nullopt : std::optional{std::move(id)};
}

std::optional<s3_listing> parse_s3_listing(std::string_view body) {
  auto document = pugi::xml_document{};
  const auto root = load(document, body, "ListBucketResult");
  if (!root)
    return std::nullopt;
  auto listing = s3_listing{};
  for (const auto& each : root.children("Contents"))
    listing.objects.push_back({each.child_value("Key"), each.child("Size").text().as_ullong()});
  if (root.child("IsTruncated").text().as_bool())
    listing.next = root.child_value("NextContinuationToken");
  return listing;
}

bool is_completed_upload(std::string_view body) {
  auto document = pugi::xml_document{};
  // S3 answers with a CompleteMultipartUploadResult, other servers with an …Response.
  return document.load_buffer(body.data(), body.size())
         && std::string_view{document.document_element().name()}.starts_with(
           "CompleteMultipartUpload");
}

std::string completion_of(std::span<const std::string> etags) {
  auto document = pugi::xml_document{};
  auto root = document.append_child("CompleteMultipartUpload");
  for (auto i = size_t{0}; i < etags.size(); ++i) {
    auto part = root.append_child("Part");
    part.append_child("PartNumber").text().set(static_cast<unsigned long long>(i + 1));
    part.append_child("ETag").text().set(etags[i].c_str());
  }
  auto text = std::ostringstream{};
  document.save(text, "", pugi::format_raw | pugi::format_no_declaration);
  return text.str();
}

std::optional<s3_content_range> parse_content_range(std::string_view value) {
  const auto first = take_number(value, "bytes ");
  const auto last = take_number(value, "-");
  const auto total = take_number(value, "/");
  if (!first || !last || !total || !value.empty() || *first > *last || *last >= *total)
    return std::nullopt;
  return s3_content_range{*first, *last, *total};
}

} // namespace hicache
