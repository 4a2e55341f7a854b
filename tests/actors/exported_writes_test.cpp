// Whoever writes to L2 takes the pages back first.

#include "actors/controller.hpp"
#include "actors/storage.hpp"
#include "messages/page_header.hpp"
#include "tests/actors/storage_fixture.hpp"

#include <array>

namespace hicache {
namespace {

using namespace hicache::test;

/// L2 pages that are exported; some watch who is when it is their turn.
class exported_l2 {
public:
  exported_l2() {
    exported->open([](const segment_slots&) {});
    for (auto page = page_index{0}; page < 4; ++page) {
      slots.push_back(*exported->begin(page, key_of(page)));
      EXPECT_TRUE(exported->finish(slots.back(), 7, 0));
    }
  }

  std::vector<page_index> still_exported() const {
    auto pages = std::vector<page_index>{};
    for (auto page = page_index{0}; page < 4; ++page)
      if (exported->is_exported(slots[page]))
        pages.push_back(page);
    return pages;
  }

  std::vector<std::byte> memory = std::vector<std::byte>(4 * slot_object_offset + 4 * 64);
  std::shared_ptr<exported_pages> exported = std::make_shared<exported_pages>(
    memory, exported_objects{0, 4 * slot_object_offset, 64, 4}, 1);
  std::vector<segment_slot> slots;
};

/// Notes which pages are exported when it is asked to copy.
class watching_engine final : public copy_engine {
public:
  watching_engine(const exported_l2& watched, std::vector<page_index>& seen)
    : watched_(watched), seen_(seen) {}

  void store(std::vector<write_command>, callback) override { seen_ = watched_.still_exported(); }

  void load(std::vector<load_command>, callback) override { seen_ = watched_.still_exported(); }

  void drain() override {}

private:
  const exported_l2& watched_;
  std::vector<page_index>& seen_;
};

/// The same when it is asked for pages.
class watching_backend final : public blocking_store {
public:
  watching_backend(const exported_l2& watched, std::vector<page_index>& seen)
    : watched_(watched), seen_(seen) {}

  std::string name() const override { return "watching"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
    return std::vector<bool>(keys.size());
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
    seen_ = watched_.still_exported();
    return std::vector<result<void>>(pages.size());
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
    seen_ = watched_.still_exported();
    return std::vector<result<void>>(pages.size());
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
    return std::vector<result<void>>(keys.size());
  }

  backend_health health() override { return {}; }

private:
  const exported_l2& watched_;
  std::vector<page_index>& seen_;
};

class ExportedWritesTest : public actor_test {
protected:
  ~ExportedWritesTest() override { stop_all(); }

  exported_l2 l2_;
  std::vector<page_index> seen_;
};

TEST_F(ExportedWritesTest, StoresFromL1TakePagesBackAndLoadsDoNot) {
  const auto sut = spawn(controller, std::unique_ptr<copy_engine>{new watching_engine{l2_, seen_}},
                         uint64_t{64}, l2_.exported);
  auto batch = copy_batch{};
  batch.loads.push_back({1, pages_of({0}), pages_of({1}), std::make_shared<layer_progress>(1)});
  tell(sut, atom::copy_v, batch);
  EXPECT_EQ(seen_, (std::vector<page_index>{0, 1, 2, 3}));
  batch.loads.clear();
  batch.writes.push_back({1, pages_of({0}), pages_of({1})});
  batch.writes.push_back({2, pages_of({1}), pages_of({3})});
  tell(sut, atom::copy_v, batch);
  EXPECT_EQ(seen_, (std::vector<page_index>{0, 2}));
}

TEST_F(ExportedWritesTest, ReadsFromL3TakePagesBackAndWritesDoNot) {
  auto memory = storage_rank{{}};
  const auto sut
    = spawn(storage, storage_options{objects_of(memory, {}, l2_.exported), &clock},
            std::make_unique<storage_queue>(std::make_unique<watching_backend>(l2_, seen_), 0));
  auto batch = storage_batch{names_of(1, 3), 1, 2, pages_of({3, 1, 2}), 1};
  ask_value<storage_outcome>(sut, atom::set_v, batch, plenty);
  EXPECT_EQ(seen_, (std::vector<page_index>{0, 1, 2, 3}));
  ask_value<storage_outcome>(sut, atom::get_v, batch, plenty);
  EXPECT_EQ(seen_, (std::vector<page_index>{0, 3})) << "pages 1 and 2 are written to";
}

} // namespace
} // namespace hicache
