// A rank of a user's own program, which catches no exception: it runs collectives of the world and
// of a subgroup until rank VICTIM fails as MODE says.
//
//     weft_faults_blame MODE VICTIM
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/comm/init.h"

namespace {

constexpr int kFirstSteps = 20;

// Returns only for modes that end main().
int fail(const std::string& mode) {
  if (mode == "return") return 3;
  if (mode == "leave") return 0;
  if (mode == "throw") throw std::runtime_error("cannot open data.bin");
  if (mode == "terminate") ::raise(SIGTERM);
  if (mode == "crash") ::raise(SIGSEGV);
  if (mode == "stop") ::raise(SIGSTOP);
  for (;;) ::pause();  // "hang"
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  const std::string mode = words[1];
  weft::comm::InitOptions options;
  options.timeout = std::chrono::seconds(2);
  const auto world = weft::comm::init(options);
  // The ranks of one parity, in descending order.
  std::vector<int> ranks;
  for (int rank = world.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == world.rank() % 2) ranks.push_back(rank);
  }
  const auto part = world.subgroup(ranks, "parity" + std::to_string(world.rank() % 2));
  auto sum = at::ones({100});
  for (int step = 0;; ++step) {
    if (step == kFirstSteps && world.rank() == std::atoi(words[2])) return fail(mode);
    part.all_reduce(sum);
    if (step < kFirstSteps && step % 7 == 0) world.all_reduce(sum);
    if (step > kFirstSteps + 2) world.all_reduce(sum);
  }
}
