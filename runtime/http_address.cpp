#include "runtime/http_address.hpp"

#include "base/socket_address.hpp"
#include "base/system_message.hpp"
#include "base/unique_fd.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

namespace hicache {

result<rpc::endpoint> parse_http_address(const std::string& text) {
  const auto where = rpc::endpoint{text, 0};
  if (!where.is_path())
    return rpc::parse_endpoint(text);
  const auto path = where.path();
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path))
    return fail(ec::invalid_argument,
                "'" + text + "' is no Unix socket; expected unix:PATH with 1 to "
                  + std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes of path");
  return where;
}

result<int> listen_on_unix_socket(const std::string& path) {
  const auto address = path_address(path);
  const auto refuse = [&](const std::string& why) {
    return fail(ec::invalid_argument, "cannot listen on unix:" + path + ": " + why);
  };
  struct stat found = {};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode))
      return refuse("the path names something else than a socket");
    if (unique_fd{connect_to_unix_socket(path)})
      return refuse("another process listens on it");
    ::unlink(path.c_str());
  }
  auto socket = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  // Connections are possible only after listen(), so the mode is set in time.
  if (!socket || ::bind(socket.get(), address.get(), address.length) != 0
      || ::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(socket.get(), SOMAXCONN) != 0)
    return refuse(system_message(errno));
  return socket.release();
}

int connect_to_unix_socket(const std::string& path) {
  const auto address = path_address(path);
  auto socket = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (socket && ::connect(socket.get(), address.get(), address.length) != 0)
    return -1;
  return socket.release();
}

} // namespace hicache
