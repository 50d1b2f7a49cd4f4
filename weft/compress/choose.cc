#include "weft/compress/choose.h"

#include <algorithm>

#include "weft/base/text/numbers.h"

namespace weft::compress {
namespace {

std::string ms(double seconds) { return formatted("%.1f ms", seconds * 1e3); }

// Backward hides as much of the transfer as before. Encoding uses the processor that also computes.
double predict(const StepCost& cost, const Candidate& candidate) {
  const double hidden = std::max(0.0, cost.transfer - cost.exposed);
  const double transfer = cost.transfer * candidate.bytes + candidate.more_rounds * cost.latency;
  return cost.step - cost.exposed + std::max(0.0, transfer - hidden) + candidate.code;
}

}  // namespace

Choice choose(const StepCost& cost, const std::vector<Candidate>& candidates) {
  Choice best{.spec = {}, .predicted = cost.step, .why = ""};
  const Candidate* chosen = nullptr;
  double nearest = 0;
  for (const Candidate& candidate : candidates) {
    const double predicted = predict(cost, candidate);
    nearest = nearest == 0 ? predicted : std::min(nearest, predicted);
    if (predicted >= (chosen == nullptr ? 0.95 : 0.90) * best.predicted) continue;
    best.spec = candidate.spec;
    best.predicted = predicted;
    chosen = &candidate;
  }
  const std::string measured = "a step takes " + ms(cost.step) + ", of which " + ms(cost.exposed) +
                               " wait for gradients (" + ms(cost.transfer) + " on the link)";
  if (chosen == nullptr) {
    best.why =
        measured + "; compressed it would take " + ms(nearest) + " at best, which is not worth it";
  } else {
    best.why = measured + "; with " + to_string(best.spec) + " it should take " +
               ms(best.predicted) + " (" + ms(chosen->code) + " for encoding, " +
               std::to_string(static_cast<int>(chosen->bytes * 100 + 0.5)) + " % of the bytes)";
  }
  return best;
}

std::vector<Spec> standard_candidates() {
  return {parse("bf16"), parse("int8:64"), parse("int4:64"), parse("powersgd:4")};
}

Choice confirm(const Choice& tried, double seconds_without, double seconds_with) {
  Choice choice = tried;
  const std::string times =
      "tried: " + ms(seconds_with) + " a step instead of " + ms(seconds_without);
  if (seconds_with < seconds_without) {
    choice.why = times;
    return choice;
  }
  choice.spec = {};
  choice.why = times + " with " + to_string(tried.spec) + ", so it is not used";
  return choice;
}

}  // namespace weft::compress
