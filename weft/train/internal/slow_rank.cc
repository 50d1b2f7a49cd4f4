#include "weft/train/internal/slow_rank.h"

#include <cstdio>
#include <string>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {

double slowdown_of(int rank) {
  const char* const text = variable_or_null("WEFT_SLOW_RANK");
  if (text == nullptr) return 1;
  int slow = 0, used = 0;
  double factor = 0;
  const bool read = std::sscanf(text, "%d:%lf%n", &slow, &factor, &used) == 2 &&
                    text[used] == '\0' && slow >= 0 && factor >= 1 && factor <= 1000;
  if (!read) {
    throw Error(Errc::kBadConfig, "WEFT_SLOW_RANK=" + std::string(text) +
                                      ": expected RANK:FACTOR with a factor from 1 to 1000, such "
                                      "as 3:4");
  }
  return rank == slow ? factor : 1;
}

SlowRank::SlowRank(double factor)
    : factor_(factor), start_(std::chrono::steady_clock::now()), waited_ns_(observe::waited_ns()) {}

SlowRank::~SlowRank() {
  if (factor_ <= 1) return;
  const auto waited = std::chrono::nanoseconds(observe::waited_ns() - waited_ns_);
  const auto computed = std::chrono::steady_clock::now() - start_ - waited;
  std::this_thread::sleep_for((factor_ - 1) * computed);
}

}  // namespace weft::train::internal
