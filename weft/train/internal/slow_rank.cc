#include "weft/train/internal/slow_rank.h"

#include <string>
#include <string_view>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/variables.h"
#include "weft/observe/position/position.h"

namespace weft::train::internal {

double slowdown_of(int rank) {
  const char* const text = variable_or_null("WEFT_SLOW_RANK");
  if (text == nullptr) return 1;
  const std::string_view all = text;
  const auto colon = all.find(':');
  const auto slow = parse_count(all.substr(0, colon));
  const auto factor =
      parse_number<double>(colon == std::string_view::npos ? "" : all.substr(colon + 1));
  if (!slow || !factor || !(*factor >= 1 && *factor <= 1000)) {
    throw Error(Errc::kBadConfig, "WEFT_SLOW_RANK=" + std::string(text) +
                                      ": expected RANK:FACTOR with a factor from 1 to 1000, such "
                                      "as 3:4");
  }
  return rank == *slow ? *factor : 1;
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
