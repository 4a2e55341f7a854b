#include <caf/scoped_actor.hpp>

#include <hicache/hicache.hpp>

#include <cstdio>

int main() {
  auto config = hicache::rank_config{};
  if (auto checked = config.finish(1); !checked)
    return 1;
  auto runtime
    = hicache::rank_runtime::start(config, std::move(hicache::make_local_reducers(1).front()));
  if (!runtime)
    return 1;
  const auto tokens = std::make_shared<const std::vector<hicache::token_id>>(200, 1);
  auto answered = size_t{0};
  caf::scoped_actor {
    (*runtime)->system()
    } -> request((*runtime)->tree(), caf::infinite, hicache::atom::apply_v,
                 hicache::tree_operations{
                   {hicache::match_request{1, {}, tokens, 199}, hicache::allocate_request{1, 200},
                    hicache::insert_request{1, tokens}, hicache::release_request{1},
                    hicache::match_request{2, {}, tokens, 199}, hicache::release_request{2}}})
      .receive(
        [&](const hicache::tree_answers& answers) {
          const auto& again = answers.list[4];
          answered = again ? std::get<hicache::match_result>(*again).l1_tokens : 0;
        },
        [](const caf::error&) {});
  std::printf("%zu tokens cached\n", answered);
  return answered == 192 ? 0 : 1;
}
