#include "bench/suite/internal/peers.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "weft/base/log.h"
#include "weft/launch/process.h"

namespace weft::cli::bench_internal {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kSetup = "; ./dev bench setup adds it";

bool in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return ::access(program.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const auto end = rest.find(':');
    if (::access((rest.substr(0, end) + "/" + program).c_str(), X_OK) == 0) return true;
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  return false;
}

// Starts the Python, because a wheel may be there and miss libraries that it loads: a CUDA build
// without its CUDA packages.
bool imports(const std::string& python, const std::string& module) {
  if (!in_path(python)) return false;
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  launch::ProcessOptions options;
  options.argv = {python, "-c", "import " + module};
  options.stdout_fd = options.stderr_fd = nowhere.get();
  launch::Process process(options);
  const auto ended = process.wait(Deadline::in(60s));
  return ended && ended->ok();
}

std::vector<std::string> pythons(const std::string& module) {
  std::vector<std::string> found;
  if (const char* named = std::getenv("WEFT_DEEPSPEED_PYTHON");
      named != nullptr && module == "deepspeed")
    found.emplace_back(named);
  for (const char* own :
       {".venv/bin/python", ".venv-bench/bin/python", ".venv-python/bin/python"}) {
    if (const auto path = find_above(own)) found.push_back(*path);
  }
  found.emplace_back("python3");
  return found;
}

// Asks once for each module: an import takes seconds.
std::optional<std::string> python_with(const std::string& module) {
  static std::map<std::string, std::optional<std::string>> known;
  const auto [entry, fresh] = known.try_emplace(module);
  if (fresh) entry->second = python_that_imports(module, pythons(module));
  return entry->second;
}

// The command of a script of bench/peers, with a Python that has `module`. If something is missing,
// adds it to `peers` and returns an empty command.
std::vector<std::string> script(Peers& peers, const std::string& impl, const std::string& name,
                                const std::string& module = "torch") {
  const auto path = find_above("bench/peers/" + name);
  if (!path) {
    peers.missing.push_back(impl + ": bench/peers/" + name +
                            " is not above the program; bin/weft bench in a clone has it");
    return {};
  }
  const auto python = python_with(module);
  if (!python) peers.missing.push_back(impl + ": no Python here imports " + module + kSetup);
  return python ? std::vector<std::string>{*python, *path} : std::vector<std::string>{};
}

void add_built(Peers& peers, PeerProgram program, const std::string& name) {
  const auto path = find_above("bench/peers/" + name);
  if (!path) {
    peers.missing.push_back(program.impl + ": " + name + " is not built" + kSetup);
  } else if (!program.argv.empty() && !in_path(program.argv[0])) {
    peers.missing.push_back(program.impl + ": there is no " + program.argv[0] + " in PATH" +
                            kSetup);
  } else {
    program.argv.push_back(*path);
    peers.found.push_back(std::move(program));
  }
}

// An MPI, and the same MPI with persistent collectives.
void add_mpi(Peers& peers, const PeerProgram& program, const std::string& name) {
  add_built(peers, program, name);
  if (peers.found.empty() || peers.found.back().impl != program.impl) return;
  PeerProgram prepared = peers.found.back();
  prepared.impl += "-prepared";
  prepared.argv.emplace_back("--prepared");
  peers.found.push_back(std::move(prepared));
}

// Open MPI 5 is not in Debian 12. `./dev bench setup` installs it into .venv-bench.
void add_openmpi5(Peers& peers, const std::string& ranks) {
  const auto start = find_above(".venv-bench/bin/mpirun");
  if (!start) {
    peers.missing.push_back(std::string("openmpi5: there is no .venv-bench") + kSetup);
    return;
  }
  add_mpi(peers,
          {"openmpi5",
           {*start, "-n", ranks, "--oversubscribe"},
           {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
            "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"}},
          "weft_peer_mpi5");
}

}  // namespace

std::optional<std::string> python_that_imports(const std::string& module,
                                               const std::vector<std::string>& pythons) {
  for (const auto& python : pythons) {
    if (imports(python, module)) return python;
  }
  return std::nullopt;
}

void warn_of_missing(const Peers& peers) {
  static std::set<std::string> said;
  for (const auto& why : peers.missing) {
    if (said.insert(why).second) log_warn("left out: " + why);
  }
}

std::optional<std::string> find_above(const std::string& name) {
  std::error_code ignored;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
       folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / name, ignored)) return (folder / name).string();
  }
  return std::nullopt;
}

Peers collective_peers(int ranks, bool tcp) {
  Peers peers;
  // Set by environment variables, because other MPIs do not know Open MPI's flags.
  std::vector<std::string> mpi = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                  "OMPI_MCA_rmaps_base_oversubscribe=1"};
  if (tcp) mpi.insert(mpi.end(), {"OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,tcp"});
  const std::string number = std::to_string(ranks);
  const char* const start = in_path("mpirun.openmpi") ? "mpirun.openmpi" : "mpirun";
  const PeerProgram open_mpi{tcp ? "openmpi-tcp" : "openmpi", {start, "-n", number}, mpi};
  if (tcp) {
    add_built(peers, open_mpi, "weft_peer_mpi");
  } else {
    add_mpi(peers, open_mpi, "weft_peer_mpi");
    add_openmpi5(peers, number);
    // Open MPI binds ranks to cores by default; MPICH does not.
    std::vector<std::string> mpich = {"mpirun.mpich", "-n", number};
    if (static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency())
      mpich.insert(mpich.end(), {"-bind-to", "core"});
    add_mpi(peers, {"mpich", mpich, {}}, "weft_peer_mpich");
  }
  auto gloo = script(peers, "gloo", "torch_collectives.py");
  if (!gloo.empty()) {
    gloo.insert(gloo.end(), {"--ranks", std::to_string(ranks)});
    peers.found.push_back({"gloo", gloo, {}});
  }
  if (ranks == 2) add_built(peers, {"ideal", {}, {}}, "weft_peer_ideal");
  return peers;
}

Peers training_peers(const std::string& impl, int ranks, bool deepspeed) {
  Peers peers;
  auto argv = script(peers, impl, "torch_training.py", deepspeed ? "deepspeed" : "torch");
  if (argv.empty()) return peers;
  argv.insert(argv.end(), {"--ranks", std::to_string(ranks)});
  peers.found.push_back({impl, argv, {"PYTHONWARNINGS=ignore::FutureWarning"}});
  return peers;
}

Peers first_step_peers(int ranks) {
  Peers peers;
  const auto argv = script(peers, "pytorch-ddp", "torch_first_step.py");
  if (argv.empty()) return peers;
  std::vector<std::string> torchrun = {argv[0],
                                       "-m",
                                       "torch.distributed.run",
                                       "--standalone",
                                       "--nproc-per-node",
                                       std::to_string(ranks)};
  torchrun.push_back(argv[1]);
  // torchrun would set OMP_NUM_THREADS=1 too, with a warning.
  peers.found.push_back({"pytorch-ddp", torchrun, {"OMP_NUM_THREADS=1"}});
  return peers;
}

}  // namespace weft::cli::bench_internal
