#include "weft/cli/internal/ranks.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "weft/base/text/variables.h"

namespace weft::cli {

namespace {

constexpr const char* kThreads = "OMP_NUM_THREADS";

}  // namespace

std::optional<int> threads_by_environment() {
  const char* const text = variable_or_null(kThreads);
  int threads = 0;
  if (text == nullptr) return std::nullopt;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), threads);
  const bool is_number = error == std::errc() && threads > 0 && (*end == '\0' || *end == ',');
  return is_number ? std::optional(threads) : std::nullopt;
}

int processors() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

void forget_unusable_threads() {
  if (!threads_by_environment()) ::unsetenv(kThreads);
}

void share_cores(int ranks) {
  ::setenv(kThreads, std::to_string(std::max(1, processors() / ranks)).c_str(), 0);
}

}  // namespace weft::cli
