#include "backends/disk/hf3fs_library.hpp"

#include <dlfcn.h>

namespace hicache {

namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

} // namespace

result<hf3fs_library> load_hf3fs(const std::string& name) {
  // Never closed, because it has threads of its own.
  auto* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(ec::unsupported,
                "key 'library': 3FS's library cannot be loaded: " + std::string{::dlerror()});
  auto loaded = hf3fs_library{};
  const auto is_whole = find(library, "hf3fs_is_hf3fs", loaded.is_hf3fs)
                        && find(library, "hf3fs_extract_mount_point", loaded.extract_mount_point)
                        && find(library, "hf3fs_iovcreate", loaded.iovcreate)
                        && find(library, "hf3fs_iovdestroy", loaded.iovdestroy)
                        && find(library, "hf3fs_iorcreate4", loaded.iorcreate4)
                        && find(library, "hf3fs_iordestroy", loaded.iordestroy)
                        && find(library, "hf3fs_reg_fd", loaded.reg_fd)
                        && find(library, "hf3fs_dereg_fd", loaded.dereg_fd)
                        && find(library, "hf3fs_prep_io", loaded.prep_io)
                        && find(library, "hf3fs_submit_ios", loaded.submit_ios)
                        && find(library, "hf3fs_wait_for_ios", loaded.wait_for_ios);
  if (!is_whole)
    return fail(ec::unsupported, "key 'library': " + name
                                   + " lacks functions of hf3fs_usrbio.h; expected 3FS's "
                                     "libhf3fs_api_shared.so");
  return loaded;
}

} // namespace hicache
