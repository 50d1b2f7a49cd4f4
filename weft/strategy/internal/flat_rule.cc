#include "weft/strategy/internal/flat_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "weft/base/error.h"
#include "weft/comm/texts.h"

namespace weft::strategy::internal {
namespace {

void check_part(const Part& part) {
  WEFT_REQUIRE(!part.weights.empty(), "a strategy needs weights: the part of this rank has none");
  const at::ScalarType type = part.weights.front().scalar_type();
  WEFT_REQUIRE(
      type == at::kFloat || type == at::kDouble,
      std::string("a strategy's weights are float32 or float64, not ") + at::toString(type));
  // The same number of elements in each worker, so that no exchange mixes different tensors.
  std::int64_t count = 0;
  for (const at::Tensor& tensor : part.weights) {
    WEFT_REQUIRE(tensor.scalar_type() == type, "a strategy's weights have one element type");
    count += tensor.numel();
  }
  const auto tensors = static_cast<std::int64_t>(part.weights.size());
  at::Tensor most = at::tensor({count, tensors, -count, -tensors}, at::kLong);
  part.workers.all_reduce(most, ReduceOp::kMax);
  WEFT_REQUIRE(most[0].item<std::int64_t>() == -most[2].item<std::int64_t>() &&
                   most[1].item<std::int64_t>() == -most[3].item<std::int64_t>(),
               "the workers of a strategy have different weights: this rank has " +
                   std::to_string(tensors) + " tensors of " + std::to_string(count) +
                   " elements; build the same model in each worker");
}

void take_first(const Group& workers, const Flat& of) {
  if (of.count() == 0 || workers.size() == 1) return;
  at::Tensor flat = of.read();
  workers.broadcast(flat, 0);
  of.write(flat);
}

}  // namespace

FlatRule::FlatRule(const Strategy& strategy, Part part)
    : part_(std::move(part)),
      weights_(part_.weights),
      buffers_(part_.buffers),
      pace_(strategy, part_.world) {
  const at::NoGradGuard no_grad;
  check_part(part_);
}

void FlatRule::restart() {
  const at::NoGradGuard no_grad;
  take_first(part_.workers, weights_);
  take_first(part_.workers, buffers_);
  note_weights();
  start();
}

void FlatRule::restored() {
  note_weights();
  pace_.restored();
  take_restored();
}

void FlatRule::note_weights() {
  memory_.clear();
  for (const at::Tensor& tensor : part_.weights) memory_.push_back(tensor.storage());
  trained_ = trained_now();
}

std::vector<bool> FlatRule::trained_now() const {
  std::vector<bool> trained;
  for (std::size_t i = 0; i < part_.weights.size(); ++i)
    trained.push_back(part_.trains ? part_.trains(i) : part_.weights[i].requires_grad());
  return trained;
}

// A rule takes what happened to the weights since the last exchange for training. An exchange
// writes all of them: momentum, and what other workers have, would move a frozen one.
std::string FlatRule::changes() const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const at::Tensor& tensor = part_.weights[i];
    if (tensor.storage().unsafeGetStorageImpl() == memory_[i].unsafeGetStorageImpl()) continue;
    return "tensor " + std::to_string(i) +
           " of the strategy's weights got other memory, as by torch::load(), set_data() or to(); "
           "call restart() to begin from the new weights, or restored() if the rule's state was "
           "loaded with them";
  }
  const std::vector<bool> now = trained_now();
  const auto first = std::mismatch(now.begin(), now.end(), trained_.begin()).first;
  if (first == now.end()) return "";
  return "tensor " + std::to_string(first - now.begin()) +
         " of the strategy's weights was frozen or unfrozen since restart(); freeze layers alike "
         "on all ranks before the strategy is made, or call restart()";
}

// Where all ranks meet in an exchange, they learn of a change on one of them. Elsewhere its
// neighbors may wait for it already.
void FlatRule::check_changes() const {
  const std::string mine = changes();
  if (!exchanges_together()) {
    if (mine.empty()) return;
    part_.workers.abort(Error(Errc::kAborted, mine));
    throw Error(Errc::kInvalidArgument, mine);
  }
  if (comm::holds_on_all(part_.world, mine.empty())) return;
  const std::vector<std::string> all = comm::all_gather_texts(part_.world, mine);
  const auto first =
      std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  throw Error(Errc::kInvalidArgument,
              mine.empty() ? "rank " + std::to_string(first - all.begin()) + ": " + *first : mine);
}

bool FlatRule::after_step(const Step& step) {
  const at::NoGradGuard no_grad;
  if (!is_due(step)) return false;
  check_changes();
  exchange(step);
  return true;
}

void FlatRule::average(at::Tensor& flat) const {
  if (size() > 1 && flat.numel() > 0) part_.workers.all_reduce(flat, ReduceOp::kAvg);
}

at::Tensor FlatRule::result_weights() {
  at::Tensor mean = weights_.read();
  average(mean);
  return mean;
}

const Rule::Result& FlatRule::result() {
  const at::NoGradGuard no_grad;
  at::Tensor buffers = buffers_.read();
  average(buffers);
  result_ = {weights_.views(result_weights()), buffers_.views(buffers)};
  return result_;
}

void FlatRule::reset_own() {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& memory : state().own) memory.zero_();
}

Rule::State FlatRule::state() { return {arrays_, pace_.numbers(), {}}; }

}  // namespace weft::strategy::internal
