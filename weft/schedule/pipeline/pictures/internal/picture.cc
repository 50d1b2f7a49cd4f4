#include "weft/schedule/pipeline/pictures/internal/picture.h"

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"
#include "weft/schedule/pipeline/internal/needs.h"
#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/pictures/pictures.h"
#include "weft/schedule/pipeline/proof.h"

namespace weft::schedule::pipeline {
namespace internal {

std::string decimal(double value) { return formatted("%.4g", value); }

std::string percent(double share) { return formatted("%.1f %%", 100 * share); }

char letter_of(Work work) { return "FBIW"[static_cast<int>(work)]; }

std::string label_of(const Request& request, const Action& action) {
  return std::to_string(action.micro_batch) +
         (request.virtual_stages > 1 ? "." + std::to_string(action.stage) : "");
}

Picture picture_of(const Request& request) {
  constexpr int kMaxRanks = 64;
  constexpr double kMaxActions = 20'000;
  WEFT_REQUIRE(request.ranks <= kMaxRanks, "a pipeline of " + std::to_string(request.ranks) +
                                               " ranks is more than can be shown, " +
                                               std::to_string(kMaxRanks));
  const double actions = 3.0 * request.ranks * request.virtual_stages * request.micro_batches;
  WEFT_REQUIRE(actions <= kMaxActions, "a pipeline of " + std::to_string(request.micro_batches) +
                                           " micro-batches is more than can be shown; give fewer");
  Picture picture{.schedule = make(request)};
  picture.timing = play(picture.schedule, request.costs);
  const Costs& c = request.costs;
  const bool trains = request.algorithm != Algorithm::kForwardOnly;
  const double backward = splits_backward(request.algorithm)
                              ? std::min(c.backward_input, c.backward_weight)
                              : c.backward_input + c.backward_weight;
  picture.unit = trains ? std::min(c.forward, backward) : c.forward;
  WEFT_REQUIRE(picture.timing.makespan / picture.unit <= kMaxActions,
               "costs that are too far apart to be shown beside each other");
  for (int rank = 0; rank < request.ranks; ++rank)
    picture.held.push_back(count_held(picture.schedule, rank));
  return picture;
}

}  // namespace internal

std::string heading(const Request& request) {
  constexpr const char* kNames[] = {"GPipe",
                                    "1F1B",
                                    "Interleaved 1F1B",
                                    "Zero bubble H1",
                                    "Zero bubble H2",
                                    "Zero bubble V",
                                    "Automatic pipeline schedule",
                                    "Forward-only pipeline"};
  const bool looped = request.algorithm == Algorithm::kGPipe && request.virtual_stages > 1;
  return looped ? "GPipe, breadth-first" : kNames[static_cast<int>(request.algorithm)];
}

std::string summary(const Request& q) {
  const internal::Picture picture = internal::picture_of(q);
  const Timing& t = picture.timing;
  std::string text = counted(q.ranks, "rank");
  if (q.virtual_stages > 1) text += " of " + std::to_string(q.virtual_stages) + " stages";
  text += ", " + counted(q.micro_batches, "micro-batch", "micro-batches") + "; ";
  text += internal::percent(t.idle_share) + " idle of " + internal::decimal(t.makespan);
  text += ", bubble " + internal::decimal(t.bubble) + " of an iteration of " +
          internal::decimal(t.iteration);
  const int held = *std::max_element(picture.held.begin(), picture.held.end());
  if (q.algorithm != Algorithm::kForwardOnly) text += "; at most " + std::to_string(held) + " held";
  return text + "; " + std::to_string(traffic(picture.schedule).total) + " messages";
}

}  // namespace weft::schedule::pipeline
