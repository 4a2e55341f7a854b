#include <hicache.h>
#include <stdio.h>

int main(void) {
  hc_client* client = NULL;
  hc_error error;
  /* There is no node: that is a sentence, and no failure of hc_open. */
  if (hc_open("{\"socket\": \"/nobody/is/here\", \"namespace\": \"test\"}", NULL, &client, &error)
      != HC_OK)
    return 1;
  if (hc_connect(client, 1000, &error) != HC_PEER_UNREACHABLE)
    return 2;
  puts(error.text);
  return hc_close(client) == HC_OK && hc_abi_version() >= HC_ABI_VERSION ? 0 : 3;
}
