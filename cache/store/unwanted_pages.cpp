#include "cache/store/unwanted_pages.hpp"

namespace hicache {

void unwanted_pages::add(uint64_t fingerprint, const page_key& key) {
  if (!has_all_)
    pages_.emplace(fingerprint, key);
  if (pages_.size() > most_) {
    clear();
    has_all_ = true;
  }
}

void unwanted_pages::add(uint64_t fingerprint) {
  if (!has_all_)
    namespaces_.insert(fingerprint);
}

bool unwanted_pages::contains(uint64_t fingerprint, const page_key& key) const {
  return has_all_ || namespaces_.contains(fingerprint) || pages_.contains({fingerprint, key});
}

void unwanted_pages::clear() {
  has_all_ = false;
  pages_.clear();
  namespaces_.clear();
}

} // namespace hicache
