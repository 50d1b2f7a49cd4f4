// What launchers leave in the environment: host lists and numbers, from which ranks learn who they
// are.
#include "tests/fuzz/fuzz.h"
#include "weft/comm/environment.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using namespace weft::comm;

namespace {

constexpr const char* kNames[] = {"RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "GROUP_RANK",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "SLURM_PROCID",
                                  "SLURM_NTASKS",
                                  "SLURM_LOCALID",
                                  "SLURM_NODEID",
                                  "SLURM_NNODES",
                                  "SLURM_NODELIST",
                                  "SLURM_JOB_ID",
                                  "SLURM_STEP_NODELIST",
                                  "PMI_RANK",
                                  "PMI_SIZE",
                                  "OMPI_COMM_WORLD_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  "TORCHELASTIC_RUN_ID",
                                  "PET_NNODES",
                                  "PET_NODE_RANK",
                                  "HOROVOD_RANK",
                                  "HOROVOD_SIZE",
                                  "JOB_COMPLETION_INDEX"};

// One variable for each piece up to a line's end: the piece's first byte says which.
Environment environment_of(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    const std::size_t which = static_cast<unsigned char>(line[0]) % std::size(kNames);
    variables[kNames[which]] = std::string(line.substr(1));
  }
  return Environment(variables);
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accepts({Errc::kBadConfig},
          [&] { check(!expand_hosts(std::string(text)).empty(), "a host list names a host"); });
  accepts({Errc::kBadConfig}, [&] {
    const Identity identity = discover(environment_of(text));
    check(identity.world >= 1 && identity.rank >= 0 && identity.rank < identity.world,
          "a rank is one of its world");
    check(identity.local_rank >= 0 && identity.local_rank < identity.local_world,
          "a local rank is one of its host's");
    identity.banner();
  });
}
