/*
 * The smallest engine in C on libhicache_tree.so: serves one prompt twice and finds it cached the
 * second time, with L1 on the host.
 *
 *   hicache-tree-engine '{"device": "host"}'
 *
 * On two ranks, as two processes that meet at a socket:
 *
 *   hicache-tree-engine '{"device": "host", "rendezvous": "unix:/tmp/meet", "ranks": 2, "rank": 0}'
 * & hicache-tree-engine '{"device": "host", "rendezvous": "unix:/tmp/meet", "ranks": 2, "rank": 1}'
 */
#include <hicache_tree.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { prompt_length = 300, timeout_ms = 60000 };

static uint32_t prompt[prompt_length];

static int complain(const char* what, const hc_error* error) {
  fprintf(stderr, "%s: %s\n", what, error->text);
  return 0;
}

static void log_line(void* user, int32_t level, const char* text) {
  (void)user;
  if (level >= HC_WARNING)
    fprintf(stderr, "%s\n", text);
}

/* Sends the operations of one turn. @returns the answers if all of them succeeded, else NULL */
static hc_answers* apply(hc_cache* cache, const hc_op* ops, size_t count) {
  hc_error error = {0};
  hc_answers* answers = NULL;
  const hc_answer* items = NULL;
  int is_well = hc_cache_apply(cache, ops, count, timeout_ms, &answers, &error) == HC_OK;
  if (!is_well)
    complain("apply", &error);
  items = is_well ? hc_answers_items(answers, &count) : NULL;
  for (size_t i = 0; is_well && i < count; ++i)
    if (items[i].code != HC_OK) {
      fprintf(stderr, "operation %zu: %s\n", i, items[i].text);
      is_well = 0;
    }
  if (is_well)
    return answers;
  if (answers != NULL)
    hc_answers_free(answers);
  return NULL;
}

/* Steps until the request is ready or, for request 0, nothing is in flight. A busy engine steps
 * once a turn. */
static int step_until(hc_cache* cache, uint64_t request) {
  hc_facts facts = {.size = sizeof facts};
  hc_error error = {0};
  do {
    if (hc_cache_step(cache, 50, &facts, &error) != HC_OK)
      return complain("step", &error);
    for (size_t i = 0; i < facts.ready_count; ++i)
      if (facts.ready[i].request == request)
        return 1;
  } while (request != 0 || facts.in_flight);
  return 1;
}

/* "Computes" the uncached pages: fills their rows of K and V in each layer. */
static int compute(hc_cache* cache, const hc_cache_info* info, const hc_answer* loaded,
                   const hc_answer* allocated) {
  for (uint32_t layer = 0; layer < info->layers; ++layer) {
    if (loaded->progress != NULL && hc_progress_wait(loaded->progress, layer) != HC_OK)
      return fprintf(stderr, "loading from L2 failed\n"), 0;
    for (uint32_t part = 0; part < info->parts; ++part) {
      hc_layer where;
      hc_cache_layer(cache, part, layer, &where);
      for (size_t i = loaded->device_tokens / info->page_size; i < allocated->page_count; ++i)
        for (uint32_t token = 0; token < info->page_size; ++token)
          memset((void*)(uintptr_t)(where.address + allocated->pages[i] * where.page_stride
                                    + token * where.token_stride),
                 7, info->row_bytes[part]);
    }
  }
  return 1;
}

/* Serves the prompt. @returns the number of cached tokens; -1 on failure */
static int64_t serve(hc_cache* cache, const hc_cache_info* info, uint64_t request) {
  /* The last token is not looked up: its output is the first new token. */
  hc_op begin[] = {{.kind = HC_OP_MATCH,
                    .request = request,
                    .tokens = prompt,
                    .token_count = prompt_length,
                    .limit = prompt_length - 1},
                   {.kind = HC_OP_PREFETCH, .request = request},
                   {.kind = HC_OP_SCHEDULE, .request = request}};
  hc_op run[] = {{.kind = HC_OP_LOAD, .request = request, .limit = HC_NO_LIMIT},
                 {.kind = HC_OP_ALLOCATE, .request = request, .limit = prompt_length}};
  hc_op end[]
    = {{.kind = HC_OP_INSERT, .request = request, .tokens = prompt, .token_count = prompt_length},
       {.kind = HC_OP_RELEASE, .request = request}};
  int64_t cached = -1;
  hc_answers* answers = apply(cache, begin, 3);
  int is_ready = answers != NULL && hc_answers_items(answers, NULL)[2].is_ready;
  if (answers == NULL || hc_answers_free(answers) != HC_OK)
    return -1;
  if (!is_ready && !step_until(cache, request))
    return -1;
  if ((answers = apply(cache, run, 2)) == NULL)
    return -1;
  const hc_answer* items = hc_answers_items(answers, NULL);
  if (compute(cache, info, &items[0], &items[1]))
    cached = (int64_t)items[0].device_tokens;
  hc_answers_free(answers);
  if (cached < 0 || (answers = apply(cache, end, 2)) == NULL)
    return -1;
  hc_answers_free(answers);
  return step_until(cache, 0) ? cached : -1;
}

int main(int argc, char** argv) {
  hc_cache* cache = NULL;
  hc_error error = {0};
  hc_cache_options options = {.size = sizeof options, .log = log_line};
  hc_cache_info info = {.size = sizeof info};
  int64_t cached = 0;
  if (argc != 2)
    return fprintf(stderr, "usage: %s CONFIGURATION\n", argv[0]), 2;
  if (hc_cache_open(argv[1], &options, &cache, &error) != HC_OK)
    return complain("open", &error), 1;
  hc_cache_describe(cache, &info);
  for (uint32_t i = 0; i < prompt_length; ++i)
    prompt[i] = i;
  for (uint64_t round = 1; round <= 2 && cached >= 0; ++round) {
    cached = serve(cache, &info, round);
    printf("round %" PRIu64 ": %" PRId64 " of %d tokens were cached\n", round, cached,
           prompt_length);
  }
  hc_cache_close(cache);
  return cached > 0 ? 0 : 1;
}
