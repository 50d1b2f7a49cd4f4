// Measures an all-reduce of a Group with transport mpi, and MPI_Allreduce of the same library, in
// turn in one process. Prints one JSON line for each size: the median times per call of the slowest
// rank, and the difference.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "bench/mpi/plain.h"
#include "weft/comm/init.h"

namespace weft::bench {
namespace {

template <class Call>
double us_a_call(int calls, const Call& call) {
  plain_barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return slowest(
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
      calls);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// True if both sums of known tensors are correct.
bool verify(const Group& group, std::int64_t count) {
  at::Tensor ours = at::arange(count, at::kFloat).remainder(97) + group.rank(),
             theirs = ours.clone();
  const at::Tensor expected = at::arange(count, at::kFloat).remainder(97) * group.size() +
                              group.size() * (group.size() - 1) / 2.0;
  group.all_reduce(ours);
  plain_all_reduce(theirs.data_ptr<float>(), static_cast<int>(count));
  return at::equal(ours, expected) && at::equal(theirs, expected);
}

void measure(const Group& group, std::int64_t bytes) {
  const std::int64_t count = bytes / 4;
  const bool verified = verify(group, count);
  at::Tensor tensor = at::zeros({count});
  const int calls = static_cast<int>(std::clamp<std::int64_t>((8 << 20) / bytes, 2, 500)),
            rounds = bytes > (1 << 22) ? 15 : 41;
  std::vector<double> ours, theirs;
  for (int round = -3; round < rounds; ++round) {
    const double plain = us_a_call(
        calls, [&] { plain_all_reduce(tensor.data_ptr<float>(), static_cast<int>(count)); });
    const double weft = us_a_call(calls, [&] { group.all_reduce(tensor); });
    if (round < 0) continue;  // warm-up
    theirs.push_back(plain);
    ours.push_back(weft);
  }
  if (group.rank() != 0) return;
  std::printf(
      "{\"bench\": \"mpi_overhead\", \"params\": {\"bytes\": %ld, \"ranks\": %d}, \"weft\": %.2f, "
      "\"plain\": %.2f, "
      "\"value\": %.2f, \"unit\": \"us added a call\", \"ratio\": %.3f, \"runs\": %d, "
      "\"verified\": %s}\n",
      static_cast<long>(bytes), group.size(), median(ours), median(theirs),
      median(ours) - median(theirs), median(ours) / median(theirs), rounds,
      verified ? "true" : "false");
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft::bench

int main() {
  weft::bench::start_mpi();
  const weft::Group group = weft::init({.transport = weft::comm::Transport::kMpi});
  for (const std::int64_t bytes : {1'024, 16'384, 262'144, 1'048'576, 4'194'304, 26'214'400})
    weft::bench::measure(group, bytes);
}
