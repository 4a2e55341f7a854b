#include <hicache_tree.h>

int main(void) {
  return hc_cache_abi_version() >= HC_CACHE_ABI_VERSION ? 0 : 1;
}
