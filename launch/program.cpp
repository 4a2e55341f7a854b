#include "launch/program.hpp"

#include <caf/config.hpp>
#include <capnp/common.h>
#include <mpi.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <ucp/api/ucp.h>

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#ifndef HICACHE_VERSION
#error "the build defines HICACHE_VERSION"
#endif

namespace hicache {

int run_program(CLI::App& app, int argc, char** argv, const std::function<result<int>()>& body,
                const std::function<int(const error&)>& on_bad_flags) {
  app.set_version_flag("--version", version_text());
  const auto refuse = [&](std::string why) {
    const auto bad = error{ec::invalid_argument, std::move(why)};
    if (on_bad_flags)
      return on_bad_flags(bad);
    complain(app, bad);
    return exit_usage;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& ex) { // --help, --version
    if (speaks_for_instance())
      app.exit(ex);
    return exit_ok;
  } catch (const CLI::ConfigError& ex) {
    return refuse("--config: " + std::string{ex.what()}
                  + "; expected keys named like the flags, as in page-size = 64");
  } catch (const CLI::ParseError& ex) {
    return refuse(std::string{ex.what()} + "; see " + app.get_name() + " --help");
  }
  try {
    const auto code = body();
    if (code)
      return *code;
    complain(app, code.error());
    return exit_usage;
  } catch (const std::exception& ex) {
    complain(app, {ec::none, ex.what()});
    return exit_failed;
  }
}

void complain(const CLI::App& app, const error& what) {
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(),
               what.detail.empty() ? sentence(what.code) : what.detail.c_str());
}

std::string version_text() {
  auto mpi = std::string(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  auto length = 0;
  MPI_Get_library_version(mpi.data(), &length);
  mpi.resize(static_cast<size_t>(length));
  if (const auto comma = mpi.find(','); comma != std::string::npos)
    mpi.resize(comma);
  return "hicache " HICACHE_VERSION "\nCAF " + std::to_string(CAF_MAJOR_VERSION) + "."
         + std::to_string(CAF_MINOR_VERSION) + "." + std::to_string(CAF_PATCH_VERSION) + "\nUCX "
         + ucp_get_version_string() + "\nMPI " + mpi + "\nCap'n Proto "
         + std::to_string(CAPNP_VERSION_MAJOR) + "." + std::to_string(CAPNP_VERSION_MINOR) + "."
         + std::to_string(CAPNP_VERSION_MICRO) + "\nCUDA " HICACHE_CUDA_VERSION;
}

bool started_by_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr
         || std::getenv("PMI_RANK") != nullptr;
}

bool speaks_for_instance() {
  for (const auto* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const auto* rank = std::getenv(name))
      return std::string{rank} == "0";
  return true;
}

void raise_descriptor_limit() {
  auto bounds = rlimit{};
  if (getrlimit(RLIMIT_NOFILE, &bounds) != 0)
    return;
  bounds.rlim_cur = bounds.rlim_max;
  setrlimit(RLIMIT_NOFILE, &bounds);
}

void start_logging(const std::string& level, uint32_t rank, uint32_t ranks) {
  auto logger = spdlog::get("hicache");
  if (!logger)
    logger = spdlog::stderr_color_mt("hicache");
  spdlog::set_default_logger(logger);
  spdlog::set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
  spdlog::set_pattern(ranks > 1 ? "%H:%M:%S.%e rank " + std::to_string(rank) + " %^%l%$ %v"
                                : "%H:%M:%S.%e %^%l%$ %v");
}

} // namespace hicache
