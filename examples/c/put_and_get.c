/*
 * Puts a page into the memory of this host's node, or gets it from there. One process can get what
 * another one put, even after that one has ended.
 *
 *   hicache-node --memory 64MiB --socket /tmp/node &
 *   hicache-put-and-get /tmp/node put greeting "hello, world"
 *   hicache-put-and-get /tmp/node get greeting
 */
#include <hicache.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Bytes of a page. A page must be read with the length that it was stored with. */
enum { page_bytes = 4096 };

/* Time limit of each call. */
enum { timeout_ms = 5000 };

static int complain(const char* what, const hc_error* error) {
  fprintf(stderr, "%s: %s: %s\n", what, hc_code_name(error->code), error->text);
  return 1;
}

static void log_line(void* user, int32_t level, const char* text) {
  (void)user;
  fprintf(stderr, "[%" PRId32 "] %s\n", level, text);
}

/* Waits with poll() on the client's descriptor, as an event loop does besides its own. */
static int take_completion(hc_client* client, hc_completion* done) {
  struct pollfd event = {.fd = hc_event_fd(client), .events = POLLIN};
  size_t count = 0;
  if (poll(&event, 1, 2 * timeout_ms) != 1)
    return 0;
  return hc_poll(client, done, 1, 0, &count) == HC_OK && count == 1;
}

static int use(hc_client* client, const char* verb, const char* name, const char* text) {
  /* Static: hicache may use these until the call has completed or the client is closed. */
  static char bytes[page_bytes];
  static int32_t code;
  hc_part part = {.data = bytes, .bytes = sizeof bytes};
  hc_page page = {.parts = &part, .part_count = 1};
  hc_call call = {.size = sizeof call, .timeout_ms = timeout_ms, .codes = &code};
  hc_ticket ticket = 0;
  hc_error error = {0};
  hc_completion done;
  size_t length = strlen(name);
  hc_names(client, name, &length, 1, &page.key);
  if (text != NULL)
    strncpy(bytes, text, sizeof bytes - 1);
  if ((text != NULL ? hc_put : hc_get)(client, &page, 1, &call, &ticket, &error) != HC_OK)
    return complain(verb, &error);
  if (!take_completion(client, &done))
    return fprintf(stderr, "%s: nothing came of it\n", verb), 1;
  if (done.error.code != HC_OK)
    return complain(verb, &done.error);
  if (code == HC_NOT_FOUND)
    return fprintf(stderr, "%s is not there\n", name), 2;
  puts(text != NULL ? "stored" : bytes);
  return 0;
}

int main(int argc, char** argv) {
  const int is_put = argc == 5 && strcmp(argv[2], "put") == 0;
  const hc_options options = {.size = sizeof options, .log = log_line};
  char config[512];
  hc_client* client = NULL;
  hc_error error = {0};
  int outcome = 1;
  if (!is_put && !(argc == 4 && strcmp(argv[2], "get") == 0)) {
    fprintf(stderr, "usage: %s SOCKET put NAME TEXT | SOCKET get NAME\n", argv[0]);
    return 1;
  }
  snprintf(config, sizeof config, "{\"socket\": \"%s\", \"namespace\": \"example\"}", argv[1]);
  if (hc_open(config, &options, &client, &error) != HC_OK)
    return complain("open", &error);
  if (hc_connect(client, timeout_ms, &error) != HC_OK)
    complain("connect", &error);
  else
    outcome = use(client, argv[2], argv[3], is_put ? argv[4] : NULL);
  hc_close(client);
  return outcome;
}
