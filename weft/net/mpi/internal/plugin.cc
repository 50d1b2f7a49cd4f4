#include "weft/net/mpi/internal/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"
#include "weft/kernels/reduce.h"
#include "weft/net/mpi/mpi.h"

namespace weft::net::mpi {

std::optional<std::string> started_by(const Variables& variables) {
  const auto has = [&](const char* name) {
    const char* value = variables(name);
    return value != nullptr && *value != '\0';
  };
  if (has("WEFT_MPI")) {
    const std::string asked = variables("WEFT_MPI");
    if (asked != "openmpi" && asked != "mpich")
      throw Error(Errc::kBadConfig, "WEFT_MPI=" + asked + ": the choices are openmpi and mpich");
    return asked;
  }
  if (has("OMPI_COMM_WORLD_RANK") || has("PMIX_RANK")) return "openmpi";
  if (has("PMI_RANK")) return "mpich";
  return std::nullopt;
}

namespace internal {
namespace {

constexpr const char* kImplementations[] = {"openmpi", "mpich"};

const char* title(const std::string& implementation) {
  return implementation == "openmpi" ? "Open MPI" : "MPICH";
}

const char* package(const std::string& implementation) {
  return implementation == "openmpi" ? "libopenmpi-dev" : "libmpich-dev";
}

// The file that contains this code.
std::string self() {
  Dl_info info{};
  std::error_code ignored;
  if (dladdr(reinterpret_cast<const void*>(&load_plugin), &info) == 0 || info.dli_fname == nullptr)
    return "";
  const auto path = std::filesystem::canonical(info.dli_fname, ignored);
  return ignored ? std::filesystem::canonical("/proc/self/exe", ignored).string() : path.string();
}

struct Opened {
  void* library = nullptr;
  std::string where, why;
};

// A file that exists but cannot be loaded ends the search, since its error is the reason.
Opened open(const std::string& implementation) {
  for (const auto& path : plugin_paths(implementation, self(), variable("WEFT_PLUGIN_DIR"))) {
    const bool bare = path.find('/') == std::string::npos;
    if (!bare && !std::filesystem::exists(path)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return {library, path, ""};
    if (!bare) return {nullptr, path, dlerror()};
  }
  return {};
}

[[noreturn]] void not_usable(const std::string& why) {
  throw Error(Errc::kBadConfig, "transport mpi: " + why, {"mpi", -1, -1});
}

// `wanted` was not found; looks for the plug-in of the other MPI.
[[noreturn]] void missing(const std::string& wanted) {
  for (const std::string other : kImplementations) {
    if (other == wanted) continue;
    const Opened opened = open(other);
    if (opened.library == nullptr) continue;
    dlclose(opened.library);
    not_usable("this process was started by " + std::string(title(wanted)) +
               "'s mpirun, but weft has a plug-in for " + title(other) + " only (" + opened.where +
               "); start it with " + title(other) + "'s mpirun, or build weft where " +
               package(wanted) + " is installed");
  }
  not_usable(plugin_name(wanted) +
             " is not found in lib/weft beside the program; build weft where " + package(wanted) +
             " is installed, or set WEFT_PLUGIN_DIR to its folder");
}

void reduce_for_mpi(std::int32_t dtype, std::int32_t op, const void* in, void* inout,
                    std::int64_t count) {
  const void* operands[] = {in, inout};
  kernels::reduce(
      &inout, 1, operands, 2,
      {.dtype = static_cast<DType>(dtype), .op = static_cast<ReduceOp>(op), .count = count});
}

}  // namespace

std::string plugin_name(const std::string& implementation) {
  return "libweft_mpi_" + implementation + ".so";
}

std::vector<std::string> plugin_paths(const std::string& implementation, const std::string& self,
                                      const std::string& given) {
  const std::string name = plugin_name(implementation);
  if (!given.empty()) return {(std::filesystem::path(given) / name).string()};
  std::vector<std::string> paths;
  const auto own = std::filesystem::path(self).parent_path();
  if (!own.empty()) paths.push_back((own / name).string());
  for (auto folder = own; folder.has_relative_path(); folder = folder.parent_path()) {
    paths.push_back((folder / "lib/weft" / name).string());
  }
  paths.push_back(name);
  return paths;
}

const Table& load_plugin() {
  const auto wanted = started_by(variable_or_null);
  if (!wanted)
    not_usable(
        "this process was not started by an MPI; start it with mpirun (with srun: set WEFT_MPI to "
        "the MPI)");
  const Opened opened = open(*wanted);
  if (opened.library == nullptr && opened.why.empty()) missing(*wanted);
  if (opened.library == nullptr) not_usable("cannot load " + opened.where + ": " + opened.why);
  const auto entry = reinterpret_cast<Entry>(dlsym(opened.library, kEntry));
  const Table* table = entry != nullptr ? entry(&reduce_for_mpi) : nullptr;
  if (table == nullptr || table->abi != kAbi)
    not_usable(opened.where + " is of another version of weft; install both from one build");
  return *table;
}

}  // namespace internal

std::vector<std::pair<std::string, std::string>> plugins() {
  std::vector<std::pair<std::string, std::string>> found;
  const std::string given = variable("WEFT_PLUGIN_DIR");
  for (const char* implementation : internal::kImplementations) {
    for (const auto& path : internal::plugin_paths(implementation, internal::self(), given)) {
      if (path.find('/') == std::string::npos || !std::filesystem::exists(path)) continue;
      found.emplace_back(implementation, path);
      break;
    }
  }
  return found;
}

}  // namespace weft::net::mpi
