#include "weft/cli/internal/ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

namespace weft::cli {

int processors() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

void share_cores(int ranks) {
  ::setenv("OMP_NUM_THREADS", std::to_string(std::max(1, processors() / ranks)).c_str(), 0);
}

void use_threads() {
  if (const char* threads = std::getenv("OMP_NUM_THREADS"))
    at::set_num_threads(std::max(1, std::atoi(threads)));
}

}  // namespace weft::cli
