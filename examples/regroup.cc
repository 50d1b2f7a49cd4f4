// Training that outlives a rank: three processes train, one is killed, the others form the group
// again and go on from what rank 0 holds.
//
// The store must outlive the ranks: here it is a file, in a job it is the launcher's (weft::init()
// finds it, and its group regroups too).
#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "weft/weft.h"

namespace {

constexpr int kRanks = 3, kSteps = 10;

int train(int rank, const char* path) {
  const auto store = c10::make_intrusive<c10d::FileStore>(path, kRanks);
  auto group = weft::comm::form_group(store, rank, kRanks);
  at::Tensor state = at::zeros({5});  // four weights, and the steps that are in them
  while (state[4].item<float>() < kSteps) {
    if (rank == 1 && state[4].item<float>() == 5) std::raise(SIGKILL);
    at::Tensor gradient = at::ones({5});
    try {
      group.all_reduce(gradient, weft::ReduceOp::kAvg);
      state += gradient;
    } catch (const weft::Error& error) {
      std::printf("rank %d: %s\n", rank, error.what());
      group = group.regroup();
      // One may have done the last step and the other not: rank 0, which is always a survivor, says
      // what counts.
      group.broadcast(state, 0);
      std::printf("rank %d is rank %d of %d now and goes on at step %d\n", rank, group.rank(),
                  group.size(), state[4].item<int>());
    }
  }
  return at::equal(state, at::full({5}, static_cast<float>(kSteps))) ? 0 : 1;
}

}  // namespace

int main() {
  char path[] = "/tmp/weft-example-XXXXXX";
  close(mkstemp(path));
  for (int rank = 0; rank < kRanks; ++rank) {
    if (fork() == 0) {
      const int code = train(rank, path);
      std::fflush(stdout);
      _exit(code);
    }
  }
  int good = 0, status = 0;
  while (wait(&status) > 0) good += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
  unlink(path);
  return good == kRanks - 1 ? 0 : 1;
}
